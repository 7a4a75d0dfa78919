"""Samples out of a recording: what was recorded, as objects, in the order of the recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from attrs import define, field, frozen

from eaco_core.errors import InputError
from eaco_telemetry.meta import NodeEvent
from eaco_telemetry.recording._lists import list_rows
from eaco_telemetry.recording._polars import keep, select
from eaco_telemetry.recording.columns import (
    EVENT,
    EVENT_COLUMNS,
    GPU,
    GPU_FIELDS,
    HOST,
    HOST_FIELDS,
    NODE,
    PROBLEMS,
    FieldColumn,
)
from eaco_telemetry.recording.parts import ROW_GROUP
from eaco_telemetry.recording.reading import collect, sources
from eaco_telemetry.samples import GpuSample, HostSample, NodeSample

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

CHUNK_ROWS: Final = ROW_GROUP
"""Rows in memory at a time, so that a recording of any length can be read."""


@frozen
class Recorded:
    """What one call of `Recorder.take` wrote. `sample` is None for events without a sample."""

    sample: NodeSample | None
    events: tuple[NodeEvent, ...] = ()


def read_samples(path: str | os.PathLike[str]) -> Iterator[NodeSample]:
    """Give the samples of a recording as they were recorded, one at a time.

    Each is equal to the one that was recorded, with its reasons in `missing`. Rows of the
    same node, session, sequence number and times that follow each other are one sample; a
    GPU that comes twice begins a new one.

    Raises `InputError` where the file is no recording or a value is impossible.
    """
    for recorded in read_recorded(path):
        if recorded.sample is not None:
            yield recorded.sample


def read_recorded(path: str | os.PathLike[str]) -> Iterator[Recorded]:
    """Give samples and events as they were recorded; see `read_samples`."""
    group = _Group()
    for row in _rows(Path(path)):
        if not group.takes(row):
            yield group.recorded(path)
            group = _Group()
        group.add(row)
    if group.rank >= 0:
        yield group.recorded(path)


@frozen
class _Row:
    kind: str
    key: tuple[Any, ...]
    value: Any  # GpuSample, HostSample, NodeEvent, or the problems of a node row


@define
class _Group:
    """The rows of one sample, while they are collected."""

    key: tuple[Any, ...] = ()
    rank: int = -1
    measured: bool = False
    gpus: dict[str, GpuSample] = field(factory=dict[str, GpuSample])
    host: HostSample | None = None
    problems: dict[str, str] = field(factory=dict[str, str])
    events: list[NodeEvent] = field(factory=list[NodeEvent])

    def takes(self, row: _Row) -> bool:
        """Say whether a row belongs to what was collected so far."""
        rank = _RANK[row.kind]
        if self.rank < 0:
            return True
        if row.kind == EVENT:
            return row.key[:_EVENT_KEY] == self.key[:_EVENT_KEY]  # an event has its own times
        if row.key != self.key or rank < self.rank:
            return False
        return row.value.gpu_id not in self.gpus if row.kind == GPU else rank > self.rank

    def add(self, row: _Row) -> None:
        """Take a row that belongs here."""
        self.key = self.key or row.key
        self.rank = _RANK[row.kind]
        self.measured = self.measured or row.kind != EVENT
        if row.kind == EVENT:
            self.events.append(row.value)
        elif row.kind == GPU:
            self.gpus[row.value.gpu_id] = row.value
        elif row.kind == HOST:
            self.host = row.value
        else:
            self.problems = row.value

    def recorded(self, path: str | os.PathLike[str]) -> Recorded:
        """Give what was collected."""
        events = tuple(self.events)
        if not self.measured:
            return Recorded(None, events)
        node_id, session_id, seq, simulated, wall_ns, monotonic_ns = self.key
        try:
            sample = NodeSample(
                node_id=node_id,
                session_id=session_id,
                seq=seq,
                wall_ns=wall_ns,
                monotonic_ns=monotonic_ns,
                gpus=tuple(self.gpus.values()),
                host=self.host,
                simulated=simulated,
                problems=self.problems,
            )
        except InputError as error:
            raise InputError(str(error), where=f"{path}, node {node_id}, seq {seq}") from None
        return Recorded(sample, events)


def _rows(path: Path) -> Iterator[_Row]:
    for one in sources(path):
        count = collect(select(one.rows, [pl.len()]), one.path).item()
        for start in range(0, count, CHUNK_ROWS):
            yield from _chunk(collect(one.rows.slice(start, CHUNK_ROWS), one.path), one.path, start)


def _chunk(frame: pl.DataFrame, path: Path, start: int) -> Iterator[_Row]:
    for name in ("kind", *_KEY):
        if (empty := frame[name].null_count()) > 0:
            raise InputError(f"{name!r} is empty in {empty} rows", where=str(path))
    kinds = frame["kind"].to_list()
    keys = _tuples(frame, _KEY)
    parts = {
        kind: _tuples(keep(frame.lazy(), pl.col("kind") == kind).collect(), names)
        for kind, names in _COLUMNS_OF.items()
    }
    for number, (kind, key) in enumerate(zip(kinds, keys, strict=True), start):
        if kind not in parts:
            continue  # of a later version
        try:
            row = _Row(kind, key, _MAKERS[kind](key, next(parts[kind])))
        except (InputError, TypeError, ValueError) as error:
            raise InputError(str(error), where=f"{path}, row {number + 1}") from None
        yield row


def _tuples(frame: pl.DataFrame, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(_plain(frame[name]) for name in names), strict=True)


def _plain(series: pl.Series) -> list[Any]:
    return list_rows(series) if isinstance(series.dtype, pl.List) else series.to_list()


def _values(columns: Sequence[FieldColumn], values: Sequence[Any]) -> dict[str, Any]:
    """Give the arguments of the class. Null stays away, so that it becomes the default."""
    return {
        one.name: value if one.unpack is None else one.unpack(value)
        for one, value in zip(columns, values, strict=True)
        if value is not None
    }


def _gpu(_key: Sequence[Any], values: Sequence[Any]) -> GpuSample:
    return GpuSample(**_values(GPU_FIELDS, values))


def _host(_key: Sequence[Any], values: Sequence[Any]) -> HostSample:
    return HostSample(**_values(HOST_FIELDS, values))


def _problems(_key: Sequence[Any], values: Sequence[Any]) -> dict[str, str]:
    return dict(values[0] or ())


def _event(key: Sequence[Any], values: Sequence[Any]) -> NodeEvent:
    node_id, session_id, _seq, _simulated, wall_ns, monotonic_ns = key
    event_seq, kind, code, message, gpu_id = values
    return NodeEvent(
        node_id=node_id,
        session_id=session_id,
        event_seq=event_seq,
        wall_ns=wall_ns,
        monotonic_ns=monotonic_ns,
        kind=kind,
        gpu_id=gpu_id,
        code=code,
        message=message or "",
    )


_KEY: Final = ("node_id", "session_id", "seq", "simulated", "wall_ns", "monotonic_ns")
_EVENT_KEY: Final = 3
"""So many of the key are the same for a sample and the events that came with it."""

_RANK: Final = {NODE: 0, GPU: 1, HOST: 2, EVENT: 3}
_COLUMNS_OF: Final[dict[str, tuple[str, ...]]] = {
    NODE: (PROBLEMS,),
    GPU: tuple(one.column for one in GPU_FIELDS),
    HOST: tuple(one.column for one in HOST_FIELDS),
    EVENT: (*EVENT_COLUMNS, "gpu_id"),
}
_MAKERS: Final[dict[str, Callable[[Sequence[Any], Sequence[Any]], Any]]] = {
    NODE: _problems,
    GPU: _gpu,
    HOST: _host,
    EVENT: _event,
}
