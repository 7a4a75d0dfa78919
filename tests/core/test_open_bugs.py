"""Smallest examples of what is wrong today. A repaired one fails here: move it."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.decisions import Reserved
from eaco_core.rules import Rules
from eaco_core.testing import Script, a_job, a_node


@pytest.mark.xfail(
    strict=True,
    reason="R14, I20: StartFailed of an attempt that has run and ended (a stale message) frees its "
    "GPUs before GpusReleased",
)
def test_a_start_that_failed_is_stale_once_the_job_has_run() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).at(1000.0).finish("a")
    story.feed(ev.StartFailed(1000.0, "a", 1, "late"))
    assert story.gpus("a") == ("n1-0",)


@pytest.mark.xfail(
    strict=True,
    reason="R11: a starving job for which no set of GPUs exists (it asks for more than there are, "
    "or what it needs is lost) keeps every later one from a reservation",
)
def test_a_job_that_fits_nowhere_keeps_nobody_from_a_reservation() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True)).submit(a_job("huge", 9, priority=1))
    story.at(1.0).submit(a_job("gang", 2, submit_s=1.0, exclusive=True))
    story.at(70.0).tick()
    assert [reserved.job_id for reserved in story.records(Reserved)] == ["gang"]
