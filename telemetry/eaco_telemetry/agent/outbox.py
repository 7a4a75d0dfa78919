"""What waits to be published: the newest sample, the newest meta, the last events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaco_telemetry.agent.options import AgentStats
    from eaco_telemetry.meta import NodeEvent, NodeMeta
    from eaco_telemetry.samples import NodeSample


class EventRing:
    """The last events. Each connection begins with all of them, because a broker forgets."""

    def __init__(self, size: int, stats: AgentStats) -> None:
        self._events: deque[NodeEvent] = deque(maxlen=size)
        self._stats = stats
        self._next_seq = 0  # of the first event that this connection has not published
        self._acknowledged = -1  # the highest number that any broker has acknowledged

    def add(self, event: NodeEvent) -> None:
        """Keep an event. The oldest goes if there is no room."""
        events = self._events
        if len(events) == events.maxlen and events[0].event_seq > self._acknowledged:
            self._stats.events_dropped += 1
        events.append(event)

    def begin_again(self) -> None:
        """Let everything in the ring be published again."""
        self._next_seq = 0

    def waiting(self, most: int) -> list[NodeEvent]:
        """Give the oldest events that this connection has not published, at most so many."""
        if not self._events or self._events[-1].event_seq < self._next_seq:
            return []
        first = max(0, self._next_seq - self._events[0].event_seq)
        return [self._events[i] for i in range(first, min(first + most, len(self._events)))]

    def published(self, events: list[NodeEvent]) -> None:
        """Note that a broker has acknowledged these."""
        if not events:
            return
        self._next_seq = events[-1].event_seq + 1
        self._acknowledged = max(self._acknowledged, events[-1].event_seq)
        self._stats.events_published += len(events)


class Outbox:
    """Where the sampling side leaves what is to be sent; it never waits and never grows.

    A sample that was not fetched yet gives way to the newer one, and is counted.
    """

    def __init__(self, ring: int, stats: AgentStats) -> None:
        self.events = EventRing(ring, stats)
        self.changed = asyncio.Event()
        self.meta: NodeMeta | None = None
        self._sample: NodeSample | None = None
        self._stats = stats

    def put(self, sample: NodeSample, meta: NodeMeta) -> None:
        """Leave the newest sample, and the meta that it goes with."""
        if self._sample is not None:
            self._stats.samples_dropped += 1
        self._sample, self.meta = sample, meta
        self.changed.set()

    def put_event(self, event: NodeEvent) -> None:
        """Leave an event."""
        self.events.add(event)
        self.changed.set()

    def take_sample(self) -> NodeSample | None:
        """Fetch the newest sample, if there is one that was not fetched."""
        sample, self._sample = self._sample, None
        return sample
