"""Real mosquitto, killed under load: the short form of benchmarks/broker_killed.py."""

from __future__ import annotations

import asyncio

import pytest

from eaco_telemetry.broker import mosquitto_program
from eaco_telemetry.testing.broker_kills import free_port, kill_and_watch

pytestmark = pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")


@pytest.mark.slow
def test_after_three_kills_of_the_broker_every_event_came_once_and_every_gap_was_told() -> None:
    report = asyncio.run(kill_and_watch(free_port(), kills=3, every_s=2.0, agents=2))
    assert len(report.kills) == 3
    assert report.events_made > 20
    assert not report.events_lost
    assert not report.events_twice
    assert report.samples_missing > 0  # the broker was away, so there must be some
    assert not report.missing_untold
