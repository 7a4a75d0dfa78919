"""Scheduler seconds go on over restarts and ignore steps of the wall clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.server.clock import Anchor, SystemClock, read_anchor, write_anchor
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [2_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_the_time_that_the_server_was_off_counts(wall: list[float]) -> None:
    clock = SystemClock(100.0, Anchor(t_s=0.0, wall_s=1_000.0))
    assert clock.now_s() == pytest.approx(1_000.0, abs=0.5), "100 s of running, then 900 s off"
    assert clock.wall_of(clock.now_s()) == pytest.approx(wall[0], abs=0.5)


def test_a_wall_clock_that_went_back_counts_as_no_time(wall: list[float]) -> None:
    wall[0] = 500.0
    assert SystemClock(100.0, Anchor(0.0, 1_000.0)).now_s() == pytest.approx(100.0, abs=0.5)


def test_without_an_earlier_run_it_goes_on_from_the_last_step() -> None:
    assert SystemClock(0.0, None).now_s() == pytest.approx(0.0, abs=0.5)


def test_a_step_of_the_wall_clock_within_a_run_changes_nothing(wall: list[float]) -> None:
    clock = SystemClock(0.0, None)
    wall[0] += 1e6
    assert clock.now_s() < 10
    assert clock.wall_s() == wall[0]


def test_an_anchor_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    assert read_anchor(path) is None
    write_anchor(path, Anchor(1.5, 2e9))
    assert read_anchor(path) == Anchor(1.5, 2e9)
    assert [one.name for one in tmp_path.iterdir()] == ["clock.json"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"t_s": "x", "wall_s": 1}', '{"t_s": NaN, "wall_s": 1}']
)
def test_a_broken_anchor_says_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "clock.json"
    path.write_text(content)
    with pytest.raises(InputError, match="remove it"):
        read_anchor(path)
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        write_anchor(tmp_path / "no" / "clock.json", Anchor(0.0, 0.0))
