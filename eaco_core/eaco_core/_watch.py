"""After the window: a settled job that will miss its deadline (R12)."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from eaco_core.decisions import AtRisk, Evicted
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from eaco_core._context import Context
    from eaco_core._records import GpuRecord, JobRecord


class Watch:
    """Watches settled jobs at the end of each of their epochs."""

    def __init__(self, context: Context) -> None:
        self._c = context

    def look(self, job: JobRecord, epoch: int) -> None:
        """Stop a co-resident if the last epochs say that the deadline will be missed."""
        deadline_s, left = job.spec.deadline_s, job.epochs_left
        if deadline_s is None or not left or not job.recent_epochs_s:
            return
        co = [other for gpu in job.gpus for other in gpu.residents if other is not job]
        if not co or job.late(self._c.now_s, job.gpus[0].spec.gpu_type):
            return
        margin = self._c.rules.observed_margin
        end_s = self._c.now_s + left * statistics.median(job.recent_epochs_s) * margin
        if end_s <= deadline_s:
            return
        slowest = self._slowest_gpu(job)
        if slowest is None or slowest.locks:
            return
        if slowest.evicted_epoch == (job.spec.job_id, epoch):
            return
        if any(other.state is JobState.STOPPING for other in slowest.residents):
            return
        victim = self._victim(job, slowest, deadline_s)
        job_id = job.spec.job_id
        if victim is not None:
            slowest.evicted_epoch = (job_id, epoch)
            record = Evicted(self._c.now_s, job_id, victim.spec.job_id, end_s, deadline_s)
            self._c.records.append(record)
            self._evict(victim, f"job {job_id} would miss its deadline beside it")
        elif not job.at_risk_told:
            job.at_risk_told = True
            self._c.records.append(AtRisk(self._c.now_s, job_id, end_s, deadline_s))

    def room_came_up(self, gpus: list[GpuRecord]) -> None:
        """Residents of these GPUs have one co-resident less: tell of a new risk again."""
        for gpu in gpus:
            for job in gpu.residents:
                job.at_risk_told = False

    def _slowest_gpu(self, job: JobRecord) -> GpuRecord | None:
        worst: tuple[float, GpuRecord] | None = None
        for gpu in job.gpus:
            bound = self._bound(job, gpu, without=None)
            if len(gpu.residents) > 1 and (worst is None or bound > worst[0]):
                worst = bound, gpu
        return None if worst is None else worst[1]

    def _bound(self, job: JobRecord, gpu: GpuRecord, without: JobRecord | None) -> float:
        co = [r.kind for r in gpu.residents if r is not job and r is not without]
        return self._c.evidence.bound(gpu.spec.gpu_type, job.kind, co).upper_ratio

    def _victim(self, job: JobRecord, gpu: GpuRecord, deadline_s: float) -> JobRecord | None:
        """Give the latest-started co-resident whose removal restores the deadline."""
        left_s = job.solo_left_s(gpu.spec.gpu_type)
        running = [r for r in gpu.residents if r is not job and r.started_s is not None]
        if left_s is None:
            return None
        running.sort(key=lambda r: (r.started_s or 0.0, r.spec.job_id), reverse=True)
        for victim in running:
            ratio = max(self._bound(job, g, without=victim) for g in job.gpus)
            if self._c.now_s + ratio * left_s <= deadline_s:
                return victim
        return None

    def _evict(self, victim: JobRecord, reason: str) -> None:
        c = self._c
        victim.undos += 1
        if c.policy.bounded_undo and victim.undos >= c.rules.max_undos:
            victim.exclusive_only = True
        c.move(victim, JobState.STOPPING)
        victim.then, victim.then_reason = JobState.QUEUED, f"evicted: {reason}"
        c.stop_at_boundary(victim, reason)
