"""Reading a journal: as far as its records are whole, and what is wrong after that.

Whatever happened to the file, what is read is a whole-record prefix of what was written (I21).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from attrs import frozen

from eaco_adapters.journal.frame import (
    FIRST_CHAIN,
    HEAD_BYTES,
    MAGIC,
    SCHEMA,
    Flaw,
    Framed,
    looks_whole,
    record_at,
)
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_BYTES: Final = 1 << 20


@frozen
class Damage:
    """Where the whole records of a journal end before the file does.

    `place_bytes`: the offset of the first byte that is no whole record; `record`: the number that
    it would have, from 1. `torn`: the file just ends inside a record, as after a crash while it
    was written; nothing of that record was carried out. `whole_after`: records with a fitting CRC
    come after it, so this is no crash, and something durable is lost.
    """

    path: str
    record: int
    place_bytes: int
    reason: str
    torn: bool
    whole_after: bool

    def __str__(self) -> str:
        what = "was not written to its end" if self.torn else "is damaged"
        return f"{self.path}: record {self.record} at byte {self.place_bytes} {what}: {self.reason}"


@frozen
class End:
    """Where the whole records of a journal end: their number, the offset, and the chain."""

    records: int
    place_bytes: int
    chain: bytes
    damage: Damage | None = None


class JournalReader:
    """Gives the lines of history of a journal, one at a time, in bounded memory.

    `end` is known when the lines have been read to the last one. Raises InputError for a file
    that is no journal; damage is no error here, see `End.damage`.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.end: End | None = None

    def __iter__(self) -> Iterator[str]:
        """Read from the first record on. Text that is no UTF-8 is damage like any other."""
        with open_to_read(self._path) as stream:
            magic = stream.read(len(MAGIC))
            if magic != MAGIC:
                if MAGIC.startswith(magic):  # the crash came at the very first write
                    torn = Flaw("the file ends inside its first line", torn=True)
                    self.end = End(0, 0, FIRST_CHAIN, self._damage(torn, 1, 0, b""))
                    return
                raise InputError(
                    f"this is no journal: its first line is not {SCHEMA}", where=str(self._path)
                )
            yield from self._records(stream)

    def _records(self, stream: BinaryIO) -> Iterator[str]:
        data, base, place, last = b"", len(MAGIC), 0, False
        chain, count = FIRST_CHAIN, 0
        while True:
            found = record_at(data, place, chain, last=last)
            if isinstance(found, Flaw) and not last and (found.torn or not data[place:]):
                more = stream.read(max(_READ_BYTES, len(data) - place))
                data, base, place = data[place:] + more, base + place, 0
                last = not more
                continue
            if last and place == len(data):
                self.end = End(count, base + place, chain)
                return
            if isinstance(found, Framed):
                text = _decoded(found.text)
                if text is not None:
                    chain, place, count = found.chain, found.end_bytes, count + 1
                    yield text
                    continue
                found = Flaw("its text is not UTF-8")
            rest = data[place:] + stream.read()
            damage = self._damage(found, count + 1, base + place, rest)
            self.end = End(count, base + place, chain, damage)
            return

    def _damage(self, flaw: Flaw, record: int, place: int, rest: bytes) -> Damage:
        after = _has_whole(rest)
        # A file that was made longer before its bytes came to the disk ends in zeros.
        torn = (flaw.torn or not rest.strip(b"\0")) and not after
        return Damage(str(self._path), record, place, flaw.reason, torn, after)


def is_journal(path: str | Path) -> bool:
    """Tell whether a file begins as a journal does. False also where nothing can be read."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_to_read(path: Path) -> BinaryIO:
    """Open a journal; InputError with one sentence where that is not possible."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError("there is no such journal", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a folder, not a journal", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _decoded(text: bytes) -> str | None:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _has_whole(rest: bytes) -> bool:
    """Look for a whole record after a flaw, at the beginning of any line."""
    place = rest.find(b"\n") + 1
    while place and len(rest) - place > HEAD_BYTES:
        if looks_whole(rest, place):
            return True
        place = rest.find(b"\n", place) + 1
    return False
