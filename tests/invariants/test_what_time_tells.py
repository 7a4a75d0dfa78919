"""What the checkers conclude from silence and from messages in part, by real histories.

The machine says in no record that a node is out as it did not wake, or that a job is
given up as nobody knows of it: both follow from the rules and the time of a Tick.
"""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.cluster import NodeReading, NodeState
from eaco_core.decisions import Placed, Requeued, Reserved, Waits
from eaco_core.effects import KillJob, StartJob, WakeNode
from eaco_core.invariants import check_history
from eaco_core.jobs import CheckpointScope
from eaco_core.machine import SchedulerMachine
from eaco_core.rules import Rules
from eaco_core.testing import Recorder, a_job, a_node
from eaco_core.testing.histories import HistoryWriter, alone, go, on_trial, seen, undone, verdict


def _recorder(rules: Rules | None = None) -> Recorder:
    return Recorder(SchedulerMachine(rules=rules), watch=False)


def _kept_by(recorder: Recorder) -> bool:
    report = check_history(recorder.lines)
    assert report.ok, report.failed
    return True


# ------------------------------------------------------------- a node that does not wake


def _asleep(wake_s: float, starvation_s: float) -> HistoryWriter:
    """Let a node of one GPU sleep, beside the two of two that are drained."""
    run = HistoryWriter(starvation_s=starvation_s)
    run.add(ev.NodeDrained(0.0, "n1")).add(ev.NodeDrained(0.0, "n2"))
    sleeper = a_node("n3", 1, can_sleep=True, wake_s=wake_s)
    return run.add(ev.NodeJoined(0.0, sleeper, NodeState.ASLEEP))


def _woken_for_a(wake_s: float = 60.0, starvation_s: float = float("inf")) -> HistoryWriter:
    run = _asleep(wake_s, starvation_s).submit("a", 0.0)
    return run.add(ev.Tick(0.0), alone(0.0, "a", "n3-0"), WakeNode("n3", 1))


def test_a_node_that_does_not_wake_in_time_is_out() -> None:
    recorder = _recorder(Rules(starvation_s=600.0))
    node = a_node("n1", 1, can_sleep=True, wake_s=60.0)
    recorder.feed(ev.NodeJoined(0.0, node, NodeState.ASLEEP))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a")))
    for t_s in (0.0, 120.0, 700.0, 900.0):
        recorder.feed(ev.Tick(t_s))
    assert recorder.machine.snapshot().nodes["n1"][1] is NodeState.OUT
    assert _kept_by(recorder)


def test_no_job_may_be_placed_on_a_node_that_did_not_wake() -> None:
    run = _woken_for_a().add(ev.Tick(120.0), Requeued(120.0, "a", 0, "n3 did not wake"))
    assert run.broken() == set()
    run.add(ev.Tick(130.0), alone(130.0, "a", "n3-0", attempt=2))
    assert run.broken() == {"I04"}


@pytest.mark.parametrize(("wake_s", "t_s"), [(60.0, 119.0), (0.2, 0.9)])
def test_a_node_is_given_twice_its_latency_and_at_least_a_second(wake_s: float, t_s: float) -> None:
    run = _woken_for_a(wake_s=wake_s).add(ev.Tick(t_s))
    run.add(ev.NodeAwake(t_s, "n3"), go_n3("a"))
    # Awake in time, it is not out afterwards.
    run.add(ev.JobStarted(t_s, "a", 1)).add(ev.Tick(500.0))
    run.add(ev.EpochCompleted(600.0, "a", 1, 1))
    assert run.broken() == set()


def go_n3(job_id: str, attempt: int = 1) -> object:
    """Start a job on the node that slept."""
    command = go(job_id, attempt=attempt)
    return type(command)(job_id, attempt, 1, (("n3", ("n3-0",)),), 0)


def test_only_a_tick_ends_the_patience_with_a_node() -> None:
    run = _woken_for_a().submit("b", 500.0)
    assert run.add(ev.NodeAwake(501.0, "n3"), go_n3("a")).broken() == set()


@pytest.mark.parametrize("event", [ev.Tick(120.0), ev.WakeFailed(30.0, "n3")])
def test_whoever_was_to_start_there_is_back_in_the_queue_at_once(event: ev.Event) -> None:
    run = _woken_for_a()
    assert run.add(event).broken() == {"I28"}
    run = _woken_for_a().add(event, Requeued(event.t_s, "a", 0, "n3 did not wake"))
    assert run.broken() == set()


def test_another_scheduler_may_be_more_patient() -> None:
    run = HistoryWriter(origin="other").add(ev.NodeDrained(0.0, "n1"))
    sleeper = a_node("n3", 1, can_sleep=True, wake_s=60.0)
    run.add(ev.NodeJoined(0.0, sleeper, NodeState.ASLEEP)).submit("a", 0.0)
    run.add(ev.Tick(0.0), alone(0.0, "a", "n3-0"), WakeNode("n3", 1)).add(ev.Tick(500.0))
    run.add(ev.NodeAwake(501.0, "n3"), go_n3("a"))
    assert run.broken() == set()


# ------------------------------------------------------- a job of which nobody knows


def test_a_resident_that_is_given_up_is_no_co_resident_any_more() -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    for job_id in ("a", "b"):
        recorder.feed(ev.JobSubmitted(0.0, a_job(job_id, epoch_s=900.0)))
        recorder.feed(ev.Tick(0.0))
        recorder.feed(ev.JobStarted(0.0, job_id, 1))
    recorder.feed(ev.JobUnknown(1.0, "a", 1))
    recorder.feed(ev.Tick(301.0))
    assert _kept_by(recorder)


def _a_unknown(until_s: float, *between: ev.Event) -> HistoryWriter:
    """Let b settle without evidence at `until_s`, as a is given up by then."""
    run = on_trial().add(ev.JobUnknown(250.0, "a", 1))
    for event in between:
        run.add(event)
    settles = verdict(until_s, seen(run, "b", None, 9))
    return run.add(ev.Tick(until_s), settles, KillJob("a", 1, 1, "nobody knows"))


def test_a_job_is_given_up_when_its_time_is_over_and_not_before() -> None:
    assert _a_unknown(550.0).broken() == set()
    assert _a_unknown(549.0).broken() == {"I09"}


def test_a_sign_of_life_makes_a_job_known_again() -> None:
    assert _a_unknown(550.0, ev.EpochCompleted(345.0, "a", 1, 3)).broken() == {"I09"}


def test_a_job_that_runs_elsewhere_than_it_was_told_is_given_up() -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    for job_id in ("a", "b"):
        recorder.feed(ev.JobSubmitted(0.0, a_job(job_id)))
        recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(1.0, "b", 1))
    recorder.feed(ev.JobStarted(2.0, "a", 1, ("n1-7",)))
    assert _kept_by(recorder)


# --------------------------------------------------------- an undone job that leaves


def test_an_undone_gang_may_leave_its_gpus_one_by_one() -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", epochs=90, deadline_s=14000.0)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "a", 1))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("c", 2)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "c", 1))
    recorder.feed(ev.EpochCompleted(180.0, "a", 1, 1))
    assert recorder.machine.job("c").undos == 1
    recorder.feed(ev.JobStopped(200.0, "c", 1, 1))
    recorder.feed(ev.GpusReleased(200.0, "c", 1, ("n2-0",)))
    recorder.feed(ev.JobSubmitted(200.0, a_job("d", submit_s=200.0, exclusive=True)))
    recorder.feed(ev.Tick(200.0))
    assert recorder.machine.job("d").gpus == ("n2-0",)
    recorder.feed(ev.GpusReleased(201.0, "c", 1, ("n1-0",)))
    assert _kept_by(recorder)


def test_an_undone_job_is_overdue_at_the_next_tick_only() -> None:
    run = undone()
    del run.lines[run.step(ev.EpochCompleted, -1) :]
    # 2 x 1.25 x 100 s and 60 s after its undo at 370 s, it has not stopped.
    run.add(ev.EpochCompleted(690.0, "b", 1, 2))
    assert run.broken() == set()
    assert run.add(ev.Tick(690.0)).broken() == {"I10"}


# --------------------------------------------------------------- room that is none


def _starving(*before: ev.Event, peak_gib: int = 4) -> HistoryWriter:
    run = HistoryWriter(starvation_s=500.0)
    for event in before:
        run.add(event)
    run.submit("c", 100.0, gpus=2, peak_mem_bytes=peak_gib * 2**30)
    return run.add(ev.Tick(100.0), Waits(100.0, "c", "no set", ())).add(ev.Tick(700.0))


def _used_by_others(node_id: str, gpu_id: str) -> ev.NodeSampled:
    return ev.NodeSampled(50.0, node_id, (NodeReading(gpu_id, 50.0, foreign=True),))


def test_gpus_that_others_use_or_that_are_too_small_are_no_room() -> None:
    others = _used_by_others("n1", "g1"), _used_by_others("n2", "g2")
    assert _starving().broken() == {"I24"}
    assert _starving(others[0]).broken() == {"I24"}
    assert _starving(*others).broken() == set()
    assert _starving(peak_gib=17).broken() == set()


def test_a_job_waits_for_the_node_that_has_its_checkpoint_while_that_is_there() -> None:
    for scope, broken in ((CheckpointScope.NODE, set[str]()), (CheckpointScope.SHARED, {"I24"})):
        run = HistoryWriter(starvation_s=500.0).submit("a", 0.0, checkpoint_scope=scope)
        run.start("a", 0.0, "g0").epochs("a", 1, 1, 110.0, 0.0).add(ev.NodeDrained(120.0, "n1"))
        run.add(ev.JobStopped(130.0, "a", 1, 1))
        run.add(ev.GpusReleased(130.0, "a", 1, ("g0",)), Requeued(130.0, "a", 1, "it stopped"))
        run.add(ev.Tick(130.0), Waits(130.0, "a", "drained", ())).add(ev.Tick(700.0))
        assert run.broken() == broken
        # The checkpoint is gone with its node: the job can begin again anywhere.
        run.add(ev.NodeLost(710.0, "n1")).add(ev.Tick(720.0))
        assert run.broken() == {"I24"}


def test_memory_that_was_seen_counts_like_memory_that_was_declared() -> None:
    run = HistoryWriter().submit("a", 0.0, workload="w").start("a", 0.0, "g0")
    run.add(ev.EpochCompleted(110.0, "a", 1, 1, peak_mem_bytes=17 * 2**30))
    run.submit("b", 120.0, workload="w")
    assert run.add(ev.Tick(120.0)).broken() == set()
    run.add(ev.Tick(130.0), alone(130.0, "b", "g1"), go("b", "g1"))
    assert run.broken() == {"I01"}


def test_a_reservation_is_still_asked_for_where_a_node_is_left() -> None:
    run = _woken_for_a(starvation_s=500.0).add(ev.Tick(120.0), Requeued(120.0, "a", 0, "out"))
    assert run.add(ev.Tick(900.0), Waits(900.0, "a", "no node", ())).broken() == set()
    run.add(ev.NodeJoined(910.0, a_node("n4", 1)))
    assert run.add(ev.Tick(920.0), Waits(920.0, "a", "why not", ())).broken() == {"I24"}
    run.lines.pop()
    held = Reserved(920.0, "a", ("n4-0",), 920.0)
    assert run.add(ev.Tick(920.0), held, _placed_on_n4(), _started_on_n4()).broken() == set()


def _started_on_n4() -> StartJob:
    return StartJob("a", 2, 1, (("n4", ("n4-0",)),), 0)


def _placed_on_n4() -> Placed:
    return alone(920.0, "a", "n4-0", attempt=2)
