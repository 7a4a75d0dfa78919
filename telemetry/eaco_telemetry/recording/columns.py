"""The columns of a recording: one frame for GPUs, hosts and events.

The columns of GPUs and hosts follow from the fields of `GpuSample` and `HostSample`, so
that a value which is added there is recorded without a change here.

A list of pairs stands for a mapping (`missing`, `problems`); an enumeration is its value.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl
from attrs import fields, frozen

from eaco_core.errors import InternalError
from eaco_telemetry.recording._lists import list_series
from eaco_telemetry.samples import GpuSample, HostSample, NodeSample, ProcessSample

if typing.TYPE_CHECKING:
    from eaco_telemetry.meta import NodeEvent

RECORDING_SCHEMA: Final = "eaco.recording/1"
"""The version of the form of a recording; in the Parquet metadata under `SCHEMA_KEY`."""

SCHEMA_KEY: Final = "eaco.schema"

GPU: Final = "gpu"
HOST: Final = "host"
EVENT: Final = "event"
NODE: Final = "node"
KINDS: Final = (NODE, GPU, HOST, EVENT)
"""The kinds of rows, in the order in which they stand for one sample."""

HOST_PREFIX: Final = "host_"

DType = pl.DataType | type[pl.DataType]

_PAIRS: Final = pl.List(pl.Struct({"name": pl.String, "reason": pl.String}))
_PROCESS_FIELDS: Final = tuple(one.name for one in fields(ProcessSample))
_PLAIN: Final[Mapping[object, DType]] = {
    bool: pl.Boolean,
    float: pl.Float64,
    int: pl.Int64,
    str: pl.String,
}


@frozen
class FieldColumn:
    """One field of a class and the column it goes to.

    `pack` turns the value of the field into that of the column, and `unpack` back; None
    where they are the same. Neither is asked about None.
    """

    name: str
    column: str
    dtype: DType
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None


def _clean(text: str) -> str:
    """Give text that a file can hold: half a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any value of a record
    return _clean(value) if isinstance(value, str) else value


def _pack_pairs(pairs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple([(_clean(name), _clean(why)) for name, why in pairs.items()])


def _pack_texts(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple([_clean(text) for text in texts])


def _value_of(member: enum.Enum) -> str:
    return str(member.value)


def _members(kind: type[enum.Enum]) -> Callable[[str], enum.Enum]:
    """Give the way back from a value; quicker than asking the enumeration."""
    known = {str(member.value): member for member in kind}
    return lambda value: known.get(value) or kind(value)


def _pack_processes(processes: Sequence[ProcessSample]) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        [
            tuple([_cleaned(getattr(process, name)) for name in _PROCESS_FIELDS])
            for process in processes
        ]
    )


def _unpack_processes(rows: Sequence[Sequence[Any]]) -> tuple[ProcessSample, ...]:
    return tuple([ProcessSample(*row) for row in rows])


def _field_columns(of: type, prefix: str) -> tuple[FieldColumn, ...]:
    hints = typing.get_type_hints(of)
    return tuple(
        _field_column(one.name, f"{prefix}{one.name}", hints[one.name]) for one in fields(of)
    )


def _field_column(name: str, column: str, hint: object) -> FieldColumn:
    kind = _without_none(hint)
    if kind is str:
        return FieldColumn(name, column, pl.String, _clean)
    if kind in _PLAIN:
        return FieldColumn(name, column, _PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return FieldColumn(name, column, pl.String, _value_of, _members(kind))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and inner == (str, ...):
        return FieldColumn(name, column, pl.List(pl.String), _pack_texts)
    if origin is tuple and inner == (ProcessSample, ...):
        records = _field_columns(ProcessSample, "")
        struct = pl.Struct({one.column: one.dtype for one in records})
        return FieldColumn(name, column, pl.List(struct), _pack_processes, _unpack_processes)
    if origin is Mapping and inner == (str, str):
        return FieldColumn(name, column, _PAIRS, _pack_pairs, dict)
    raise InternalError(f"a recording has no column for the field {name!r} of type {hint!r}")


def _without_none(hint: object) -> object:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    (kind,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    return kind


BASE_COLUMNS: Final[Mapping[str, DType]] = {
    "kind": pl.String,
    "node_id": pl.String,
    "session_id": pl.String,
    "seq": pl.Int64,
    "wall_ns": pl.Int64,
    "monotonic_ns": pl.Int64,
    "simulated": pl.Boolean,
}
"""What every row has. Without these a file is no recording."""

GPU_FIELDS: Final = _field_columns(GpuSample, "")
HOST_FIELDS: Final = _field_columns(HostSample, HOST_PREFIX)
EVENT_COLUMNS: Final[Mapping[str, DType]] = {
    "event_seq": pl.Int64,
    "event_kind": pl.String,
    "event_code": pl.Int64,
    "event_message": pl.String,
}
PROBLEMS: Final = "problems"

COLUMNS: Final[Mapping[str, DType]] = {
    **BASE_COLUMNS,
    **{one.column: one.dtype for one in GPU_FIELDS},
    **{one.column: one.dtype for one in HOST_FIELDS},
    **EVENT_COLUMNS,
    PROBLEMS: _PAIRS,
}
"""All columns of a recording, in their order."""

NEEDED: Final = (*BASE_COLUMNS, "gpu_id", "vendor")
"""Columns that every version of a recording has; any other may be absent, which is null."""

_PLACE: Final = {column: place for place, column in enumerate(COLUMNS)}
_GPU_PLACES: Final = tuple((one.name, one.pack, _PLACE[one.column]) for one in GPU_FIELDS)
_HOST_PLACES: Final = tuple((one.name, one.pack, _PLACE[one.column]) for one in HOST_FIELDS)


def sample_rows(sample: NodeSample, events: Sequence[NodeEvent] = ()) -> list[list[Any]]:
    """Give the rows of one sample and of the events that came with it, in column order."""
    base: list[Any] = [
        _clean(sample.node_id),
        _clean(sample.session_id),
        sample.seq,
        sample.wall_ns,
        sample.monotonic_ns,
        sample.simulated,
    ]
    rows: list[list[Any]] = []
    if sample.problems or not sample.gpus:
        row = _row(NODE, base)
        row[_PLACE[PROBLEMS]] = _pack_pairs(sample.problems)
        rows.append(row)
    rows += [_filled(_row(GPU, base), gpu, _GPU_PLACES) for gpu in sample.gpus]
    if sample.host is not None:
        rows.append(_filled(_row(HOST, base), sample.host, _HOST_PLACES))
    rows += [_event_row(event, sample) for event in events]
    return rows


def frame_of(rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """Give the frame of some rows; raises polars' errors if a value does not fit."""
    values = zip(*rows, strict=True) if rows else iter([()] * len(COLUMNS))
    return pl.DataFrame(
        [
            list_series(column, dtype, one)
            if isinstance(dtype, pl.List)
            else pl.Series(column, one, dtype=dtype)
            for (column, dtype), one in zip(COLUMNS.items(), values, strict=True)
        ]
    )


def _row(kind: str, base: Sequence[Any]) -> list[Any]:
    return [kind, *base, *([None] * (len(COLUMNS) - len(BASE_COLUMNS)))]


def _filled(
    row: list[Any],
    measured: GpuSample | HostSample,
    places: Sequence[tuple[str, Callable[[Any], Any] | None, int]],
) -> list[Any]:
    for name, pack, place in places:
        value = getattr(measured, name)
        row[place] = value if pack is None or value is None else pack(value)
    return row


def _event_row(event: NodeEvent, sample: NodeSample) -> list[Any]:
    row: list[Any] = [None] * len(COLUMNS)
    values: dict[str, Any] = {
        "kind": EVENT,
        "node_id": _clean(event.node_id),
        "session_id": _clean(event.session_id),
        "seq": sample.seq,
        "wall_ns": event.wall_ns,
        "monotonic_ns": event.monotonic_ns,
        "simulated": sample.simulated,
        "event_seq": event.event_seq,
        "event_kind": _clean(event.kind),
        "gpu_id": None if event.gpu_id is None else _clean(event.gpu_id),
        "event_code": event.code,
        "event_message": _clean(event.message),
    }
    for column, value in values.items():
        row[_PLACE[column]] = value
    return row
