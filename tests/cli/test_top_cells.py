"""Cells of `eaco top`: whatever a name holds, it is inert, of its width, and told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eaco_adapters.cli import _top_cells as cells

UUIDS = [
    "GPU-5f2a1b2c-0f00-4a11-9d3c-000000000001",
    "GPU-5f2a1b2c-0f00-4a11-9d3c-000000000002",
    "GPU-0b8e77aa-0f00-4a11-9d3c-000000000003",
]


@given(st.text(max_size=60), st.integers(0, 40), st.booleans())
def test_a_cell_is_as_wide_as_asked_and_holds_nothing_a_terminal_obeys(
    text: str, width: int, right: bool
) -> None:
    shown = cells.fit(cells.clean(text), width, right=right)
    assert cell_len(shown) == width
    assert all(char.isprintable() for char in shown)


@given(st.text(max_size=60))
def test_a_terminal_without_unicode_gets_the_same_width(text: str) -> None:
    shown = cells.clean(text)
    plain = cells.for_encoding(shown, "ascii")
    assert plain.isascii()
    assert cell_len(plain) == cell_len(shown)
    assert cells.for_encoding(shown, "utf-8") == shown


@given(st.text(max_size=200), st.integers(20, 60))
def test_long_text_is_wrapped_within_the_width(text: str, width: int) -> None:
    lines = cells.wrapped(cells.clean(text), width)
    assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "�[31mred�"),
        ("[red]bold[/red]", "[red]bold[/red]"),
        ("a\u202eb\u200bc", "a�b�c"),
        ("q\u0301\u0301\u0301\u0301", "q\u0301\u0301"),
        ("訓練.py", "訓練.py"),
        ("\u0301", ""),
        ("❤\ufe0f", "❤"),
    ],
)
def test_what_a_terminal_might_obey_is_replaced(text: str, shown: str) -> None:
    assert cells.clean(text) == shown


def test_ids_are_cut_where_the_beginning_tells_them_apart() -> None:
    short = cells.short_ids([UUIDS[0], UUIDS[2]], 12)
    assert list(short.values()) == ["GPU-5f2a1b2…", "GPU-0b8e77a…"]


def test_ids_with_the_same_beginning_show_their_end() -> None:
    assert list(cells.short_ids(UUIDS, 12).values()) == [
        "…00000000001", "…00000000002", "…00000000003",
    ]  # fmt: skip
    both = ["GPU-simulated-box-1-0000", "GPU-simulated-box-1-0001"]
    assert list(cells.short_ids(both, 10).values()) == ["…ox-1-0000", "…ox-1-0001"]


def test_ids_that_are_alike_at_both_ends_show_their_place() -> None:
    both = [f"GPU-aaaaaaaaaaaaaa{middle}bbbbbbbbbbbbbbbb" for middle in "xy"]
    assert list(cells.short_ids(both, 12).values()) == ["#0", "#1"]


def test_an_address_on_the_bus_is_shown_without_its_node() -> None:
    ids = ["pci:box-1/0000:41:00.0", "soc:box-1"]
    assert list(cells.short_ids(ids, 16).values()) == ["pci:0000:41:00.0", "soc:box-1"]


@given(st.lists(st.text(min_size=1, max_size=40), unique=True, max_size=12), st.integers(4, 20))
def test_no_two_short_ids_are_the_same(ids: list[str], width: int) -> None:
    short = cells.short_ids(ids, width)
    assert list(short) == ids
    assert len(set(short.values())) == len(ids)
    assert all(0 < cell_len(one) <= width for one in short.values())


def test_what_is_not_known_is_a_dash_and_never_0() -> None:
    unknown = [
        cells.percent(None), cells.gib(None, None), cells.memory(None), cells.watts(None),
        cells.power(None), cells.degrees(None), cells.energy(None), cells.megahertz(None),
        cells.age(None),
    ]  # fmt: skip
    assert set(unknown) == {"-"}
    assert cells.gib(None, 32 << 30) == "-/32"
    assert cells.watts(None, 300.0) == "-/300"
    assert cells.total([None, None]) is None
    assert cells.total([None, 1.5]) == 1.5


@pytest.mark.parametrize(
    ("joules", "shown"),
    [
        (0.0, "0 J"),
        (3599.0, "3599 J"),
        (3600.0, "1.00 Wh"),
        (360_000.0, "100 Wh"),
        (3.6e6, "1.00 kWh"),
        (4.2e8, "117 kWh"),
        (3.6e9, "1.00 MWh"),
    ],
)
def test_energy_has_the_unit_that_suits_it(joules: float, shown: str) -> None:
    assert cells.energy(joules) == shown


@given(st.floats(0, allow_nan=False, allow_infinity=False), st.integers(0, (1 << 63) - 1))
def test_no_number_is_too_large_to_be_shown(number: float, count: int) -> None:
    for text in (
        cells.power(number), cells.watts(number, number), cells.energy(number),
        cells.degrees(number), cells.megahertz(number), cells.age(number),
        cells.memory(count), cells.gib(count, count),
    ):  # fmt: skip
        assert text.isprintable()
    cells.total([number, number])
