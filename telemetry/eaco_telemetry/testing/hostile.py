"""Messages as agents send them, and what becomes of them in hostile hands. All from a seed."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import evolve

from eaco_telemetry.meta import NodeCondition, NodeEvent, NodeState, node_meta
from eaco_telemetry.readers.base import Reading, node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.samples import HostSample, Moment
from eaco_telemetry.topics import KINDS, ROOT, NodeTopics
from eaco_telemetry.transport import Incoming
from eaco_telemetry.wire import encode_event, encode_meta, encode_sample, encode_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eaco_telemetry.meta import NodeMeta
    from eaco_telemetry.samples import NodeSample

SITE: Final = "lab"

_ODD: Final[tuple[object, ...]] = (
    None, True, False, 0, -1, 1, 7, -0.0, 0.5, 1e308, -1e308, 1 << 63, (1 << 63) - 1, 10**40,
    "", "x", "\ud800", "\x00", "\n", "ready", "x" * 300, "x" * 5000,
    *json.loads('[[], {}, [[]], [null], {"a": null}, {"": {}}]'),
    float("nan"), float("inf"), "eaco.sample/2", "n0001", "s0",
)  # fmt: skip
_PARTS: Final = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\xff", b"\x00", b"null", b"1e999",
    b"-", b"NaN", b"[" * 2000, b'{"x":' * 2000, b"9" * 5000, b'"\\ud800"', b"\xed\xa0\x80",
)  # fmt: skip
_TOPICS: Final = (
    "", "/", "$SYS/broker/uptime", "eaco", f"{ROOT}/lab", f"{ROOT}/lab/n/sample/x", "x" * 70_000,
    f"{ROOT}/lab/../sample", f"{ROOT}/lab/\x00/state", f"{ROOT}/lab/\ud800/meta",
    f"{ROOT}/lab/n\nINFO fake line/event", f"{ROOT}/+/+/sample", "/" * 500, "ä/ö",
)  # fmt: skip


def simulated_sample(node_id: str = "n1", *, gpus: int = 8, session_id: str = "s0") -> NodeSample:
    """Give a sample of simulated GPUs under load, with a host. The same at each call."""
    reader = SimulatedReader(node_id, gpus=gpus)
    reader.open()
    reader.read(Moment(0, 0))
    now = Moment(1_800_000_000_000_000_000, 90_000_000_000)
    host = HostSample(cpu_util_ratio=0.5, missing={"node_power_w": "no meter"})
    readings = {"simulated": reader.read(now), "host": Reading(host=host)}
    return node_sample(readings, node_id=node_id, session_id=session_id, seq=0, now=now)


def simulated_meta(sample: NodeSample, *, period_s: float = 1.0) -> NodeMeta:
    """Give the meta that an agent would publish for a sample."""
    return node_meta(
        sample,
        period_s=period_s,
        agent="eaco test",
        readers=("simulated", "host"),
        wall_ns=sample.wall_ns - 1,
    )


class HostileSender:
    """Real messages of all four kinds from `nodes` nodes, most of them changed.

    Changes: values, keys and lengths inside the JSON; bytes cut, added, swapped; bytes by
    chance; a topic of another node or of nobody; another retain flag. Some stay as they are,
    and some are of nodes that are never heard of again. Now and then a node starts anew.
    """

    def __init__(self, *, nodes: int = 50, gpus: int = 2, seed: int = 0) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - test data
        self._nodes = [f"n{number:04d}" for number in range(nodes)]
        self._sample = {name: simulated_sample(name, gpus=gpus) for name in self._nodes}
        self._meta = {name: simulated_meta(one) for name, one in self._sample.items()}
        self._seq = dict.fromkeys(self._nodes, 0)
        self._session = dict.fromkeys(self._nodes, 0)
        self._now_s = 1000.0

    def messages(self, count: int) -> Iterator[Incoming]:
        """Give that many messages."""
        for _ in range(count):
            self._now_s += self._chance.expovariate(1000.0)
            yield self._message()

    def _message(self) -> Incoming:
        chance = self._chance
        node = chance.choice(self._nodes)
        kind = chance.choice(KINDS)
        topic: str = getattr(NodeTopics(SITE, node), kind)
        payload = self._real(node, kind)
        dice = chance.random()
        if dice < 0.45:
            payload = self._changed_json(payload)
        elif dice < 0.75:
            payload = self._changed_bytes(payload)
        elif dice < 0.8:
            payload = chance.randbytes(chance.randrange(300))
        elif dice < 0.85:
            topic = self._other_topic(kind)
        elif dice < 0.87:
            topic, payload = self._stranger(kind)
        return Incoming(topic, payload, 0, retain=chance.random() < 0.1, received_s=self._now_s)

    def _real(self, node: str, kind: str) -> bytes:
        chance = self._chance
        self._seq[node] += chance.choice((0, 1, 1, 1, 1, 2, 5, -3))
        seq = max(0, self._seq[node])
        dice = chance.random()
        if dice < 0.005:
            self._session[node] += 1
        older = 0 if dice < 0.95 else chance.randrange(30)
        session = f"s{max(0, self._session[node] - older)}"
        meta = evolve(self._meta[node], session_id=session)
        if kind == "sample":
            sample = evolve(self._sample[node], seq=seq, session_id=session)
            return encode_sample(sample, meta if chance.random() < 0.8 else None)
        if kind == "meta":
            return encode_meta(meta)
        if kind == "state":
            condition = chance.choice(list(NodeCondition))
            return encode_state(NodeState(node, session, condition, wall_ns=seq))
        return encode_event(NodeEvent(node, session, seq, 1, 1, kind="xid", code=79))

    def _changed_json(self, payload: bytes) -> bytes:
        document: Any = json.loads(payload)
        for _ in range(self._chance.choice((1, 1, 1, 2, 4))):
            self._change(document)
        return json.dumps(document).encode("utf-8", "surrogatepass")

    def _change(self, document: Any) -> None:  # noqa: ANN401 - any JSON value
        """Walk down to some place and put something odd there."""
        chance = self._chance
        place: Any = document
        keys = _keys(place)
        if not keys:
            return
        key: Any = chance.choice(keys)
        while (inner := _keys(place[key])) and chance.random() < 0.8:
            place = place[key]
            key = chance.choice(inner)
        dice = chance.random()
        if dice < 0.6:
            place[key] = self._odd()
        elif dice < 0.75:
            del place[key]
        elif isinstance(key, str):
            place[str(self._odd())[:50]] = self._odd()
        else:
            place += copy.deepcopy(place[:50]) * chance.choice((1, 1, 3))

    def _odd(self) -> object:
        return copy.deepcopy(self._chance.choice(_ODD))

    def _changed_bytes(self, payload: bytes) -> bytes:
        chance, data = self._chance, bytearray(payload)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(data) + 1)
            dice = chance.random()
            if dice < 0.3:
                del data[at : at + chance.choice((1, 1, 10, 1000))]
            elif dice < 0.6:
                data[at:at] = chance.choice(_PARTS)
            elif dice < 0.8 and at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            else:
                data[at:at] = data[chance.randrange(len(data) + 1) :][:200]
        return bytes(data)

    def _stranger(self, kind: str) -> tuple[str, bytes]:
        """A node that was never heard of says something that is in order."""
        name = f"x{self._chance.randrange(1_000_000)}"
        if kind in {"sample", "meta"}:
            sample = evolve(self._sample[self._nodes[0]], node_id=name)
            meta = simulated_meta(sample)
            payload = encode_meta(meta) if kind == "meta" else encode_sample(sample, meta)
        elif kind == "state":
            payload = encode_state(NodeState(name, "s0", NodeCondition.READY, wall_ns=1))
        else:
            payload = encode_event(NodeEvent(name, "s0", 0, 1, 1, kind="appeared"))
        topic: str = getattr(NodeTopics(SITE, name), kind)
        return topic, payload

    def _other_topic(self, kind: str) -> str:
        chance = self._chance
        if chance.random() < 0.5:
            return chance.choice(_TOPICS)
        node = f"x{chance.randrange(1_000_000)}"
        return f"{ROOT}/{SITE}/{node}/{chance.choice((kind, *KINDS))}"


def _keys(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value))
    return list(range(len(cast("Sequence[Any]", value)))) if isinstance(value, list) else []
