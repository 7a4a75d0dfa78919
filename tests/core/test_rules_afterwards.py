"""R11 starvation, R12 eviction, R13 out of memory, R14 failures, R15 nodes, R16-R18."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.decisions import AtRisk, Evicted, Ignored, Requeued, Reserved, Verdict, Waits
from eaco_core.effects import KillJob, SleepNode, StartJob, StopAtEpochBoundary, WakeNode
from eaco_core.errors import EventRefused
from eaco_core.jobs import CheckpointScope, FailureReason, JobState
from eaco_core.policies import policy_named
from eaco_core.rules import GIB, Rules
from eaco_core.testing import Script, a_job, a_node, an_observation


class TestR11Starvation:
    def waiting(self, starvation_s: float = 3600.0) -> Script:
        """Let `gang` wait for two GPUs, of which one is busy until 1000 s."""
        story = Script(a_node("n1", 2), rules=Rules(starvation_s=starvation_s))
        story.run(a_job("busy", exclusive=True))
        return story.submit(a_job("gang", 2, exclusive=True, epochs=1))

    def test_after_an_hour_of_waiting_a_reservation(self) -> None:
        story = self.waiting().at(3599.0).tick()
        assert story.records(Reserved) == []
        story.at(3600.0).tick()
        assert set(story.told(Reserved).gpus) == {"n1-0", "n1-1"}

    def test_the_machine_wants_a_tick_for_it(self) -> None:
        assert self.waiting().machine.next_wakeup_s == 3600.0

    def test_it_starts_when_the_last_of_its_gpus_is_free_by_the_bounds(self) -> None:
        story = self.waiting(starvation_s=60.0).at(60.0).tick()
        # Ten epochs of 100 s, the first of which began at 0 s.
        assert story.told(Reserved).start_s == 1000.0

    @pytest.mark.parametrize(("epochs", "placed"), [(8, True), (9, False)])
    def test_a_later_job_may_use_them_only_if_it_ends_before(
        self, *, epochs: int, placed: bool
    ) -> None:
        story = self.waiting(starvation_s=60.0).at(60.0).tick()
        # By now the reservation starts at 1000 s; 8 epochs end at 940 s, 9 at 1045 s.
        story.at(100.0).epoch("busy")
        story.submit(a_job("short", submit_s=100.0, exclusive=True, epochs=epochs, epoch_s=105.0))
        assert (story.state("short") is JobState.STARTING) is placed

    def test_an_unknown_end_never_fits_before(self) -> None:
        story = self.waiting(starvation_s=60.0).at(60.0).tick()
        story.submit(a_job("open", submit_s=60.0, epochs=None))
        assert story.state("open") is JobState.QUEUED

    def test_earlier_waits_count(self) -> None:
        story = Script(a_node("n1", 1), rules=Rules(starvation_s=100.0))
        story.run(a_job("x", exclusive=True)).submit(a_job("y", exclusive=True))
        story.at(60.0).finish("x").release("x").start("y")
        story.submit(a_job("vip", submit_s=60.0, priority=100))
        story.at(70.0).fail("y", FailureReason.NODE_LOST).release("y")
        assert story.gpus("vip") == ("n1-0",)
        story.start("vip").at(110.0).tick()
        assert story.told(Reserved).job_id == "y", "60 s, then 40 s more"

    def test_the_oldest_of_the_highest_priority_holds_it(self) -> None:
        story = self.waiting(starvation_s=60.0)
        story.at(1.0).submit(a_job("vip", 2, submit_s=1.0, priority=1, exclusive=True))
        story.at(60.0).tick()
        assert story.told(Reserved).job_id == "gang"
        story.at(61.0).tick()
        assert story.told(Reserved).job_id == "vip"

    def test_it_ends_when_its_job_is_placed_or_cancelled(self) -> None:
        story = self.waiting(starvation_s=60.0).at(60.0).tick()
        story.submit(a_job("later", submit_s=60.0, exclusive=True, epochs=90))
        assert story.state("later") is JobState.QUEUED
        story.cancel("gang")
        assert story.gpus("later") == ("n1-1",)


class TestR12Afterwards:
    def settled(self, *, deadline_s: float = 1300.0) -> Script:
        """Settle `b` beside `a`, whose deadline leaves room for 10 epochs of 120 s or so."""
        story = Script(a_node("n1", 1)).run(a_job("a", deadline_s=deadline_s), a_job("b"))
        story.at(100.0).epoch("a").epoch("b")
        assert story.state("b") is JobState.SETTLED
        return story

    def test_the_latest_co_resident_is_stopped_when_a_deadline_would_be_missed(self) -> None:
        # Epochs of 100 and 160 s: median 130; 260 + 8 x 130 x 1.05 = 1352.
        story = self.settled().at(260.0).epoch("a")
        assert story.told(Evicted).victim_id == "b"
        assert story.told(Evicted).predicted_end_s == pytest.approx(260 + 8 * 130 * 1.05)
        assert [command.job_id for command in story.commands(StopAtEpochBoundary)] == ["b"]
        assert story.state("b") is JobState.STOPPING
        story.at(300.0).epoch("b").stop("b").release("b")
        assert story.state("b") is not JobState.STOPPING

    def test_not_while_the_median_of_three_epochs_says_that_it_holds(self) -> None:
        story = self.settled(deadline_s=1400.0).at(200.0).epoch("a").at(390.0).epoch("a")
        # 100, 100, 190: median 100; 390 + 7 x 105 = 1125.
        assert story.records(Evicted) == []

    def test_nothing_is_done_for_a_job_that_is_late_anyway(self) -> None:
        # 560 + 8 x 100 alone is 1360.
        assert self.settled().at(560.0).epoch("a").records(Evicted) == []

    def test_the_latest_started_goes_first(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", deadline_s=1900.0), a_job("b"))
        story.at(100.0).epoch("a").epoch("b").run(a_job("c"))
        story.at(200.0).epoch("a").epoch("b").epoch("c")
        assert story.state("c") is JobState.SETTLED
        # Epochs of 100, 100 and 100 s, then two of 300 s: median 300; 800 + 6 x 315 = 2690.
        story.at(500.0).epoch("a").at(800.0).epoch("a")
        assert story.told(Evicted).victim_id == "c", "beside b alone it ends at 1550 s"
        assert story.state("b") is JobState.SETTLED

    def test_nobody_is_stopped_in_vain_it_is_at_risk_and_that_is_told_once(self) -> None:
        # Beside b or c alone it was once seen at 1.5 times, so one eviction does not help.
        seen = [an_observation("a", ("b",), 1.5), an_observation("a", ("c",), 1.5)]
        story = Script(a_node("n1", 1), history=seen)
        story.run(a_job("a", deadline_s=1900.0), a_job("b"))
        story.at(100.0).epoch("a").epoch("b").run(a_job("c"))
        story.at(200.0).epoch("a").epoch("b").epoch("c")
        assert story.state("c") is JobState.SETTLED
        # Epochs of 100, 250 and 550 s: 1000 + 6 x 262.5 = 2575; beside one 1000 + 6 x 157.5.
        story.at(450.0).epoch("a").at(1000.0).epoch("a")
        assert story.records(Evicted) == []
        assert story.told(AtRisk).job_id == "a"
        story.at(1100.0).epoch("a")
        assert len(story.records(AtRisk)) == 1


class TestR13OutOfMemory:
    def test_while_sharing_it_is_requeued_and_runs_alone_next(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b"))
        story.at(50.0).fail("b", FailureReason.OUT_OF_MEMORY, 9 * GIB).release("b")
        assert story.machine.job("b").exclusive
        assert story.state("b") is JobState.QUEUED
        assert story.told(Requeued).reason == "failed: out_of_memory"

    def test_the_measured_peak_enters_the_history(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", mem_gib=7), a_job("b"))
        story.at(50.0).fail("b", FailureReason.OUT_OF_MEMORY, 9 * GIB)
        story.cancel("b").release("b")
        story.submit(a_job("b2", workload="b", submit_s=50.0))
        assert story.state("b2") is JobState.QUEUED, "7 + 9 of 15 GiB"

    def test_alone_it_is_a_failure_like_any_other(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a"))
        story.at(50.0).fail("a", FailureReason.OUT_OF_MEMORY).release("a")
        assert story.state("a") is JobState.FAILED

    def test_unknown_memory_closes_the_gpus_for_one_epoch(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", mem_gib=None)).submit(a_job("b"))
        assert story.state("b") is JobState.QUEUED
        story.at(100.0).epoch("a", peak_mem_bytes=3 * GIB)
        assert story.placed("b").shared


class TestR14Failures:
    def test_an_exit_is_terminal(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).at(50.0).fail("a").release("a")
        assert story.state("a") is JobState.FAILED

    def test_after_max_restarts(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", max_restarts=1))
        story.at(50.0).fail("a").release("a")
        assert story.state("a") is JobState.STARTING
        story.start("a").at(90.0).fail("a").release("a")
        assert story.state("a") is JobState.FAILED

    @pytest.mark.parametrize("reason", [FailureReason.NODE_LOST, FailureReason.CO_TENANT])
    def test_what_is_not_its_fault_is_not_counted(self, reason: FailureReason) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a"))
        for t_s in (50.0, 100.0, 150.0):
            story.at(t_s).fail("a", reason).release("a").start("a")
        assert story.machine.job("a").attempt == 4

    def test_it_resumes_from_its_last_checkpoint(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).at(100.0).epoch("a")
        story.at(150.0).fail("a", FailureReason.CO_TENANT).release("a")
        assert story.commands(StartJob)[0].resume_epoch == 1

    @pytest.mark.parametrize(
        ("scope", "resumes_at"),
        [(CheckpointScope.SHARED, 1), (CheckpointScope.NODE, 0), (CheckpointScope.NONE, 0)],
    )
    def test_a_lost_node_takes_its_checkpoints_along(
        self, scope: CheckpointScope, resumes_at: int
    ) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", checkpoint_scope=scope))
        story.at(100.0).epoch("a").feed(ev.NodeLost(100.0, "n1"))
        story.join(a_node("n2", 1))
        assert story.commands(StartJob)[0].resume_epoch == resumes_at

    def test_a_checkpoint_on_a_node_pins_the_job_to_it(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", checkpoint_scope=CheckpointScope.NODE))
        story.at(100.0).epoch("a").feed(ev.NodeDrained(100.0, "n1")).join(a_node("n2", 1))
        story.fail("a", FailureReason.CO_TENANT).release("a")
        assert story.state("a") is JobState.QUEUED
        story.feed(ev.NodeDrained(100.0, "n1", drained=False))
        assert story.gpus("a") == ("n1-0",)

    def test_a_gang_keeps_its_gpus_elsewhere_until_they_are_released(self) -> None:
        story = Script(a_node("n1", 1), a_node("n2", 1)).run(a_job("gang", 2, exclusive=True))
        story.at(10.0).feed(ev.NodeLost(10.0, "n1"))
        assert story.state("gang") is JobState.STOPPING
        assert story.gpus("gang") == ("n2-0",)
        assert [command.job_id for command in story.commands(KillJob)] == ["gang"]
        story.submit(a_job("b", submit_s=10.0))
        assert story.state("b") is JobState.QUEUED
        story.release("gang")
        assert story.gpus("b") == ("n2-0",)

    def test_a_lost_gpu_takes_its_jobs_along_and_is_not_used_again(self) -> None:
        story = Script(a_node("n1", 2)).run(a_job("a"))
        story.at(10.0).feed(ev.GpuLost(10.0, "n1", "n1-0"))
        assert story.gpus("a") == ("n1-1",)

    def test_silence_is_unknown_then_lost_then_requeued(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).at(10.0)
        story.feed(ev.JobUnknown(10.0, "a", 1)).submit(a_job("b", submit_s=10.0))
        assert story.state("a") is JobState.SETTLED
        assert story.state("b") is JobState.QUEUED, "nobody joins an unknown job"
        story.now_s = 310.0
        assert [command.job_id for command in story.tick().commands(KillJob)] == ["a"]
        assert story.gpus("a") == ("n1-0",), "booked until it is proven free"
        story.release("a")
        assert story.told(Requeued).job_id == "a"

    def test_a_sign_of_life_ends_the_doubt(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).at(10.0)
        story.feed(ev.JobUnknown(10.0, "a", 1)).at(100.0).epoch("a").at(400.0).tick()
        assert story.state("a") is JobState.SETTLED

    def test_a_start_that_fails_three_times_is_a_failure(self) -> None:
        story = Script(a_node("n1", 1)).submit(a_job("a"))
        for attempt in (1, 2, 3):
            assert story.state("a") is JobState.STARTING
            story.feed(ev.StartFailed(0.0, "a", attempt, "no image"))
        assert story.state("a") is JobState.FAILED

    def test_started_on_other_gpus_it_is_stopped(self) -> None:
        story = Script(a_node("n1", 2)).submit(a_job("a"))
        story.feed(ev.JobStarted(0.0, "a", 1, ("n1-1",)))
        assert [command.job_id for command in story.commands(KillJob)] == ["a"]

    def test_a_cancelled_job_holds_nothing_and_never_starts(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).at(5.0).cancel("a")
        assert [command.job_id for command in story.commands(KillJob)] == ["a"]
        story.release("a").at(5000.0).tick()
        assert story.state("a") is JobState.CANCELLED
        assert story.gpus("a") == ()


class TestR15Nodes:
    def asleep(self) -> Script:
        story = Script()
        return story.join(a_node("n1", 1, can_sleep=True), NodeState.ASLEEP)

    def test_idle_for_five_minutes_it_sleeps(self) -> None:
        story = Script(a_node("n1", 1, can_sleep=True)).run(a_job("a")).at(1000.0)
        story.finish("a").release("a")
        assert story.machine.next_wakeup_s == 1300.0
        story.now_s = 1300.0
        assert story.tick().commands(SleepNode) == [SleepNode("n1", 1)]

    def test_but_awake_for_ten_minutes_at_least(self) -> None:
        story = Script(a_node("n1", 1, can_sleep=True))
        assert story.machine.next_wakeup_s == 600.0

    def test_only_where_a_controller_exists(self) -> None:
        assert Script(a_node("n1", 1)).machine.next_wakeup_s is None

    def test_a_job_keeps_it_awake(self) -> None:
        story = Script(a_node("n1", 2, can_sleep=True)).run(a_job("a")).at(5000.0).tick()
        assert story.machine.snapshot().nodes["n1"][1] is NodeState.AWAKE

    def test_a_sleeping_node_is_woken_for_its_job_and_booked_at_once(self) -> None:
        story = self.asleep().submit(a_job("a"))
        assert story.commands(WakeNode) == [WakeNode("n1", 1)]
        assert story.commands(StartJob) == []
        assert story.placed("a").start_s == 60.0
        story.submit(a_job("b", exclusive=True))
        assert story.state("b") is JobState.QUEUED, "the node is reserved for a"
        story.at(60.0).feed(ev.NodeAwake(60.0, "n1"))
        assert [command.job_id for command in story.commands(StartJob)] == ["a"]

    def test_not_awake_after_twice_its_time_it_is_out(self) -> None:
        story = self.asleep().submit(a_job("a"))
        story.at(119.0).tick()
        assert story.state("a") is JobState.STARTING
        story.now_s = 120.0
        story.tick()
        assert story.machine.snapshot().nodes["n1"][1] is NodeState.OUT
        assert story.state("a") is JobState.QUEUED
        story.at(130.0).feed(ev.NodeAwake(130.0, "n1"))
        assert story.state("a") is JobState.QUEUED, "it has to join again"
        story.join(a_node("n1", 1, can_sleep=True))
        assert story.state("a") is JobState.STARTING

    def test_a_wake_up_that_fails(self) -> None:
        story = self.asleep().submit(a_job("a")).at(30.0).feed(ev.WakeFailed(30.0, "n1"))
        assert story.state("a") is JobState.QUEUED

    def test_nobody_is_placed_on_a_node_that_falls_asleep(self) -> None:
        story = Script(a_node("n1", 1, can_sleep=True))
        story.now_s = 600.0
        story.tick().submit(a_job("a", submit_s=600.0))
        assert story.state("a") is JobState.QUEUED
        story.at(610.0).feed(ev.NodeAsleep(610.0, "n1"))
        assert story.commands(WakeNode) == [WakeNode("n1", 1)]

    @pytest.mark.parametrize("policy", ["eaco", "eaco-paper", "fifo", "fifo-skip"])
    def test_alike_under_every_policy(self, policy: str) -> None:
        story = Script(a_node("n1", 1, can_sleep=True), policy=policy_named(policy))
        assert story.machine.next_wakeup_s == 600.0


class TestR16Time:
    def test_time_never_goes_back(self) -> None:
        story = Script(a_node("n1", 1)).at(10.0).tick()
        with pytest.raises(EventRefused, match="time does not go back"):
            story.feed(ev.Tick(9.0))

    @pytest.mark.parametrize("t_s", [float("inf"), 1e308 * 10])
    def test_time_is_finite(self, t_s: float) -> None:
        with pytest.raises((EventRefused, ValueError)):
            Script().feed(ev.Tick(t_s))

    def test_a_clock_anchor_changes_nothing(self) -> None:
        story = Script(a_node("n1", 1)).feed(ev.ClockAnchored(0.0, 1.7e9))
        assert story.machine.seq == 2
        assert story.effects == ()


class TestR17Fifo:
    def test_strict_order_the_head_blocks(self) -> None:
        story = Script(a_node("n1", 2), policy=policy_named("fifo"))
        story.run(a_job("a")).submit(a_job("big", 2), a_job("small"))
        assert story.state("small") is JobState.QUEUED
        assert story.why("small") == "waits behind the first job of the queue"

    def test_skip_the_first_that_fits(self) -> None:
        story = Script(a_node("n1", 2), policy=policy_named("fifo-skip"))
        story.run(a_job("a")).submit(a_job("big", 2), a_job("small"))
        assert story.gpus("small") == ("n1-1",)

    @pytest.mark.parametrize("policy", ["fifo", "fifo-skip"])
    def test_exclusive_and_best_fit(self, policy: str) -> None:
        story = Script(a_node("n1", 4), a_node("n2", 2), policy=policy_named(policy))
        story.run(a_job("a", util=0.01), a_job("b", util=0.01))
        assert (story.gpus("a"), story.gpus("b")) == (("n2-0",), ("n2-1",))


class TestR18Explain:
    def test_each_wait_has_its_reason_once(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a", exclusive=True)).submit(a_job("b"))
        story.at(5.0).submit(a_job("c", submit_s=5.0))
        assert [record.job_id for record in story.records(Waits)] == ["b", "c"]
        assert "no idle set" in story.why("b")

    def test_each_shared_placement_has_the_source_of_its_bounds(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b"))
        assert {bound.source.value for bound in story.placed("b").affected} == {"law"}

    def test_a_verdict_has_its_evidence(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b"))
        story.at(110.0).epoch("a").at(120.0).epoch("b")
        verdict = story.told(Verdict)
        assert {e.job_id: e.epoch_s for e in verdict.evidence} == {"a": 110.0, "b": 120.0}
        assert story.records(Ignored) == []
