"""Messages as JSON: what is sent, and what of it is believed. Needs the extra ``mqtt``.

Each message names its form (``eaco.sample/1``). Fields that a receiver does not know are
ignored, fields with their default are left out, and a sample also leaves out what the
retained meta of its session says already; then `meta_wall_ns` names that meta.

A decoder raises `BadPayload` and nothing else, whatever the bytes are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from attrs import fields, make_class

try:
    import msgspec
    from msgspec import UNSET
    from msgspec.structs import astuple
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "msgspec":
        raise
    raise ModuleNotFoundError(
        "messages need the package msgspec, which is not installed;"
        " install it with: pip install 'eaco[mqtt]'",
        name=missing.name,
    ) from None

from eaco_core.errors import InputError
from eaco_telemetry._forms import (
    MAX_GPUS,
    MAX_NAME,
    MAX_PROCESSES,
    MAX_SENTENCE,
    MAX_WORDS,
    DeviceMetaForm,
    EventForm,
    GpuForm,
    HostForm,
    HostMetaForm,
    MetaForm,
    ProcessForm,
    SampleForm,
    StateForm,
    VersionForm,
)
from eaco_telemetry.meta import (
    EVENT_SCHEMA,
    META_SCHEMA,
    STATE_SCHEMA,
    DeviceMeta,
    HostMeta,
    NodeEvent,
    NodeMeta,
    NodeState,
)
from eaco_telemetry.samples import (
    SCHEMA,
    GpuSample,
    HostSample,
    NodeSample,
    ProcessSample,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from msgspec import Struct

MAX_PAYLOAD_BYTES: Final = 1 << 20
"""More than any node sends. A larger payload is not looked at."""

NOT_TOLD: Final = "not told yet: the meta of this session has not arrived"
"""The reason in `missing` for what a sample leaves out, as long as its meta is not there."""

_Payload = bytes | bytearray | memoryview
_Form = TypeVar("_Form", bound="Struct")
_Object = TypeVar("_Object")


class BadPayload(InputError):
    """A payload that is refused. `kind` is one of a few words, to be counted by.

    ``too large``, ``not JSON``, ``wrong form`` (a field is missing or impossible, or it is
    nested too deeply), ``wrong version``, ``wrong identity`` (not the node of the topic).
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


# --------------------------------------------------------------------------- samples


def encode_sample(sample: NodeSample, meta: NodeMeta | None = None) -> bytes:
    """Give a sample as JSON. What `meta` says already is left out, if it is of its session.

    A text or list beyond the limits of a receiver is cut, so that what is sent is also taken.
    """
    if meta is not None and not _of_session(meta, sample.node_id, sample.session_id):
        meta = None
    told = _Told(meta)
    host = sample.host
    form = SampleForm(
        schema=sample.schema,
        node_id=sample.node_id,
        session_id=sample.session_id,
        seq=sample.seq,
        wall_ns=sample.wall_ns,
        monotonic_ns=sample.monotonic_ns,
        meta_wall_ns=None if meta is None else meta.wall_ns,
        simulated=sample.simulated,
        gpus=[_gpu_form(gpu, told.of_gpu(gpu.gpu_id)) for gpu in sample.gpus],
        host=None if host is None else _host_form(host, told.of_host),
        problems=dict(sample.problems),
    )
    return _encode(form, _SAMPLES)


def decode_sample(payload: _Payload, meta: NodeMeta | None = None) -> NodeSample:
    """Give the sample of a payload. What it leaves out is taken from `meta`, if that is the one.

    Without the right meta the sample stands alone: what it leaves out is None, with the
    reason `NOT_TOLD`. Raises `BadPayload` and nothing else.
    """
    return SampleDecoder(meta).decode(payload)


class SampleDecoder:
    """Decodes the samples of one node. Quicker than `decode_sample` for many of one meta.

    `stood_alone`: the last sample left out what its meta says, and that meta is not here.
    """

    def __init__(self, meta: NodeMeta | None = None) -> None:
        self.stood_alone = False
        self._meta = meta
        self._told = _Told(meta)

    def decode(self, payload: _Payload) -> NodeSample:
        """Do what `decode_sample` does, with the meta of this decoder."""
        form = _parse(_SAMPLES, payload, SCHEMA)
        told = self._told_by(form)
        self.stood_alone = told is _NOTHING
        gpus = form.gpus
        return _build_node(
            form.node_id,
            form.session_id,
            form.seq,
            form.wall_ns,
            form.monotonic_ns,
            tuple([_gpu_sample(gpu, told.of_gpu(gpu.gpu_id)) for gpu in gpus]),
            None if form.host is None else _host_sample(form.host, told.of_host),
            form.simulated,
            form.problems,
            form.schema,
        )

    def _told_by(self, form: SampleForm) -> _Told:
        if form.meta_wall_ns is None:
            return _DEFAULTS
        meta = self._meta
        if (
            meta is not None
            and meta.wall_ns == form.meta_wall_ns
            and _of_session(meta, form.node_id, form.session_id)
        ):
            return self._told
        return _NOTHING


def _of_session(meta: NodeMeta, node_id: str, session_id: str) -> bool:
    return meta.session_id == session_id and meta.node_id == node_id


class _Told:
    """What a sample need not say: for each device its constants, in the order of the form.

    `of_host` and `of_gpu` give None for what is not known at all.
    """

    def __init__(self, meta: NodeMeta | None) -> None:
        self._gpus: dict[str, tuple[Any, ...]] = {}
        self.of_host: tuple[Any, ...] | None = _NO_HOST
        if meta is not None:
            self._gpus = {gpu.gpu_id: _values(gpu, _GPU_CONSTANTS) for gpu in meta.gpus}
            if meta.host is not None:
                self.of_host = _values(meta.host, _HOST_CONSTANTS)

    def of_gpu(self, gpu_id: str) -> tuple[Any, ...] | None:
        """Give what is told of a GPU; the defaults if nothing is."""
        told: tuple[Any, ...] = self._gpus.get(gpu_id, _NO_GPU)
        return told


class _NothingTold(_Told):
    """The meta is not there: what is left out is not known."""

    def __init__(self) -> None:
        super().__init__(None)
        self.of_host = None

    def of_gpu(self, gpu_id: str) -> tuple[Any, ...] | None:  # noqa: ARG002 - as its base
        return None


# ------------------------------------------------------------------- one device of a sample


def _gpu_form(gpu: GpuSample, told: tuple[Any, ...] | None) -> GpuForm:
    values = dict(zip(_GPU_VARYING, _values(gpu, _GPU_VARYING), strict=True))
    if gpu.processes is not None:
        values["processes"] = [ProcessForm(*_values(one, _PROCESS)) for one in gpu.processes]
    return GpuForm(**values, **_left_over(gpu, _GPU_CONSTANTS, told or _NO_GPU))


def _host_form(host: HostSample, told: tuple[Any, ...] | None) -> HostForm:
    values = dict(zip(_HOST_VARYING, _values(host, _HOST_VARYING), strict=True))
    return HostForm(**values, **_left_over(host, _HOST_CONSTANTS, told or _NO_HOST))


def _left_over(
    sample: GpuSample | HostSample, names: tuple[str, ...], told: tuple[Any, ...]
) -> dict[str, Any]:
    """Give the constants that are not as told. The last of them is `missing`."""
    values = _values(sample, names)
    over = {
        name: value
        for name, value, known in zip(names[:-1], values, told, strict=False)
        if value != known
    }
    said: Mapping[str, str] = values[-1]
    known: Mapping[str, str] = told[-1]
    missing: dict[str, str | None] = {
        name: why for name, why in said.items() if known.get(name) != why
    }
    missing.update((name, None) for name in known if name not in said)
    if missing:
        over["missing"] = missing
    return over


def _gpu_sample(form: GpuForm, told: tuple[Any, ...] | None) -> GpuSample:
    values = astuple(form)
    over = values[_GPU_VARY:]
    if told is None:
        constants = _alone(form, over, _GPU_CONSTANTS, _GPU_MEASURED)
    elif over == _GPU_UNSET:
        constants = told
    else:
        constants = _merged(over, told)
    processes = form.processes
    if processes is None:
        return _build_gpu(*values[:_GPU_VARY], *constants)
    return _build_gpu(
        *values[:_PROCESSES],
        tuple([_build_process(*astuple(one)) for one in processes]),
        *values[_PROCESSES + 1 : _GPU_VARY],
        *constants,
    )


def _host_sample(form: HostForm, told: tuple[Any, ...] | None) -> HostSample:
    values = astuple(form)
    varying, over = values[:_HOST_VARY], values[_HOST_VARY:]
    if told is None:
        constants = _alone(form, over, _HOST_CONSTANTS, _HOST_MEASURED)
    else:
        constants = _merged(over, told)
    return _build_host(*varying, *constants)


def _merged(over: tuple[Any, ...], told: tuple[Any, ...]) -> tuple[Any, ...]:
    """Take each constant from the sample if it says it, else as told; reasons one by one."""
    missing = over[-1]
    if missing is UNSET:
        missing = told[-1]
    else:
        if told[-1]:
            missing = {**told[-1], **missing}
        if None in missing.values():
            missing = {name: why for name, why in missing.items() if why is not None}
    kept = [known if one is UNSET else one for one, known in zip(over[:-1], told, strict=False)]
    return (*kept, missing)


def _alone(
    form: Struct, over: tuple[Any, ...], names: tuple[str, ...], measured: tuple[str, ...]
) -> tuple[Any, ...]:
    """Give the constants of a sample whose meta is not there: not known, and that is said."""
    said: Mapping[str, str | None] = {} if over[-1] is UNSET else over[-1]
    unknown = [name for name, one in zip(names[:-2], over, strict=False) if one is UNSET]
    unsaid = [name for name in measured if getattr(form, name) is None]
    missing: dict[str, str] = {
        **dict.fromkeys((*unknown, *unsaid), NOT_TOLD),
        **{name: why for name, why in said.items() if why is not None},
    }
    kept = [None if one is UNSET else one for one in over[:-2]]
    return (*kept, () if over[-2] is UNSET else over[-2], missing)


# ------------------------------------------------------------------- meta, state, event


def encode_meta(meta: NodeMeta) -> bytes:
    """Give a meta as JSON."""
    form = MetaForm(
        schema=meta.schema,
        node_id=meta.node_id,
        session_id=meta.session_id,
        period_s=meta.period_s,
        wall_ns=meta.wall_ns,
        agent=meta.agent,
        gpus=[DeviceMetaForm(*_values(gpu, _names(DeviceMeta))) for gpu in meta.gpus],
        host=None if meta.host is None else HostMetaForm(*_values(meta.host, _names(HostMeta))),
        simulated=meta.simulated,
        readers=meta.readers,
    )
    return _encode(form, _METAS)


def decode_meta(payload: _Payload) -> NodeMeta:
    """Give the meta of a payload. Raises `BadPayload` and nothing else."""
    form = _parse(_METAS, payload, META_SCHEMA)
    values = {name: getattr(form, name) for name in MetaForm.__struct_fields__}
    values["gpus"] = tuple(DeviceMeta(*astuple(gpu)) for gpu in form.gpus)
    values["host"] = None if form.host is None else HostMeta(*astuple(form.host))
    return NodeMeta(**values)


def encode_state(state: NodeState) -> bytes:
    """Give a state as JSON."""
    return _encode(StateForm(**_by_name(state)), _STATES)


def decode_state(payload: _Payload) -> NodeState:
    """Give the state of a payload. Raises `BadPayload` and nothing else."""
    form = _parse(_STATES, payload, STATE_SCHEMA)
    return NodeState(**{name: getattr(form, name) for name in StateForm.__struct_fields__})


def encode_event(event: NodeEvent) -> bytes:
    """Give an event as JSON."""
    return _encode(EventForm(**_by_name(event)), _EVENTS)


def decode_event(payload: _Payload) -> NodeEvent:
    """Give the event of a payload. Raises `BadPayload` and nothing else."""
    form = _parse(_EVENTS, payload, EVENT_SCHEMA)
    return NodeEvent(**{name: getattr(form, name) for name in EventForm.__struct_fields__})


# ------------------------------------------------------------------- bytes


def _parse(decoder: msgspec.json.Decoder[_Form], payload: _Payload, schema: str) -> _Form:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BadPayload(
            f"a payload of {len(payload)} bytes is above the limit of {MAX_PAYLOAD_BYTES}",
            kind="too large",
        )
    try:
        form = decoder.decode(payload)
    except msgspec.ValidationError as error:
        _check_version(_version(payload), schema)
        raise BadPayload(f"not {schema}: {error}", kind="wrong form") from None
    except msgspec.DecodeError as error:
        raise BadPayload(f"not JSON: {error}", kind="not JSON") from None
    except RecursionError:
        raise BadPayload(f"not {schema}: nested too deeply", kind="wrong form") from None
    _check_version(getattr(form, "schema", None), schema)
    return form


def _version(payload: _Payload) -> str | None:
    try:
        return _VERSIONS.decode(payload).schema
    except (msgspec.DecodeError, RecursionError):
        return None


def _check_version(said: str | None, schema: str) -> None:
    if said is not None and said != schema:
        raise BadPayload(
            f"a message of the form {said[:40]!r}, where this eaco reads {schema}:"
            " use the same version of eaco on both sides",
            kind="wrong version",
        )


def _encode(form: Struct, decoder: msgspec.json.Decoder[Any]) -> bytes:
    """Give a form as JSON that a receiver takes: what is too long is cut."""
    try:
        payload = _ENCODER.encode(form)
        decoder.decode(payload)
    except (UnicodeEncodeError, msgspec.ValidationError):
        payload = _ENCODER.encode(_cut(msgspec.to_builtins(form), ""))
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BadPayload(
            f"a message of {len(payload)} bytes is above the limit of {MAX_PAYLOAD_BYTES}",
            kind="too large",
        )
    return payload


def _cut(value: Any, key: str) -> Any:  # noqa: ANN401 - any JSON
    """Cut texts and lists to the limits, and replace what is no Unicode (half a surrogate).

    `key`: the field that holds the value.
    """
    if isinstance(value, str):
        text = value[: MAX_SENTENCE if key in _SPEAKING else MAX_NAME]
        return text.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        items: list[tuple[str, Any]] = list(cast("dict[str, Any]", value).items())
        return {
            _cut(name, ""): _cut(one, key if key in _SPEAKING else name)
            for name, one in items[:MAX_WORDS]
        }
    if isinstance(value, (list, tuple)):
        parts = cast("Sequence[Any]", value)
        return [_cut(one, key) for one in parts[: _LENGTHS.get(key, MAX_WORDS)]]
    return value


_SPEAKING: Final = frozenset({"missing", "problems", "message"})
_LENGTHS: Final = {"gpus": MAX_GPUS, "processes": MAX_PROCESSES}

# ------------------------------------------------------------------- between the classes


def _builder(cls: type[_Object], names: tuple[str, ...]) -> Callable[..., _Object]:
    """Give what makes a frozen attrs object of values in the order of `names`, all of them.

    For values that a form has checked by the same rules. The `__init__` of a frozen class
    takes thirteen times as long: it validates, and goes around its own `__setattr__` for each
    field. Here the values go into a twin, a plain class with the same slots, whose class is
    then changed; Python allows that where the layouts are the same.
    """
    twin: Any = make_class(
        f"_{cls.__name__}", names, slots=True, weakref_slot=False, eq=False, repr=False
    )

    def build(*values: object) -> _Object:
        made = twin(*values)
        made.__class__ = cls
        return cast("_Object", made)

    def build_slowly(*values: object) -> _Object:
        made = object.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)  # attrs itself uses this for frozen classes
        return made

    try:
        build(*names)
    except TypeError:  # a Python that lays out the two differently
        return build_slowly
    return build


def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls))


def _values(instance: object, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([getattr(instance, name) for name in names])


def _by_name(instance: object) -> dict[str, Any]:
    return {name: getattr(instance, name) for name in _names(type(instance))}


def _measured(cls: type[Any], varying: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        one.name for one in fields(cls) if one.metadata.get("measured") and one.name in varying
    )


_build_node: Final = _builder(NodeSample, _names(NodeSample))
_PROCESS: Final = ProcessForm.__struct_fields__
_build_process: Final = _builder(ProcessSample, _PROCESS)

_GPU_FIELDS: Final = GpuForm.__struct_fields__
_build_gpu: Final = _builder(GpuSample, _GPU_FIELDS)
_GPU_VARY: Final = _GPU_FIELDS.index("name")
_PROCESSES: Final = _GPU_FIELDS.index("processes")
_GPU_VARYING: Final = _GPU_FIELDS[:_GPU_VARY]
_GPU_CONSTANTS: Final = _GPU_FIELDS[_GPU_VARY:]
_GPU_UNSET: Final = (UNSET,) * len(_GPU_CONSTANTS)
_GPU_MEASURED: Final = _measured(GpuSample, _GPU_VARYING)
_NO_GPU: Final = _values(GpuSample("any", "any"), _GPU_CONSTANTS)

_HOST_FIELDS: Final = HostForm.__struct_fields__
_build_host: Final = _builder(HostSample, _HOST_FIELDS)
_HOST_VARY: Final = _HOST_FIELDS.index("capabilities")
_HOST_VARYING: Final = _HOST_FIELDS[:_HOST_VARY]
_HOST_CONSTANTS: Final = _HOST_FIELDS[_HOST_VARY:]
_HOST_MEASURED: Final = _measured(HostSample, _HOST_VARYING)
_NO_HOST: Final = _values(HostSample(), _HOST_CONSTANTS)

_DEFAULTS: Final = _Told(None)
_NOTHING: Final = _NothingTold()

_ENCODER: Final = msgspec.json.Encoder()
_SAMPLES: Final = msgspec.json.Decoder(SampleForm)
_METAS: Final = msgspec.json.Decoder(MetaForm)
_STATES: Final = msgspec.json.Decoder(StateForm)
_EVENTS: Final = msgspec.json.Decoder(EventForm)
_VERSIONS: Final = msgspec.json.Decoder(VersionForm)
