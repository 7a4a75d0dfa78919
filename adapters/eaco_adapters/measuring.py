"""Measures workloads on this machine: alone, and two together, for a few epochs each.

The workloads run through a `NodeRunner`, as they would under the scheduler. Epoch times come from
what they report; utilisation, memory and power from the readers of telemetry, if there are any.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import Factory, define, field, frozen

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import NodeRunner, RunnerOptions, proc
from eaco_core import events as ev
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eaco_adapters.node import RunnerReport
    from eaco_telemetry.sampler import Sampler
    from eaco_telemetry.samples import GpuSample

_GRACE_S = 10.0
_TAIL_CHARS = 300


@frozen
class Workload:
    """What to measure: a name for the profiles, and how to start it."""

    name: str
    command: tuple[str, ...]


@frozen
class Measured:
    """One workload in one run. None has its reason in `missing`.

    `epoch_s`: median of the epochs between the first and the last that were reported.
    """

    workload: str
    epochs: int
    epoch_s: float
    util_ratio: float | None = None
    mem_busy_ratio: float | None = None
    peak_mem_bytes: int | None = None
    power_w: float | None = None
    missing: Mapping[str, str] = Factory(dict[str, str])


@frozen
class Place:
    """Where to measure: GPU ids as the runner knows them; `cores` stand for a virtual GPU."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...] = ()
    reason: str = ""


@define(eq=False)
class _Run:
    """One workload while it runs."""

    workload: Workload
    at_s: list[float] = field(factory=list[float])
    end: ev.JobEvent | None = None
    is_over: bool = False

    def times_s(self, since_s: float) -> list[float]:
        """Give the times of the epochs that began at `since_s` or later."""
        at_s = [at_s for at_s in self.at_s if at_s >= since_s]
        return [b - a for a, b in itertools.pairwise(at_s)]


async def measure(
    workloads: Sequence[Workload], place: Place, *, epochs: int, sampler: Sampler | None
) -> list[Measured]:
    """Run the workloads at the same time until each has reported `epochs` more than its first.

    Raises InputError for a workload that cannot start, fails, or reports too few epochs.
    """
    runs = {f"{n} {one.name}": _Run(one) for n, one in enumerate(workloads)}
    gpu_cpus = dict.fromkeys(place.gpus, place.cores) if place.cores else {}
    with tempfile.TemporaryDirectory(prefix="eaco-profile-") as folder:
        options = RunnerOptions(poll_s=0.05, gpu_cpus=gpu_cpus)
        runner = NodeRunner(Path(folder), node_id="here", gpu_ids=place.gpus, options=options)
        async with runner:
            try:
                before = await _gpus(sampler, place)
                for job_id, run in runs.items():
                    launch = LaunchSpec(run.workload.command, cwd=str(Path.cwd()))
                    await runner.start(job_id, 1, 1, gpus=place.gpus, resume_epoch=0, launch=launch)
                watching = asyncio.create_task(_watch(sampler, place, runs))
                try:
                    await _until_measured(runner, runs, epochs)
                finally:
                    watching.cancel()
                    seen = await _ended(watching)
                _check(runner, runs)
            finally:
                for job_id in runs:
                    await runner.kill(job_id, 1, 1, grace_s=_GRACE_S)
    since_s = _since_s(runs)
    return [_result(run, run.times_s(since_s), place, before, seen) for run in runs.values()]


async def _until_measured(runner: NodeRunner, runs: dict[str, _Run], epochs: int) -> None:
    async with contextlib.aclosing(runner.reports()) as reports:
        async for report in reports:
            run = runs[report.job_id]
            _take(run, report)
            alone = len(runs) == 1
            since_s = _since_s(runs)
            done = [len(one.times_s(since_s)) >= epochs for one in runs.values()]
            if all(done) or run.is_over or (alone and run.end is not None):
                return


def _since_s(runs: dict[str, _Run]) -> float:
    """Give the time from which all of them have run at full speed: each has done an epoch."""
    if not all(run.at_s for run in runs.values()):
        return math.inf
    return max(run.at_s[0] for run in runs.values())


def _take(run: _Run, report: RunnerReport) -> None:
    event = report.event
    if isinstance(event, ev.EpochCompleted):
        run.at_s.append(proc.boot_s() - report.age_s)
    elif isinstance(event, ev.GpusReleased | ev.StartFailed):
        run.is_over = True
        run.end = run.end or event
    elif not isinstance(event, ev.JobStarted | ev.JobUnknown):
        run.end = event


def _check(runner: NodeRunner, runs: dict[str, _Run]) -> None:
    for job_id, run in runs.items():
        name = run.workload.name
        if isinstance(run.end, ev.StartFailed):
            raise InputError(f"workload {name!r} could not be started: {run.end.reason}")
        output = "".join(path.read_text("utf-8", "replace") for path in runner.log_paths(job_id, 1))
        last = output.strip()[-_TAIL_CHARS:]
        if isinstance(run.end, ev.JobFailed):
            raise InputError(
                f"workload {name!r} failed with exit code {run.end.exit_code};"
                f" it wrote last: {last}"
            )
        if not run.times_s(_since_s(runs)):
            raise InputError(
                f"workload {name!r} reported {len(run.at_s)} epochs; one epoch time needs 2 while"
                " nothing else begins or ends: let the script report them, and more of them"
                " (see docs/training_scripts.md)"
            )


def _result(
    run: _Run,
    times_s: list[float],
    place: Place,
    before: list[GpuSample],
    seen: list[list[GpuSample]],
) -> Measured:
    missing: dict[str, str] = {}

    def mean(name: str) -> float | None:
        """Give the mean over time of the mean over GPUs; None as soon as one value lacks."""
        values = [getattr(gpu, name) for gpus in seen for gpu in gpus]
        known = [float(value) for value in values if value is not None]
        if not known:
            reasons = [gpu.missing.get(name, "") for gpus in seen for gpu in gpus]
            missing[name] = next(filter(None, reasons), place.reason or "no sample was taken")
            return None
        return statistics.fmean(known)

    peak: int | None = None
    used = [gpu.mem_used_bytes for gpus in seen for gpu in gpus if gpu.mem_used_bytes is not None]
    idle = [gpu.mem_used_bytes for gpu in before if gpu.mem_used_bytes is not None]
    if used and len(idle) == len(before):
        peak = max(0, max(used) - min(idle))
    else:
        missing["peak_mem_bytes"] = place.reason or "the GPU does not tell its used memory"
    watts = mean("power_w")
    if watts is not None:
        watts *= len(place.gpus)
    return Measured(
        run.workload.name,
        len(times_s),
        statistics.median(times_s),
        mean("util_ratio"),
        mean("mem_busy_ratio"),
        peak,
        watts,
        missing,
    )


async def _watch(
    sampler: Sampler | None, place: Place, runs: dict[str, _Run]
) -> list[list[GpuSample]]:
    """Sample while every workload is between its first epoch and its end; until cancelled."""
    seen: list[list[GpuSample]] = []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            if all(run.at_s for run in runs.values()):
                gpus = await _gpus(sampler, place)
                if gpus:
                    seen.append(gpus)
            await asyncio.sleep(0.5)
    return seen


async def _ended(task: asyncio.Task[list[list[GpuSample]]]) -> list[list[GpuSample]]:
    try:
        return await task
    except asyncio.CancelledError:
        return []  # it was cancelled before its first step


async def _gpus(sampler: Sampler | None, place: Place) -> list[GpuSample]:
    if sampler is None:
        return []
    sampled = await sampler.sample()
    return [gpu for gpu in sampled.sample.gpus if gpu.gpu_id in place.gpus]


def virtual_place(reason: str) -> Place:
    """Let one CPU core of this machine stand for a GPU."""
    cores = sorted(os.sched_getaffinity(0))
    if not cores:
        raise EnvironmentFault("this process may run on no CPU core")
    return Place(("virtual-0",), (cores[-1],), reason)
