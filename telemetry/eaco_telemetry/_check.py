"""Validators of the classes that are measured and sent. They take the usual case first.

A receiver checks the same things while it parses (`eaco_telemetry._forms`); a test holds
the two together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, cast

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from attrs import Attribute

ABSOLUTE_ZERO_C: Final = -273.15
MOST: Final = (1 << 63) - 1
"""The highest whole number: what a column of a recording and other languages can hold."""

MIN_PERIOD_S: Final = 0.001
MAX_PERIOD_S: Final = 86_400.0

_NUMBERS: Final = frozenset({int, float})


def name(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{_where(instance, attribute)} must be a name, not {value!r}")


def measure(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept None and a finite number of at least 0."""
    if value is None or (type(value) is float and 0 <= value < math.inf):
        return
    if type(value) not in _NUMBERS or not 0 <= cast("float", value) <= MOST:
        raise InputError(
            f"{_where(instance, attribute)} must be a number of at least 0, not {value!r}"
        )


def period(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept seconds from `MIN_PERIOD_S` to `MAX_PERIOD_S`."""
    if type(value) not in _NUMBERS or not (MIN_PERIOD_S <= cast("float", value) <= MAX_PERIOD_S):
        raise InputError(
            f"{_where(instance, attribute)} must be from {MIN_PERIOD_S} s to {MAX_PERIOD_S:.0f} s,"
            f" not {value!r}"
        )


def whole(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept None and a whole number from 0 to `MOST`."""
    if value is not None:
        count(instance, attribute, value)


def count(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept a whole number from 0 to `MOST`."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise InputError(
            f"{_where(instance, attribute)} must be a whole number of at least 0"
            f" and below 2^63, not {value!r}"
        )


def code(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept None and a whole number of 64 bits."""
    if value is not None and (type(value) is not int or not -MOST <= value <= MOST):
        raise InputError(f"{_where(instance, attribute)} must be a whole number, not {value!r}")


def ratio(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept None and a number from 0 to 1."""
    if value is None or (type(value) is float and 0 <= value <= 1):
        return
    if type(value) not in _NUMBERS or not 0 <= cast("float", value) <= 1:
        raise InputError(f"{_where(instance, attribute)} must be from 0 to 1, not {value!r}")


def degrees(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Accept None and a finite number of degrees Celsius above absolute zero."""
    if value is None or (type(value) is float and ABSOLUTE_ZERO_C <= value < math.inf):
        return
    if type(value) not in _NUMBERS or not ABSOLUTE_ZERO_C <= cast("float", value) <= MOST:
        raise InputError(f"{_where(instance, attribute)} must be degrees Celsius, not {value!r}")


def _where(instance: object, attribute: Attribute[Any]) -> str:
    return f"{type(instance).__name__}.{attribute.name}"
