"""What the parts of the machine share: the state, and what the present step puts out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eaco_core import effects as fx
from eaco_core._ledger import Ledger
from eaco_core._power_table import PowerTable
from eaco_core._queue import JobQueue
from eaco_core._timers import Timers
from eaco_core.errors import InternalError
from eaco_core.evidence import Evidence
from eaco_core.jobs import JobState
from eaco_core.states import is_legal
from eaco_core.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect, Observation
    from eaco_core.policies.base import Policy
    from eaco_core.ports import JctPredictor, PowerModel
    from eaco_core.rules import Rules


class Context:
    """State of one machine. `pass_due`: something happened that a policy should see."""

    def __init__(
        self,
        policy: Policy,
        *,
        rules: Rules,
        predictor: JctPredictor,
        power: PowerModel | None,
        term: int,
        history: Iterable[Observation],
    ) -> None:
        self.policy = policy
        self.rules = rules
        self.term = term
        self.now_s = 0.0
        self.jobs: dict[str, JobRecord] = {}
        self.evidence = Evidence(rules, predictor, history)
        self.ledger = Ledger(rules, self.evidence)
        self.queue = JobQueue(rules.exclusive_priority, rules.starvation_s)
        self.timers = Timers()
        table = None if power is None else PowerTable(power, rules)
        self.view = View(rules, self.ledger, self.queue, self.evidence, table)
        self.effects: list[Effect] = []
        self.records: list[Record] = []
        self.pass_due = False

    def move(self, job: JobRecord, new: JobState) -> None:
        """Change a job's state, by the table."""
        if not is_legal(job.state, new):
            raise InternalError(
                f"job {job.spec.job_id} cannot go from {job.state.value} to {new.value}"
            )
        job.state = new
        if new is JobState.STOPPING:
            for gpu in job.gpus:
                self.ledger.refresh(gpu)

    def kill(self, job: JobRecord, reason: str) -> None:
        """Emit the command to end a job now."""
        self.effects.append(fx.KillJob(job.spec.job_id, job.attempt, self.term, reason))

    def stop_at_boundary(self, job: JobRecord, reason: str) -> None:
        """Emit the command to end a job at its epoch boundary, and set its limit (R10)."""
        self.effects.append(fx.StopAtEpochBoundary(job.spec.job_id, job.attempt, self.term, reason))
        epoch_s = job.solo_epoch_s(job.gpus[0].spec.gpu_type)
        if epoch_s is not None:
            ratio = job.upper_ratio
            if not math.isfinite(ratio):
                ratio = self.rules.max_slowdown_ratio
            limit_s = self.rules.kill_factor * ratio * epoch_s + self.rules.kill_slack_s
            self.timers.set(("kill", job.spec.job_id), self.now_s + limit_s)

    def refresh_bounds(self, gpus: Iterable[GpuRecord]) -> None:
        """Compute the present bound of everyone on these GPUs again."""
        seen: set[str] = set()
        for gpu in gpus:
            for job in gpu.residents:
                if job.spec.job_id not in seen:
                    seen.add(job.spec.job_id)
                    job.upper_ratio = self.evidence.bound_now(job)
