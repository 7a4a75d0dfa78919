"""The heart of the subscriber: takes one message after the other. No input or output.

Whatever a message says, `handle` returns, and only the node of its topic is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eaco_telemetry.subscriber.node import Node
from eaco_telemetry.subscriber.sequence import Arrival
from eaco_telemetry.subscriber.updates import (
    EventReceived,
    ForeignChanged,
    GapSeen,
    NodeChanged,
    SampleReceived,
)
from eaco_telemetry.topics import parse_topic
from eaco_telemetry.wire import (
    BadPayload,
    SampleDecoder,
    decode_event,
    decode_meta,
    decode_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from eaco_telemetry.samples import NodeSample
    from eaco_telemetry.subscriber.faults import FaultLog
    from eaco_telemetry.subscriber.options import SubscriberCounters, SubscriberOptions
    from eaco_telemetry.subscriber.updates import NodeView, Update
    from eaco_telemetry.topics import Topic
    from eaco_telemetry.transport import Incoming

_FORGET_EVERY_S: Final = 1.0
_TOPICS_OF_NODE: Final = 4


class Intake:
    """Keeps what is known of all nodes. See `SubscriberOptions` for the limits.

    `own_pids`: asked for the processes of a node that are ours (None: not known).
    """

    def __init__(
        self,
        options: SubscriberOptions,
        counters: SubscriberCounters,
        faults: FaultLog,
        own_pids: Callable[[str, str], Collection[int] | None] | None = None,
    ) -> None:
        self.nodes: dict[tuple[str, str], Node] = {}
        self._options = options
        self._counters = counters
        self._faults = faults
        self._own_pids = own_pids
        self._topics: dict[str, Topic] = {}
        self._first = SampleDecoder()
        self._stored_bytes = 0
        self._forget_again_s = float("-inf")
        self._takers: Mapping[str, Callable[[Topic, Incoming], list[Update]]] = {
            "sample": self._take_sample,
            "meta": self._take_meta,
            "state": self._take_state,
            "event": self._take_event,
        }

    def handle(self, incoming: Incoming) -> list[Update]:
        """Take one message; give what is to be told. Never raises."""
        self._counters.received += 1
        try:
            topic = self._topic(incoming.topic)
            if not incoming.payload:
                self._counters.cleared += 1
                return []
            if len(incoming.payload) > self._options.max_payload_bytes:
                raise BadPayload(  # noqa: TRY301 - one place tells of every refusal
                    f"{len(incoming.payload)} bytes are above the limit of"
                    f" {self._options.max_payload_bytes}",
                    kind="too large",
                )
            return self._takers[topic.kind](topic, incoming)
        except BadPayload as bad:
            self._refuse(bad.kind, str(bad), incoming)
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end all other nodes
            self._refuse("fault of eaco", f"{type(error).__name__}: {error}"[:200], incoming)
        return []

    def check_ages(self, now_s: float) -> list[Update]:
        """Find nodes that went stale."""
        options = self._options
        updates: list[Update] = []
        for node in self.nodes.values():
            if not node.stale and node.is_stale(
                now_s, options.stale_after_periods, options.default_period_s
            ):
                node.stale = True
                updates.append(self._changed(node, now_s))
        return updates

    def view(self, node: Node, now_s: float) -> NodeView:
        """Give what is known of a node."""
        options = self._options
        return node.view(now_s, options.stale_after_periods, options.default_period_s)

    # ---------------------------------------------------------------- the kinds

    def _take_sample(self, topic: Topic, incoming: Incoming) -> list[Update]:
        payload, now_s = incoming.payload, incoming.received_s
        node = self.nodes.get((topic.site, topic.node_id))
        decoder = self._first if node is None else node.decoder
        sample = decoder.decode(payload)
        self._check_identity(sample.node_id, topic)
        self._check_gpus(len(sample.gpus))
        self._check_room(len(payload) - (0 if node is None else node.sample_bytes))
        node = node or self._new_node(topic, now_s)
        before_bytes, node.touched_s = node.stored_bytes, now_s
        try:
            if incoming.retain:
                return self._retained_sample(node, sample, incoming)
            before = node.current
            session = node.live_session(sample.session_id)
            if session is None:
                self._counters.old_session += 1
                return []
            if node.decoder is not decoder:
                # The session is new, and perhaps its meta has been waiting.
                sample = node.decoder.decode(payload)
            self._counters.samples += 1
            self._counters.without_meta += node.decoder.stood_alone
            arrival = session.order.add(sample.seq)
            if arrival in _NOT_NEW:
                return self._not_new(node, sample, arrival, now_s)
            node.note_sample(sample, len(payload), now_s)
            updates: list[Update] = []
            if arrival is Arrival.AHEAD:
                updates.append(self._gap(node, *session.order.newest_gap))
            if session is not before or node.stale:
                node.stale = False
                updates.append(self._changed(node, now_s))
            updates.append(SampleReceived(topic.site, topic.node_id, sample, now_s))
            if self._options.window_values:
                node.add_windows(self._options.window_values, self._options.window_s, now_s)
            if self._own_pids is not None:
                updates.extend(self._foreign(node, sample))
            return updates
        finally:
            self._stored_bytes += node.stored_bytes - before_bytes

    def _take_meta(self, topic: Topic, incoming: Incoming) -> list[Update]:
        meta = decode_meta(incoming.payload)
        self._check_identity(meta.node_id, topic)
        self._check_gpus(len(meta.gpus))
        node = self.nodes.get((topic.site, topic.node_id))
        self._check_room(len(incoming.payload) - (0 if node is None else node.meta_bytes))
        node = node or self._new_node(topic, incoming.received_s)
        before_bytes, node.touched_s = node.stored_bytes, incoming.received_s
        counts = node.take_meta(meta, len(incoming.payload), retained=incoming.retain)
        self._stored_bytes += node.stored_bytes - before_bytes
        self._counters.metas += counts
        return self._taken(node, incoming.received_s, counts=counts, retained=incoming.retain)

    def _take_state(self, topic: Topic, incoming: Incoming) -> list[Update]:
        state = decode_state(incoming.payload)
        self._check_identity(state.node_id, topic)
        node = self._node(topic, incoming.received_s)
        before_bytes = node.stored_bytes
        counts = node.take_state(state, retained=incoming.retain)
        self._stored_bytes += node.stored_bytes - before_bytes
        self._counters.states += counts
        return self._taken(node, incoming.received_s, counts=counts, retained=incoming.retain)

    def _take_event(self, topic: Topic, incoming: Incoming) -> list[Update]:
        event = decode_event(incoming.payload)
        self._check_identity(event.node_id, topic)
        if incoming.retain:
            self._counters.retained_ignored += 1
            return []
        now_s = incoming.received_s
        node = self._node(topic, now_s)
        before, before_bytes = node.current, node.stored_bytes
        # The event of a session that is over is told all the same: it may say why it ended.
        node.live_session(event.session_id)
        self._stored_bytes += node.stored_bytes - before_bytes
        if not node.event_is_new(event.session_id, event.event_seq):
            self._counters.duplicate_events += 1
            return []
        node.events += 1
        self._counters.events += 1
        updates: list[Update] = [] if node.current is before else [self._changed(node, now_s)]
        updates.append(EventReceived(topic.site, topic.node_id, event, now_s))
        return updates

    # ---------------------------------------------------------------- parts of them

    def _retained_sample(self, node: Node, sample: NodeSample, incoming: Incoming) -> list[Update]:
        counts = node.take_retained_sample(sample, len(incoming.payload))
        return self._taken(node, incoming.received_s, counts=counts, retained=True)

    def _taken(self, node: Node, now_s: float, *, counts: bool, retained: bool) -> list[Update]:
        if counts:
            return [self._changed(node, now_s)]
        if retained:
            self._counters.retained_ignored += 1
        else:
            self._counters.old_session += 1
        return []

    def _not_new(
        self, node: Node, sample: NodeSample, arrival: Arrival, now_s: float
    ) -> list[Update]:
        if arrival is Arrival.KNOWN:
            node.duplicates += 1
            self._counters.duplicates += 1
            return []
        node.reordered += 1
        self._counters.reordered += 1
        if arrival is Arrival.LATE:
            node.missing_samples -= 1
            self._counters.missing_samples -= 1
        return [SampleReceived(node.site, node.node_id, sample, now_s, late=True)]

    def _gap(self, node: Node, first_seq: int, last_seq: int) -> GapSeen:
        missing = last_seq - first_seq + 1
        node.gaps += 1
        node.missing_samples += missing
        self._counters.gaps += 1
        self._counters.missing_samples += missing
        session_id = "" if node.current is None else node.current.session_id
        return GapSeen(node.site, node.node_id, session_id, first_seq, last_seq)

    def _foreign(self, node: Node, sample: NodeSample) -> list[Update]:
        own = None if self._own_pids is None else self._own_pids(node.site, node.node_id)
        if own is None:
            return []
        return [
            ForeignChanged(node.site, node.node_id, gpu_id, appeared, gone)
            for gpu_id, appeared, gone in node.foreign.update(sample, own)
        ]

    def _changed(self, node: Node, now_s: float) -> NodeChanged:
        return NodeChanged(node.site, node.node_id, self.view(node, now_s))

    # ---------------------------------------------------------------- refusals and limits

    def _topic(self, text: str) -> Topic:
        topic = self._topics.get(text)
        if topic is not None:
            return topic
        topic = parse_topic(text)
        if topic is None:
            raise BadPayload("not a topic of eaco", kind="unknown topic")
        if len(self._topics) >= _TOPICS_OF_NODE * self._options.max_nodes:
            self._topics.clear()
        self._topics[text] = topic
        return topic

    def _check_identity(self, node_id: str, topic: Topic) -> None:
        if node_id != topic.node_id:
            raise BadPayload(
                f"the message names the node {node_id[:64]!r}, its topic {topic.node_id!r}",
                kind="wrong identity",
            )

    def _check_gpus(self, count: int) -> None:
        if count > self._options.max_gpus:
            raise BadPayload(
                f"{count} GPUs are above the limit of {self._options.max_gpus}",
                kind="too many GPUs",
            )

    def _check_room(self, growth_bytes: int) -> None:
        if growth_bytes > 0 and self._stored_bytes + growth_bytes > self._options.max_stored_bytes:
            raise BadPayload(
                f"what is kept of all nodes would be above {self._options.max_stored_bytes} bytes",
                kind="no room",
            )

    def _node(self, topic: Topic, now_s: float) -> Node:
        node = self.nodes.get((topic.site, topic.node_id)) or self._new_node(topic, now_s)
        node.touched_s = now_s
        return node

    def _new_node(self, topic: Topic, now_s: float) -> Node:
        """Make a node, if there is a place for it."""
        if len(self.nodes) >= self._options.max_nodes:
            self._forget_silent(now_s)
        if len(self.nodes) >= self._options.max_nodes:
            raise BadPayload(
                f"there are {len(self.nodes)} nodes already: raise max_nodes",
                kind="too many nodes",
            )
        node = Node(topic.site, topic.node_id, known_s=now_s)
        self.nodes[topic.site, topic.node_id] = node
        return node

    def _forget_silent(self, now_s: float) -> None:
        if now_s < self._forget_again_s:
            return
        self._forget_again_s = now_s + _FORGET_EVERY_S
        for key, node in list(self.nodes.items()):
            if now_s - node.touched_s > self._options.forget_after_s:
                self._stored_bytes -= node.stored_bytes
                self._counters.nodes_forgotten += 1
                del self.nodes[key]

    def _refuse(self, kind: str, why: str, incoming: Incoming) -> None:
        self._counters.count_bad(kind)
        self._faults.tell(
            kind, f"a message on {incoming.topic[:120]!r} was refused: {why}", incoming.received_s
        )


_NOT_NEW: Final = frozenset({Arrival.LATE, Arrival.EARLY, Arrival.KNOWN})
