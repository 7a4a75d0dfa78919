"""A trace: the jobs of a simulation in order of arrival, and what was assumed about them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from attrs import frozen

from eaco_adapters.words import counted
from eaco_core.errors import InputError
from eaco_predictors.profiles import NOMINAL_EPOCH_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_core.jobs import JobSpec

MAX_EPOCHS = 90


@frozen
class Trace:
    """Jobs in order of arrival (of the same time: in order of the file).

    `notes` are assumptions that a reader of results must know. `lines` holds the
    file's line of each job, and is empty for a generated trace. `has_deadlines`:
    the source says for each job what its deadline is, possibly that it has none.
    """

    jobs: tuple[JobSpec, ...]
    notes: tuple[str, ...] = ()
    name: str = ""
    lines: tuple[int, ...] = ()
    has_deadlines: bool = False

    def where(self, index: int) -> str:
        """Name the place that job number `index` comes from."""
        return f"{self.name}, line {self.lines[index]}" if self.lines else self.name


def split_into_epochs(run_s: float) -> tuple[int, float]:
    """Divide a solo run time into equal epochs of about 1,404 s, 1 to 90 of them.

    For sources that give a run time only: epochs = clamp(round(run / 1404), 1, 90),
    and the epoch time is what makes them add up to the run time. Raises InputError
    for a run time that is not above 0 and finite.
    """
    if not (math.isfinite(run_s) and run_s > 0):
        raise InputError(f"the solo run time must be above 0 and finite, not {run_s!r} s")
    epochs = round(min(max(run_s / NOMINAL_EPOCH_S, 1), MAX_EPOCHS))
    return epochs, run_s / epochs


def solo_run_s(job: JobSpec, gpu_type: str) -> float | None:
    """Give the seconds that the job needs alone on `gpu_type`; None = not known."""
    profile = job.profile_on(gpu_type)
    if profile is None or profile.epoch_s is None or job.epochs is None:
        return None
    return job.epochs * profile.epoch_s


def assemble(
    name: str,
    entries: Sequence[tuple[int, JobSpec]],
    *,
    notes: Sequence[str],
    has_deadlines: bool,
) -> Trace:
    """Make a trace of (line, job) as read: sorted by arrival, every id once."""
    if not entries:
        raise InputError("the file has no jobs", where=name)
    first_line: dict[str, int] = {}
    for line, job in entries:
        earlier = first_line.setdefault(job.job_id, line)
        if earlier != line:
            raise InputError(
                f"job id {job.job_id!r} was given before, on line {earlier}",
                where=f"{name}, line {line}",
            )
    ordered = sorted(entries, key=lambda entry: entry[1].submit_s)
    moved = sum(
        after[1].submit_s < before[1].submit_s for before, after in itertools.pairwise(entries)
    )
    said = list(notes)
    if moved:
        said.append(
            f"arrivals are out of order in {counted(moved, 'place')} of the file; jobs were sorted"
            " by arrival"
        )
    return Trace(
        jobs=tuple(job for _, job in ordered),
        notes=tuple(said),
        name=name,
        lines=tuple(line for line, _ in ordered),
        has_deadlines=has_deadlines,
    )


def require_gpus(trace: Trace, *, nodes: int, gpus_per_node: int) -> None:
    """Refuse a trace with a job that asks for more GPUs than the cluster has.

    Whole nodes plus a part of one more (rule R3) fit exactly when the sum does.
    """
    total = nodes * gpus_per_node
    for index, job in enumerate(trace.jobs):
        if job.gpus > total:
            raise InputError(
                f"job {job.job_id!r} asks for {counted(job.gpus, 'GPU')}, but the cluster has"
                f" {total}"
                f" ({counted(nodes, 'node')} of {gpus_per_node})",
                where=trace.where(index) or None,
            )
