"""Mean, peak and quantiles of the last while, at constant cost per value.

Values go into buckets of a twentieth of the window, and into bins whose borders grow by 2 %.
A value is added once and taken out once, with its bucket. How exact that is:

- The window holds everything of the last `window_s` seconds, and up to a twentieth more: it
  ends with the newest value (or `advance`), and whole buckets leave it.
- `mean`, `peak` and `low` are exact for what the window holds.
- `quantile` is within 1 % of the value at that rank, for values from 1e-6 to 1e18 (of either
  sign); smaller ones count as 0, larger ones as 1e18, but never beyond `low` and `peak`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from attrs import Factory, define, field

from eaco_core.errors import InputError

BUCKETS: Final = 20
GROWTH: Final = 1.02
SMALLEST: Final = 1e-6
LARGEST: Final = 1e18

_LOG_GROWTH: Final = math.log(GROWTH)
_LAST_BIN: Final = math.ceil(math.log(LARGEST / SMALLEST) / _LOG_GROWTH)


def _no_bins() -> dict[int, int]:
    return {}


@define
class _Bucket:
    number: int
    count: int = 0
    total: float = 0.0
    peak: float = -math.inf
    low: float = math.inf
    bins: dict[int, int] = Factory(_no_bins)


@define
class WindowStats:
    """Statistics of the values of the last `window_s` seconds. See the module for how exact.

    `add` costs the same however many values the window holds; a question costs as much as
    there are buckets (21) or bins in use (at most some 5,500, for power about 100).
    """

    window_s: float = field()
    count: int = field(default=0, init=False)
    _buckets: deque[_Bucket] = field(factory=deque[_Bucket], init=False)
    _bins: dict[int, int] = field(factory=dict[int, int], init=False)
    _bucket_s: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.window_s < math.inf:
            raise InputError(f"a window must be longer than 0 s, not {self.window_s!r}")
        self._bucket_s = self.window_s / BUCKETS

    def add(self, t_s: float, value: float) -> None:
        """Take a value at a time. One that is older than the window is left out.

        Times may come out of order. Raises `InputError` for a number that is not finite.
        """
        if not (math.isfinite(value) and math.isfinite(t_s)):
            raise InputError(f"a value and its time must be finite, not {value!r} at {t_s!r} s")
        number = math.floor(t_s / self._bucket_s)
        bucket = self._bucket(number)
        if bucket is None:
            return
        one = _bin(value)
        bucket.count += 1
        bucket.total += value
        bucket.peak = max(bucket.peak, value)
        bucket.low = min(bucket.low, value)
        bucket.bins[one] = bucket.bins.get(one, 0) + 1
        self._bins[one] = self._bins.get(one, 0) + 1
        self.count += 1

    def advance(self, now_s: float) -> None:
        """Let go of what is too old at a time, without a new value."""
        self._drop_before(math.floor(now_s / self._bucket_s) - BUCKETS)

    @property
    def mean(self) -> float | None:
        """The arithmetic mean of the values; None if the window holds none."""
        if not self.count:
            return None
        # Divided first, so that the sum of huge values stays finite.
        return math.fsum(one.total / self.count for one in self._buckets)

    @property
    def peak(self) -> float | None:
        """The highest value; None if the window holds none."""
        return max((one.peak for one in self._buckets), default=None)

    @property
    def low(self) -> float | None:
        """The lowest value; None if the window holds none."""
        return min((one.low for one in self._buckets), default=None)

    def quantile(self, q: float) -> float | None:
        """The value with a share `q` of the values at or below it; None if there is none.

        The rank is ``ceil(q * count)``, at least 1. Raises `InputError` for q outside 0..1.
        """
        if not 0 <= q <= 1:
            raise InputError(f"a quantile must be from 0 to 1, not {q!r}")
        peak, low = self.peak, self.low
        if peak is None or low is None:
            return None
        rank = max(1, math.ceil(q * self.count))
        if rank == self.count:
            return peak
        for one in sorted(self._bins):
            rank -= self._bins[one]
            if rank <= 0:
                return min(peak, max(low, _middle(one)))
        return peak

    def _bucket(self, number: int) -> _Bucket | None:
        buckets = self._buckets
        if not buckets or number > buckets[-1].number:
            self._drop_before(number - BUCKETS)
            buckets.append(_Bucket(number))
            return buckets[-1]
        if buckets[-1].number - number > BUCKETS:
            return None
        # Late: at most 21 buckets to look through, and mostly it is the last.
        place = len(buckets)
        while place and buckets[place - 1].number > number:
            place -= 1
        if not place or buckets[place - 1].number != number:
            buckets.insert(place, _Bucket(number))
            return buckets[place]
        return buckets[place - 1]

    def _drop_before(self, number: int) -> None:
        while self._buckets and self._buckets[0].number < number:
            old = self._buckets.popleft()
            self.count -= old.count
            for one, count in old.bins.items():
                left = self._bins[one] - count
                if left:
                    self._bins[one] = left
                else:
                    del self._bins[one]


def _bin(value: float) -> int:
    size = abs(value)
    if size < SMALLEST:
        return 0
    number = 1 + min(_LAST_BIN, math.floor(math.log(size / SMALLEST) / _LOG_GROWTH))
    return number if value > 0 else -number


def _middle(one: int) -> float:
    """Give the value that is within 1 % of every value of a bin."""
    if not one:
        return 0.0
    low = SMALLEST * math.exp((abs(one) - 1) * _LOG_GROWTH)
    return math.copysign(2 * low * GROWTH / (1 + GROWTH), one)
