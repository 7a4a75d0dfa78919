"""Numbers that count up by one: which are new, which were here, which are missing."""

from __future__ import annotations

import enum
from typing import Final

from attrs import define, field

_MAX_GAPS: Final = 64
_REMEMBERED: Final = 512  # twice the ring of an agent
_ALL: Final = (1 << _REMEMBERED) - 1


class Arrival(enum.Enum):
    """What a number is, beside those that came before it.

    NEXT: the next one. AHEAD: some before it are missing. LATE: it was missing. EARLY: it is
    from before the first that was heard, so nobody missed it. KNOWN: it was here before, or
    is so old that this cannot be told.
    """

    NEXT = "next"
    AHEAD = "ahead"
    LATE = "late"
    EARLY = "early"
    KNOWN = "known"


@define
class SampleOrder:
    """The order of the samples of one session.

    Remembers the highest number and the last 64 gaps below it; a number in an older gap
    counts as known. Constant memory, constant time for numbers in order.
    """

    last_seq: int | None = field(default=None, init=False)
    _first_seq: int = field(default=0, init=False)
    # First and last number, and what a number in it is: LATE, or EARLY.
    _gaps: list[tuple[int, int, Arrival]] = field(
        factory=list[tuple[int, int, Arrival]], init=False
    )

    def add(self, seq: int) -> Arrival:
        """Take the number of a sample. After AHEAD, `newest_gap` says which are missing."""
        last = self.last_seq
        if last is None:
            self.last_seq = self._first_seq = seq
            return Arrival.NEXT
        if seq == last + 1:
            self.last_seq = seq
            return Arrival.NEXT
        if seq > last:
            self._gaps.append((last + 1, seq - 1, Arrival.LATE))
            del self._gaps[:-_MAX_GAPS]
            self.last_seq = seq
            return Arrival.AHEAD
        if seq < self._first_seq:
            if seq + 1 < self._first_seq:
                self._gaps.insert(0, (seq + 1, self._first_seq - 1, Arrival.EARLY))
                del self._gaps[:-_MAX_GAPS]
            self._first_seq = seq
            return Arrival.EARLY
        return self._fill(seq)

    @property
    def newest_gap(self) -> tuple[int, int]:
        """The newest gap, first and last number."""
        first, last, _ = self._gaps[-1]
        return first, last

    def _fill(self, seq: int) -> Arrival:
        for place in range(len(self._gaps) - 1, -1, -1):
            first, last, kind = self._gaps[place]
            if first <= seq <= last:
                rest = [(first, seq - 1, kind), (seq + 1, last, kind)]
                self._gaps[place : place + 1] = [one for one in rest if one[0] <= one[1]]
                del self._gaps[:-_MAX_GAPS]
                return kind
        return Arrival.KNOWN


@define
class EventsSeen:
    """Which events of one session were here: the last 512 numbers, in constant memory."""

    _highest: int = field(default=-1, init=False)
    _seen: int = field(default=0, init=False)  # bit n: highest - n was here

    def add(self, event_seq: int) -> bool:
        """Take the number of an event; say whether it is new. A very old one is not."""
        ahead = event_seq - self._highest
        if ahead > 0:
            # A number far ahead must not shift by as much: that would be gigabytes.
            self._seen = ((self._seen << ahead) & _ALL) | 1 if ahead < _REMEMBERED else 1
            self._highest = event_seq
            return True
        if -ahead >= _REMEMBERED or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
