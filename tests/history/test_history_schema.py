"""The JSON Schema in the package is the one that the classes give."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema

from eaco_core.schemas import history_schema


def test_the_schema_in_the_package_is_made_from_the_classes() -> None:
    stored = resources.files("eaco_core.schemas").joinpath("history-1.schema.json").read_text()
    assert json.loads(stored) == history_schema(), (
        "run: python -m eaco_core.schemas > eaco_core/eaco_core/schemas/history-1.schema.json"
    )


def test_the_schema_is_a_valid_schema_and_refuses_what_the_reader_refuses() -> None:
    schema = history_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator: Any = jsonschema.Draft202012Validator(schema)
    tick = {"type": "Tick", "t_s": 1.0}
    good = {"kind": "step", "seq": 1, "t_s": 1.0, "event": tick}
    assert validator.is_valid(good)
    assert validator.is_valid({**good, "unknown": 1})
    assert not validator.is_valid({**good, "event": {"type": "Tock", "t_s": 1.0}})
    assert not validator.is_valid({**good, "event": {"type": "Tick"}})
    assert not validator.is_valid({**good, "kind": "stride"})
    assert not validator.is_valid({**good, "seq": "1"})
