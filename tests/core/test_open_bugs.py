"""Smallest examples of what is wrong today. A repaired one fails here: move it."""

from __future__ import annotations

import pytest

from eaco_core.rules import Rules
from eaco_core.testing import Script, a_job, a_node


@pytest.mark.xfail(
    strict=True,
    reason="checker of I24: who has waited for exactly W holds the reservation by right, is placed "
    "in this step, and the checker asks why the next one has none yet",
)
def test_the_checker_knows_that_waiting_for_exactly_w_is_enough() -> None:
    story = Script(a_node("n1", 1), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True)).submit(a_job("old", exclusive=True))
    story.at(20.0).submit(a_job("vip", submit_s=20.0, priority=1, exclusive=True))
    story.at(80.0).tick()
    story.join(a_node("n2", 1))
    assert story.gpus("vip") == ("n2-0",)
    story.check()
