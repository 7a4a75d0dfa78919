"""Reading text files that users give: every failure is one InputError that names the place.

Profile tables and job traces are read with these helpers, so that a missing file,
a wrong encoding, a number that is not one and a misspelt column sound alike
everywhere. Nothing here knows what a file means.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

from attrs import frozen

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from typing import TextIO

AnyPath: TypeAlias = str | Path

LARGEST_NUMBER = 10**18
"""No time, count or byte in a file may be above this; sums and products then stay finite."""

_KNOWN_SHOWN = 12
_VALUE_SHOWN = 60


def listed(names: Iterable[str], *, wanted: str = "") -> str:
    """Write names for an error message; of very many, those most like `wanted`."""
    known = sorted(names)
    if len(known) <= _KNOWN_SHOWN:
        return ", ".join(known) or "none"
    near = difflib.get_close_matches(wanted, known, n=_KNOWN_SHOWN, cutoff=0.0)
    return f"{', '.join(near)} and {len(known) - len(near)} more"


def shown(value: object) -> str:
    """Write a value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 3]}..."


def as_list(value: object) -> list[object] | None:
    """Give a JSON value as a list, or None when it is none."""
    return cast("list[object]", value) if isinstance(value, list) else None


def as_object(value: object) -> dict[str, object] | None:
    """Give a JSON value as an object, or None when it is none."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


@frozen
class Row:
    """One record of a file with the place it came from; `None` and "" count as not given.

    Getters return None for what is not given; `need` makes that an error. Every
    error is an InputError with `where` = "file, line N".
    """

    file: str
    line: int
    values: Mapping[str, object]

    @property
    def where(self) -> str:
        """The place, as error messages name it."""
        return f"{self.file}, line {self.line}"

    def error(self, message: str) -> InputError:
        """Make (not raise) the error for this row."""
        return InputError(message, where=self.where)

    def given(self, name: str) -> bool:
        """Say whether the field has a value."""
        return self.values.get(name) not in (None, "")

    def need(self, *names: str) -> None:
        """Refuse the row when one of the fields has no value."""
        for name in names:
            if not self.given(name):
                raise self.error(f"{name} is missing")

    def known_fields_only(self, known: Iterable[str]) -> None:
        """Refuse a field that nobody reads: most likely it is misspelt."""
        fields = set(known)
        for name in self.values:
            if name not in fields:
                raise self.error(
                    f"unknown field {shown(name)}; known fields: {', '.join(sorted(fields))}"
                )

    def text(self, name: str) -> str | None:
        """Give a text field: printable characters only, because it ends on screens."""
        if not self.given(name):
            return None
        value = self.values[name]
        if isinstance(value, int) and not isinstance(value, bool):
            value = shown(value)  # an id that someone wrote as a number
        if not isinstance(value, str) or not value.isprintable():
            raise self.error(f"{name} must be printable text, not {shown(value)}")
        return value

    def needed_text(self, name: str) -> str:
        """Give a text field that must have a value."""
        value = self.text(name)
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def number(self, name: str) -> float | None:
        """Give a finite number of at least 0 (units are in the field's name)."""
        if not self.given(name):
            return None
        number = self._finite(name)
        if number < 0:
            raise self.error(f"{name} must not be negative, but is {shown(self.values[name])}")
        return float(number)

    def number_or_minus_one(self, name: str) -> float | None:
        """Give a number of at least 0; -1 is the files' usual way to write "none"."""
        if not self.given(name):
            return None
        return None if self._finite(name) == -1 else self.number(name)

    def needed_number(self, name: str) -> float:
        """Give a finite number of at least 0 that must have a value."""
        value = self.number(name)
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def positive(self, name: str) -> float | None:
        """Give a finite number above 0."""
        value = self.number(name)
        if value == 0:
            raise self.error(f"{name} must be above 0, but is {shown(self.values[name])}")
        return value

    def needed_positive(self, name: str) -> float:
        """Give a finite number above 0 that must have a value."""
        value = self.positive(name)
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def whole(self, name: str, *, at_least: int = 0) -> int | None:
        """Give a whole number of at least `at_least`; "8.0" is accepted as 8."""
        if not self.given(name):
            return None
        number = self._finite(name)
        if number != int(number):
            raise self.error(f"{name} must be a whole number, not {shown(self.values[name])}")
        if number < at_least:
            raise self.error(
                f"{name} must be at least {at_least}, but is {shown(self.values[name])}"
            )
        return int(number)

    def needed_whole(self, name: str, *, at_least: int = 0) -> int:
        """Give a whole number that must have a value."""
        value = self.whole(name, at_least=at_least)
        if value is None:
            raise self.error(f"{name} is missing")
        return value

    def flag(self, name: str) -> bool | None:
        """Give a yes or no: true, false, 1 or 0."""
        if not self.given(name):
            return None
        value = str(self.values[name]).lower()
        if value not in {"true", "false", "1", "0"}:
            raise self.error(f"{name} must be true or false, not {shown(self.values[name])}")
        return value in {"true", "1"}

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Give several names: a JSON list, or one text with `;` between them."""
        if not self.given(name):
            return None
        value = self.values[name]
        parts = as_list(value) or []
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(";")]
        names = [part for part in parts if isinstance(part, str) and part and part.isprintable()]
        if not names or len(names) != len(parts):
            raise self.error(f"{name} must be a list of printable names, not {shown(value)}")
        return tuple(names)

    def _finite(self, name: str) -> int | float:
        value = self.values[name]
        number = _as_number(value)
        if number is None:
            raise self.error(f"{name} must be a number, not {shown(value)}")
        if isinstance(number, float) and not math.isfinite(number):
            raise self.error(f"{name} must be a finite number, not {shown(value)}")
        if abs(number) > LARGEST_NUMBER:
            raise self.error(f"{name} is too large: {shown(value)}")
        return number


@contextmanager
def at(row: Row) -> Generator[None]:
    """Give an InputError raised inside the place of `row`, unless it has one."""
    try:
        yield
    except InputError as error:
        if error.where is not None:
            raise
        raise row.error(str(error)) from None


@contextmanager
def opened(path: AnyPath) -> Generator[TextIO]:
    """Open a text file for reading; whatever goes wrong becomes an InputError.

    Only UTF-8 (with or without a byte order mark) and only regular files: the
    format is recognised by looking first and reading again.
    """
    place = Path(path)
    try:
        if place.is_dir():
            raise InputError("this is a directory; name a file", where=str(path))
        if not place.exists():
            raise InputError("there is no such file", where=str(path))
        if not place.is_file():
            raise InputError("this is not a regular file; save it to one", where=str(path))
        with place.open(encoding="utf-8-sig", newline="") as stream:
            yield stream
    except UnicodeDecodeError:
        raise InputError("this is not UTF-8 text; save it as UTF-8", where=str(path)) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"the file cannot be read ({reason})", where=str(path)) from None


def text_lines(path: AnyPath) -> Iterator[tuple[int, str]]:
    """Give (line number, line) of every line that is not blank, without its line end."""
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def first_line(path: AnyPath) -> str:
    """Give the first line that is not blank; an empty file is an error."""
    for _, line in text_lines(path):
        return line
    raise InputError("the file is empty", where=str(path))


def header_cells(line: str) -> tuple[str, ...]:
    """Split the first line of a CSV file into its column names."""
    try:
        rows = list(csv.reader([line]))
    except csv.Error:
        return ()
    return tuple(cell.strip() for cell in rows[0]) if rows else ()


def csv_rows(path: AnyPath) -> Iterator[Row]:
    """Give the records of a CSV file with a header; blank lines are skipped."""
    with opened(path) as stream:
        reader = csv.reader(stream, strict=True)
        header: list[str] | None = None
        while True:
            cells = _next_cells(reader, str(path))
            if cells is None:
                return
            if not cells or (len(cells) == 1 and not cells[0]):
                continue
            if header is None:
                header = cells
                if len(set(header)) != len(header):
                    _refuse(path, reader.line_num, "a column name stands twice in the header")
                continue
            if len(cells) != len(header):
                _refuse(
                    path,
                    reader.line_num,
                    f"{len(header)} columns were expected as in the header, but here are"
                    f" {len(cells)}",
                )
            yield Row(str(path), reader.line_num, dict(zip(header, cells, strict=True)))


def jsonl_rows(path: AnyPath) -> Iterator[Row]:
    """Give the records of a JSON Lines file: one JSON object on each line."""
    for number, line in text_lines(path):
        where = f"{path}, line {number}"
        value = parse_json(line, where=where)
        fields = as_object(value)
        if fields is None:
            raise InputError(f"a JSON object was expected, not {shown(value)}", where=where)
        yield Row(str(path), number, fields)


def parse_json(text: str, *, where: str) -> object:
    """Parse JSON strictly: no NaN, no Infinity, no field twice."""
    try:
        return cast(
            "object",
            json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_fields),
        )
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if "\n" in text else ""
        raise InputError(f"this is not valid JSON: {error.msg}", where=where + line) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not valid JSON: {error}", where=where) from None


def _as_number(value: object) -> int | float | None:
    """Read a number; a truth value is none, and "1_000" is most likely a mistake."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or "_" in value:
        return None
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return None


def _next_cells(reader: Iterator[list[str]], file: str) -> list[str] | None:
    try:
        return [cell.strip() for cell in next(reader)]
    except StopIteration:
        return None
    except csv.Error as error:
        raise InputError(f"this is not valid CSV ({error})", where=file) from None


def _refuse(path: AnyPath, line: int, message: str) -> NoReturn:
    raise InputError(message, where=f"{path}, line {line}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands twice in one object")
    return fields
