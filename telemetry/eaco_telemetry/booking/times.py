"""Times as people write them: ISO 8601 with a zone, or Unix seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

from eaco_core.errors import InputError

_NS: Final = 1_000_000_000
_SECONDS: Final = re.compile(r"[+-]?\d{1,19}(\.\d{1,18})?", re.ASCII)
_MOST_S: Final = 10**11
"""The year 5138. Larger numbers are times in a smaller unit."""
_SMALLER: Final = (("milliseconds", 1000), ("microseconds", 1000**2), ("nanoseconds", 1000**3))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def parse_time(text: str) -> int:
    """Read a time and give Unix time in nanoseconds.

    ``2026-12-01T08:00:00Z``, ``2026-12-01 09:00:00.5+01:00``, ``1796112000``. Raises
    InputError for anything else, also for a time without a zone: it could be any.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        try:
            seconds = Decimal(text)
        except InvalidOperation:  # pragma: no cover - the pattern lets no such number through
            raise _wrong(text) from None
        if abs(seconds) >= _MOST_S:
            raise _too_large(text, int(seconds))
        return int(seconds * _NS)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(text) from None
    if found.tzinfo is None:
        raise InputError(f"the time {text!r} has no zone; write a Z (UTC) or +01:00 behind it")
    return (found - _EPOCH) // _MICROSECOND * 1000


def show_time(time_ns: int) -> str:
    """Write a time for people, in UTC, to the second."""
    try:
        moment = _EPOCH + timedelta(seconds=time_ns // _NS)
    except OverflowError:
        return f"{time_ns / _NS:.0f} s"
    return moment.strftime("%Y-%m-%d %H:%M:%S") + " UTC"


def _too_large(text: str, number: int) -> InputError:
    for unit, per_second in _SMALLER:
        if abs(number) < _MOST_S * per_second:
            return InputError(
                f"the time {text} looks like {unit}; write Unix seconds, here"
                f" {number / per_second:.3f}, or 2026-12-01T08:00:00Z"
            )
    return _wrong(text)


def _wrong(text: str) -> InputError:
    return InputError(
        f"{text!r} is no time; write it like 2026-12-01T08:00:00Z, or as Unix seconds"
    )
