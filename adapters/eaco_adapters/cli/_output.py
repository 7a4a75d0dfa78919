"""Where results go: whole files, JSON alone on stdout, tables and bars for people.

A file is written beside its final place and moved there when it is complete, so
that an error or Ctrl-C never leaves half of one.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

_SHOW_BAR_AFTER_S = 2.0
_REDRAW_EVERY_S = 0.1
_NAME_SHOWN = 40
_NO_TEXT = re.compile("[\ud800-\udfff]")  # half a character: a byte that is no UTF-8


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Generator[IO[str]]:
    """Open a text file that appears under its name only when the block ends well.

    An existing file keeps its content until then, and its permissions after. A
    link stays a link. A device or a pipe (``/dev/stdout``) is written directly.
    Raises InputError where no such file can be, EnvironmentFault when writing fails.
    """
    check_writable(path)
    if is_stream(path):
        with _faults_of(path, str(path)), Path(path).open("w", encoding="utf-8") as stream:
            yield stream
        return
    target = real_path(path)
    prefix = f".{target.name[:_NAME_SHOWN]}."  # a long name must not become too long
    try:
        handle, temporary = tempfile.mkstemp(prefix=prefix, dir=target.parent)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error
    try:
        with _faults_of(path, temporary):
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                yield stream
                _finish(stream, target)
            Path(temporary).replace(target)
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()


@contextmanager
def _faults_of(path: str | os.PathLike[str], opened: str) -> Generator[None]:
    """Name the file in what goes wrong while it is written; it was opened as `opened`."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of stdout went away, which is not about this file
    except OSError as error:
        if error.filename is None or str(error.filename) == opened:
            raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error
        raise


def writer(stream: IO[str], path: str | os.PathLike[str]) -> Callable[[str], None]:
    """Give a function that writes to `stream` and names `path` in what goes wrong.

    For several files at once: the error of one must not be told as that of another.
    """

    def write(text: str) -> None:
        try:
            stream.write(text)
        except BrokenPipeError:
            raise  # the reader of a pipe went away
        except OSError as error:
            raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from error

    return write


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file at once, or leave what was there untouched."""
    with new_file(path) as stream:
        stream.write(text)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a target early, before hours of work, where no file can be written."""
    target = real_path(path)
    try:
        stream = is_stream(path)
        if target.is_dir():
            raise InputError(f"{path} is a folder; name a file in it")
        if not stream and not target.parent.is_dir():
            raise InputError(f"there is no folder {target.parent}; make it first")
        exists = stream or target.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    if exists and not os.access(path, os.W_OK):
        raise InputError(f"{path} is write-protected; choose another name")
    if not stream and not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"the folder {target.parent} may not be written; choose another")


def real_path(path: str | os.PathLike[str]) -> Path:
    """Follow the links of a name; InputError when they lead nowhere or no file can be called so."""
    loop = InputError(f"{path} is a link that leads back to itself; name a file")
    try:
        real = Path(path).resolve()
        if real.is_symlink():  # so Python from 3.13 on shows a loop
            raise loop
    except RuntimeError:  # and so earlier ones
        raise loop from None
    except OSError as error:
        raise InputError(f"{path} cannot be the name of a file: {error.strerror}") from None
    return real


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Tell whether the name is a device, pipe or socket, which must not be replaced."""
    place = Path(path)
    return place.exists() and not place.is_file() and not place.is_dir()


def json_text(document: object) -> str:
    r"""Return a document as JSON for files and programs; refuses NaN and infinity.

    Bytes of a file name that are no text are written as escapes (``\udcfe``).
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return _NO_TEXT.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(document: object) -> None:
    """Print one JSON document; nothing else may go to stdout in the same run."""
    text = json_text(document)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    click.echo(text, nl=False)


def note(sentence: str) -> None:
    """Tell the user something that is no result; it goes to stderr."""
    click.echo(sentence, err=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with rich on a person's terminal, as plain aligned text elsewhere.

    The first column is text and stands left, all others are figures and stand right.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells, the table {len(columns)} columns")
    if sys.stdout.isatty():
        _print_rich(columns, rows)
        return
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for row in (columns, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [row[i].rjust(widths[i]) for i in range(1, len(row))]
        click.echo("  ".join(cells).rstrip())


@contextmanager
def progress(label: str) -> Generator[Callable[[int, int], None]]:
    """Give a function to call with (done, total); draws a bar for slow work.

    The bar goes to stderr, only on a terminal, and only after two seconds.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    bar = _Bar(label)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, label: str) -> None:
        self._label = label
        self._started_s = time.monotonic()
        self._drawn_s = self._started_s
        self._bar: _RichBar | None = None

    def update(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_s < _REDRAW_EVERY_S:
            return
        self._drawn_s = now_s
        if self._bar is None:
            if now_s - self._started_s < _SHOW_BAR_AFTER_S:
                return
            self._bar = _RichBar(self._label)
        self._bar.draw(done, total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _RichBar:
    def __init__(self, label: str) -> None:
        from rich.console import Console  # noqa: PLC0415 - costs start-up time, rarely needed
        from rich.progress import Progress  # noqa: PLC0415 - as above

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(label, total=None)
        self._progress.start()

    def draw(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._progress.stop()


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - costs start-up time, rarely needed
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if index else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _finish(stream: IO[str], target: Path) -> None:
    """Bring the bytes to the disk and give the new file the permissions it should have."""
    stream.flush()
    if target.exists():
        mode = stat.S_IMODE(target.stat().st_mode)
    else:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    os.fchmod(stream.fileno(), mode)
    os.fsync(stream.fileno())
