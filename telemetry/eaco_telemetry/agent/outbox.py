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
    """The last events.

    Two ways lead out. `fresh`: what no broker has acknowledged yet, in order and at once.
    `again`: what one has acknowledged and may have lost, newest first, because the newest are
    most likely lost; the publisher takes its time with these.
    """

    def __init__(self, size: int, stats: AgentStats) -> None:
        self._events: deque[NodeEvent] = deque(maxlen=size)
        self._stats = stats
        self._fresh_seq = 0  # of the first that no broker has acknowledged
        self._again_seq = 0  # of the first that has been published again, or need not be

    def add(self, event: NodeEvent) -> None:
        """Keep an event. The oldest goes if there is no room."""
        events = self._events
        if len(events) == events.maxlen and events[0].event_seq >= self._fresh_seq:
            self._stats.events_dropped += 1
        events.append(event)

    def begin_again(self) -> None:
        """Let all that was acknowledged be published again."""
        self._again_seq = self._fresh_seq

    def fresh(self, most: int) -> list[NodeEvent]:
        """Give the oldest events that were never acknowledged, at most so many."""
        return self._between(self._fresh_seq, self._fresh_seq + most, skip_lost=True)

    def again(self, most: int) -> list[NodeEvent]:
        """Give the newest events that are still to be published again, in their order."""
        return self._between(self._again_seq - most, self._again_seq)

    def published(self, events: list[NodeEvent]) -> None:
        """Note that a broker has acknowledged these, which `fresh` or `again` gave."""
        if not events:
            return
        first, last = events[0].event_seq, events[-1].event_seq
        if last >= self._fresh_seq:
            self._fresh_seq = last + 1
        else:
            self._again_seq = first
        self._stats.events_published += len(events)

    def _between(self, first: int, end: int, *, skip_lost: bool = False) -> list[NodeEvent]:
        """Give the events from one number to before another, as far as they are still here."""
        if not self._events:
            return []
        oldest = self._events[0].event_seq
        if skip_lost and first < oldest:
            first, end = oldest, oldest + end - first
        start, stop = max(0, first - oldest), min(end - oldest, len(self._events))
        return [self._events[index] for index in range(start, stop)]


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
