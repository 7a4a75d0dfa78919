"""A reader without hardware: GPUs under a load that follows from a seed.

For trying everything out. Numbers look like those of eight V100 (power as in the node
model of `eaco_telemetry.power`), but nothing is measured: every `Reading` says so.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from eaco_core.errors import InputError
from eaco_telemetry.power import SqrtGpu
from eaco_telemetry.readers.base import Reading
from eaco_telemetry.samples import (
    EnergyKind,
    GpuSample,
    MemoryKind,
    PowerKind,
    ProcessSample,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import Moment

_GIB: Final = 1 << 30
_MEM_BYTES: Final = 32 * _GIB
_RESERVED_BYTES: Final = _GIB // 2
_LIMIT_W: Final = 300.0
_HOT_W_PER_C: Final = 6.0
_ROOM_C: Final = 30.0
_FIRST_PID: Final = 1 << 23  # above what Linux gives out, so never a real process
_REASON: Final = "not simulated"
_MOST_GPUS: Final = 1024


@frozen
class _Job:
    pid: int
    name: str
    sm_ratio: float
    mem_used_bytes: int


@frozen
class _Phase:
    """A stretch of time with the same jobs. Begins at `start_s` with `start_j` used so far."""

    start_s: float
    end_s: float
    start_j: float
    power_w: float
    jobs: tuple[_Job, ...]

    @property
    def util_ratio(self) -> float:
        return min(1.0, sum(job.sm_ratio for job in self.jobs))

    def energy_j(self, elapsed_s: float) -> float:
        return self.start_j + self.power_w * (elapsed_s - self.start_s)


@define
class _Gpu:
    """One GPU: an endless row of phases, each drawn when it is first needed."""

    gpu_id: str
    chance: random.Random
    model: SqrtGpu
    next_pid: int
    phase: _Phase = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.phase = self._draw(0.0, 0.0)

    def at(self, elapsed_s: float) -> _Phase:
        while elapsed_s >= self.phase.end_s:
            self.phase = self._draw(self.phase.end_s, self.phase.energy_j(self.phase.end_s))
        return self.phase

    def _draw(self, start_s: float, start_j: float) -> _Phase:
        count = self.chance.choice((0, 1, 1, 1, 2, 2, 3))
        jobs: list[_Job] = []
        for _ in range(count):
            sm_ratio = round(self.chance.uniform(0.1, 0.9) / math.sqrt(count), 2)
            used = int(self.chance.uniform(1, 30 / count) * _GIB)
            jobs.append(_Job(self.next_pid, "simulated", sm_ratio, used))
            self.next_pid += 1
        util_ratio = min(1.0, sum(job.sm_ratio for job in jobs))
        length_s = self.chance.uniform(20.0, 300.0)
        power_w = self.model.power_w(util_ratio)
        return _Phase(start_s, start_s + length_s, start_j, power_w, tuple(jobs))


class SimulatedReader:
    """Drives `gpus` GPUs. See `eaco_telemetry.readers.base.Reader`.

    The same node, seed and time since the first read give the same numbers, however often
    they are read. Usable in an event loop: nothing here waits.
    """

    def __init__(self, node_id: str, *, gpus: int = 8, seed: int = 0) -> None:
        if not 1 <= gpus <= _MOST_GPUS:
            raise InputError(f"simulate 1 to {_MOST_GPUS} GPUs, not {gpus}")
        self._node_id = node_id
        self._count = gpus
        self._seed = seed
        self._gpus: tuple[_Gpu, ...] = ()
        self._start_ns: int | None = None
        self._elapsed_s = 0.0

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "simulated"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each GPU, the values that are simulated."""
        return {gpu.gpu_id: _CAPABILITIES for gpu in self._gpus}

    def open(self) -> None:
        """Begin the load anew, unless it runs already."""
        if self._gpus:
            return
        self._start_ns, self._elapsed_s = None, 0.0
        self._gpus = tuple(
            _Gpu(
                gpu_id=f"GPU-simulated-{self._node_id}-{number:04d}",
                chance=random.Random(f"{self._seed}/{self._node_id}/{number}"),  # noqa: S311 - a made-up load
                model=SqrtGpu(),
                next_pid=_FIRST_PID + (number << 20),
            )
            for number in range(self._count)
        )

    def read(self, now: Moment) -> Reading:
        """Give all GPUs at a time. A time before that of the last read counts as that one."""
        if self._start_ns is None:
            self._start_ns = now.monotonic_ns
        self._elapsed_s = max(self._elapsed_s, (now.monotonic_ns - self._start_ns) / 1e9)
        at_s = self._elapsed_s
        samples = tuple(_sample(gpu, gpu.at(at_s), at_s) for gpu in self._gpus)
        return Reading(gpus=samples, simulated=True)

    def close(self) -> None:
        """Forget the load."""
        self._gpus = ()


def _sample(gpu: _Gpu, phase: _Phase, elapsed_s: float) -> GpuSample:
    used = sum(job.mem_used_bytes for job in phase.jobs)
    return GpuSample(
        gpu_id=gpu.gpu_id,
        vendor="simulated",
        name="Simulated V100",
        mem_kind=MemoryKind.DEDICATED,
        util_ratio=phase.util_ratio,
        mem_busy_ratio=phase.util_ratio / 2,
        mem_used_bytes=min(used, _MEM_BYTES - _RESERVED_BYTES),
        mem_total_bytes=_MEM_BYTES,
        mem_reserved_bytes=_RESERVED_BYTES,
        power_w=phase.power_w,
        power_inst_w=phase.power_w,
        power_kind=PowerKind.INSTANT,
        energy_j=phase.energy_j(elapsed_s),
        energy_kind=EnergyKind.COUNTER,
        temperature_c=_ROOM_C + phase.power_w / _HOT_W_PER_C,
        clock_sm_hz=1.38e9 if phase.jobs else 1.35e8,
        clock_mem_hz=8.77e8,
        power_limit_w=_LIMIT_W,
        throttle=() if phase.jobs else ("idle",),
        processes=tuple(
            ProcessSample(job.pid, job.name, job.sm_ratio, job.mem_used_bytes) for job in phase.jobs
        ),
        missing=dict.fromkeys(_ABSENT, _REASON),
        capabilities=_CAPABILITIES,
    )


_ABSENT: Final = (
    "module_power_w",
    "integrated_j",
    "mem_temperature_c",
    "ecc_uncorrected",
    "sm_active_ratio",
    "dram_active_ratio",
)
_CAPABILITIES: Final = tuple(sorted(set(GpuSample("any", "simulated").unexplained) - set(_ABSENT)))
