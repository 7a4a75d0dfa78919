"""JSON Schemas of the files that eaco writes, made from the classes they hold.

`python -m eaco_core.schemas` prints the one of a line of `eaco.history/1`; a test
holds it against `history-1.schema.json` in this folder, which is for other tools.
"""

from __future__ import annotations

import enum
import typing
from typing import Any, Literal

import attrs

from eaco_core import history
from eaco_core._codec import parts_of
from eaco_core.rules import Rules

_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]}


def history_schema() -> dict[str, Any]:
    """Give the JSON Schema (draft 2020-12) of one line of a history."""
    definitions: dict[str, Any] = {}
    classes: tuple[type[Any], ...] = (
        Rules,
        *history.EVENT_TYPES,
        *history.EFFECT_TYPES,
        *history.RECORD_TYPES,
    )
    for cls in classes:
        _define(cls, definitions, tagged=cls is not Rules)
    definitions["event"] = _one_of(history.EVENT_TYPES)
    definitions["effect"] = _one_of(history.EFFECT_TYPES)
    definitions["record"] = _one_of(history.RECORD_TYPES)
    definitions["header"] = _header()
    definitions["step"] = _step()
    definitions["energy"] = _energy()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of {history.SCHEMA}",
        "description": "The first line of a file is the header; it has only one. "
        "Times are scheduler seconds, energies joules. Further fields are read over.",
        "type": "object",
        "required": ["kind"],
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in ("header", "step", "energy")],
        "$defs": definitions,
    }


def _header() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["schema", "kind"],
        "properties": {
            "schema": {"const": history.SCHEMA},
            "kind": {"const": "header"},
            "policy": {"type": "string"},
            "origin": {"type": "string", "description": "the scheduler that wrote the file"},
            "seed": {"type": ["integer", "null"]},
            "rules": {"$ref": "#/$defs/Rules"},
            "info": {"type": "object", "description": "whatever else the writer wants to keep"},
        },
    }


def _step() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["kind", "seq", "t_s", "event"],
        "properties": {
            "kind": {"const": "step"},
            "seq": {"type": "integer"},
            "t_s": {"type": "number", "minimum": 0},
            "term": {"type": "integer"},
            "event": {"$ref": "#/$defs/event"},
            "effects": {"type": "array", "items": {"$ref": "#/$defs/effect"}},
            "records": {"type": "array", "items": {"$ref": "#/$defs/record"}},
        },
    }


def _energy() -> dict[str, Any]:
    parts = ("idle_j", "unattributed_j", "sleep_j", "wake_j")
    return {
        "type": "object",
        "required": ["kind", "t0_s", "t1_s", "node_id", "node_j"],
        "properties": {
            "kind": {"const": "energy"},
            "t0_s": _NUMBER,
            "t1_s": _NUMBER,
            "node_id": {"type": "string"},
            "node_j": _NUMBER,
            "jobs_j": {"type": "object", "additionalProperties": _NUMBER},
            **dict.fromkeys(parts, _NUMBER),
        },
    }


def _one_of(classes: tuple[type[Any], ...]) -> dict[str, Any]:
    return {"oneOf": [{"$ref": f"#/$defs/{cls.__name__}"} for cls in classes]}


def _define(cls: type[Any], definitions: dict[str, Any], *, tagged: bool) -> dict[str, Any]:
    name = cls.__name__
    if name not in definitions:
        hints = typing.get_type_hints(cls)
        fields = attrs.fields(cls)
        properties = {f.name: _type(hints[f.name], definitions) for f in fields}
        required = [f.name for f in fields if f.default is attrs.NOTHING]
        if tagged:
            properties = {"type": {"const": name}, **properties}
            required = ["type", *required]
        definitions[name] = {
            "type": "object",
            "description": (cls.__doc__ or "").partition("\n")[0],
            "required": required,
            "properties": properties,
        }
    return {"$ref": f"#/$defs/{name}"}


def _type(hint: object, definitions: dict[str, Any]) -> dict[str, Any]:
    inner, optional = parts_of(hint)
    if optional:
        return {"anyOf": [{"type": "null"}, _type(inner, definitions)]}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _type(args[0], definitions)}
    if origin is tuple:
        items = [_type(arg, definitions) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": len(args), "items": False}
    if origin is Literal:
        return {"enum": list(args)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    simple: dict[object, dict[str, Any]] = {
        str: {"type": "string"},
        bool: {"type": "boolean"},
        int: {"type": "integer"},
        float: _NUMBER,
    }
    if hint in simple:
        return simple[hint]
    return _define(typing.cast("type[Any]", hint), definitions, tagged=False)
