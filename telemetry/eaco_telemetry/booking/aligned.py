"""The intervals of all devices of a node on one common grid of times.

Between two edges of the grid no reading, no hold and no price changes, so that the rules
can look at all devices together. An interval that an edge cuts is shared out by time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import Factory, define, frozen

from eaco_telemetry.booking.series import Intervals, SeriesMaker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eaco_telemetry.booking.rows import Device, NodeRecording, Processes


@define
class Column:
    """One device on the grid: one entry for each step. `seen`: 1 where it was measured."""

    joules: list[float] = Factory(list[float])
    seen: bytearray = Factory(bytearray)
    util_ratio: list[float | None] = Factory(list["float | None"])
    processes: list[Processes] = Factory(list["Processes"])

    def skip(self, steps: int) -> None:
        """Add steps in which the device was not measured."""
        self.joules += [0.0] * steps
        self.seen += bytes(steps)
        self.util_ratio += [None] * steps
        self.processes += [None] * steps

    def repeat(self, steps: int, util_ratio: float | None, processes: Processes) -> None:
        """Add steps that lie in one interval; their joules are there already."""
        self.seen += b"\x01" * steps
        self.util_ratio += [util_ratio] * steps
        self.processes += [processes] * steps


@define
class Grid:
    """All devices of a node over one stretch of time. `edges_ns`: one more than steps."""

    edges_ns: list[int]
    columns: dict[Device, Column]

    @property
    def lengths_s(self) -> list[float]:
        """How long each step is."""
        edges = self.edges_ns
        return [(b - a) / 1e9 for a, b in pairwise(edges)]


class GridMaker:
    """Puts intervals on grids, as far as all devices are known.

    What reaches beyond that is kept for the next grid: the power of a node is the sum of
    its devices, so none may come later.
    """

    def __init__(self, cuts_ns: Sequence[int]) -> None:
        self._cuts = sorted(set(cuts_ns))
        self._pending: dict[Device, Intervals] = {}

    def add(self, made: Mapping[Device, Intervals]) -> None:
        """Take new intervals, each later than those of its device before."""
        for device, intervals in made.items():
            known = self._pending.get(device)
            if known is None:
                self._pending[device] = intervals
            else:
                known.extend(intervals)

    def take(self, horizon_ns: int | None) -> Grid | None:
        """Give the grid up to a time (None: up to the end); None if there is nothing in it."""
        ready: dict[Device, Intervals] = {}
        for device, intervals in self._pending.items():
            if horizon_ns is None:
                ready[device] = intervals
            else:
                ready[device], self._pending[device] = _cut(intervals, horizon_ns)
        if horizon_ns is None:
            self._pending = {}
        ready = {device: some for device, some in ready.items() if some.t0_ns}
        if not ready:
            return None
        edges: set[int] = set()
        for intervals in _unlike(ready.values()):
            edges.update(intervals.t0_ns)
            edges.update(intervals.t1_ns)
        low, high = min(edges), max(edges)
        edges.update(self._cuts[bisect_right(self._cuts, low) : bisect_left(self._cuts, high)])
        grid = sorted(edges)
        return Grid(grid, {device: _on_grid(some, grid) for device, some in ready.items()})


def _cut(intervals: Intervals, at_ns: int) -> tuple[Intervals, Intervals]:
    """Part intervals in those before a time and those after it."""
    whole = bisect_right(intervals.t1_ns, at_ns)
    before, after = _slice(intervals, 0, whole), _slice(intervals, whole, None)
    if after.t0_ns and after.t0_ns[0] < at_ns:
        start, end, joules = after.t0_ns[0], after.t1_ns[0], after.joules[0]
        first = joules * ((at_ns - start) / (end - start))
        before.extend(
            Intervals([start], [at_ns], [first], after.util_ratio[:1], after.processes[:1])
        )
        after.t0_ns[0] = at_ns
        after.joules[0] = joules * ((end - at_ns) / (end - start))
    return before, after


def _slice(some: Intervals, start: int, end: int | None) -> Intervals:
    return Intervals(
        some.t0_ns[start:end],
        some.t1_ns[start:end],
        some.joules[start:end],
        some.util_ratio[start:end],
        some.processes[start:end],
    )


def _on_grid(some: Intervals, grid: list[int]) -> Column:
    steps = len(grid) - 1
    if len(some.joules) == steps and some.t0_ns == grid[:-1] and some.t1_ns == grid[1:]:
        # The usual case: all devices were read together, without a gap or a cut.
        return Column(some.joules, bytearray(b"\x01" * steps), some.util_ratio, some.processes)
    column = Column()
    at = done = 0
    for here in _special(some, grid):
        at = _copy(some, done, here, column, at)
        start = bisect_left(grid, some.t0_ns[here], at)
        column.skip(start - at)
        at = bisect_left(grid, some.t1_ns[here], start)
        length = some.t1_ns[here] - some.t0_ns[here]
        joules = some.joules[here]
        column.joules += [joules * ((b - a) / length) for a, b in pairwise(grid[start : at + 1])]
        column.repeat(at - start, some.util_ratio[here], some.processes[here])
        done = here + 1
    at = _copy(some, done, len(some.joules), column, at)
    column.skip(steps - at)
    return column


def _special(some: Intervals, grid: list[int]) -> list[int]:
    """Find the intervals that do not just follow the one before, or that the grid cuts."""
    own = {*some.t0_ns, *some.t1_ns}
    cut = {bisect_right(some.t1_ns, edge) for edge in grid if edge not in own}
    cut.discard(len(some.t1_ns))
    gaps = [
        k + 1 for k, (a, b) in enumerate(zip(some.t1_ns, some.t0_ns[1:], strict=False)) if a != b
    ]
    return sorted({0, *cut, *gaps})


def _copy(some: Intervals, start: int, end: int, column: Column, at: int) -> int:
    """Put intervals on the grid that lie there side by side and uncut; return where they end."""
    if start == end:
        return at
    column.joules += some.joules[start:end]
    column.seen += b"\x01" * (end - start)
    column.util_ratio += some.util_ratio[start:end]
    column.processes += some.processes[start:end]
    return at + end - start


def _unlike(some: Iterable[Intervals]) -> Iterator[Intervals]:
    """Leave out intervals at the same times as others: devices are mostly read together."""
    kept: list[Intervals] = []
    for one in some:
        if not any(one.t0_ns == old.t0_ns and one.t1_ns == old.t1_ns for old in kept):
            kept.append(one)
            yield one


def grids(recording: NodeRecording, maker: SeriesMaker, cuts_ns: Sequence[int]) -> Iterator[Grid]:
    """Read a recording as grids that follow each other, cut at `cuts_ns` as well."""
    onto = GridMaker(cuts_ns)
    for block in recording.blocks():
        onto.add(maker.feed(block))
        del block  # its columns are large, and the intervals are all that is needed
        horizon = maker.horizon_ns
        if horizon is not None:
            grid = onto.take(horizon)
            if grid is not None:
                yield grid
    grid = onto.take(None)
    if grid is not None:
        yield grid


@frozen
class Part:
    """Some steps of a grid that follow each other."""

    start: int
    stop: int

    @property
    def steps(self) -> slice[int, int, None]:
        """To pick the steps from a column."""
        return slice(self.start, self.stop)

    @property
    def edges(self) -> slice[int, int, None]:
        """To pick their edges, one more than steps."""
        return slice(self.start, self.stop + 1)


def parts_of(edges_ns: Sequence[int], cuts_ns: Sequence[int]) -> Iterator[Part]:
    """Give the steps between one cut and the next. Cuts are sorted, and edges where inside."""
    low, high = edges_ns[0], edges_ns[-1]
    inside = cuts_ns[bisect_right(cuts_ns, low) : bisect_left(cuts_ns, high)]
    for t0, t1 in pairwise([low, *inside, high]):
        yield Part(bisect_left(edges_ns, t0), bisect_left(edges_ns, t1))
