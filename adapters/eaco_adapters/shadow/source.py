"""Lines of a history as they come: from a file, a pipe, a journal, or one that still grows."""

from __future__ import annotations

import json
import os
import select
import stat
import time
from typing import TYPE_CHECKING, Final

from eaco_adapters.journal.reader import JournalReader, is_journal
from eaco_core.errors import InputError
from eaco_core.history import Header, decode_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from eaco_adapters.journal.frame import Place
    from eaco_adapters.shadow.past import Past

_READ_BYTES: Final = 1 << 16
_POLL_S: Final = 0.5
_LONGEST_LINE_BYTES: Final = 1 << 24


class Intake:
    """Feeds numbered lines of one history into a `Past`; names file and line in errors."""

    def __init__(self, past: Past, name: str) -> None:
        self.past = past
        self._name = name
        self._number = 0

    def take(self, text: str) -> None:
        """Take one line in; blank ones are passed over. Raises InputError."""
        self._number += 1
        if not text.strip():
            return
        line = decode_line(text, self._where)
        if isinstance(line, Header) == (self.past.header is not None):
            told = (
                "the first line must be the header"
                if self.past.header is None
                else "a second header; one history has one header"
            )
            raise InputError(told, where=self._where)
        self.past.take(line, self._where)

    def end(self) -> None:
        """Refuse a history that had no line at all."""
        if self.past.header is None:
            raise InputError(
                "this history is empty; its first line must be the header", where=self._name
            )

    @property
    def _where(self) -> str:
        return f"{self._name}, line {self._number}"


def file_lines(path: Path, *, follow: bool) -> Iterator[str | None]:
    """Give the lines of a file or journal; with `follow` go on for ever, with None for a pause.

    A last line without its end is waited for with `follow`, and is a line like any other without.
    """
    if is_journal(path):
        return _journal_lines(path, follow=follow)
    return _plain_lines(path, follow=follow)


def _plain_lines(path: Path, *, follow: bool) -> Iterator[str | None]:
    try:
        with path.open("rb") as stream:
            yield from stream_lines(stream, str(path), follow=follow)
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a folder, not a history file", where=str(path)) from None
    except PermissionError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def stream_lines(stream: BinaryIO, name: str, *, follow: bool) -> Iterator[str | None]:
    """Give the lines of an open stream, None whenever there is nothing now.

    A pipe ends when its writer does, and half a line at its end does not count. A regular file
    ends at its end, unless it is followed.
    """
    handle = stream.fileno()
    regular = stat.S_ISREG(os.fstat(handle).st_mode)
    rest = b""
    place = 0
    number = 0
    while True:
        if not regular and not select.select([handle], [], [], _POLL_S)[0]:
            yield None
            continue
        data = os.read(handle, _READ_BYTES)
        if not data:
            if not (regular and follow):
                break
            if os.fstat(handle).st_size < place:
                raise InputError("the file became shorter while it was followed", where=name)
            time.sleep(_POLL_S)
            yield None
            continue
        place += len(data)
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            number += 1
            yield _text(line, f"{name}, line {number}", first=number == 1)
        if len(rest) > _LONGEST_LINE_BYTES:
            raise InputError("this line does not end", where=f"{name}, line {number + 1}")
    if rest and not ((follow or not regular) and _is_cut_off(rest)):
        yield _text(rest, f"{name}, line {number + 1}", first=number == 0)


def _is_cut_off(line: bytes) -> bool:
    """Tell whether this is the beginning of a line whose writer ended in the middle of it."""
    try:
        json.loads(line)
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def _text(line: bytes, where: str, *, first: bool) -> str:
    try:
        return line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError:
        raise InputError("this is not a history: it is not UTF-8", where=where) from None


def _journal_lines(path: Path, *, follow: bool) -> Iterator[str | None]:
    start: Place | None = None
    while True:
        reader = JournalReader(path, start)
        yield from reader
        end = reader.end
        damage = None if end is None else end.damage
        if damage is not None and not damage.torn:
            raise InputError(f"{damage}. The records before it are good; restore the file")
        if not follow:
            return
        if end is not None and end.records:
            start = end.place
        time.sleep(_POLL_S)
        yield None
