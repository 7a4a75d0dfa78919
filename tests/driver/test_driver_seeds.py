"""The driver under seeded time, order, lateness and faults: invariants at each step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from eaco_adapters.testing.driver_world import World, run_world
from eaco_adapters.testing.fake_executor import ROUGH
from eaco_core.driver import Driver
from eaco_core.driver.lanes import Lanes, _Lane
from eaco_core.events import Tick

if TYPE_CHECKING:
    from eaco_core.effects import Effect


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_no_seed_breaks_an_invariant_and_every_job_ends(first: int) -> None:
    for seed in range(first, first + 20):
        run_world(World(seed))


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_a_scheduler_that_dies_at_any_point_is_followed_by_one_that_goes_on(first: int) -> None:
    for seed in range(first, first + 20):
        run_world(World(seed, deaths=3))


class EffectsFirst(Driver):
    """Gives the effects of a step before the step is in the journal."""

    async def _take_in(self, lanes: Lanes, items: list[Any]) -> None:
        steps: list[Any] = []
        for item in items:
            self._step_item(item, steps)
        while self._is_due():
            steps.append((self._step_at(Tick(0.0)), None))
        for step, _ in steps:
            for effect in step.effects:
                lanes.give(effect)
        await asyncio.sleep(0)
        await self._commit(steps)
        for step, item in steps:
            if item is not None and item.answer is not None and not item.answer.done():
                item.answer.set_result(step)
            self._after(lanes, step)


class _SideBySide(Lanes):
    def give(self, effect: Effect) -> None:
        lane = self._lanes[f"job {id(effect)}"] = _Lane()
        lane.waiting.append(effect)
        lane.task = self._begin(self._work(f"job {id(effect)}", lane))


class NoOrder(Driver):
    """Gives all commands of a job at once."""

    lanes_type = _SideBySide


PLANTED = {"effects before the journal": EffectsFirst, "commands without order": NoOrder}


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_a_planted_race_is_found(bug: str) -> None:
    # Slow calls, so that a later command can overtake an earlier one.
    habits = evolve(ROUGH, delay_s=30.0)
    for seed in range(300):
        try:
            run_world(World(seed, deaths=3, driver=PLANTED[bug], habits=habits))
        except (AssertionError, TimeoutError, ExceptionGroup):
            return
    pytest.fail(f"300 seeds did not find {bug}")


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (run_world(World(7, deaths=2)) for _ in range(2))
    assert first == second
    assert len(first) > 20
