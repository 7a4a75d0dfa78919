"""The published form of a sample fits the classes, takes the unknown, refuses the impossible."""

from __future__ import annotations

import copy
import enum
import json
from importlib import resources
from typing import Any

import attrs
import jsonschema
import pytest

from eaco_telemetry.readers.base import Reading, node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.samples import SCHEMA, GpuSample, HostSample, Moment, NodeSample, ProcessSample

TEXT = (resources.files("eaco_telemetry") / "schemas" / "sample-1.schema.json").read_text("utf-8")
FORM: dict[str, Any] = json.loads(TEXT)
VALIDATOR: Any = jsonschema.Draft202012Validator(FORM)


def _plain(_instance: object, _field: object, value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


def _as_json(sample: NodeSample) -> dict[str, Any]:
    data = attrs.asdict(sample, value_serializer=_plain)
    plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return plain


@pytest.fixture
def document() -> dict[str, Any]:
    reader = SimulatedReader("n1", gpus=4, seed=1)
    reader.open()
    reader.read(Moment(1, 0))
    now = Moment(1, 90_000_000_000)
    readings = {"simulated": reader.read(now), "host": Reading(host=HostSample(cpu_util_ratio=0.5))}
    return _as_json(node_sample(readings, node_id="n1", session_id="s", seq=0, now=now))


def test_the_schema_is_valid_and_names_every_field_of_the_classes() -> None:
    jsonschema.Draft202012Validator.check_schema(FORM)
    parts = FORM["$defs"]
    assert list(FORM["properties"])[-1] == "meta_wall_ns", "only on the wire"
    node = {"properties": {k: v for k, v in FORM["properties"].items() if k != "meta_wall_ns"}}
    for cls, part in (
        (NodeSample, node),
        (GpuSample, parts["gpu"]),
        (HostSample, parts["host"]),
        (ProcessSample, parts["process"]),
    ):
        assert list(part["properties"]) == [one.name for one in attrs.fields(cls)]
        described = [bool(one.get("description")) for one in part["properties"].values()]
        assert all(described)
    assert FORM["title"] == FORM["properties"]["schema"]["const"] == SCHEMA


def test_a_sample_fits_and_so_does_one_with_nothing_measured(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)
    assert any(gpu["processes"] for gpu in document["gpus"])
    empty = NodeSample("n1", "s", 0, 1, 1, gpus=(GpuSample("g", "v"),), host=HostSample())
    VALIDATOR.validate(_as_json(empty))


def test_a_field_of_a_later_version_is_no_fault(document: dict[str, Any]) -> None:
    document["later"] = 1
    document["gpus"][0]["later_w"] = {"any": "thing"}
    VALIDATOR.validate(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("util_ratio", 1.5),
        ("util_ratio", "0.5"),
        ("mem_used_bytes", 0.5),
        ("power_w", -1),
        ("energy_j", "N/A"),
        ("temperature_c", -300),
        ("state", "gone"),
        ("power_kind", "mean"),
        ("gpu_id", ""),
        ("processes", [{"name": "no pid"}]),
        ("missing", {"power_w": 0}),
        ("throttle", [1]),
        ("rejected", None),
    ],
)
def test_an_impossible_value_does_not_fit(
    document: dict[str, Any], name: str, value: object
) -> None:
    changed = copy.deepcopy(document)
    changed["gpus"][0][name] = value
    assert VALIDATOR.is_valid(document)
    assert not VALIDATOR.is_valid(changed)


@pytest.mark.parametrize("name", ["schema", "node_id", "session_id", "seq", "monotonic_ns"])
def test_a_sample_without_its_identity_does_not_fit(document: dict[str, Any], name: str) -> None:
    del document[name]
    assert not VALIDATOR.is_valid(document)
