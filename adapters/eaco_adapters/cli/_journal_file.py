"""A journal as a source of history lines, also while a scheduler writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_adapters.journal.reader import JournalReader
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class JournalFile:
    """The lines of one journal.

    `note` is known after the last line: None, or a sentence on the record at the end that is
    not whole. Damage before that is an InputError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.note: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Give the whole records."""
        reader = JournalReader(self._path)
        yield from reader
        damage = None if reader.end is None else reader.end.damage
        if damage is None:
            return
        if not damage.torn:
            raise InputError(f"{damage}. The records before it are good; restore the file")
        self.note = (
            f"record {damage.record} was not written to its end (by a crash, or it is being "
            "written now); it does not count"
        )
