"""Windowed statistics against brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.subscriber.stats import BUCKETS, LARGEST, SMALLEST, WindowStats

VALUES = st.one_of(
    st.floats(0, 1),
    st.floats(0, 1000),
    st.floats(-300, 300),
    st.floats(-LARGEST, LARGEST),
    st.sampled_from([0.0, 1.0, SMALLEST, LARGEST]),
)
STEPS = st.floats(-30, 60)
WINDOWS = st.sampled_from([0.5, 10.0, 60.0])


def _near(value: float, exact: float) -> bool:
    return abs(value - exact) <= 0.01 * abs(exact) + SMALLEST


@given(WINDOWS, st.lists(st.tuples(STEPS, VALUES), max_size=80), st.floats(0, 1))
def test_mean_peak_low_and_quantiles_are_those_of_the_values_in_the_window(
    window_s: float, steps: list[tuple[float, float]], q: float
) -> None:
    window = WindowStats(window_s)
    bucket_s = window_s / BUCKETS
    t_s, newest, kept = 1000.0, -math.inf, list[tuple[int, float]]()
    for step_s, value in steps:
        t_s += step_s
        window.add(t_s, value)
        number = math.floor(t_s / bucket_s)
        newest = max(newest, number)
        kept = [(n, v) for n, v in [*kept, (number, value)] if n >= newest - BUCKETS]
        values = sorted(v for _, v in kept)
        assert window.count == len(values)
        mean, peak, low, quantile = window.mean, window.peak, window.low, window.quantile(q)
        assert mean is not None
        assert quantile is not None
        scale = max(abs(v) for v in values)
        assert math.isclose(mean, math.fsum(values) / len(values), abs_tol=1e-9 * scale)
        assert (peak, low) == (values[-1], values[0])
        exact = values[max(1, math.ceil(q * len(values))) - 1]
        assert _near(quantile, exact)


@given(WINDOWS, st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_the_window_holds_all_of_its_length_and_at_most_a_twentieth_more(
    window_s: float, times: list[float]
) -> None:
    window = WindowStats(window_s)
    for t_s in sorted(times):
        window.add(t_s, 1.0)
    newest = max(times)
    assert window.count >= sum(1 for t_s in times if t_s > newest - window_s)
    most_s = window_s * (1 + 1 / BUCKETS) * (1 + 1e-9)
    assert window.count <= sum(1 for t_s in times if t_s >= newest - most_s)


def test_an_empty_window_says_nothing() -> None:
    window = WindowStats(60)
    assert (window.mean, window.peak, window.low, window.quantile(0.5)) == (None,) * 4
    window.add(0.0, 5.0)
    assert (window.mean, window.peak, window.low, window.quantile(0.5)) == (5.0,) * 4
    window.advance(1000.0)
    assert (window.count, window.mean, window.quantile(1)) == (0, None, None)


def test_a_value_that_is_too_old_is_left_out() -> None:
    window = WindowStats(60)
    window.add(1000.0, 1.0)
    window.add(900.0, 99.0)
    assert (window.count, window.peak) == (1, 1.0)
    window.add(950.0, 99.0)
    assert (window.count, window.peak) == (2, 99.0)


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    window = WindowStats(10)
    for n in range(50_000):
        window.add(n / 1000, float(n % 500))
    assert len(window._buckets) == BUCKETS + 1
    assert len(window._bins) <= 500
    for n in range(2000):
        window.add(50 + n, 10.0 ** (n % 40 - 15))
        window.add(50 + n, -(10.0 ** (n % 40 - 15)))
    assert len(window._bins) < 5600


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    window = WindowStats(60)
    with pytest.raises(InputError, match="finite"):
        window.add(0.0, value)
    with pytest.raises(InputError, match="finite"):
        window.add(value, 0.0)
    with pytest.raises(InputError, match="quantile"):
        window.quantile(value)
    with pytest.raises(InputError, match="window"):
        WindowStats(value)
