"""A checksum in the metadata of each file, because polars trusts what it reads.

On a damaged file polars may ask for more memory than there is, which ends the process. So the
file carries its CRC-32 and its size, and both are looked at before polars does. A file of
another size was written anew by another program, which kept the metadata: it is not sealed.
"""

from __future__ import annotations

import os
import zlib
from typing import IO, TYPE_CHECKING, Final

from attrs import frozen

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

SEAL_KEY: Final = "eaco.seal"
UNSEALED: Final = "eaco-crc32=00000000;size=0000000000000000"
"""What stands in the metadata while a file is written; `seal` puts the numbers in."""

_MARK: Final = b"eaco-crc32="
_TAIL: Final = 8  # length of the footer, and "PAR1"
_MAGIC: Final = b"PAR1"
_CHUNK: Final = 1 << 20


@frozen
class _Footer:
    start: int
    content: bytes
    size: int
    at: int  # where the seal is in `content`

    @property
    def seal(self) -> bytes:
        return self.content[self.at : self.at + len(UNSEALED)]


def seal(path: Path) -> None:
    """Put the checksum into a file that was just written with `UNSEALED`."""
    with path.open("r+b") as stream:
        footer = _footer(stream)
        if footer is not None:
            stream.seek(footer.start + footer.at)
            stream.write(_seal_of(stream, footer))


def check_seal(path: Path) -> None:
    """Raise `InputError` if a file is not as it was written. One without a seal is let by."""
    with path.open("rb") as stream:
        footer = _footer(stream)
        if footer is None or not footer.seal.endswith(b";size=%016d" % footer.size):
            return
        if footer.seal != _seal_of(stream, footer):
            raise InputError("is damaged: its checksum is wrong", where=str(path))


def _footer(stream: IO[bytes]) -> _Footer | None:
    """Give the footer of a Parquet file with a seal; None for any other file."""
    size = stream.seek(0, os.SEEK_END)
    if size < _TAIL:
        return None
    stream.seek(size - _TAIL)
    tail = stream.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - _TAIL:
        return None
    start = size - _TAIL - length
    stream.seek(start)
    content = stream.read(length) + tail
    at = content.rfind(_MARK)
    return None if at < 0 else _Footer(start, content, size, at)


def _seal_of(stream: IO[bytes], footer: _Footer) -> bytes:
    place = stream.tell()
    stream.seek(0)
    checksum, left = 0, footer.start
    while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
        checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
    end = footer.at + len(UNSEALED)
    blank = footer.content[: footer.at] + UNSEALED.encode() + footer.content[end:]
    stream.seek(place)
    return b"eaco-crc32=%08x;size=%016d" % (zlib.crc32(blank, checksum), footer.size)
