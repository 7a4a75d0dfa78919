"""Updates that wait: bounded, in order, and one node cannot crowd out others."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from eaco_telemetry.meta import NodeEvent
from eaco_telemetry.subscriber import (
    ConnectionChanged,
    EventReceived,
    GapSeen,
    SampleReceived,
    SubscriberCounters,
    Update,
)
from eaco_telemetry.subscriber.update_queue import UpdateQueue
from eaco_telemetry.testing.hostile import simulated_sample

SAMPLE = simulated_sample(gpus=1)


def _sample(seq: int, node: str = "n1") -> Update:
    return SampleReceived("lab", node, evolve(SAMPLE, seq=seq), 0.0)


def _event(seq: int, node: str = "n1") -> Update:
    return EventReceived("lab", node, NodeEvent(node, "s", seq, 1, 1, kind="xid"), 0.0)


def _gap(seq: int, node: str = "n1") -> Update:
    return GapSeen("lab", node, "s", seq, seq)


MAKERS = {"sample": _sample, "event": _event, "gap": _gap}


def _drain(queue: UpdateQueue) -> list[Update]:
    found: list[Update] = []
    while (update := queue.get()) is not None:
        found.append(update)
    return found


@given(
    st.integers(1, 40),
    st.lists(
        st.tuples(st.sampled_from(["sample", "event", "gap", "get"]), st.integers(0, 3)),
        max_size=300,
    ),
)
def test_what_comes_out_went_in_in_that_order_and_the_rest_is_counted(
    most: int, steps: list[tuple[str, int]]
) -> None:
    counters = SubscriberCounters()
    queue = UpdateQueue(most, counters)
    put: list[Update] = []
    got: list[Update] = []
    for number, (step, node) in enumerate(steps):
        if step == "get":
            update = queue.get()
            assert (update is None) == (len(queue) == 0 and update is None)
            got += [] if update is None else [update]
        else:
            put.append(MAKERS[step](number, f"n{node}"))
            queue.put(put[-1])
        assert len(queue) <= most
    got += _drain(queue)
    places = [put.index(one) for one in got]
    assert places == sorted(set(places))
    dropped = [one for one in put if one not in got]
    assert counters.dropped_samples == sum(isinstance(one, SampleReceived) for one in dropped)
    assert counters.dropped_events == sum(isinstance(one, EventReceived) for one in dropped)
    assert counters.dropped_others == sum(isinstance(one, GapSeen) for one in dropped)


def test_events_go_last() -> None:
    counters = SubscriberCounters()
    queue = UpdateQueue(10, counters)
    for seq in range(10):
        queue.put(_event(seq))
    queue.put(_sample(0))
    queue.put(_gap(0))
    assert (counters.dropped_samples, counters.dropped_others) == (1, 1)
    assert counters.dropped_events == 0
    queue.put(_event(10))
    assert counters.dropped_events == 1
    assert _drain(queue) == [_event(seq) for seq in range(1, 11)], "of events, the newest stay"


def test_the_newest_samples_stay_and_each_node_keeps_its_own() -> None:
    counters = SubscriberCounters()
    queue = UpdateQueue(10, counters)
    for seq in range(10):
        for node in range(5):
            queue.put(_sample(seq, f"n{node}"))
    assert _drain(queue) == [_sample(seq, f"n{node}") for seq in (8, 9) for node in range(5)]


def test_a_node_that_floods_costs_others_nothing() -> None:
    counters = SubscriberCounters()
    queue = UpdateQueue(1000, counters)
    good = [_sample(0, "good"), _event(0, "good"), _gap(0, "good")]
    for one in good:
        queue.put(one)
    for seq in range(5000):
        for make in MAKERS.values():
            queue.put(make(seq, "bad"))
    queue.put(ConnectionChanged(connected=True))
    left = _drain(queue)
    assert left[:3] == good
    assert len(left) == 3 + 50 + 1


def test_large_messages_take_the_place_of_many_small_ones() -> None:
    counters = SubscriberCounters()
    queue = UpdateQueue(10_000, counters, max_bytes=64 << 20)
    queue.put(_sample(0, "good"), 4000)
    for seq in range(5000):
        queue.put(_sample(seq, "bad"), 1 << 20)
    assert len(queue) == 1 + 3
    for seq in range(200):
        queue.put(_sample(seq, f"bad{seq}"), 1 << 20)
    assert queue._order.held_bytes <= 64 << 20
    assert counters.dropped_samples == 5201 - len(queue)
    _drain(queue)
    assert queue._order.held_bytes == 0
    assert all(lane.held_bytes == 0 for lanes in queue._nodes.values() for lane in lanes)


def test_memory_is_bounded_when_nobody_reads() -> None:
    queue = UpdateQueue(100, SubscriberCounters())
    for seq in range(20_000):
        queue.put(_sample(0, f"n{seq % 700}"))
    assert len(queue._order.cells) <= 264
    assert len(queue._nodes) <= 164
    assert sum(len(lane.cells) for lanes in queue._nodes.values() for lane in lanes) <= 264
