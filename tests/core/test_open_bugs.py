"""Smallest examples of what is wrong today. A repaired one fails here: move it."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.invariants import check_history
from eaco_core.machine import SchedulerMachine
from eaco_core.testing import Recorder, a_job, a_node


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
