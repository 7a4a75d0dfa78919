"""What a recording holds of one node, as columns, whatever it was read from.

A **device** is a GPU or a sensor of the host. Its rows are put on one time axis: Unix time
in nanoseconds, made from the sender's monotonic clock by adding one offset per session,
the median of wall minus monotonic time. So a step of the wall clock tears no interval.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from attrs import Factory, define, evolve, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eaco_telemetry.samples import GpuSample, HostSample, NodeSample

Process: TypeAlias = tuple[int, "float | None"]
Processes: TypeAlias = "tuple[Process, ...] | None"
"""Pid and share of the SMs of each process on a GPU; None = not known."""

SOMEBODY: Final[tuple[Process, ...]] = ((-1, None),)
"""Processes of which only is known that there are any."""

HOST_SENSORS: Final = ("node", "platform", "package", "dram")
"""Sensors of the host, by the prefix of their fields in `HostSample`."""


MOST_J: Final = 1e15
MOST_W: Final = 1e9
"""More than any device measures. What is above is no measurement, and is not looked at."""


@frozen
class Device:
    """A GPU (or MIG instance) by its id, or a sensor of the host by its name."""

    is_gpu: bool
    name: str


@define
class Rows:
    """What was read of one device in one session, in order of time."""

    t_ns: list[int] = Factory(list[int])
    energy_j: list[float | None] = Factory(list["float | None"])
    power_w: list[float | None] = Factory(list["float | None"])
    util_ratio: list[float | None] = Factory(list["float | None"])
    processes: list[Processes] = Factory(list["Processes"])


@frozen
class DeviceFacts:
    """What there is of one device in one session.

    `counts`: joules were read at two times at least, so that there is a difference.
    `has_power`: watts were read. `last_ns`: its last row; `last_energy_ns`: its last one with
    joules. `parent_id` and `mem_total_bytes`: of a MIG instance.
    """

    counts: bool
    has_power: bool
    last_ns: int
    last_energy_ns: int | None = None
    parent_id: str | None = None
    mem_total_bytes: int | None = None


@frozen
class ClockOffsets:
    """Unix time minus monotonic time of one session, in nanoseconds.

    `used_ns`: the median, by which all its times are; `begin_ns`, `end_ns`: of its first and its
    last sample. `step_ns`: the largest change, up or down, from one sample to the next.
    """

    used_ns: int
    begin_ns: int
    end_ns: int
    step_ns: int = 0


def clock_offsets(offsets_ns: Sequence[int]) -> ClockOffsets:
    """Look at the offsets of all samples of a session, in order of time."""
    steps = [after - before for before, after in pairwise(offsets_ns)]
    return ClockOffsets(
        used_ns=median_low(offsets_ns),
        begin_ns=offsets_ns[0],
        end_ns=offsets_ns[-1],
        step_ns=max(steps, key=lambda one: (abs(one), one), default=0),
    )


@frozen
class SessionFacts:
    """One start of the sender: its time axis, and what it read.

    `period_ns`: from one sample to the next, from the sequence numbers, so that lost
    samples do not count. `clock`: Unix time minus monotonic time.
    """

    session_id: str
    clock: ClockOffsets
    first_ns: int
    last_ns: int
    period_ns: int
    devices: Mapping[Device, DeviceFacts]
    simulated: bool = False

    @property
    def offset_ns(self) -> int:
        """What makes Unix time of monotonic time."""
        return self.clock.used_ns


Block: TypeAlias = "Mapping[str, Mapping[Device, Rows]]"
"""By session and device: the rows of one stretch of time."""


class NodeRecording(Protocol):
    """All that is recorded of one node.

    Blocks follow each other in time, and can be read again and again.
    """

    @property
    def node_id(self) -> str:
        """The node."""
        ...

    @property
    def sessions(self) -> tuple[SessionFacts, ...]:
        """Its sessions, by their begin."""
        ...

    def blocks(self) -> Iterator[Block]:
        """Read the rows."""
        ...


def sessions_in_order(sessions: Iterable[SessionFacts]) -> tuple[SessionFacts, ...]:
    """Sort sessions by their begin."""
    return tuple(sorted(sessions, key=lambda one: (one.first_ns, one.session_id)))


def median_low(values: Iterable[int]) -> int:
    """Give the value in the middle, the lower of two; it is one of the values."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


@define
class _Session:
    """Samples of one session, each sequence number once."""

    samples: dict[int, NodeSample] = Factory(dict[int, "NodeSample"])

    def take(self, sample: NodeSample) -> None:
        """Keep a sample. Of two with one number the one that compares lower, whatever the order."""
        known = self.samples.setdefault(sample.seq, sample)
        if known is not sample and known != sample and repr(sample) < repr(known):
            self.samples[sample.seq] = sample

    def columns(self, session_id: str) -> tuple[SessionFacts, dict[Device, Rows]]:
        ordered = sorted(self.samples.values(), key=lambda one: (one.monotonic_ns, one.seq))
        clock = clock_offsets([one.wall_ns - one.monotonic_ns for one in ordered])
        offset = clock.used_ns
        rows: dict[Device, Rows] = {}
        facts: dict[Device, DeviceFacts] = {}
        for sample in ordered:
            t_ns = sample.monotonic_ns + offset
            for gpu in sample.gpus:
                device = Device(is_gpu=True, name=gpu.gpu_id)
                _add(rows.setdefault(device, Rows()), t_ns, gpu)
                _note(facts, device, gpu)
            if sample.host is not None:
                _add_host(rows, t_ns, sample.host)
        first, last = ordered[0], ordered[-1]
        ticks = max(1, max(self.samples) - min(self.samples))
        return SessionFacts(
            session_id=session_id,
            clock=clock,
            first_ns=first.monotonic_ns + offset,
            last_ns=last.monotonic_ns + offset,
            period_ns=(last.monotonic_ns - first.monotonic_ns) // ticks,
            devices={device: _facts(own, facts.get(device)) for device, own in rows.items()},
            simulated=any(one.simulated for one in ordered),
        ), rows


def _add(rows: Rows, t_ns: int, gpu: GpuSample) -> None:
    rows.t_ns.append(t_ns)
    rows.energy_j.append(_sane(gpu.energy_j, MOST_J))
    rows.power_w.append(_sane(gpu.power_w, MOST_W))
    rows.util_ratio.append(gpu.util_ratio)
    processes = gpu.processes
    known = None if processes is None else tuple([(one.pid, one.sm_ratio) for one in processes])
    rows.processes.append(known)


def _sane(value: float | None, most: float) -> float | None:
    return None if value is None or not value <= most else value


def _note(facts: dict[Device, DeviceFacts], device: Device, gpu: GpuSample) -> None:
    if gpu.parent_id is None:
        return
    old = facts.get(device) or DeviceFacts(
        counts=False, has_power=False, last_ns=0, parent_id=gpu.parent_id
    )
    largest = max(old.mem_total_bytes or 0, gpu.mem_total_bytes or 0) or None
    facts[device] = evolve(old, mem_total_bytes=largest)


def _add_host(rows: dict[Device, Rows], t_ns: int, host: HostSample) -> None:
    for name in HOST_SENSORS:
        own = rows.setdefault(Device(is_gpu=False, name=name), Rows())
        own.t_ns.append(t_ns)
        own.energy_j.append(_sane(getattr(host, f"{name}_energy_j"), MOST_J))
        own.power_w.append(_sane(getattr(host, f"{name}_power_w"), MOST_W))
        own.util_ratio.append(None)
        own.processes.append(None)


def _facts(rows: Rows, known: DeviceFacts | None) -> DeviceFacts:
    with_energy = [
        t for t, joules in zip(rows.t_ns, rows.energy_j, strict=True) if joules is not None
    ]
    return DeviceFacts(
        counts=len(set(with_energy)) > 1,
        has_power=any(watts is not None for watts in rows.power_w),
        last_ns=rows.t_ns[-1],
        last_energy_ns=with_energy[-1] if with_energy else None,
        parent_id=None if known is None else known.parent_id,
        mem_total_bytes=None if known is None else known.mem_total_bytes,
    )


class SampleRecording:
    """The samples of one node, held in memory."""

    def __init__(self, node_id: str, samples: Mapping[str, _Session]) -> None:
        self.node_id = node_id
        columns = {key: one.columns(key) for key, one in samples.items()}
        self.sessions = sessions_in_order(facts for facts, _ in columns.values())
        self._block: Block = {key: rows for key, (_, rows) in columns.items()}

    def blocks(self) -> Iterator[Block]:
        """Give everything at once."""
        yield self._block


def recordings_of(samples: Iterable[NodeSample]) -> list[SampleRecording]:
    """Sort samples of any nodes, in any order, into one recording per node."""
    nodes: dict[str, dict[str, _Session]] = {}
    for sample in samples:
        sessions = nodes.setdefault(sample.node_id, {})
        sessions.setdefault(sample.session_id, _Session()).take(sample)
    return [SampleRecording(node_id, nodes[node_id]) for node_id in sorted(nodes)]
