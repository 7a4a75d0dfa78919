r"""The form of a journal on disk (`eaco.journal/1`).

The file begins with the line ``eaco.journal/1``. Each record after it is one line of a
history with what proves that it is whole and in its place:

    <length, 8 hex digits> <CRC-32, 8 hex digits> <chain, 32 hex digits> <text>\n

Length and CRC are of the UTF-8 bytes of the text. The chain is BLAKE2b over the chain before
and the text: a record that was moved, left out or put in does not fit its place. Records are
text, so that `cut -d' ' -f4-` gives the plain history back.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import TYPE_CHECKING, Final

from attrs import frozen

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION: Final = 1
SCHEMA: Final = f"eaco.journal/{VERSION}"
MAGIC: Final = f"{SCHEMA}\n".encode()
MOST_MAGIC_BYTES: Final = 32
CHAIN_BYTES: Final = 16
HEAD_BYTES: Final = 8 + 1 + 8 + 1 + 2 * CHAIN_BYTES + 1
MAX_TEXT_BYTES: Final = 64 << 20
"""More than any step needs; a length above it is damage, not a record."""

FIRST_CHAIN: Final = hashlib.blake2b(MAGIC, digest_size=CHAIN_BYTES).digest()

LINE_MIGRATIONS: Final[dict[int, Callable[[str], str]]] = {}
"""By version of a journal: what makes a line of it one of the next version."""

_MAGIC: Final = re.compile(rb"eaco\.journal/(\d{1,9})\n")
_HEAD: Final = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{32}) ")


@frozen
class Place:
    """Where a record begins: how many come before it, its offset, and the chain up to there."""

    records: int
    place_bytes: int
    chain: bytes


@frozen
class Framed:
    """One whole record: its text, the chain up to and with it, and where the next one begins."""

    text: bytes
    chain: bytes
    end_bytes: int


@frozen
class Flaw:
    """Why no whole record begins at a place of the file.

    `torn`: the file ends inside it, as when a process or machine stopped while writing.
    """

    reason: str
    torn: bool = False


def chain_after(chain: bytes, text: bytes) -> bytes:
    """Give the chain of a record from that of the record before it."""
    return hashlib.blake2b(chain + text, digest_size=CHAIN_BYTES).digest()


def encode_record(line: str, chain: bytes) -> tuple[bytes, bytes]:
    """Give the bytes of a record with this line of history, and its chain.

    Raises InputError for a line with a line break, or that is too long.
    """
    text = line.encode("utf-8")
    if b"\n" in text or b"\r" in text:
        raise InputError("a record of a journal is one line; this one has a line break in it")
    if len(text) > MAX_TEXT_BYTES:
        raise InputError(
            f"a record of a journal holds at most {MAX_TEXT_BYTES} bytes, not {len(text)}"
        )
    after = chain_after(chain, text)
    return b"%08x %08x %s %s\n" % (len(text), zlib.crc32(text), after.hex().encode(), text), after


def record_at(data: bytes | memoryview, place: int, chain: bytes, *, last: bool) -> Framed | Flaw:
    """Read the record that begins at `place` of `data` and follows a record with this chain.

    `last`: nothing comes after `data` in the file; without it a flaw that is torn only says that
    more has to be read.
    """
    head = bytes(data[place : place + HEAD_BYTES])
    found = _HEAD.fullmatch(head)
    if found is None:
        if len(head) < HEAD_BYTES and _may_begin(head):
            return Flaw("the file ends inside the head of a record", torn=True)
        return Flaw("there is no head of a record here", torn=last and not head)
    length = int(found[1], 16)
    if length > MAX_TEXT_BYTES:
        return Flaw(f"its length of {length} bytes is impossible")
    start = place + HEAD_BYTES
    body = bytes(data[start : start + length + 1])
    if len(body) <= length:
        return Flaw("the file ends inside a record", torn=True)
    text = body[:-1]
    if body[-1:] != b"\n":
        return Flaw("it does not end where its length says")
    if zlib.crc32(text) != int(found[2], 16):
        return Flaw("its CRC does not fit its text")
    after = chain_after(chain, text)
    if after != bytes.fromhex(found[3].decode()):
        return Flaw("it does not follow the record before it (hash chain)")
    return Framed(text, after, start + length + 1)


def looks_whole(data: bytes | memoryview, place: int) -> bool:
    """Tell whether a record with a fitting CRC begins here, whatever came before it."""
    found = _HEAD.match(bytes(data[place : place + HEAD_BYTES]))
    if found is None or (length := int(found[1], 16)) > MAX_TEXT_BYTES:
        return False
    text = bytes(data[place + HEAD_BYTES : place + HEAD_BYTES + length])
    return len(text) == length and zlib.crc32(text) == int(found[2], 16)


def _may_begin(head: bytes) -> bool:
    """Tell whether this could be the first bytes of a head."""
    pattern = b"00000000 00000000 " + b"0" * (2 * CHAIN_BYTES) + b" "
    return all(
        (byte == want) if want == ord(" ") else byte in b"0123456789abcdef"
        for byte, want in zip(head, pattern, strict=False)
    )


def version_in(first: bytes) -> int | None:
    """Give the version of the journal that begins with these bytes; None = no journal."""
    found = _MAGIC.match(first)
    return None if found is None else int(found[1])


def first_place(version: int) -> Place:
    """Give where the first record of a journal of this version begins."""
    magic = f"eaco.journal/{version}\n".encode()
    return Place(0, len(magic), hashlib.blake2b(magic, digest_size=CHAIN_BYTES).digest())


def chain_in_head(head: bytes) -> bytes | None:
    """Give the chain that the head of a record names, None if it is no head."""
    found = _HEAD.match(head)
    return None if found is None else bytes.fromhex(found[3].decode())


def migrated(line: str, version: int) -> str:
    """Give a line of a journal of an older version as it would be in this one."""
    for step in range(version, VERSION):
        line = LINE_MIGRATIONS[step](line)
    return line
