"""Values that change in steps: the price of electricity, its carbon intensity."""

from __future__ import annotations

import math
from bisect import bisect_right

from attrs import field, frozen

from eaco_core.errors import InputError


def _steps(_instance: object, _attribute: object, value: tuple[tuple[int, float], ...]) -> None:
    times = [time for time, _ in value]
    if not value or sorted(set(times)) != times:
        raise InputError("steps must be in order of time, at least one, none twice")
    for _, number in value:
        if not math.isfinite(number):
            raise InputError(f"a step must be a finite number, not {number!r}")


@frozen
class Steps:
    """A value over time: (from Unix time in nanoseconds on, value), each until the next.

    The value may be negative: so are prices at times.
    """

    steps: tuple[tuple[int, float], ...] = field(validator=_steps)

    @classmethod
    def constant(cls, value: float) -> Steps:
        """The same value at all times."""
        return cls(((-(1 << 62), value),))

    @property
    def first_ns(self) -> int:
        """From when on a value is known."""
        return self.steps[0][0]

    @property
    def times(self) -> tuple[int, ...]:
        """When the value changes."""
        return tuple(time for time, _ in self.steps)

    def at(self, time_ns: int) -> float:
        """Give the value at a time. Raises InputError before the first step."""
        index = bisect_right(self.times, time_ns) - 1
        if index < 0:
            raise InputError("there is no value for this time: it is before the first step")
        return self.steps[index][1]
