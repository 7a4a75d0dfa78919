"""The subscriber on a connection: it comes back, tells once, and counts what is dropped."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from eaco_core.errors import EnvironmentFault, InternalError
from eaco_telemetry.broker import mosquitto_program, running_broker
from eaco_telemetry.meta import NodeCondition, NodeEvent, NodeState
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.subscriber import (
    ConnectionChanged,
    EventReceived,
    GapSeen,
    NodeChanged,
    SampleReceived,
    Subscriber,
    SubscriberOptions,
    Update,
)
from eaco_telemetry.testing.hostile import simulated_meta, simulated_sample
from eaco_telemetry.testing.memory_broker import MemoryBroker
from eaco_telemetry.topics import NodeTopics, filters
from eaco_telemetry.transport import MqttOptions, Will
from eaco_telemetry.wire import encode_event, encode_meta, encode_sample, encode_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from eaco_telemetry.transport import Transport

SAMPLE = simulated_sample(gpus=2)
META = simulated_meta(SAMPLE)
TOPICS = NodeTopics("lab", "n1")
READY = encode_state(NodeState("n1", "s0", NodeCondition.READY, wall_ns=1))
LOST = encode_state(NodeState("n1", "s0", NodeCondition.LOST))
QUICK: dict[str, Any] = {"backoff_first_s": 0.01, "backoff_cap_s": 0.05, "check_every_s": 0.02}


def _sample(seq: int) -> bytes:
    return encode_sample(evolve(SAMPLE, seq=seq), META)


def _event(event_seq: int) -> bytes:
    return encode_event(NodeEvent("n1", "s0", event_seq, 1, 1, kind="xid", code=79))


def _subscriber(broker: MemoryBroker, **options: Any) -> Subscriber:  # noqa: ANN401 - any option
    return Subscriber(broker.connect, SubscriberOptions(**{**QUICK, **options}))


def _run(test: Callable[[], Coroutine[Any, Any, None]], limit_s: float = 30.0) -> None:
    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await test()

    asyncio.run(limited())


async def _until(subscriber: Subscriber, wanted: Callable[[Update], bool]) -> list[Update]:
    """Read until an update that is wanted; give all that were read."""
    found: list[Update] = []
    async for update in subscriber:
        found.append(update)
        if wanted(update):
            break
    return found


def _connected(update: Update) -> bool:
    return isinstance(update, ConnectionChanged) and update.connected


def _has_sample(seq: int) -> Callable[[Update], bool]:
    return lambda update: isinstance(update, SampleReceived) and update.sample.seq == seq


def test_it_subscribes_and_gives_what_is_retained_and_what_comes() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        broker.put(TOPICS.meta, encode_meta(META), qos=1, retain=True)
        broker.put(TOPICS.state, READY, qos=1, retain=True)
        async with _subscriber(broker) as subscriber:
            await _until(subscriber, _connected)
            broker.put(TOPICS.sample, _sample(0))
            updates = await _until(subscriber, _has_sample(0))
            received = updates[-1]
            assert isinstance(received, SampleReceived)
            assert (received.site, received.node_id, received.sample) == ("lab", "n1", SAMPLE)
            assert set(broker.subscriptions) == set(filters())
            view = subscriber.nodes["lab", "n1"]
            assert (view.word, view.meta, view.sample) == ("ready", META, SAMPLE)
            assert list(subscriber.nodes) == [("lab", "n1")]
            assert ("lab", "n2") not in subscriber.nodes
        assert len(asyncio.all_tasks()) == 1, "nothing is left running"

    _run(run)


def test_it_comes_back_after_a_break_and_tells_events_once_and_each_gap() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with _subscriber(broker) as subscriber:
            told: list[Update] = await _until(subscriber, _connected)
            for round_number in range(5):
                first = 10 * round_number
                for event_seq in range(first + 10):
                    broker.put(TOPICS.event, _event(event_seq), qos=1)  # the whole ring
                broker.put(TOPICS.sample, _sample(first))
                told += await _until(subscriber, _has_sample(first))
                broker.drop_all()
                for event_seq in range(first, first + 15):
                    broker.put(TOPICS.event, _event(event_seq), qos=1)  # nobody listens
                broker.put(TOPICS.sample, _sample(first + 1))
                told += await _until(subscriber, _connected)
            events = [one.event.event_seq for one in told if isinstance(one, EventReceived)]
            assert events == list(range(50))
            gaps = [(one.first_seq, one.last_seq) for one in told if isinstance(one, GapSeen)]
            assert gaps == [(1, 9), (11, 19), (21, 29), (31, 39)]
            lost = [one for one in told if isinstance(one, ConnectionChanged) and not one.connected]
            assert len(lost) == 5
            assert all(one.reason and one.retry_in_s is not None for one in lost)
            assert subscriber.counters.connections == 6

    _run(run)


def test_a_wrong_password_is_told_plainly_and_tried_again_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        broker = MemoryBroker()
        broker.refuse("wrong user name or password", slowly=True)
        async with _subscriber(broker) as subscriber:
            (change,) = await _until(subscriber, lambda _: True)
            assert isinstance(change, ConnectionChanged)
            assert change.reason == "wrong user name or password"
            assert change.retry_in_s is not None
            assert change.retry_in_s >= 30.0
            assert broker.attempts == 1

    with caplog.at_level(logging.WARNING):
        _run(run)
    assert [one.getMessage() for one in caplog.records] == ["wrong user name or password"]


def test_a_broker_that_is_away_costs_one_line_and_is_found_when_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        broker = MemoryBroker()
        broker.refuse("there is no broker", times=8)
        async with _subscriber(broker) as subscriber:
            updates = await _until(subscriber, _connected)
            assert len(updates) == 9

    with caplog.at_level(logging.WARNING):
        _run(run)
    assert len(caplog.records) == 1


def test_a_node_that_falls_silent_becomes_stale_without_any_message() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with _subscriber(broker, default_period_s=0.02) as subscriber:
            await _until(subscriber, _connected)
            broker.put(TOPICS.sample, _sample(0))
            changes = await _until(
                subscriber, lambda one: isinstance(one, NodeChanged) and one.view.word == "stale"
            )
            assert isinstance(changes[-1], NodeChanged)
            assert subscriber.nodes["lab", "n1"].stale

    _run(run)


def test_what_the_transport_drops_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        broker = MemoryBroker(max_incoming=10)
        async with _subscriber(broker) as subscriber:
            await _until(subscriber, _connected)
            for seq in range(100):
                broker.put(TOPICS.sample, _sample(seq))
            await _until(subscriber, _has_sample(9))
            await asyncio.sleep(0.1)
            assert subscriber.counters.transport_discards == 90
            broker.drop_all()
            await _until(subscriber, _connected)
            assert subscriber.counters.transport_discards == 90

    with caplog.at_level(logging.WARNING):
        _run(run)
    assert any("90 messages were dropped" in one.getMessage() for one in caplog.records)


def test_updates_that_nobody_takes_are_dropped_oldest_samples_first() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with _subscriber(broker, max_updates=20) as subscriber:
            await _until(subscriber, _connected)
            broker.put(TOPICS.meta, encode_meta(META), qos=1)
            for seq in range(100):
                broker.put(TOPICS.sample, _sample(seq))
            for event_seq in range(5):
                broker.put(TOPICS.event, _event(event_seq), qos=1)
            while subscriber.counters.received < 106:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
            assert subscriber.nodes["lab", "n1"].sample == evolve(SAMPLE, seq=99)
            assert subscriber.counters.dropped_samples > 80
            assert subscriber.counters.dropped_events == 0
            updates = await _until(
                subscriber, lambda one: isinstance(one, EventReceived) and one.event.event_seq == 4
            )
            samples = [one.sample.seq for one in updates if isinstance(one, SampleReceived)]
            assert samples == sorted(samples)
            assert samples[-1] == 99
            assert sum(isinstance(one, EventReceived) for one in updates) == 5

    _run(run)


def test_a_fault_that_no_new_connection_can_help_comes_out_of_the_iterator() -> None:
    @asynccontextmanager
    async def broken(*, will: Will | None = None) -> AsyncGenerator[Transport, None]:
        raise EnvironmentFault(f"the certificate is gone {will}")
        yield  # pyright: ignore[reportUnreachable] - this makes it a generator

    async def run() -> None:
        async with Subscriber(broken) as subscriber:
            with pytest.raises(EnvironmentFault, match="certificate"):
                await _until(subscriber, lambda _: True)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        _run(run)

    async def not_read() -> None:
        async with Subscriber(broken):
            await asyncio.sleep(0.05)

    with pytest.raises(EnvironmentFault, match="certificate"):
        _run(not_read)


def test_it_is_entered_once_and_before_it_is_read() -> None:
    async def run() -> None:
        subscriber = _subscriber(MemoryBroker())
        with pytest.raises(InternalError, match="async with"):
            await anext(aiter(subscriber))
        async with subscriber:
            pass
        with pytest.raises(InternalError, match="once"):
            await subscriber.__aenter__()
        assert [one async for one in subscriber] == []

    _run(run)


@pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")
def test_with_a_real_broker_that_is_restarted_nothing_is_told_twice() -> None:
    async def run() -> None:
        port: int | None = None
        subscriber: Subscriber | None = None
        told: list[Update] = []
        for round_number in range(3):
            async with running_broker("mosquitto", port) as address:
                port = address.port
                connect = mqtt_connector(MqttOptions(port=port))
                if subscriber is None:
                    subscriber = Subscriber(connect, SubscriberOptions(**QUICK))
                    await subscriber.__aenter__()
                told += await _until(subscriber, _connected)
                async with connect(will=Will(TOPICS.state, LOST)) as agent:
                    await agent.publish(TOPICS.meta, encode_meta(META), qos=1, retain=True)
                    await agent.publish(TOPICS.state, READY, qos=1, retain=True)
                    for event_seq in range(10 * round_number + 10):
                        await agent.publish(TOPICS.event, _event(event_seq), qos=1)
                    seq = 10 * round_number
                    await agent.publish(TOPICS.sample, _sample(seq))
                    told += await _until(subscriber, _has_sample(seq))
        assert subscriber is not None
        await subscriber.__aexit__(None, None, None)
        events = [one.event.event_seq for one in told if isinstance(one, EventReceived)]
        assert events == list(range(30))
        gaps = [(one.first_seq, one.last_seq) for one in told if isinstance(one, GapSeen)]
        assert gaps == [(1, 9), (11, 19)]
        assert subscriber.counters.bad == {}
        view = subscriber.nodes["lab", "n1"]
        assert view.sample == evolve(SAMPLE, seq=20)

    _run(run)
