"""R1 the queue, R2 the gates, R3 gangs, R4 the order of candidates."""

from __future__ import annotations

from typing import Any

import pytest

from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.decisions import Placed
from eaco_core.jobs import CheckpointScope, JobSpec, JobState, ShareWith
from eaco_core.machine import SchedulerMachine
from eaco_core.rules import GIB, Rules
from eaco_core.testing import PlainPower, Script, a_job, a_node, a_profile, an_observation


class TestR1Queue:
    def test_higher_priority_first_then_earlier_submission_then_id(self) -> None:
        story = Script()
        story.submit(a_job("b"), a_job("a"), a_job("late"), a_job("vip", priority=5))
        assert story.machine.snapshot().queue == ("vip", "a", "b", "late")

    def test_the_submit_time_is_the_original_one(self) -> None:
        story = Script().at(50.0)
        story.submit(a_job("new", submit_s=50.0), a_job("old", submit_s=3.0))
        assert story.machine.snapshot().queue == ("old", "new")

    def test_a_job_that_comes_back_takes_its_old_place(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", exclusive=True))
        story.at(10.0).submit(a_job("b", submit_s=10.0, exclusive=True))
        story.stop("a").release("a")
        assert story.gpus("a") == ("n1-0",), "a goes first again"
        assert story.machine.snapshot().queue == ("b",)

    def test_a_job_that_does_not_fit_blocks_nobody(self) -> None:
        story = Script(a_node("n1", 2)).run(a_job("a", exclusive=True))
        story.submit(a_job("big", 2), a_job("small"))
        assert story.state("big") is JobState.QUEUED
        assert story.gpus("small") == ("n1-1",)

    def test_priority_100_is_exclusive(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("vip", priority=100))
        story.submit(a_job("b"))
        assert story.state("b") is JobState.QUEUED
        assert story.machine.job("vip").exclusive

    def test_priority_99_may_share(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("almost", priority=99))
        story.submit(a_job("b"))
        assert story.placed("b").shared


def shares(resident: JobSpec, newcomer: JobSpec, *, rules: Rules | None = None) -> bool:
    """Tell whether `newcomer` is placed beside `resident` on the only GPU."""
    story = Script(a_node("n1", 1), rules=rules).run(resident).submit(newcomer)
    story.check()
    return story.state(newcomer.job_id) is JobState.STARTING


class TestR2Gates:
    @pytest.mark.parametrize(("util", "allowed"), [(0.84, True), (0.85, False), (0.9, False)])
    def test_utilisation_before_the_placement_is_below_the_threshold(
        self, *, util: float, allowed: bool
    ) -> None:
        assert shares(a_job("a", util=util), a_job("b", util=0.05)) is allowed

    @pytest.mark.parametrize(("busy", "allowed"), [(0.84, True), (0.85, False)])
    def test_memory_busy_before_the_placement_is_below_the_threshold(
        self, *, busy: float, allowed: bool
    ) -> None:
        assert shares(a_job("a", busy=busy), a_job("b", busy=0.9)) is allowed

    @pytest.mark.parametrize(("mem_gib", "allowed"), [(7.5, True), (7.51, False)])
    def test_memory_with_the_newcomer_leaves_the_headroom(
        self, *, mem_gib: float, allowed: bool
    ) -> None:
        # 16 GiB less the headroom of 1 GiB is room for 7.5 + 7.5.
        assert shares(a_job("a", mem_gib=7.5), a_job("b", mem_gib=mem_gib)) is allowed

    def test_headroom_is_a_twentieth_of_a_large_gpu(self) -> None:
        story = Script(a_node("n1", 1, mem_gib=80)).run(a_job("a", mem_gib=38))
        story.submit(a_job("b", mem_gib=38.1))
        assert story.state("b") is JobState.QUEUED, "80 GiB less 4 GiB"

    @pytest.mark.parametrize("missing", ["util", "busy", "mem_gib"])
    @pytest.mark.parametrize("whose", ["resident", "newcomer"])
    def test_what_was_never_measured_refuses(self, missing: str, whose: str) -> None:
        nothing: dict[str, Any] = {missing: None}
        known, unknown = a_job("a"), a_job("b", **nothing)
        pair = (unknown, known) if whose == "resident" else (known, unknown)
        # Memory-busy of the newcomer is no gate: it counts before the placement.
        assert shares(*pair) is (whose == "newcomer" and missing == "busy")

    def test_having_run_cleanly_together_is_evidence_that_it_fits(self) -> None:
        seen = [an_observation("a", ("b",), 1.1), an_observation("b", ("a",), 1.1)]
        story = Script(a_node("n1", 1), history=seen)
        story.run(
            a_job("a", mem_gib=None, util=None, busy=None),
        ).at(100.0).epoch("a")
        story.submit(a_job("b", mem_gib=None, util=None, busy=None))
        gate = story.placed("b").gates[0]
        assert gate.by_evidence
        assert gate.util_ratio is None

    @pytest.mark.parametrize("degree", [1, 2, 3, 4])
    def test_at_most_k_jobs_on_a_gpu(self, degree: int) -> None:
        story = Script(a_node("n1", 1), rules=Rules(max_degree=degree))
        for number in range(5):
            job = a_job(f"j{number}", util=0.05)
            story.at(story.now_s + 1.0).submit(job)
            if story.state(job.job_id) is JobState.STARTING:
                story.start(job.job_id)
            story.now_s += 100.0
            for resident in story.machine.snapshot().gpus["n1-0"].residents:
                story.epoch(resident)
            story.now_s += 100.0
            for resident in story.machine.snapshot().gpus["n1-0"].residents:
                story.epoch(resident)
        assert len(story.machine.snapshot().gpus["n1-0"].residents) == degree

    @pytest.mark.parametrize(
        ("a", "b", "allowed"),
        [
            ({"share_with": ShareWith.ANY}, {"share_with": ShareWith.ANY, "user": "x"}, True),
            ({"share_with": ShareWith.ANY}, {"user": "x"}, False),
            ({"user": "x"}, {"user": "x"}, True),
            ({}, {}, True),
            ({"share_with": ShareWith.NONE}, {"share_with": ShareWith.ANY}, False),
            (
                {"share_with": ShareWith.SAME_GROUP, "group": "g", "user": "x"},
                {"share_with": ShareWith.SAME_GROUP, "group": "g", "user": "y"},
                True,
            ),
            (
                {"share_with": ShareWith.SAME_GROUP, "group": "g"},
                {"share_with": ShareWith.ANY, "group": "h"},
                False,
            ),
        ],
    )
    def test_both_must_accept_each_other(
        self, *, a: dict[str, Any], b: dict[str, Any], allowed: bool
    ) -> None:
        assert shares(a_job("a", **a), a_job("b", **b)) is allowed
        assert shares(a_job("b", **b), a_job("a", **a)) is allowed

    @pytest.mark.parametrize(
        "alone",
        [
            {"exclusive": True},
            {"checkpoint_scope": CheckpointScope.NONE},
            {"epochs": None},
            {"workload": None},
            {"epoch_s": None},
        ],
    )
    def test_some_jobs_never_share(self, alone: dict[str, Any]) -> None:
        assert not shares(a_job("a", **alone), a_job("b"))
        assert not shares(a_job("b"), a_job("a", **alone))

    def test_readings_count_as_their_mean_over_a_minute(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", util=0.2))
        story.at(10.0).read(0.99, "n1-0").at(30.0).read(0.8, "n1-0")
        story.submit(a_job("b", submit_s=30.0))
        assert story.state("b") is JobState.QUEUED, "mean 0.895"
        story.at(75.0).read(0.7, "n1-0")
        assert story.placed("b").gates[0].util_ratio == pytest.approx(0.75), "0.99 is too old"

    def test_the_sum_of_solo_means_counts_where_it_is_higher(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", util=0.9))
        story.at(10.0).read(0.1, "n1-0").submit(a_job("b", submit_s=10.0))
        assert story.state("b") is JobState.QUEUED

    def test_a_node_that_reports_must_be_fresh(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a"))
        story.at(10.0).read(0.2, "n1-0").at(40.1).submit(a_job("b", submit_s=40.1))
        assert story.state("b") is JobState.QUEUED, "read 30.1 s ago"
        story.at(41.0).read(0.2, "n1-0")
        assert story.placed("b").shared

    def test_no_gpu_with_foreign_processes(self) -> None:
        story = Script(a_node("n1", 1)).read(0.0, "n1-0", foreign=True).submit(a_job("a"))
        assert story.state("a") is JobState.QUEUED
        story.read(0.0, "n1-0", foreign=False)
        assert story.state("a") is JobState.STARTING

    def test_node_selector_and_gpu_types(self) -> None:
        story = Script(
            a_node("n1", 1), a_node("n2", 1, gpu_type="a100"), a_node("n3", 1, labels=(("x", "1"),))
        )
        story.submit(
            a_job("typed", gpu_type="a100", gpu_types=("a100",)),
            a_job("labelled", node_selector=(("x", "1"),)),
        )
        assert (story.gpus("typed"), story.gpus("labelled")) == (("n2-0",), ("n3-0",))

    def test_no_new_job_on_a_drained_node(self) -> None:
        story = Script(a_node("n1", 1)).feed(ev.NodeDrained(0.0, "n1")).submit(a_job("a"))
        assert story.state("a") is JobState.QUEUED
        story.feed(ev.NodeDrained(0.0, "n1", drained=False))
        assert story.state("a") is JobState.STARTING


class TestR3Gangs:
    def test_one_node_if_it_fits(self) -> None:
        story = Script(a_node("n1", 1), a_node("n2", 1), a_node("n3", 2)).submit(a_job("a", 2))
        assert story.gpus("a") == ("n3-0", "n3-1")

    def test_whole_nodes_and_a_remainder_on_one_more(self) -> None:
        story = Script(a_node("n1", 2), a_node("n2", 2), a_node("n3", 2)).submit(a_job("a", 5))
        held = story.gpus("a")
        assert len(held) == 5
        assert sorted(sum(g.startswith(n) for g in held) for n in ("n1", "n2", "n3")) == [1, 2, 2]

    def test_no_spread_over_two_partial_nodes(self) -> None:
        story = Script(a_node("n1", 4), a_node("n2", 4)).run(
            a_job("x", exclusive=True), a_job("y", 3, exclusive=True)
        )
        story.run(a_job("z", exclusive=True))
        story.submit(a_job("gang", 4, exclusive=True))
        assert story.state("gang") is JobState.QUEUED

    def test_all_or_nothing(self) -> None:
        story = Script(a_node("n1", 3)).run(a_job("x", exclusive=True)).submit(a_job("gang", 3))
        assert story.gpus("gang") == ()

    def test_types_are_not_mixed(self) -> None:
        node = NodeSpec("n1", (GpuSpec("g0", "v100", GIB), GpuSpec("g1", "a100", GIB)))
        story = Script(node).submit(a_job("a", 2))
        assert story.state("a") is JobState.QUEUED

    def test_memory_is_per_gpu(self) -> None:
        story = Script(a_node("n1", 2)).run(a_job("small", mem_gib=2))
        story.submit(a_job("gang", 2, mem_gib=13.5))
        assert story.state("gang") is JobState.QUEUED, "15.5 of 15 GiB on the first GPU"

    def test_a_mig_instance_is_a_gpu_of_its_own(self) -> None:
        node = NodeSpec(
            "n1", (GpuSpec("MIG-1", "mig-2g", 10 * GIB), GpuSpec("MIG-2", "mig-2g", 10 * GIB))
        )
        job = a_job("a", gpu_type="mig-2g", mem_gib=6, util=None)
        story = Script(node).run(job, a_job("b", gpu_type="mig-2g", mem_gib=6, util=None))
        assert (story.gpus("a"), story.gpus("b")) == (("MIG-1",), ("MIG-2",))


class TestR4Order:
    def test_the_busiest_gpu_below_the_threshold_first(self) -> None:
        story = Script(a_node("n1", 1), a_node("n2", 1))
        story.run(a_job("low", util=0.1, user="x", share_with=ShareWith.ANY))
        story.run(a_job("high", util=0.5, user="y", share_with=ShareWith.SAME_USER))
        assert story.gpus("high") == ("n2-0",)
        story.submit(a_job("new", user="y", share_with=ShareWith.ANY, util=0.1))
        assert story.gpus("new") == ("n2-0",)

    def test_ties_go_by_node_and_then_gpu(self) -> None:
        story = Script(a_node("n2", 2)).run(a_job("x", 2, util=0.4))
        story.feed(ev.NodeDrained(0.0, "n2")).join(a_node("n1", 2)).run(a_job("y", 2, util=0.4))
        story.feed(ev.NodeDrained(0.0, "n2", drained=False)).submit(a_job("new"))
        assert story.gpus("new") == ("n1-0",)

    def test_shared_before_idle_before_waking(self) -> None:
        story = Script(a_node("n1", 1))
        story.join(a_node("n2", 1, can_sleep=True), NodeState.ASLEEP)
        story.run(a_job("a"))
        assert story.gpus("a") == ("n1-0",), "awake before asleep"
        story.submit(a_job("b"))
        assert story.gpus("b") == ("n1-0",), "shared before waking"
        story.submit(a_job("c"))
        assert story.gpus("c") == ("n2-0",), "the first is locked: wake"

    def test_idle_sets_fit_best(self) -> None:
        story = Script(a_node("n1", 4), a_node("n2", 2), a_node("n3", 3)).submit(a_job("a", 2))
        assert story.gpus("a") == ("n2-0", "n2-1")

    def test_a_set_of_unknown_utilisation_comes_last(self) -> None:
        seen = [an_observation("u", ("b",), 1.0), an_observation("b", ("u",), 1.0)]
        story = Script(a_node("n1", 1), history=seen)
        story.run(a_job("u", util=None))
        story.join(a_node("n2", 1)).feed(ev.NodeDrained(0.0, "n1"))
        story.run(a_job("k", util=0.05)).feed(ev.NodeDrained(0.0, "n1", drained=False))
        assert story.gpus("k") == ("n2-0",)
        story.submit(a_job("b"))
        assert story.gpus("b") == ("n2-0",)

    def test_order_by_objective_weighs_energy_and_slowdown(self) -> None:
        seen = [
            an_observation(*pair)
            for pair in (
                ("b", ("fast",), 1.0),
                ("fast", ("b",), 1.0),
                ("b", ("slow",), 1.3),
                ("slow", ("b",), 1.3),
            )
        ]
        for order, expected in (("utilisation", "n1-0"), ("objective", "n2-0")):
            rules = Rules(order=order, alpha=0.0)  # type: ignore[arg-type] # of the literal
            story = Script(a_node("n1", 1), rules=rules, power=PlainPower(), history=seen)
            story.run(a_job("slow", util=0.5)).feed(ev.NodeDrained(0.0, "n1"))
            story.join(a_node("n2", 1)).run(a_job("fast", util=0.3))
            story.feed(ev.NodeDrained(0.0, "n1", drained=False)).submit(a_job("b", util=0.1))
            assert story.gpus("b") == (expected,), order


def test_every_placement_of_one_pass_sees_those_before_it() -> None:
    machine = SchedulerMachine()
    machine.step(ev.NodeJoined(0.0, a_node("n1", 1)))
    for name in ("a", "b", "c"):
        machine.step(ev.JobSubmitted(0.0, a_job(name)))
    machine.step(ev.Tick(0.0))
    placed = [record for record in machine.records if isinstance(record, Placed)]
    assert [(p.job_id, p.shared) for p in placed] == [("a", False), ("b", True)]
    assert a_profile().epoch_s == 100.0
