"""Timers: which thing wants attention when. One time for each key."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TimerKey = tuple[str, str]


class Timers:
    """A heap of (time, key) in which an entry that was replaced or cancelled is skipped."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, TimerKey]] = []
        self._due: dict[TimerKey, float] = {}

    def set(self, key: TimerKey, t_s: float) -> None:
        """Let `key` be due at `t_s`, instead of whenever it was due before."""
        if self._due.get(key) != t_s:
            self._due[key] = t_s
            heapq.heappush(self._heap, (t_s, key))

    def cancel(self, key: TimerKey) -> None:
        """Forget `key`."""
        self._due.pop(key, None)

    def __contains__(self, key: TimerKey) -> bool:
        """Tell whether `key` is set."""
        return key in self._due

    @property
    def next_s(self) -> float | None:
        """Give the earliest time that is set."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> TimerKey | None:
        """Take out the earliest key that is due, None if none is."""
        next_s = self.next_s
        if next_s is None or next_s > now_s:
            return None
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        return key

    def dump(self) -> tuple[tuple[str, str, float], ...]:
        """Give what is set, in order of time: (kind, name, when)."""
        due = sorted((t_s, key) for key, t_s in self._due.items())
        return tuple((kind, name, t_s) for t_s, (kind, name) in due)

    def load(self, due: Iterable[tuple[str, str, float]]) -> None:
        """Set all of these."""
        for kind, name, t_s in due:
            self.set((kind, name), t_s)
