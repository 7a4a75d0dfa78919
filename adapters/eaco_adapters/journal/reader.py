"""Reading a journal: as far as its records are whole, and what is wrong after that.

Whatever happened to the file, what is read is a whole-record prefix of what was written (I21).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from attrs import frozen

from eaco_adapters.journal.frame import (
    FIRST_CHAIN,
    HEAD_BYTES,
    LINE_MIGRATIONS,
    MAGIC,
    MOST_MAGIC_BYTES,
    SCHEMA,
    VERSION,
    Flaw,
    Framed,
    Place,
    chain_in_head,
    first_place,
    looks_whole,
    migrated,
    record_at,
    version_in,
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

    @property
    def place(self) -> Place:
        """Give where the next record would begin."""
        return Place(self.records, self.place_bytes, self.chain)


class JournalReader:
    """Gives the lines of history of a journal, one at a time, in bounded memory.

    `start`: read from there on, not from the first record; see `holds`. `end` is known when the
    lines have been read to the last one. Lines of an older version come as those of this one.
    Raises InputError for a file that is no journal, or one of a later version; damage is no
    error here, see `End.damage`.
    """

    def __init__(self, path: str | Path, start: Place | None = None) -> None:
        self._path = Path(path)
        self._start = start
        self._version = VERSION
        self.end: End | None = None

    def __iter__(self) -> Iterator[str]:
        """Read from the first record on. Text that is no UTF-8 is damage like any other."""
        with open_to_read(self._path) as stream:
            first = stream.read(MOST_MAGIC_BYTES)
            version = version_in(first)
            if version is None:
                if MAGIC.startswith(first):  # the crash came at the very first write
                    torn = Flaw("the file ends inside its first line", torn=True)
                    self.end = End(0, 0, FIRST_CHAIN, self._damage(torn, 1, 0, b""))
                    return
                raise InputError(
                    f"this is no journal: its first line is not {SCHEMA}", where=str(self._path)
                )
            self._version = _readable(version, str(self._path))
            start = first_place(version) if self._start is None else self._start
            if stream.seek(0, os.SEEK_END) < start.place_bytes:
                raise InputError(
                    f"this journal ends before byte {start.place_bytes}", where=str(self._path)
                )
            stream.seek(start.place_bytes)
            yield from self._records(stream, start)

    def _records(self, stream: BinaryIO, start: Place) -> Iterator[str]:
        data, base, place, last = b"", start.place_bytes, 0, False
        chain, count = start.chain, start.records
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
                    yield text if self._version == VERSION else migrated(text, self._version)
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
    """Tell whether a file begins as a journal of any version. False where nothing can be read."""
    return version_of(path) is not None


def version_of(path: str | Path) -> int | None:
    """Give the version of a journal; None for any other file, and where nothing can be read."""
    try:
        with Path(path).open("rb") as stream:
            return version_in(stream.read(MOST_MAGIC_BYTES))
    except OSError:
        return None


def holds(path: str | Path, place: Place) -> bool:
    """Tell whether a journal has a record that ends at this place, with this chain.

    The chain of a record speaks for all that were written before it.
    """
    with open_to_read(Path(path)) as stream:
        version = version_in(stream.read(MOST_MAGIC_BYTES))
        if version is None or stream.seek(0, os.SEEK_END) < place.place_bytes:
            return False
        if place.records == 0:
            return place == first_place(version)
        begin = _line_before(stream, place.place_bytes)
        stream.seek(begin)
        record = stream.read(place.place_bytes - begin)
    return chain_in_head(record) == place.chain and looks_whole(record, 0)


def _line_before(stream: BinaryIO, end: int) -> int:
    """Give where the line begins that ends before byte `end`: a record is one line."""
    begin = end - 1
    while begin > 0:
        size = min(begin, _READ_BYTES)
        stream.seek(begin - size)
        found = stream.read(size).rfind(b"\n")
        if found >= 0:
            return begin - size + found + 1
        begin -= size
    return 0


def _readable(version: int, where: str) -> int:
    if version > VERSION:
        raise InputError(
            f"this journal is of a later version (eaco.journal/{version}), and this eaco reads up "
            f"to {SCHEMA}. Use the newer eaco that wrote it",
            where=where,
        )
    if any(step not in LINE_MIGRATIONS for step in range(version, VERSION)):
        raise InputError(
            f"this journal is of version eaco.journal/{version}, which this eaco no longer reads",
            where=where,
        )
    return version


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
