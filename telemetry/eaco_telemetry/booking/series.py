"""From readings to intervals: how many joules a device used from one time to the next.

Within an interval power counts as constant, so that cutting one changes nothing.

- Where a device has a counter of joules in a session, an interval goes from one reading of
  it to the next, and its energy is the difference: whatever lies between is known in
  total, also across a gap. A counter that falls has been started again: that step is
  booked by power if it is known.
- Else the power of the later reading counts for the time since the one before it, because
  that is what most devices mean: an average up to now. Across a gap longer than
  `max_gap_ns` nothing is known, and nothing is booked.
- A meter of the whole node is updated more rarely than it is read. While its counter
  stands still, it has not been updated: its interval goes from update to update.
- Two sessions at one time (two senders on one node) must not count twice: the one that
  began first counts until its end.
"""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import Factory, define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eaco_telemetry.booking.rows import (
        Block,
        Device,
        DeviceFacts,
        Processes,
        Rows,
        SessionFacts,
    )

MAX_GAP_S: Final = 30.0
"""Power without a counter is believed for this long, or 3 periods if that is longer."""

_PERIODS: Final = 3
_NS: Final = 1e9


@define
class Intervals:
    """Intervals of one device, in order, none overlapping: from, to, joules.

    `util_ratio` and `processes` are those of the reading at the end.
    """

    t0_ns: list[int] = Factory(list[int])
    t1_ns: list[int] = Factory(list[int])
    joules: list[float] = Factory(list[float])
    util_ratio: list[float | None] = Factory(list["float | None"])
    processes: list[Processes] = Factory(list["Processes"])

    def extend(self, other: Intervals) -> None:
        """Put later intervals behind these."""
        self.t0_ns += other.t0_ns
        self.t1_ns += other.t1_ns
        self.joules += other.joules
        self.util_ratio += other.util_ratio
        self.processes += other.processes


@define
class Tally:
    """What happened while intervals were made: what a report tells about its grounds.

    `bridged_ns`: time of gaps whose energy a counter gave in total.
    """

    bridged_ns: int = 0
    rebases: int = 0


@define
class _Series:
    """One device in one session, fed in pieces."""

    facts: DeviceFacts
    clip_ns: int
    max_gap_ns: int
    merges_still: bool
    tally: Tally
    t_ns: int | None = None
    energy_j: float = 0.0

    @property
    def counts(self) -> bool:
        return self.facts.counts

    @property
    def waits_ns(self) -> int | None:
        """From when on more may still come; None if nothing will."""
        last = self.facts.last_energy_ns if self.counts else self.facts.last_ns
        if self.t_ns is None or last is None or not (self.counts or self.facts.has_power):
            return None
        return self.t_ns if self.t_ns < last else None

    def feed(self, rows: Rows, into: Intervals) -> None:
        if self._feed_plain(rows, into):
            return
        if self.counts:
            self._feed_counter(rows, into)
        elif self.facts.has_power:
            self._feed_power(rows, into)

    def _feed_plain(self, rows: Rows, into: Intervals) -> bool:
        """Make the intervals column by column, if there is nothing special about these rows."""
        values = rows.energy_j if self.counts else rows.power_w
        first = rows.t_ns[0] if self.t_ns is None else self.t_ns
        known = [value for value in values if value is not None]
        if self.merges_still or first < self.clip_ns or len(known) < max(2, len(values)):
            return False
        times = rows.t_ns if self.t_ns is None else [self.t_ns, *rows.t_ns]
        lengths = list(map(sub, times[1:], times))
        if min(lengths) <= 0 or (not self.counts and max(lengths) > self.max_gap_ns):
            return False
        if self.counts:
            ends = known if self.t_ns is None else [self.energy_j, *known]
            joules = list(map(sub, ends[1:], ends))
            if min(joules) < 0.0:
                return False
            self.tally.bridged_ns += sum(one for one in lengths if one > self.max_gap_ns)
            self.energy_j = known[-1]
        else:
            powers = known[len(known) - len(lengths) :]
            joules = [watts * (length / _NS) for watts, length in zip(powers, lengths, strict=True)]
        skip = 1 if self.t_ns is None else 0
        into.t0_ns += times[:-1]
        into.t1_ns += times[1:]
        into.joules += joules
        into.util_ratio += rows.util_ratio[skip:]
        into.processes += rows.processes[skip:]
        self.t_ns = rows.t_ns[-1]
        return True

    def _feed_counter(self, rows: Rows, into: Intervals) -> None:
        before, last_j, final = self.t_ns, self.energy_j, self.facts.last_energy_ns
        still, clip, gap = self.merges_still, self.clip_ns, self.max_gap_ns
        put = _putter(into)
        for t, energy, power, util, processes in _each(rows):
            if energy is None:
                continue
            if before is None:
                before, last_j = t, energy
                continue
            if t <= before or (still and energy == last_j and t != final):
                continue
            length = t - before
            joules = energy - last_j
            if joules < 0.0:
                self.tally.rebases += 1
                joules = -1.0 if power is None or length > gap else power * (length / _NS)
            elif length > gap:
                self.tally.bridged_ns += length
            if joules >= 0.0 and t > clip:
                if before < clip:
                    joules, before = joules * ((t - clip) / length), clip
                put(before, t, joules, util, processes)
            before, last_j = t, energy
        self.t_ns, self.energy_j = before, last_j

    def _feed_power(self, rows: Rows, into: Intervals) -> None:
        before, clip, gap = self.t_ns, self.clip_ns, self.max_gap_ns
        put = _putter(into)
        for t, _, power, util, processes in _each(rows):
            if before is None:
                before = t
                continue
            if t <= before:
                continue
            if power is not None and t - before <= gap and t > clip:
                start = max(before, clip)
                put(start, t, power * ((t - start) / _NS), util, processes)
            before = t
        self.t_ns = before


_Row: TypeAlias = "tuple[int, float | None, float | None, float | None, Processes]"
_Put: TypeAlias = "Callable[[int, int, float, float | None, Processes], None]"


def _each(rows: Rows) -> Iterator[_Row]:
    return zip(rows.t_ns, rows.energy_j, rows.power_w, rows.util_ratio, rows.processes, strict=True)


def _putter(into: Intervals) -> _Put:
    add_t0, add_t1, add_j = into.t0_ns.append, into.t1_ns.append, into.joules.append
    add_util, add_processes = into.util_ratio.append, into.processes.append

    def put(t0: int, t1: int, joules: float, util: float | None, processes: Processes) -> None:
        add_t0(t0)
        add_t1(t1)
        add_j(joules)
        add_util(util)
        add_processes(processes)

    return put


@define
class SeriesMaker:
    """Makes the intervals of all devices of a node, block by block."""

    sessions: Sequence[SessionFacts]
    max_gap_s: float | None = None
    tally: Tally = Factory(Tally)
    _series: dict[tuple[str, Device], _Series] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._series = {}
        busy_until = -(1 << 62)
        for session in self.sessions:
            gap = self.max_gap_s
            gap_ns = (
                max(round(MAX_GAP_S * _NS), _PERIODS * session.period_ns)
                if gap is None
                else round(gap * _NS)
            )
            for device, facts in session.devices.items():
                self._series[session.session_id, device] = _Series(
                    facts=facts,
                    clip_ns=busy_until,
                    max_gap_ns=gap_ns,
                    merges_still=device.name == "node" and not device.is_gpu,
                    tally=self.tally,
                )
            busy_until = max(busy_until, session.last_ns)

    def feed(self, block: Block) -> dict[Device, Intervals]:
        """Give the intervals that end in this block, by device."""
        made: dict[Device, Intervals] = {}
        for session in self.sessions:
            rows_of: Mapping[Device, Rows] = block.get(session.session_id, {})
            for device in sorted(rows_of, key=lambda one: (one.is_gpu, one.name)):
                into = made.setdefault(device, Intervals())
                self._series[session.session_id, device].feed(rows_of[device], into)
        return made

    @property
    def horizon_ns(self) -> int | None:
        """Until when all intervals are known. None: everything is."""
        waiting = [one.waits_ns for one in self._series.values()]
        return min((one for one in waiting if one is not None), default=None)
