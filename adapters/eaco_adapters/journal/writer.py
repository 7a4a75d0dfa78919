"""Writing a journal: append, then one fdatasync for the batch, then the effects.

One process writes at a time; the lock goes with the process, however it ends. After a failed
write or fdatasync nothing more is written: what the disk holds is not known any more, and a
second try could report success for data that was dropped.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from attrs import frozen

from eaco_adapters.durable import sync_folder, write_all
from eaco_adapters.journal.frame import FIRST_CHAIN, MAGIC, VERSION, Place, encode_record
from eaco_adapters.journal.reader import Damage, JournalReader, version_of
from eaco_core.errors import EacoError, EnvironmentFault, InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from eaco_adapters.journal.reader import End


class JournalLocked(EnvironmentFault):
    """Another process writes this journal; stop it first."""


class JournalDamaged(EacoError):
    """The operator must look: the file was changed after it was written. `damage` says where."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(
            f"{damage}. Whole records come after it, so this is not from a crash. Restore the "
            "file, or cut it at that byte if the records after it may be lost"
        )
        self.damage = damage


@frozen
class Kept:
    """What a journal held when it was opened.

    `cut`: None, or what was cut from the end: the start of a record that was never whole.
    `cut_file` holds these bytes.
    """

    records: int
    cut: Damage | None = None
    cut_file: Path | None = None


class JournalWriter:
    """Appends lines of history to a journal. See `eaco_core.ports.Journal`.

    `append` only collects; `commit` makes durable what was collected. `records` counts durable
    ones. Use it as a context manager, or `close` it; either commits nothing by itself.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        replay: Callable[[str], None] | None = None,
        start: Callable[[], Place | None] | None = None,
    ) -> None:
        """Open or make the journal, take the lock, and hand each line there is to `replay`.

        `start` is asked under the lock from where on lines are wanted; None = all. `kept` tells
        what was there. Raises what these two raise, JournalLocked, JournalDamaged, InputError
        (the file is no journal of this version), and EnvironmentFault (it cannot be written).
        """
        self._path = Path(path)
        self._chain = FIRST_CHAIN
        self._size_bytes = 0
        self._waiting_bytes = 0
        self._waiting: list[bytes] = []
        self.records = 0
        self._broken: str | None = None
        self._handle = self._open()
        try:
            self._lock()
            self.kept = self._recover(replay, start)
        except BaseException:
            os.close(self._handle)
            self._handle = -1
            raise

    def append(self, line: str, /) -> None:
        """Collect one line. Raises InputError for one that cannot be a record."""
        self._check_usable()
        record, self._chain = encode_record(line, self._chain)
        self._waiting.append(record)
        self._waiting_bytes += len(record)

    @property
    def path(self) -> Path:
        """Give the name of the journal."""
        return self._path

    @property
    def place(self) -> Place:
        """Give where the next record will begin: after all that was appended, committed or not."""
        records = self.records + len(self._waiting)
        return Place(records, self._size_bytes + self._waiting_bytes, self._chain)

    def commit(self) -> int:
        """Make all that was collected durable; give the number of durable records.

        Raises EnvironmentFault when the disk fails; nothing can be written after that.
        """
        self._check_usable()
        if not self._waiting:
            return self.records
        data = b"".join(self._waiting)
        try:
            write_all(self._handle, data)
            os.fdatasync(self._handle)
        except OSError as error:
            self._broken = error.strerror or str(error)
            with suppress(OSError):  # readers then see whole records only; else they cut it
                os.ftruncate(self._handle, self._size_bytes)
            self._check_usable()
        self._size_bytes += len(data)
        self.records += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return self.records

    def close(self) -> None:
        """Let the file and the lock go. What was not committed is dropped."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFault(
                f"the journal {self._path} cannot be written: {error.strerror}"
            ) from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalLocked(
                f"the journal {self._path} is being written by another process: a cluster has one "
                "scheduler. Stop the other one, or give this one a journal of its own"
            ) from None
        except OSError as error:
            raise EnvironmentFault(
                f"the journal {self._path} cannot be locked: {error.strerror}"
            ) from error

    def _recover(
        self,
        replay: Callable[[str], None] | None,
        start: Callable[[], Place | None] | None,
    ) -> Kept:
        if os.fstat(self._handle).st_size == 0:
            self._begin()
            return Kept(0)
        version = version_of(self._path)
        if version is not None and version < VERSION:
            raise InputError(
                f"this journal is of version eaco.journal/{version}; migrate_journal makes one of "
                "this version of it, which can be continued",
                where=str(self._path),
            )
        reader = JournalReader(self._path, None if start is None else start())
        for line in reader:
            if replay is not None:
                replay(line)
        end = reader.end
        if end is None:
            raise InternalError(f"the journal {self._path} was not read to its end")
        if end.damage is not None and end.damage.whole_after:
            raise JournalDamaged(end.damage)
        cut_file = None if end.damage is None else self._cut(end)
        self.records, self._chain, self._size_bytes = end.records, end.chain, end.place_bytes
        if end.place_bytes == 0:
            self._begin()
        return Kept(end.records, end.damage, cut_file)

    def _begin(self) -> None:
        try:
            write_all(self._handle, MAGIC)
            os.fdatasync(self._handle)
            sync_folder(self._path.parent)
        except OSError as error:
            raise EnvironmentFault(
                f"the journal {self._path} cannot be written: {error.strerror}"
            ) from error
        self.records, self._chain, self._size_bytes = 0, FIRST_CHAIN, len(MAGIC)

    def _cut(self, end: End) -> Path:
        """Move what is no whole record to a file beside the journal."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(end.place_bytes)
                rest = stream.read()
            beside = _free_name(self._path)
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(handle, rest)
                os.fsync(handle)
            finally:
                os.close(handle)
            os.ftruncate(self._handle, end.place_bytes)
            os.fsync(self._handle)
            sync_folder(self._path.parent)
        except OSError as error:
            raise EnvironmentFault(
                f"the torn end of the journal {self._path} cannot be set aside: {error.strerror}"
            ) from error
        return beside

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise EnvironmentFault(
                f"the journal {self._path} could not be written ({self._broken}); nothing may be "
                "started after that. Make room or repair the disk, then start the scheduler again"
            )
        if self._handle < 0:
            raise InternalError(f"the journal {self._path} is closed")


def _free_name(path: Path) -> Path:
    number = 1
    while (beside := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    return beside
