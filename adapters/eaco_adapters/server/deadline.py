"""Deadlines as people write them: "in 6h", or a date and time with its zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from eaco_core.errors import InputError

_UNITS_S: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(d|h|min|m|s)", re.ASCII)
_LONGEST_S: Final = 10 * 366 * 86_400.0
_HOW: Final = 'write "in 6h", "in 1d 12h" or a time with its zone like 2030-01-31T18:00:00+01:00'


def parse_deadline(text: str, now_wall_s: float) -> float:
    """Give how many seconds from now a deadline is. Raises InputError, also if it has passed."""
    words = text.strip()
    if words.lower().startswith("in "):
        seconds = _duration_s(words[3:], text)
    else:
        seconds = _time_s(words, text) - now_wall_s
    if seconds <= 0:
        raise InputError(f"the deadline {text!r} has passed already")
    if seconds > _LONGEST_S:
        raise InputError(f"the deadline {text!r} is more than ten years away; {_HOW}")
    return seconds


def format_wall(wall_s: float) -> str:
    """Write a time of the wall clock in UTC, to the second."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration_s(words: str, text: str) -> float:
    left, total_s = words.strip().lower(), 0.0
    if not left:
        raise InputError(f"the deadline {text!r} names no time; {_HOW}")
    while left:
        part = _PART.match(left)
        if part is None:
            raise InputError(f"the deadline {text!r} cannot be read at {left[:20]!r}; {_HOW}")
        total_s += float(part[1]) * _UNITS_S[part[2]]
        left = left[part.end() :].strip()
    return total_s


def _time_s(words: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise InputError(f"the deadline {text!r} cannot be read; {_HOW}") from None
    if moment.tzinfo is None:
        raise InputError(f"the deadline {text!r} has no zone, so it is not one time; {_HOW}")
    try:
        return moment.timestamp()
    except (OverflowError, OSError, ValueError):
        raise InputError(f"the deadline {text!r} cannot be read; {_HOW}") from None
