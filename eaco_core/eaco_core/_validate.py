"""Validators for attrs fields: one plain sentence each, naming the field."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from attrs import Attribute


def finite(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{_name(instance, attribute)} must be a finite number, not {value!r}")


def not_negative(instance: object, attribute: Attribute[Any], value: float) -> None:
    """Accept only a finite number of at least 0."""
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


def _name(instance: object, attribute: Attribute[Any]) -> str:
    return f"{type(instance).__name__}.{attribute.name}"
