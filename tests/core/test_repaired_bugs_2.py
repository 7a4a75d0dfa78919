"""More smallest examples of what was wrong once: epochs and reservations."""

from __future__ import annotations

from eaco_core import events as ev
from eaco_core.decisions import Reserved
from eaco_core.effects import SleepNode
from eaco_core.jobs import JobState
from eaco_core.rules import Rules
from eaco_core.testing import Script, a_job, a_node


def test_an_epoch_from_before_a_resident_started_is_no_evidence() -> None:
    story = Script(a_node("n1", 1)).submit(a_job("a")).submit(a_job("b"))
    story.start("b").at(100.0).epoch("b").start("a")
    story.at(200.0).epoch("a")
    assert story.state("b") is JobState.OBSERVING, "b has not shown an epoch beside a"


def test_a_reservation_on_a_lost_gpu_holds_nobody_up() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True, epochs=None))
    story.submit(a_job("gang", 2, exclusive=True)).at(60.0).tick()
    assert story.told(Reserved).start_s is None
    story.feed(ev.GpuLost(60.0, "n1", "n1-1"))
    story.at(70.0).submit(a_job("small", submit_s=70.0, exclusive=True))
    story.finish("busy").release("busy")
    assert story.gpus("small") == ("n1-0",)


def test_a_start_that_failed_is_stale_once_the_job_has_run() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).at(1000.0).finish("a")
    story.feed(ev.StartFailed(1000.0, "a", 1, "late"))
    assert story.gpus("a") == ("n1-0",)


def test_a_job_that_fits_nowhere_keeps_nobody_from_a_reservation() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True)).submit(a_job("huge", 9, priority=1))
    story.at(1.0).submit(a_job("gang", 2, submit_s=1.0, exclusive=True))
    story.at(70.0).tick()
    assert [reserved.job_id for reserved in story.records(Reserved)] == ["gang"]


def test_a_reservation_outlives_the_moment_in_which_an_idle_node_of_it_falls_asleep() -> None:
    rules = Rules(starvation_s=60.0, idle_sleep_s=100.0, min_awake_s=0.0)
    story = Script(a_node("n1", 1), a_node("n2", 1, can_sleep=True), rules=rules)
    story.run(a_job("busy", exclusive=True)).submit(a_job("gang", 2, exclusive=True))
    story.at(60.0).tick()
    assert set(story.told(Reserved).gpus) == {"n1-0", "n2-0"}
    story.at(70.0).submit(a_job("small", submit_s=70.0, exclusive=True, epochs=1000))
    story.at(100.0).tick()
    assert story.effects == (SleepNode("n2", 1),)
    story.finish("busy").release("busy")
    assert story.state("small") is JobState.QUEUED, "n1 is held for the gang"
    assert [reserved.job_id for reserved in story.records(Reserved)] == ["gang"] * 2
    story.feed(ev.NodeAsleep(100.0, "n2"))
    assert set(story.gpus("gang")) == {"n1-0", "n2-0"}
    story.check()


def test_waiting_for_exactly_w_is_enough_for_a_reservation_that_is_used_at_once() -> None:
    story = Script(a_node("n1", 1), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True)).submit(a_job("old", exclusive=True))
    story.at(20.0).submit(a_job("vip", submit_s=20.0, priority=1, exclusive=True))
    story.at(80.0).tick()
    story.join(a_node("n2", 1))
    assert story.gpus("vip") == ("n2-0",)
    story.check()
