"""The agent against a broker in memory: nothing here depends on a network."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Self

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.agent import Agent, AgentOptions, AgentStats
from eaco_telemetry.agent.outbox import EventRing, Outbox
from eaco_telemetry.agent.pace import Pace
from eaco_telemetry.meta import NodeCondition, NodeEvent, NodeMeta, node_meta
from eaco_telemetry.readers.base import DeviceEvent
from eaco_telemetry.sampler import Sampled
from eaco_telemetry.samples import GpuSample, Moment, NodeSample
from eaco_telemetry.testing.memory_broker import MemoryBroker
from eaco_telemetry.wire import decode_event, decode_meta, decode_sample, decode_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NODE = "node-1"
BASE = f"eaco/v1/lab/{NODE}"
STATE, META, SAMPLE, EVENT = (f"{BASE}/{kind}" for kind in ("state", "meta", "sample", "event"))
FAST = AgentOptions(node_id=NODE, period_s=0.01, backoff_first_s=0.02, backoff_cap_s=0.05)


@define
class Source:
    """Samples with one GPU; `events` are given with the next one. `left`: how many there are."""

    events: list[DeviceEvent] = field(factory=list[DeviceEvent])
    left: int = 1_000_000
    name: str = "GPU one"
    seq: int = 0
    must_restart: bool = False
    is_closed: bool = False
    walls_ns: list[int] = field(factory=list[int])
    readers: tuple[str, ...] = ("fake",)

    async def open(self) -> None:
        pass

    async def sample(self, now: Moment | None = None) -> Sampled:
        await asyncio.sleep(0)
        if self.seq >= self.left:
            raise StopAsyncIteration
        now = now or Moment.now()
        if self.walls_ns:
            now = evolve(now, wall_ns=self.walls_ns.pop(0))
        gpu = GpuSample("GPU-1", "nvidia", name=self.name, power_w=100.0, capabilities=("power_w",))
        sample = NodeSample(
            NODE, "session", self.seq, now.wall_ns, now.monotonic_ns, gpus=(gpu,), simulated=True
        )
        self.seq += 1
        events, self.events = tuple(self.events), []
        return Sampled(sample, events)

    async def close(self) -> None:
        self.is_closed = True


@define
class Sink:
    name: str = "a sink"
    fail_at: int | None = None
    fault: Exception = field(factory=lambda: EnvironmentFault("the disk is full"))
    seen: list[int] = field(factory=list[int])
    events: list[NodeEvent] = field(factory=list[NodeEvent])
    closed: int = 0

    def take(self, sample: NodeSample, events: Sequence[NodeEvent]) -> None:
        if self.fail_at is not None and sample.seq >= self.fail_at:
            raise self.fault
        self.seen.append(sample.seq)
        self.events += events

    def close(self) -> None:
        self.closed += 1


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is counted, not signalled
            await asyncio.sleep(0.002)


@define
class Running:
    """An agent that runs while the block lasts."""

    agent: Agent
    stop: asyncio.Event = field(factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.agent.run(self.stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        assert self.task is not None
        async with asyncio.timeout(10):
            await self.task


def _states(broker: MemoryBroker) -> list[NodeCondition]:
    return [decode_state(payload).condition for payload in broker.payloads(STATE)]


def _event_seqs(broker: MemoryBroker) -> list[int]:
    return [decode_event(payload).event_seq for payload in broker.payloads(EVENT)]


# ----------------------------------------------------------------------- birth and death


def test_birth_samples_and_a_clean_end() -> None:
    broker, source = MemoryBroker(), Source()

    async def run() -> AgentStats:
        agent = Agent(source, broker.connect, FAST)
        async with Running(agent):
            await _until(lambda: len(broker.payloads(SAMPLE)) >= 3)
        return agent.stats

    stats = asyncio.run(run())
    assert [(one.topic, one.qos, one.retain) for one in broker.published[:2]] == [
        (META, 1, True),
        (STATE, 1, True),
    ]
    samples = [one for one in broker.published if one.topic == SAMPLE]
    assert all((one.qos, one.retain) == (0, False) for one in samples)
    meta = decode_meta(broker.retained[META])
    decoded = decode_sample(samples[0].payload, meta)
    assert decoded.gpus[0].name == "GPU one"
    assert _states(broker) == [NodeCondition.READY, NodeCondition.DISCONNECTED]
    assert source.is_closed
    assert stats.samples_published == len(samples)
    assert not stats.connected


def test_a_broken_connection_leaves_the_will_and_is_made_again() -> None:
    broker = MemoryBroker()

    async def run() -> AgentStats:
        agent = Agent(Source(), broker.connect, FAST)
        async with Running(agent):
            await _until(lambda: len(broker.payloads(SAMPLE)) >= 1)
            broker.refuse(times=2)
            broker.drop_all()
            count = len(broker.payloads(SAMPLE))
            await _until(lambda: len(broker.payloads(SAMPLE)) > count)
        return agent.stats

    stats = asyncio.run(run())
    assert [state.value for state in _states(broker)] == [
        "ready", "lost", "ready", "disconnected",
    ]  # fmt: skip
    assert {decode_state(one).session_id for one in broker.payloads(STATE)} == {"session"}
    assert len(broker.payloads(META)) == 2
    assert (stats.connections, stats.attempts_failed) == (2, 2)


def test_constants_that_change_are_told_before_the_sample_that_needs_them() -> None:
    broker, source = MemoryBroker(), Source()

    async def run() -> None:
        async with Running(Agent(source, broker.connect, FAST)):
            await _until(lambda: len(broker.payloads(SAMPLE)) >= 2)
            source.name = "GPU two"
            await _until(lambda: len(broker.payloads(META)) >= 2)
            count = len(broker.payloads(SAMPLE))
            await _until(lambda: len(broker.payloads(SAMPLE)) > count + 1)

    asyncio.run(run())
    meta: NodeMeta | None = None
    names: list[str | None] = []
    for one in broker.published:
        if one.topic == META:
            meta = decode_meta(one.payload)
        elif one.topic == SAMPLE:
            names.append(decode_sample(one.payload, meta).gpus[0].name)
    assert set(names) == {"GPU one", "GPU two"}
    assert len(broker.payloads(META)) == 2


def test_further_messages_follow_the_meta_retained() -> None:
    broker = MemoryBroker()

    def announce(meta: NodeMeta) -> list[tuple[str, bytes]]:
        return [(f"home/{meta.node_id}", b"{}")]

    options = evolve(FAST, announce=announce)

    async def run() -> None:
        async with Running(Agent(Source(), broker.connect, options)):
            await _until(lambda: bool(broker.payloads(SAMPLE)))

    asyncio.run(run())
    assert broker.retained[f"home/{NODE}"] == b"{}"


def test_one_sample_in_a_while_is_retained_if_wanted() -> None:
    broker = MemoryBroker()

    async def run() -> None:
        options = evolve(FAST, last_every_s=3600.0)
        async with Running(Agent(Source(), broker.connect, options)):
            await _until(lambda: len(broker.payloads(SAMPLE)) >= 4)

    asyncio.run(run())
    marks = [one.retain for one in broker.published if one.topic == SAMPLE]
    assert marks[0]
    assert not any(marks[1:])


# ------------------------------------------------------------------- nothing holds it up


def test_sampling_goes_on_while_the_network_stands_still() -> None:
    broker, sink = MemoryBroker(), Sink()

    async def run() -> AgentStats:
        agent = Agent(Source(), broker.connect, FAST, sinks=[sink])
        async with Running(agent):
            await _until(lambda: bool(broker.payloads(SAMPLE)))
            broker.stall()
            count = len(sink.seen)
            await _until(lambda: len(sink.seen) > count + 10)
            published = len(broker.payloads(SAMPLE))
            broker.go_on()
            await _until(lambda: len(broker.payloads(SAMPLE)) > published + 1)
        return agent.stats

    stats = asyncio.run(run())
    assert sink.seen == list(range(len(sink.seen)))
    assert stats.samples_dropped >= 8
    assert stats.samples_dropped + stats.samples_published == stats.samples
    seqs = [decode_sample(payload).seq for payload in broker.payloads(SAMPLE)]
    assert seqs == sorted(set(seqs))


def test_sampling_goes_on_without_a_broker_and_publishes_once_there_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, sink = MemoryBroker(), Sink()
    broker.refuse("there is no broker at broker.lab")

    async def run() -> None:
        async with Running(Agent(Source(), broker.connect, FAST, sinks=[sink])):
            await _until(lambda: len(sink.seen) > 20)
            assert not broker.published
            broker.accept()
            await _until(lambda: len(broker.payloads(SAMPLE)) > 1)

    asyncio.run(run())
    told = [record for record in caplog.records if "broker.lab" in record.getMessage()]
    assert len(told) == 1  # not at each of the many attempts


def test_a_wrong_password_is_told_once_and_retried_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, sink = MemoryBroker(), Sink()
    broker.refuse("wrong user name or password", slowly=True)

    async def run() -> None:
        async with Running(Agent(Source(), broker.connect, FAST, sinks=[sink])):
            await _until(lambda: len(sink.seen) > 30)

    asyncio.run(run())
    assert broker.attempts == 1
    assert sum("wrong user name" in record.getMessage() for record in caplog.records) == 1


def test_an_agent_that_is_stopped_while_the_broker_hangs_ends_soon() -> None:
    broker = MemoryBroker()

    async def run() -> None:
        async with Running(Agent(Source(), broker.connect, FAST)):
            await _until(lambda: bool(broker.payloads(SAMPLE)))
            broker.stall()

    asyncio.run(run())
    assert _states(broker)[-1] is NodeCondition.LOST  # nobody could say goodbye


def test_a_second_agent_of_the_same_name_is_suspected(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()

    async def run() -> None:
        agent = Agent(Source(), broker.connect, FAST)
        async with Running(agent):
            for number in range(1, 5):
                await _until(lambda: agent.stats.connections >= number)  # noqa: B023 - called at once
                await _until(lambda: agent.stats.connected)
                broker.drop_all()
                await _until(lambda: not agent.stats.connected)

    asyncio.run(run())
    assert sum("second agent" in record.getMessage() for record in caplog.records) == 1


# -------------------------------------------------------------------------------- events


def test_events_are_sent_once_and_again_after_a_reconnect() -> None:
    broker, source = MemoryBroker(), Source()

    async def run() -> AgentStats:
        agent = Agent(source, broker.connect, FAST)
        async with Running(agent):
            source.events = [
                DeviceEvent("xid", "GPU-1", 79, "fell off the bus"),
                DeviceEvent("lost"),
            ]
            await _until(lambda: len(_event_seqs(broker)) >= 2)
            assert _event_seqs(broker) == [0, 1]
            broker.refuse()
            broker.drop_all()
            await _until(lambda: not agent.stats.connected)
            source.events = [DeviceEvent("returned", "GPU-1")]
            await _until(lambda: agent.stats.events == 3)
            broker.accept()
            await _until(lambda: len(_event_seqs(broker)) >= 5)
        return agent.stats

    stats = asyncio.run(run())
    assert _event_seqs(broker)[:5] == [0, 1, 2, 0, 1]
    first = decode_event(broker.payloads(EVENT)[0])
    assert (first.kind, first.gpu_id, first.code) == ("xid", "GPU-1", 79)
    assert all(one.qos == 1 for one in broker.published if one.topic == EVENT)
    assert stats.events_dropped == 0


def test_the_ring_is_sent_once_more_for_subscribers_that_came_back_later() -> None:
    broker, source = MemoryBroker(), Source()

    async def run() -> None:
        options = evolve(FAST, repeat_after_s=0.2)
        agent = Agent(source, broker.connect, options)
        async with Running(agent):
            source.events = [DeviceEvent("xid")]
            await _until(lambda: len(_event_seqs(broker)) >= 1)
            await _until(lambda: len(_event_seqs(broker)) >= 2)

    asyncio.run(run())
    assert _event_seqs(broker)[:2] == [0, 0]


@given(
    size=st.integers(1, 8),
    steps=st.lists(
        st.sampled_from(["add", "fresh", "again", "break", "lose"]), min_size=1, max_size=80
    ),
    most=st.integers(1, 4),
)
def test_the_ring_gives_every_event_it_holds_and_counts_the_others(
    size: int, steps: list[str], most: int
) -> None:
    stats = AgentStats()
    ring = EventRing(size, stats)
    acknowledged: set[int] = set()
    made = 0
    for step in steps:
        if step == "add":
            ring.add(NodeEvent(NODE, "s", made, 0, 0, "xid"))
            made += 1
        elif step == "break":
            ring.begin_again()
        else:
            events = ring.again(most) if step == "again" else ring.fresh(most)
            numbers = [event.event_seq for event in events]
            assert numbers == sorted(numbers)
            assert len(numbers) <= most
            assert all(number >= made - size for number in numbers)
            if step == "again":
                assert set(numbers) <= acknowledged
            else:
                assert not set(numbers) & acknowledged
            if step != "lose":
                ring.published(events)
                acknowledged |= set(numbers)
    while events := ring.fresh(most):
        ring.published(events)
        acknowledged |= {event.event_seq for event in events}
    assert len(acknowledged) + stats.events_dropped == made
    ring.begin_again()
    again: list[int] = []
    while events := ring.again(most):
        ring.published(events)
        again += [event.event_seq for event in events]
    held = range(max(0, made - size), made)
    assert sorted(again) == list(held)


def test_the_outbox_keeps_the_newest_sample_and_counts_the_rest() -> None:
    async def run() -> None:
        stats = AgentStats()
        outbox = Outbox(8, stats)
        source = Source()
        samples = [(await source.sample()).sample for _ in range(3)]
        meta = node_meta(samples[0], period_s=1.0, agent="x", readers=(), wall_ns=0)
        for sample in samples:
            outbox.put(sample, meta)
        assert outbox.take_sample() is samples[2]
        assert outbox.take_sample() is None
        assert stats.samples_dropped == 2

    asyncio.run(run())


# --------------------------------------------------------------------------------- sinks


@pytest.mark.parametrize("fault", [EnvironmentFault("the disk is full"), RuntimeError("a bug")])
def test_a_sink_that_fails_is_closed_and_the_rest_goes_on(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broker, good, bad = MemoryBroker(), Sink("good"), Sink("bad", fail_at=3, fault=fault)

    async def run() -> AgentStats:
        agent = Agent(Source(), broker.connect, FAST, sinks=[bad, good])
        async with Running(agent):
            await _until(lambda: len(good.seen) > 8 and len(broker.payloads(SAMPLE)) > 4)
        return agent.stats

    stats = asyncio.run(run())
    assert bad.seen == [0, 1, 2]
    assert (bad.closed, good.closed) == (1, 1)
    assert stats.sinks_dropped == ["bad"]
    ends = [one for one in caplog.records if "bad has ended" in one.getMessage()]
    assert len(ends) == 1
    assert str(fault) in ends[0].getMessage()


def test_a_sink_alone_works_without_any_broker() -> None:
    source, sink = Source(left=5, events=[DeviceEvent("xid")]), Sink()
    asyncio.run(Agent(source, None, FAST, sinks=[sink]).run(asyncio.Event()))
    assert sink.seen == [0, 1, 2, 3, 4]
    assert [event.event_seq for event in sink.events] == [0]
    assert sink.closed == 1


# --------------------------------------------------------------------------------- plugs


@define
class Plug:
    filters: tuple[tuple[str, int], ...] = (("tele/desk/SENSOR", 0),)
    fed: list[tuple[str, bytes, bool]] = field(factory=list[tuple[str, bytes, bool]])

    def feed(self, topic: str, payload: bytes, received_s: float, *, retain: bool = False) -> None:
        assert received_s > 0
        self.fed.append((topic, payload, retain))


def test_messages_of_plugs_reach_them_and_only_them_also_after_a_reconnect() -> None:
    broker, plug, other = MemoryBroker(), Plug(), Plug((("shellies/x/#", 0),))
    broker.retained["tele/desk/SENSOR"] = b"old"

    async def run() -> None:
        agent = Agent(Source(), broker.connect, FAST, plugs=[plug, other])
        async with Running(agent):
            await _until(lambda: len(broker.subscriptions) == 2)
            broker.put("tele/desk/SENSOR", b"1")
            broker.put("tele/other/SENSOR", b"2")
            await _until(lambda: len(plug.fed) == 2)
            broker.drop_all()
            await _until(lambda: len(broker.subscriptions) == 4)
            broker.put("shellies/x/relay/0/power", b"3")
            await _until(lambda: len(other.fed) == 1)

    asyncio.run(run())
    assert plug.fed[:2] == [("tele/desk/SENSOR", b"old", True), ("tele/desk/SENSOR", b"1", False)]
    assert other.fed == [("shellies/x/relay/0/power", b"3", False)]


# --------------------------------------------------------------------------- time, source


@given(
    period_s=st.floats(0.01, 10),
    works=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_ticks_stay_on_the_grid_of_the_first_one_and_never_come_in_bursts(
    period_s: float, works: list[float]
) -> None:
    now_s = 1000.0
    pace = Pace(period_s, lambda: now_s)
    ticks = [0]
    for work in works:
        now_s += work * period_s
        now_s += pace.next_delay_s()
        passed = (now_s - 1000.0) / period_s
        ticks.append(round(passed))
        assert passed == pytest.approx(ticks[-1], abs=1e-6)
    assert all(later > before for before, later in itertools.pairwise(ticks))
    assert ticks[-1] == len(works) + pace.missed


def test_jumps_of_the_wall_clock_change_neither_pace_nor_order() -> None:
    broker = MemoryBroker()
    source = Source(walls_ns=[10**18, 10, 3 * 10**18, 5, 10**18])

    async def run() -> None:
        async with Running(Agent(source, broker.connect, FAST)):
            await _until(lambda: len(broker.payloads(SAMPLE)) >= 6)
            source.name = "another"
            await _until(lambda: len(broker.payloads(META)) >= 2)

    asyncio.run(run())
    seqs = [decode_sample(payload).seq for payload in broker.payloads(SAMPLE)]
    assert seqs == sorted(set(seqs))
    first, second = (decode_meta(payload).wall_ns for payload in broker.payloads(META)[:2])
    assert second > first


def test_a_source_with_an_end_ends_the_agent_in_order() -> None:
    broker = MemoryBroker()
    options = evolve(FAST, self_paced=True)
    asyncio.run(Agent(Source(left=20), broker.connect, options).run(asyncio.Event()))
    assert _states(broker)[-1] is NodeCondition.DISCONNECTED


def test_a_source_that_waits_for_its_time_is_not_waited_for_at_the_end() -> None:
    class Slow(Source):
        async def sample(self, now: Moment | None = None) -> Sampled:
            sampled = await Source.sample(self, now)
            if self.seq > 1:
                await asyncio.sleep(3600)
            return sampled

    broker = MemoryBroker()

    async def run() -> None:
        options = evolve(FAST, self_paced=True)
        async with Running(Agent(Slow(), broker.connect, options)):
            await _until(lambda: bool(broker.payloads(SAMPLE)))

    asyncio.run(run())
    assert _states(broker)[-1] is NodeCondition.DISCONNECTED


def test_samples_of_another_node_are_refused() -> None:
    with pytest.raises(InputError, match="other"):
        asyncio.run(Agent(Source(), None, evolve(FAST, node_id="other")).run(asyncio.Event()))


def test_a_reader_that_only_a_new_process_can_help_is_told_once_or_ends_the_agent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    asyncio.run(Agent(Source(left=5, must_restart=True), None, FAST).run(asyncio.Event()))
    assert sum("new process" in one.getMessage() for one in caplog.records) == 1
    options = evolve(FAST, exit_when_stuck=True)
    with pytest.raises(EnvironmentFault, match="new process"):
        asyncio.run(Agent(Source(must_restart=True), None, options).run(asyncio.Event()))


@pytest.mark.parametrize(
    "wrong",
    [{"node_id": "a/b"}, {"site": ""}, {"period_s": 0.0}, {"ring": 0}, {"ring": 257},
     {"backoff_cap_s": 0.0}, {"last_every_s": -1.0}],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        AgentOptions(**{"node_id": NODE, **wrong})  # type: ignore[arg-type] # wrong ones
