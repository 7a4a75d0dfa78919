"""PredictJCT and admission: may this set be shared? (R5, R6, R8).

One level of effects: the newcomer and the residents of its GPUs are affected; a
slowed gang never loads its other GPUs more, so nobody else is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from eaco_core._ledger import mem_busy_ratio, util_ratio
from eaco_core.candidates import (
    has_evidence,
    mem_limit_bytes,
    mem_needed_bytes,
)
from eaco_core.decisions import AffectedBound, BoundSource, GateReading
from eaco_core.evidence import ALONE
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from eaco_core._records import GpuRecord, JobKind, JobRecord
    from eaco_core.ports import Estimate
    from eaco_core.view import View


@frozen(eq=False)
class Effect:
    """What one affected job would suffer: its bound on its worst GPU, and what it has left.

    `remaining_s` is at solo speed in whole epochs; `start_s` is now, or when the job
    can start if it has not yet.
    """

    job: JobRecord
    estimate: Estimate
    co: tuple[JobKind, ...]
    gpu_type: str
    remaining_s: float
    late: bool
    start_s: float

    def as_record(self) -> AffectedBound:
        """Give the same facts as plain data, for the history."""
        return AffectedBound(
            job_id=self.job.spec.job_id,
            workload=self.job.spec.workload,
            co_workloads=tuple(sorted(kind.workload for kind in self.co)),
            gpu_type=self.gpu_type,
            point_ratio=self.estimate.point_ratio,
            upper_ratio=self.estimate.upper_ratio,
            source=self.estimate.source,
            calibration_id=self.estimate.calibration_id,
            remaining_s=self.remaining_s,
            deadline_s=self.job.spec.deadline_s,
            late=self.late,
        )


def predict_jct(
    job: JobRecord,
    gpus: tuple[GpuRecord, ...],
    view: View,
    *,
    without: frozenset[JobRecord] = frozenset(),
) -> list[Effect]:
    """Give the bound of every job that would be affected if `job` joined on `gpus`.

    Residents in `without` are taken as gone.
    The newcomer is first, then the residents in order of GPU and placement. The
    completion time that follows is `start_s + estimate.upper_ratio * remaining_s`.
    """
    gpu_type = gpus[0].spec.gpu_type
    start_s = view.start_s(gpus)
    chosen = {gpu.spec.gpu_id for gpu in gpus}
    sets = [[r.kind for r in gpu.residents if r not in without] for gpu in gpus]
    effects = [_effect(job, gpu_type, sets, view, start_s)]
    seen: set[str] = set()
    for gpu in gpus:
        for resident in gpu.residents:
            if resident.spec.job_id not in seen and resident not in without:
                seen.add(resident.spec.job_id)
                sets = _sets_beside(resident, job, chosen, without)
                not_started = resident.state is JobState.STARTING
                begins_s = view.start_s(tuple(resident.gpus)) if not_started else view.now_s
                effects.append(_effect(resident, gpu_type, sets, view, begins_s))
    return effects


def _sets_beside(
    resident: JobRecord, newcomer: JobRecord, chosen: set[str], without: frozenset[JobRecord]
) -> list[list[JobKind]]:
    """Give who would be beside a resident on each of its GPUs."""
    sets: list[list[JobKind]] = []
    for gpu in resident.gpus:
        co = [r.kind for r in gpu.residents if r is not resident and r not in without]
        if gpu.spec.gpu_id in chosen:
            co.append(newcomer.kind)
        sets.append(co)
    return sets


def _effect(
    job: JobRecord,
    gpu_type: str,
    sets: list[list[JobKind]],
    view: View,
    start_s: float,
) -> Effect:
    if len(sets) == 1:
        co_of_worst = sets[0]
        worst = view.evidence.bound(gpu_type, job.kind, co_of_worst)
    else:
        worst, co_of_worst = _worst(job, gpu_type, sets, view)
    remaining_s = job.solo_left_s(gpu_type) or 0.0
    late = job.late(view.now_s, gpu_type)
    return Effect(job, worst, tuple(co_of_worst), gpu_type, remaining_s, late, start_s)


def _worst(
    job: JobRecord, gpu_type: str, sets: list[list[JobKind]], view: View
) -> tuple[Estimate, list[JobKind]]:
    """Give the bound on the job's worst GPU, and the co-residents there."""
    worst = ALONE
    co_of_worst: list[JobKind] = []
    seen: set[tuple[int, ...]] = set()
    for co in sets:
        numbers = tuple(sorted([kind.number for kind in co]))
        if numbers in seen:
            continue
        seen.add(numbers)
        estimate = view.evidence.bound(gpu_type, job.kind, co)
        if estimate.upper_ratio > worst.upper_ratio or (
            estimate.upper_ratio == worst.upper_ratio and len(co) > len(co_of_worst)
        ):
            worst, co_of_worst = estimate, co
    return worst, co_of_worst


def refusal(effects: list[Effect], view: View) -> tuple[str, str, bool] | None:
    """Give (rule, reason, whether time may change it) if R5, R6 or R8 refuse, else None.

    With every `estimate` given, this depends only on deadlines, remaining work and
    bounds: raising a deadline or lowering a bound never turns a yes into a no (I25).
    """
    rules = view.rules
    for effect in effects:
        if effect.estimate.source is BoundSource.NONE:
            return "R5", "no bound for this set: measure it, or run alone", False
    for effect in effects:
        who = "its own" if effect is effects[0] else "a resident's"
        newcomer_alone = effect is effects[0] and rules.late_jobs == "exclusive"
        if effect.late and (rules.late_jobs == "refuse" or newcomer_alone):
            return "R8", f"{who} deadline cannot be met even alone", True
        deadline_s = effect.job.spec.deadline_s
        if deadline_s is None or effect.late:
            limit = effect.job.kind.max_slowdown_ratio or rules.max_slowdown_ratio
            if effect.estimate.upper_ratio > limit:
                return "R6", f"{who} slowdown could exceed what it accepts", effect.late
        elif effect.start_s + effect.estimate.upper_ratio * effect.remaining_s > deadline_s:
            return "R6", f"{who} deadline could be missed", True
    return None


def is_undone(job: JobRecord, effects: list[Effect], view: View) -> bool:
    """Tell whether this signature was undone and its bound has not fallen since (R10)."""
    gpu_type, residents = signature(effects)
    bound = view.evidence.undone_bound(gpu_type, job.kind.workload, residents)
    return bound is not None and highest_bound(effects) >= bound


def signature(effects: list[Effect]) -> tuple[str, tuple[str, ...]]:
    """Give (GPU type, sorted workloads of the residents): never ids (R10, I12)."""
    return effects[0].gpu_type, tuple(sorted(e.job.kind.workload for e in effects[1:]))


def highest_bound(effects: list[Effect]) -> float:
    """Give the highest upper bound among the affected jobs."""
    return max(effect.estimate.upper_ratio for effect in effects)


def gate_readings(job: JobRecord, gpus: tuple[GpuRecord, ...], view: View) -> list[GateReading]:
    """Give what the gates of R2 saw, for the record."""
    readings: list[GateReading] = []
    for gpu in gpus:
        util, busy = util_ratio(gpu), mem_busy_ratio(gpu)
        needed = mem_needed_bytes(gpu, job, view)
        limit = mem_limit_bytes(gpu, view.rules)
        missing = util is None or busy is None or needed is None or limit is None
        readings.append(
            GateReading(
                gpu_id=gpu.spec.gpu_id,
                util_ratio=util,
                mem_busy_ratio=busy,
                mem_needed_bytes=needed,
                mem_limit_bytes=limit,
                residents=tuple(resident.spec.job_id for resident in gpu.residents),
                by_evidence=missing and has_evidence(gpu, job.kind, view),
            )
        )
    return readings
