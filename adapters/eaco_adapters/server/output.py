"""What a job printed, piece by piece: one text of the files in which it is kept.

A running job's output is in two files at most; when the newer one is full, the older one goes.
Places count from the first byte that the job ever wrote: the newer file begins with a note of how
many bytes before these two files are gone. Whoever reads from such a place goes on with what is
left.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# As the shim writes it.
_NOTE = re.compile(rb"\[eaco: (\d{1,18}) bytes of earlier output are left out\]\n")
_NOTE_BYTES = 128
_LONGEST_CHARACTER = 4
_CONTINUES, _CONTINUES_MASK = 0x80, 0xC0


@frozen
class OutputPart:
    """A piece of output: where it begins and ends, and whether there is nothing after it now."""

    text: str
    offset: int
    next_offset: int
    is_last: bool


def read_output(paths: Sequence[Path], offset: int, limit: int, *, ended: bool) -> OutputPart:
    """Read at most `limit` bytes from `offset` on, whole characters only.

    `paths`: oldest first. `ended`: nothing will be added, so that a torn character at the end is
    one for ever. Raises FileNotFoundError where a file was moved away meanwhile.
    """
    limit = max(limit, _LONGEST_CHARACTER)
    handles: list[int] = []
    try:
        for path in paths:
            handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - closed below if one fails
        sizes = [os.fstat(handle).st_size for handle in handles]
        begins = _gone_bytes(handles[-1]) if len(handles) > 1 else 0
        end = begins + sum(sizes)
        offset = min(max(offset, begins), end)
        parts: list[bytes] = []
        at, wanted = offset, limit
        for handle, size in zip(handles, sizes, strict=True):
            if wanted and at < begins + size:
                part = os.pread(handle, min(wanted, begins + size - at), at - begins)
                parts.append(part)
                at, wanted = at + len(part), wanted - len(part)
            begins += size
    finally:
        for handle in handles:
            os.close(handle)
    data = b"".join(parts)
    at_end = offset + len(data) >= end
    if not (ended and at_end):
        data = _whole_characters(data)
    next_offset = offset + len(data)
    return OutputPart(data.decode("utf-8", errors="replace"), offset, next_offset, at_end)


def _gone_bytes(newest: int) -> int:
    found = _NOTE.match(os.pread(newest, _NOTE_BYTES, 0))
    return 0 if found is None else int(found[1])


def _whole_characters(data: bytes) -> bytes:
    """Leave out the beginning of a character at the end."""
    for back in range(1, min(_LONGEST_CHARACTER - 1, len(data)) + 1):
        byte = data[-back]
        if byte & _CONTINUES_MASK != _CONTINUES:
            return data[:-back] if _length(byte) > back else data
    return data


def _length(first: int) -> int:
    """Give how many bytes a character has that begins so; 1 for what begins none."""
    for length, low, high in ((2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        if low <= first <= high:
            return length
    return 1
