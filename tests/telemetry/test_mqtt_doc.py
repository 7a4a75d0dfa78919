"""What docs/mqtt.md shows is what is sent and taken."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

from eaco_telemetry import wire
from eaco_telemetry.samples import PowerKind
from eaco_telemetry.subscriber import SubscriberCounters, SubscriberOptions
from eaco_telemetry.subscriber.update_queue import UpdateQueue
from eaco_telemetry.wire import NOT_TOLD, decode_meta, decode_sample

DOC = (Path(__file__).resolve().parents[2] / "docs" / "mqtt.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOC, re.DOTALL)


def test_every_message_shown_is_taken_and_fits_its_schema() -> None:
    seen = set[str]()
    for block in _blocks("json"):
        document: dict[str, Any] = json.loads(block)
        kind = document["schema"].removeprefix("eaco.").removesuffix("/1")
        decode = getattr(wire, f"decode_{kind}")
        assert decode(block.encode()).node_id == "box-1"
        path = resources.files("eaco_telemetry") / "schemas" / f"{kind}-1.schema.json"
        validator: Any = jsonschema.Draft202012Validator(json.loads(path.read_text("utf-8")))
        validator.validate(document)
        properties = validator.schema["properties"]
        assert set(document) <= set(properties)
        for gpu in document.get("gpus", ()):
            part = "gpu" if kind == "sample" else "device"
            assert set(gpu) <= set(validator.schema["$defs"][part]["properties"])
        seen.add(kind)
    assert seen == {"meta", "sample", "state", "event"}


def test_the_sample_shown_is_filled_in_from_the_meta_shown() -> None:
    meta, sample = (block.encode() for block in _blocks("json")[:2])
    (gpu,) = decode_sample(sample, decode_meta(meta)).gpus
    assert (gpu.name, gpu.power_kind) == ("NVIDIA L4", PowerKind.AVERAGE)
    assert gpu.missing["module_power_w"].startswith("not supported")
    assert NOT_TOLD in DOC.replace("\n", " ")


def test_the_limits_told_are_those_of_the_code() -> None:
    options = SubscriberOptions()
    assert (options.max_payload_bytes, options.max_stored_bytes) == (1 << 20, 128 << 20)
    assert (options.max_nodes, options.max_gpus, options.max_updates) == (10_000, 256, 10_000)
    assert UpdateQueue(options.max_updates, SubscriberCounters())._max_of_node == 500
    assert options.stale_after_periods == 3


def test_the_snippets_can_be_read() -> None:
    (snippet,) = _blocks("toml")
    assert tomllib.loads(snippet)["inputs"]["mqtt_consumer"][0]["data_format"] == "json_v2"
    (program,) = _blocks("python")
    compile(program, "docs/mqtt.md", "exec")
