"""The text format of Prometheus, as far as an exporter of sensors uses it.

A parser of our own and not that of prometheus-client: a reader must work without an extra,
and a page is half a megabyte with a few hundred lines for us. What is no sample line of the
format is counted and left out; nothing raises for what a page holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - attrs keeps the annotations
from typing import Final

from attrs import frozen

MAX_LINE: Final = 16_384
MAX_LABELS: Final = 64

_LINE: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*"  # name
    r"(?:\{(.*)\})?"  # labels
    r"\s*([^\s{}]+)"  # value
    r"(?:\s+-?[0-9]+)?"  # time stamp
)
_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n"}
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?"
)


@frozen
class Line:
    """One value: the name of the metric, its labels, and the number as it was written."""

    name: str
    labels: Mapping[str, str]
    number: str


@frozen
class Page:
    """The lines with one prefix, and how many lines could not be read."""

    lines: tuple[Line, ...]
    odd: int


def parse_page(text: str, prefix: str) -> Page:
    """Read the lines whose name begins with `prefix`. Lines of other metrics are not looked at."""
    lines: list[Line] = []
    odd = 0
    for raw in text.splitlines():
        if not raw.startswith(prefix):
            continue
        line = _parse_line(raw)
        if line is None:
            odd += 1
        else:
            lines.append(line)
    return Page(tuple(lines), odd)


def _parse_line(raw: str) -> Line | None:
    match = _LINE.fullmatch(raw.rstrip()) if len(raw) <= MAX_LINE else None
    if match is None:
        return None
    labels = _parse_labels(match[2] or "")
    return None if labels is None else Line(match[1], labels, match[3])


def _parse_labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if match is None or match[1] in labels or len(labels) >= MAX_LABELS:
            return None
        labels[match[1]] = _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), match[2])
        at = match.end()
    return labels


def parse_number(text: str) -> float | None:
    """Read a finite number; None for NaN, infinities and everything else."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if abs(number) != float("inf") else None
