"""What needs the scheduler or the predictor itself, asked again: I25 and I26."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, TypeVar

import attrs

from eaco_core.decisions import BoundSource
from eaco_core.invariants._report import Violation
from eaco_core.ports import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from eaco_core.ports import Estimate, JctPredictor

_UNSEEN_TYPE = "a type that nobody has ever seen"
_SLACK = 1e-9
_Case = TypeVar("_Case")


def check_estimates(predictor: JctPredictor, queries: Sequence[Query]) -> list[Violation]:
    """Ask a predictor and look whether its answers make sense (I26).

    Finite or of source `none`; 1 <= point <= upper; 1 for a job alone; the same for
    every order of the co-residents; and nothing admitted on a GPU type never seen.
    """
    asked = list(queries)
    answers = predictor.predict(asked)
    if len(answers) != len(asked):
        return [Violation("I26", f"{len(asked)} queries gave {len(answers)} answers")]
    complaints: list[str] = []
    for query, answer in zip(asked, answers, strict=True):
        complaints += _about_one(query, answer)
        complaints += _about_order(predictor, query, answer)
        complaints += _about_unseen(predictor, query)
    return [Violation("I26", complaint) for complaint in complaints]


def _name(query: Query) -> str:
    beside = ", ".join(r.workload for r in query.co_residents) or "nobody"
    return f"{query.affected.workload} beside {beside} on {query.gpu_type}"


def _about_one(query: Query, answer: Estimate) -> Iterator[str]:
    point, upper = answer.point_ratio, answer.upper_ratio
    if answer.source is BoundSource.NONE:
        if not math.isinf(upper) and query.co_residents:
            yield f"{_name(query)}: no source, and yet a bound of {upper!r}"
    elif not (math.isfinite(point) and math.isfinite(upper)):
        yield f"{_name(query)}: {point!r} to {upper!r} is not finite"
    elif not (point <= upper + _SLACK and upper >= 1 and point > 0):
        yield f"{_name(query)}: point {point!r} and bound {upper!r} are no slowdown"
    elif not query.co_residents and (point != 1 or upper != 1):
        yield f"{_name(query)}: alone it is {point!r} to {upper!r}, not 1"


def _about_order(predictor: JctPredictor, query: Query, answer: Estimate) -> Iterator[str]:
    orders = [attrs.evolve(query, co_residents=order) for order in permutations(query.co_residents)]
    for other in predictor.predict(orders):
        same = _equal(other.point_ratio, answer.point_ratio)
        if not (same and _equal(other.upper_ratio, answer.upper_ratio)):
            yield f"{_name(query)}: the order of the co-residents changes the answer"
            return


def _equal(first: float, second: float) -> bool:
    both_nan = math.isnan(first) and math.isnan(second)
    return both_nan or math.isclose(first, second, rel_tol=_SLACK)


def _about_unseen(predictor: JctPredictor, query: Query) -> Iterator[str]:
    if not query.co_residents:
        return
    members = (query.affected, *query.co_residents)
    bare = [
        attrs.evolve(m, profile=attrs.evolve(m.profile, gpu_type=_UNSEEN_TYPE, util_ratio=None))
        for m in members
    ]
    (answer,) = predictor.predict([Query(bare[0], tuple(bare[1:]), _UNSEEN_TYPE)])
    if answer.source is not BoundSource.NONE:
        yield f"{_name(query)}: a bound for a GPU type that was never seen"


def check_monotone(
    admits: Callable[[_Case], bool], cases: Iterable[tuple[_Case, _Case, str]]
) -> list[Violation]:
    """Look whether easing a case never turns an admission down (I25).

    Each case is (harder, easier, what was eased): the same state but for a later
    deadline, one resident less, a lower utilisation or a lower bound. `admits` is one
    call of the scheduler's own gates and deadline test, without the energy rule.
    """
    return [
        Violation("I25", f"{eased} turned an admission into a refusal")
        for harder, easier, eased in cases
        if admits(harder) and not admits(easier)
    ]
