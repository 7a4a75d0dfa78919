"""JSON text from attrs classes and back, by their type annotations.

The plan of every class is made once, from its annotations; after that encoding a
value is a loop over its fields. Rules of the format: field names as in the class,
fields equal to their default are left out, enums by value, tuples as lists,
infinity as the string "inf". What is not known is read over, so that a newer
writer does not stop an older reader; what is missing or of the wrong type raises.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import operator
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Encoder: TypeAlias = Callable[[Any], str]
    Decoder: TypeAlias = Callable[[Any], Any]

Json: TypeAlias = Any
"""What `json.loads` gives, of any kind."""

_REQUIRED = object()
_quote: Encoder = json.JSONEncoder(ensure_ascii=True).encode


class Malformed(ValueError):
    """Something in a JSON value is not as expected; `path` leads to it."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def inside(self, name: str) -> Malformed:
        """Give the same complaint, one level further out."""
        tail = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        return Malformed(self.message, f"{name}{tail}")

    def __str__(self) -> str:
        return f"{self.path} {self.message}" if self.path else self.message


def number_text(value: float) -> str:
    """Write a number so that reading gives the very same one. NaN is refused."""
    text = float.__repr__(float(value))
    if text[-1] not in "fn":
        return text
    if text == "nan":
        raise InputError("a history cannot hold a number that is NaN")
    return f'"{text}"'


class ClassCodec:
    """Encodes and decodes the instances of one attrs class.

    With `tagged`, the object begins with "type": the name of the class.
    """

    def __init__(self, cls: type[Any], *, tagged: bool = False) -> None:
        self.cls = cls
        hints = typing.get_type_hints(cls)
        self.fields = tuple(
            FieldPlan(f.name, hints[f.name], _REQUIRED if f.default is attrs.NOTHING else f.default)
            for f in attrs.fields(cls)
        )
        # Every class that carries a tag has a field without default, so a comma may follow.
        self._opening = f'{{"type":"{cls.__name__}",' if tagged else "{"
        self._encode_plan = tuple(
            (f'"{f.name}":', operator.attrgetter(f.name), f.default, encoder_of(f.hint))
            for f in self.fields
        )
        self._decoders = {f.name: decoder_of(f.hint) for f in self.fields}
        self._required = tuple(f.name for f in self.fields if f.required)

    def encode(self, value: object) -> str:
        """Write one instance as a JSON object."""
        parts = [
            key + encode(item)
            for key, get, default, encode in self._encode_plan
            if (item := get(value)) is not default and item != default
        ]
        return self._opening + ",".join(parts) + "}"

    def decode(self, data: Json) -> Json:
        """Build the instance that a JSON object describes."""
        found: dict[str, Any] = {}
        name, decoders = "", self._decoders
        try:
            for name, item in object_in(data).items():
                decode = decoders.get(name)
                if decode is not None:
                    found[name] = decode(item)
        except Malformed as error:
            raise error.inside(name) if name else error from None
        for name in self._required:
            if name not in found:
                raise Malformed(f"lacks the field {name!r} of {self.cls.__name__}")
        try:
            return self.cls(**found)
        except InputError as error:
            raise Malformed(f"is not possible: {error}") from None


@attrs.frozen
class FieldPlan:
    """One field of a class: its name, its type and its default."""

    name: str
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        """Tell whether the field has no default."""
        return self.default is _REQUIRED


@functools.cache
def codec_of(cls: type[Any]) -> ClassCodec:
    """Give the codec of one attrs class, made once."""
    return ClassCodec(cls)


def object_in(data: Json) -> dict[str, Json]:
    """Give a JSON value that must be an object."""
    if _kind_of(data) is not dict:
        raise Malformed(f"must be an object, not {shown(data)}")
    items: dict[str, Json] = data
    return items


def list_in(data: Json, length: int | None = None) -> list[Json]:
    """Give a JSON value that must be a list, of `length` items where that is said."""
    if _kind_of(data) is not list:
        raise Malformed(f"must be a list, not {shown(data)}")
    items: list[Json] = data
    if length is not None and len(items) != length:
        raise Malformed(f"must be a list of {length}, not {shown(data)}")
    return items


def _kind_of(data: object) -> object:
    return type(data)


def shown(data: object) -> str:
    """Show a JSON value in a message, cut short."""
    text = json.dumps(data)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line's worth


def parts_of(hint: object) -> tuple[Any, bool]:
    """Split `X | None` into (X, True), anything else into (itself, False)."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        members = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(members) == 1:
            return members[0], True
        raise TypeError(f"{hint!r} is not a type that a history can hold")
    return hint, False


# ------------------------------------------------------------------ encoding


@functools.cache
def encoder_of(hint: object) -> Encoder:
    """Make the function that writes values of one type."""
    inner, optional = parts_of(hint)
    if optional:
        encode = encoder_of(inner)
        return lambda value: "null" if value is None else encode(value)
    if typing.get_origin(hint) is tuple:
        return _tuple_encoder(typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return _quote
    if hint in _SIMPLE_ENCODERS:
        return _SIMPLE_ENCODERS[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {member: _quote(member.value) for member in hint}.__getitem__
    return codec_of(typing.cast("Any", hint)).encode


_SIMPLE_ENCODERS: dict[object, Encoder] = {
    str: _quote,
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    float: number_text,
}


def _tuple_encoder(args: tuple[Any, ...]) -> Encoder:
    if len(args) == 2 and args[1] is Ellipsis:  # noqa: PLR2004 - tuple[X, ...]
        encode = encoder_of(args[0])
        return lambda value: "[" + ",".join(map(encode, value)) + "]"
    encoders = tuple(map(encoder_of, args))
    return lambda value: (
        "[" + ",".join([enc(item) for enc, item in zip(encoders, value, strict=True)]) + "]"
    )


# ------------------------------------------------------------------ decoding


@functools.cache
def decoder_of(hint: object) -> Decoder:
    """Make the function that reads values of one type."""
    inner, optional = parts_of(hint)
    if optional:
        decode = decoder_of(inner)
        if inner is float:
            return _decode_number_or_none
        return lambda data: None if data is None else decode(data)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _tuple_decoder(typing.get_args(hint))
    if origin is Literal:
        return _choice_decoder({value: value for value in typing.get_args(hint)})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choice_decoder({member.value: member for member in hint})
    simple: dict[object, Decoder] = {
        str: decode_text,
        bool: _decode_bool,
        int: decode_int,
        float: decode_number,
    }
    if hint in simple:
        return simple[hint]
    return codec_of(typing.cast("Any", hint)).decode


def decode_text(data: Json) -> str:
    """Read a string."""
    if type(data) is not str:
        raise Malformed(f"must be a string, not {shown(data)}")
    return data


def _decode_bool(data: Json) -> bool:
    if type(data) is not bool:
        raise Malformed(f"must be true or false, not {shown(data)}")
    return data


def decode_int(data: Json) -> int:
    """Read a whole number; true and 1.0 are none."""
    if type(data) is not int:
        raise Malformed(f"must be a whole number, not {shown(data)}")
    return data


def decode_number(data: Json) -> float:
    """Read a number; infinity is the string "inf", and one too large is refused."""
    if type(data) is float:
        if math.isfinite(data):
            return data
        raise Malformed("is a number too large to hold")
    if type(data) is int:
        try:
            return float(data)
        except OverflowError:
            raise Malformed("is a number too large to hold") from None
    if data in {"inf", "-inf"} if type(data) is str else False:
        return float(data)
    raise Malformed(f'must be a number (or "inf"), not {shown(data)}')


def _decode_number_or_none(data: Json) -> float | None:
    if type(data) is float and -math.inf < data < math.inf:
        return data
    return None if data is None else decode_number(data)


def decode_numbers(data: Json) -> Mapping[str, float]:
    """Read an object of numbers by name."""
    found: dict[str, float] = {}
    for name, item in object_in(data).items():
        try:
            found[name] = decode_number(item)
        except Malformed as error:
            raise error.inside(name) from None
    return found


def _choice_decoder(choices: dict[Any, Any]) -> Decoder:
    known = ", ".join(sorted(map(str, choices)))

    def decode(data: Json) -> Json:
        if type(data) is not str or data not in choices:
            raise Malformed(f"must be one of {known}, not {shown(data)}")
        return choices[data]

    return decode


def _tuple_decoder(args: tuple[Any, ...]) -> Decoder:
    if len(args) == 2 and args[1] is Ellipsis:  # noqa: PLR2004 - tuple[X, ...]
        return _list_decoder(decoder_of(args[0]))
    decoders = tuple(map(decoder_of, args))

    def decode(data: Json) -> tuple[Any, ...]:
        items = list_in(data, len(decoders))
        return tuple([dec(item) for dec, item in zip(decoders, items, strict=True)])

    return decode


def _list_decoder(decode_item: Decoder) -> Decoder:
    def decode(data: Json) -> tuple[Any, ...]:
        items = list_in(data)
        try:
            return tuple([decode_item(item) for item in items])
        except Malformed:
            for index, item in enumerate(items):
                try:
                    decode_item(item)
                except Malformed as error:
                    raise error.inside(f"[{index}]") from None
            raise

    return decode
