"""What is asked of predictors (I26), of admission (I25), and of two runs (I23)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.decisions import BoundSource
from eaco_core.events import Tick
from eaco_core.evidence import NoPredictor, OverflowLaw
from eaco_core.history import EnergyLine, Header, Step
from eaco_core.invariants import check_estimates, check_monotone, compare_histories
from eaco_core.jobs import SoloProfile
from eaco_core.ports import Estimate, Query, Resident

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eaco_core.history import Line


def resident(name: str, util: float | None = 0.4) -> Resident:
    return Resident(name, SoloProfile("v100", epoch_s=100.0, util_ratio=util))


QUERIES = (
    Query(resident("a"), (), "v100"),
    Query(resident("a"), (resident("b"), resident("c", 0.9)), "v100"),
)
Fields: TypeAlias = Any
UTILS = st.none() | st.floats(min_value=0, max_value=1)


@given(st.lists(UTILS, min_size=1, max_size=4))
def test_the_law_makes_sense(utils: list[float | None]) -> None:
    first, *others = [resident(f"w{i}", util) for i, util in enumerate(utils)]
    assert check_estimates(OverflowLaw(), [Query(first, tuple(others), "v100")]) == []


def test_a_predictor_that_knows_nothing_makes_sense() -> None:
    assert check_estimates(NoPredictor(), QUERIES) == []


class Fake:
    """Answers by a function of the query."""

    def __init__(self, answer: Callable[[Query], Estimate]) -> None:
        self._answer = answer

    def predict(self, queries: Sequence[Query], /) -> Sequence[Estimate]:
        return [self._answer(query) for query in queries]


def law(query: Query) -> Estimate:
    (found,) = OverflowLaw().predict([query])
    return found


def shared_only(**fields: Fields) -> Callable[[Query], Estimate]:
    return lambda q: attrs.evolve(law(q), **fields) if q.co_residents else law(q)


def order(query: Query) -> float:
    return float([r.workload for r in query.co_residents] == ["b", "c"])


def by_order(query: Query) -> Estimate:
    return attrs.evolve(law(query), upper_ratio=2.0 + order(query))


def slow_alone(_: Query) -> Estimate:
    return Estimate(1.2, 1.3, BoundSource.LAW)


def never_slow(_: Query) -> Estimate:
    return Estimate(1.0, 1.0, BoundSource.LEARNED)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (shared_only(upper_ratio=math.nan), "is not finite"),
        (shared_only(point_ratio=math.inf, upper_ratio=math.inf), "is not finite"),
        (shared_only(point_ratio=9.0), "no slowdown"),
        (shared_only(point_ratio=0.5, upper_ratio=0.9), "no slowdown"),
        (shared_only(source=BoundSource.NONE), "no source"),
        (slow_alone, "alone it is"),
        (by_order, "the order"),
        (never_slow, "never seen"),
    ],
)
def test_a_senseless_predictor_is_found(
    answer: Callable[[Query], Estimate], complaint: str
) -> None:
    found = check_estimates(Fake(answer), QUERIES)
    assert {violation.invariant for violation in found} == {"I26"}
    assert any(complaint in violation.message for violation in found), found


def test_a_predictor_that_loses_a_query_is_found() -> None:
    class Lossy:
        def predict(self, queries: Sequence[Query], /) -> Sequence[Estimate]:
            return [law(query) for query in queries[1:]]

    assert len(check_estimates(Lossy(), QUERIES)) == 1


def test_admission_must_not_become_stricter_when_a_case_is_eased() -> None:
    cases = [(100.0, 200.0, "a later deadline")]
    assert check_monotone(lambda deadline_s: deadline_s >= 50.0, cases) == []
    found = check_monotone(lambda deadline_s: deadline_s <= 150.0, cases)
    assert [violation.invariant for violation in found] == ["I25"]


def test_two_runs_are_compared_step_by_step() -> None:
    lines: list[Line] = [
        Header(policy="eaco", seed=1),
        Step(1, 0.0, 1, Tick(0.0)),
        EnergyLine(0.0, 1.0, "n", 0.0),
        Step(2, 1.0, 1, Tick(1.0)),
    ]
    assert compare_histories(lines, lines) == []
    elsewhere: list[Line] = [Header(policy="eaco", seed=1, info={"day": "another"}), *lines[1:]]
    assert compare_histories(lines, elsewhere) == []
    later: list[Line] = [*lines[:3], Step(2, 1.5, 1, Tick(1.5))]
    assert [v.seq for v in compare_histories(lines, later)] == [2]
    assert len(compare_histories(lines, lines[:-1])) == 1
    assert len(compare_histories([Header(seed=2), *lines[1:]], lines)) == 1
