"""Validators for attrs fields: one plain sentence each, naming the field."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute


def finite(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a finite number."""
    # What nearly all values are is let through first, here and below: events come by the million.
    if type(value) is float and -math.inf < value < math.inf:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise InputError(f"{_name(instance, attribute)} must be a finite number, not {value!r}")


def not_negative(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a finite number of at least 0."""
    if type(value) is float and 0.0 <= value < math.inf:
        return
    finite(instance, attribute, value)
    if value < 0:
        raise InputError(f"{_name(instance, attribute)} must not be negative, but is {value!r}")


def positive(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a finite number above 0."""
    finite(instance, attribute, value)
    if value <= 0:
        raise InputError(f"{_name(instance, attribute)} must be above 0, but is {value!r}")


def ratio(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a number from 0 to 1."""
    if type(value) is float and 0.0 <= value <= 1.0:
        return
    not_negative(instance, attribute, value)
    if value > 1:
        raise InputError(f"{_name(instance, attribute)} must be from 0 to 1, but is {value!r}")


def count(instance: object, attribute: Attribute[Any], value: int) -> None:
    """Accept only a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(
            f"{_name(instance, attribute)} must be a whole number of at least 1, not {value!r}"
        )


def name(instance: object, attribute: Attribute[Any], value: str) -> None:
    """Accept only a non-empty string."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{_name(instance, attribute)} must be a non-empty name, not {value!r}")


def flag(instance: object, attribute: Attribute[Any], value: bool) -> None:  # noqa: FBT001 - the shape of a validator
    """Accept only True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{_name(instance, attribute)} must be True or False, not {value!r}")


def whole(instance: object, attribute: Attribute[Any], value: int) -> None:
    """Accept only a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{_name(instance, attribute)} must be a whole number, not {value!r}")


def text(instance: object, attribute: Attribute[Any], value: str) -> None:
    """Accept only a string."""
    if not isinstance(value, str):
        raise InputError(f"{_name(instance, attribute)} must be a text, not {value!r}")


def slowdown(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a finite ratio of shared to solo time: at least 1."""
    finite(instance, attribute, value)
    if value < 1:
        raise InputError(f"{_name(instance, attribute)} must be at least 1, but is {value!r}")


def one_of(*choices: str) -> Callable[[object, Attribute[Any], str], None]:
    """Make a validator that accepts only these words."""

    def among(instance: object, attribute: Attribute[Any], value: str) -> None:
        if value not in choices:
            known = ", ".join(choices)
            raise InputError(f"{_name(instance, attribute)} must be one of {known}, not {value!r}")

    return among


def instance_of(kind: type) -> Callable[[object, Attribute[Any], object], None]:
    """Make a validator that accepts only objects of this class."""

    def is_kind(instance: object, attribute: Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise InputError(
                f"{_name(instance, attribute)} must be a {kind.__name__}, not {value!r}"
            )

    return is_kind


def tuple_of(kind: type, *, empty: bool = True) -> Callable[[object, Attribute[Any], Any], None]:
    """Make a validator that accepts only a tuple of objects of this class."""

    def is_tuple(instance: object, attribute: Attribute[Any], value: Any) -> None:  # noqa: ANN401 - anything may come
        items = cast("tuple[object, ...]", value) if isinstance(value, tuple) else None
        fits = items is not None and all(isinstance(item, kind) for item in items)
        if not fits or not (value or empty):
            raise InputError(
                f"{_name(instance, attribute)} must be a tuple of {kind.__name__}"
                f"{'' if empty else ', not empty'}, not {value!r}"
            )

    return is_tuple


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _name(instance: object, attribute: Attribute[Any]) -> str:
    return f"{type(instance).__name__}.{attribute.name}"
