"""Counters of the hardware: what is not plainly possible is a re-base, never a spike."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.readers.counters import BusyMeter, Counter, EnergyMeter, Step

RANGE_UJ = 65_532_610_987
"""max_energy_range_uj of a server's package."""


def steps(counter: Counter, *readings: tuple[float, int]) -> list[tuple[Step, int | None]]:
    return [(a.step, a.delta) for a in (counter.feed(value, t_s) for t_s, value in readings)]


def test_a_counter_that_rises_gives_what_it_rose() -> None:
    counter = Counter(max_per_s=1000)
    assert steps(counter, (0, 500), (1, 700), (2, 700), (3, 1000)) == [
        (Step.FIRST, None),
        (Step.ROSE, 200),
        (Step.STILL, 0),
        (Step.ROSE, 300),
    ]
    assert (counter.total, counter.rebases) == (500, 0)


def test_a_fall_of_a_counter_without_a_range_is_a_reset() -> None:
    counter = Counter(max_per_s=1000)
    assert steps(counter, (0, 9000), (1, 9100), (2, 40), (3, 90)) == [
        (Step.FIRST, None),
        (Step.ROSE, 100),
        (Step.RESET, None),
        (Step.ROSE, 50),
    ]
    assert (counter.total, counter.rebases) == (150, 1)


def test_a_fall_of_a_counter_with_a_range_is_a_wrap_where_the_step_is_possible() -> None:
    counter = Counter(max_per_s=100, wraps_at=1000)
    assert steps(counter, (0, 980), (1, 20)) == [(Step.FIRST, None), (Step.WRAPPED, 40)]
    assert counter.total == 40


def test_a_fall_that_is_no_possible_wrap_is_a_reset() -> None:
    counter = Counter(max_per_s=100, wraps_at=1000)
    assert steps(counter, (0, 500), (1, 20)) == [(Step.FIRST, None), (Step.RESET, None)]
    assert (counter.total, counter.rebases) == (0, 1)


def test_after_a_gap_in_which_it_may_have_gone_round_a_step_says_nothing() -> None:
    counter = Counter(max_per_s=100, wraps_at=1000)
    assert steps(counter, (0, 100), (10, 150), (11, 160)) == [
        (Step.FIRST, None),
        (Step.TOO_LATE, None),
        (Step.ROSE, 10),
    ]


def test_a_jump_that_no_device_can_make_is_a_rebase_both_ways() -> None:
    """intel/xpumanager#130: down to almost nothing, and back up again."""
    counter = Counter(max_per_s=600)
    assert steps(counter, (0, 10**9), (1, 200), (2, 10**9 + 500), (3, 10**9 + 900)) == [
        (Step.FIRST, None),
        (Step.RESET, None),
        (Step.JUMPED, None),
        (Step.ROSE, 400),
    ]
    assert (counter.total, counter.rebases) == (400, 2)


def test_a_whole_update_of_a_counter_may_come_within_a_moment() -> None:
    counter = Counter(max_per_s=100)
    assert steps(counter, (0, 0), (0.001, 90)) == [(Step.FIRST, None), (Step.ROSE, 90)]


@pytest.mark.parametrize("value", [-1, 1000, 1 << 64])
def test_a_value_outside_of_the_range_changes_nothing(value: int) -> None:
    counter = Counter(max_per_s=100, wraps_at=1000)
    assert steps(counter, (0, 100), (1, value), (2, 150)) == [
        (Step.FIRST, None),
        (Step.IMPOSSIBLE, None),
        (Step.ROSE, 50),
    ]


def test_a_clock_that_stands_still_or_goes_back_gives_nothing_and_is_survived() -> None:
    counter = Counter(max_per_s=100)
    assert steps(counter, (5, 100), (5, 110), (1, 120), (2, 150)) == [
        (Step.FIRST, None),
        (Step.STALE, None),
        (Step.CLOCK_WENT_BACK, None),
        (Step.ROSE, 30),
    ]


def test_a_counter_that_was_away_starts_anew_and_keeps_its_total() -> None:
    counter = Counter(max_per_s=1000)
    steps(counter, (0, 100), (1, 200))
    counter.forget()
    assert steps(counter, (2, 900), (3, 950)) == [(Step.FIRST, None), (Step.ROSE, 50)]
    assert (counter.total, counter.rebases) == (150, 1)


@pytest.mark.parametrize(
    ("max_per_s", "wraps_at"), [(0.0, None), (math.nan, None), (math.inf, None), (1.0, 0)]
)
def test_a_counter_that_cannot_work_is_refused(max_per_s: float, wraps_at: int | None) -> None:
    with pytest.raises(InputError):
        Counter(max_per_s=max_per_s, wraps_at=wraps_at)


ANY_READINGS = st.lists(
    st.tuples(
        st.floats(-10, 1e6),
        st.integers(-5, 1 << 65) | st.integers(0, RANGE_UJ) | st.integers(0, 1000),
    ),
    max_size=30,
)


@given(readings=ANY_READINGS, wraps_at=st.none() | st.just(RANGE_UJ) | st.just(1000))
def test_no_readings_make_a_counter_fall_or_run_faster_than_its_device(
    readings: list[tuple[float, int]], wraps_at: int | None
) -> None:
    counter, max_per_s = Counter(max_per_s=1000, wraps_at=wraps_at), 1000
    passed_s, moves = 0.0, 0
    for t_s, value in readings:
        before = counter.total
        advance = counter.feed(value, t_s)
        assert counter.total - before == (advance.delta or 0)
        assert (advance.delta is None) == (advance.reason is not None)
        if advance.delta is not None:
            assert 0 <= advance.delta <= max_per_s * max(1.0, advance.dt_s)
            passed_s, moves = passed_s + advance.dt_s, moves + 1
    assert 0 <= counter.total <= max_per_s * (passed_s + moves)


@given(
    start=st.integers(0, RANGE_UJ - 1),
    rises=st.lists(st.integers(0, 900_000_000), min_size=1, max_size=200),
)
def test_a_wrapping_counter_read_every_second_loses_not_one_count(
    start: int, rises: list[int]
) -> None:
    counter = Counter(max_per_s=1e9, wraps_at=RANGE_UJ)
    true = start
    counter.feed(true, 0.0)
    for t_s, rise in enumerate(rises, start=1):
        true += rise
        counter.feed(true % RANGE_UJ, float(t_s))
    assert (counter.total, counter.rebases) == (sum(rises), 0)


# ------------------------------------------------------------------ joules and watts


def test_an_energy_counter_gives_joules_and_watts() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=1000)
    first = meter.feed(5_000_000, 10.0)
    assert (first.total_j, first.power_w, first.rebased) == (0.0, None, False)
    second = meter.feed(155_000_000, 11.0)
    assert (second.total_j, second.power_w, second.reason) == (150.0, 150.0, None)


def test_a_wrap_of_an_energy_counter_is_neither_a_spike_nor_a_loss() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=1000, wraps_at=RANGE_UJ)
    meter.feed(RANGE_UJ - 100_000_000, 0.0)
    after = meter.feed(20_000_000, 1.0)
    assert after.total_j == pytest.approx(120)
    assert after.power_w == pytest.approx(120)


def test_an_energy_meter_that_resets_or_jumps_goes_on_from_there() -> None:
    meter = EnergyMeter(unit_j=1.0, max_w=1000)
    raw = [5000, 5100, 200, 260, 3_690_000_000_000, 3_690_000_000_050]
    seen = [meter.feed(value, float(second)) for second, value in enumerate(raw)]
    assert [one.total_j for one in seen] == [0, 100, 100, 160, 160, 210]
    assert [one.rebased for one in seen] == [False, False, True, False, True, False]


def test_an_energy_meter_that_wraps_goes_on_over_its_range() -> None:
    meter = EnergyMeter(unit_j=1.0, max_w=900, wraps_at=1000)
    meter.feed(950, 0.0)
    over = meter.feed(30, 1.0)
    assert (over.total_j, over.rebased) == (80, False)


def test_the_most_that_a_device_can_draw_may_change() -> None:
    meter = EnergyMeter(unit_j=1.0, max_w=100)
    meter.feed(0, 0.0)
    assert meter.feed(300, 1.0).rebased
    meter.limit(400)
    assert meter.feed(600, 2.0).total_j == 300
    with pytest.raises(InputError):
        meter.limit(0)


def test_power_from_energy_waits_for_a_window_in_which_it_rose() -> None:
    meter = EnergyMeter(unit_j=1.0, max_w=1000)
    readings = [(0, 0.0), (5, 0.05), (25, 0.25), (25, 0.5), (50, 0.75)]
    powers = [meter.feed(value, t_s).power_w for value, t_s in readings]
    assert powers == [None, None, 100.0, 100.0, 50.0]


def test_no_power_is_taken_over_less_than_a_tenth_of_a_second() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=1000)
    meter.feed(0, 0.0)
    assert meter.feed(9_000_000, 0.01).power_w is None
    late = meter.feed(20_000_000, 0.2)
    assert late.total_j == 20.0
    assert late.power_w == pytest.approx(100)


def test_a_counter_between_two_updates_is_not_zero_watts() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=1000)
    meter.feed(0, 0.0)
    meter.feed(50_000_000, 1.0)
    assert meter.feed(50_000_000, 1.5).power_w == 50.0
    assert meter.feed(100_000_000, 2.0).power_w == 50.0


def test_a_frozen_counter_gives_no_power_and_says_so() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=1000)
    meter.feed(0, 0.0)
    meter.feed(50_000_000, 1.0)
    frozen = meter.feed(50_000_000, 6.5)
    assert (frozen.total_j, frozen.power_w) == (50.0, None)
    assert frozen.reason == "the energy counter stood still for 5.5 s"
    thawed = meter.feed(105_000_000, 7.5)
    assert thawed.total_j == 105.0
    assert thawed.power_w == pytest.approx(55 / 6.5)


def test_a_glitch_of_an_energy_counter_never_shows_as_power() -> None:
    """intel/xpumanager#130, compute-runtime#938: 3.69 TW."""
    meter = EnergyMeter(unit_j=1e-6, max_w=2000)
    raw = [900_000_000_000, 900_100_000_000, 200_000_000, 900_300_000_000, 900_400_000_000]
    seen = [meter.feed(value, float(t_s)) for t_s, value in enumerate(raw)]
    assert [one.power_w for one in seen] == [None, 100.0, None, None, 100.0]
    assert [one.rebased for one in seen] == [False, False, True, True, False]
    assert seen[-1].total_j == 200.0


def test_a_reading_that_cannot_be_is_as_if_not_read_and_loses_nothing() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=1000, wraps_at=RANGE_UJ)
    meter.feed(0, 0.0)
    meter.feed(50_000_000, 1.0)
    odd = meter.feed(RANGE_UJ + 7, 2.0)
    assert (odd.total_j, odd.power_w, odd.rebased) == (50.0, None, False)
    assert odd.reason == "the counter holds a value outside of its range"
    after = meter.feed(250_000_000, 3.0)
    assert (after.total_j, after.power_w) == (250.0, 100.0)


def test_two_reads_at_one_time_keep_the_power() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=2000)
    meter.feed(0, 0.0)
    meter.feed(50_000_000, 1.0)
    assert meter.feed(50_000_000, 1.0).power_w == 50.0


def test_an_energy_meter_that_was_away_keeps_its_joules() -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=2000)
    meter.feed(0, 0.0)
    meter.feed(50_000_000, 1.0)
    meter.forget()
    back = meter.feed(7_000_000_000, 100.0)
    assert (back.total_j, back.power_w) == (50.0, None)


@given(readings=ANY_READINGS)
def test_no_readings_make_joules_fall_or_watts_absurd(readings: list[tuple[float, int]]) -> None:
    meter = EnergyMeter(unit_j=1e-6, max_w=500, wraps_at=RANGE_UJ)
    seen = [meter.feed(value, t_s) for t_s, value in readings]
    assert all(a.total_j <= b.total_j for a, b in pairwise(seen))
    # A whole second of energy may show up within the shortest window.
    assert all(one.power_w is None or 0 < one.power_w <= 500 * 1.0 / 0.1 for one in seen)
    assert all((one.power_w is None) == (one.reason is not None) for one in seen)


# ------------------------------------------------------------------------- busy time


def test_a_busy_counter_gives_the_ratio_of_what_passed() -> None:
    meter = BusyMeter()
    assert meter.feed(1_000, 0) is None
    assert meter.feed(1_250, 1_000) == 0.25
    assert meter.feed(1_250, 2_000) == 0.0


def test_a_busy_counter_that_is_a_little_early_is_fully_busy() -> None:
    meter = BusyMeter()
    meter.feed(0, 0)
    assert meter.feed(1_040, 1_000) == 1.0


def test_an_impossible_busy_time_is_dropped_and_not_shown_as_full() -> None:
    meter = BusyMeter()
    meter.feed(0, 0)
    assert meter.feed(4_294_967_295, 1_000) is None


def test_a_busy_counter_may_dip_and_catch_up() -> None:
    meter = BusyMeter()
    ratios = [meter.feed(b, p) for b, p in [(0, 0), (500, 1000), (100, 2000), (700, 3000)]]
    assert ratios == [None, 0.5, 0.0, 0.2]


def test_what_passed_may_start_anew() -> None:
    meter = BusyMeter()
    assert [meter.feed(b, p) for b, p in [(900, 1000), (10, 50), (30, 100), (30, 100)]] == [
        None,
        None,
        0.4,
        None,
    ]


@given(st.lists(st.tuples(st.integers(0, 1 << 64), st.integers(0, 1 << 64)), max_size=30))
def test_a_busy_ratio_is_from_0_to_1(readings: list[tuple[int, int]]) -> None:
    meter = BusyMeter()
    ratios = [meter.feed(busy, passed) for busy, passed in readings]
    assert all(ratio is None or 0 <= ratio <= 1 for ratio in ratios)
