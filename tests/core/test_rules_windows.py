"""R9 the window, R10 keep or undo."""

from __future__ import annotations

from typing import Any

import pytest

from eaco_core import events as ev
from eaco_core import verify
from eaco_core.decisions import Evidence, Reserved, Verdict, WindowRestarted
from eaco_core.effects import KillJob, RecordObservation, StopAtEpochBoundary
from eaco_core.jobs import JobState
from eaco_core.rules import Rules
from eaco_core.testing import Script, a_job, a_node, an_observation


def pair(*, rules: Rules | None = None, a: dict[str, Any], b: dict[str, Any]) -> Script:
    """Start `a` at 0 and `b` beside it at 0; both have ten epochs of 100 s alone."""
    story = Script(a_node("n1", 1), rules=rules)
    return story.run(a_job("a", **a), a_job("b", **b))


def trio(rules: Rules | None = None) -> Script:
    """Settle `a` and `b`; start the newcomer `c` beside both at 100 s."""
    story = pair(rules=rules, a={}, b={}).at(100.0).epoch("a").epoch("b")
    assert story.state("b") is JobState.SETTLED
    return story.run(a_job("c"))


class TestR9Window:
    def test_it_opens_when_the_newcomer_starts(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).submit(a_job("b"))
        story.at(100.0).epoch("a")
        assert story.state("b") is JobState.STARTING
        story.start("b")
        assert story.state("b") is JobState.OBSERVING

    def test_an_epoch_that_began_before_it_does_not_count(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a")).at(50.0).run(a_job("b", submit_s=50.0))
        story.at(100.0).epoch("a").at(150.0).epoch("b")
        assert story.state("b") is JobState.OBSERVING, "a's epoch began at 0"
        story.at(200.0).epoch("a")
        assert story.state("b") is JobState.SETTLED

    def test_every_affected_job_must_give_an_epoch(self) -> None:
        story = trio().at(200.0).epoch("c").epoch("a")
        assert story.state("c") is JobState.OBSERVING
        story.epoch("b")
        assert story.state("c") is JobState.SETTLED
        assert {seen.job_id for seen in story.told(Verdict).evidence} == {"a", "b", "c"}

    def test_an_epoch_that_is_not_comparable_does_not_count(self) -> None:
        story = pair(a={}, b={}).at(100.0).epoch("a").epoch("b", clean=False)
        assert story.state("b") is JobState.OBSERVING
        story.at(200.0).epoch("b")
        assert story.state("b") is JobState.SETTLED

    def test_short_epochs_are_added_up_to_30_seconds(self) -> None:
        story = pair(a={}, b={"epoch_s": 8.0, "epochs": 90})
        for count in (1, 2, 3):
            story.at(9.0 * count).epoch("b")
        story.at(100.0).epoch("a")
        assert story.state("b") is JobState.OBSERVING, "27 s of b"
        story.epoch("b")
        assert story.state("b") is JobState.SETTLED

    def test_the_evidence_of_short_epochs_is_their_mean(self) -> None:
        story = pair(a={}, b={"epoch_s": 10.0, "epochs": 90})
        story.at(10.0).epoch("b").at(22.0).epoch("b").at(36.0).epoch("b")
        assert story.commands(RecordObservation)[0].observation.epoch_s == pytest.approx(12.0)

    def test_every_gpu_of_every_affected_job_is_locked(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("gang1"))
        story.join(a_node("n2", 1)).submit(a_job("gang", 2)).start("gang")
        story.at(100.0).epoch("gang1").epoch("gang")
        story.feed(ev.NodeDrained(100.0, "n1")).run(a_job("new"))
        assert story.gpus("new") == ("n2-0",)
        (window,) = story.machine.snapshot().windows
        assert set(window.locked_gpus) == {"n1-0", "n2-0"}, "also where only the gang is"
        story.feed(ev.NodeDrained(100.0, "n1", drained=False)).submit(a_job("other"))
        assert story.state("other") is JobState.QUEUED

    def test_the_lock_goes_when_the_newcomer_settles(self) -> None:
        story = pair(a={}, b={}).submit(a_job("c"))
        assert story.state("c") is JobState.QUEUED
        story.at(100.0).epoch("a").epoch("b")
        assert story.placed("c").shared

    def test_a_resident_that_ends_voids_the_evidence(self) -> None:
        story = trio().at(190.0).epoch("c").finish("b")
        assert story.told(WindowRestarted).restarts == 1
        story.at(200.0).epoch("a").at(290.0).epoch("c")
        assert story.state("c") is JobState.OBSERVING, "a's epoch began before b left"
        story.at(300.0).epoch("a")
        assert story.state("c") is JobState.SETTLED

    def test_an_epoch_that_runs_while_a_resident_is_cancelled_is_of_the_old_window(self) -> None:
        story = trio().at(190.0).cancel("b").epoch("c").at(200.0).epoch("a")
        assert story.told(WindowRestarted).restarts == 1
        story.at(290.0).epoch("c")
        assert story.state("c") is JobState.OBSERVING, "a's epoch began before the restart"
        story.at(300.0).epoch("a")
        assert story.state("c") is JobState.SETTLED
        story.check()

    def test_nobody_left_settles_at_once(self) -> None:
        story = pair(a={}, b={}).at(50.0).finish("a")
        assert story.state("b") is JobState.SETTLED
        assert story.told(Verdict).reason == "no co-resident is left"

    def test_a_restart_costs_no_undo(self) -> None:
        story = trio().at(150.0).finish("b")
        assert story.machine.job("c").undos == 0

    @pytest.mark.parametrize(("epoch_s", "kept"), [(100.0, True), (500.0, False)])
    def test_after_the_last_restart_the_best_epochs_decide(
        self, *, epoch_s: float, kept: bool
    ) -> None:
        story = pair(rules=Rules(window_max_restarts=0), a={}, b={})
        story.at(100.0).epoch("a").epoch("b").run(a_job("c"))
        story.at(100.0 + epoch_s).epoch("c").epoch("a").finish("b")
        verdict = story.told(Verdict)
        assert (verdict.job_id, verdict.keep) == ("c", kept)

    def test_the_newcomer_that_ends_closes_its_window(self) -> None:
        story = pair(a={}, b={}).at(50.0).finish("b")
        assert story.machine.snapshot().windows == ()
        story.release("b").submit(a_job("c"))
        assert story.placed("c").shared


class TestR9EarlyVerdict:
    # Ten epochs and a deadline of 2000 s: an epoch may last D / (1 + 9 x 1.05) = 191.39 s.
    LIMIT_S = 2000.0 / (1 + 9 * 1.05)

    def story(self) -> Script:
        return pair(a={"deadline_s": 2000.0}, b={})

    def test_it_comes_when_the_running_epoch_proves_a_miss_and_not_before(self) -> None:
        story = self.story().at(self.LIMIT_S).tick()
        assert story.state("b") is JobState.OBSERVING
        wakeup_s = story.machine.next_wakeup_s
        assert wakeup_s == pytest.approx(self.LIMIT_S, abs=1e-3)
        assert wakeup_s is not None
        story.at(wakeup_s).tick()
        assert story.state("b") is JobState.STOPPING
        assert story.told(Verdict).t_s == pytest.approx(self.LIMIT_S, abs=1e-3)

    def test_an_epoch_that_ends_just_in_time_is_kept(self) -> None:
        story = self.story().at(self.LIMIT_S - 0.01).epoch("b").epoch("a")
        assert story.told(Verdict).keep

    def test_an_epoch_that_ended_late_undoes_before_others_have_spoken(self) -> None:
        story = self.story()
        story.now_s = self.LIMIT_S + 1.0  # its message comes before the tick
        story.epoch("a")
        assert story.state("b") is JobState.STOPPING
        assert {e.job_id: e.epoch_s is None for e in story.told(Verdict).evidence}["b"]


class TestR10KeepOrUndo:
    def verdict(self, a_epoch_s: float, b_epoch_s: float, **b: object) -> Script:
        story = pair(a={"deadline_s": 1600.0}, b=dict(b))
        first, second = sorted([(a_epoch_s, "a"), (b_epoch_s, "b")])
        return story.at(first[0]).epoch(first[1]).at(second[0]).epoch(second[1])

    def test_kept_while_every_deadline_holds_with_5_percent(self) -> None:
        # 152 + 9 x 152 x 1.05 = 1588
        story = self.verdict(152.0, 130.0)
        assert story.told(Verdict).keep
        assert story.state("b") is JobState.SETTLED

    def test_undone_if_a_deadline_does_not_hold(self) -> None:
        # 154 + 9 x 154 x 1.05 = 1609.3
        story = pair(a={"deadline_s": 1600.0}, b={}).at(130.0).epoch("b")
        story.now_s = 154.0
        story.epoch("a")
        assert story.told(Verdict).keep is False
        assert [command.job_id for command in story.commands(StopAtEpochBoundary)] == ["b"]
        assert story.state("b") is JobState.STOPPING
        assert story.state("a") is JobState.SETTLED, "residents keep their state"

    def test_undone_if_together_they_do_less_than_one_job(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b")
        assert story.told(Verdict).throughput_sum == pytest.approx(200 / 210)
        assert [c.job_id for c in story.commands(StopAtEpochBoundary)] == ["b"]

    def test_gpus_stay_booked_and_locked_until_they_are_released(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b").submit(a_job("c"))
        assert story.gpus("b") == ("n1-0",)
        assert story.state("c") is JobState.QUEUED
        story.at(420.0).epoch("b").stop("b")
        assert story.state("c") is JobState.QUEUED
        story.release("b")
        assert story.placed("c").shared

    def test_the_epoch_until_the_stop_is_progress(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b")
        story.at(420.0).epoch("b").stop("b").release("b")
        assert story.machine.job("b").epochs_done == 2

    def test_killed_after_twice_its_upper_epoch_and_a_minute(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b")
        upper_s = 1.05 * 210.0
        limit_s = 210.0 + 2 * upper_s + 60.0
        assert story.machine.next_wakeup_s == pytest.approx(limit_s)
        story.at(limit_s - 0.1).tick()
        assert story.commands(KillJob) == []
        story.at(limit_s + 0.001).tick()
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b")
        story.now_s = limit_s
        assert [command.job_id for command in story.tick().commands(KillJob)] == ["b"]

    def test_the_kill_loses_that_epoch_only(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b").at(800.0).release("b")
        assert story.machine.job("b").epochs_done == 1
        assert story.state("b") is not JobState.STOPPING

    def test_the_same_signature_is_not_tried_again(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b").at(420.0).stop("b").release("b")
        assert story.state("b") is JobState.QUEUED
        assert "undone before" in story.why("b")

    def test_nor_by_another_job_of_the_workload_beside_another_of_the_residents(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("a1", workload="a"), a_job("b1", workload="b"))
        story.at(210.0).epoch("a1").epoch("b1").at(420.0).stop("b1")
        story.cancel("b1").release("b1")
        story.feed(ev.NodeDrained(420.0, "n1")).join(a_node("n2", 1))
        story.run(a_job("a2", workload="a")).submit(a_job("b2", workload="b"))
        assert story.state("b2") is JobState.QUEUED
        assert "undone before" in story.why("b2")

    def test_but_again_once_its_bound_has_fallen(self) -> None:
        # Undone in mid-epoch, so nothing was observed: the bound is still that of the law.
        story = Script(a_node("n1", 1)).run(
            a_job("a1", workload="a", deadline_s=1450.0), a_job("b1", workload="b")
        )
        story.at(140.0).tick()
        assert story.told(Verdict).keep is False
        story.at(150.0).stop("b1", 0).release("b1")
        assert "undone before" in story.why("b1")
        # Elsewhere a superset runs well, with an observation of each.
        seen = [an_observation("a", ("b", "c"), 1.0), an_observation("b", ("a", "c"), 1.0)]
        for observation in seen:
            story.machine._c.evidence.add(observation)
        story.machine._c.ledger.touch_all()
        story.at(151.0).submit(a_job("b2", workload="b", submit_s=151.0))
        placed = story.placed("b1")
        assert (placed.attempt, placed.shared) == (2, True)
        assert max(bound.upper_ratio for bound in placed.affected) == pytest.approx(1.05)

    def test_after_two_undos_only_alone(self) -> None:
        story = Script(a_node("n1", 1)).run(a_job("x")).feed(ev.NodeDrained(0.0, "n1"))
        story.join(a_node("n2", 1)).run(a_job("y")).feed(ev.NodeDrained(0.0, "n2"))
        story.join(a_node("n3", 1)).run(a_job("z"))
        for node_id in ("n1", "n2"):
            story.feed(ev.NodeDrained(0.0, node_id, drained=False))
        story.run(a_job("b", epochs=30))
        assert story.gpus("b") == ("n1-0",)
        story.at(210.0).epoch("x").epoch("b").at(420.0).epoch("y").stop("b").release("b")
        assert story.gpus("b") == ("n2-0",), "beside y it was not tried yet"
        story.start("b").at(630.0).epoch("y").epoch("b").at(840.0).stop("b").release("b")
        assert story.machine.job("b").undos == 2
        assert story.state("b") is JobState.QUEUED, "not beside z"
        assert "it must run alone" in story.why("b")

    def test_undone_for_its_own_deadline_it_runs_alone_and_holds_a_reservation(self) -> None:
        story = pair(a={}, b={"deadline_s": 1600.0}).at(160.0).epoch("b")
        assert story.told(Verdict).keep is False
        story.at(170.0).stop("b").release("b")
        assert story.machine.job("b").exclusive
        assert story.told(Reserved).job_id == "b"
        assert story.machine.job("b").undos == 1

    def test_candidates_are_computed_again_after_an_undo(self) -> None:
        story = pair(a={}, b={}).at(210.0).epoch("a").epoch("b")
        story.join(a_node("n2", 1)).at(420.0).stop("b").release("b")
        assert story.gpus("b") == ("n2-0",), "the exclusive set that came meanwhile"


class TestVerify:
    def seen(self, **changes: float | None) -> Evidence:
        fields: dict[str, Any] = {
            "job_id": "a",
            "epoch_s": 100.0,
            "ratio": 1.0,
            "epochs_left": 10,
            "deadline_s": 1050.0,
            "late": False,
        }
        fields.update(changes)
        return Evidence(**fields)

    def test_keep_at_the_limit(self) -> None:
        assert verify(0.0, [self.seen()], Rules()).keep is True
        assert verify(0.1, [self.seen()], Rules()).keep is False

    def test_not_decided_while_an_epoch_is_missing(self) -> None:
        assert verify(0.0, [self.seen(epoch_s=None, ratio=None)], Rules()).keep is None

    def test_a_late_job_does_not_bind(self) -> None:
        assert verify(500.0, [self.seen(late=True)], Rules()).keep is True

    def test_throughput(self) -> None:
        slow = self.seen(deadline_s=None, ratio=2.01)
        assert verify(0.0, [slow, slow], Rules()).keep is False
        assert verify(0.0, [self.seen(deadline_s=None, ratio=2.0)] * 2, Rules()).keep is True
