"""The network side of an agent: connects, publishes what waits, and connects again."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eaco_telemetry.meta import NodeCondition, NodeState
from eaco_telemetry.topics import NodeTopics
from eaco_telemetry.transport import Backoff, ConnectionLost, ConnectionRefused, Will, matches
from eaco_telemetry.wire import encode_event, encode_meta, encode_sample, encode_state

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Sequence

    from eaco_telemetry.agent.options import AgentOptions, AgentStats, Plug
    from eaco_telemetry.agent.outbox import Outbox
    from eaco_telemetry.meta import NodeEvent, NodeMeta
    from eaco_telemetry.transport import Connect, Transport

_AT_ONCE: Final = 16  # events in flight
_AGAIN_EVERY_S: Final = 0.25  # so 64 old events a second
_CALL_S: Final = 15.0
_GOODBYE_S: Final = 3.0
_GOOD_AFTER_S: Final = 10.0
_SHORT_S: Final = 2.0
_SHORT_ONES: Final = 3
_SAY_AGAIN_S: Final = 60.0


class Publisher:
    """Publishes what is in an outbox for as long as it runs, over as many connections as it takes.

    `session_id`: of the samples; the last will carries it.
    """

    def __init__(
        self,
        connect: Connect,
        outbox: Outbox,
        options: AgentOptions,
        session_id: str,
        *,
        stats: AgentStats,
        plugs: Sequence[Plug],
        log: logging.Logger,
    ) -> None:
        self._connect = connect
        self._outbox = outbox
        self._options = options
        self._session_id = session_id
        self._stats = stats
        self._plugs = plugs
        self._log = log
        self._topics = NodeTopics(options.site, options.node_id)
        self._ending = False
        self._said: tuple[str, float] | None = None
        self._told_lost = False
        self._short = 0
        self._last_s = 0.0

    async def run(self) -> None:
        """Keep publishing until `end` is called. Never raises for what a broker does."""
        options = self._options
        backoff = Backoff(
            options.backoff_first_s, options.backoff_cap_s, slow_s=options.slow_retry_s
        )
        while not self._ending:
            began_s: float | None = None
            try:
                async with self._connect(will=self._will()) as transport:
                    began_s = time.monotonic()
                    self._connected()
                    await self._while_connected(transport)
                    if self._ending:
                        await self._say_goodbye(transport)
                        return
            except ConnectionLost as lost:
                self._stats.connected = False
                self._note_end(lost, began_s, backoff)
                await self._pause(backoff.next_s(lost), lost)
            finally:
                self._stats.connected = False

    def end(self) -> None:
        """Let the running connection send what waits, say goodbye, and `run` return."""
        self._ending = True
        self._outbox.changed.set()

    # --------------------------------------------------------------------- connection

    def _will(self) -> Will:
        return Will(self._topics.state, self._state(NodeCondition.LOST, wall_ns=None))

    def _state(self, condition: NodeCondition, wall_ns: int | None) -> bytes:
        return encode_state(NodeState(self._options.node_id, self._session_id, condition, wall_ns))

    def _connected(self) -> None:
        self._stats.connections += 1
        self._stats.connected = True
        if self._stats.connections == 1 or self._told_lost:
            again = "" if self._stats.connections == 1 else " again"
            self._log.info("connected to the broker%s", again)
        self._told_lost = False

    def _note_end(self, lost: ConnectionLost, began_s: float | None, backoff: Backoff) -> None:
        """Count, and see whether the connection was good enough to begin with short pauses."""
        if began_s is None:
            self._stats.attempts_failed += 1
            return
        held_s = time.monotonic() - began_s
        if held_s >= min(_GOOD_AFTER_S, self._options.backoff_cap_s):
            backoff.reset()
            self._said = None
        self._short = self._short + 1 if held_s < _SHORT_S else 0
        if self._short == _SHORT_ONES and not isinstance(lost, ConnectionRefused):
            self._log.warning(
                "the broker broke %d connections right after they were made; perhaps a second"
                " agent runs as the node %s of the site %s: two with one name throw each other out",
                self._short,
                self._options.node_id,
                self._options.site,
            )

    async def _pause(self, pause_s: float, lost: ConnectionLost) -> None:
        if self._ending:
            return
        text, now_s = str(lost), time.monotonic()
        if self._said is None or self._said[0] != text or now_s - self._said[1] >= _SAY_AGAIN_S:
            self._said, self._told_lost = (text, now_s), True
            self._log.warning("%s; next try in %.1f s", text, pause_s)
        until_s = now_s + pause_s
        while not self._ending and (left_s := until_s - time.monotonic()) > 0:
            self._outbox.changed.clear()
            await self._changed(left_s)

    async def _while_connected(self, transport: Transport) -> None:
        """Publish, and take the messages of plugs, until we end or the connection does."""
        publishing = asyncio.create_task(self._publish_all(transport), name="eaco-publish")
        listening = asyncio.create_task(self._listen(transport), name="eaco-listen")
        tasks = {publishing, listening}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        faults = [task.exception() for task in tasks if not task.cancelled()]
        for fault in faults:
            if fault is not None:
                raise fault

    async def _listen(self, transport: Transport) -> None:
        """Hand messages to plugs; without any, only notice the end of the connection."""
        filters = [one for plug in self._plugs for one in plug.filters]
        if filters:
            try:
                await _in_time(transport.subscribe(filters))
            except ConnectionRefused as refused:
                self._log.warning("no values of smart plugs: %s", refused)
        async for incoming in transport.messages():
            self._stats.plug_messages += 1
            for plug in self._plugs:
                if any(matches(one, incoming.topic) for one, _qos in plug.filters):
                    plug.feed(
                        incoming.topic,
                        incoming.payload,
                        incoming.received_s,
                        retain=incoming.retain,
                    )
        raise ConnectionLost("the connection to the broker ended")

    # --------------------------------------------------------------------- publishing

    async def _publish_all(self, transport: Transport) -> None:
        """Publish the birth, then what waits, until it is time to end.

        Events that an earlier broker has acknowledged are published again too, a few at a
        time, so that a thousand agents do not flood a broker that has just come back.
        """
        outbox, ring = self._outbox, self._outbox.events
        told = await self._birth(transport)
        ring.begin_again()
        repeat_s: float | None = time.monotonic() + self._options.repeat_s
        next_s = 0.0
        while True:
            outbox.changed.clear()
            told = await self._publish_waiting(transport, told)
            if self._ending:
                return
            now_s = time.monotonic()
            if repeat_s is not None and now_s >= repeat_s:
                repeat_s = None
                ring.begin_again()
            if now_s >= next_s and (events := ring.again(_AT_ONCE)):
                await self._publish_events(transport, events)
                next_s = now_s + _AGAIN_EVERY_S
            await self._changed(_AGAIN_EVERY_S if ring.again(1) else None)

    async def _publish_waiting(
        self, transport: Transport, told: NodeMeta | None
    ) -> NodeMeta | None:
        """Publish a new meta, new events and the newest sample; give the meta that is known."""
        outbox = self._outbox
        while True:
            if outbox.meta is not None and outbox.meta is not told:
                told = await self._publish_meta(transport, outbox.meta)
            events = outbox.events.fresh(_AT_ONCE)
            await self._publish_events(transport, events)
            await self._publish_sample(transport, told)
            if not events:
                return told

    async def _changed(self, timeout_s: float | None) -> None:
        """Wait until something was left in the outbox, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._outbox.changed.wait()

    async def _birth(self, transport: Transport) -> NodeMeta | None:
        meta = self._outbox.meta
        if meta is not None:
            await self._publish_meta(transport, meta)
        state = self._state(NodeCondition.READY, time.time_ns())
        await _in_time(transport.publish(self._topics.state, state, qos=1, retain=True))
        return meta

    async def _publish_meta(self, transport: Transport, meta: NodeMeta) -> NodeMeta:
        payload = encode_meta(meta)
        await _in_time(transport.publish(self._topics.meta, payload, qos=1, retain=True))
        for topic, text in self._options.announce(meta):
            await _in_time(transport.publish(topic, text, qos=1, retain=True))
        self._stats.metas_published += 1
        return meta

    async def _publish_events(self, transport: Transport, events: list[NodeEvent]) -> None:
        """Publish a few events at the same time."""
        if not events:
            return
        topic = self._topics.event
        calls = [
            asyncio.ensure_future(transport.publish(topic, encode_event(event), qos=1))
            for event in events
        ]
        try:
            await _in_time(asyncio.gather(*calls))
        finally:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        self._outbox.events.published(events)

    async def _publish_sample(self, transport: Transport, meta: NodeMeta | None) -> None:
        sample = self._outbox.take_sample()
        if sample is None:
            return
        payload = encode_sample(sample, meta)
        every_s, now_s = self._options.last_every_s, time.monotonic()
        retain = every_s is not None and (not self._last_s or now_s - self._last_s >= every_s)
        await _in_time(transport.publish(self._topics.sample, payload, retain=retain))
        if retain:
            self._last_s = now_s
        self._stats.samples_published += 1

    async def _say_goodbye(self, transport: Transport) -> None:
        state = self._state(NodeCondition.DISCONNECTED, time.time_ns())
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await transport.publish(self._topics.state, state, qos=1, retain=True)
        except TimeoutError:
            raise ConnectionLost("the broker did not take the goodbye in time") from None


async def _in_time(call: Awaitable[object]) -> None:
    """Do a call of a transport; one that takes too long means that the connection is dead."""
    try:
        async with asyncio.timeout(_CALL_S):
            await call
    except TimeoutError:
        raise ConnectionLost(f"the broker did not answer within {_CALL_S:.0f} s") from None
