"""What fits: all lines, or pages as high as the terminal.

In the automatic mode the most detailed form is taken of which everything fits; if not even
a line for each node does, there are pages.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from attrs import define
from rich.text import Text

from eaco_adapters.cli import _top_cells as cells
from eaco_adapters.cli._top_snapshot import gpus
from eaco_adapters.cli._top_table import Detail, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_adapters.cli._top_snapshot import Snapshot

KEYS: Final = "q leave · space, b pages · d detail"
_LEAST_ROOM: Final = 2
_MOST_NOTES: Final = 4


def everything(snapshot: Snapshot, width: int) -> list[Text]:
    """Give all lines, however many; for a file, a pipe, or to scroll through."""
    table = Table(snapshot, width, Detail.PROCESSES)
    lines = [table.title(clock_of(snapshot))]
    blocks = table.blocks()
    if blocks:
        lines.append(table.heading())
    for block in blocks:
        lines += block
    return lines + table.notes(whole=True)


def clock_of(snapshot: Snapshot) -> str:
    """Give the time of day on this machine."""
    return time.strftime("%H:%M:%S", time.localtime(snapshot.wall_ns / 1e9))


@define
class Pager:
    """What the user looks at: which page, in which detail (None: whatever fits)."""

    page: int = 0
    detail: Detail | None = None
    pages: int = 1

    def turn(self, by: int) -> None:
        """Go some pages on, or back."""
        self.page = min(max(0, self.page + by), max(0, self.pages - 1))

    def next_detail(self) -> None:
        """Go to the next form, and from the last back to whatever fits."""
        order: list[Detail | None] = [None, *Detail]
        self.detail = order[(order.index(self.detail) + 1) % len(order)]
        self.page = 0

    def screen(self, snapshot: Snapshot, width: int, height: int) -> list[Text]:
        """Give the lines of the page, at most `height`."""
        table, notes, pages = self._choose(snapshot, width, height)
        self.pages = max(1, len(pages))
        self.page = min(self.page, self.pages - 1)
        lines = [table.title(clock_of(snapshot))]
        if pages:
            lines += [table.heading(), *pages[self.page]]
        lines += notes
        lines.append(self._keys(width, table.detail))
        return lines[: max(0, height)]

    def _choose(
        self, snapshot: Snapshot, width: int, height: int
    ) -> tuple[Table, list[Text], list[list[Text]]]:
        if self.detail is not None:
            return _form(self.detail, snapshot, width, height)
        for form in (Detail.PROCESSES, Detail.GPUS):
            if _least_lines(snapshot) <= height:
                found = _form(form, snapshot, width, height)
                if len(found[2]) <= 1:
                    return found
        return _form(Detail.NODES, snapshot, width, height)

    def _keys(self, width: int, form: Detail) -> Text:
        where = f"page {self.page + 1} of {self.pages}" if self.pages > 1 else ""
        how = f"{form.value}{' (what fits)' if self.detail is None else ''}"
        text = " · ".join(part for part in (where, how, KEYS) if part)
        return Text(cells.fit(text, width).rstrip(), "dim", no_wrap=True)


def _form(
    form: Detail, snapshot: Snapshot, width: int, height: int
) -> tuple[Table, list[Text], list[list[Text]]]:
    table = Table(snapshot, width, form)
    notes = _shortened(table.notes(), height)
    room = max(_LEAST_ROOM, height - len(("title", "heading", "keys")) - len(notes))
    return table, notes, paged(table.blocks(), room)


def _least_lines(snapshot: Snapshot) -> int:
    return sum(1 + len(gpus(node)) for node in snapshot.nodes)


def paged(blocks: Sequence[list[Text]], height: int) -> list[list[Text]]:
    """Put blocks on pages of at most `height` lines; one that is higher goes on on the next.

    A block that goes on shows its first line again.
    """
    pages: list[list[Text]] = []
    page: list[Text] = []
    for block in blocks:
        if page and len(page) + len(block) > height:
            pages.append(page)
            page = []
        head, rest = block[:1], block[1:]
        page += head
        for line in rest:
            if len(page) >= height:
                pages.append(page)
                page = list(head)
            page.append(line)
    if page:
        pages.append(page)
    return pages


def _shortened(notes: list[Text], height: int) -> list[Text]:
    most = max(1, min(_MOST_NOTES, height // 5))
    if len(notes) <= most:
        return notes
    return [*notes[: most - 1], Text(f"- and {len(notes) - most + 1} more", "dim")]
