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
    from collections.abc import Iterator, Mapping, Sequence

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
        for intervals in ready.values():
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
    put_j, put_seen = column.joules.append, column.seen.append
    put_util, put_processes = column.util_ratio.append, column.processes.append
    at = 0
    for t0, t1, joules, util, processes in zip(
        some.t0_ns, some.t1_ns, some.joules, some.util_ratio, some.processes, strict=True
    ):
        if grid[at] != t0:
            start = bisect_left(grid, t0, at)
            column.skip(start - at)
            at = start
        at += 1
        if grid[at] == t1:
            put_j(joules)
            put_seen(1)
            put_util(util)
            put_processes(processes)
            continue
        end = bisect_left(grid, t1, at)
        length = t1 - t0
        for step in range(at - 1, end):
            put_j(joules * ((grid[step + 1] - grid[step]) / length))
            put_seen(1)
            put_util(util)
            put_processes(processes)
        at = end
    column.skip(steps - at)
    return column


def grids(recording: NodeRecording, maker: SeriesMaker, cuts_ns: Sequence[int]) -> Iterator[Grid]:
    """Read a recording as grids that follow each other, cut at `cuts_ns` as well."""
    onto = GridMaker(cuts_ns)
    for block in recording.blocks():
        onto.add(maker.feed(block))
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
