"""Commands that may not have been carried out when the scheduler that gave them went away.

Every command is idempotent, so a new scheduler gives these again, in its own term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core import effects as fx
from eaco_core.cluster import NodeState
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core._context import Context
    from eaco_core._records import JobRecord
    from eaco_core.effects import Effect

_AGAIN = "given again by a new scheduler"


def outstanding(c: Context) -> Iterator[Effect]:
    """Give the commands for all jobs that start or stop, and all nodes that change state."""
    for node in c.ledger.nodes.values():
        if node.state is NodeState.WAKING:
            yield fx.WakeNode(node.spec.node_id, c.term)
        elif node.state is NodeState.FALLING_ASLEEP:
            yield fx.SleepNode(node.spec.node_id, c.term)
    for job in c.jobs.values():
        if not job.start_sent:
            continue
        if job.state is JobState.STARTING:
            yield _start(c, job)
        elif job.state is JobState.STOPPING:
            yield _stop(c, job)


def _start(c: Context, job: JobRecord) -> fx.StartJob:
    by_node: dict[str, list[str]] = {}
    for gpu in job.gpus:
        by_node.setdefault(gpu.node.spec.node_id, []).append(gpu.spec.gpu_id)
    gpus = tuple((node_id, tuple(ids)) for node_id, ids in by_node.items())
    return fx.StartJob(job.spec.job_id, job.attempt, c.term, gpus, job.epochs_done)


def _stop(c: Context, job: JobRecord) -> fx.StopAtEpochBoundary | fx.KillJob:
    """A stop at the boundary is due as long as its time limit runs, or where it has none."""
    job_id = job.spec.job_id
    has_limit = job.solo_epoch_s(job.gpus[0].spec.gpu_type) is not None
    at_boundary = ("kill", job_id) in c.timers if has_limit else job.then is JobState.QUEUED
    if job.computing and at_boundary:
        return fx.StopAtEpochBoundary(job_id, job.attempt, c.term, _AGAIN)
    return fx.KillJob(job_id, job.attempt, c.term, _AGAIN)
