"""More smallest examples of what was wrong once: epochs, reservations, co-residents."""

from __future__ import annotations

from eaco_core import events as ev
from eaco_core.decisions import Reserved
from eaco_core.invariants import check_history
from eaco_core.jobs import JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.rules import Rules
from eaco_core.testing import Recorder, Script, a_job, a_node


def test_the_checker_knows_that_an_ended_job_may_still_count_as_a_co_resident() -> None:
    recorder = Recorder(SchedulerMachine(), watch=False)
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("x")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "x", 1))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("gang", 2)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "gang", 1))
    recorder.feed(ev.JobFinished(10.0, "x", 1))
    recorder.feed(ev.JobSubmitted(10.0, a_job("new", submit_s=10.0)))
    recorder.feed(ev.Tick(10.0))
    assert recorder.machine.job("new").gpus == ("n2-0",)
    report = check_history(recorder.lines)
    assert report.ok, report.failed


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
