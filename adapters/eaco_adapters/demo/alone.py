"""Measure workloads alone, each on a virtual GPU of its own: what `eaco profile` does for users."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import NodeRunner, RunnerOptions
from eaco_core import events as ev
from eaco_core.errors import EnvironmentFault
from eaco_core.jobs import SoloProfile
from eaco_predictors.profile_table import ProfileTable
from eaco_telemetry.readers.virtual import VirtualGpuReader
from eaco_telemetry.samples import Moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from eaco_adapters.demo.cast import Workload

_EPOCHS: Final = 3
_TIMEOUT_S: Final = 60.0
_GIB: Final = 1 << 30


@frozen
class Alone:
    """What one workload did alone: seconds for an epoch, utilisation, memory, watts."""

    epoch_s: float
    util_ratio: float
    mem_used_bytes: int
    power_w: float


@define
class _Seen:
    utils: list[float] = field(factory=list[float])
    watts: list[float] = field(factory=list[float])
    used_bytes: int = 0


async def measure_alone(
    workloads: Sequence[Workload], root: Path, cpus: Sequence[int]
) -> dict[str, Alone]:
    """Run each workload for a few epochs, side by side on cores of their own.

    Raises EnvironmentFault if one of them does not run.
    """
    found: dict[str, Alone] = {}
    for number, batch in enumerate(_batches(workloads, len(cpus))):
        gpus = [f"SIM-alone-{n}" for n in range(len(batch))]
        async with NodeRunner(
            root / f"alone-{number}",
            node_id="alone",
            gpu_ids=gpus,
            options=RunnerOptions(gpu_cpus={gpu: (cpus[n],) for n, gpu in enumerate(gpus)}),
        ) as runner:
            measured = await _measure(runner, dict(zip(gpus, batch, strict=True)))
        found |= measured
    return found


def profile_table(alone: Mapping[str, Alone], gpu_type: str) -> ProfileTable:
    """Make a table of profiles of what was measured."""
    profiles = {
        name: SoloProfile(
            gpu_type,
            epoch_s=one.epoch_s,
            util_ratio=one.util_ratio,
            mem_busy_ratio=one.util_ratio / 2,
            peak_mem_bytes=one.mem_used_bytes,
        )
        for name, one in alone.items()
    }
    return ProfileTable("measured by the demo", gpu_type, profiles, {})


async def _measure(runner: NodeRunner, jobs: Mapping[str, Workload]) -> dict[str, Alone]:
    reader = VirtualGpuReader(dict.fromkeys(jobs, _GIB))
    reader.open()
    ends: dict[str, list[float]] = {one.name: [] for one in jobs.values()}
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_TIMEOUT_S):
        for gpu, workload in jobs.items():
            command = tuple(workload.command(_EPOCHS, measured=True))
            launch = LaunchSpec(command=command)
            await runner.start(workload.name, 1, 1, gpus=(gpu,), resume_epoch=0, launch=launch)
        seen = {gpu: _Seen() for gpu in jobs}
        looking = loop.create_task(_look(reader, jobs, ends, seen))
        try:
            left = set(ends)
            async for report in runner.reports():
                event = report.event
                at_s = loop.time() - report.age_s
                if isinstance(event, ev.EpochCompleted):
                    ends[report.job_id].append(at_s)
                if isinstance(event, ev.JobFailed | ev.StartFailed):
                    raise EnvironmentFault(f"workload {report.job_id} does not run: {event}")
                if isinstance(event, ev.GpusReleased):
                    left.discard(report.job_id)
                    if not left:
                        break
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    return {
        workload.name: Alone(
            epoch_s=(ends[workload.name][-1] - ends[workload.name][0]) / (_EPOCHS - 1),
            util_ratio=_mean(seen[gpu].utils),
            mem_used_bytes=seen[gpu].used_bytes,
            power_w=_mean(seen[gpu].watts),
        )
        for gpu, workload in jobs.items()
    }


async def _look(
    reader: VirtualGpuReader,
    jobs: Mapping[str, Workload],
    ends: Mapping[str, list[float]],
    seen: Mapping[str, _Seen],
) -> None:
    """Read the sensors between the first and the last epoch end of each workload."""
    while True:
        for gpu in reader.read(Moment.now()).gpus:
            one = seen[gpu.gpu_id]
            one.used_bytes = max(one.used_bytes, gpu.mem_used_bytes or 0)
            in_epochs = 1 <= len(ends[jobs[gpu.gpu_id].name]) < _EPOCHS
            if in_epochs and gpu.util_ratio is not None and gpu.power_w is not None:
                one.utils.append(gpu.util_ratio)
                one.watts.append(gpu.power_w)
        await asyncio.sleep(0.25)


def _batches(workloads: Sequence[Workload], size: int) -> list[Sequence[Workload]]:
    return [workloads[first : first + size] for first in range(0, len(workloads), size)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
