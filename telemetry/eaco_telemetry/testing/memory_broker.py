"""A broker in memory, for tests of what publishes and subscribes, with faults on demand.

`MemoryBroker.connect` is a `Connect`. Everything happens in the event loop of the test, at
once and in order, so nothing depends on time. QoS is recorded and otherwise ignored.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from attrs import frozen

from eaco_telemetry.transport import (
    ConnectionLost,
    ConnectionRefused,
    Incoming,
    Transport,
    Will,
    matches,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence


@frozen
class Published:
    """One message that the broker got. `connection`: the number of the connection, 0 for none."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    connection: int


class MemoryBroker:
    """A broker for one test.

    `published`: all that came, in order, wills too. `retained`: topic to payload.
    `connections`: how many were made, `subscriptions`: the filters of each, in order.
    `max_incoming`: how many messages wait for a client before further ones are dropped.
    """

    def __init__(self, *, max_incoming: int = 20_000) -> None:
        self.published: list[Published] = []
        self.retained: dict[str, bytes] = {}
        self.connections = 0
        self.attempts = 0
        self.subscriptions: list[tuple[str, int]] = []
        self._max_incoming = max_incoming
        self._clients: list[_Client] = []
        self._refusal: ConnectionLost | None = None
        self._refusals_left: int | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    @asynccontextmanager
    async def connect(self, *, will: Will | None = None) -> AsyncGenerator[Transport, None]:
        """Make one connection. It is a `Connect`."""
        self.attempts += 1
        await asyncio.sleep(0)  # as a real one: others run meanwhile
        await self._flowing.wait()
        self._raise_refusal()
        self.connections += 1
        client = _Client(self, self.connections, will, self._max_incoming)
        self._clients.append(client)
        try:
            yield client
        except BaseException:
            self._end(client, with_will=True)
            raise
        self._end(client, with_will=False)

    # ------------------------------------------------------------------------- faults

    def drop_all(self, *, wills: bool = True) -> int:
        """Break every connection, and publish the wills; give how many were broken."""
        clients = list(self._clients)
        for client in clients:
            self._end(client, with_will=wills)
        return len(clients)

    def refuse(
        self, reason: str = "there is no broker", *, slowly: bool = False, times: int | None = None
    ) -> None:
        """Let no new connection be made, for the next `times` or until `accept`.

        `slowly`: refused as for a wrong password.
        """
        self._refusal = ConnectionRefused(reason) if slowly else ConnectionLost(reason)
        self._refusals_left = times

    def accept(self) -> None:
        """Let connections be made again."""
        self._refusal = None

    def stall(self) -> None:
        """Let publishing, subscribing and connecting wait until `go_on`, as a full network does."""
        self._flowing.clear()

    def go_on(self) -> None:
        """End a stall."""
        self._flowing.set()

    # ---------------------------------------------------------------------- messages

    def put(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        connection: int = 0,
    ) -> None:
        """Publish a message, as if from some other client."""
        self.published.append(Published(topic, payload, qos, retain, connection))
        if retain:
            if payload:
                self.retained[topic] = payload
            else:
                self.retained.pop(topic, None)
        for client in list(self._clients):
            client.offer(topic, payload, qos, retain=False)

    def payloads(self, topic: str) -> list[bytes]:
        """Give the payloads that were published on a topic, in order."""
        return [one.payload for one in self.published if one.topic == topic]

    async def flowing(self) -> None:
        """Wait while the broker is stalled."""
        await self._flowing.wait()

    def _raise_refusal(self) -> None:
        if self._refusal is None:
            return
        refusal = self._refusal
        if self._refusals_left is not None:
            self._refusals_left -= 1
            if self._refusals_left <= 0:
                self._refusal = None
        raise refusal

    def _end(self, client: _Client, *, with_will: bool) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        client.end()
        if with_will and client.will is not None:
            will = client.will
            self.put(
                will.topic,
                will.payload,
                qos=will.qos,
                retain=will.retain,
                connection=client.number,
            )


class _Client:
    """One connection; a `Transport`."""

    def __init__(
        self, broker: MemoryBroker, number: int, will: Will | None, max_incoming: int
    ) -> None:
        self.number = number
        self.will = will
        self._broker = broker
        self._filters: list[tuple[str, int]] = []
        self._waiting: deque[Incoming] = deque()
        self._max_incoming = max_incoming
        self._changed = asyncio.Event()
        self._lost = asyncio.Event()
        self._discarded = 0

    @property
    def discarded(self) -> int:
        return self._discarded

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False
    ) -> None:
        await self._turn()
        self._broker.put(topic, payload, qos=qos, retain=retain, connection=self.number)

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        await self._turn()
        self._filters += filters
        self._broker.subscriptions += filters
        for topic, payload in self._broker.retained.items():
            if any(matches(one, topic) for one, _qos in filters):
                self.offer(topic, payload, 1, retain=True)

    async def messages(self) -> AsyncIterator[Incoming]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            self._check()
            self._changed.clear()
            await self._changed.wait()

    def offer(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Take a message if it is wanted and there is room."""
        granted = [most for one, most in self._filters if matches(one, topic)]
        if not granted:
            return
        if len(self._waiting) >= self._max_incoming:
            self._discarded += 1
            return
        level = min(qos, max(granted))
        self._waiting.append(Incoming(topic, payload, level, retain, time.monotonic()))
        self._changed.set()

    def end(self) -> None:
        """Break the connection."""
        self._lost.set()
        self._changed.set()

    async def _turn(self) -> None:
        """Wait for the broker, as a real call does, but not beyond the end of the connection."""
        self._check()
        flowing = asyncio.ensure_future(self._broker.flowing())
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait({flowing, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            flowing.cancel()
            lost.cancel()
        self._check()

    def _check(self) -> None:
        if self._lost.is_set():
            raise ConnectionLost("the broker broke the connection")
