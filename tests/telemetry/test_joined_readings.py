"""One device seen by several readers: nothing is lost, nothing is counted twice."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from eaco_telemetry.readers.base import (
    NOT_READ_HERE,
    Reading,
    joined_gpu,
    joined_host,
    node_sample,
    without_values,
)
from eaco_telemetry.samples import (
    DeviceState,
    EnergyKind,
    GpuSample,
    HostSample,
    Moment,
    NodeSample,
    PowerKind,
)

NUMBERS = ("util_ratio", "power_w", "energy_j", "integrated_j", "temperature_c", "sm_active_ratio")
MEASURED = [one.name for one in fields(GpuSample) if one.metadata.get("measured")]


@st.composite
def gpus(draw: st.DrawFn) -> GpuSample:
    """A GPU as a reader gives it: each value, or the reason for its absence."""
    given_names = draw(st.sets(st.sampled_from(NUMBERS)))
    values: dict[str, Any] = {name: draw(st.sampled_from([0.0, 0.5, 1.0])) for name in given_names}
    able = draw(st.sets(st.sampled_from(NUMBERS))) | given_names
    reason = draw(st.sampled_from(["not supported", NOT_READ_HERE, "needs root"]))
    return GpuSample(
        gpu_id="G",
        vendor="v",
        state=draw(st.sampled_from(list(DeviceState))),
        power_kind=PowerKind.AVERAGE if "power_w" in values else None,
        energy_kind=EnergyKind.COUNTER if "energy_j" in values else None,
        missing={name: reason for name in MEASURED if name not in values},
        capabilities=tuple(sorted(able)),
        flags=tuple(sorted(draw(st.sets(st.sampled_from(["energy_rebased", "persistence_off"]))))),
        **values,
    )


@given(first=gpus(), second=gpus())
def test_what_is_joined_keeps_the_first_and_explains_the_rest(
    first: GpuSample, second: GpuSample
) -> None:
    both = joined_gpu(first, second)
    assert both.unexplained == ()
    for name in MEASURED:
        mine, theirs, now = (getattr(one, name) for one in (first, second, both))
        assert now == (mine if mine is not None else now)
        assert now is None or now in (mine, theirs)
        assert (name in both.missing) == (now is None)
    assert (both.power_w is None) == (both.power_kind is None)
    assert (both.energy_j is None) == (both.energy_kind is None)
    if first.state is not DeviceState.ACTIVE:
        assert both == first
    if "energy_j" in first.capabilities:
        assert both.energy_j == first.energy_j


@given(sample=gpus())
def test_to_join_nothing_changes_nothing(sample: GpuSample) -> None:
    nothing = without_values(evolve(sample, capabilities=(), rejected=0), NOT_READ_HERE)
    assert joined_gpu(sample, nothing) == sample


def joined(**readings: Reading) -> NodeSample:
    return node_sample(readings, node_id="n", session_id="s", seq=0, now=Moment(1, 1))


def test_the_better_reason_stays() -> None:
    plug = HostSample(missing={"dram_power_w": NOT_READ_HERE, "node_power_w": "offline"})
    host = HostSample(missing={"dram_power_w": "needs root", "node_power_w": NOT_READ_HERE})
    for both in (joined_host(plug, host), joined_host(host, plug)):
        assert both.missing["dram_power_w"] == "needs root"
        assert both.missing["node_power_w"] == "offline"


def test_a_gpu_is_one_by_its_place_whatever_the_readers_call_it() -> None:
    by_files = GpuSample("GPU-1", "amd", pci_bdf="0000:03:00.0", power_w=5.0)
    by_library = GpuSample("pci:n/0000:03:00.0", "amd", pci_bdf="0000:03:00.0", ecc_uncorrected=2)
    sample = joined(amd=Reading(gpus=(by_files,)), amdsmi=Reading(gpus=(by_library,)))
    assert [(gpu.gpu_id, gpu.power_w, gpu.ecc_uncorrected) for gpu in sample.gpus] == [
        ("GPU-1", 5.0, 2)
    ]


def test_what_one_reader_tells_apart_stays_apart() -> None:
    tiles = tuple(GpuSample(f"G{tile}", "v", pci_bdf="0000:03:00.0") for tile in range(2))
    sample = joined(a=Reading(gpus=tiles), b=Reading(gpus=tiles))
    assert [gpu.gpu_id for gpu in sample.gpus] == ["G0", "G1"]


@pytest.mark.parametrize("state", [DeviceState.ASLEEP, DeviceState.LOST])
def test_a_gpu_that_is_away_gets_no_values_from_elsewhere(state: DeviceState) -> None:
    away = GpuSample("G", "v", state=state, missing=dict.fromkeys(MEASURED, "away"))
    other = GpuSample("G", "v", power_w=5.0, energy_j=1.0)
    assert joined(nvml=Reading(gpus=(away,)), dcgm=Reading(gpus=(other,))).gpus == (away,)
