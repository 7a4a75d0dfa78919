"""The checker of decision, command and deed: nothing of a gang runs that was not started (I03)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.cluster import NodeState
from eaco_core.decisions import Placed
from eaco_core.effects import StartJob
from eaco_core.events import (
    EpochCompleted,
    GpusReleased,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
)
from eaco_core.invariants._checker import Checker

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.history import Header, Step
    from eaco_core.invariants._replay import Job, Placement, World

_DEEDS = (JobStarted, EpochCompleted, JobStopped, JobFinished, JobFailed)


class Starts(Checker):
    """I03: one Placed and one StartJob for each attempt, and nothing runs without them.

    That a Placed comes first, that the StartJob comes as soon as all nodes are awake, and
    that a job computes only after JobStarted, is asked of eaco only.
    """

    invariant = "I03"

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._placed: dict[str, int] = {}
        self._elsewhere: dict[str, tuple[int, frozenset[str]]] = {}

    def before_event(self, step: Step, stale: str | None) -> None:
        """Look for a job that does something before it was started, or frees what it never had."""
        event = step.event
        if self.world.ignored:
            return
        if isinstance(event, GpusReleased):
            self._check_release(event)
        job = self.world.jobs.get(getattr(event, "job_id", ""))
        if not isinstance(event, _DEEDS) or job is None or stale is not None:
            return
        name = f"{type(event).__name__} of attempt {event.attempt} of job {job.job_id} was accepted"
        if not job.start_sent:
            self.broken(f"{name}, which no StartJob started")
        elif self.world.ours and not isinstance(event, JobStarted) and not job.computing:
            self.broken(f"{name}, which does not run")
        if isinstance(event, JobStarted) and event.gpus:
            self._elsewhere[job.job_id] = (event.attempt, frozenset(event.gpus))

    def _check_release(self, event: GpusReleased) -> None:
        job = self.world.jobs.get(event.job_id)
        if job is None or job.placement is None or event.attempt != job.attempt:
            return
        # Where it was really started may be elsewhere than where it was placed.
        attempt, real = self._elsewhere.get(job.job_id, (0, frozenset[str]()))
        known = {*job.placement.gpu_ids, *(real if attempt == event.attempt else ())}
        for gpu_id in event.gpus:
            if gpu_id not in known:
                self.broken(f"job {job.job_id} released GPU {gpu_id}, which it never held")

    def on_placement(self, placement: Placement) -> None:
        """Look whether attempts are counted one by one."""
        job = placement.job
        if self.world.ours and placement.attempt != job.attempt + 1:
            self.broken(
                f"attempt {placement.attempt} of job {job.job_id} comes after attempt {job.attempt}"
            )

    def on_record(self, record: Record) -> None:
        """Note what has to be started."""
        if isinstance(record, Placed):
            self._placed[record.job_id] = record.attempt

    def on_effect(self, effect: Effect) -> None:
        """Look whether a start was decided, and is the only one of its attempt."""
        job = self.world.jobs.get(effect.job_id) if isinstance(effect, StartJob) else None
        if job is None or not isinstance(effect, StartJob):
            return
        name = f"attempt {effect.attempt} of job {job.job_id}"
        if job.start_sent and job.gpus and job.attempt == effect.attempt:
            self.broken(f"{name} was started twice")
        elif self.world.ours and (job.attempt != effect.attempt or not job.gpus):
            self.broken(f"{name} was started without a Placed record")

    def at_end(self, step: Step) -> None:  # noqa: ARG002 - one signature for all
        """Look for a job that could be started by now."""
        for job_id, attempt in list(self._placed.items()):
            job = self.world.jobs.get(job_id)
            waits = job is not None and job.attempt == attempt and not job.start_sent
            if job is None or not waits or not job.gpus or job.stopping:
                del self._placed[job_id]
            elif _all_awake(job):
                del self._placed[job_id]
                self.broken(f"attempt {attempt} of job {job_id} was placed and not started")
        for job_id in [i for i in self._elsewhere if i not in self.world.jobs]:
            del self._elsewhere[job_id]


def _all_awake(job: Job) -> bool:
    return all(gpu.node.state is NodeState.AWAKE for gpu in job.gpus)
