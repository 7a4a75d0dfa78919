"""Reads the lines of progress that a job writes. Nothing in them is taken on trust."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

if TYPE_CHECKING:
    from pathlib import Path

_LINE_MAX = 4096
_READ_MAX = 1 << 20
_EPOCH_MAX = 10**9


@frozen
class Line:
    """One good line. `at_s`: when it was written, in seconds since boot, if it says so."""

    kind: str
    epoch: int = 0
    at_s: float | None = None
    clean: bool = True
    peak_mem_bytes: int | None = None


@frozen
class Read:
    """What was read: good lines, how many were bad, and where to go on."""

    lines: tuple[Line, ...]
    bad: int
    offset: int
    more: bool = False


def read_lines(path: Path, offset: int, *, final: bool) -> Read:
    """Read whole lines from `offset`. `final`: nobody writes any more, a torn line counts as bad.

    A file shorter than `offset` was cut off because it had grown too large: it starts again.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return Read((), 0, offset)
    try:
        size = os.fstat(fd).st_size
        if size < offset:
            offset = 0
        raw = os.pread(fd, _READ_MAX, offset)
    except OSError:
        return Read((), 0, offset)
    finally:
        os.close(fd)
    end = raw.rfind(b"\n") + 1
    if len(raw) - end > _LINE_MAX or (final and len(raw) < _READ_MAX):
        end = len(raw)  # a line without an end
    lines: list[Line] = []
    bad = 0
    for item in raw[:end].split(b"\n"):
        if not item.strip():
            continue
        line = _line(item)
        if line is None:
            bad += 1
        else:
            lines.append(line)
    return Read(tuple(lines), bad, offset + end, offset + end < size and end > 0)


def _line(raw: bytes) -> Line | None:
    if len(raw) > _LINE_MAX:
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    data = cast("dict[str, Any]", value)
    kind = data.get("ev")
    at_s = data.get("boot_s")
    if isinstance(at_s, bool) or not isinstance(at_s, (int, float)):
        at_s = None
    if kind in {"note", "done"}:
        return Line(str(kind), at_s=at_s)
    epoch = _whole(data.get("epoch"), _EPOCH_MAX)
    if kind not in {"epoch", "checkpoint"} or epoch is None or (kind == "epoch" and epoch < 1):
        return None
    clean = data.get("clean") is not False
    return Line(str(kind), epoch, at_s, clean, _whole(data.get("peak_mem_bytes"), 1 << 60))


def _whole(value: object, most: int) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    return None
