"""Smallest examples of what is wrong today. A repaired one fails here: move it."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
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
