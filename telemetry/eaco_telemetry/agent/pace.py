"""Ticks at a fixed pace on the monotonic clock, which no change of the wall clock moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """The times at which samples are due: the start plus a whole number of periods.

    So errors do not add up. Ticks that are over when the work is done are left out, never
    made up for in a burst; `missed` counts them.
    """

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self.missed = 0
        self._period_s = period_s
        self._clock = clock
        self._start_s = clock()
        self._done = 0

    def next_delay_s(self) -> float:
        """Give the seconds until the next tick, and go on to it."""
        passed = (self._clock() - self._start_s) / self._period_s
        due = self._done + 1
        if passed > due:
            late = int(passed - due) + 1
            self.missed += late
            due += late
        self._done = due
        return max(0.0, (due - passed) * self._period_s)


async def wait_for_stop(stop: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set (then True) or so many seconds are over."""
    if stop.is_set():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True
