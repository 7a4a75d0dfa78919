"""Reading recordings as polars frames: checked, and with the parts of a killed agent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import polars as pl
from attrs import frozen
from polars.exceptions import PanicException, PolarsError

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.recording import parts as _parts
from eaco_telemetry.recording._polars import keep, select
from eaco_telemetry.recording._seal import check_seal
from eaco_telemetry.recording.columns import (
    COLUMNS,
    KINDS,
    NEEDED,
    RECORDING_SCHEMA,
    SCHEMA_KEY,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Mapping
    from pathlib import Path

    from eaco_core.errors import EacoError

POLARS_ERRORS: Final = (PolarsError, PanicException)
"""What polars raises for a file that it cannot make sense of."""

_TRIES: Final = 5


@frozen
class Source:
    """One Parquet file of a recording, and its rows with all columns of this version."""

    path: Path
    rows: pl.LazyFrame


def scan_recording(path: str | os.PathLike[str]) -> pl.LazyFrame:
    """Give the rows of a recording to ask polars about, without loading them.

    All columns of `columns.COLUMNS` are there; those that an older version did not write
    are null. Parts that a killed agent left, or that are being written now, are included;
    a link is followed.
    While somebody records, collect at once: parts are joined from time to time.

    Raises `InputError` if there is no such file or it is no recording.
    """
    return pl.concat([one.rows for one in sources(path)], how="vertical")


def read_frame(path: str | os.PathLike[str], kinds: Iterable[str] | None = None) -> pl.DataFrame:
    """Load a recording, or only the rows of some kinds: ``gpu``, ``host``, ``event``, ``node``.

    The rows stand as they were recorded. Raises `InputError` if there is no such file, it
    is no recording or it is damaged, and `EnvironmentFault` if it cannot be read.
    """
    wanted = None if kinds is None else sorted(set(kinds))
    if wanted is not None and not set(wanted) <= set(KINDS):
        raise InputError(f"the kinds of rows are {', '.join(KINDS)}, not {', '.join(wanted)}")
    where = _parts.recording_at(path)
    for _ in range(_TRIES):
        with _readable(where):
            before = _stamp(where)
        rows = scan_recording(where)
        if wanted is not None:
            rows = keep(rows, pl.col("kind").is_in(wanted))
        # While it is recorded, parts may be joined with others under our hands.
        with contextlib.suppress(FileNotFoundError):
            frame = collect(rows, where)
            if _stamp(where) == before:
                return frame
    raise EnvironmentFault(f"{path}: the recording changes too fast to be read; try again")


def collect(rows: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Load rows; a file that turns out to be damaged is an `InputError`."""
    try:
        return rows.collect()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except POLARS_ERRORS as error:
        raise damaged(path, error) from error


def sources(path: str | os.PathLike[str]) -> list[Source]:
    """Give the files that a recording consists of now, each checked, in their order."""
    path = _parts.recording_at(path)
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError), _readable(path):
            before = _stamp(path)
            found = _sources(path)
            if _stamp(path) == before:
                return found
    raise EnvironmentFault(f"{path}: the recording changes too fast to be read; try again")


def source(path: Path, *, keep_unknown: bool = False) -> Source:
    """Check one file: the form of the recording, and the type of each column.

    `keep_unknown`: columns that this version does not know stay, at the end.
    """
    found = _header(path)
    for name in NEEDED:
        if name not in found:
            raise InputError(f"has no column {name!r}, so it is no recording", where=str(path))
    columns = [_column(name, COLUMNS[name], found.get(name), path) for name in COLUMNS]
    unknown = [pl.col(name) for name in found if keep_unknown and name not in COLUMNS]
    return Source(path, select(pl.scan_parquet(path.absolute(), glob=False), columns + unknown))


def part_source(part: _parts.Part, *, keep_unknown: bool = False) -> Source:
    """Check one part, as `source` does, and say what can be done about one that is unusable."""
    try:
        return source(part.path, keep_unknown=keep_unknown)
    except InputError as error:
        raise InputError(
            f"{error}; it is one part of a recording: move it away to go on without its rows"
        ) from error


def damaged(path: Path, error: BaseException) -> InputError:
    """Say that a file cannot be understood."""
    return InputError(f"is no Parquet file, or it is damaged ({one_line(error)})", where=str(path))


def unreadable(path: object, error: OSError) -> EacoError:
    """Say that the system does not give a file; who may not read it named the wrong one."""
    if isinstance(error, PermissionError):
        return InputError(f"cannot be read: {one_line(error)}", where=str(path))
    return EnvironmentFault(f"{path}: cannot be read: {one_line(error)}")


@contextlib.contextmanager
def _readable(path: Path) -> Generator[None, None, None]:
    """Say in a sentence that a recording or the folder of its parts may not be read."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(error.filename or path, error) from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Give what changes when a recording is written anew."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _sources(path: Path) -> list[Source]:
    if path.exists() and not path.is_file():
        raise InputError("is not a file", where=str(path))
    found = [source(path)] if path.exists() else []
    through = _parts.joined_through(path) if found else 0
    found += [part_source(part) for part in _parts.live_parts(path, through)]
    if not found:
        if _parts.parts_folder(path).is_dir():
            raise InputError(
                "nothing is recorded yet: a recorder writes its first part after a minute at the"
                " latest, and all when it ends",
                where=str(path),
            )
        raise InputError("there is no such recording", where=str(path))
    return found


def _header(path: Path) -> Mapping[str, pl.DataType]:
    try:
        check_seal(path)
        # Opened here, because polars takes [ and * in a name for a pattern.
        with path.open("rb") as stream:
            version = pl.read_parquet_metadata(stream).get(SCHEMA_KEY, RECORDING_SCHEMA)
        with path.open("rb") as stream:
            found = pl.read_parquet_schema(stream)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except POLARS_ERRORS as error:
        raise damaged(path, error) from error
    if version != RECORDING_SCHEMA:
        raise InputError(
            f"is a recording of the form {version!r}, and this program reads"
            f" {RECORDING_SCHEMA!r}; use a newer one",
            where=str(path),
        )
    return found


def _column(
    name: str, wanted: pl.DataType | type[pl.DataType], found: pl.DataType | None, path: Path
) -> pl.Expr:
    if found is None:
        return pl.lit(None, dtype=wanted).alias(name)
    if found == wanted:
        return pl.col(name)
    if _can_become(found, wanted):
        return pl.col(name).cast(wanted)
    raise InputError(
        f"column {name!r} holds {found}, but in a recording it holds {wanted}", where=str(path)
    )


def _can_become(found: object, wanted: object) -> bool:
    """Say whether a list of records only has more or fewer fields, as in another version."""
    if not isinstance(found, pl.List) or not isinstance(wanted, pl.List):
        return False
    if not isinstance(found.inner, pl.Struct) or not isinstance(wanted.inner, pl.Struct):
        return False
    ours = {one.name: one.dtype for one in wanted.inner.fields}
    theirs = {one.name: one.dtype for one in found.inner.fields}
    return ours.keys() & theirs.keys() != set() and all(
        theirs[name] == ours[name] for name in ours.keys() & theirs.keys()
    )


def one_line(error: BaseException) -> str:
    """Give the reason of an error of the system or of polars."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].rpartition("underlying IO error: ")[2] if lines else type(error).__name__
