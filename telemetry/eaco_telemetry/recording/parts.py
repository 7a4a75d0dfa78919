"""The files of a recording: the file itself, and the parts that are not joined into it yet.

While ``run.parquet`` is recorded, rows go to ``run.parquet.parts/FIRST-LAST.parquet``, where
FIRST and LAST are the numbers of the parts that a file stands for. Each file appears whole
(a temporary name, fsync, rename). The finished recording says in its metadata up to which
part it has everything. So whenever the writer is killed, every row is in exactly one file
that counts: a part that a larger one or the recording stands for is passed over.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import polars as pl
from attrs import frozen

from eaco_core.errors import InputError
from eaco_telemetry.recording._seal import SEAL_KEY, UNSEALED, seal
from eaco_telemetry.recording.columns import RECORDING_SCHEMA, SCHEMA_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PARTS_KEY: Final = "eaco.parts"
"""Metadata of a recording: the number of the last part that is in it."""

ROW_GROUP: Final = 16_384
"""Rows that are packed together, and that a reader must hold at a time."""

_NAME: Final = re.compile(r"(\d{10})-(\d{10})\.parquet")
_LOCK_NAME: Final = "lock"
_TEMPORARY: Final = ".tmp"


@frozen
class Part:
    """One file of parts `first` to `last`."""

    path: Path
    first: int
    last: int


def recording_at(path: str | os.PathLike[str]) -> Path:
    """Give where a recording really is: a link is followed, so that it stays a link.

    The parts are beside the real file, whatever link it is reached by. Raises `InputError`
    for a name that polars cannot open.
    """
    found = Path(path)
    try:
        os.fspath(found).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the name {os.fsencode(found)!r} is not UTF-8 text, as that of a recording must"
            " be; rename the file"
        ) from None
    if not os.path.islink(found):  # noqa: PTH114 - of Path it raises in a closed folder
        return found
    real = Path(os.path.realpath(found))
    if os.path.islink(real):  # noqa: PTH114 - as above
        raise InputError("is a link that leads back to itself", where=str(found))
    return recording_at(real)


def parts_folder(recording: Path) -> Path:
    """Give the folder of the parts of a recording; it need not exist."""
    return recording.with_name(f"{recording.name}.parts")


def joined_through(recording: Path) -> int:
    """Give the number of the last part that a recording has; 0 if it does not say."""
    with recording.open("rb") as stream:  # polars would take [ and * in a name for a pattern
        text = pl.read_parquet_metadata(stream).get(PARTS_KEY, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def live_parts(recording: Path, through: int) -> list[Part]:
    """Give the parts after number `through`, in order, without those that others stand for."""
    found = sorted(_all_parts(recording), key=lambda part: (part.first, -part.last))
    live: list[Part] = []
    for part in found:
        if part.last > through:
            live.append(part)
            through = part.last
    return live


def write_part(recording: Path, number: int, frame: pl.DataFrame) -> Part:
    """Write one part. It appears whole or not at all. Raises OSError or polars' errors."""
    part = _part(recording, number, number)
    # By way of memory, so that a full disk is told as such; parts are small.
    packed = io.BytesIO()
    frame.write_parquet(packed, compression="zstd", metadata=_META)
    _appear(part.path, lambda path: path.write_bytes(packed.getbuffer()))
    return part


def merge_parts(recording: Path, parts: Sequence[Part], rows: pl.LazyFrame) -> Part:
    """Write one part that stands for several, with the same rows, and remove them."""
    merged = _part(recording, parts[0].first, parts[-1].last)
    _sink(merged.path, rows, _META)
    remove(parts)
    return merged


def join_parts(recording: Path, parts: Sequence[Part], rows: pl.LazyFrame) -> None:
    """Write the recording itself, and remove the parts that are in it now."""
    last = parts[-1].last if parts else 0
    _sink(recording, rows, {**_META, PARTS_KEY: str(last)})
    remove(parts)


def remove(parts: Iterable[Part]) -> None:
    """Remove the files of parts. What cannot be removed does no harm: it no longer counts."""
    for part in parts:
        with contextlib.suppress(OSError):
            part.path.unlink(missing_ok=True)


def remove_leftovers(recording: Path, live: Iterable[Part]) -> None:
    """Remove what a killed writer left: unfinished files, and parts that no longer count."""
    kept = {part.path for part in live}
    remove(part for part in _all_parts(recording) if part.path not in kept)
    for folder, stem in ((parts_folder(recording), ""), (recording.parent, recording.name)):
        for path in folder.glob("*" + _TEMPORARY):
            if not stem or path.name == stem + _TEMPORARY:
                path.unlink(missing_ok=True)


class Lock:
    """The right to write one recording. The system gives it back when the process dies."""

    def __init__(self, recording: Path) -> None:
        self._folder = parts_folder(recording)
        self._path = self._folder / _LOCK_NAME
        self._stream = self._take(recording)

    def _take(self, recording: Path) -> IO[bytes]:
        while True:
            try:
                self._folder.mkdir()
            except FileExistsError:
                if self._folder.is_symlink() and not self._folder.exists():
                    raise NotADirectoryError from None  # a link to nothing
            try:
                stream = self._path.open("ab")
            except FileNotFoundError:
                continue  # the one before us just took the folder away
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(stream.fileno()), self._path.stat()):
                    return stream
            except FileNotFoundError:
                pass
            except BlockingIOError:
                stream.close()
                raise InputError(
                    "another process is recording to this file; choose another name",
                    where=str(recording),
                ) from None
            stream.close()

    def release(self) -> None:
        """Give the right back, and remove the folder of parts if it is empty."""
        if self._stream.closed:
            return
        with contextlib.suppress(OSError):
            if not any(path.name != _LOCK_NAME for path in self._folder.iterdir()):
                self._path.unlink(missing_ok=True)
                self._folder.rmdir()
        self._stream.close()


_META: Final = {SCHEMA_KEY: RECORDING_SCHEMA, SEAL_KEY: UNSEALED}


def _part(recording: Path, first: int, last: int) -> Part:
    return Part(parts_folder(recording) / f"{first:010d}-{last:010d}.parquet", first, last)


def _all_parts(recording: Path) -> list[Part]:
    try:
        names = os.listdir(parts_folder(recording))  # noqa: PTH208 - names are all that is needed
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (_NAME.fullmatch(name) for name in names)
    return [_part(recording, int(one[1]), int(one[2])) for one in found if one is not None]


def _sink(path: Path, rows: pl.LazyFrame, metadata: dict[str, str]) -> None:
    """Write rows as they come, so that memory does not grow with the recording."""

    def write(target: Path) -> None:
        rows.sink_parquet(
            target.absolute(),  # or a name that begins with ~ means a home
            compression="zstd",
            metadata=metadata,
            row_group_size=ROW_GROUP,
            maintain_order=True,
            engine="streaming",
        )

    _appear(path, write)


def _appear(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file appear whole: written under another name, sealed, brought to the disk, renamed."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        write(temporary)
        seal(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
