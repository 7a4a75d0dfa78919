"""Parts of the accounting on their own: times, steps, holds, idle powers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.accounting import GpuUse, NodeUse, split_node_power
from eaco_telemetry.booking import EnergyOptions, JobHold, Steps, account, recordings_of
from eaco_telemetry.booking.holds import GpuHolds, merged_length
from eaco_telemetry.booking.idle import PowerTimes
from eaco_telemetry.booking.job_files import read_jobs, read_steps
from eaco_telemetry.booking.times import parse_time, show_time
from eaco_telemetry.samples import GpuSample, HostSample, NodeSample

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 01:00:00.5+01:00", 500_000_000),
        ("1796112000", 1_796_112_000 * S),
        (" 1796112000.000000001 ", 1_796_112_000 * S + 1),
        ("-1.5", -1_500_000_000),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, time_ns: int) -> None:
    assert parse_time(text) == time_ns


@pytest.mark.parametrize(
    "text", ["", "now", "2026-12-01T08:00:00", "1e9", "nan", "٣", "2026-02-30T00:00:00Z", "1" * 40]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("1796112000000", "milliseconds; .* 1796112000.000"),
        ("1796112000123.5", "milliseconds"),
        ("1796112000000000", "microseconds"),
        ("1796112000000000000", "nanoseconds"),
    ],
)
def test_a_time_in_a_smaller_unit_is_named(text: str, unit: str) -> None:
    with pytest.raises(InputError, match=f"looks like {unit}"):
        parse_time(text)


def test_powers_and_prices_that_overflow_are_refused() -> None:
    for name in ("server_w", "gpu_idle_w", "server_idle_w", "max_gap_s"):
        with pytest.raises(InputError, match=r"at most 1e\+09"):
            evolve(EnergyOptions(), **dict[str, Any]({name: 1e308}))
    samples = [
        NodeSample("n", "s", k, (100 + k) * S, k * S, (GpuSample("G", "nvidia", energy_j=9e9 * k),))
        for k in range(9)
    ]
    for price in (1.7e308, -1.7e308, 1e300):
        steps = Steps(((0, price), (104 * S, -price / 2)))
        with pytest.raises(InputError, match=r"the cost .* must be smaller"):
            account(recordings_of(samples), [JobHold("a", ("G",), 0)], EnergyOptions(tariff=steps))


@given(st.integers(0, 253_402_300_799))
def test_times_are_shown_as_they_are_read(second: int) -> None:
    assert parse_time(show_time(second * S).replace(" UTC", "+00:00")) == second * S


def test_a_time_beyond_the_calendar_is_shown_in_seconds() -> None:
    assert show_time(10**21) == "1000000000000 s"


def test_steps_hold_until_the_next_one() -> None:
    steps = Steps(((10, 1.0), (20, -2.0)))
    assert [steps.at(time) for time in (10, 19, 20, 10**30)] == [1.0, 1.0, -2.0, -2.0]
    with pytest.raises(InputError, match="before the first step"):
        steps.at(9)
    for bad in [(), ((2, 1.0), (1, 1.0)), ((1, 1.0), (1, 2.0)), ((1, float("nan")),)]:
        with pytest.raises(InputError):
            Steps(bad)


def test_prices_may_stand_in_any_order_but_not_twice(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("value,start,note\n2,20,x\n-1,10,\n\n", encoding="utf-8")
    assert read_steps(path, "tariff").steps == ((10 * S, -1.0), (20 * S, 2.0))
    for text, said in (
        ("start,value\n", "no line with a tariff"),
        ("start,value\n1,2\n1,3\n", "line 3: a line before"),
        ("start,value\n1,inf\n", "line 2: 'inf' is no number"),
        ("start,value\n,3\n", "line 2: there is no start"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_steps(path, "tariff")


def test_jobs_are_read_with_all_columns(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "\ufeffworkload,pids,end,start,job,gpu_ids,node,extra\r\n"
        'bert,"7; 8",,1.5,a,"GPU-1 ;GPU-2",box,?\r\n',
        encoding="utf-8",
    )
    assert read_jobs(path) == [
        JobHold(
            "a",
            ("GPU-1", "GPU-2"),
            1_500_000_000,
            None,
            node_id="box",
            workload="bert",
            pids=frozenset({7, 8}),
        )
    ]


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=5).map(
    lambda some: [(start, start + length) for start, length in some]
)


@given(st.dictionaries(st.sampled_from("abc"), spans), st.integers(-1, 71))
def test_residents_and_stretches_are_those_of_every_single_time(
    held: dict[str, list[tuple[int, int]]], time: int
) -> None:
    def here(at: int) -> tuple[str, ...]:
        return tuple(sorted(j for j, own in held.items() if any(a <= at < b for a, b in own)))

    holds = GpuHolds(held)
    assert holds.residents(time) == here(time)
    if not here(time):
        assert holds.stretch(time) is None
        return
    low = high = time
    while here(low - 1):
        low -= 1
    while here(high):
        high += 1
    assert holds.stretch(time) == (low, high)


@given(spans, st.integers(0, 70), st.integers(0, 70))
def test_merged_length_counts_each_time_once(
    some: list[tuple[int, int]], low: int, high: int
) -> None:
    covered = sum(any(a <= at < b for a, b in some) for at in range(low, high))
    assert merged_length(some, (low, high)) == covered


def test_holds_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="ends before it starts"):
        JobHold("a", ("G",), 2, 1)
    with pytest.raises(InputError, match="at least one GPU"):
        JobHold("a", (), 1)
    with pytest.raises(InputError, match="must not be empty"):
        JobHold("", ("G",), 1)
    with pytest.raises(InputError, match="rule"):
        EnergyOptions(rule="fair")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a wrong one


def test_idle_power_is_not_exceeded_in_a_tenth_of_the_time() -> None:
    times = PowerTimes()
    # A counter that stood still for one second of a hundred, and one second with two steps.
    times.add([0.0, 60.0, *[30.0] * 58, *[45.0] * 40], [S] * 100)
    assert times.idle(None).watts == 30.0
    assert times.idle(12.5).watts == 12.5
    assert PowerTimes().idle(None).source == "none"


ratios = st.none() | st.floats(0, 1)
watts = st.integers(0, 400).map(float)


@given(
    st.lists(st.tuples(watts, watts, st.sets(st.sampled_from("abc"))), min_size=1, max_size=4),
    watts,
    watts,
)
def test_one_interval_is_split_as_the_simulator_splits_it(
    gpus: list[tuple[float, float, set[str]]], server_idle_w: float, server_dynamic_w: float
) -> None:
    """The same node, once as watts for `split_node_power` and once as samples."""
    idle_w = min(gpu[0] for gpu in gpus)
    uses = tuple(
        GpuUse(idle_w, idle + active - idle_w, tuple(sorted(jobs))) for idle, active, jobs in gpus
    )
    wanted = split_node_power(NodeUse(server_idle_w, server_dynamic_w, uses))
    seconds = 20
    server_j = (server_idle_w + server_dynamic_w) * seconds
    samples = [
        NodeSample(
            "n",
            "s",
            k,
            100 * S + k * seconds * S,
            k * seconds * S,
            gpus=tuple(
                GpuSample(f"G{i}", "nvidia", energy_j=k * seconds * (idle + active))
                for i, (idle, active, _) in enumerate(gpus)
            ),
            host=HostSample(platform_energy_j=k * server_j),
        )
        for k in (0, 1)
    ]
    holds = [
        JobHold(job, (f"G{i}",), 0) for i, (_, _, jobs) in enumerate(gpus) for job in sorted(jobs)
    ]
    options = EnergyOptions(gpu_idle_w=idle_w, server_idle_w=server_idle_w)
    report = account(recordings_of(samples), holds, options)
    booked = {job.job_id: job.amount.energy_j / seconds for job in report.jobs}
    assert booked == pytest.approx(dict(wanted.jobs_w), rel=1e-9, abs=1e-9)
    assert report.idle.energy_j / seconds == pytest.approx(wanted.idle_w, abs=1e-9)
    assert report.unattributed.energy_j / seconds == pytest.approx(wanted.unattributed_w, abs=1e-9)
