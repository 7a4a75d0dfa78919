"""The subscriber: keeps a connection, and gives what comes over it as an async iterator."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from eaco_core.errors import EnvironmentFault, InternalError
from eaco_telemetry.subscriber.faults import FaultLog
from eaco_telemetry.subscriber.options import SubscriberCounters, SubscriberOptions
from eaco_telemetry.subscriber.update_queue import UpdateQueue
from eaco_telemetry.subscriber.updates import ConnectionChanged, NodeView
from eaco_telemetry.topics import filters
from eaco_telemetry.transport import Backoff, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
    from types import TracebackType

    from eaco_telemetry.subscriber.intake import Intake
    from eaco_telemetry.subscriber.stats import WindowStats
    from eaco_telemetry.subscriber.updates import Update
    from eaco_telemetry.transport import Connect, Incoming, Transport

_SUBSCRIBE_TIMEOUT_S: Final = 10.0
_BREATHE_EVERY: Final = 64

_LOG: Final = logging.getLogger("eaco.subscriber")
_DEFAULT: Final = SubscriberOptions()


class Subscriber:
    """Samples, states and events of all nodes of one broker.

    ```python
    async with Subscriber(mqtt_connector(options)) as subscriber:
        async for update in subscriber:
            ...
    ```

    It connects again by itself whenever the connection breaks; `ConnectionChanged` tells. It
    takes what arrives whether or not the iterator is read: `nodes` is always up to date, and
    updates that nobody takes are dropped, oldest samples first, and counted. One reader of
    the iterator at a time.

    `own_pids`: given site and node, the processes there that are ours (numbers of the host),
    or None if that is not known. With it, `ForeignChanged` tells of strangers.

    Raises `EnvironmentFault` where the extra ``mqtt`` is not installed. The iterator raises
    it for what no new connection can help; a broker that is away or refuses is no such thing.
    """

    def __init__(
        self,
        connect: Connect,
        options: SubscriberOptions = _DEFAULT,
        *,
        log: logging.Logger = _LOG,
        own_pids: Callable[[str, str], Collection[int] | None] | None = None,
    ) -> None:
        self.counters = SubscriberCounters()
        self._connect = connect
        self._options = options
        self._filters = filters(options.site, options.node_id)
        self._faults = FaultLog(log, options.log_every_s)
        self._intake = _intake(options, self.counters, self._faults, own_pids)
        self._queue = UpdateQueue(
            options.max_updates, self.counters, max_bytes=options.max_waiting_bytes
        )
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._transport: Transport | None = None
        self._discards_before = 0
        self.nodes: Mapping[tuple[str, str], NodeView] = _Nodes(self._intake)

    def handle(self, incoming: Incoming) -> list[Update]:
        """Take one message and give what it tells. No input or output; never raises.

        The running subscriber calls this for every message. A program that has messages from
        elsewhere may call it too, without a connection.
        """
        return self._intake.handle(incoming)

    def check_ages(self, now_s: float) -> list[Update]:
        """Give the nodes that went stale by a time on the monotonic clock of this machine."""
        return self._intake.check_ages(now_s)

    def window(self, site: str, node_id: str, gpu_id: str, value: str) -> WindowStats | None:
        """Give the statistics of a value of `window_values`; None if nothing came for it."""
        node = self._intake.nodes.get((site, node_id))
        return None if node is None else node.windows.get((gpu_id, value))

    # ---------------------------------------------------------------- running

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise InternalError("a subscriber can be entered once: make another one")
        self._task = asyncio.create_task(self._run(), name="eaco subscriber")
        self._task.add_done_callback(lambda _: self._fresh.set())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = self._task
        if task is None:
            return
        await _end(task)
        if error is None and not task.cancelled() and (fault := task.exception()) is not None:
            raise fault

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        while True:
            update = self._queue.get()
            if update is not None:
                return update
            task = self._task
            if task is None:
                raise InternalError("use 'async with' before reading from a subscriber")
            if task.done():
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
                raise StopAsyncIteration
            self._fresh.clear()
            await self._fresh.wait()

    async def _run(self) -> None:
        watch = asyncio.create_task(self._watch(), name="eaco subscriber ages")
        try:
            await self._stay_connected()
        finally:
            await _end(watch)

    async def _stay_connected(self) -> None:
        options = self._options
        backoff = Backoff(first_s=options.backoff_first_s, cap_s=options.backoff_cap_s)
        while True:
            try:
                await self._listen(backoff)
                wait_s, reason = backoff.next_s(), "the broker ended the connection"
            except ConnectionLost as fault:
                wait_s, reason = backoff.next_s(fault), str(fault)
            self._faults.tell("connection", reason, time.monotonic())
            self._tell([ConnectionChanged(connected=False, reason=reason, retry_in_s=wait_s)])
            await asyncio.sleep(wait_s)

    async def _listen(self, backoff: Backoff) -> None:
        """Connect, subscribe and take messages until the connection breaks."""
        async with self._connect() as transport:
            try:
                async with asyncio.timeout(_SUBSCRIBE_TIMEOUT_S):
                    await transport.subscribe(self._filters)
            except TimeoutError:
                raise ConnectionLost(
                    f"the broker did not answer a subscription in {_SUBSCRIBE_TIMEOUT_S:.0f} s"
                ) from None
            backoff.reset()
            self._transport = transport
            self._discards_before = self.counters.transport_discards
            self.counters.connections += 1
            self._tell([ConnectionChanged(connected=True)])
            taken = 0
            try:
                async for incoming in transport.messages():
                    updates = self._intake.handle(incoming)
                    if updates:
                        self._tell(updates, len(incoming.payload))
                    taken += 1
                    if taken % _BREATHE_EVERY == 0:
                        # A full queue never waits: let readers and timers have their turn.
                        await asyncio.sleep(0)
            finally:
                self._count_discards()
                self._transport = None

    def _tell(self, updates: Iterable[Update], size_bytes: int = 0) -> None:
        for update in updates:
            self._queue.put(update, size_bytes)
        self._fresh.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._options.check_every_s)
            now_s = time.monotonic()
            updates = self._intake.check_ages(now_s)
            if updates:
                self._tell(updates)
            self._count_discards()
            self._faults.flush(now_s)

    def _count_discards(self) -> None:
        if self._transport is None:
            return
        counted = self._discards_before + self._transport.discarded
        more = counted - self.counters.transport_discards
        if more > 0:
            self.counters.transport_discards = counted
            self._faults.tell(
                "discards",
                f"{more} messages were dropped, because they come faster than they are taken:"
                " raise max_incoming, or listen to fewer nodes",
                time.monotonic(),
            )


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, without taking a cancellation that is for us."""
    task.cancel()
    await asyncio.wait({task})


class _Nodes(Mapping[tuple[str, str], NodeView]):
    """What is known of each node, as of now. Keys are (site, node)."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def __getitem__(self, key: tuple[str, str]) -> NodeView:
        return self._intake.view(self._intake.nodes[key], time.monotonic())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(list(self._intake.nodes))

    def __len__(self) -> int:
        return len(self._intake.nodes)


def _intake(
    options: SubscriberOptions,
    counters: SubscriberCounters,
    faults: FaultLog,
    own_pids: Callable[[str, str], Collection[int] | None] | None,
) -> Intake:
    try:
        from eaco_telemetry.subscriber.intake import Intake  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise EnvironmentFault(
            "a subscriber needs the package msgspec: pip install 'eaco[mqtt]'"
        ) from None
    return Intake(options, counters, faults, own_pids)
