"""Times as people write them: ISO 8601 with a zone, or Unix seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

from eaco_core.errors import InputError

_NS: Final = 1_000_000_000
_SECONDS: Final = re.compile(r"[+-]?\d{1,12}(\.\d{1,18})?", re.ASCII)
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
            return int(Decimal(text) * _NS)
        except InvalidOperation:  # pragma: no cover - the pattern lets no such number through
            raise _wrong(text) from None
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


def _wrong(text: str) -> InputError:
    return InputError(
        f"{text!r} is no time; write it like 2026-12-01T08:00:00Z, or as Unix seconds"
    )
