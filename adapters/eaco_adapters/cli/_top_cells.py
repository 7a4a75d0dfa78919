"""Text for cells of a terminal: inert, of a known width, and never 0 for what is not known.

Names come from drivers, from processes and over a network. Whatever they hold, a cell
shows it as plain text of the width that was asked for.
"""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

NOTHING: Final = "-"
"""What stands for a value that was not measured."""

CUT: Final = "…"
_INSTEAD: Final = "\N{REPLACEMENT CHARACTER}"
_LONGEST: Final = 1024
_MOST_MARKS: Final = 2
_ID_WIDTH: Final = 12

_WH_J: Final = 3600.0
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_TEN: Final = 10.0
_HUNDRED: Final = 100.0
_THOUSAND: Final = 1000.0
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20

# For a terminal that knows no more than ASCII; each as wide as what it stands for.
_PLAIN: Final = {CUT: "~", "·": "|", "°": "'", _INSTEAD: "?", "└": "`"}


def clean(text: str) -> str:
    """Give a text without anything that a terminal might obey or that has no certain width.

    Controls, formatting and direction marks, and characters that are not assigned become a
    replacement character; of marks over a letter, two stay.
    """
    kept: list[str] = []
    marks = 0
    for char in unicodedata.normalize("NFC", text[:_LONGEST]):
        if unicodedata.category(char) in {"Mn", "Me"}:
            marks += 1
            if marks > _MOST_MARKS or cell_len(char) or not kept or _selects(char):
                continue
            kept.append(char)
            continue
        marks = 0
        kept.append(char if char.isprintable() and cell_len(char) else _INSTEAD)
    return "".join(kept)


def _selects(char: str) -> bool:
    """Tell whether this picks a form of the character before it: terminals differ in its width."""
    return "VARIATION SELECTOR" in unicodedata.name(char, "")


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Give a clean text exactly `width` cells wide, cut with an ellipsis if it is longer."""
    if width <= 0:
        return ""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + CUT
    space = " " * (width - length)
    return space + text if right else text + space


def wrapped(text: str, width: int) -> list[str]:
    """Break a clean text into lines of at most `width` cells, between words where it can."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = f"  {word}"
        while cell_len(line) > width:
            start = set_cell_size(line, width).rstrip()
            lines.append(start)
            line = line[len(start) :]
    return [*lines, line] if line else lines


def for_encoding(text: str, encoding: str | None) -> str:
    """Give a text that an encoding can write, of the same width."""
    if encoding is None:
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_writable(char, encoding) for char in text)
    return text


def _writable(char: str, encoding: str) -> str:
    try:
        char.encode(encoding)
    except UnicodeEncodeError:
        return _PLAIN.get(char, "?" * cell_len(char))
    return char


# ------------------------------------------------------------------------- numbers


def percent(ratio: float | None) -> str:
    """Write a share as per cent."""
    return NOTHING if ratio is None else f"{ratio * 100:.0f}%"


def gib(used: int | None, total: int | None) -> str:
    """Write memory as used/total in GiB."""
    if used is None and total is None:
        return NOTHING
    return f"{_gib(used)}/{_gib(total, whole=True)}"


def _gib(count: int | None, *, whole: bool = False) -> str:
    if count is None:
        return NOTHING
    value = count / _GIB
    if whole and value >= _TEN:
        return f"{value:.0f}"
    return f"{value:.1f}" if value < _HUNDRED else f"{value:.0f}"


def memory(count: int | None) -> str:
    """Write memory with its unit."""
    if count is None:
        return NOTHING
    if count < _GIB:
        return f"{count / _MIB:.0f}MiB"
    return f"{_gib(count)}GiB"


def watts(value: float | None, limit: float | None = None) -> str:
    """Write watts, and after a slash the limit if one is known."""
    text = _short(value)
    return text if limit is None else f"{text}/{_short(limit)}"


def power(value: float | None) -> str:
    """Write power with its unit: W, or kW from 10 kW on."""
    if value is None:
        return NOTHING
    if value >= _TEN * _THOUSAND:
        return f"{value / _THOUSAND:,.1f} kW"
    return f"{value:,.0f} W" if value >= _TEN else f"{value:.1f} W"


def _short(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= _TEN * _THOUSAND:
        return f"{value / _THOUSAND:.0f}k"
    return f"{value:.0f}" if value >= _TEN else f"{value:.1f}"


def degrees(value: float | None) -> str:
    """Write degrees Celsius."""
    return NOTHING if value is None else f"{value:.0f}°"


def energy(joules: float | None) -> str:
    """Write energy: J below a watt-hour, then Wh, kWh, MWh."""
    if joules is None:
        return NOTHING
    if joules < _WH_J:
        return f"{joules:.0f} J"
    value, units = joules / _WH_J, ("Wh", "kWh", "MWh", "GWh")
    for unit in units:
        if value < _THOUSAND or unit == units[-1]:
            digits = 2 if value < _TEN else 1 if value < _HUNDRED else 0
            return f"{value:.{digits}f} {unit}"
        value /= _THOUSAND
    raise AssertionError(joules)


def megahertz(value: float | None) -> str:
    """Write a clock in MHz."""
    return NOTHING if value is None else f"{value / 1e6:.0f}"


def age(seconds: float | None) -> str:
    """Write how long ago something was."""
    if seconds is None:
        return NOTHING
    if seconds < _TEN:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < _MINUTE_S * 2:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S * 2:
        return f"{seconds / _MINUTE_S:.0f} min"
    if seconds < _DAY_S * 2:
        return f"{seconds / _HOUR_S:.0f} h"
    return f"{seconds / _DAY_S:.0f} d"


def total(values: Iterable[float | None]) -> float | None:
    """Give the sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    try:
        return math.fsum(known) if known else None
    except OverflowError:  # numbers that no device gives, and no sum has a meaning
        return None


# ----------------------------------------------------------------------------- ids


def short_ids(ids: Sequence[str], width: int = _ID_WIDTH) -> dict[str, str]:
    """Shorten ids to at most `width` cells, so that no two of them look the same.

    The beginning if it tells them apart, else the end, else the place in the list (``#3``).
    What two ids have in common is not cut away for nothing: an id that fits stays whole.
    """
    names = {one: clean(_without_node(one)) or _INSTEAD for one in ids}
    if all(cell_len(name) <= width for name in names.values()) and _apart(names.values()):
        return names
    ways: tuple[Callable[[str], str], ...] = (
        lambda name: fit(name, width).rstrip(),
        lambda name: _end_of(name, width),
    )
    for way in ways:
        short = {one: way(name) for one, name in names.items()}
        if _apart(short.values()):
            return short
    return {one: f"#{place}" for place, one in enumerate(names)}


def _without_node(gpu_id: str) -> str:
    """Leave out the node of ``pci:<node>/<bdf>``: it stands above."""
    head, slash, bdf = gpu_id.rpartition("/")
    return f"pci:{bdf}" if slash and head.startswith("pci:") else gpu_id


def _end_of(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    end = name[::-1]
    return CUT + set_cell_size(end, width - 1).rstrip()[::-1]


def _apart(names: Iterable[str]) -> bool:
    known = list(names)
    return len(set(known)) == len(known) and CUT not in known


def terminal_size() -> os.terminal_size:
    """Give columns and lines of the terminal (80 x 24 if it does not say)."""
    import shutil  # noqa: PLC0415 - only where something is shown

    return shutil.get_terminal_size()
