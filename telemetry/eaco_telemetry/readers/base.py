"""The shape of a reader, and what all readers do to raw numbers.

A reader owns its devices and no clock: the caller says when it reads. Between two reads
it keeps counters, so that `energy_j` counts from `open`, whatever the device does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from attrs import Factory, define, evolve, field, fields, frozen

from eaco_telemetry.samples import (
    DeviceState,
    GpuSample,
    HostSample,
    Moment,
    NodeSample,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

MAX_DEVICE_W: Final = 20_000.0
"""More than any device with one energy counter can draw; a faster rise is a jump."""

MIN_ENERGY_WINDOW_S: Final = 0.1
"""Energy counters stand still for up to 100 ms: a shorter window says nothing about power."""

UNSUPPORTED: Final = "not supported by this device or driver"
"""The usual reason in `missing`."""

NOT_READ_HERE: Final = "not read by this reader"
"""The reason for what belongs to another reader; a better one takes its place."""


@frozen
class DeviceEvent:
    """Something that happened to a device between two reads.

    `kind` is one of ``lost``, ``returned``, ``asleep``, ``awake``, ``xid``, ``ecc``,
    ``appeared``, ``driver_mismatch``, ``reinitialised``, ``failed``. `code`: the vendor's
    number where there is one. `gpu_id` is None for what concerns the whole driver.
    """

    kind: str
    gpu_id: str | None = None
    code: int | None = None
    message: str = ""


@frozen
class Reading:
    """What one reader saw at one time.

    `problem`: None, or one sentence saying why the reader could not do its work and what to
    do about it. The caller goes on reading at its pace: a reader comes back by itself.
    `simulated`: the numbers are made up. `aliases`: other names of GPUs to their ids, for
    readers that name the same device differently.
    """

    gpus: tuple[GpuSample, ...] = ()
    host: HostSample | None = None
    events: tuple[DeviceEvent, ...] = ()
    problem: str | None = None
    simulated: bool = False
    aliases: Mapping[str, str] = Factory(dict[str, str])


def node_sample(
    readings: Mapping[str, Reading], *, node_id: str, session_id: str, seq: int, now: Moment
) -> NodeSample:
    """Put what the readers of one node saw (name of the reader to reading) into one sample.

    A GPU that several readers see is taken from the first of them; later ones add what it
    lacks (`joined_gpu`). The same GPU is one with the same id, with an id that `aliases`
    leads to, or at the same PCI address. One simulated part makes the sample simulated.
    """
    gpus: dict[str, GpuSample] = {}
    places: dict[str, str] = {}
    host: HostSample | None = None
    aliases = {old: new for reading in readings.values() for old, new in reading.aliases.items()}
    for reading in readings.values():
        found: dict[str, str] = {}
        for gpu in reading.gpus:
            key = aliases.get(gpu.gpu_id, gpu.gpu_id)
            if gpu.pci_bdf is not None and gpu.parent_id is None:
                key = key if key in gpus else places.get(gpu.pci_bdf, key)
                found.setdefault(gpu.pci_bdf, key)
            gpus[key] = joined_gpu(gpus[key], gpu) if key in gpus else gpu
        # Only another reader's GPU is the same one: what one reader tells apart is apart.
        places = found | places
        if reading.host is not None:
            host = reading.host if host is None else joined_host(host, reading.host)
    return NodeSample(
        node_id=node_id,
        session_id=session_id,
        seq=seq,
        wall_ns=now.wall_ns,
        monotonic_ns=now.monotonic_ns,
        gpus=tuple(gpus.values()),
        host=host,
        simulated=any(reading.simulated for reading in readings.values()),
        problems={name: reading.problem for name, reading in readings.items() if reading.problem},
    )


_GPU_VALUES: Final = tuple(one.name for one in fields(GpuSample) if one.metadata.get("measured"))
_HOST_VALUES: Final = tuple(one.name for one in fields(HostSample) if one.metadata.get("measured"))
# What says of which kind a value is goes with that value.
_KIND_OF: Final = {
    "power_w": "power_kind",
    "energy_j": "energy_kind",
    "mem_total_bytes": "mem_kind",
}
# A flag that begins so is a doubt about such values; all others are about the device.
_DOUBTS: Final = ("energy", "power", "mem", "processes")


def joined_gpu(first: GpuSample, second: GpuSample) -> GpuSample:
    """Add to a GPU what another reader gives and the first one lacks.

    Joules of two readers count from two beginnings, so those of the second are taken only
    if the first never gives any. A GPU that is asleep or lost gets no values from elsewhere.
    """
    if first.state is not DeviceState.ACTIVE:
        return first
    added = _added(first, second, _GPU_VALUES)
    for name, kind in _KIND_OF.items():
        if name in added:
            added[kind] = getattr(second, kind)
    subjects = {name.split("_", 1)[0] for name in added}
    unused = tuple(word for word in _DOUBTS if word not in subjects)
    flags = [flag for flag in second.flags if not flag.startswith(unused)]
    return evolve(
        first,
        name=first.name or second.name,
        pci_bdf=first.pci_bdf or second.pci_bdf,
        missing=_still_missing(first, second, added),
        capabilities=tuple(sorted({*first.capabilities, *second.capabilities})),
        flags=tuple(sorted({*first.flags, *flags})),
        rejected=first.rejected + second.rejected,
        **added,
    )


def joined_host(first: HostSample, second: HostSample) -> HostSample:
    """Add to the host what another reader gives and the first one lacks, as `joined_gpu`."""
    added = _added(first, second, _HOST_VALUES)
    return evolve(
        first,
        missing=_still_missing(first, second, added),
        capabilities=tuple(sorted({*first.capabilities, *second.capabilities})),
        flags=tuple(sorted({*first.flags, *second.flags})),
        **added,
    )


T = TypeVar("T", GpuSample, HostSample)


def _added(first: T, second: T, names: Iterable[str]) -> dict[str, Any]:
    return {
        name: getattr(second, name)
        for name in names
        if getattr(first, name) is None
        and getattr(second, name) is not None
        and not (name.endswith("_j") and name in first.capabilities)
        # Two meters of one node do not measure at the same place.
        and not (name.startswith("node_") and name in first.capabilities)
    }


def _still_missing(first: T, second: T, added: Collection[str]) -> dict[str, str]:
    """Of two reasons, the one of a reader that could have given the value."""
    reasons = {**second.missing, **first.missing}
    for name, reason in first.missing.items():
        if reason == NOT_READ_HERE:
            reasons[name] = second.missing.get(name, reason)
    known = {name for name in reasons if name in added or getattr(first, name, None) is not None}
    return {name: reason for name, reason in reasons.items() if name not in known}


def instance_id(gpu_id: str, number: int) -> str:
    """Give the id of a MIG instance by its number on its GPU, where its UUID is not known."""
    return f"{gpu_id}/gi{number}"


def without_values(gpu: GpuSample, reason: str) -> GpuSample:
    """Give the same GPU with nothing measured, and why it was not."""
    nothing: dict[str, Any] = dict.fromkeys(_GPU_VALUES)
    return evolve(gpu, missing=dict.fromkeys(_GPU_VALUES, reason), flags=(), **nothing)


def host_without_values(host: HostSample, reason: str) -> HostSample:
    """Give the host with nothing measured, and why it was not."""
    nothing: dict[str, Any] = dict.fromkeys(_HOST_VALUES)
    return evolve(host, missing=dict.fromkeys(_HOST_VALUES, reason), flags=(), **nothing)


@runtime_checkable
class Reader(Protocol):
    """Reads one kind of sensor of this node.

    No method may be called from an event loop unless the reader says so, and none from two
    threads at once. A reader has no thread of its own, except the one for NVML.
    """

    @property
    def name(self) -> str:
        """A short name, like ``nvml``; the key in `NodeSample.problems`."""
        ...

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each device, the names of the values that it gives at all. Known after `open`."""
        ...

    def open(self) -> None:
        """Find the devices; joules count from here. On an open reader this does nothing.

        Raise `EnvironmentFault` if this reader has nothing to read here.
        """
        ...

    def read(self, now: Moment) -> Reading:
        """Read every device once. Never raises for what a device or driver does."""
        ...

    def close(self) -> None:
        """Let the devices go. May be called twice."""
        ...


def percent_to_ratio(percent: float) -> float | None:
    """Give 0..1 for 0..100; None for anything else, which a device never means."""
    return percent / 100 if math.isfinite(percent) and 0 <= percent <= 100 else None  # noqa: PLR2004 - per cent


@define
class PowerIntegral:
    """Joules from power, by the trapezoid between two values.

    Over a gap of more than `max_gap_s` nothing is added: what happened there is not known.
    """

    max_gap_s: float = 30.0
    total_j: float = field(default=0.0, init=False)
    _last: tuple[float, float] | None = field(default=None, init=False)

    def add(self, power_w: float | None, now_s: float) -> float:
        """Take the power at a time on the monotonic clock; give the joules so far."""
        if power_w is not None and self._last is not None:
            last_w, last_s = self._last
            passed_s = now_s - last_s
            if 0 < passed_s <= self.max_gap_s:
                self.total_j += (last_w + power_w) / 2 * passed_s
        self._last = None if power_w is None else (power_w, now_s)
        return self.total_j
