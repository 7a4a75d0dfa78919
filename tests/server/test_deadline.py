"""Deadlines as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_adapters.server.deadline import format_wall, parse_deadline
from eaco_core.errors import InputError

NOW_S = 1_900_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("in 6h", 21_600),
        ("in 1d 12h", 129_600),
        ("in 1.5h", 5_400),
        ("In 90m", 5_400),
        ("in 90min", 5_400),
        ("in 1h30m15s", 5_415),
        (" in 5 s ", 5),
        ("2030-03-17T17:46:41Z", 1),
        ("2030-03-17T19:46:41+02:00", 1),
    ],
)
def test_what_people_write(text: str, seconds: float) -> None:
    assert parse_deadline(text, NOW_S) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cannot be read"),
        ("in", "cannot be read"),
        ("in ", "names no time|cannot be read"),
        ("in six hours", "cannot be read at 'six hours'"),
        ("in -1h", "cannot be read"),
        ("in \u0663h", "cannot be read"),  # digits that are digits elsewhere
        ("in 0s", "has passed"),
        ("in 99999d", "ten years"),
        ("in 1h 5", "cannot be read at '5'"),
        ("2030-03-17T17:46:41", "no zone"),
        ("2030-03-17T17:46:40Z", "has passed"),
        ("2001-01-01T00:00:00Z", "has passed"),
        ("tomorrow", 'write "in 6h"'),
        ("0001-01-01T00:00:00+23:59", "cannot be read|has passed"),
    ],
)
def test_what_is_no_deadline(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse_deadline(text, NOW_S)


@given(st.text(max_size=30) | st.from_regex(r"in [0-9dhms .]{0,12}", fullmatch=True))
def test_any_text_is_a_deadline_or_one_sentence(text: str) -> None:
    try:
        seconds = parse_deadline(text, NOW_S)
    except InputError:
        return
    assert 0 < seconds < 1e9


def test_a_wall_time_is_written_in_utc() -> None:
    assert format_wall(NOW_S) == "2030-03-17T17:46:40Z"
    assert parse_deadline(format_wall(NOW_S + 60), NOW_S) == pytest.approx(60)
