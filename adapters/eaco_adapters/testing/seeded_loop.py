"""An event loop in which time, order and lateness follow from a seed.

Time is virtual: it jumps to the next timer when nothing else can run. Of the callbacks that are
ready at one time the seed says which comes first, and now and then the loop is late, so that
several timers are due at once. A run with the same seed is the same run.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Coroutine

_T = TypeVar("_T")
_MOST_TURNS: Final = 2_000_000


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set, so nothing would ever happen again."""


class SeededLoop(asyncio.SelectorEventLoop):
    """A loop for tests. Nothing outside of the process may be awaited in it.

    `late_ratio`: how often the loop is late, or takes a timer before what is ready; it is late by
    at most `most_late_s`.
    """

    def __init__(self, seed: int, *, late_ratio: float = 0.3, most_late_s: float = 5.0) -> None:
        super().__init__()
        self._chance = random.Random(seed)  # noqa: S311 - a seed, so that a run can be repeated
        self._late_ratio = late_ratio
        self._most_late_s = most_late_s
        self._virtual_s = 0.0
        self._turns = 0

    def time(self) -> float:
        """Give the virtual time in seconds."""
        return self._virtual_s

    def _run_once(self) -> None:
        state: Any = self
        # The loop's own queues: asyncio has no public way to set the order in them.
        ready: deque[object] = state._ready  # noqa: SLF001 - see above
        timers: list[asyncio.TimerHandle] = state._scheduled  # noqa: SLF001 - see above
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise Deadlock(f"no end after {_MOST_TURNS} turns of the loop")
        times_s = [handle.when() for handle in timers if not handle.cancelled()]
        if not ready and not times_s:
            raise Deadlock("nothing can ever happen again")
        if times_s and (not ready or self._chance.random() < self._late_ratio):
            self._move_time(times_s, skip=not ready)
        if len(ready) > 1:
            order = list(ready)
            self._chance.shuffle(order)
            ready.clear()
            ready.extend(order)
        run_once: Any = super()
        run_once._run_once()  # noqa: SLF001 - the turn itself is asyncio's

    def _move_time(self, times_s: list[float], *, skip: bool) -> None:
        """Go on to a timer. Only `skip` goes over quiet time; else the loop is merely late."""
        first_s = min(times_s)
        base_s = max(first_s, self._virtual_s) if skip else self._virtual_s
        due = sorted(when_s for when_s in times_s if when_s <= base_s + self._most_late_s)
        if due:
            late = self._chance.random() < self._late_ratio
            next_s = self._chance.choice(due) if late else due[0]
            self._virtual_s = max(self._virtual_s, next_s)


def run_seeded(main: Coroutine[Any, Any, _T], seed: int, *, late_ratio: float = 0.3) -> _T:
    """Run `main` to its end in a `SeededLoop`, like `asyncio.run`."""
    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed, late_ratio=late_ratio)) as runner:
        return runner.run(main)
