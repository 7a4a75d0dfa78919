"""Readers of option values: each refuses what cannot be in one sentence."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1e18
_RANGE = re.compile(r"(\d{1,9})(?:(?:\.\.|-)(\d{1,9}))?", re.ASCII)


def number(
    least: float = 0.0, most: float = _LARGEST, *, above: bool = False, inf: bool = False
) -> Callable[[object], float]:
    """Make a reader of numbers from `least` to `most`, never NaN.

    `above` refuses `least` itself; `inf` allows the word inf.
    """

    def number(value: object) -> float:  # click shows the name in --help
        found = _float(value)
        if found is not None and inf and found == math.inf:
            return found
        if found is None or not least <= found <= most or (above and not found > least):
            raise click.BadParameter(f"{value!r} is no {wanted}")
        return found

    wanted = f"number {'above' if above else 'of at least'} {least:g}"
    if most < _LARGEST:
        wanted += f" and at most {most:g}"
    if inf:
        wanted += ", or inf"
    return number


def names(value: object) -> tuple[str, ...]:
    """Read names separated by commas."""
    found = tuple(part.strip() for part in str(value).split(","))
    if not all(found):
        raise click.BadParameter(f"{value!r} has an empty name")
    return found


def file_name(value: object) -> str:
    """Read the name of a file; an empty one is most likely a variable that was never set."""
    if not str(value):
        raise click.BadParameter("the name of a file is empty")
    return str(value)


def file_path(value: object) -> Path:
    """Read the path of a file, as `file_name` does."""
    return Path(file_name(value))


def count_range(value: object) -> tuple[int, int]:
    """Read two whole numbers of at least 1, written `a..b`; one alone is both."""
    found = _RANGE.fullmatch(str(value).strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no range of whole numbers like 10..90")
    low, high = int(found[1]), int(found[2] or found[1])
    if not 1 <= low <= high:
        raise click.BadParameter(f"{value!r} must go up, from at least 1")
    return low, high


def _float(value: object) -> float | None:
    try:
        found = float(str(value))
    except ValueError:
        return None
    return None if math.isnan(found) else found
