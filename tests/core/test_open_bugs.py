"""Smallest examples of what is wrong today. A repaired one fails here: move it."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.decisions import Reserved
from eaco_core.invariants import check_history
from eaco_core.jobs import JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.rules import Rules
from eaco_core.testing import Recorder, Script, a_job, a_node


@pytest.mark.xfail(
    strict=True,
    reason="checker of I08: a co-resident that has ended and still holds its GPUs is counted by "
    "the machine's bound (which is safe), and the checker says that nobody is there",
)
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


@pytest.mark.xfail(
    strict=True,
    reason="R17: cancelling the queued head calls no pass: under fifo and eaco-paper everyone "
    "behind it waits until something else happens",
)
@pytest.mark.parametrize("policy", ["fifo", "eaco-paper"])
def test_who_waits_behind_a_job_that_is_cancelled_starts(policy: str) -> None:
    story = Script(a_node("n1", 1), policy=policy_named(policy))
    story.submit(a_job("big", 2), a_job("small"))
    assert story.state("small") is JobState.QUEUED
    story.cancel("big")
    assert story.state("small") is JobState.STARTING


@pytest.mark.xfail(
    strict=True,
    reason="R11, R18: a reservation that moves to a later start on the same GPUs is not recorded, "
    "so that the history cannot explain who used them meanwhile (I24)",
)
def test_a_reservation_that_starts_later_is_told() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("slow", exclusive=True)).submit(a_job("gang", 2, exclusive=True))
    story.at(60.0).tick()
    assert story.told(Reserved).start_s == 1060.0
    story.at(900.0).submit(a_job("short", submit_s=900.0, epochs=3, exclusive=True))
    assert story.gpus("short") == ("n1-1",), "slow may take until 1900 s by now"
    story.check()
