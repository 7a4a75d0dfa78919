"""R5 bounds, R6 admission, R7 it must pay, R8 late jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.decisions import AffectedBound, BoundSource
from eaco_core.evidence import NoPredictor
from eaco_core.jobs import JobState
from eaco_core.rules import Rules
from eaco_core.testing import PlainPower, Script, a_job, a_node, an_observation

if TYPE_CHECKING:
    from eaco_core.effects import Observation
    from eaco_core.jobs import JobSpec


def bound_of(
    job_id: str, *history: Observation, util: float = 0.2, rules: Rules | None = None
) -> AffectedBound:
    """Give the recorded bound of `a` or `b` when `b` joins `a` on the only GPU."""
    story = Script(a_node("n1", 1), history=history, rules=rules)
    story.run(a_job("a", util=util)).submit(a_job("b", util=util))
    return next(bound for bound in story.placed("b").affected if bound.job_id == job_id)


def seen(workload: str, *co: str, ratio: float) -> Observation:
    return an_observation(workload, co, ratio)


class TestR5Bounds:
    def test_the_law_is_a_quarter_above_the_sum_of_utilisations(self) -> None:
        bound = bound_of("a", util=0.6)
        assert (bound.source, bound.point_ratio) == (BoundSource.LAW, 1.2)
        assert bound.upper_ratio == pytest.approx(1.5)

    def test_below_a_full_gpu_the_law_says_no_slowdown(self) -> None:
        assert bound_of("a", util=0.2).upper_ratio == 1.25

    def test_an_observation_of_this_very_set_is_5_percent_above_what_was_seen(self) -> None:
        bound = bound_of("a", seen("a", "b", ratio=1.1))
        assert bound.source is BoundSource.OBSERVED
        assert bound.upper_ratio == pytest.approx(1.05 * 1.1)

    def test_an_observation_is_of_one_job_of_the_set_only(self) -> None:
        assert bound_of("b", seen("a", "b", ratio=1.1)).source is BoundSource.LAW

    def test_a_superset_that_ran_bounds_its_subset(self) -> None:
        bound = bound_of("a", seen("a", "b", "z", ratio=1.15))
        assert bound.upper_ratio == pytest.approx(1.05 * 1.15)

    def test_the_smallest_over_supersets_counts(self) -> None:
        bound = bound_of("a", seen("a", "b", "z", ratio=1.15), seen("a", "b", "y", ratio=1.12))
        assert bound.upper_ratio == pytest.approx(1.05 * 1.12)

    def test_a_superset_that_is_slower_than_the_law_is_no_better(self) -> None:
        assert bound_of("a", seen("a", "b", "z", ratio=1.3)).source is BoundSource.LAW

    def test_the_worst_of_a_subset_is_a_floor(self) -> None:
        bad = [seen("a", ratio=1.3), seen("a", "b", ratio=1.0)]
        assert bound_of("a", *bad).upper_ratio == pytest.approx(1.05 * 1.3)

    def test_bad_evidence_is_not_argued_away_by_later_good_evidence(self) -> None:
        history = [seen("a", "b", ratio=1.3), *[seen("a", "b", ratio=1.0)] * 19]
        assert bound_of("a", *history).upper_ratio == pytest.approx(1.05 * 1.3)

    def test_after_20_newer_ones_it_is_forgotten(self) -> None:
        history = [seen("a", "b", ratio=1.3), *[seen("a", "b", ratio=1.0)] * 20]
        assert bound_of("a", *history).upper_ratio == pytest.approx(1.05)

    def test_a_bound_is_never_below_1(self) -> None:
        assert bound_of("a", seen("a", "b", ratio=0.8)).upper_ratio == 1.0

    def test_evidence_holds_for_its_gpu_type_only(self) -> None:
        other = an_observation("a", ("b",), 1.0, gpu_type="a100")
        assert bound_of("a", other).source is BoundSource.LAW

    def test_without_a_bound_a_job_runs_alone(self) -> None:
        story = Script(a_node("n1", 1), predictor=NoPredictor()).run(a_job("a")).submit(a_job("b"))
        assert story.state("b") is JobState.QUEUED
        assert "no bound for this set" in story.why("b")

    def test_the_worst_gpu_of_a_gang_counts(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("x", util=0.7))
        story.join(a_node("n2", 1)).submit(a_job("gang", 2, util=0.4))
        bound = story.placed("gang").affected[0]
        assert bound.co_workloads == ("x",)
        assert bound.upper_ratio == pytest.approx(1.25 * 1.1)


class TestR5Exploration:
    def explore(self, *, explore: bool = True, deadline_s: float | None = None) -> Script:
        rules = Rules(explore=explore)
        story = Script(a_node("n1", 1), a_node("n2", 1), predictor=NoPredictor(), rules=rules)
        story.feed(ev.NodeDrained(0.0, "n2")).run(a_job("a"))
        return story.submit(a_job("b", deadline_s=deadline_s))

    def test_off_by_default(self) -> None:
        assert Rules().explore is False
        assert self.explore(explore=False).state("b") is JobState.QUEUED

    def test_an_explored_placement_says_so(self) -> None:
        placed = self.explore().placed("b")
        assert placed.explored
        assert placed.affected[0].source is BoundSource.NONE

    def test_only_where_nobody_has_a_deadline(self) -> None:
        assert self.explore(deadline_s=1e6).state("b") is JobState.QUEUED

    def test_one_open_window_at_a_time_in_the_cluster(self) -> None:
        story = self.explore().feed(ev.NodeDrained(0.0, "n2", drained=False))
        story.run(a_job("c")).submit(a_job("d"))
        assert story.gpus("c") == ("n2-0",)
        assert story.state("d") is JobState.QUEUED
        assert "another set is being explored" in story.why("d")


def admits(resident: JobSpec, newcomer: JobSpec, rules: Rules | None = None) -> bool:
    story = Script(a_node("n1", 1), rules=rules).run(resident).submit(newcomer)
    story.check()
    return story.state(newcomer.job_id) is JobState.STARTING


class TestR6Admission:
    # Ten epochs of 100 s, with a bound of 1.25: 1250 s.
    @pytest.mark.parametrize(("deadline_s", "allowed"), [(1250.0, True), (1249.9, False)])
    def test_the_newcomer_must_meet_its_deadline_by_its_bound(
        self, *, deadline_s: float, allowed: bool
    ) -> None:
        assert admits(a_job("a"), a_job("b", deadline_s=deadline_s)) is allowed

    @pytest.mark.parametrize(("deadline_s", "allowed"), [(1250.0, True), (1249.9, False)])
    def test_so_must_every_resident(self, *, deadline_s: float, allowed: bool) -> None:
        assert admits(a_job("a", deadline_s=deadline_s), a_job("b")) is allowed

    def test_a_job_without_a_deadline_accepts_half_as_much_again(self) -> None:
        assert admits(a_job("a", util=0.6), a_job("b", util=0.6)), "1.25 x 1.2 = 1.5"
        assert not admits(a_job("a", util=0.6), a_job("b", util=0.61))

    def test_or_what_it_says_itself(self) -> None:
        assert not admits(a_job("a", max_slowdown_ratio=1.2), a_job("b"))
        assert admits(
            a_job("a", util=0.65, max_slowdown_ratio=3.0),
            a_job("b", util=0.65, max_slowdown_ratio=3.0),
        )

    def test_a_deadline_stands_in_for_the_limit(self) -> None:
        assert admits(a_job("a", util=0.65, deadline_s=1e5), a_job("b", util=0.65, deadline_s=1e5))

    def test_residents_of_every_gpu_of_the_gang_are_affected(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("x"))
        story.feed(ev.NodeDrained(0.0, "n1")).join(a_node("n2", 1)).run(
            a_job("y", deadline_s=1100.0)
        )
        story.feed(ev.NodeDrained(0.0, "n1", drained=False)).submit(a_job("gang", 2))
        assert story.state("gang") is JobState.QUEUED, "it would delay y on the second GPU"

    def test_one_level_only_a_co_resident_of_a_resident_is_not_affected(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("far"))
        story.join(a_node("n2", 1)).submit(a_job("gang", 2)).start("gang")
        story.at(100.0).epoch("far").epoch("gang")
        assert story.state("gang") is JobState.SETTLED
        story.feed(ev.NodeDrained(100.0, "n1")).submit(a_job("b"))
        assert story.gpus("b") == ("n2-0",)
        assert [bound.job_id for bound in story.placed("b").affected] == ["b", "gang"]

    def test_a_start_that_waits_for_a_node_is_counted(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("x"))
        story.join(a_node("n2", 1, can_sleep=True, wake_s=60.0), NodeState.ASLEEP)
        story.submit(a_job("gang", 2, deadline_s=1300.0))
        assert not story.records(type(story.placed("x")))[-1].shared
        story.submit(a_job("lax", 2, deadline_s=1310.0))
        assert story.placed("lax").start_s == 60.0


class TestR7ItMustPay:
    def test_without_a_power_model_by_throughput(self) -> None:
        # Two jobs with a bound of 1.875 each do 1.07 jobs' work.
        lax: dict[str, Any] = {"deadline_s": 1e6}
        assert not admits(a_job("a", util=0.75, **lax), a_job("b", util=0.75, **lax))
        # With 1.8125 each it is 1.103.
        assert admits(a_job("a", util=0.72, **lax), a_job("b", util=0.73, **lax))

    def energies(self, power: PlainPower) -> tuple[float, float]:
        story = Script(a_node("n1", 1, can_sleep=True), power=power).run(a_job("a"))
        story.submit(a_job("b"))
        placed = story.placed("b")
        assert placed.extra_energy_j is not None
        assert placed.alternative_energy_j is not None
        return placed.extra_energy_j, placed.alternative_energy_j

    def test_energies_by_hand(self) -> None:
        extra_j, alternative_j = self.energies(PlainPower())
        both_s, alone_s = 1250.0, 1000.0
        # Server: idle 100 + 50 x load, GPU: 20 + 100 x root of its utilisation; asleep 10.
        base_w = 100 + 20 - 10
        together_w = base_w + 50 * 1 + 100 * 0.4**0.5  # load stops at 1
        alone_w = base_w + 50 * 1 + 100 * 0.2**0.5
        assert extra_j == pytest.approx(both_s * together_w - alone_s * alone_w)
        assert alternative_j == pytest.approx(alone_s * alone_w)

    def test_a_wake_up_counts_for_the_alternative(self) -> None:
        power = PlainPower(waking_j=12345.0)
        without = self.energies(power)[1]
        story = Script(a_node("n1", 1, can_sleep=True), power=power)
        story.join(a_node("n2", 1, can_sleep=True), NodeState.ASLEEP)
        story.run(a_job("a")).submit(a_job("b"))
        with_waking = story.placed("b").alternative_energy_j
        assert with_waking == pytest.approx(without + 12345.0)

    def test_a_wake_up_counts_for_sharing_by_a_gang_that_wakes_a_node(self) -> None:
        def extra_j(waking_j: float) -> float | None:
            known = (seen("a", "gang", ratio=1.0), seen("gang", "a", ratio=1.0))
            power = PlainPower(waking_j=waking_j)
            story = Script(a_node("n1", 1), power=power, history=known).run(a_job("a"))
            story.join(a_node("n2", 1, can_sleep=True), NodeState.ASLEEP)
            placed = story.submit(a_job("gang", 2)).placed("gang")
            assert placed.shared
            return placed.extra_energy_j

        assert extra_j(12345.0) == pytest.approx((extra_j(0.0) or 0.0) + 12345.0)

    def test_no_sharing_that_costs_more(self) -> None:
        dear = PlainPower(idle_w=0.0, busy_w=0.0, gpu_idle_w=0.0, gpu_busy_w=1000.0, asleep_w=0.0)
        story = Script(a_node("n1", 1), a_node("n2", 1), power=dear)
        story.run(a_job("a", util=0.001), a_job("b", util=0.9))
        assert not story.placed("b").shared
        assert any(refusal.rule == "R7" for refusal in story.placed("b").refusals)


class TestR8LateJobs:
    def late(self, how: str) -> Script:
        rules = Rules(late_jobs=how)  # type: ignore[arg-type] # of the literal
        story = Script(a_node("n1", 1), rules=rules).run(a_job("a"))
        return story.submit(a_job("late", deadline_s=500.0))

    def test_a_late_job_may_share_and_its_deadline_does_not_bind(self) -> None:
        placed = self.late("share").placed("late")
        assert placed.shared
        assert placed.affected[0].late

    def test_its_limit_of_slowdown_still_does(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", util=0.8, deadline_s=1e6))
        story.submit(a_job("late", util=0.8, deadline_s=500.0))
        assert story.state("late") is JobState.QUEUED, "2 is above 1.5"

    def test_the_deadlines_of_others_still_bind(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", deadline_s=1100.0))
        story.submit(a_job("late", deadline_s=500.0))
        assert story.state("late") is JobState.QUEUED

    @pytest.mark.parametrize("how", ["exclusive", "refuse"])
    def test_or_it_runs_alone(self, how: str) -> None:
        story = self.late(how)
        assert story.state("late") is JobState.QUEUED
        story.finish("a").release("a")
        assert story.state("late") is JobState.STARTING, "late is not lost: it still runs"

    def test_a_late_job_blocks_nobody(self) -> None:
        story = self.late("exclusive").at(10.0).submit(a_job("b", submit_s=10.0))
        assert story.placed("b").shared
