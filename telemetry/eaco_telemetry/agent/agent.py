"""The agent: samples at a steady pace, and lets nothing outside hold that up."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from attrs import evolve

from eaco_core.errors import EnvironmentFault, InputError, InternalError
from eaco_telemetry.agent.options import AgentOptions, AgentStats, Plug, Sink, Source
from eaco_telemetry.agent.outbox import Outbox
from eaco_telemetry.agent.pace import Pace, wait_for_stop
from eaco_telemetry.meta import NodeEvent, NodeMeta, node_meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_telemetry.agent.publisher import Publisher
    from eaco_telemetry.sampler import Sampled
    from eaco_telemetry.samples import NodeSample
    from eaco_telemetry.transport import Connect

_LOG: Final = logging.getLogger("eaco.agent")
_END_S: Final = 5.0
_END_ALONE_S: Final = 0.5  # while no connection is there to say goodbye on


class Agent:
    """Takes samples from a source, publishes them, and gives them to sinks.

    ```python
    agent = Agent(sampler, mqtt_connector(options), AgentOptions(node_id="box-1"))
    await agent.run(stop)      # until the event `stop` is set, or the source has an end
    ```

    `connect`: None to publish nothing. `stats` may be read at any time.
    """

    def __init__(
        self,
        sampler: Source,
        connect: Connect | None,
        options: AgentOptions,
        *,
        sinks: Sequence[Sink] = (),
        plugs: Sequence[Plug] = (),
        log: logging.Logger = _LOG,
    ) -> None:
        self.stats = AgentStats()
        self._sampler = sampler
        self._connect = connect
        self._options = options
        self._sinks = list(sinks)
        self._plugs = tuple(plugs)
        self._log = log
        self._outbox = Outbox(options.ring, self.stats)
        self._meta: NodeMeta | None = None
        self._event_seq = 0
        self._stuck = False
        self._closing: set[asyncio.Future[None]] = set()
        self._publisher: Publisher | None = None
        self._publishing: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then say goodbye to the broker and close everything.

        Raises what the source raises; what a broker or a sink does is only logged.
        """
        try:
            await self._sampler.open()
            await self._tick_until(stop)
        finally:
            await self._end()

    # ----------------------------------------------------------------------- sampling

    async def _tick_until(self, stop: asyncio.Event) -> None:
        pace: Pace | None = None
        while not stop.is_set():
            try:
                sampled = await self._sample(stop)
            except StopAsyncIteration:
                self._log.info("the recording is at its end")
                return
            if sampled is None:
                return
            self._take(sampled)
            self._check_publisher()
            self._check_readers()
            if self._options.self_paced:
                await asyncio.sleep(0)
                continue
            # From the end of the first sample on, before which much is loaded.
            pace = pace or Pace(self._options.period_s, time.monotonic)
            delay_s = pace.next_delay_s()
            self.stats.ticks_missed = pace.missed
            if await wait_for_stop(stop, delay_s):
                return

    async def _sample(self, stop: asyncio.Event) -> Sampled | None:
        """Take a sample; None if we are stopped while a source waits for its time."""
        if not self._options.self_paced:
            return await self._sampler.sample()
        sampling = asyncio.ensure_future(self._sampler.sample())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({sampling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return sampling.result() if sampling.done() else None
        finally:
            stopping.cancel()
            sampling.cancel()
            await asyncio.wait({sampling, stopping})

    def _take(self, sampled: Sampled) -> None:
        sample = sampled.sample
        if sample.node_id != self._options.node_id:
            raise InputError(
                f"the samples are of the node {sample.node_id!r}, but the agent is to publish"
                f" as {self._options.node_id!r}"
            )
        self.stats.samples += 1
        events = [self._event(sampled, index) for index in range(len(sampled.events))]
        meta = self._meta_of(sample)
        if self._connect is not None:
            for event in events:
                self._outbox.put_event(event)
            self._outbox.put(sample, meta)
            if self._publishing is None:
                self._start_publishing(self._connect, sample)
        for sink in tuple(self._sinks):
            self._give(sink, sample, events)

    def _check_readers(self) -> None:
        """Say once, or end, if a reader hangs in a driver so that only a new process can help."""
        if self._stuck or not getattr(self._sampler, "must_restart", False):
            return
        self._stuck = True
        what = "a reader hangs in its driver, and only a new process of the agent can read again"
        if self._options.exit_when_stuck:
            raise EnvironmentFault(f"{what}; it ends so that its supervisor starts one")
        self._log.error("%s; restart it", what)

    def _event(self, sampled: Sampled, index: int) -> NodeEvent:
        event, sample = sampled.events[index], sampled.sample
        made = NodeEvent(
            node_id=sample.node_id,
            session_id=sample.session_id,
            event_seq=self._event_seq,
            wall_ns=sample.wall_ns,
            monotonic_ns=sample.monotonic_ns,
            kind=event.kind,
            gpu_id=event.gpu_id,
            code=event.code,
            message=event.message,
        )
        self._event_seq += 1
        self.stats.events += 1
        return made

    def _meta_of(self, sample: NodeSample) -> NodeMeta:
        """Give the meta of a sample: the one before, unless something of it has changed.

        `wall_ns` names a meta, so it goes up by at least 1 also when the wall clock goes back.
        """
        before = self._meta
        meta = node_meta(
            sample,
            period_s=self._options.period_s,
            agent=self._options.agent,
            readers=self._sampler.readers,
            wall_ns=time.time_ns() if before is None else before.wall_ns,
        )
        if before is not None:
            if meta == before:
                return before
            meta = evolve(meta, wall_ns=max(time.time_ns(), before.wall_ns + 1))
        self._meta = meta
        return meta

    # -------------------------------------------------------------------------- sinks

    def _give(self, sink: Sink, sample: NodeSample, events: Sequence[NodeEvent]) -> None:
        try:
            sink.take(sample, events)
        except EnvironmentFault as fault:
            self._drop(sink, str(fault))
        except Exception as error:  # noqa: BLE001 - one sink must not end the others
            self._log.exception("the sink %s has a fault of its own; please report it", sink.name)
            self._drop(sink, str(error) or type(error).__name__)

    def _drop(self, sink: Sink, why: str) -> None:
        self._sinks.remove(sink)
        self.stats.sinks_dropped.append(sink.name)
        self._log.error("%s has ended, everything else goes on: %s", sink.name, why)
        # On a thread: what failed may hang too, and sampling is not to wait for it.
        self._closing.add(asyncio.ensure_future(asyncio.to_thread(self._close_sink, sink)))

    def _close_sink(self, sink: Sink) -> None:
        try:
            sink.close()
        except EnvironmentFault as fault:
            self._log.error("%s was not closed in order: %s", sink.name, fault)
        except Exception:  # noqa: BLE001 - as above
            self._log.exception("%s was not closed in order; please report it", sink.name)

    # ---------------------------------------------------------------------- publisher

    def _start_publishing(self, connect: Connect, sample: NodeSample) -> None:
        # Loaded here, because an agent that only records needs no extra for messages.
        from eaco_telemetry.agent.publisher import Publisher  # noqa: PLC0415 - as said

        self._publisher = Publisher(
            connect,
            self._outbox,
            self._options,
            sample.session_id,
            stats=self.stats,
            plugs=self._plugs,
            log=self._log,
        )
        self._publishing = asyncio.create_task(self._publisher.run(), name="eaco-publisher")

    def _check_publisher(self) -> None:
        task = self._publishing
        if task is None or not task.done():
            return
        fault = task.exception()
        raise fault or InternalError("the publisher of the agent ended by itself")

    async def _end(self) -> None:
        """Close everything: the connection first, because the rest may take a while."""
        try:
            await self._end_publishing()
        finally:
            # A recording joins its parts now, which is no work for the event loop's thread.
            for sink in self._sinks:
                await asyncio.to_thread(self._close_sink, sink)
            self._sinks = []
            if self._closing:
                await asyncio.wait(self._closing)
            await self._sampler.close()

    async def _end_publishing(self) -> None:
        task = self._publishing
        if task is None or self._publisher is None:
            return
        self._publisher.end()
        connected = self.stats.connected
        await asyncio.wait({task}, timeout=_END_S if connected else _END_ALONE_S)
        if not task.done():
            if connected:
                self._log.warning("the broker did not take the last messages in %.0f s", _END_S)
            task.cancel()
            await asyncio.wait({task})
