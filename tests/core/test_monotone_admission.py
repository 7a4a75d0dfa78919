"""I25 and I26: easing a case never turns it down, and a predictor makes sense."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from eaco_core import find_candidates, predict_jct, verify
from eaco_core.admission import refusal
from eaco_core.board import Board, Running
from eaco_core.decisions import BoundSource, Evidence
from eaco_core.evidence import NoPredictor, OverflowLaw
from eaco_core.invariants import check_estimates, check_monotone
from eaco_core.jobs import JobState, SoloProfile
from eaco_core.ports import Estimate, Query, Resident
from eaco_core.rules import Rules
from eaco_core.testing import Script, a_job, a_node, an_observation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from eaco_core.effects import Observation
    from eaco_core.jobs import JobSpec
    from eaco_core.ports import JctPredictor

NAMES = ("a", "b", "c")


@frozen
class Case:
    """Some residents of one GPU, a newcomer, and what was observed before."""

    newcomer: JobSpec
    residents: tuple[JobSpec, ...]
    history: tuple[Observation, ...] = ()
    law_margin: float = 1.25

    def jobs(self) -> tuple[JobSpec, ...]:
        return (self.newcomer, *self.residents)


def admits(case: object) -> bool:
    """Ask the gates of R2 and the deadlines of R5 and R6 about one GPU; not R7."""
    assert isinstance(case, Case)
    board = Board(
        now_s=0.0,
        nodes=[a_node("n1", 1)],
        running=[Running(job, ("n1-0",), 1) for job in case.residents],
        rules=Rules(law_margin=case.law_margin, max_degree=9),
        history=case.history,
    )
    newcomer = board.newcomer(case.newcomer)
    for candidate in find_candidates(newcomer, board.view):
        if refusal(predict_jct(newcomer, candidate.gpus, board.view), board.view) is None:
            return True
    return False


@st.composite
def drawn_jobs(draw: DrawFn, job_id: str) -> JobSpec:
    epochs = draw(st.integers(2, 20))
    # At least twice what it needs alone, so that nobody is late before or after.
    slack = draw(st.sampled_from([1.2, 1.3, 1.5, 1.7, 2.0, 3.0]))
    deadline_s = draw(st.sampled_from([None, slack * epochs * 100.0]))
    return a_job(
        job_id,
        workload=draw(st.sampled_from(NAMES)),
        epochs=epochs,
        util=draw(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.6])),
        busy=draw(st.sampled_from([0.1, 0.3, 0.5])),
        mem_gib=draw(st.sampled_from([1, 2, 4])),
        deadline_s=deadline_s,
        max_slowdown_ratio=draw(st.sampled_from([None, 1.3, 3.0])),
    )


@st.composite
def observations(draw: DrawFn) -> Observation:
    co = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    ratio = draw(st.sampled_from([0.95, 1.0, 1.1, 1.2, 1.4, 2.0]))
    return an_observation(draw(st.sampled_from(NAMES)), tuple(co), ratio)


@st.composite
def cases(draw: DrawFn) -> Case:
    count = draw(st.integers(1, 3))
    return Case(
        draw(drawn_jobs("new")),
        tuple(draw(drawn_jobs(f"r{i}")) for i in range(count)),
        tuple(draw(st.lists(observations(), max_size=4))),
    )


def _with_job(case: Case, index: int, job: JobSpec) -> Case:
    if index == 0:
        return attrs.evolve(case, newcomer=job)
    residents = list(case.residents)
    residents[index - 1] = job
    return attrs.evolve(case, residents=tuple(residents))


def eased(case: Case) -> list[tuple[object, object, str]]:
    """Give (harder, easier, how) for every way to ease a case."""
    ways: list[tuple[object, object, str]] = []
    for index, job in enumerate(case.jobs()):
        if job.deadline_s is not None:
            later = attrs.evolve(job, deadline_s=job.deadline_s * 1.5)
            ways.append((case, _with_job(case, index, later), f"a later deadline of {job.job_id}"))
        profile = job.profiles[0]
        assert profile.util_ratio is not None
        lower = attrs.evolve(profile, util_ratio=profile.util_ratio / 2)
        calmer = _with_job(case, index, attrs.evolve(job, profiles=(lower,)))
        ways.append((case, calmer, f"a lower utilisation of {job.job_id}"))
    for gone in case.residents if len(case.residents) > 1 else ():
        rest = tuple(job for job in case.residents if job is not gone)
        ways.append((case, attrs.evolve(case, residents=rest), f"{gone.job_id} is gone"))
    ways.append((attrs.evolve(case, law_margin=1.5), case, "a lower bound by the law"))
    better = tuple(attrs.evolve(seen, ratio=seen.ratio * 0.9) for seen in case.history)
    ways.append((case, attrs.evolve(case, history=better), "lower bounds by observation"))
    return ways


@given(cases())
def test_easing_a_case_never_turns_it_down(case: Case) -> None:
    assert check_monotone(admits, eased(case)) == []


def test_the_cases_are_not_all_alike() -> None:
    easy = Case(a_job("new"), (a_job("r", util=0.1),))
    hard = Case(a_job("new", deadline_s=1100.0), (a_job("r", util=0.1),))
    assert admits(easy)
    assert not admits(hard)


@st.composite
def evidence(draw: DrawFn, job_id: str) -> Evidence:
    epoch_s = draw(st.sampled_from([None, 90.0, 100.0, 130.0, 250.0]))
    return Evidence(
        job_id,
        epoch_s,
        None if epoch_s is None else epoch_s / 100.0,
        draw(st.integers(0, 20)),
        draw(st.sampled_from([None, 500.0, 1500.0, 3000.0])),
        draw(st.booleans()),
    )


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=3).flatmap(
        lambda ids: st.tuples(*(evidence(f"j{i}") for i in range(len(ids))))
    ),
    st.sampled_from([0.0, 700.0]),
)
def test_easing_the_evidence_never_turns_keep_into_undo(
    seen: tuple[Evidence, ...], now_s: float
) -> None:
    rules = Rules()
    for index, one in enumerate(seen):
        easier = [attrs.evolve(one, late=True), attrs.evolve(one, deadline_s=None)]
        if one.deadline_s is not None:
            easier.append(attrs.evolve(one, deadline_s=one.deadline_s + 100.0))
        if one.epoch_s is not None and one.ratio is not None:
            faster = attrs.evolve(one, epoch_s=one.epoch_s * 0.9, ratio=one.ratio * 0.9)
            easier.append(faster)
        for other in easier:
            changed = (*seen[:index], other, *seen[index + 1 :])
            if verify(now_s, seen, rules).keep is not False:
                assert verify(now_s, changed, rules).keep is not False
            if verify(now_s, seen, rules).keep is True:
                assert verify(now_s, changed, rules).keep is True


# ---- I26 -----------------------------------------------------------------------------


@st.composite
def queries(draw: DrawFn) -> Query:
    def one() -> Resident:
        util = draw(st.sampled_from([None, 0.0, 0.1, 0.333, 0.7, 1.0]))
        return Resident(draw(st.sampled_from(NAMES)), SoloProfile("v100", 100.0, util))

    co = sorted((one() for _ in range(draw(st.integers(0, 3)))), key=lambda r: r.workload)
    return Query(one(), tuple(co), "v100")


@given(st.lists(queries(), min_size=1, max_size=4))
def test_the_law_makes_sense(asked: list[Query]) -> None:
    assert check_estimates(OverflowLaw(), asked) == []
    assert check_estimates(NoPredictor(), asked) == []


@frozen
class _Says:
    """A predictor that always says the same."""

    answer: Estimate

    def predict(self, queries: Sequence[Query], /) -> list[Estimate]:
        return [self.answer for _ in queries]


@pytest.mark.parametrize(
    "answer",
    [
        Estimate(math.nan, 1.0, BoundSource.LEARNED),
        Estimate(1.0, math.nan, BoundSource.LEARNED),
        Estimate(1.0, math.inf, BoundSource.LEARNED),
        Estimate(2.0, 1.5, BoundSource.LEARNED),
        Estimate(0.5, 0.9, BoundSource.LEARNED),
        Estimate(-1.0, 1.2, BoundSource.LEARNED),
        Estimate(1.0, 1.0, BoundSource.NONE),
    ],
)
def test_nonsense_never_admits(answer: Estimate) -> None:
    predictor: JctPredictor = _Says(answer)
    story = Script(a_node("n1", 1), predictor=predictor).run(a_job("a")).submit(a_job("b"))
    assert story.state("b") is JobState.QUEUED


def test_a_learned_bound_is_used_and_named() -> None:
    answer = Estimate(1.1, 1.2, BoundSource.LEARNED, "model 7")
    story = Script(a_node("n1", 1), predictor=_Says(answer)).run(a_job("a")).submit(a_job("b"))
    bound = story.placed("b").affected[0]
    assert (bound.source, bound.upper_ratio, bound.calibration_id) == (
        BoundSource.LEARNED,
        1.2,
        "model 7",
    )


def test_a_gpu_type_that_was_never_seen_admits_nothing() -> None:
    story = Script(a_node("n1", 1, gpu_type="new"))
    story.run(a_job("a", gpu_type="v100")).submit(a_job("b", gpu_type="v100"))
    assert story.gpus("a") == ("n1-0",), "alone it may run anywhere"
    assert story.state("b") is JobState.QUEUED
