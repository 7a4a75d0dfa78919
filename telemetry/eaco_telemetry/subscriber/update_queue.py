"""Updates that wait for whoever reads them: bounded, and one node cannot crowd out others.

Updates come out in the order in which they went in. When there is no room, the oldest sample
of the node that brings a new one goes first, then the oldest sample of any node, then other
updates, and events last; nothing has to go for something of a lower rank.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from attrs import define, field

from eaco_telemetry.subscriber.updates import EventReceived, SampleReceived

if TYPE_CHECKING:
    from eaco_telemetry.subscriber.options import SubscriberCounters
    from eaco_telemetry.subscriber.updates import Update

_SAMPLE: Final = 0
_OTHER: Final = 1
_EVENT: Final = 2
_SHARE: Final = 20


@define(eq=False)
class _Cell:
    """A place in the queue; empty once its update was taken or dropped."""

    update: Update | None
    rank: int
    node: str
    size_bytes: int


@define(eq=False)
class _Lane:
    """Cells in their order, of which some may be empty; `waiting` counts those that are not."""

    waiting: int = 0
    held_bytes: int = 0
    cells: deque[_Cell] = field(factory=deque[_Cell])

    def add(self, cell: _Cell) -> None:
        self.trim()
        self.cells.append(cell)
        self.waiting += 1
        self.held_bytes += cell.size_bytes

    def trim(self) -> None:
        while self.cells and self.cells[0].update is None:
            self.cells.popleft()

    def oldest(self) -> _Cell | None:
        self.trim()
        return self.cells[0] if self.cells else None


class UpdateQueue:
    """At most `max_updates` of `max_bytes`, and of one node at most a twentieth of that.

    But at least 16, and 2 MiB. Bytes are those of the messages that the updates come from.
    """

    def __init__(
        self, max_updates: int, counters: SubscriberCounters, *, max_bytes: int = 64 << 20
    ) -> None:
        self._max = max_updates
        self._max_of_node = max(16, max_updates // _SHARE)
        self._max_bytes = max_bytes
        self._max_bytes_of_node = max(2 << 20, max_bytes // _SHARE)
        self._counters = counters
        self._order = _Lane()
        self._ranks = (_Lane(), _Lane(), _Lane())
        self._nodes: dict[str, tuple[_Lane, _Lane, _Lane]] = {}

    def __len__(self) -> int:
        return self._order.waiting

    def put(self, update: Update, size_bytes: int = 0) -> None:
        """Add an update that came from so many bytes. Whatever has to go for it is counted."""
        rank = _rank(update)
        node = _node(update)
        lanes = self._nodes.get(node)
        if lanes is None:
            lanes = self._nodes[node] = (_Lane(), _Lane(), _Lane())
        while full := self._full(lanes, rank, node, size_bytes):
            if not self._drop_from(full):
                self._count(rank)
                return
        cell = _Cell(update, rank, node, size_bytes)
        for lane in (self._order, self._ranks[rank], lanes[rank]):
            lane.add(cell)
        if len(self._order.cells) > 2 * self._max + 64 or len(self._nodes) > self._max + 64:
            self._compact()

    def _full(
        self, lanes: tuple[_Lane, _Lane, _Lane], rank: int, node: str, size_bytes: int
    ) -> tuple[_Lane, ...]:
        """Give the lanes of which something has to go for an update; none if there is room."""
        samples, others, events = lanes
        waiting = samples.waiting + others.waiting + events.waiting
        held_bytes = samples.held_bytes + others.held_bytes + events.held_bytes + size_bytes
        if node and (waiting >= self._max_of_node or held_bytes > self._max_bytes_of_node):
            return lanes[: rank + 1]
        order = self._order
        if order.waiting < self._max and order.held_bytes + size_bytes <= self._max_bytes:
            return ()
        return (samples,) if rank == _SAMPLE and samples.waiting else self._ranks[: rank + 1]

    def get(self) -> Update | None:
        """Take the oldest update; None if there is none."""
        cell = self._order.oldest()
        if cell is None:
            return None
        update = cell.update
        self._empty(cell)
        return update

    def _drop_from(self, lanes: tuple[_Lane, ...]) -> bool:
        """Drop the oldest update of the first lane that has one; say whether one had."""
        for lane in lanes:
            cell = lane.oldest()
            if cell is not None:
                self._empty(cell)
                self._count(cell.rank)
                return True
        return False

    def _count(self, rank: int) -> None:
        if rank == _SAMPLE:
            self._counters.dropped_samples += 1
        elif rank == _EVENT:
            self._counters.dropped_events += 1
        else:
            self._counters.dropped_others += 1

    def _empty(self, cell: _Cell) -> None:
        cell.update = None
        for lane in (self._order, self._ranks[cell.rank], self._nodes[cell.node][cell.rank]):
            lane.waiting -= 1
            lane.held_bytes -= cell.size_bytes

    def _compact(self) -> None:
        """Let go of empty cells in the middle, and of nodes for which nothing waits."""
        self._nodes = {
            node: lanes
            for node, lanes in self._nodes.items()
            if any(lane.waiting for lane in lanes)
        }
        lanes = [lane for of_node in self._nodes.values() for lane in of_node]
        for lane in (self._order, *self._ranks, *lanes):
            lane.cells = deque(cell for cell in lane.cells if cell.update is not None)


def _rank(update: Update) -> int:
    if isinstance(update, SampleReceived):
        return _SAMPLE
    return _EVENT if isinstance(update, EventReceived) else _OTHER


def _node(update: Update) -> str:
    site = getattr(update, "site", None)
    return "" if site is None else f"{site}/{getattr(update, 'node_id', '')}"
