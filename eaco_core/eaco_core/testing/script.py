"""A story told event by event: for tests that read as a list of what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from eaco_core import events as ev
from eaco_core.cluster import NodeReading, NodeState
from eaco_core.decisions import Placed, Waits
from eaco_core.jobs import FailureReason
from eaco_core.machine import SchedulerMachine
from eaco_core.testing.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core.cluster import NodeSpec
    from eaco_core.effects import Effect, Observation
    from eaco_core.jobs import JobSpec, JobState
    from eaco_core.policies.base import Policy
    from eaco_core.ports import JctPredictor, PowerModel
    from eaco_core.rules import Rules

_R = TypeVar("_R")


class Script:
    """Feeds a machine; ticks by itself whenever the machine wants to decide now.

    `at(t)` sets the time of what follows. Events of a job speak of its present attempt.
    `effects` holds the effects of the last line, its tick included.
    """

    def __init__(
        self,
        *nodes: NodeSpec,
        policy: Policy | None = None,
        rules: Rules | None = None,
        predictor: JctPredictor | None = None,
        power: PowerModel | None = None,
        history: Iterable[Observation] = (),
    ) -> None:
        self.machine = SchedulerMachine(
            policy, rules=rules, predictor=predictor, power=power, history=history
        )
        self.recorder = Recorder(self.machine)
        self.now_s = 0.0
        self.effects: tuple[Effect, ...] = ()
        for node in nodes:
            self.join(node)

    # ---- what happens ------------------------------------------------------------

    def at(self, now_s: float) -> Script:
        """Go to a moment; whatever is due by then happens first, at its own time."""
        while (wakeup_s := self.machine.next_wakeup_s) is not None and wakeup_s < now_s:
            self.now_s = max(self.now_s, wakeup_s)
            self.feed(ev.Tick(self.now_s))
        self.now_s = now_s
        return self

    def feed(self, *events: ev.Event) -> Script:
        """Feed events of one moment, then tick if the machine wants to."""
        effects: list[Effect] = []
        for event in events:
            effects += self.recorder.feed(event)
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s is not None and wakeup_s <= self.now_s:
            effects += self.recorder.feed(ev.Tick(self.now_s))
        self.effects = tuple(effects)
        return self

    def join(self, node: NodeSpec, state: NodeState = NodeState.AWAKE) -> Script:
        """A node joins."""
        return self.feed(ev.NodeJoined(self.now_s, node, state))

    def submit(self, *jobs: JobSpec) -> Script:
        """Jobs are submitted at the same moment."""
        return self.feed(*(ev.JobSubmitted(self.now_s, job) for job in jobs))

    def start(self, *job_ids: str) -> Script:
        """Jobs say that they run."""
        return self.feed(*(ev.JobStarted(self.now_s, i, self._attempt(i)) for i in job_ids))

    def run(self, *jobs: JobSpec) -> Script:
        """Submit jobs one after the other; each starts at once."""
        for job in jobs:
            self.submit(job)
            self.start(job.job_id)
        return self

    def epoch(
        self, job_id: str, *, clean: bool = True, peak_mem_bytes: int | None = None
    ) -> Script:
        """A job completes its next epoch."""
        job = self.machine.job(job_id)
        done = job.epochs_done + 1
        return self.feed(
            ev.EpochCompleted(self.now_s, job_id, job.attempt, done, clean, peak_mem_bytes)
        )

    def finish(self, job_id: str) -> Script:
        """A job has done its work; its GPUs are not free yet."""
        return self.feed(ev.JobFinished(self.now_s, job_id, self._attempt(job_id)))

    def fail(
        self,
        job_id: str,
        reason: FailureReason = FailureReason.EXIT,
        peak_mem_bytes: int | None = None,
    ) -> Script:
        """A job ends without finishing."""
        attempt = self._attempt(job_id)
        return self.feed(ev.JobFailed(self.now_s, job_id, attempt, reason, 1, peak_mem_bytes))

    def stop(self, job_id: str, checkpoint_epoch: int | None = None) -> Script:
        """A job has stopped with a checkpoint after what it has done."""
        job = self.machine.job(job_id)
        epoch = job.epochs_done if checkpoint_epoch is None else checkpoint_epoch
        return self.feed(ev.JobStopped(self.now_s, job_id, job.attempt, epoch))

    def release(self, job_id: str) -> Script:
        """All GPUs of a job are proven free."""
        job = self.machine.job(job_id)
        return self.feed(ev.GpusReleased(self.now_s, job_id, job.attempt, job.gpus))

    def cancel(self, job_id: str) -> Script:
        """A user takes a job back."""
        return self.feed(ev.JobCancelled(self.now_s, job_id))

    def read(self, util: float | None, *gpu_ids: str, foreign: bool | None = None) -> Script:
        """The GPUs of one node are read; all of them show the same."""
        node_id = gpu_ids[0].rsplit("-", 1)[0]
        readings = tuple(
            NodeReading(gpu_id, self.now_s, util_ratio=util, foreign=foreign) for gpu_id in gpu_ids
        )
        return self.feed(ev.NodeSampled(self.now_s, node_id, readings))

    def tick(self) -> Script:
        """Time has come to now."""
        return self.feed(ev.Tick(self.now_s))

    def _attempt(self, job_id: str) -> int:
        return self.machine.job(job_id).attempt

    # ---- what can be seen ---------------------------------------------------------

    def gpus(self, job_id: str) -> tuple[str, ...]:
        """Give the GPUs that a job holds."""
        return self.machine.job(job_id).gpus

    def state(self, job_id: str) -> JobState:
        """Give the state of a job."""
        return self.machine.job(job_id).state

    def records(self, kind: type[_R]) -> list[_R]:
        """Give all records of a kind so far."""
        return [record for record in self.recorder.records if isinstance(record, kind)]

    def told(self, kind: type[_R]) -> _R:
        """Give the last record of a kind."""
        return self.records(kind)[-1]

    def placed(self, job_id: str) -> Placed:
        """Give the last placement of a job."""
        return [record for record in self.records(Placed) if record.job_id == job_id][-1]

    def why(self, job_id: str) -> str:
        """Give the last reason why a job waits."""
        return [record for record in self.records(Waits) if record.job_id == job_id][-1].reason

    def commands(self, kind: type[_R]) -> list[_R]:
        """Give the effects of a kind of the last line."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def check(self) -> None:
        """Run the history checkers over the story."""
        self.recorder.check()
