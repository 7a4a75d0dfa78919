"""Samples: what one node measured at one tick, with all its devices.

One `NodeSample` holds every GPU of a node and, where a reader for it runs, the host.
All units are SI and stand at the end of the name. A value that was not measured is
`None`, never 0, and `missing` says why. GPUs are keyed by UUID; where none exists by
``pci:<node>/<bdf>`` or ``soc:<node>``, never by an index.

Annotations name only types that exist when the program runs, so that a codec can read
them from the classes.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping  # noqa: TC003 - codecs read the annotations
from typing import Any, Final

from attrs import Factory, field, fields, frozen

from eaco_core.cluster import NodeReading
from eaco_telemetry import _check

SCHEMA: Final = "eaco.sample/1"
"""The version of the form of a sample. A reader accepts fields that it does not know."""

ABSOLUTE_ZERO_C: Final = _check.ABSOLUTE_ZERO_C
PARTIAL_PROCESSES: Final = "processes_partial"
"""Flag: `processes` may lack some, because the reader was not allowed to see all."""


class PowerKind(enum.Enum):
    """What a power value is, because the same call means different things on different chips.

    INSTANT: at the time of the sample. AVERAGE: over the last second or so, as the device
    averages it. INTEGRATED: energy used since the sample before, divided by the time.
    """

    INSTANT = "instant"
    AVERAGE = "average"
    INTEGRATED = "integrated"


class EnergyKind(enum.Enum):
    """Where joules come from: a counter in the device, or power summed up over time."""

    COUNTER = "counter"
    INTEGRATED = "integrated"


class MemoryKind(enum.Enum):
    """DEDICATED: memory of the device alone. UNIFIED: the main memory of the node.

    Unified memory must not be added to the memory of the host: it is the same memory.
    """

    DEDICATED = "dedicated"
    UNIFIED = "unified"


class DeviceState(enum.Enum):
    """ACTIVE: it was read. ASLEEP: powered down and left alone. LOST: it no longer answers."""

    ACTIVE = "active"
    ASLEEP = "asleep"
    LOST = "lost"


def _no_words() -> Mapping[str, str]:
    return {}


_MEASURED: Final = {"measured": True}


def _ratio_field() -> Any:  # noqa: ANN401 - what attrs.field gives
    return field(default=None, validator=_check.ratio, metadata=_MEASURED)


def _measure_field() -> Any:  # noqa: ANN401 - what attrs.field gives
    return field(default=None, validator=_check.measure, metadata=_MEASURED)


def _whole_field() -> Any:  # noqa: ANN401 - what attrs.field gives
    return field(default=None, validator=_check.whole, metadata=_MEASURED)


def _degrees_field() -> Any:  # noqa: ANN401 - what attrs.field gives
    return field(default=None, validator=_check.degrees, metadata=_MEASURED)


def _unexplained(sample: GpuSample | HostSample) -> tuple[str, ...]:
    return tuple(
        one.name
        for one in fields(type(sample))
        if one.metadata.get("measured")
        and getattr(sample, one.name) is None
        and one.name not in sample.missing
    )


@frozen(weakref_slot=False)
class ProcessSample:
    """One process on a GPU.

    `sm_ratio`: share of time in which the process had work on the SMs, as the device says;
    the shares of all processes may sum to more than 1. `pid` is a number of the host; in a
    container with its own process numbers it is not one of those.
    """

    pid: int = field(validator=_check.count)
    name: str | None = None
    sm_ratio: float | None = field(default=None, validator=_check.ratio)
    mem_used_bytes: int | None = field(default=None, validator=_check.whole)


@frozen(weakref_slot=False)
class GpuSample:
    """One GPU, or one MIG instance (then `parent_id` is the GPU that it is a part of).

    - `util_ratio`: share of time in which any kernel ran. `mem_busy_ratio`: share of time
      in which memory was read or written. Neither says how full the device is.
    - `sm_active_ratio`: share of the SMs that had work, over the time. `dram_active_ratio`:
      share of its highest rate at which memory moved data. Both from profiling counters
      (DCGM). One busy SM makes `util_ratio` 1 and leaves `sm_active_ratio` close to 0.
    - `mem_reserved_bytes`: kept by the driver; not part of `mem_used_bytes`.
    - `power_w` is of the kind `power_kind`; `power_inst_w` is the value without averaging
      where the device gives it too. `module_power_w`: the module that holds this GPU and
      a processor, on such modules.
    - `energy_j`: since the session began, never falling; a counter that wraps, resets or
      jumps is re-based. `energy_kind` says where it comes from. `integrated_j`: power
      summed up over the same time, kept beside the counter for comparison.
    - `throttle`: why clocks are held down, empty if they are not.
    - `missing`: for each value that is None, the reason. `capabilities`: the names of the
      values that this device gives at all. `flags`: doubts about what is given, as words
      like ``energy_disagrees``. `rejected`: values dropped since the session began because
      they were impossible.
    """

    gpu_id: str = field(validator=_check.name)
    vendor: str = field(validator=_check.name)
    name: str | None = None
    state: DeviceState = DeviceState.ACTIVE
    parent_id: str | None = None
    pci_bdf: str | None = None
    util_ratio: float | None = _ratio_field()
    mem_busy_ratio: float | None = _ratio_field()
    mem_used_bytes: int | None = _whole_field()
    mem_total_bytes: int | None = _whole_field()
    mem_reserved_bytes: int | None = _whole_field()
    mem_kind: MemoryKind | None = None
    power_w: float | None = _measure_field()
    power_kind: PowerKind | None = None
    power_inst_w: float | None = _measure_field()
    module_power_w: float | None = _measure_field()
    energy_j: float | None = _measure_field()
    energy_kind: EnergyKind | None = None
    integrated_j: float | None = _measure_field()
    temperature_c: float | None = _degrees_field()
    mem_temperature_c: float | None = _degrees_field()
    clock_sm_hz: float | None = _measure_field()
    clock_mem_hz: float | None = _measure_field()
    power_limit_w: float | None = _measure_field()
    throttle: tuple[str, ...] | None = field(default=None, metadata=_MEASURED)
    ecc_uncorrected: int | None = _whole_field()
    processes: tuple[ProcessSample, ...] | None = field(default=None, metadata=_MEASURED)
    sm_active_ratio: float | None = _ratio_field()
    dram_active_ratio: float | None = _ratio_field()
    missing: Mapping[str, str] = Factory(_no_words)
    capabilities: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    rejected: int = field(default=0, validator=_check.count)

    @property
    def unexplained(self) -> tuple[str, ...]:
        """The values that are None without a reason. A reader must leave none."""
        return _unexplained(self)


@frozen(weakref_slot=False)
class HostSample:
    """The node around its GPUs.

    `mem_available_bytes` counts memory that can be had at once, so page cache too.
    `package_*`: the processors (RAPL package; it does not contain `dram_*`).
    `platform_*`: the whole board where the processor reports it (RAPL psys; it contains the
    packages). `node_power_w`: a meter of the whole node (plug, IPMI). Energies count from
    the start of the session and never fall.
    """

    cpu_util_ratio: float | None = _ratio_field()
    mem_total_bytes: int | None = _whole_field()
    mem_available_bytes: int | None = _whole_field()
    package_power_w: float | None = _measure_field()
    package_energy_j: float | None = _measure_field()
    dram_power_w: float | None = _measure_field()
    dram_energy_j: float | None = _measure_field()
    platform_power_w: float | None = _measure_field()
    platform_energy_j: float | None = _measure_field()
    node_power_w: float | None = _measure_field()
    node_energy_j: float | None = _measure_field()
    temperature_c: float | None = _degrees_field()
    missing: Mapping[str, str] = Factory(_no_words)
    capabilities: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def unexplained(self) -> tuple[str, ...]:
        """The values that are None without a reason. A reader must leave none."""
        return _unexplained(self)


@frozen
class Moment:
    """One time, on the two clocks of the sender. Only `monotonic_ns` may be subtracted."""

    wall_ns: int = field(validator=_check.count)
    monotonic_ns: int = field(validator=_check.count)

    @classmethod
    def now(cls) -> Moment:
        """Read both clocks of this machine."""
        return cls(wall_ns=time.time_ns(), monotonic_ns=time.monotonic_ns())

    @property
    def monotonic_s(self) -> float:
        """The monotonic clock in seconds."""
        return self.monotonic_ns / 1e9


@frozen(weakref_slot=False)
class NodeSample:
    """One node at one tick.

    `seq` counts up by 1 within a session; a session is one start of the sender, and
    energies count from its begin. `simulated`: the numbers are made up. `problems`: for
    each reader that could not do its work, one sentence that says what to do.
    """

    node_id: str = field(validator=_check.name)
    session_id: str = field(validator=_check.name)
    seq: int = field(validator=_check.count)
    wall_ns: int = field(validator=_check.count)
    monotonic_ns: int = field(validator=_check.count)
    gpus: tuple[GpuSample, ...] = ()
    host: HostSample | None = None
    simulated: bool = False
    problems: Mapping[str, str] = Factory(_no_words)
    schema: str = SCHEMA


def node_readings(
    sample: NodeSample, received_s: float, *, own_pids: Iterable[int] | None = None
) -> tuple[NodeReading, ...]:
    """Give what the core needs from a sample: one reading per GPU that can be booked.

    `received_s`: when it arrived, in scheduler seconds of the receiver. `own_pids`: the
    processes that the scheduler started; without them `foreign` stays unknown, and so it
    does where the list of processes may lack some and names no foreign one. A GPU that is
    split into MIG instances gives no reading of its own, and a lost one gives none.
    """
    parents = {gpu.parent_id for gpu in sample.gpus}
    known = None if own_pids is None else frozenset(own_pids)
    return tuple(
        NodeReading(
            gpu_id=gpu.gpu_id,
            received_s=received_s,
            util_ratio=gpu.util_ratio,
            mem_busy_ratio=gpu.mem_busy_ratio,
            mem_used_bytes=gpu.mem_used_bytes,
            power_w=gpu.power_w,
            foreign=_has_foreign(gpu, known),
        )
        for gpu in sample.gpus
        if gpu.gpu_id not in parents and gpu.state is not DeviceState.LOST
    )


def _has_foreign(gpu: GpuSample, own_pids: frozenset[int] | None) -> bool | None:
    if own_pids is None or gpu.processes is None:
        return None
    if any(process.pid not in own_pids for process in gpu.processes):
        return True
    # Of a list that may lack some, only what is on it can be told.
    return None if PARTIAL_PROCESSES in gpu.flags else False
