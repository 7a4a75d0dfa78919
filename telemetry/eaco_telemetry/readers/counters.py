"""Counters of the hardware that should only rise: joules, busy time, cycles.

Real ones wrap at the end of their register, start again when a driver is reloaded,
jump by absurd amounts (a GPU once seemed to draw 3.69 TW), and stand still for a
while between updates. One rule covers all: a step that is not plainly possible is a
**re-base**. It counts for nothing, its reason is told, and counting goes on from the
new value. What is lost is the energy of one interval; what is never made is a spike.
"""

from __future__ import annotations

import enum
import math

from attrs import frozen

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import MIN_ENERGY_WINDOW_S

# Counters are updated in steps: within this time a whole step may appear at once.
_UPDATE_S = 1.0
# A counter of energy that stood still for longer is broken, not idle.
FROZEN_S = 5.0


class Step(enum.Enum):
    """What one reading of a counter meant."""

    FIRST = "first"
    ROSE = "rose"
    STILL = "still"
    WRAPPED = "wrapped"
    RESET = "reset"
    JUMPED = "jumped"
    TOO_LATE = "too late"
    IMPOSSIBLE = "impossible"
    STALE = "stale"
    CLOCK_WENT_BACK = "clock went back"


_COUNTS = frozenset({Step.ROSE, Step.STILL, Step.WRAPPED})
_REASONS = {
    Step.FIRST: "the first reading of a counter has nothing to compare with",
    Step.RESET: "the counter went back, so it was started again",
    Step.JUMPED: "the counter jumped further than the device can go",
    Step.TOO_LATE: "read too rarely: the counter may have wrapped more than once",
    Step.IMPOSSIBLE: "the counter holds a value outside of its range",
    Step.STALE: "no time has passed since the last reading",
    Step.CLOCK_WENT_BACK: "the clock went back between two readings",
}
_REBASES = frozenset({Step.RESET, Step.JUMPED, Step.TOO_LATE, Step.CLOCK_WENT_BACK})


@frozen
class Advance:
    """How far a counter went since the reading before, in its own unit.

    `delta` is None when that is not known: `reason` says why. `dt_s` is the time that
    the delta covers.
    """

    step: Step
    delta: int | None
    dt_s: float

    @property
    def reason(self) -> str | None:
        """Why there is no delta."""
        return None if self.step in _COUNTS else _REASONS[self.step]


class Counter:
    """One counter that only rises. Feed it each reading; `total` is what was sure.

    `max_per_s` is the most that the device can do, in units of the counter (watts of
    the largest device there is, in microjoules). `wraps_at` is the number of values of
    the register: after `wraps_at - 1` comes 0. A fall is a wrap only if the step across
    the end is possible at `max_per_s`; otherwise it is a reset. After a gap in which a
    counter at full speed could have gone round, a step says nothing.
    """

    def __init__(self, *, max_per_s: float, wraps_at: int | None = None) -> None:
        self.limit(max_per_s)
        if wraps_at is not None and wraps_at < 1:
            raise InputError(f"wraps_at must be at least 1, not {wraps_at!r}")
        self._wraps_at = wraps_at
        self._value: int | None = None
        self._t_s = -math.inf
        self.total = 0
        self.rebases = 0

    def limit(self, max_per_s: float) -> None:
        """Change what the most is that the device can do."""
        if not (math.isfinite(max_per_s) and max_per_s > 0):
            raise InputError(f"max_per_s must be a number above 0, not {max_per_s!r}")
        self._max_per_s = max_per_s

    def feed(self, value: int, t_s: float) -> Advance:
        """Take one reading at a monotonic time. Never raises for what the reading says."""
        last, dt_s = self._value, t_s - self._t_s
        if value < 0 or (self._wraps_at is not None and value >= self._wraps_at):
            return Advance(Step.IMPOSSIBLE, None, 0.0)
        if last is None:
            self._value, self._t_s = value, t_s
            return Advance(Step.FIRST, None, 0.0)
        if dt_s == 0:
            return Advance(Step.STALE, None, 0.0)
        if dt_s < 0:  # it must not shut out every later reading
            self._rebase(value, t_s)
            return Advance(Step.CLOCK_WENT_BACK, None, 0.0)
        step, delta = self._judge(last, value, dt_s)
        if delta is None:
            self._rebase(value, t_s)
            return Advance(step, None, dt_s)
        self._value, self._t_s = value, t_s
        self.total += delta
        return Advance(step, delta, dt_s)

    def forget(self) -> None:
        """Start anew with the next reading: the device was away. The total stays."""
        if self._value is not None:
            self.rebases += 1
        self._value, self._t_s = None, -math.inf

    def _rebase(self, value: int, t_s: float) -> None:
        self.rebases += 1
        self._value, self._t_s = value, t_s

    def _judge(self, last: int, value: int, dt_s: float) -> tuple[Step, int | None]:
        wraps_at, delta = self._wraps_at, value - last
        if wraps_at is not None and self._max_per_s * dt_s >= wraps_at:
            return Step.TOO_LATE, None
        if delta < 0:
            if wraps_at is None or not self._is_possible(delta + wraps_at, dt_s):
                return Step.RESET, None
            return Step.WRAPPED, delta + wraps_at
        if not self._is_possible(delta, dt_s):
            return Step.JUMPED, None
        return (Step.ROSE if delta else Step.STILL), delta

    def _is_possible(self, delta: int, dt_s: float) -> bool:
        return delta <= self._max_per_s * max(dt_s, _UPDATE_S)


@frozen
class EnergyReading:
    """Joules since the first reading, and the mean power since the last movement.

    `total_j` only rises and holds nothing of what was not sure. `power_w` is None with
    a reason when this reading gives no power. `rebased`: some energy before this
    reading is missing from the total.
    """

    total_j: float
    power_w: float | None
    reason: str | None = None
    rebased: bool = False


class EnergyMeter:
    """A counter of energy, read as joules and as watts.

    `unit_j` is the energy of one count. Power is taken over at least 0.1 s in which the
    counter moved: between its updates a counter stands still, and that is not 0 W; until
    it moves the last power stands. After 5 s without movement it is broken (some are),
    and there is no power from it.
    """

    def __init__(self, *, unit_j: float, max_w: float, wraps_at: int | None = None) -> None:
        self._unit_j = unit_j
        self._counter = Counter(max_per_s=max_w / unit_j, wraps_at=wraps_at)
        self._power_w: float | None = None
        self._pending = 0
        self._pending_s = 0.0
        self._still_s = 0.0

    def limit(self, max_w: float) -> None:
        """Change the most that the device can draw, as when its power limit changes."""
        self._counter.limit(max_w / self._unit_j)

    def feed(self, value: int, t_s: float) -> EnergyReading:
        """Take one reading at a monotonic time."""
        advance = self._counter.feed(value, t_s)
        if advance.step is Step.IMPOSSIBLE:  # as if it had not been read
            return EnergyReading(self._counter.total * self._unit_j, None, advance.reason)
        if advance.delta is None:
            if advance.step is not Step.STALE:
                self._start_over()
            return self._reading(advance.reason, rebased=advance.step in _REBASES)
        self._pending += advance.delta
        self._pending_s += advance.dt_s
        self._still_s = 0.0 if advance.delta else self._still_s + advance.dt_s
        if self._still_s > FROZEN_S:
            self._power_w = None
            return self._reading(f"the energy counter stood still for {self._still_s:.1f} s")
        if self._pending and self._pending_s >= MIN_ENERGY_WINDOW_S:
            self._power_w = self._pending * self._unit_j / self._pending_s
            self._pending, self._pending_s = 0, 0.0
        return self._reading("the energy counter did not move yet")

    def forget(self) -> None:
        """Start anew with the next reading: the device was away. The joules stay."""
        self._counter.forget()
        self._start_over()

    def _start_over(self) -> None:
        self._pending, self._pending_s, self._still_s, self._power_w = 0, 0.0, 0.0, None

    def _reading(self, no_power: str | None, *, rebased: bool = False) -> EnergyReading:
        reason = no_power if self._power_w is None else None
        total_j = self._counter.total * self._unit_j
        return EnergyReading(total_j, self._power_w, reason, rebased=rebased)


class BusyMeter:
    """A counter of busy time, read as the ratio of what passed that was busy.

    Feed the busy count and the count that passed, both in one unit (nanoseconds, cycles).
    A ratio a little above 1 comes from the two not being read at the same instant and is
    1; one far above is no measurement. A busy count may dip and catch up later, as the
    kernel's rules for DRM clients allow: its peak then stays the base.
    """

    _SLACK = 1.10

    def __init__(self) -> None:
        self._busy: int | None = None
        self._passed = 0

    def feed(self, busy: int, passed: int) -> float | None:
        """Give the busy ratio since the reading before; None at first or if impossible."""
        last, passed_before = self._busy, self._passed
        if last is None or passed < passed_before:
            self._busy, self._passed = busy, passed
            return None
        if passed == passed_before:
            return None
        self._busy, self._passed = max(busy, last), passed
        ratio = max(0, busy - last) / (passed - passed_before)
        return min(1.0, ratio) if ratio <= self._SLACK else None
