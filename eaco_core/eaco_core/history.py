"""The history of a scheduler as lines of JSON (`eaco.history/1`).

Line 1 is the header: who wrote the file, under which policy and rules. Every other
line is a step (one event, the effects and the decisions that followed from it) or
the energy of one node over one interval. `docs/history.md` describes it for
whoever writes such a file from another scheduler; the JSON Schema is beside it in
`eaco_core/schemas/history-1.schema.json`.

Nothing here reads a clock or keeps a file open for longer than the reading takes.
"""

from __future__ import annotations

import json
import typing
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import attrs
from attrs import field, frozen

from eaco_core import decisions, effects, events
from eaco_core._codec import (
    ClassCodec,
    Json,
    Malformed,
    codec_of,
    decode_int,
    decode_number,
    decode_numbers,
    decode_text,
    list_in,
    number_text,
    object_in,
    shown,
)
from eaco_core.errors import InputError
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from eaco_core._codec import Decoder
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event

SCHEMA = "eaco.history/1"

EVENT_TYPES: tuple[type[Any], ...] = typing.get_args(events.Event)
EFFECT_TYPES: tuple[type[Any], ...] = typing.get_args(effects.Effect)
RECORD_TYPES: tuple[type[Any], ...] = typing.get_args(decisions.Record)


@frozen
class Header:
    """Who wrote a history, and under which rules.

    `policy` names the policy, from which the invariants that bind follow; "" = not
    said. `origin` names the scheduler: "eaco" for this one. `info` holds whatever
    else the writer wants to keep (parameters of a simulation, versions).
    """

    policy: str = ""
    rules: Rules = field(factory=Rules)
    origin: str = "eaco"
    seed: int | None = None
    info: Mapping[str, Any] = field(factory=dict[str, Any])


@frozen
class Step:
    """One accepted event, with the effects and the decisions that followed from it.

    `seq` counts steps from 1; `t_s` is in scheduler seconds; `term` is that of the
    scheduler that took the step.
    """

    seq: int
    t_s: float
    term: int
    event: Event
    effects: tuple[Effect, ...] = ()
    records: tuple[Record, ...] = ()


@frozen
class EnergyLine:
    """The energy (J) of one node from `t0_s` to `t1_s`, every joule booked once (I30)."""

    t0_s: float
    t1_s: float
    node_id: str
    node_j: float
    jobs_j: Mapping[str, float] = field(factory=dict[str, float])
    idle_j: float = 0.0
    unattributed_j: float = 0.0
    sleep_j: float = 0.0
    wake_j: float = 0.0


Line: TypeAlias = Header | Step | EnergyLine

_EVENTS = {cls: ClassCodec(cls, tagged=True) for cls in EVENT_TYPES}
_EFFECTS = {cls: ClassCodec(cls, tagged=True) for cls in EFFECT_TYPES}
_RECORDS = {cls: ClassCodec(cls, tagged=True) for cls in RECORD_TYPES}
_EVENT_ENCODERS = {cls: codec.encode for cls, codec in _EVENTS.items()}
_EFFECT_ENCODERS = {cls: codec.encode for cls, codec in _EFFECTS.items()}
_RECORD_ENCODERS = {cls: codec.encode for cls, codec in _RECORDS.items()}
_EVENT_DECODERS = {cls.__name__: codec.decode for cls, codec in _EVENTS.items()}
_EFFECT_DECODERS = {cls.__name__: codec.decode for cls, codec in _EFFECTS.items()}
_RECORD_DECODERS = {cls.__name__: codec.decode for cls, codec in _RECORDS.items()}


# ------------------------------------------------------------------- writing


def encode_header(
    *,
    policy: str,
    rules: Rules | None = None,
    origin: str = "eaco",
    seed: int | None = None,
    info: Mapping[str, Any] | None = None,
) -> str:
    """Write the first line of a history, without a line end.

    `info` must be plain JSON data; NaN in it raises InputError.
    """
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "header",
        "policy": policy,
        "origin": origin,
    }
    if seed is not None:
        head["seed"] = seed
    text = json.dumps(head, separators=(",", ":"))[:-1]
    text += ',"rules":' + codec_of(Rules).encode(Rules() if rules is None else rules)
    if info:
        try:
            written = json.dumps(dict(info), separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"info of a history must be plain JSON data: {error}") from None
        text += ',"info":' + written
    return text + "}"


def encode_step(  # noqa: PLR0917 - the fields of a line, in their order
    seq: int,
    t_s: float,
    term: int,
    event: Event,
    effects: Iterable[Effect] = (),
    records: Iterable[Record] = (),
) -> str:
    """Write one step as a line, without a line end. The same step gives the same text."""
    text = (
        f'{{"kind":"step","seq":{seq},"t_s":{number_text(t_s)},"term":{term},'
        f'"event":{_EVENT_ENCODERS[type(event)](event)}'
    )
    done = encode_effects(effects)
    if done:
        text += f',"effects":[{done}]'
    told = ",".join([_RECORD_ENCODERS[type(record)](record) for record in records])
    if told:
        text += f',"records":[{told}]'
    return text + "}"


def encode_event(event: Event) -> str:
    """Write an event as it stands in a step."""
    return _EVENT_ENCODERS[type(event)](event)


def encode_effects(effects: Iterable[Effect]) -> str:
    """Write effects as they stand in a step, without the brackets around them."""
    return ",".join([_EFFECT_ENCODERS[type(effect)](effect) for effect in effects])


def encode_energy(line: EnergyLine) -> str:
    """Write the energy of one node over one interval as a line, without a line end."""
    data = attrs.asdict(line, recurse=False)
    parts = ['{"kind":"energy"']
    for name, value in data.items():
        if name == "node_id":
            parts.append(f'"{name}":{json.dumps(value)}')
        elif name == "jobs_j":
            jobs = ",".join(f"{json.dumps(job)}:{number_text(j)}" for job, j in value.items())
            parts.append(f'"{name}":{{{jobs}}}')
        else:
            parts.append(f'"{name}":{number_text(value)}')
    return ",".join(parts) + "}"


def encode(line: Line) -> str:
    """Write any line of a history, without a line end."""
    if isinstance(line, Step):
        return encode_step(line.seq, line.t_s, line.term, line.event, line.effects, line.records)
    if isinstance(line, EnergyLine):
        return encode_energy(line)
    return encode_header(
        policy=line.policy,
        rules=line.rules,
        origin=line.origin,
        seed=line.seed,
        info=line.info,
    )


# ------------------------------------------------------------------- reading


def decode_line(text: str, where: str | None = None) -> Line:
    """Read one line of a history. `where` names it in errors ("run.jsonl, line 7").

    Raises InputError when the line is not JSON, is of an unknown kind or type, lacks
    a field, or holds a value of the wrong type. Fields that are not known are read over.
    """
    try:
        data = object_in(json.loads(text, parse_constant=refuse_constant))
        return _decoder_for(data.get("kind"))(data)
    except Malformed as error:
        raise InputError(f"this line of the history is wrong: {error}.", where=where) from None
    except RecursionError:
        raise InputError("this line of the history is nested too deeply.", where=where) from None
    except ValueError as error:
        raise InputError(f"this line of the history is not JSON ({error}).", where=where) from None


def read_lines(
    lines: Iterable[str], name: str = "history", *, containing: str | None = None
) -> Iterator[Line]:
    """Read a history from its lines, one at a time; blank ones are passed over.

    The first must be the header, and there may be only one. `containing`: pass over
    lines other than the header that do not hold this text. Raises InputError.
    """
    headed = False
    for number, text in enumerate(lines, start=1):
        if headed and containing is not None and containing not in text:
            continue
        if not text.strip():
            continue
        where = f"{name}, line {number}"
        try:
            line = decode_line(text, where)
        except InputError:
            if not text.endswith("\n") and _is_cut_off(text):
                raise InputError(
                    "the file ends in the middle of this line; it was cut off while it was "
                    "written. Remove the line to use what comes before.",
                    where=where,
                ) from None
            raise
        if isinstance(line, Header) == headed:
            _refuse_order(where, headed=headed)
        headed = True
        yield line
    if not headed:
        raise InputError("this history is empty; its first line must be the header.", where=name)


def read_history(path: str | Path, *, containing: str | None = None) -> Iterator[Line]:
    """Read a history file line by line, in constant memory. Raises InputError.

    `containing` is that of `read_lines`.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:  # noqa: PTH123 - str or Path
            yield from read_lines(file, str(path), containing=containing)
    except FileNotFoundError:
        raise InputError("there is no such file.", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a folder, not a history file.", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("this is not a history file: it is not UTF-8.", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from None


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinity where JSON has none: for `json.loads`."""
    raise Malformed(f"holds {name}, which is not a number")


def _refuse_order(where: str, *, headed: bool) -> NoReturn:
    if headed:
        raise InputError("a second header; one history has one header.", where=where)
    raise InputError(
        f'the first line must be the header ("kind": "header", "schema": "{SCHEMA}").',
        where=where,
    )


def _is_cut_off(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:  # too deep to tell
        return False
    except ValueError:
        return True
    return False


def _decoder_for(kind: Json) -> Callable[[dict[str, Json]], Line]:
    """Find the decoder of a kind of line; a list or an object could not even be looked up."""
    known = type(kind) is str and kind in _DECODERS
    return _DECODERS[kind] if known else _refuse_kind


def _decode_header(data: dict[str, Json]) -> Header:
    if data.get("schema") != SCHEMA:
        raise Malformed(f'must have the schema "{SCHEMA}", not {shown(data.get("schema"))}')
    seed = data.get("seed")
    return Header(
        policy=_read(data, "policy", decode_text, ""),
        rules=_read(data, "rules", codec_of(Rules).decode, Rules()),
        origin=_read(data, "origin", decode_text, "eaco"),
        seed=None if seed is None else _read(data, "seed", decode_int),
        info=_read(data, "info", object_in, {}),
    )


def decode_event(data: Json) -> Event:
    """Read an event as it stands in a step. Raises `_codec.Malformed`."""
    return typing.cast("Event", _decode_typed(data, _EVENT_DECODERS, "event"))


def _decode_step(data: dict[str, Json]) -> Step:
    seq = _read(data, "seq", decode_int)
    t_s = _read(data, "t_s", decode_number)
    if not 0 <= t_s < float("inf"):
        raise Malformed(f"must be a finite number of at least 0, not {t_s}", "t_s")
    return Step(
        seq,
        t_s,
        _read(data, "term", decode_int, 1),
        _read(data, "event", decode_event),
        _decode_list(data, "effects", _EFFECT_DECODERS, "effect"),
        _decode_list(data, "records", _RECORD_DECODERS, "record"),
    )


def _decode_energy(data: dict[str, Json]) -> EnergyLine:
    return EnergyLine(
        t0_s=_read(data, "t0_s", decode_number),
        t1_s=_read(data, "t1_s", decode_number),
        node_id=_read(data, "node_id", decode_text),
        node_j=_read(data, "node_j", decode_number),
        jobs_j=_read(data, "jobs_j", decode_numbers, {}),
        idle_j=_read(data, "idle_j", decode_number, 0.0),
        unattributed_j=_read(data, "unattributed_j", decode_number, 0.0),
        sleep_j=_read(data, "sleep_j", decode_number, 0.0),
        wake_j=_read(data, "wake_j", decode_number, 0.0),
    )


def _refuse_kind(data: dict[str, Json]) -> NoReturn:
    kind = shown(data.get("kind"))
    raise Malformed(f'must have a "kind" of header, step or energy, not {kind}')


_DECODERS: dict[Json, Callable[[dict[str, Json]], Line]] = {
    "header": _decode_header,
    "step": _decode_step,
    "energy": _decode_energy,
}
_MISSING = object()


def _read(data: dict[str, Json], name: str, decode: Decoder, default: object = _MISSING) -> Json:
    item = data.get(name, _MISSING)
    if item is _MISSING:
        if default is _MISSING:
            raise Malformed(f"lacks the field {name!r}")
        return default
    try:
        return decode(item)
    except Malformed as error:
        raise error.inside(name) from None


def _decode_typed(data: Json, decoders: Mapping[str, Decoder], what: str) -> Json:
    name = object_in(data).get("type")
    decode = decoders.get(name) if type(name) is str else None
    if decode is None:
        raise Malformed(f"has an unknown type of {what}: {shown(name)}")
    return decode(data)


def _decode_list(
    data: dict[str, Json], name: str, decoders: Mapping[str, Decoder], what: str
) -> tuple[Json, ...]:
    if name not in data:
        return ()
    try:
        return tuple([_decode_typed(item, decoders, what) for item in list_in(data[name])])
    except Malformed as error:
        raise error.inside(name) from None
