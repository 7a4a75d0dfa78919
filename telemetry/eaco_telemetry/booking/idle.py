"""What is learnt from a recording before it is booked: idle powers, utilisations alone.

The **idle power** of a GPU is the power that it stays below in a tenth of the time in
which no job held it and no process was seen on it; in steps of 0.1 W. Not the very lowest,
because counters stand still now and then. That of the server is found in the same way from
the time in which no GPU of the node was held. Who knows better says so. Where it is neither
said nor seen, there is none: all energy counts as active.

The **utilisation alone** of a workload is the mean over the time in which one of its jobs
held a GPU alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from attrs import Factory, define, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

IDLE_PART: Final = 10
"""The idle power is not exceeded in one part of this many."""

_TENTHS_PER_NS: Final = 10 * 1e9

IdleSource: TypeAlias = Literal["given", "measured", "none"]


@frozen
class IdlePower:
    """Idle power in watts. `measured`: seen while nobody held it; `none`: not known."""

    watts: float
    source: IdleSource


@define
class PowerTimes:
    """For how long which power was seen: {power in tenths of a watt: nanoseconds}."""

    length_ns: dict[int, int] = Factory(dict[int, int])

    def add(self, joules: Iterable[float], lengths_ns: Iterable[int]) -> None:
        """Take steps: the energy and the length of each."""
        seen = self.length_ns
        for energy_j, length_ns in zip(joules, lengths_ns, strict=True):
            # The last digits may not decide where a power belongs that is written as x.x5 W.
            tenths = round(energy_j / length_ns * _TENTHS_PER_NS + 1e-6)
            seen[tenths] = seen.get(tenths, 0) + length_ns

    def idle(self, given_w: float | None) -> IdlePower:
        """Give the idle power: the one that is said, else the one that was seen."""
        if given_w is not None:
            return IdlePower(given_w, "given")
        if not self.length_ns:
            return IdlePower(0.0, "none")
        total, below, tenths = sum(self.length_ns.values()), 0, 0
        for tenths in sorted(self.length_ns):
            below += self.length_ns[tenths]
            if below * IDLE_PART >= total:
                break
        return IdlePower(tenths / 10, "measured")


@define
class MeanUtils:
    """Mean utilisations by workload, weighed by time."""

    _busy_s: dict[str, float] = Factory(dict[str, float])
    _length_s: dict[str, float] = Factory(dict[str, float])

    def add(
        self, workload: str, util_ratio: Iterable[float | None], lengths_s: Iterable[float]
    ) -> None:
        """Take steps of one GPU that a job of this workload held alone."""
        busy_s = total_s = 0.0
        for util, length_s in zip(util_ratio, lengths_s, strict=True):
            if util is not None:
                busy_s += util * length_s
                total_s += length_s
        if total_s:
            self._busy_s[workload] = self._busy_s.get(workload, 0.0) + busy_s
            self._length_s[workload] = self._length_s.get(workload, 0.0) + total_s

    def ratios(self) -> dict[str, float]:
        """Give the mean of each workload."""
        return {name: busy_s / self._length_s[name] for name, busy_s in self._busy_s.items()}
