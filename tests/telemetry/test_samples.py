"""Samples: what they refuse, what they explain, and what the core gets from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from attrs import fields

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import PowerIntegral, percent_to_ratio
from eaco_telemetry.samples import (
    PARTIAL_PROCESSES,
    SCHEMA,
    DeviceState,
    GpuSample,
    HostSample,
    Moment,
    NodeSample,
    ProcessSample,
    node_readings,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _gpu(gpu_id: str = "GPU-a", **values: Any) -> GpuSample:  # noqa: ANN401 - any field
    return GpuSample(gpu_id=gpu_id, vendor="nvidia", **values)


def _node(*gpus: GpuSample) -> NodeSample:
    return NodeSample("n1", "s1", seq=0, wall_ns=1, monotonic_ns=2, gpus=gpus)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("util_ratio", 1.01),
        ("util_ratio", -0.1),
        ("util_ratio", math.nan),
        ("mem_used_bytes", 1.5),
        ("mem_used_bytes", -1),
        ("mem_used_bytes", True),
        ("power_w", math.inf),
        ("power_w", "12"),
        ("energy_j", -0.001),
        ("temperature_c", -300),
        ("gpu_id", ""),
        ("rejected", -1),
        ("rejected", None),
        ("power_w", True),
        ("energy_j", math.nan),
        ("util_ratio", 2),
        ("temperature_c", math.nan),
        ("temperature_c", "45"),
    ],
)
def test_an_impossible_value_is_refused_by_name(name: str, value: object) -> None:
    values: dict[str, Any] = {"gpu_id": "GPU-a", "vendor": "nvidia", name: value}
    with pytest.raises(InputError, match=f"GpuSample.{name}"):
        GpuSample(**values)


def test_whole_numbers_are_fine_where_a_measure_is_wanted() -> None:
    gpu = _gpu(util_ratio=1, power_w=0, temperature_c=-5, energy_j=7, mem_used_bytes=0)
    assert (gpu.util_ratio, gpu.power_w, gpu.temperature_c) == (1, 0, -5)


def test_every_number_of_a_sample_is_checked() -> None:
    """Each measured number refuses a negative one, so none was left without a validator."""
    makers: tuple[tuple[type, Callable[..., object]], ...] = (
        (GpuSample, _gpu),
        (HostSample, HostSample),
    )
    for cls, make in makers:
        numbers = [
            one.name
            for one in fields(cls)
            if one.metadata.get("measured") and one.name not in {"throttle", "processes"}
        ]
        assert len(numbers) >= 10
        for name in numbers:
            values: dict[str, Any] = {name: -1000}
            with pytest.raises(InputError, match=name):
                make(**values)


def test_a_none_without_a_reason_is_found() -> None:
    gpu = _gpu(util_ratio=0.0, missing={"power_w": "not supported"})
    assert "mem_used_bytes" in gpu.unexplained
    assert not {"util_ratio", "power_w"} & set(gpu.unexplained)
    assert "cpu_util_ratio" in HostSample().unexplained


def test_the_core_gets_what_was_measured_and_none_for_the_rest() -> None:
    sample = _node(_gpu(util_ratio=0.5, power_w=71.5), _gpu("GPU-b"))
    first, second = node_readings(sample, received_s=9.0)
    assert (first.gpu_id, first.received_s, first.util_ratio, first.power_w) == (
        "GPU-a",
        9.0,
        0.5,
        71.5,
    )
    assert (second.util_ratio, second.mem_busy_ratio, second.mem_used_bytes, second.power_w) == (
        None,
        None,
        None,
        None,
    )


def test_a_gpu_that_is_split_or_lost_gives_no_reading() -> None:
    sample = _node(
        _gpu("GPU-a"), _gpu("MIG-1", parent_id="GPU-a"), _gpu("GPU-c", state=DeviceState.LOST)
    )
    assert [reading.gpu_id for reading in node_readings(sample, 0.0)] == ["MIG-1"]


@pytest.mark.parametrize(
    ("pids", "own", "foreign"),
    [
        ((7,), None, None),
        (None, (7,), None),
        ((), (7,), False),
        ((7,), (7, 8), False),
        ((7, 9), (7,), True),
    ],
)
def test_a_foreign_process_is_reported_only_where_processes_are_known(
    pids: tuple[int, ...] | None, own: tuple[int, ...] | None, *, foreign: bool | None
) -> None:
    processes = None if pids is None else tuple(ProcessSample(pid) for pid in pids)
    (reading,) = node_readings(_node(_gpu(processes=processes)), 0.0, own_pids=own)
    assert reading.foreign is foreign


@pytest.mark.parametrize(("pids", "foreign"), [((7,), None), ((), None), ((7, 9), True)])
def test_a_list_that_may_lack_some_processes_proves_no_absence(
    pids: tuple[int, ...], *, foreign: bool | None
) -> None:
    processes = tuple(ProcessSample(pid) for pid in pids)
    gpu = _gpu(processes=processes, flags=(PARTIAL_PROCESSES,))
    (reading,) = node_readings(_node(gpu), 0.0, own_pids=(7,))
    assert reading.foreign is foreign


def test_a_sample_names_its_schema_and_a_moment_both_clocks() -> None:
    assert _node().schema == SCHEMA == "eaco.sample/1"
    first, second = Moment.now(), Moment.now()
    assert first.monotonic_ns <= second.monotonic_ns
    assert first.wall_ns > 1_600_000_000_000_000_000


def test_per_cent_outside_its_range_is_no_ratio() -> None:
    assert (percent_to_ratio(0), percent_to_ratio(100), percent_to_ratio(37.5)) == (0.0, 1.0, 0.375)
    for wrong in (-1, 101, 808_334_905, 4_294_967_295, math.nan, math.inf):
        assert percent_to_ratio(wrong) is None


def test_power_is_summed_by_trapezoid_and_not_over_a_gap() -> None:
    integral = PowerIntegral(max_gap_s=10)
    assert integral.add(100.0, 0.0) == 0.0
    assert integral.add(200.0, 2.0) == 300.0
    assert integral.add(None, 3.0) == 300.0
    assert integral.add(200.0, 4.0) == 300.0, "the power between is not known"
    assert integral.add(200.0, 100.0) == 300.0, "too long ago"
