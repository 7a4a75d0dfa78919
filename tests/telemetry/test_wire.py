"""Messages on the wire: round trip, what is left out, and what is refused."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

import jsonschema
import msgspec
import pytest
from attrs import evolve, fields, frozen
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry import _check, _forms
from eaco_telemetry.meta import (
    DeviceMeta,
    HostMeta,
    NodeCondition,
    NodeEvent,
    NodeMeta,
    NodeState,
    node_meta,
)
from eaco_telemetry.readers.base import Reading, node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.samples import (
    GpuSample,
    HostSample,
    MemoryKind,
    Moment,
    NodeSample,
    ProcessSample,
    node_readings,
)
from eaco_telemetry.testing.messages import (
    node_events,
    node_metas,
    node_samples,
    node_states,
)
from eaco_telemetry.wire import (
    MAX_PAYLOAD_BYTES,
    NOT_TOLD,
    BadPayload,
    SampleDecoder,
    _build_gpu,
    _build_host,
    _build_node,
    _build_process,
    _builder,
    decode_event,
    decode_meta,
    decode_sample,
    decode_state,
    encode_event,
    encode_meta,
    encode_sample,
    encode_state,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

DECODERS: dict[str, Any] = {
    "sample": decode_sample,
    "meta": decode_meta,
    "state": decode_state,
    "event": decode_event,
}
CLASSES: dict[str, type[Any]] = {
    "sample": NodeSample,
    "meta": NodeMeta,
    "state": NodeState,
    "event": NodeEvent,
}


def _validator(kind: str) -> Any:  # noqa: ANN401 - jsonschema has no better type
    path = resources.files("eaco_telemetry") / "schemas" / f"{kind}-1.schema.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text("utf-8")))


VALIDATORS: dict[str, Any] = {kind: _validator(kind) for kind in DECODERS}


def _simulated(gpus: int = 3) -> NodeSample:
    reader = SimulatedReader("n1", gpus=gpus)
    reader.open()
    reader.read(Moment(1, 0))
    host = HostSample(cpu_util_ratio=0.5, missing={"node_power_w": "no meter"})
    readings = {
        "simulated": reader.read(Moment(1, 90_000_000_000)),
        "host": Reading(host=host),
    }
    return node_sample(readings, node_id="n1", session_id="s", seq=3, now=Moment(9, 8))


def _meta_of(sample: NodeSample, wall_ns: int = 7) -> NodeMeta:
    return node_meta(sample, period_s=1.0, agent="eaco 0", readers=("simulated",), wall_ns=wall_ns)


def _payload(**changes: object) -> bytes:
    document = json.loads(encode_sample(_simulated()))
    document.update(changes)
    return json.dumps(document).encode()


# ---------------------------------------------------------------- round trip


@given(node_samples)
def test_a_sample_comes_back_as_it_was_with_its_meta_and_without(sample: NodeSample) -> None:
    meta = _meta_of(sample)
    whole, slim = encode_sample(sample), encode_sample(sample, meta)
    for payload in (whole, slim):
        VALIDATORS["sample"].validate(json.loads(payload))
        assert decode_sample(payload, meta) == sample
    assert decode_sample(whole) == sample
    assert SampleDecoder(meta).decode(memoryview(slim)) == sample


@given(node_samples, node_samples)
def test_any_meta_of_the_session_gives_the_sample_back(
    sample: NodeSample, other: NodeSample
) -> None:
    """Also one whose constants differ: a change is said, and a reason can be taken back."""
    gpus = tuple(
        evolve(gpu, gpu_id=mine.gpu_id) for gpu, mine in zip(other.gpus, sample.gpus, strict=False)
    )
    meta = _meta_of(evolve(other, node_id=sample.node_id, session_id=sample.session_id, gpus=gpus))
    payload = encode_sample(sample, meta)
    VALIDATORS["sample"].validate(json.loads(payload))
    assert decode_sample(payload, meta) == sample


@given(node_metas, node_states, node_events)
def test_meta_state_and_event_come_back_as_they_were(
    meta: NodeMeta, state: NodeState, event: NodeEvent
) -> None:
    for kind, one, payload in (
        ("meta", meta, encode_meta(meta)),
        ("state", state, encode_state(state)),
        ("event", event, encode_event(event)),
    ):
        assert DECODERS[kind](payload) == one
        VALIDATORS[kind].validate(json.loads(payload))


def test_what_is_constant_is_left_out_and_the_rest_is_told() -> None:
    sample = _simulated(gpus=8)
    slim = encode_sample(sample, _meta_of(sample))
    assert len(slim) < 0.5 * len(encode_sample(sample))
    gpu = json.loads(slim)["gpus"][0]
    assert not set(gpu) & {"name", "mem_kind", "mem_total_bytes", "missing", "capabilities"}
    assert json.loads(slim)["simulated"] is True, "never left to the meta"


# ---------------------------------------------------------------- without the right meta


@pytest.mark.parametrize("change", [{"session_id": "other"}, {"wall_ns": 8}, {"node_id": "n2"}])
def test_a_sample_is_never_filled_in_from_the_wrong_meta(change: dict[str, Any]) -> None:
    sample = _simulated()
    payload = encode_sample(sample, _meta_of(sample))
    alone = decode_sample(payload, evolve(_meta_of(sample), **change))
    assert alone == decode_sample(payload)
    for gpu, whole in zip(alone.gpus, sample.gpus, strict=True):
        assert (gpu.name, gpu.mem_kind, gpu.mem_total_bytes, gpu.power_kind) == (None,) * 4
        assert gpu.missing["mem_total_bytes"] == gpu.missing["name"] == NOT_TOLD
        assert (gpu.power_w, gpu.processes) == (whole.power_w, whole.processes)
        assert gpu.unexplained == ()
    assert alone.host is not None
    assert alone.host.unexplained == ()


def test_a_meta_of_another_session_leaves_nothing_out() -> None:
    sample = _simulated()
    meta = _meta_of(evolve(sample, session_id="before"))
    assert encode_sample(sample, meta) == encode_sample(sample)


def test_a_part_of_a_gpu_names_its_parent_without_a_meta() -> None:
    """Else the energy of the GPU would be counted twice until the meta comes."""
    whole, part = GpuSample("GPU-a", "nvidia"), GpuSample("MIG-1", "nvidia", parent_id="GPU-a")
    sample = NodeSample("n1", "s", 0, 1, 1, gpus=(whole, part))
    alone = decode_sample(encode_sample(sample, _meta_of(sample)))
    assert [one.gpu_id for one in node_readings(alone, 0.0)] == ["MIG-1"]


def test_a_gpu_that_the_meta_does_not_know_is_told_in_full() -> None:
    sample = _simulated()
    meta = _meta_of(sample)
    more = evolve(sample, gpus=(*sample.gpus, GpuSample("GPU-new", "nvidia", name="New")))
    assert decode_sample(encode_sample(more, meta), meta) == more


def test_reasons_for_what_a_device_never_gives_are_in_its_meta_and_others_are_not() -> None:
    gpu = GpuSample(
        "GPU-a",
        "nvidia",
        mem_kind=MemoryKind.UNIFIED,
        capabilities=("power_w",),
        missing={"power_w": "asleep", "util_ratio": "not supported"},
    )
    meta = _meta_of(NodeSample("n1", "s", 0, 1, 1, gpus=(gpu,)))
    assert meta.gpus[0].missing == {"util_ratio": "not supported"}
    assert meta.gpus[0].mem_kind is MemoryKind.UNIFIED


# ---------------------------------------------------------------- what is refused

BROKEN: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "not JSON"),
    ("no JSON", b"\xff\xfe", "not JSON"),
    ("cut off", encode_sample(_simulated())[:-5], "not JSON"),
    ("something behind it", encode_sample(_simulated()) + b"{}", "not JSON"),
    ("NaN", _payload().replace(b'"seq": 3', b'"seq": NaN'), "not JSON"),
    ("half a surrogate", _payload(session_id="\ud800"), "not JSON"),
    ("no UTF-8", _payload().replace(b'"s"', b'"\xed\xa0\x80"'), "not JSON"),
    ("a list", b"[]", "wrong form"),
    ("no seq", b'{"schema":"eaco.sample/1","node_id":"n","session_id":"s"}', "wrong form"),
    ("a name too long", _payload(session_id="x" * 257), "wrong form"),
    ("too many GPUs", _payload(gpus=[{"gpu_id": "g", "vendor": "v"}] * 1025), "wrong form"),
    ("a number out of range", _payload(seq=1 << 63), "wrong form"),
    ("deep", b'{"schema":"eaco.sample/1","x":' + b"[" * 100_000, "wrong form"),
    ("deep objects", b'{"x":' * 100_000, "wrong form"),
    ("later", _payload(schema="eaco.sample/2"), "wrong version"),
    ("later, of another form", b'{"schema":"eaco.sample/2","devices":1}', "wrong version"),
    ("large", b" " * (MAX_PAYLOAD_BYTES + 1), "too large"),
]


@pytest.mark.parametrize(
    ("payload", "kind"), [one[1:] for one in BROKEN], ids=[o[0] for o in BROKEN]
)
def test_a_broken_payload_is_refused_with_its_kind(payload: bytes, kind: str) -> None:
    with pytest.raises(BadPayload) as caught:
        decode_sample(payload)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", DECODERS)
@given(payload=st.binary(max_size=64))
def test_bytes_by_chance_are_refused_and_nothing_else_happens(kind: str, payload: bytes) -> None:
    with pytest.raises(BadPayload):
        DECODERS[kind](payload)


def test_fields_of_a_later_version_and_doubled_keys_are_no_fault() -> None:
    sample = _simulated()
    document = json.loads(encode_sample(sample))
    document["gpus"][0]["later_w"] = {"any": ["thing"]}
    assert decode_sample(json.dumps({**document, "later": 1}).encode()) == sample
    doubled = encode_sample(sample).replace(b'"seq":3', b'"seq":9,"seq":3')
    assert decode_sample(doubled) == sample


ODD: list[object] = [
    None, True, False, 0, 1, -1, 7, 0.0, -0.0, 0.5, 1.0, 1.5, -0.001, -300, 1e300, 1 << 62,
    (1 << 63) - 1, 1 << 63, 10**30, "", "0.5", "active", "dedicated", "counter", "ready",
    float("nan"), float("inf"), [], ["a"], [1], [None], {}, {"a": "b"}, {"a": 1}, [[]],
]  # fmt: skip


def _inner(document: object) -> list[tuple[Any, Any]]:
    if isinstance(document, dict):
        return list(cast("dict[str, Any]", document).items())
    if isinstance(document, list):
        return list(enumerate(cast("Sequence[Any]", document)))
    return []


def _places(document: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    for key, value in _inner(document):
        found += _places(value, (*path, key))
    return found


@given(data=st.data(), kind=st.sampled_from(sorted(DECODERS)))
def test_the_wire_takes_exactly_what_the_classes_and_the_schema_take(
    data: st.DataObject, kind: str
) -> None:
    """One odd value anywhere: forms, validators and JSON Schema say the same of it."""
    strategies = {"sample": node_samples, "meta": node_metas, "state": node_states}
    strategy: st.SearchStrategy[object] = strategies.get(kind, node_events)
    # Every field, also those that the wire would leave out.
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(data.draw(strategy)))
    path = data.draw(st.sampled_from(_places(document)))
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(st.sampled_from(ODD))
    payload = json.dumps(document).encode()
    try:
        decoded = DECODERS[kind](payload)
    except BadPayload:
        decoded = None
    try:
        by_class = msgspec.json.decode(payload, type=CLASSES[kind])
    except (msgspec.DecodeError, InputError):
        by_class = None
    if by_class is not None and by_class.schema != f"eaco.{kind}/1":
        by_class = None
    if kind == "sample" and _takes_back(document):
        return  # only on the wire: a reason that is taken back
    assert decoded == by_class
    if b"NaN" in payload or b"Infinity" in payload or _has_whole_float(document):
        return  # no JSON; and 1.0 is a whole number for the schema, and none for us
    assert VALIDATORS[kind].is_valid(document) == (decoded is not None)


def _takes_back(document: object, *, in_missing: bool = False) -> bool:
    return any(
        (in_missing and value is None) or _takes_back(value, in_missing=key == "missing")
        for key, value in _inner(document)
    )


def _has_whole_float(document: object) -> bool:
    if isinstance(document, float):
        return document.is_integer()
    return any(_has_whole_float(value) for _, value in _inner(document))


# ---------------------------------------------------------------- what is sent is taken


def test_what_is_too_long_is_cut_so_that_it_is_taken() -> None:
    gpu = GpuSample(
        "GPU-a",
        "nvidia",
        name="n" * 500,
        flags=tuple(f"f{n}" for n in range(300)),
        missing={"power_w": "w" * 5000},
        processes=tuple(ProcessSample(pid) for pid in range(5000)),
    )
    sample = NodeSample("n1", "s", 0, 1, 1, gpus=(gpu,), problems={"x": "p" * 5000})
    (back,) = decode_sample(encode_sample(sample)).gpus
    assert (len(back.name or ""), len(back.flags), len(back.missing["power_w"])) == (256, 128, 2000)
    assert back.processes is not None
    assert len(back.processes) == 4096
    event = NodeEvent("n1", "s", 0, 1, 1, kind="failed", message="m" * 9000)
    assert len(decode_event(encode_event(event)).message) == 2000


def test_half_a_surrogate_in_a_name_does_not_stop_a_message() -> None:
    """A driver or a file name may give bytes that are no text."""
    sample = NodeSample("n1", "s", 0, 1, 1, gpus=(GpuSample("g", "v", name="x\udcff"),))
    assert decode_sample(encode_sample(sample)).gpus[0].name == "x?"


def test_a_message_beyond_all_limits_is_refused_before_it_is_sent() -> None:
    processes = tuple(ProcessSample(pid, name="x" * 200) for pid in range(4000))
    gpus = tuple(GpuSample(f"GPU-{n}", "nvidia", processes=processes) for n in range(4))
    with pytest.raises(BadPayload, match="above the limit"):
        encode_sample(NodeSample("n1", "s", 0, 1, 1, gpus=gpus))


# ---------------------------------------------------------------- forms and classes agree


@pytest.mark.parametrize(
    ("form", "cls", "only_here"),
    [
        (_forms.SampleForm, NodeSample, {"meta_wall_ns"}),
        (_forms.GpuForm, GpuSample, set[str]()),
        (_forms.HostForm, HostSample, set[str]()),
        (_forms.ProcessForm, ProcessSample, set[str]()),
        (_forms.MetaForm, NodeMeta, set[str]()),
        (_forms.DeviceMetaForm, DeviceMeta, set[str]()),
        (_forms.HostMetaForm, HostMeta, set[str]()),
        (_forms.StateForm, NodeState, set[str]()),
        (_forms.EventForm, NodeEvent, set[str]()),
    ],
)
def test_every_field_of_a_class_is_on_the_wire(
    form: Any,  # noqa: ANN401 - a Struct
    cls: type[Any],
    only_here: set[str],
) -> None:
    """A new field of a class must get a line in `_forms.py`."""
    assert set(form.__struct_fields__) - only_here == {one.name for one in fields(cls)}


def test_forms_that_are_turned_by_place_have_the_order_of_their_class() -> None:
    for form, cls in (
        (_forms.ProcessForm, ProcessSample),
        (_forms.DeviceMetaForm, DeviceMeta),
        (_forms.HostMetaForm, HostMeta),
    ):
        assert form.__struct_fields__ == tuple(one.name for one in fields(cls))


def test_a_built_object_is_what_the_constructor_gives_also_where_layouts_differ() -> None:
    @frozen(weakref_slot=False)
    class Same:
        first: int
        second: str = "x"

    @frozen  # with one slot more than the twin
    class Different:
        first: int
        second: str = "x"

    for cls in (Same, Different):
        build: Any = _builder(cls, ("second", "first"))
        made: Any = build("y", 1)
        with pytest.raises(FrozenInstanceError):
            made.second = "z"
        assert (made.__class__, made) == (cls, cls(1, "y"))
    for name, cls in (("Same", Same), ("Different", Different)):
        fast = "slowly" not in _builder(cls, ("second", "first")).__qualname__
        assert fast == (name == "Same")
    for build in (_build_node, _build_gpu, _build_host, _build_process):
        assert "slowly" not in build.__qualname__


@pytest.mark.parametrize("kind", DECODERS)
def test_the_schema_is_valid_and_names_every_field(kind: str) -> None:
    validator = VALIDATORS[kind]
    validator.check_schema(validator.schema)
    properties = set(validator.schema["properties"]) - {"meta_wall_ns"}
    assert properties == {one.name for one in fields(CLASSES[kind])}
    assert validator.schema["properties"]["schema"]["const"] == f"eaco.{kind}/1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("period_s", 0),
        ("period_s", float("nan")),
        ("period_s", 1e6),
        ("wall_ns", -1),
        ("wall_ns", _check.MOST + 1),
        ("node_id", ""),
        ("agent", ""),
    ],
)
def test_a_meta_refuses_what_cannot_be(name: str, value: object) -> None:
    values: dict[str, Any] = {
        "node_id": "n1", "session_id": "s", "period_s": 1.0, "wall_ns": 1, "agent": "eaco 0",
        name: value,
    }  # fmt: skip
    with pytest.raises(InputError, match=f"NodeMeta.{name}"):
        NodeMeta(**values)


def test_a_last_will_has_no_time() -> None:
    will = NodeState("n1", "s", NodeCondition.LOST)
    assert json.loads(encode_state(will)) == {
        "schema": "eaco.state/1", "node_id": "n1", "session_id": "s", "condition": "lost",
    }  # fmt: skip
