"""Hypothesis strategies for samples, metas, states and events: everything that is allowed.

Whole numbers in places of measures stay below 2^53, where a float is exact; texts are
Unicode without halves of surrogates, and lengths within what a receiver takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from attrs import Attribute, fields
from hypothesis import strategies as st

from eaco_telemetry import _check, meta, samples
from eaco_telemetry.meta import (
    DeviceMeta,
    HostMeta,
    NodeCondition,
    NodeEvent,
    NodeMeta,
    NodeState,
)
from eaco_telemetry.samples import GpuSample, HostSample, NodeSample, ProcessSample

if TYPE_CHECKING:
    import enum
    from collections.abc import Mapping

_LARGEST: Final = 1e300

texts: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names: Final = texts.filter(bool)
words: Final = st.lists(texts, max_size=3).map(tuple)
counts: Final = st.integers(0, _check.MOST)
value_names: Final = st.sampled_from([one.name for one in fields(GpuSample)]) | texts
reasons: Final = st.dictionaries(value_names, texts, max_size=4)

_BY_VALIDATOR: Final[Mapping[object, st.SearchStrategy[Any]]] = {
    _check.name: names,
    _check.count: counts,
    _check.whole: st.none() | counts,
    _check.code: st.none() | st.integers(-_check.MOST, _check.MOST),
    _check.ratio: st.none() | st.floats(0, 1) | st.integers(0, 1),
    _check.measure: st.none() | st.floats(0, _LARGEST) | st.integers(0, 1 << 53),
    _check.degrees: st.none()
    | st.floats(_check.ABSOLUTE_ZERO_C, _LARGEST)
    | st.integers(-273, 1 << 53),
    _check.period: st.floats(_check.MIN_PERIOD_S, _check.MAX_PERIOD_S),
}

_BY_ANNOTATION: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "str": texts,
    "str | None": st.none() | texts,
    "bool": st.booleans(),
    "Mapping[str, str]": reasons,
    "tuple[str, ...]": words,
    "tuple[str, ...] | None": st.none() | words,
}


def _of_field(one: Attribute[Any]) -> st.SearchStrategy[Any]:
    if one.validator is not None:
        return _BY_VALIDATOR[one.validator]
    annotation = str(one.type)
    if annotation in _BY_ANNOTATION:
        return _BY_ANNOTATION[annotation]
    bare = annotation.removesuffix(" | None")
    kind = cast("type[enum.Enum]", getattr(samples, bare, None) or getattr(meta, bare, None))
    values = st.sampled_from(list(kind))
    return values if bare == annotation else st.none() | values


def _of_class(cls: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    drawn = {one.name: _of_field(one) for one in fields(cls) if one.name not in given}
    return st.builds(cls, **drawn, **given)


process_samples: Final[st.SearchStrategy[ProcessSample]] = _of_class(ProcessSample)
gpu_samples: Final[st.SearchStrategy[GpuSample]] = _of_class(
    GpuSample,
    processes=st.none() | st.lists(process_samples, max_size=2).map(tuple),
)
host_samples: Final[st.SearchStrategy[HostSample]] = _of_class(HostSample)


def _several(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=3, unique_by=lambda gpu: gpu.gpu_id).map(tuple)


node_samples: Final[st.SearchStrategy[NodeSample]] = _of_class(
    NodeSample,
    gpus=_several(gpu_samples),
    host=st.none() | host_samples,
    schema=st.just(samples.SCHEMA),
)
node_metas: Final[st.SearchStrategy[NodeMeta]] = _of_class(
    NodeMeta,
    gpus=_several(_of_class(DeviceMeta)),
    host=st.none() | _of_class(HostMeta),
    schema=st.just(meta.META_SCHEMA),
)
node_states: Final[st.SearchStrategy[NodeState]] = _of_class(
    NodeState,
    condition=st.sampled_from(NodeCondition),
    schema=st.just(meta.STATE_SCHEMA),
)
node_events: Final[st.SearchStrategy[NodeEvent]] = _of_class(
    NodeEvent, schema=st.just(meta.EVENT_SCHEMA)
)
