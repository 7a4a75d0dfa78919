"""Recordings in Parquet files, read in blocks. Needs polars: ``pip install 'eaco[record]'``.

A block holds at most about a million rows of one node, so that memory does not grow with
the length of a recording. Only the columns that accounting needs are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import polars as pl
from attrs import evolve

from eaco_telemetry.booking.rows import (
    HOST_SENSORS,
    MOST_J,
    MOST_W,
    SOMEBODY,
    Block,
    ClockOffsets,
    Device,
    DeviceFacts,
    Processes,
    Rows,
    SessionFacts,
    sessions_in_order,
)
from eaco_telemetry.recording import scan_recording
from eaco_telemetry.recording._polars import keep, select
from eaco_telemetry.recording.reading import collect

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

BLOCK_ROWS: Final = 1_000_000
"""Rows of a block, about."""

_SESSION: Final = ("node_id", "session_id")
_TIME: Final = ("seq", "wall_ns", "monotonic_ns")
_GPU: Final = ("gpu_id", "energy_j", "power_w", "util_ratio")


def _sensor(name: str, what: str) -> str:
    return f"host_{name}_{what}"


class FrameRecording:
    """One node of one or more recordings."""

    def __init__(
        self,
        node_id: str,
        sessions: Iterable[SessionFacts],
        rows: pl.LazyFrame,
        *,
        count: int,
        processes_of: frozenset[str],
        path: Path,
    ) -> None:
        self.node_id = node_id
        self.sessions = sessions_in_order(sessions)
        self._rows = rows
        self._processes_of = processes_of
        self._path = path
        first = min(one.first_ns for one in self.sessions)
        self._end_ns = max(one.last_ns for one in self.sessions) + 1
        pieces = -(-count // BLOCK_ROWS)
        self._starts = [first + (self._end_ns - first) * i // pieces for i in range(pieces)]

    def blocks(self) -> Iterator[Block]:
        """Read the rows, in order of time."""
        for start, end in zip(self._starts, [*self._starts[1:], self._end_ns], strict=True):
            yield self._block(start, end)

    def _block(self, start_ns: int, end_ns: int) -> Block:
        here = [one for one in self.sessions if one.first_ns < end_ns and start_ns <= one.last_ns]
        if not here:
            return {}
        wanted = pl.lit(value=False)
        time = pl.col("monotonic_ns")
        for one in here:
            inside = (time >= start_ns - one.offset_ns) & (time < end_ns - one.offset_ns)
            wanted |= (pl.col("session_id") == one.session_id) & inside
        rows = keep(self._rows, (pl.col("node_id") == self.node_id) & wanted)
        sensors = {device.name for one in here for device in one.devices if not device.is_gpu}
        block: dict[str, dict[Device, Rows]] = {one.session_id: {} for one in here}
        offsets = {one.session_id: one.offset_ns for one in here}
        columns = _gpu_columns(rows, self._processes_of)
        for (session_id, gpu_id), part in _partitions(
            collect(columns, self._path), "session_id", "gpu_id"
        ):
            processes = _processes(part, with_pids=gpu_id in self._processes_of)
            block[session_id][Device(is_gpu=True, name=gpu_id)] = Rows(
                t_ns=_ints(part["monotonic_ns"] + offsets[session_id]),
                energy_j=part["energy_j"].to_list(),
                power_w=part["power_w"].to_list(),
                util_ratio=part["util_ratio"].to_list(),
                processes=processes,
            )
        if sensors:
            hosts = collect(_host_columns(rows, sensors), self._path)
            for (session_id,), part in _partitions(hosts, "session_id"):
                t_ns = _ints(part["monotonic_ns"] + offsets[session_id])
                for name in sorted(sensors):
                    block[session_id][Device(is_gpu=False, name=name)] = Rows(
                        t_ns=t_ns,
                        energy_j=part[_sensor(name, "energy_j")].to_list(),
                        power_w=part[_sensor(name, "power_w")].to_list(),
                        util_ratio=[None] * len(t_ns),
                        processes=[None] * len(t_ns),
                    )
        return {
            one.session_id: {
                device: rows
                for device, rows in block[one.session_id].items()
                if device in one.devices
            }
            for one in here
        }


def open_recordings(
    paths: Sequence[str | os.PathLike[str]], *, processes_of: Iterable[str] = ()
) -> list[FrameRecording]:
    """Open recordings that belong together: of several nodes, or of one in pieces.

    `processes_of`: the GPUs whose processes are needed one by one, because it is known
    which of them are a job's. Raises what `scan_recording` raises.
    """
    path = Path(", ".join(str(one) for one in paths))  # a name for messages
    rows = pl.concat([scan_recording(one) for one in paths], how="vertical")
    rows = select(keep(rows, _usable()), _columns())
    sessions = collect(_session_facts(rows), path).to_dicts()
    devices = _device_facts(rows, path)
    nodes: dict[str, list[dict[str, Any]]] = {}
    for one in sessions:
        nodes.setdefault(one["node_id"], []).append(one)
    return [
        FrameRecording(
            node_id,
            [_session(one, devices.get((node_id, one["session_id"]), {})) for one in found],
            rows,
            count=sum(one["rows"] for one in found),
            processes_of=frozenset(processes_of),
            path=path,
        )
        for node_id, found in sorted(nodes.items())
    ]


def _usable() -> pl.Expr:
    """Say which rows count: samples that say whose they are, and when."""
    times = (pl.col("wall_ns") >= 0) & (pl.col("monotonic_ns") >= 0)
    named = pl.col("node_id").is_not_null() & pl.col("session_id").is_not_null()
    is_gpu = (pl.col("kind") == "gpu") & pl.col("gpu_id").is_not_null()
    is_other = (pl.col("kind") == "host") | (pl.col("kind") == "node")
    return times & named & pl.col("seq").is_not_null() & (is_gpu | is_other)


def _columns() -> list[pl.Expr]:
    """Give the columns that are needed; what no device can have measured is null."""
    plain = pl.col("kind", *_SESSION, *_TIME, "simulated", "gpu_id", "parent_id", "processes")
    energies = ["energy_j", *[_sensor(name, "energy_j") for name in HOST_SENSORS]]
    powers = ["power_w", *[_sensor(name, "power_w") for name in HOST_SENSORS]]
    return [
        plain,
        pl.col("mem_total_bytes"),
        _between("util_ratio", 1.0),
        *[_between(name, MOST_J) for name in energies],
        *[_between(name, MOST_W) for name in powers],
    ]


def _between(name: str, most: float) -> pl.Expr:
    column = pl.col(name)
    return _where((column >= 0) & (column <= most), column).alias(name)


def _session(found: Mapping[str, Any], devices: Mapping[Device, DeviceFacts]) -> SessionFacts:
    offset = found["offset_ns"]
    ticks = max(1, found["last_seq"] - found["first_seq"])
    return SessionFacts(
        session_id=found["session_id"],
        clock=ClockOffsets(
            used_ns=offset,
            begin_ns=found["begin_ns"],
            end_ns=found["end_ns"],
            step_ns=max(found["up_ns"] or 0, found["down_ns"] or 0, key=abs),
        ),
        first_ns=found["first_ns"] + offset,
        last_ns=found["last_ns"] + offset,
        period_ns=(found["last_ns"] - found["first_ns"]) // ticks,
        devices={
            device: evolve(
                facts,
                last_ns=facts.last_ns + offset,
                last_energy_ns=(
                    None if facts.last_energy_ns is None else facts.last_energy_ns + offset
                ),
            )
            for device, facts in devices.items()
        },
        simulated=found["simulated"],
    )


def _session_facts(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Give one row per session, with each of its samples counted once."""
    offset = (pl.col("wall_ns") - pl.col("monotonic_ns")).alias("offset_ns")
    ticks = select(rows, [pl.col(*_SESSION, "seq", "monotonic_ns", "simulated"), offset])
    samples = _grouped(
        ticks,
        [*_SESSION, "seq"],
        pl.col("offset_ns").min(),
        pl.col("monotonic_ns").min().alias("first_ns"),
        pl.col("monotonic_ns").max().alias("last_ns"),
        pl.col("simulated").any(),
        pl.len().alias("rows"),
    )
    in_order: Any = cast("Any", pl.col("offset_ns")).sort_by("first_ns", "seq")
    return _grouped(
        samples,
        _SESSION,
        pl.col("offset_ns").sort().get((pl.len() - 1) // 2),
        in_order.first().alias("begin_ns"),
        in_order.last().alias("end_ns"),
        in_order.diff().max().alias("up_ns"),
        in_order.diff().min().alias("down_ns"),
        pl.col("first_ns").min(),
        pl.col("last_ns").max(),
        pl.col("seq").min().alias("first_seq"),
        pl.col("seq").max().alias("last_seq"),
        pl.col("simulated").any(),
        pl.col("rows").sum(),
    )


def _device_facts(
    rows: pl.LazyFrame, path: Path
) -> dict[tuple[str, str], dict[Device, DeviceFacts]]:
    found: dict[tuple[str, str], dict[Device, DeviceFacts]] = {}
    gpus = _grouped(
        keep(rows, pl.col("kind") == "gpu"),
        [*_SESSION, "gpu_id"],
        *_counts("energy_j", "power_w"),
        pl.col("parent_id").max(),
        pl.col("mem_total_bytes").max(),
    )
    for one in collect(gpus, path).to_dicts():
        device = Device(is_gpu=True, name=one["gpu_id"])
        of = found.setdefault((one["node_id"], one["session_id"]), {})
        known = _known(one)
        if one["parent_id"] is not None:
            known = evolve(
                known, parent_id=one["parent_id"], mem_total_bytes=one["mem_total_bytes"]
            )
        of[device] = known
    hosts = keep(rows, pl.col("kind") == "host")
    for name in HOST_SENSORS:
        counts = _counts(_sensor(name, "energy_j"), _sensor(name, "power_w"))
        for one in collect(_grouped(hosts, _SESSION, *counts), path).to_dicts():
            known = _known(one)
            if known.last_energy_ns is not None or known.has_power:
                of = found.setdefault((one["node_id"], one["session_id"]), {})
                of[Device(is_gpu=False, name=name)] = known
    return found


# The signatures of these methods name numpy, which a type checker here cannot see.


def _grouped(rows: pl.LazyFrame, keys: Sequence[str], *what: pl.Expr) -> pl.LazyFrame:
    grouped = cast("Any", rows).group_by(*keys).agg(*what)
    return cast("pl.LazyFrame", grouped)


def _where(condition: pl.Expr, value: pl.Expr) -> pl.Expr:
    return cast("pl.Expr", cast("Any", pl.when(condition)).then(value))


def _sorted(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    return cast("pl.DataFrame", cast("Any", frame).sort(names, nulls_last=True))


def _known(found: Mapping[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        counts=found["first_energy_ns"] != found["last_energy_ns"],
        has_power=found["powers"] > 0,
        last_ns=found["last_ns"],
        last_energy_ns=found["last_energy_ns"],
    )


def _counts(energy: str, power: str) -> list[pl.Expr]:
    times = pl.col("monotonic_ns")
    return [
        _where(pl.col(energy).is_not_null(), times).min().alias("first_energy_ns"),
        pl.col(power).count().alias("powers"),
        times.max().alias("last_ns"),
        _where(pl.col(energy).is_not_null(), times).max().alias("last_energy_ns"),
    ]


def _gpu_columns(rows: pl.LazyFrame, processes_of: frozenset[str]) -> pl.LazyFrame:
    processes = pl.col("processes")
    wanted = pl.col("gpu_id").is_in(sorted(processes_of))
    return select(
        keep(rows, pl.col("kind") == "gpu"),
        [
            pl.col("session_id", "seq", "monotonic_ns", *_GPU),
            processes.list.len().alias("process_count"),
            _where(wanted, processes).alias("processes"),
        ],
    )


def _host_columns(rows: pl.LazyFrame, sensors: Iterable[str]) -> pl.LazyFrame:
    names = [_sensor(name, what) for name in sorted(sensors) for what in ("energy_j", "power_w")]
    return select(
        keep(rows, pl.col("kind") == "host"),
        [pl.col("session_id", "seq", "monotonic_ns", *names)],
    )


def _partitions(frame: pl.DataFrame, *keys: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    """Part a frame by its keys; each part in order of time, whatever the order was before."""
    parts = frame.partition_by(*keys, as_dict=True, maintain_order=True)
    del frame
    for key in list(parts):
        part = parts.pop(key)  # and let go of it when it is done
        times = part["monotonic_ns"]
        if (times.diff() <= 0).any():
            plain = [name for name in part.columns if name not in {*keys, "processes"}]
            plain.sort(key=lambda name: (name != "monotonic_ns", name != "seq"))
            yield key, _sorted(part, plain)
        else:
            yield key, part


def _ints(series: pl.Series) -> list[int]:
    return series.to_list()


def _processes(part: pl.DataFrame, *, with_pids: bool) -> list[Processes]:
    counts: list[int | None] = part["process_count"].to_list()
    if not with_pids:
        return [None if count is None else SOMEBODY if count else () for count in counts]
    some = part["processes"].filter(part["process_count"] > 0).explode()
    fields = some.struct
    pairs = [
        (pid, sm if sm is None or 0.0 <= sm <= 1.0 else None)
        for pid, sm in zip(
            fields.field("pid").to_list(), fields.field("sm_ratio").to_list(), strict=True
        )
    ]
    made: list[Processes] = []
    last: Processes = None
    at = 0
    for count in counts:
        if count is None:
            made.append(None)
            continue
        processes = tuple(pairs[at : at + count])
        if processes != last:  # most are as before, and are kept once
            last = processes
        made.append(last)
        at += count
    return made
