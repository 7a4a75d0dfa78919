"""The heart of the subscriber: what counts, what is refused, and that nodes do not mix."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.meta import NodeCondition, NodeEvent, NodeState
from eaco_telemetry.samples import GpuSample, NodeSample, ProcessSample
from eaco_telemetry.subscriber import (
    EventReceived,
    ForeignChanged,
    GapSeen,
    NodeChanged,
    NodeView,
    SampleReceived,
    Subscriber,
    SubscriberOptions,
    Update,
)
from eaco_telemetry.testing.hostile import HostileSender, simulated_meta, simulated_sample
from eaco_telemetry.testing.memory_broker import MemoryBroker
from eaco_telemetry.topics import NodeTopics
from eaco_telemetry.transport import Incoming
from eaco_telemetry.wire import encode_event, encode_meta, encode_sample, encode_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

SAMPLE = simulated_sample(gpus=2)
META = simulated_meta(SAMPLE)
TOPICS = NodeTopics("lab", "n1")


def _subscriber(
    own_pids: Callable[[str, str], Collection[int] | None] | None = None,
    **options: Any,  # noqa: ANN401 - any option
) -> Subscriber:
    return Subscriber(MemoryBroker().connect, SubscriberOptions(**options), own_pids=own_pids)


class Feed:
    """Feeds one subscriber, one message a second."""

    def __init__(self, subscriber: Subscriber | None = None) -> None:
        self.subscriber = subscriber or _subscriber()
        self.now_s = 0.0

    def put(self, topic: str, payload: bytes, *, retain: bool = False) -> list[Update]:
        self.now_s += 1.0
        return self.subscriber.handle(Incoming(topic, payload, 0, retain, self.now_s))

    def sample(
        self,
        seq: int,
        *,
        session: str = "s0",
        node: str = "n1",
        retain: bool = False,
        **changes: Any,  # noqa: ANN401 - any field
    ) -> list[Update]:
        one = evolve(SAMPLE, seq=seq, session_id=session, node_id=node, **changes)
        meta = evolve(META, session_id=session, node_id=node)
        return self.put(NodeTopics("lab", node).sample, encode_sample(one, meta), retain=retain)

    def meta(
        self, session: str = "s0", *, retain: bool = False, wall_ns: int = META.wall_ns
    ) -> list[Update]:
        payload = encode_meta(evolve(META, session_id=session, wall_ns=wall_ns))
        return self.put(TOPICS.meta, payload, retain=retain)

    def state(
        self,
        condition: NodeCondition,
        session: str = "s0",
        *,
        retain: bool = False,
        wall_ns: int | None = None,
    ) -> list[Update]:
        state = NodeState("n1", session, condition, wall_ns=wall_ns)
        return self.put(TOPICS.state, encode_state(state), retain=retain)

    def event(self, event_seq: int, session: str = "s0", *, retain: bool = False) -> list[Update]:
        event = NodeEvent("n1", session, event_seq, 1, 1, kind="xid", code=79)
        return self.put(TOPICS.event, encode_event(event), retain=retain)

    @property
    def view(self) -> NodeView:
        """Of the node n1, at the time of the last message."""
        intake = self.subscriber._intake
        return intake.view(intake.nodes["lab", "n1"], self.now_s)


def _seqs(updates: list[Update]) -> list[int]:
    return [one.sample.seq for one in updates if isinstance(one, SampleReceived)]


# ---------------------------------------------------------------- order


def test_a_gap_is_told_once_and_a_late_sample_fills_it() -> None:
    feed = Feed()
    feed.meta()
    feed.sample(0)
    updates = feed.sample(4)
    assert [one for one in updates if isinstance(one, GapSeen)] == [
        GapSeen("lab", "n1", "s0", first_seq=1, last_seq=3)
    ]
    assert _seqs(updates) == [4]
    assert (feed.view.gaps, feed.view.missing_samples) == (1, 3)
    (late,) = feed.sample(2)
    assert isinstance(late, SampleReceived)
    assert (late.late, late.sample.seq) == (True, 2)
    assert feed.view.sample is not None
    assert feed.view.sample.seq == 4, "an old sample does not replace a newer one"
    assert feed.sample(2) == []
    assert feed.sample(4) == []
    view = feed.view
    assert (view.gaps, view.missing_samples, view.reordered, view.duplicates) == (1, 2, 1, 2)
    counters = feed.subscriber.counters
    assert (counters.gaps, counters.missing_samples) == (1, 2)
    assert (counters.reordered, counters.duplicates) == (1, 2)


@given(st.lists(st.integers(0, 30), max_size=60))
def test_every_sample_is_told_once_and_gaps_and_late_ones_add_up(seqs: list[int]) -> None:
    feed = Feed()
    told: list[int] = []
    missing = set[int]()
    for seq in seqs:
        updates = feed.sample(seq)
        told += _seqs(updates)
        for one in updates:
            if isinstance(one, GapSeen):
                missing |= set(range(one.first_seq, one.last_seq + 1))
        missing -= set(told)
    assert sorted(told) == sorted(set(seqs))
    if seqs:
        view = feed.view
        assert view.missing_samples == len(missing)
        assert view.duplicates == len(seqs) - len(set(seqs))
        assert view.sample is not None
        assert view.sample.seq == max(seqs)


def test_numbers_that_jump_cost_no_memory_and_touch_only_their_node() -> None:
    feed = Feed()
    feed.sample(0, node="good")
    for n in range(2000):
        feed.sample(min((1 << 63) - 1, n * 3), node="bad")
    feed.sample((1 << 63) - 1, node="bad")
    session = feed.subscriber._intake.nodes["lab", "bad"].current
    assert session is not None
    assert len(session.order._gaps) == 64
    assert _seqs(feed.sample(1, node="good")) == [1]


# ---------------------------------------------------------------- sessions


def test_a_last_will_of_an_old_session_is_ignored() -> None:
    feed = Feed()
    feed.state(NodeCondition.READY, "s1")
    feed.state(NodeCondition.READY, "s2")
    assert feed.state(NodeCondition.LOST, "s1") == []
    assert feed.view.word == "ready"
    assert feed.state(NodeCondition.LOST, "never-heard-of") == []
    assert feed.view.word == "ready"
    (change,) = feed.state(NodeCondition.LOST, "s2")
    assert isinstance(change, NodeChanged)
    assert change.view.condition is NodeCondition.LOST


def test_a_late_sample_of_an_old_session_changes_nothing() -> None:
    feed = Feed()
    feed.sample(7, session="s1")
    feed.sample(0, session="s2")
    assert feed.sample(8, session="s1") == []
    assert feed.view.session_id == "s2"
    assert feed.view.gaps == 0
    assert feed.subscriber.counters.old_session == 1


def test_a_new_session_starts_its_numbers_and_its_meta_anew() -> None:
    feed = Feed()
    feed.meta("s1")
    feed.sample(5, session="s1")
    updates = feed.sample(0, session="s2")
    assert _seqs(updates) == [0]
    assert not any(isinstance(one, GapSeen) for one in updates)
    (received,) = [one for one in updates if isinstance(one, SampleReceived)]
    assert received.sample.gpus[0].name is None, "never from the meta of another session"
    assert feed.subscriber.counters.without_meta == 1
    feed.meta("s2")
    (explained,) = feed.sample(1, session="s2")
    assert isinstance(explained, SampleReceived)
    assert explained.sample.gpus[0].name == "Simulated V100"


def test_what_was_retained_explains_samples_and_never_replaces_what_is_live() -> None:
    feed = Feed()
    feed.state(NodeCondition.READY, retain=True, wall_ns=5)
    feed.meta(retain=True)
    feed.sample(3, retain=True)
    assert feed.view.received_s is None, "a copy says nothing about now"
    assert feed.view.sample is not None
    feed.sample(9)
    assert feed.sample(4, retain=True) == []
    assert feed.meta("older", retain=True, wall_ns=1) == []
    assert feed.state(NodeCondition.READY, "older", retain=True) == []
    assert feed.view.session_id == "s0"
    assert feed.view.sample.seq == 9
    assert feed.subscriber.counters.retained_ignored >= 1


def test_a_node_that_started_and_ended_while_we_were_away_is_seen_from_what_was_retained() -> None:
    feed = Feed()
    feed.state(NodeCondition.READY, "s1", wall_ns=META.wall_ns)
    feed.sample(0, session="s1")
    later_ns = SAMPLE.wall_ns + 10**12
    feed.state(NodeCondition.LOST, "s2", retain=True)  # the will has no time
    feed.meta("s2", retain=True, wall_ns=later_ns)
    assert feed.view.session_id == "s2"
    assert feed.view.word == "lost"


def test_a_retained_message_that_only_seems_newer_gives_way_to_a_live_one() -> None:
    """As after a restart of a broker with an old store, and a clock that was wrong."""
    feed = Feed()
    feed.sample(0, session="live")
    feed.meta("ghost", retain=True, wall_ns=SAMPLE.wall_ns + 10**15)
    assert feed.view.session_id == "ghost"
    assert _seqs(feed.sample(1, session="live")) == [1]
    assert feed.view.session_id == "live"
    feed.meta("ghost", retain=True, wall_ns=SAMPLE.wall_ns + 10**15)
    assert feed.view.session_id == "live"


def test_the_old_session_is_over_also_if_the_new_one_was_first_seen_retained() -> None:
    feed = Feed()
    feed.sample(0, session="s1")
    feed.meta("s2", retain=True, wall_ns=SAMPLE.wall_ns + 10**12)
    feed.sample(0, session="s2")
    assert feed.sample(1, session="s1") == []
    assert feed.view.session_id == "s2"


# ---------------------------------------------------------------- age


def test_a_node_is_stale_after_three_periods_without_a_sample_and_back_with_the_next() -> None:
    feed = Feed()
    feed.state(NodeCondition.READY)
    feed.meta()
    feed.sample(0)
    subscriber = feed.subscriber
    assert subscriber.check_ages(feed.now_s + 2.9) == []
    (change,) = subscriber.check_ages(feed.now_s + 3.1)
    assert isinstance(change, NodeChanged)
    assert (change.view.word, change.view.stale) == ("stale", True)
    assert subscriber.check_ages(feed.now_s + 4.0) == [], "told once"
    feed.now_s += 10
    back, received = feed.sample(1)
    assert isinstance(back, NodeChanged)
    assert isinstance(received, SampleReceived)
    assert back.view.word == "ready"


def test_age_is_told_by_the_clock_of_the_receiver_and_not_by_that_of_the_sender() -> None:
    feed = Feed()
    feed.sample(0, wall_ns=0)
    feed.sample(1, wall_ns=(1 << 63) - 1)
    feed.sample(2, wall_ns=5)
    assert (feed.view.age_s, feed.view.stale, feed.view.rate_hz) == (0.0, False, 1.0)


def test_a_node_known_only_from_what_was_retained_becomes_stale() -> None:
    feed = Feed()
    feed.state(NodeCondition.READY, retain=True)
    assert feed.view.word == "ready"
    (change,) = feed.subscriber.check_ages(feed.now_s + 3.5)
    assert isinstance(change, NodeChanged)
    assert change.view.word == "stale"


# ---------------------------------------------------------------- events


def test_an_event_is_told_once_however_often_the_ring_is_sent() -> None:
    feed = Feed()
    told = 0
    for first in (0, 0, 100, 200):
        for event_seq in range(first, first + 256):
            told += any(isinstance(one, EventReceived) for one in feed.event(event_seq))
    assert told == 456
    assert feed.view.events == feed.subscriber.counters.events == 456
    assert feed.subscriber.counters.duplicate_events == 4 * 256 - 456


@given(st.lists(st.integers(0, 600), max_size=100), st.sampled_from([0, 1 << 62]))
def test_events_in_any_order_are_told_once(seqs: list[int], base: int) -> None:
    feed = Feed()
    told = [
        one.event.event_seq
        for seq in seqs
        for one in feed.event(base + seq)
        if isinstance(one, EventReceived)
    ]
    assert len(told) == len(set(told))
    recent = {base + seq for seq in seqs if seq > max(seqs) - 512}
    assert recent <= set(told)


def test_the_same_number_in_another_session_is_another_event() -> None:
    feed = Feed()
    feed.event(0, "s1")
    assert any(isinstance(one, EventReceived) for one in feed.event(0, "s2"))
    (last_words,) = feed.event(1, "s1")
    assert isinstance(last_words, EventReceived), "of a session that is over, and new"
    assert feed.view.session_id == "s2"
    assert feed.event(1, "s1") == []
    assert feed.event(5, "s2", retain=True) == []


# ---------------------------------------------------------------- refusals and limits


@pytest.mark.parametrize(
    ("topic", "payload", "kind"),
    [
        (TOPICS.sample, b"{", "not JSON"),
        (TOPICS.meta, b"{}", "wrong form"),
        (TOPICS.state, b'{"schema":"eaco.state/9"}', "wrong version"),
        (NodeTopics("lab", "n2").sample, encode_sample(SAMPLE), "wrong identity"),
        (NodeTopics("lab", "n2").meta, encode_meta(META), "wrong identity"),
        (TOPICS.sample, b" " * 70_000, "too large"),
        (TOPICS.sample, encode_sample(simulated_sample(gpus=5)), "too many GPUs"),
        ("eaco/v1/lab/n1/other", b"{}", "unknown topic"),
    ],
)
def test_what_is_refused_is_counted_by_kind_and_makes_no_node(
    topic: str, payload: bytes, kind: str
) -> None:
    feed = Feed(_subscriber(max_payload_bytes=60_000, max_gpus=4))
    assert feed.put(topic, payload) == []
    assert feed.subscriber.counters.bad == {kind: 1}
    assert len(feed.subscriber.nodes) == 0


def test_an_empty_message_only_clears_what_was_retained() -> None:
    feed = Feed()
    feed.sample(0)
    assert feed.put(TOPICS.state, b"") == []
    assert feed.subscriber.counters.cleared == 1
    assert feed.subscriber.counters.bad == {}


def test_one_line_for_each_kind_of_fault_whatever_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = Feed(_subscriber(log_every_s=60.0))
    with caplog.at_level(logging.WARNING):
        for n in range(20):
            feed.put(NodeTopics("lab", f"n{n}").sample, b"\n{")
            feed.put(f"eaco/v1/lab/n\n{n}/sample", b"{}")
        assert len(caplog.records) == 2
        assert all("\n" not in record.getMessage() for record in caplog.records)
        feed.now_s += 60.0
        feed.put(TOPICS.sample, b"{")
        assert "(and 19 more like it in" in caplog.records[-1].getMessage()
        feed.subscriber._faults.flush(feed.now_s + 60.0)
    assert "19 more" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 4


def test_a_mistake_of_ours_is_counted_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed()

    def broken(_count: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(feed.subscriber._intake, "_check_gpus", broken)
    assert feed.sample(0) == []
    assert feed.subscriber.counters.bad == {"fault of eaco": 1}


def test_nodes_are_bounded_and_long_silent_ones_make_room() -> None:
    feed = Feed(_subscriber(max_nodes=3, forget_after_s=100.0))
    for n in range(5):
        feed.sample(0, node=f"n{n}")
    assert len(feed.subscriber.nodes) == 3
    assert feed.subscriber.counters.too_many_nodes == 2
    assert _seqs(feed.sample(1, node="n0")) == [1], "those who are there stay"
    feed.now_s += 99.0
    feed.sample(0, node="n9")
    assert set(feed.subscriber.nodes) == {("lab", "n0"), ("lab", "n9")}
    assert feed.subscriber.counters.nodes_forgotten == 2


def test_what_is_kept_of_all_nodes_is_bounded() -> None:
    size = len(encode_sample(SAMPLE, META))
    feed = Feed(_subscriber(max_stored_bytes=3 * size + 100))
    for n in range(6):
        feed.sample(0, node=f"n{n}")
    assert feed.subscriber.counters.bad == {"no room": 3}
    assert _seqs(feed.sample(1, node="n0")) == [1], "what takes no more room is taken"
    assert feed.subscriber._intake._stored_bytes <= 3 * size + 100


def test_twenty_thousand_hostile_messages_do_no_harm() -> None:
    subscriber = _subscriber(
        max_nodes=60, window_values=("power_w",), own_pids=lambda _site, _node: (1,)
    )
    for incoming in HostileSender(nodes=20, seed=1).messages(20_000):
        subscriber.handle(incoming)
    counters, intake = subscriber.counters, subscriber._intake
    assert counters.received == 20_000
    assert counters.bad.get("fault of eaco", 0) == 0
    assert min(counters.samples, counters.metas, counters.states, counters.events) > 200
    assert len(intake.nodes) <= 60
    assert intake._stored_bytes == sum(node.stored_bytes for node in intake.nodes.values())
    feed = Feed(subscriber)
    feed.now_s = 1e6
    assert _seqs(feed.sample(0, session="after", node="n0001")) == [0]


def test_a_bad_node_does_not_touch_another() -> None:
    """What a good node's messages tell is the same with and without hostile ones between."""
    alone, among = Feed(), Feed()
    hostile = HostileSender(nodes=3, seed=5).messages(2000)
    for seq in (0, 1, 2, 5, 3, 5, 6):
        for incoming in [next(hostile) for _ in range(200)]:
            among.subscriber.handle(incoming)
        assert among.sample(seq, node="good") == alone.sample(seq, node="good")


# ---------------------------------------------------------------- windows, strangers, options


def test_statistics_of_each_gpu_are_kept_for_the_values_that_were_asked_for() -> None:
    feed = Feed(_subscriber(window_values=("power_w", "temperature_c"), window_s=10.0))
    for seq in range(100):
        gpus = tuple(evolve(gpu, power_w=float(seq)) for gpu in SAMPLE.gpus)
        feed.sample(seq, gpus=gpus)
    window = feed.subscriber.window("lab", "n1", SAMPLE.gpus[0].gpu_id, "power_w")
    assert window is not None
    assert window.peak == 99.0
    assert window.count in {10, 11}
    assert feed.subscriber.window("lab", "n1", "GPU-other", "power_w") is None
    assert feed.subscriber.window("lab", "n2", "GPU-other", "power_w") is None


def test_processes_that_are_not_ours_are_reported_when_they_come_and_go() -> None:
    gpu = GpuSample("GPU-a", "nvidia")
    ours, stranger = ProcessSample(7), ProcessSample(9, name="miner")
    feed = Feed(_subscriber(own_pids=lambda _site, node: (7,) if node == "n1" else None))

    def changes(
        seq: int, processes: tuple[ProcessSample, ...] | None, node: str = "n1"
    ) -> list[ForeignChanged]:
        updates = feed.sample(seq, node=node, gpus=(evolve(gpu, processes=processes),))
        return [one for one in updates if isinstance(one, ForeignChanged)]

    assert changes(0, (ours,)) == []
    assert changes(1, (ours, stranger)) == [
        ForeignChanged("lab", "n1", "GPU-a", appeared=(stranger,), gone=())
    ]
    assert changes(2, (ours, stranger)) == []
    assert changes(3, None) == [], "not listed is not gone"
    assert changes(4, (ours,)) == [
        ForeignChanged("lab", "n1", "GPU-a", appeared=(), gone=(stranger,))
    ]
    assert changes(0, (stranger,), node="n2") == [], "ours are not known there"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_nodes", 0),
        ("stale_after_periods", 0.5),
        ("window_s", float("nan")),
        ("window_values", ("throttle",)),
        ("window_values", ("watts",)),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    values: dict[str, Any] = {name: value}
    with pytest.raises(InputError, match=f"SubscriberOptions.{name}"):
        SubscriberOptions(**values)


def test_without_the_extra_a_subscriber_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys  # noqa: PLC0415 - only here

    for name in [one for one in sys.modules if one.startswith("eaco_telemetry")]:
        if name.endswith((".wire", "._forms", ".intake", ".subscriber.node")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'eaco\[mqtt\]'"):
        _subscriber()


def test_every_field_of_a_view_is_what_a_table_needs() -> None:
    assert NodeView("lab", "n1").word == "unknown"
    assert {"site", "node_id", "condition", "stale", "meta", "sample", "age_s", "rate_hz"} <= {
        one.name for one in fields(NodeView)
    }
    assert isinstance(SAMPLE, NodeSample)
