"""Every line that can be written is read back as it was, and is valid by the schema."""

from __future__ import annotations

import enum
import json
import math
import typing
from typing import Any, Literal, cast

import attrs
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core import history
from eaco_core._codec import parts_of
from eaco_core.errors import InputError
from eaco_core.events import EpochCompleted, Tick
from eaco_core.history import EnergyLine, Header, Step
from eaco_core.rules import Rules
from eaco_core.schemas import history_schema

NUMBERS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
RATIOS = st.floats(min_value=1e-6, max_value=1)
NEVER_EMPTY = {"gpus", "gpu_types"}
VALIDATOR: Any = jsonschema.Draft202012Validator(history_schema())


def values(hint: object, *, name: str = "") -> st.SearchStrategy[Any]:
    inner, optional = parts_of(hint)
    if optional:
        return st.none() | values(inner, name=name)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[-1] is Ellipsis:
        least = 1 if name in NEVER_EMPTY else 0
        return st.lists(values(args[0], name=name), min_size=least, max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values(arg, name=name) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    simple: dict[object, st.SearchStrategy[Any]] = {
        str: st.text(min_size=1, max_size=8),
        bool: st.booleans(),
        int: st.integers(min_value=1, max_value=2**60),
        float: ratios(name) if name.endswith("_ratio") or name == "alpha" else numbers(name),
    }
    return simple[hint] if hint in simple else instances(cast("type[Any]", hint))


def ratios(name: str) -> st.SearchStrategy[float]:
    return st.floats(min_value=1, max_value=9) if name == "max_slowdown_ratio" else RATIOS


def numbers(name: str) -> st.SearchStrategy[float]:
    return st.floats(min_value=1e-6, max_value=1e12, allow_nan=False) | (
        st.just(math.inf) if name in {"starvation_s", "alternative_energy_j"} else st.nothing()
    )


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {
        f.name: values(hints[f.name], name=f.name)
        if f.default is attrs.NOTHING
        else st.just(f.default) | values(hints[f.name], name=f.name)
        for f in attrs.fields(cls)
    }
    return st.fixed_dictionaries(fields).map(lambda found: cls(**found))


ALL_TYPES = history.EVENT_TYPES + history.EFFECT_TYPES + history.RECORD_TYPES


@pytest.mark.parametrize("cls", ALL_TYPES, ids=lambda cls: cast("str", cls.__name__))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_class_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    value = data.draw(instances(cls))
    event = value if cls in history.EVENT_TYPES else Tick(1.0)
    step = Step(
        seq=7,
        t_s=data.draw(NUMBERS),
        term=data.draw(st.integers(0, 9)),
        event=event,
        effects=(value,) * 2 if cls in history.EFFECT_TYPES else (),
        records=(value,) * 2 if cls in history.RECORD_TYPES else (),
    )
    text = history.encode(step)
    assert "\n" not in text
    assert history.decode_line(text) == step
    assert history.encode(cast("Step", history.decode_line(text))) == text
    VALIDATOR.validate(json.loads(text))


@settings(max_examples=60, deadline=None)
@given(
    rules=instances(Rules),
    policy=st.text(),
    seed=st.none() | st.integers(-5, 5),
    info=st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3),
)
def test_the_header_comes_back_as_it_was(
    rules: Rules, policy: str, seed: int | None, info: dict[str, Any]
) -> None:
    header = Header(policy=policy, rules=rules, origin="other", seed=seed, info=info)
    text = history.encode(header)
    assert history.decode_line(text) == header
    VALIDATOR.validate(json.loads(text))


@given(
    jobs_j=st.dictionaries(st.text(), NUMBERS, max_size=3),
    numbers_j=st.lists(NUMBERS, min_size=5, max_size=5),
)
def test_an_energy_line_comes_back_as_it_was(
    jobs_j: dict[str, float], numbers_j: list[float]
) -> None:
    line = EnergyLine(0.0, 10.5, "n1", numbers_j[0], jobs_j, *numbers_j[1:])
    text = history.encode(line)
    assert history.decode_line(text) == line
    VALIDATOR.validate(json.loads(text))


def test_numbers_come_back_exactly_and_nan_is_never_written() -> None:
    for t_s in (0.1 + 0.2, 1e-300, 2.0**60, 123456789.123456789):
        text = history.encode_step(1, t_s, 1, Tick(t_s))
        assert cast("Step", history.decode_line(text)).event.t_s == t_s
    with pytest.raises(InputError, match="NaN"):
        history.encode_step(1, math.nan, 1, Tick(0.0))


def test_fields_equal_to_their_default_are_left_out_and_infinity_is_a_string() -> None:
    text = history.encode_header(policy="eaco", rules=Rules(starvation_s=math.inf))
    assert json.loads(text)["rules"] == {"starvation_s": "inf"}
    epoch = EpochCompleted(t_s=2.0, job_id="a", attempt=1, epoch=3)
    assert json.loads(history.encode_step(1, 2.0, 1, epoch)) == {
        "kind": "step",
        "seq": 1,
        "t_s": 2.0,
        "term": 1,
        "event": {"type": "EpochCompleted", "t_s": 2.0, "job_id": "a", "attempt": 1, "epoch": 3},
    }
