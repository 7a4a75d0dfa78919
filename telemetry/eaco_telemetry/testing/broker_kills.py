"""A broker that is killed again and again under load, and what agents and a subscriber make of it.

The heart of `benchmarks/broker_killed.py` and of a shorter test. Needs mosquitto and the
extra ``mqtt``.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.agent import Agent, AgentOptions
from eaco_telemetry.broker import LOOPBACK, mosquitto_program
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.readers.base import DeviceEvent
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.sampler import Sampled, Sampler
from eaco_telemetry.subscriber import (
    EventReceived,
    GapSeen,
    SampleReceived,
    Subscriber,
    SubscriberOptions,
)
from eaco_telemetry.transport import MqttOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from eaco_telemetry.samples import Moment
    from eaco_telemetry.transport import Connect, Transport, Will

_START_S: Final = 5.0
_SETTLE_S: Final = 2.0


class KillableBroker:
    """mosquitto on a fixed port of the loopback, which can be killed with SIGKILL and started."""

    def __init__(self, port: int, folder: Path, lines: Iterable[str] = ()) -> None:
        program = mosquitto_program()
        if program is None:
            raise EnvironmentFault("mosquitto is not installed")
        config = folder / "mosquitto.conf"
        text = [f"listener {port} {LOOPBACK}", "persistence false", "user root", *lines]
        if not any("allow_anonymous" in line for line in text):
            text.append("allow_anonymous true")
        config.write_text("\n".join([*text, ""]), encoding="utf-8")
        self.port = port
        self._command = [program, "-c", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it and wait until it takes connections; give the time, monotonic."""
        if self._process is not None:
            raise EnvironmentFault("this broker runs already")
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            try:
                socket.create_connection((LOOPBACK, self.port), timeout=1.0).close()
            except OSError:
                time.sleep(0.01)
            else:
                return time.monotonic()
        self.kill()
        raise EnvironmentFault(f"mosquitto did not start on port {self.port}")

    def kill(self) -> None:
        """Kill it with SIGKILL, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def free_port() -> int:
    """Give a port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        number: int = probe.getsockname()[1]
    return number


@frozen
class Kill:
    """One kill. Seconds from the moment the broker takes connections again."""

    agents_s: float
    """Until the last of the agents has published, acknowledged."""
    subscriber_s: float
    """Until the subscriber has got a sample of each agent."""


@define
class KillReport:
    """What came of it. Empty sets are what is wanted. A number is (session, number)."""

    kills: list[Kill] = field(factory=list[Kill])
    samples_taken: int = 0
    samples_received: int = 0
    events_made: int = 0
    events_lost: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    events_twice: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    gaps: int = 0
    samples_missing: int = 0
    missing_untold: set[tuple[str, int]] = field(factory=set[tuple[str, int]])


@define
class _Seen:
    """What the subscriber told."""

    samples: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    in_gaps: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    events: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    twice: set[tuple[str, int]] = field(factory=set[tuple[str, int]])
    last_s: dict[str, float] = field(factory=dict[str, float])
    changed: asyncio.Event = field(factory=asyncio.Event)
    gaps: int = 0


@define
class _EventfulSource:
    """Simulated GPUs to which something happens at every second tick."""

    sampler: Sampler
    ticks: int = 0

    @property
    def readers(self) -> tuple[str, ...]:
        return self.sampler.readers

    async def open(self) -> None:
        await self.sampler.open()

    async def sample(self, now: Moment | None = None) -> Sampled:
        sampled = await self.sampler.sample(now)
        self.ticks += 1
        if self.ticks % 2:
            return sampled
        return Sampled(sampled.sample, (DeviceEvent("xid", code=13, message="made up"),))

    async def close(self) -> None:
        await self.sampler.close()


@define
class _Watched:
    """An agent, and when each of its connections published first."""

    node_id: str
    agent: Agent
    published_s: list[float]


async def kill_and_watch(
    port: int,
    *,
    kills: int,
    every_s: float = 3.0,
    down_s: float = 0.3,
    agents: int = 4,
    period_s: float = 0.1,
    backoff_cap_s: float = 1.0,
) -> KillReport:
    """Let agents publish and a subscriber listen while the broker is killed `kills` times."""
    with tempfile.TemporaryDirectory(prefix="eaco-kills-") as folder:
        broker = KillableBroker(port, Path(folder))
        report, seen = KillReport(), _Seen()
        stop = asyncio.Event()
        watched = [_agent(f"node-{i}", port, period_s, backoff_cap_s) for i in range(agents)]
        broker.start()
        try:
            options = SubscriberOptions(backoff_first_s=0.2, backoff_cap_s=backoff_cap_s)
            connect = mqtt_connector(MqttOptions(port=port, client_id="eaco-watch"))
            async with Subscriber(connect, options) as subscriber:
                watching = asyncio.create_task(_watch(subscriber, seen))
                running = [asyncio.create_task(one.agent.run(stop)) for one in watched]
                await _each_seen(seen, watched, 0.0, 10.0)
                for _ in range(kills):
                    report.kills.append(await _kill(broker, seen, watched, every_s, down_s))
                await asyncio.sleep(2 * backoff_cap_s + 1 + _SETTLE_S)  # see AgentOptions
                stop.set()
                await asyncio.gather(*running)
                await asyncio.sleep(_SETTLE_S / 2)
                watching.cancel()
                await asyncio.wait({watching})
        finally:
            broker.kill()
    _compare(report, seen, watched)
    return report


def _agent(node_id: str, port: int, period_s: float, backoff_cap_s: float) -> _Watched:
    reader = SimulatedReader(node_id, gpus=8, seed=1)
    sampler = Sampler([reader], node_id=node_id, session_id=f"session-{node_id}")
    options = AgentOptions(
        node_id=node_id, period_s=period_s, backoff_first_s=0.2, backoff_cap_s=backoff_cap_s
    )
    published_s: list[float] = []
    connect = mqtt_connector(MqttOptions(port=port, client_id=f"eaco-{node_id}-agent"))
    agent = Agent(_EventfulSource(sampler), _noting(connect, published_s), options)
    return _Watched(node_id, agent, published_s)


def _noting(connect: Connect, published_s: list[float]) -> Connect:
    """Note when each connection has published its first message."""

    @asynccontextmanager
    async def noted(*, will: Will | None = None) -> AsyncGenerator[Transport, None]:
        async with connect(will=will) as transport:
            publish, first = transport.publish, [True]

            async def noting(
                topic: str, payload: bytes, *, qos: int = 0, retain: bool = False
            ) -> None:
                await publish(topic, payload, qos=qos, retain=retain)
                if first[0]:
                    first[0] = False
                    published_s.append(time.monotonic())

            transport.publish = noting  # type: ignore[method-assign] # of this one only
            yield transport

    return noted


async def _watch(subscriber: Subscriber, seen: _Seen) -> None:
    async for update in subscriber:
        if isinstance(update, SampleReceived):
            seen.samples.add((update.sample.session_id, update.sample.seq))
            seen.last_s[update.node_id] = update.received_s
            seen.changed.set()
        elif isinstance(update, GapSeen):
            seen.gaps += 1
            numbers = range(update.first_seq, update.last_seq + 1)
            seen.in_gaps |= {(update.session_id, seq) for seq in numbers}
        elif isinstance(update, EventReceived):
            key = (update.event.session_id, update.event.event_seq)
            (seen.twice if key in seen.events else seen.events).add(key)


async def _kill(
    broker: KillableBroker, seen: _Seen, watched: list[_Watched], every_s: float, down_s: float
) -> Kill:
    began_s = time.monotonic()
    broker.kill()
    await asyncio.sleep(down_s)
    up_s = await asyncio.to_thread(broker.start)
    await _each_seen(seen, watched, up_s, 10.0)
    agents_s = max(min(t for t in one.published_s if t > began_s) for one in watched) - up_s
    subscriber_s = max(seen.last_s[one.node_id] for one in watched) - up_s
    await asyncio.sleep(max(0.0, began_s + every_s - time.monotonic()))
    return Kill(max(0.0, agents_s), subscriber_s)


async def _each_seen(
    seen: _Seen, watched: list[_Watched], since_s: float, timeout_s: float
) -> None:
    """Wait until a sample of each agent has come since then."""
    async with asyncio.timeout(timeout_s):
        while not all(seen.last_s.get(one.node_id, -1.0) > since_s for one in watched):
            seen.changed.clear()
            await seen.changed.wait()


def _compare(report: KillReport, seen: _Seen, watched: list[_Watched]) -> None:
    for one in watched:
        session, stats = f"session-{one.node_id}", one.agent.stats
        report.samples_taken += stats.samples
        report.events_made += stats.events
        report.events_lost |= {(session, n) for n in range(stats.events)} - seen.events
        mine = [seq for name, seq in seen.samples if name == session]
        between = {(session, seq) for seq in range(min(mine), max(mine) + 1)}
        missing = between - seen.samples
        report.samples_missing += len(missing)
        report.missing_untold |= missing - seen.in_gaps
    report.samples_received = len(seen.samples)
    report.events_twice = seen.twice
    report.gaps = seen.gaps
