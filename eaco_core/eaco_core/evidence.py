"""Evidence: what was seen of jobs that share, and the bounds that follow (rule R5).

For an affected workload w beside co-residents S on GPUs of one type:

    bound(S) = max(L(S), min((a), first of (b), (c) that applies))

L(S) is 1.05 x the largest ratio seen for w beside S or any part of S, over the last
20 clean observations of each: bad evidence is not argued away. (a) is 1.05 x the
ratio seen beside S, the smallest over everything that contains S. (b) and (c) come
from the predictor. Both L and (a) can only fall when a resident is removed, so a
bound never rises by removing one (invariant I25).
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from eaco_core._forms import EvidenceForm, SeenForm, UndoneForm
from eaco_core.decisions import BoundSource
from eaco_core.errors import InputError, InternalError
from eaco_core.ports import Estimate, Query, Resident

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eaco_core._records import JobKind, JobRecord
    from eaco_core.effects import Observation
    from eaco_core.ports import JctPredictor
    from eaco_core.rules import Rules

LAST_OBSERVATIONS = 20
# Ratios closer than this are one: they differ by the rounding of times only.
SAME_RATIO = 1e-6
Workloads = tuple[str, ...]
ALONE = Estimate(1.0, 1.0, BoundSource.SOLO)
NOTHING = Estimate(math.inf, math.inf, BoundSource.NONE)


def contains(larger: Workloads, smaller: Workloads) -> bool:
    """Tell whether the sorted multiset `larger` contains the sorted multiset `smaller`."""
    if len(smaller) >= len(larger):
        return larger == smaller
    if len(smaller) == 1:
        return smaller[0] in larger
    i = 0
    for name in larger:
        if i < len(smaller) and smaller[i] == name:
            i += 1
    return i == len(smaller)


class Evidence:
    """Observations by (GPU type, affected workload, co-residents), and bounds from them."""

    def __init__(
        self, rules: Rules, predictor: JctPredictor, history: Iterable[Observation] = ()
    ) -> None:
        self._rules = rules
        self._predictor = predictor
        self._seen: dict[tuple[str, str], dict[Workloads, deque[float]]] = {}
        self._worst: dict[tuple[str, str], dict[Workloads, float]] = {}
        self._ran: dict[str, set[Workloads]] = {}
        self._peak_mem: dict[tuple[str, str], int] = {}
        self._undone: dict[tuple[str, str, Workloads], float] = {}
        self._bounds: dict[tuple[str, str], dict[tuple[int, tuple[int, ...]], Estimate]] = {}
        # What was seen beside any part of these, and beside all of these; None = nothing.
        self._ratios: dict[tuple[str, str], dict[Workloads, tuple[float, float | None]]] = {}
        self.version = 0
        for observation in history:
            self.add(observation)

    def add(self, seen: Observation) -> bool:
        """Take in one clean observation; tell whether a bound may have fallen by it."""
        group = (seen.gpu_type, seen.workload)
        co = seen.co_workloads
        ratios = self._seen.setdefault(group, {}).setdefault(co, deque(maxlen=LAST_OBSERVATIONS))
        ratios.append(seen.ratio)
        worst = self._worst.setdefault(group, {})
        before, after = worst.get(co), max(ratios)
        if before is not None and _same(before, after):
            return False
        worst[co] = after
        self._ran.setdefault(seen.gpu_type, set()).add(tuple(sorted((seen.workload, *co))))
        self.version += 1
        self._bounds.pop(group, None)
        known = self._ratios.get(group, {})
        for names in [n for n in known if contains(n, co) or contains(co, n)]:
            del known[names]
        return before is None or after < before

    def note_peak_mem(self, gpu_type: str, workload: str, peak_bytes: int) -> None:
        """Remember the highest memory that a workload was seen to use (R13)."""
        key = (gpu_type, workload)
        if peak_bytes > self._peak_mem.get(key, -1):
            self._peak_mem[key] = peak_bytes
            self.version += 1

    def peak_mem_bytes(self, gpu_type: str, kind: JobKind) -> int | None:
        """Give the peak memory of a kind on each GPU: declared or seen, the higher; or None."""
        profile = kind.profiles.get(gpu_type)
        declared = None if profile is None else profile.peak_mem_bytes
        seen = self._peak_mem.get((gpu_type, kind.workload)) if kind.workload else None
        if declared is None or seen is None:
            return declared if seen is None else seen
        return max(declared, seen)

    def has_run(self, gpu_type: str, workloads: Workloads) -> bool:
        """Tell whether this set, or one that contains it, has run cleanly on one GPU (R2)."""
        ran = self._ran.get(gpu_type)
        if not ran:
            return False
        return workloads in ran or any(contains(larger, workloads) for larger in ran)

    def note_undo(self, gpu_type: str, workload: str, residents: Workloads, bound: float) -> None:
        """Do not try `workload` beside `residents` again until its bound is below `bound` (R10)."""
        self._undone[gpu_type, workload, residents] = bound

    def undone_bound(self, gpu_type: str, workload: str, residents: Workloads) -> float | None:
        """Give the bound below which an undone signature may be tried again, None if none was."""
        return self._undone.get((gpu_type, workload, residents))

    def bound(self, gpu_type: str, affected: JobKind, co: Sequence[JobKind]) -> Estimate:
        """Give the point and the upper bound of the slowdown of `affected` beside `co`."""
        if not co:
            return ALONE
        bounds = self._bounds.setdefault((gpu_type, affected.workload), {})
        numbers = [kind.number for kind in co]
        numbers.sort()
        key = (affected.number, tuple(numbers))
        known = bounds.get(key)
        if known is None:
            known = bounds[key] = self._compute(gpu_type, affected, co)
        return known

    def bound_now(self, job: JobRecord) -> float:
        """Give the upper bound of a job on its GPUs, beside those that are there now."""
        worst = 1.0
        for gpu in job.gpus:
            co = [other.kind for other in gpu.residents if other is not job]
            if co:
                worst = max(worst, self.bound(gpu.spec.gpu_type, job.kind, co).upper_ratio)
        return worst

    def dump(self) -> EvidenceForm:
        """Give everything as plain data."""
        seen = [
            SeenForm(gpu_type, workload, co, tuple(ratios), self._worst[gpu_type, workload][co])
            for (gpu_type, workload), group in self._seen.items()
            for co, ratios in group.items()
        ]
        peaks = [
            (gpu_type, workload, peak) for (gpu_type, workload), peak in self._peak_mem.items()
        ]
        undone = [UndoneForm(*signature, bound) for signature, bound in self._undone.items()]
        return EvidenceForm(self.version, tuple(seen), tuple(peaks), tuple(undone))

    def load(self, form: EvidenceForm) -> None:
        """Take in what `dump` gave, instead of what is here. Raises InputError."""
        for known in (self._seen, self._worst, self._ran, self._peak_mem, self._undone):
            known.clear()
        self._bounds.clear()
        self._ratios.clear()
        for seen in form.seen:
            group, co = (seen.gpu_type, seen.workload), seen.co
            ratios = deque(seen.ratios, maxlen=LAST_OBSERVATIONS)
            if not 0 < len(seen.ratios) == len(ratios) or list(co) != sorted(co):
                raise InputError(
                    f"the observations of {seen.workload} beside {co} are not possible"
                )
            if co in self._seen.setdefault(group, {}):
                raise InputError(f"{seen.workload} beside {co} is there twice")
            if not _same(seen.worst, max(ratios)):
                raise InputError(f"the worst ratio of {seen.workload} beside {co} is not one seen")
            self._seen[group][co] = ratios
            self._worst.setdefault(group, {})[co] = seen.worst
            self._ran.setdefault(seen.gpu_type, set()).add(tuple(sorted((seen.workload, *co))))
        for gpu_type, workload, peak in form.peak_mem:
            self._peak_mem[gpu_type, workload] = peak
        for undo in form.undone:
            self._undone[undo.gpu_type, undo.workload, undo.residents] = undo.bound
        self.version = form.version

    def _compute(self, gpu_type: str, affected: JobKind, co: Sequence[JobKind]) -> Estimate:
        # By number too: the order of co-residents must not show in the rounding of a sum.
        co = sorted(co, key=lambda kind: (kind.workload, kind.number))
        if not affected.workload or any(not kind.workload for kind in co):
            return NOTHING
        names = tuple(kind.workload for kind in co)
        margin = self._rules.observed_margin
        worst, above = self._observed((gpu_type, affected.workload), names)
        floor = margin * worst
        predicted = self._predict(gpu_type, affected, co)
        if above is not None and margin * above <= predicted.upper_ratio:
            best = Estimate(above, margin * above, BoundSource.OBSERVED)
        else:
            best = predicted
        if best.source is BoundSource.NONE:
            return NOTHING
        upper = max(best.upper_ratio, floor, 1.0)
        point = min(max(best.point_ratio, 1.0), upper)
        source = BoundSource.OBSERVED if floor > best.upper_ratio else best.source
        return Estimate(point, upper, source, best.calibration_id)

    def _observed(self, group: tuple[str, str], names: Workloads) -> tuple[float, float | None]:
        """Give the largest ratio beside any part of `names`, and the least beside all of them."""
        known = self._ratios.setdefault(group, {})
        found = known.get(names)
        if found is None:
            worst = self._worst.get(group, {})
            part = max((r for s, r in worst.items() if contains(names, s)), default=0.0)
            above = min((r for s, r in worst.items() if contains(s, names)), default=None)
            found = known[names] = (part, above)
        return found

    def _predict(self, gpu_type: str, affected: JobKind, co: Sequence[JobKind]) -> Estimate:
        residents: list[Resident] = []
        for kind in (affected, *co):
            profile = kind.profiles.get(gpu_type)
            if profile is None:
                return NOTHING
            residents.append(Resident(kind.workload, profile))
        query = Query(residents[0], tuple(residents[1:]), gpu_type)
        answers = self._predictor.predict([query])
        if len(answers) != 1:
            raise InternalError(f"the predictor gave {len(answers)} answers to 1 query")
        return sane(answers[0])


def _same(ratio: float, other: float) -> bool:
    return abs(other - ratio) <= SAME_RATIO * ratio


def sane(estimate: Estimate) -> Estimate:
    """Turn anything that is not a usable bound into "no bound": NaN never admits (I26)."""
    point, upper = estimate.point_ratio, estimate.upper_ratio
    if estimate.source is BoundSource.NONE:
        return NOTHING
    if not (math.isfinite(point) and math.isfinite(upper) and 0 < point <= upper and upper >= 1):
        return NOTHING
    return estimate


class OverflowLaw:
    """Source (c) of R5: slowdown = max(1, sum of solo utilisations), bound 1.25 x that.

    Time-slicing a GPU costs nothing until the kernels of all residents together
    want more than all of its time. It needs the solo utilisation of every resident,
    and says nothing (source `none`) where one is missing.
    """

    def __init__(self, margin: float = 1.25) -> None:
        self.margin = margin

    def predict(self, queries: Sequence[Query], /) -> list[Estimate]:
        """Answer every query, in order."""
        return [self._one(query) for query in queries]

    def _one(self, query: Query) -> Estimate:
        if not query.co_residents:
            return ALONE
        total = 0.0
        for resident in (query.affected, *query.co_residents):
            if resident.profile.util_ratio is None:
                return NOTHING
            total += resident.profile.util_ratio
        point = max(1.0, total)
        upper = self.margin * point
        return Estimate(point, upper, BoundSource.LAW, f"overflow-law-{self.margin:g}")


class NoPredictor:
    """Source (d) of R5: no bound; every job that was not observed beside others runs alone."""

    def predict(self, queries: Sequence[Query], /) -> list[Estimate]:
        """Answer every query with "no bound"."""
        return [NOTHING if query.co_residents else ALONE for query in queries]
