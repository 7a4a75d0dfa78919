"""A seeded workload for simulations without a trace.

Distributions, all independent: GPUs of a job as given (default: always 8); epochs
uniform over the whole numbers from `epochs_min` to `epochs_max`; workloads uniform
over the profile table; arrivals a Poisson process. Its rate follows from the load:
load = rate x mean solo run time x mean GPUs / GPUs of the cluster, so that at load 1
exclusive jobs would just fill the cluster.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from attrs import field, frozen

from eaco_adapters.traces.trace import Trace
from eaco_adapters.words import counted
from eaco_core import _validate as check
from eaco_core.errors import InputError
from eaco_core.jobs import JobSpec

if TYPE_CHECKING:
    from eaco_predictors.profiles import ProfileTable


def _gpu_weights(
    _instance: object, _attribute: object, value: tuple[tuple[int, float], ...]
) -> None:
    if not value or any(gpus < 1 or not 0 < weight < math.inf for gpus, weight in value):
        raise InputError("GPU counts must be at least 1, with weights above 0")


@frozen
class WorkloadSettings:
    """What to generate. `gpus` are (count, weight) pairs; the rest is in the module's text."""

    jobs: int = field(default=400, validator=check.count)
    gpus: tuple[tuple[int, float], ...] = field(default=((8, 1.0),), validator=_gpu_weights)
    epochs_min: int = field(default=10, validator=check.count)
    epochs_max: int = field(default=90, validator=check.count)
    load_ratio: float = field(default=0.8, validator=check.positive)
    nodes: int = field(default=28, validator=check.count)
    gpus_per_node: int = field(default=8, validator=check.count)

    def __attrs_post_init__(self) -> None:
        if self.epochs_max < self.epochs_min:
            raise InputError(
                f"epochs_max ({self.epochs_max}) must not be below epochs_min ({self.epochs_min})"
            )


def generate_trace(
    table: ProfileTable, settings: WorkloadSettings | None = None, *, seed: int = 0
) -> Trace:
    """Generate a trace of the table's workloads; the same seed gives the same trace.

    Raises InputError when a workload of the table has no epoch time.
    """
    plan = settings or WorkloadSettings()
    epoch_s = _epoch_times(table)
    rate_hz = arrival_rate_hz(table, plan)
    # Only `random()` is drawn from: its stream is the same in every Python version.
    chance = random.Random(f"eaco-workload/{seed}")  # noqa: S311 - not for secrets
    width = len(str(plan.jobs))
    jobs: list[JobSpec] = []
    now_s = 0.0
    for number in range(1, plan.jobs + 1):
        now_s += -math.log(1.0 - chance.random()) / rate_hz
        workload = table.workloads[int(chance.random() * len(epoch_s))]
        span = plan.epochs_max - plan.epochs_min + 1
        jobs.append(
            JobSpec(
                job_id=f"job-{number:0{width}d}",
                gpus=_draw_gpus(plan.gpus, chance.random()),
                submit_s=now_s,
                epochs=plan.epochs_min + int(chance.random() * span),
                workload=workload,
                profiles=(table.profiles[workload],),
            )
        )
    note = (
        f"generated workload, seed {seed}: {counted(plan.jobs, 'job')},"
        f" {plan.epochs_min}-{plan.epochs_max}"
        f" epochs (uniform), Poisson arrivals at {plan.load_ratio:g} of the exclusive capacity of"
        f" {counted(plan.nodes, 'node')} x {counted(plan.gpus_per_node, 'GPU')},"
        " workloads uniform over the profiles"
    )
    return Trace(jobs=tuple(jobs), notes=(note,), name=f"generated, seed {seed}")


def arrival_rate_hz(table: ProfileTable, settings: WorkloadSettings) -> float:
    """Give the arrival rate (jobs per second) that makes the settings' load."""
    epoch_s = _epoch_times(table)
    mean_epochs = (settings.epochs_min + settings.epochs_max) / 2
    mean_run_s = mean_epochs * sum(epoch_s) / len(epoch_s)
    weights = sum(weight for _, weight in settings.gpus)
    mean_gpus = sum(gpus * weight for gpus, weight in settings.gpus) / weights
    return settings.load_ratio * settings.nodes * settings.gpus_per_node / (mean_run_s * mean_gpus)


def _epoch_times(table: ProfileTable) -> list[float]:
    times: list[float] = []
    for workload in table.workloads:
        epoch_s = table.profiles[workload].epoch_s
        if epoch_s is None:
            raise InputError(
                f"the profiles {table.name!r} have no epoch time for {workload!r}, so no workload"
                " can be generated from them; give a trace"
            )
        times.append(epoch_s)
    if not times:
        raise InputError(f"the profiles {table.name!r} have no workload")
    return times


def _draw_gpus(choices: tuple[tuple[int, float], ...], chance: float) -> int:
    left = chance * sum(weight for _, weight in choices)
    for gpus, weight in choices:
        left -= weight
        if left < 0:
            return gpus
    return choices[-1][0]
