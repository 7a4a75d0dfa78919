"""Checkers that look at whom a shared placement affects, and by how much: I07, I08, I12, I13."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from eaco_core.decisions import AffectedBound, BoundSource, Record, Verdict
from eaco_core.invariants._checker import Checker, above, alike

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.history import Header
    from eaco_core.invariants._replay import Gpu, Job, Placement, World

_Signature: TypeAlias = tuple[str, str, tuple[str, ...]]


class Admission(Checker):
    """I07: the recorded facts are true, the bounds are bounds, and every deadline holds."""

    invariant = "I07"
    needs_records = True

    def on_placement(self, placement: Placement) -> None:
        """Hold every affected job's bound against its deadline, or its limit without one."""
        record = placement.record
        if record is None or not placement.shared:
            return
        if record.explored:
            self._check_exploration(placement)
        for bound in record.affected:
            job = self.world.jobs.get(bound.job_id)
            if job is None:
                continue
            complaint = self._untrue(job, bound) or self._no_bound(placement, job, bound)
            if complaint is None and not record.explored:
                complaint = self._missed(job, bound)
            if complaint is not None:
                self.broken(f"placing job {record.job_id}: {complaint}")

    def _untrue(self, job: Job, bound: AffectedBound) -> str | None:
        left_s = job.solo_left_s(bound.gpu_type)
        if left_s is not None and not alike(left_s, bound.remaining_s):
            return (
                f"job {job.job_id} has {left_s:g} s left alone, "
                f"but {bound.remaining_s:g} s were recorded"
            )
        if bound.deadline_s != job.spec.deadline_s:
            return (
                f"job {job.job_id} has deadline {job.spec.deadline_s}, "
                f"but {bound.deadline_s} was recorded"
            )
        deadline_s = job.spec.deadline_s
        alone_s = self.world.now_s + bound.remaining_s
        if bound.late and (deadline_s is None or above(deadline_s, alone_s)):
            return f"job {job.job_id} was taken as late, but it is not"
        return None

    def _no_bound(self, placement: Placement, job: Job, bound: AffectedBound) -> str | None:
        explored = placement.record is not None and placement.record.explored
        if not explored and (
            bound.source is BoundSource.NONE or not math.isfinite(bound.upper_ratio)
        ):
            return f"job {job.job_id} was admitted without a bound"
        if above(bound.point_ratio, bound.upper_ratio) or bound.upper_ratio < 1:
            return f"the bound {bound.upper_ratio:g} of job {job.job_id} is none"
        law = self._law(placement, job, bound)
        if bound.source is BoundSource.LAW and law is not None and above(law, bound.upper_ratio):
            return f"the law gives job {job.job_id} a bound of {law:g}, not {bound.upper_ratio:g}"
        seen = self.world.seen.largest(bound.gpu_type, bound.workload, bound.co_workloads)
        if not explored and above(seen * self.rules.observed_margin, bound.upper_ratio):
            return (
                f"job {job.job_id} was seen to slow down by {seen:g}, "
                f"so {bound.upper_ratio:g} is no bound"
            )
        return None

    def _law(self, placement: Placement, job: Job, bound: AffectedBound) -> float | None:
        for gpu in set_after(self.world, placement, job):
            everybody = residents_after(placement, gpu)
            residents = _computing(everybody)
            if workloads(residents, job) != bound.co_workloads:
                residents = everybody
            if workloads(residents, job) != bound.co_workloads:
                continue
            profiles = [r.spec.profile_on(gpu.spec.gpu_type) for r in residents]
            utils = [None if p is None else p.util_ratio for p in profiles]
            known = [u for u in utils if u is not None]
            if len(known) == len(utils):
                return self.rules.law_margin * max(1.0, sum(known))
        return None

    def _missed(self, job: Job, bound: AffectedBound) -> str | None:
        now_s, deadline_s = self.world.now_s, job.spec.deadline_s
        if deadline_s is not None and not bound.late:
            end_s = now_s + bound.upper_ratio * bound.remaining_s
            if above(end_s, deadline_s):
                return (
                    f"by its bound job {job.job_id} ends at {end_s:g} s, "
                    f"after its deadline of {deadline_s:g} s"
                )
            return None
        limit = job.spec.max_slowdown_ratio
        limit = self.rules.max_slowdown_ratio if limit is None else limit
        if above(bound.upper_ratio, limit):
            return (
                f"job {job.job_id} accepts a slowdown of {limit:g}, "
                f"but its bound is {bound.upper_ratio:g}"
            )
        return None

    def _check_exploration(self, placement: Placement) -> None:
        name = f"placing job {placement.job.job_id} to explore"
        if not self.rules.explore:
            self.broken(f"{name}: exploration is off")
        affected = {placement.job.job_id: placement.job}
        for residents in placement.before.values():
            affected |= {r: self.world.jobs[r] for r in residents if r in self.world.jobs}
        for job in affected.values():
            if job.spec.deadline_s is not None:
                self.broken(f"{name}: job {job.job_id} has a deadline")


class Closure(Checker):
    """I08: every resident was looked at, beside the residents of its worst GPU."""

    invariant = "I08"
    needs_records = True

    def on_placement(self, placement: Placement) -> None:
        """Compare the recorded affected jobs with those that hold the GPUs."""
        record = placement.record
        if record is None or not placement.shared:
            return
        known = {bound.job_id for bound in record.affected}
        needed = {placement.job.job_id}
        for gpu_id in placement.before:
            residents = self.world.gpus[gpu_id].residents
            needed |= {job.job_id for job in residents if not job.ended}
        for job_id in sorted(needed - known):
            self.broken(
                f"placing job {record.job_id} affects job {job_id}, which was not looked at"
            )
        for bound in record.affected:
            job = self.world.jobs.get(bound.job_id)
            if job is not None and bound.job_id in needed:
                self._check_worst(placement, job, bound)

    def _check_worst(self, placement: Placement, job: Job, bound: AffectedBound) -> None:
        sets = {
            workloads(_computing(residents_after(placement, gpu)), job)
            for gpu in set_after(self.world, placement, job)
        }
        if not any(
            _counts_as(bound.co_workloads, residents_after(placement, gpu), job)
            for gpu in set_after(self.world, placement, job)
        ):
            beside = ", ".join(bound.co_workloads) or "nobody"
            self.broken(
                f"placing job {placement.job.job_id}: no GPU of job {job.job_id} "
                f"has it beside {beside}"
            )
            return
        taken = Counter(bound.co_workloads)
        for other in sets:
            if Counter(other) > taken:
                self.broken(
                    f"placing job {placement.job.job_id}: the worst GPU of job {job.job_id} "
                    f"has it beside {', '.join(other)}, which was not looked at"
                )
                return


def set_after(world: World, placement: Placement, job: Job) -> list[Gpu]:
    """Give the GPUs of a job once the placement is done."""
    if job is placement.job:
        return [world.gpus[g] for g in placement.gpu_ids if g in world.gpus]
    return job.gpus


def _counts_as(told: tuple[str, ...], residents: list[Job], without: Job) -> bool:
    """Tell whether a set was looked at: all that compute, and maybe some that have ended.

    A job that has ended and still holds its GPU makes the bound higher, which is safe.
    """
    taken = Counter(told)
    everybody = Counter(workloads(residents, without))
    return Counter(workloads(_computing(residents), without)) <= taken <= everybody


def _computing(residents: list[Job]) -> list[Job]:
    return [job for job in residents if not job.ended]


def residents_after(placement: Placement, gpu: Gpu) -> list[Job]:
    """Give who holds a GPU once the placement is done, with jobs that have ended there."""
    residents = [job for job in gpu.residents if job is not placement.job]
    if gpu.spec.gpu_id in placement.before:
        residents.append(placement.job)
    return residents


def workloads(residents: list[Job], without: Job) -> tuple[str, ...]:
    """Give the sorted workloads of the residents but one."""
    return tuple(sorted(job.spec.workload or "" for job in residents if job is not without))


class StaleRetry(Checker):
    """I12: what was undone is not tried again until its bound has fallen."""

    invariant = "I12"
    needs_records = True

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._undone: dict[_Signature, float] = {}

    def on_record(self, record: Record) -> None:
        """Keep the bound of what is undone."""
        if not isinstance(record, Verdict) or record.keep:
            return
        job = self.world.jobs.get(record.job_id)
        placement = None if job is None else job.placement
        if placement is None:
            return
        signature = _signature(placement)
        if signature is None or placement.record is None or job is None:
            return
        # Residents that have left meanwhile are no part of what was shown not to work.
        # One that is given up in this very step may have been there at the verdict.
        named = {seen.job_id for seen in record.evidence}
        left = [
            j
            for j in job.co_residents().values()
            if not j.ended and (j.job_id in named or not j.stopping)
        ]
        signature = (*signature[:2], tuple(sorted(j.spec.workload or "" for j in left)))
        limits = [e.ratio * self.rules.observed_margin for e in record.evidence if e.ratio]
        for bound in placement.record.affected:
            seen = self.world.seen.largest(bound.gpu_type, bound.workload, bound.co_workloads)
            limits += [bound.upper_ratio, seen * self.rules.observed_margin]
        self._undone[signature] = max(limits)

    def on_placement(self, placement: Placement) -> None:
        """Compare the bound of a new trial with that of the one that was undone."""
        if placement.record is None or not placement.shared:
            return
        signature = _signature(placement)
        before = None if signature is None else self._undone.get(signature)
        upper = max((bound.upper_ratio for bound in placement.record.affected), default=1.0)
        if signature is not None and before is not None and upper >= before:
            self.broken(
                f"job {placement.job.job_id} was placed beside {', '.join(signature[2])} again, "
                f"which was undone, with a bound of {upper:g} that has not fallen "
                f"below {before:g}"
            )


def _signature(placement: Placement) -> _Signature | None:
    """Give what a trial is known by, never by ids: type, workload, residents' workloads."""
    record = placement.record
    own = None
    beside: list[str] = []
    for bound in record.affected if record is not None else ():
        if bound.job_id == placement.job.job_id:
            own = bound
        else:
            beside.append(bound.workload or "")
    if own is None or own.workload is None:
        return None
    return own.gpu_type, own.workload, tuple(sorted(beside))


class Bounded(Checker):
    """I13: at most B undos for a job, then only GPUs of its own (R10)."""

    invariant = "I13"
    needs_records = True

    def on_record(self, record: Record) -> None:
        """Count the undos of a job."""
        if not isinstance(record, Verdict) or record.keep:
            return
        job = self.world.jobs.get(record.job_id)
        if job is None:
            return
        if job.undos >= self.rules.max_undos:
            self.broken(f"job {job.job_id} was undone {job.undos + 1} times")

    def on_placement(self, placement: Placement) -> None:
        """Look whether a job that must be alone by now was placed beside others."""
        job = placement.job
        if not placement.shared:
            return
        if job.undos >= self.rules.max_undos:
            self.broken(f"job {job.job_id} shares again after {job.undos} undos")
        elif job.alone_from_now:
            self.broken(f"job {job.job_id} shares again after an undo for its own deadline")
