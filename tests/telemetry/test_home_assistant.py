"""Home Assistant discovery: what appears there, and templates that read real samples."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.exporters.home_assistant import discovery_messages, removal_messages
from eaco_telemetry.meta import NodeCondition, NodeMeta, NodeState, node_meta
from eaco_telemetry.readers.base import node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.samples import GpuSample, HostSample, MemoryKind, Moment, NodeSample
from eaco_telemetry.wire import encode_sample, encode_state

_GIB = 1 << 30
_BOTH = (
    GpuSample(
        "GPU-aaaa",
        "nvidia",
        name="Tesla V100",
        mem_kind=MemoryKind.DEDICATED,
        util_ratio=0.345,
        mem_used_bytes=4 * _GIB,
        mem_total_bytes=16 * _GIB,
        power_w=200.04,
        energy_j=7_200_000.0,
        temperature_c=61.0,
        capabilities=("energy_j", "mem_used_bytes", "power_w", "temperature_c", "util_ratio"),
        missing={"mem_temperature_c": "not supported by this device or driver"},
    ),
    GpuSample("GPU-bbbb", "amd", power_w=0.0, capabilities=("power_w", "util_ratio")),
)
_HOST = HostSample(package_power_w=80.0, node_power_w=400.0, capabilities=("package_power_w",))


def _sample(*gpus: GpuSample, **values: Any) -> NodeSample:  # noqa: ANN401 - any field
    return NodeSample("box-1", "s1", 7, 1, 2, gpus=gpus, **values)


def _meta(sample: NodeSample) -> NodeMeta:
    return node_meta(sample, period_s=1.0, agent="eaco 0.1.0", readers=["nvml"], wall_ns=3)


def _documents(meta: NodeMeta, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - of the function
    chosen: dict[str, Any] = {"site": "lab", "period_s": 1.0, **options}
    return [json.loads(payload) for _, payload in discovery_messages(meta, **chosen)]


def _by_serial(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["dev"].get("serial_number", "node"): one for one in documents}


# ------------------------------------------------------------------------- what appears


def test_a_node_and_each_gpu_are_devices_with_what_they_can_give() -> None:
    documents = _by_serial(_documents(_meta(_sample(*_BOTH, host=_HOST))))
    assert {name: set(one["cmps"]) for name, one in documents.items()} == {
        "node": {"package_power_w"},
        "GPU-aaaa": {"energy_j", "mem_used_bytes", "power_w", "temperature_c", "util_ratio"},
        "GPU-bbbb": {"power_w", "util_ratio"},
    }
    node = documents["node"]["dev"]
    assert node["name"] == "box-1"
    gpu = documents["GPU-aaaa"]["dev"]
    assert gpu == {
        "identifiers": gpu["identifiers"],
        "name": "box-1 Tesla V100 GPU-aaaa",
        "manufacturer": "nvidia",
        "model": "Tesla V100",
        "serial_number": "GPU-aaaa",
        "via_device": node["identifiers"][0],
    }


def test_entities_have_the_classes_and_units_that_the_energy_board_wants() -> None:
    (document,) = _documents(_meta(_sample(_BOTH[0])))
    wanted = {
        "power_w": ("power", "measurement", "W"),
        "energy_j": ("energy", "total_increasing", "kWh"),
        "util_ratio": (None, "measurement", "%"),
        "mem_used_bytes": ("data_size", "measurement", "MiB"),
        "temperature_c": ("temperature", "measurement", "°C"),
    }
    assert {
        name: (one.get("device_class"), one["state_class"], one["unit_of_measurement"])
        for name, one in document["cmps"].items()
    } == wanted
    assert {one["p"] for one in document["cmps"].values()} == {"sensor"}
    assert "via_device" not in document["dev"], "the node has nothing to show, so it is no device"


def test_messages_name_our_topics_and_when_values_are_too_old() -> None:
    meta = _meta(_sample(_BOTH[0]))
    ((topic, payload),) = discovery_messages(meta, site="lab", period_s=10.0, prefix="ha/main")
    document = json.loads(payload)
    key = document["dev"]["identifiers"][0]
    assert topic == f"ha/main/device/{key}/config"
    assert document["state_topic"] == "eaco/v1/lab/box-1/sample"
    assert [one["topic"] for one in document["availability"]] == ["eaco/v1/lab/box-1/state"]
    assert {one["expire_after"] for one in document["cmps"].values()} == {30}
    assert document["o"] == {"name": "eaco", "sw_version": "eaco 0.1.0"}


def test_ids_stay_the_same_and_no_two_are_alike() -> None:
    def ids(site: str, node_id: str) -> list[str]:
        meta = evolve(_meta(_sample(*_BOTH, host=_HOST)), node_id=node_id)
        return [
            one["unique_id"]
            for document in _documents(meta, site=site)
            for one in document["cmps"].values()
        ]

    assert ids("lab", "a.b") == ids("lab", "a.b")
    every = ids("lab", "a.b") + ids("lab", "a_b") + ids("lab.a", "b") + ids("lab", "a-b")
    assert len(set(every)) == len(every)
    assert all(one.replace("_", "").replace("-", "").isalnum() for one in every)


def test_made_up_numbers_say_so_in_every_name() -> None:
    reader = SimulatedReader("box-1", gpus=2)
    reader.open()
    now = Moment(1, 1)
    sample = node_sample(
        {"simulated": reader.read(now)}, node_id="box-1", session_id="s", seq=0, now=now
    )
    documents = _documents(_meta(sample))
    assert len(documents) == 2
    for document in documents:
        assert document["dev"]["name"].endswith("(simulated)")
        assert document["dev"]["model"].endswith("(simulated)")


def test_a_part_of_a_gpu_stands_under_it() -> None:
    part = GpuSample("MIG-1", "nvidia", parent_id="GPU-aaaa", capabilities=("mem_used_bytes",))
    documents = _by_serial(_documents(_meta(_sample(part, *_BOTH, host=_HOST))))
    above = documents["GPU-aaaa"]["dev"]["identifiers"][0]
    assert documents["MIG-1"]["dev"]["via_device"] == above


def test_nothing_appears_for_a_node_that_gives_nothing() -> None:
    assert discovery_messages(_meta(_sample()), site="lab", period_s=1.0) == ()
    bare = _meta(_sample(GpuSample("GPU-a", "nvidia"), host=HostSample()))
    assert discovery_messages(bare, site="lab", period_s=1.0) == ()


def test_a_device_that_is_gone_is_taken_away_by_an_empty_message() -> None:
    options: dict[str, Any] = {"site": "lab", "period_s": 1.0}
    before = discovery_messages(_meta(_sample(*_BOTH)), **options)
    now = discovery_messages(_meta(_sample(_BOTH[0])), **options)
    assert removal_messages(before, now) == ((before[1][0], b""),)
    assert removal_messages(before) == ((before[0][0], b""), (before[1][0], b""))
    assert removal_messages(now, before) == ()


@pytest.mark.parametrize("prefix", ["", "a/+/b", "a/#", "$SYS", "a\0b"])
def test_a_prefix_that_is_no_topic_is_refused(prefix: str) -> None:
    with pytest.raises(InputError, match="is no prefix of a topic"):
        _documents(_meta(_sample(*_BOTH)), prefix=prefix)


# ------------------------------------------------------------------------- templates


def _rendered(template: str, payload: bytes) -> str:
    """Render as Home Assistant does: a sandbox, and `value_json` from the payload."""
    try:
        sandbox: Any = importlib.import_module("jinja2.sandbox")
    except ModuleNotFoundError:
        pytest.skip("jinja2 is not installed, so templates cannot be rendered")
    environment = sandbox.ImmutableSandboxedEnvironment()
    return str(environment.from_string(template).render(value_json=json.loads(payload)))


def _values(document: dict[str, Any], payload: bytes) -> dict[str, str]:
    return {
        name: _rendered(one["value_template"], payload) for name, one in document["cmps"].items()
    }


@pytest.mark.parametrize("with_meta", [True, False])
def test_templates_read_the_samples_that_are_sent(*, with_meta: bool) -> None:
    sample = _sample(*_BOTH, host=_HOST)
    meta = _meta(sample)
    payload = encode_sample(sample, meta if with_meta else None)
    documents = _by_serial(_documents(meta))
    assert _values(documents["GPU-aaaa"], payload) == {
        "power_w": "200.0",
        "energy_j": "2.0",
        "util_ratio": "34.5",
        "mem_used_bytes": "4096.0",
        "temperature_c": "61.0",
    }
    assert _values(documents["GPU-bbbb"], payload) == {"power_w": "0.0", "util_ratio": "None"}
    assert _values(documents["node"], payload) == {"package_power_w": "80.0"}


def test_a_gpu_is_found_by_its_id_wherever_it_stands() -> None:
    meta = _meta(_sample(*_BOTH))
    document = _by_serial(_documents(meta))["GPU-aaaa"]
    turned = encode_sample(_sample(*reversed(_BOTH)), meta)
    assert _values(document, turned)["power_w"] == "200.0"
    for gpus in ((), _BOTH[1:]):
        gone = encode_sample(_sample(*gpus), meta)
        assert set(_values(document, gone).values()) == {"None"}


@pytest.mark.parametrize("payload", [b"{}", b'{"gpus":null,"host":null}', b'{"gpus":[{}]}'])
def test_a_sample_that_lacks_a_part_is_unknown_and_no_error(payload: bytes) -> None:
    for document in _documents(_meta(_sample(*_BOTH, host=_HOST))):
        assert set(_values(document, payload).values()) == {"None"}


def test_null_is_unknown() -> None:
    (document,) = _documents(_meta(_sample(_BOTH[0])))
    payload = b'{"gpus":[{"gpu_id":"GPU-aaaa","power_w":null}]}'
    assert set(_values(document, payload).values()) == {"None"}


@pytest.mark.parametrize(
    ("condition", "word"),
    [
        (NodeCondition.READY, "online"),
        (NodeCondition.ALERT, "online"),
        (NodeCondition.SLEEPING, "offline"),
        (NodeCondition.DISCONNECTED, "offline"),
        (NodeCondition.LOST, "offline"),
    ],
)
def test_availability_follows_the_state_of_the_node(condition: NodeCondition, word: str) -> None:
    (document,) = _documents(_meta(_sample(_BOTH[0])))
    template = document["availability"][0]["value_template"]
    assert _rendered(template, encode_state(NodeState("box-1", "s1", condition))) == word


@given(st.text(min_size=1, max_size=30).filter(lambda text: text != "other"))
def test_no_id_of_a_gpu_breaks_out_of_its_template(gpu_id: str) -> None:
    odd = GpuSample(gpu_id, "x", power_w=5.0, capabilities=("power_w",))
    other = GpuSample("other", "x", power_w=6.0, capabilities=("power_w",))
    sample = _sample(other, odd)
    documents = _by_serial(_documents(_meta(sample)))
    assert _values(documents[gpu_id], encode_sample(sample)) == {"power_w": "5.0"}


@pytest.mark.parametrize(
    "gpu_id", ["' }}{{ 7 * 7 }}", "a'b\"c\\d", "{% raw %}", "{#", "\n", "é€😀"]
)
def test_signs_of_the_template_language_are_just_signs(gpu_id: str) -> None:
    odd = GpuSample(gpu_id, "x", power_w=5.0, capabilities=("power_w",))
    (document,) = _documents(_meta(_sample(odd)))
    assert _values(document, encode_sample(_sample(odd))) == {"power_w": "5.0"}
