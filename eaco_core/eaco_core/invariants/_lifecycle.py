"""Checkers of the life of jobs, of order and of failures: I15-I20, I28, I29."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.decisions import Requeued
from eaco_core.effects import KillJob, SleepNode, StartJob, StopAtEpochBoundary, WakeNode
from eaco_core.events import (
    EpochCompleted,
    GpuLost,
    JobCancelled,
    JobStopped,
    JobSubmitted,
    NodeAsleep,
    NodeAwake,
    NodeDrained,
    NodeLost,
    NodeSampled,
    Tick,
    WakeFailed,
)
from eaco_core.invariants._checker import Checker
from eaco_core.invariants._fold import JOB_EVENTS
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.history import Header, Step
    from eaco_core.invariants._replay import Gpu, Job, Node, Placement, World

_STOPS = (StopAtEpochBoundary, KillJob)


class Conservation(Checker):
    """I15: no job comes from nowhere, twice, or is in two states at once."""

    invariant = "I15"

    def before_event(self, step: Step, stale: str | None) -> None:  # noqa: ARG002 - one signature for all
        """Look for ids that are new, or used again."""
        event, world = step.event, self.world
        if self.world.ignored:
            return
        if isinstance(event, JobSubmitted):
            job_id = event.job.job_id
            if job_id in world.jobs or job_id in world.ended:
                self.broken(f"job {job_id} was submitted twice")
        elif type(event) in JOB_EVENTS or isinstance(event, JobCancelled):
            job_id = getattr(event, "job_id", "")
            if job_id not in world.jobs and job_id not in world.ended:
                self.broken(f"{type(event).__name__} speaks of job {job_id}, never submitted")

    def on_placement(self, placement: Placement) -> None:
        """Look whether a job was in the queue when it was placed."""
        job = placement.job
        if job.state is not JobState.QUEUED and job.then not in _FINAL:
            self.broken(f"job {job.job_id} was placed while it is {job.state.value}")

    def on_effect(self, effect: Effect) -> None:
        """Look for commands to jobs that do not exist."""
        if isinstance(effect, (StartJob, *_STOPS)):
            job_id = effect.job_id
            if job_id not in self.world.jobs and job_id not in self.world.ended:
                self.broken(f"{type(effect).__name__} speaks of job {job_id}, never submitted")


_FINAL = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})


class Terminal(Checker):
    """I16, for jobs that finished or failed; cancelled ones are left to I29."""

    invariant = "I16"

    def on_placement(self, placement: Placement) -> None:
        """Look for a job that is placed after it said that it was done."""
        if placement.job.then is JobState.FINISHED:
            self.broken(f"job {placement.job.job_id} was placed after it finished")

    def on_effect(self, effect: Effect) -> None:
        """Look for a start after the end."""
        if isinstance(effect, StartJob):
            self._check(effect.job_id, "was started")

    def on_record(self, record: Record) -> None:
        """Look for a way back from the end."""
        if isinstance(record, Requeued):
            self._check(record.job_id, "was requeued")

    def _check(self, job_id: str, what: str) -> None:
        end = self.world.ended.get(job_id)
        if end is not None and end is not JobState.CANCELLED:
            self.broken(f"job {job_id} {what} after it was {end.value}")


class Progress(Checker):
    """I17."""

    invariant = "I17"

    def before_event(self, step: Step, stale: str | None) -> None:
        """Look at the epochs that an event counts."""
        event = step.event
        if stale is not None or self.world.ignored:
            return
        if isinstance(event, EpochCompleted):
            job = self.world.jobs.get(event.job_id)
            if job is not None and job.spec.epochs is not None and event.epoch > job.spec.epochs:
                self.broken(f"job {job.job_id} counts epoch {event.epoch} of {job.spec.epochs}")
        elif isinstance(event, JobStopped):
            job = self.world.jobs.get(event.job_id)
            if job is not None and event.checkpoint_epoch < job.epochs_done:
                self.broken(
                    f"job {job.job_id} stopped with a checkpoint after epoch "
                    f"{event.checkpoint_epoch}, but had done {job.epochs_done}"
                )

    def on_record(self, record: Record) -> None:
        """Look from where a requeued job will go on."""
        if isinstance(record, Requeued):
            job = self.world.jobs.get(record.job_id)
            if job is not None:
                self._check(job, record.epoch, "was requeued")

    def on_effect(self, effect: Effect) -> None:
        """Look from where a job goes on."""
        if isinstance(effect, StartJob):
            job = self.world.jobs.get(effect.job_id)
            if job is not None:
                self._check(job, effect.resume_epoch, "was started")

    def _check(self, job: Job, epoch: int, what: str) -> None:
        if epoch > job.epochs_done:
            self.broken(f"job {job.job_id} {what} after epoch {epoch}, of {job.epochs_done} done")
        elif epoch < job.epochs_done and not job.lost:
            self.broken(
                f"job {job.job_id} {what} after epoch {epoch}, and lost "
                f"{job.epochs_done - epoch} epochs without a failure"
            )


_NODE_EVENTS = (NodeSampled, NodeLost, NodeDrained, NodeAwake, NodeAsleep, WakeFailed, GpuLost)


class Order(Checker):
    """I18."""

    invariant = "I18"

    def before_event(self, step: Step, stale: str | None) -> None:  # noqa: ARG002 - one signature for all
        """Compare a step with the one before."""
        world = self.world
        if step.seq != world.last_seq + 1:
            self.broken(f"step {step.seq} comes after step {world.last_seq}")
        if step.t_s < world.last_s:
            self.broken(f"time goes back from {world.last_s:g} s to {step.t_s:g} s")
        if step.event.t_s != step.t_s:
            self.broken(f"the event of the step says {step.event.t_s:g} s")
        for record in step.records:
            if record.t_s != step.t_s:
                self.broken(f"a record of the step ({type(record).__name__}) says {record.t_s:g} s")
        if world.nodes_seen or world.ours:
            self._check_nodes(step)

    def _check_nodes(self, step: Step) -> None:
        """Look for a word about a node before it joined."""
        event, world = step.event, self.world
        said = [event, *step.effects] if isinstance(event, _NODE_EVENTS) else [*step.effects]
        for item in said if not world.ignored else ():
            if not isinstance(item, (*_NODE_EVENTS, SleepNode, WakeNode)):
                continue
            name = type(item).__name__
            node = world.nodes.get(item.node_id)
            if node is None:
                self.broken(f"{name} speaks of node {item.node_id}, which never joined")
            elif isinstance(item, GpuLost) and all(
                gpu.spec.gpu_id != item.gpu_id for gpu in node.gpus
            ):
                self.broken(f"{name} speaks of GPU {item.gpu_id}, which its node does not have")


class Fencing(Checker):
    """I19. That executors refuse older terms is shown by their own tests."""

    invariant = "I19"
    _term = 0

    def before_event(self, step: Step, stale: str | None) -> None:  # noqa: ARG002 - one signature for all
        """Compare the term of a step with the one before, and with its commands."""
        if step.term < self._term:
            self.broken(f"term {step.term} comes after term {self._term}")
        self._term = max(self._term, step.term)
        for effect in step.effects:
            term = getattr(effect, "term", step.term)
            if term != step.term:
                name = type(effect).__name__
                self.broken(f"{name} carries term {term}, the step term {step.term}")


class Idempotence(Checker):
    """I20. A scheduler that writes no records may leave the `Ignored` out."""

    invariant = "I20"

    def before_event(self, step: Step, stale: str | None) -> None:
        """Look for effects of an event that can have none."""
        ignored = self.world.ignored
        name = type(step.event).__name__
        if ignored and (step.effects or len(step.records) > 1):
            self.broken(f"{name} was ignored and yet had effects")
        elif stale is not None and not ignored and (step.effects or step.records):
            self.broken(f"{name} is stale ({stale}) and yet had effects")
        elif stale is not None and not ignored and self.world.ours:
            self.broken(f"{name} is stale ({stale}) and was not ignored")
        attempt = getattr(step.event, "attempt", 0)
        job = self.world.jobs.get(getattr(step.event, "job_id", ""))
        if job is not None and attempt > job.attempt and not ignored:
            self.broken(f"{name} speaks of attempt {attempt} of job {job.job_id}, never placed")


class NodeFailure(Checker):
    """I28: in the step of the loss, whoever was there is stopped or back in the queue."""

    invariant = "I28"

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._hit: list[tuple[Job, bool, bool]] = []

    def before_event(self, step: Step, stale: str | None) -> None:  # noqa: ARG002 - one signature for all
        """Note who holds what is lost, and whether it holds more elsewhere."""
        event = step.event
        self._hit = []
        if self.world.ignored:
            return
        if isinstance(event, NodeLost):
            node = self.world.nodes.get(event.node_id)
            self._note(node.gpus if node is not None else [])
        elif isinstance(event, GpuLost):
            gpu = self.world.gpus.get(event.gpu_id)
            self._note([gpu] if gpu is not None else [])
        elif isinstance(event, WakeFailed):
            failed = self.world.nodes.get(event.node_id)
            self._note_unstarted([failed] if failed is not None else [])
        elif isinstance(event, Tick):
            self._note_unstarted(self.world.silent_nodes())

    def _note(self, gpus: list[Gpu]) -> None:
        for job in {job.job_id: job for gpu in gpus for job in gpu.residents}.values():
            elsewhere = any(gpu not in gpus for gpu in job.gpus)
            runs = job.start_sent and not job.ended and not job.kill_sent
            self._hit.append((job, elsewhere, runs))

    def _note_unstarted(self, nodes: list[Node]) -> None:
        # Where a node did not wake, nothing has been started: not elsewhere either.
        waiting = {job.job_id: job for n in nodes for gpu in n.gpus for job in gpu.residents}
        self._hit.extend((job, False, False) for job in waiting.values())

    def at_end(self, step: Step) -> None:
        """Look for the commands and the requeueing that the loss asks for."""
        for job, elsewhere, runs in self._hit:
            if job.job_id in self.world.ended or job.then in _FINAL:
                continue
            killed = any(isinstance(e, KillJob) and e.job_id == job.job_id for e in step.effects)
            requeued = any(isinstance(r, Requeued) and r.job_id == job.job_id for r in step.records)
            if elsewhere and runs and not killed:
                self.broken(f"job {job.job_id} lost GPUs and still runs on others")
            elif not elsewhere and self.world.ours and not requeued and job.failure is None:
                self.broken(f"job {job.job_id} lost all its GPUs and is not back in the queue")


class Cancel(Checker):
    """I29."""

    invariant = "I29"

    def at_end(self, step: Step) -> None:
        """Look whether a job that its user took back is told to end at once."""
        event = step.event
        if not isinstance(event, JobCancelled) or self.world.ignored:
            return
        job = self.world.jobs.get(event.job_id)
        if job is None or not job.gpus or job.ended or job.kill_sent:
            return
        if not any(isinstance(e, _STOPS) and e.job_id == event.job_id for e in step.effects):
            self.broken(f"job {event.job_id} was cancelled and is not told to stop")

    def on_placement(self, placement: Placement) -> None:
        """Look for a cancelled job that still holds GPUs and is given others."""
        if placement.job.then is JobState.CANCELLED:
            self.broken(f"job {placement.job.job_id} was placed after it was cancelled")

    def on_effect(self, effect: Effect) -> None:
        """Look for a cancelled job that is started."""
        if isinstance(effect, StartJob):
            job = self.world.jobs.get(effect.job_id)
            gone = self.world.ended.get(effect.job_id) is JobState.CANCELLED
            if gone or (job is not None and job.then is JobState.CANCELLED):
                self.broken(f"job {effect.job_id} was started after it was cancelled")
