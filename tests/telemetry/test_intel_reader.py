"""Intel GPUs from files: joules from a counter that lies, and use only where all is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import Reader, Reading
from eaco_telemetry.readers.intel import IntelReader
from eaco_telemetry.samples import (
    DeviceState,
    EnergyKind,
    GpuSample,
    MemoryKind,
    Moment,
    PowerKind,
    ProcessSample,
)
from eaco_telemetry.testing.trees import Tree, failing, i915_fdinfo, xe_fdinfo

if TYPE_CHECKING:
    from pathlib import Path

BDF = "0000:03:00.0"
INTEGRATED_BDF = "0000:00:02.0"
S = 10**9

XE_SENSORS: dict[str, str | bytes | int] = {
    "energy1_input": 81_000_000_000,
    "energy1_label": "card",
    "energy2_input": 61_000_000_000,
    "energy2_label": "pkg",
    "power1_max": 190_000_000,
    "power2_max": 150_000_000,
    "temp2_input": 47_000,
    "temp2_label": "pkg",
    "temp3_input": 52_000,
    "temp3_label": "vram",
}
XE_FILES: dict[str, str | bytes | int] = {
    "vendor": "0x8086",
    "tile0/gt0/freq0/act_freq": 2400,
    "tile0/gt0/freq0/throttle/status": 1,
    "tile0/gt0/freq0/throttle/reason_pl1": 1,
    "tile0/gt0/freq0/throttle/reason_thermal": 0,
}
ENERGY = "hwmon/hwmon5/energy1_input"


def at(t_s: float) -> Moment:
    return Moment(wall_ns=0, monotonic_ns=round(t_s * 1e9))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.kernel_threads()
    tree.write("/proc/sys/kernel/osrelease", "6.14.0-29-generic")
    return tree


def add_xe(tree: Tree, number: int = 0, bdf: str = BDF) -> str:
    device = tree.card(number, bdf, "xe", XE_FILES)
    tree.hwmon(device, 5, "xe", XE_SENSORS)
    return device


def add_i915(tree: Tree) -> str:
    device = tree.card(0, BDF, "i915", {"vendor": "0x8086"})
    tree.hwmon(device, 5, "i915", {"energy1_input": 7_000_000, "power1_max": 0})
    # The sensors of a tile stand beside those of the card.
    tree.hwmon(device, 4, "i915_gt0", {"energy1_input": 5_000_000_000})
    tree.write(f"{device}/drm/card0/gt/gt0/rps_act_freq_mhz", 1550)
    tree.write(f"{device}/drm/card0/gt/gt0/throttle_reason_status", 1)
    tree.write(f"{device}/drm/card0/gt/gt0/throttle_reason_pl4", 1)
    return device


def opened(tree: Tree) -> IntelReader:
    reader = IntelReader("edge1", root=tree.root)
    reader.open()
    return reader


def one(reading: Reading) -> GpuSample:
    (gpu,) = reading.gpus
    assert gpu.unexplained == ()
    return gpu


def test_a_card_under_xe_gives_what_its_files_hold(tree: Tree) -> None:
    device = add_xe(tree)
    reader = opened(tree)
    assert isinstance(reader, Reader)
    assert "power_w" in reader.capabilities[f"pci:edge1/{BDF}"]
    first = one(reader.read(at(1)))
    assert (first.power_w, first.energy_j) == (None, 0)
    tree.write(f"{device}/{ENERGY}", 81_240_000_000)
    gpu = one(reader.read(at(3)))
    assert (gpu.gpu_id, gpu.vendor, gpu.pci_bdf) == (f"pci:edge1/{BDF}", "intel", BDF)
    assert (gpu.power_w, gpu.power_kind) == (120, PowerKind.INTEGRATED)
    assert (gpu.energy_j, gpu.energy_kind) == (240, EnergyKind.COUNTER)
    assert (gpu.temperature_c, gpu.mem_temperature_c) == (47, 52)
    assert (gpu.clock_sm_hz, gpu.power_limit_w) == (2.4e9, 190)
    assert gpu.throttle == ("pl1",)
    assert gpu.mem_kind is MemoryKind.DEDICATED


def test_under_i915_only_the_sensors_of_the_whole_card_count(tree: Tree) -> None:
    """i915 shows a counter for the card and one for each tile, which is a part of it."""
    device = add_i915(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/{ENERGY}", 97_000_000)
    tree.write(f"{device}/hwmon/hwmon4/energy1_input", 5_060_000_000)
    gpu = one(reader.read(at(2)))
    assert (gpu.power_w, gpu.energy_j) == (90, 90)
    assert (gpu.clock_sm_hz, gpu.throttle) == (1.55e9, ("pl4",))
    assert gpu.missing["power_limit_w"] == "no limit is set"


def test_the_counter_of_the_chip_alone_is_flagged(tree: Tree) -> None:
    device = add_xe(tree)
    tree.remove(f"{device}/{ENERGY}")
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.energy_j, gpu.flags[0]) == (0, "energy_without_board")


def test_a_counter_that_drops_and_jumps_is_a_rebase_and_never_terawatts(tree: Tree) -> None:
    """intel/xpumanager#130, compute-runtime#938: 3.69 TW from an unsigned difference."""
    device = add_xe(tree)
    reader = opened(tree)
    raw = (81_000_000_000, 81_100_000_000, 200_000_000, 81_300_000_000, 81_400_000_000)
    seen: list[GpuSample] = []
    for t_s, value in enumerate(raw):
        tree.write(f"{device}/{ENERGY}", value)
        seen.append(one(reader.read(at(t_s + 1))))
    assert [gpu.power_w for gpu in seen] == [None, 100, None, None, 100]
    assert [gpu.energy_j for gpu in seen] == [0, 100, 100, 100, 200]
    assert ["energy_rebased" in gpu.flags for gpu in seen] == [False, False, True, True, False]
    assert seen[-1].rejected == 2


def test_a_frozen_counter_is_not_zero_watts(tree: Tree) -> None:
    device = add_xe(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/{ENERGY}", 81_100_000_000)
    assert one(reader.read(at(2))).power_w == 100
    assert one(reader.read(at(3))).power_w == 100
    frozen = one(reader.read(at(9)))
    assert frozen.power_w is None
    assert frozen.missing["power_w"] == "the energy counter stood still for 7.0 s"


@pytest.mark.parametrize("content", ["", "N/A", "-5", "1e9", "9" * 30, "\x00"])
def test_nonsense_in_the_counter_is_none_and_survived(tree: Tree, content: str) -> None:
    device = add_xe(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/{ENERGY}", content)
    tree.remove(f"{device}/hwmon/hwmon5/energy2_input")
    gpu = one(reader.read(at(2)))
    assert (gpu.power_w, gpu.energy_j) == (None, None)
    tree.write(f"{device}/{ENERGY}", 81_100_000_000)
    assert one(reader.read(at(3))).energy_j == 100


def test_a_forbidden_counter_says_what_root_would_add(tree: Tree) -> None:
    device = add_i915(tree)
    with failing(tree.root / device.lstrip("/") / ENERGY):
        gpu = one(opened(tree).read(at(1)))
    assert gpu.missing["power_w"] == (
        "no permission to read energy1_input; root rights would add it"
    )


def test_an_integrated_gpu_has_no_joules_and_the_memory_of_the_node(tree: Tree) -> None:
    """compute-runtime#925; unified memory must not be added to that of the host."""
    tree.card(0, INTEGRATED_BDF, "i915", {"vendor": "0x8086"})
    tree.meminfo(16_000_000, 9_000_000)
    tree.process(50, "python")
    tree.open_gpu(50, 4, i915_fdinfo(INTEGRATED_BDF, 1, render_ns=0))
    gpu = one(opened(tree).read(at(1)))
    assert gpu.mem_kind is MemoryKind.UNIFIED
    assert (gpu.mem_total_bytes, gpu.mem_used_bytes) == (16_000_000 << 10, 36864 << 10)
    assert gpu.missing["power_w"] == "no counter of energy: integrated GPUs have none"
    assert gpu.missing["temperature_c"] == "no sensors (hwmon) for this card"


def test_with_all_processes_in_sight_the_use_adds_up(tree: Tree) -> None:
    add_xe(tree)
    for pid in (50, 51):
        tree.process(pid, f"job{pid}")
        tree.open_gpu(pid, 4, xe_fdinfo(BDF, pid, rcs=1000, ccs=0, total=10_000))
    reader = opened(tree)
    assert (
        one(reader.read(at(1))).missing["util_ratio"] == "no process told its busy time twice yet"
    )
    tree.open_gpu(50, 4, xe_fdinfo(BDF, 50, rcs=4000, ccs=0, total=20_000))
    tree.open_gpu(51, 4, xe_fdinfo(BDF, 51, rcs=2500, ccs=0, total=20_000))
    gpu = one(reader.read(at(2)))
    assert gpu.util_ratio == pytest.approx(0.45)
    assert gpu.processes == (
        ProcessSample(50, "job50", 0.3, 23992 << 10),
        ProcessSample(51, "job51", 0.15, 23992 << 10),
    )
    assert gpu.mem_used_bytes == 2 * 23992 << 10
    assert gpu.flags == ("mem_used_from_processes",)


def test_without_root_a_part_of_the_processes_is_no_utilisation(tree: Tree) -> None:
    """What own processes do is a lower bound; shown as the whole it would invite others."""
    add_xe(tree)
    tree.process(1, "systemd")
    tree.process(50, "mine")
    tree.open_gpu(50, 4, xe_fdinfo(BDF, 50, rcs=0, ccs=0, total=0))
    reader = opened(tree)
    with failing(tree.root / "proc/1/fd"):
        reader.read(at(1))
        tree.open_gpu(50, 4, xe_fdinfo(BDF, 50, rcs=500, ccs=0, total=1000))
        gpu = one(reader.read(at(2)))
    assert (gpu.util_ratio, gpu.mem_used_bytes) == (None, None)
    assert gpu.missing["util_ratio"].endswith("root rights would add the others")
    assert gpu.processes == (ProcessSample(50, "mine", 0.5, 23992 << 10),)
    assert "processes_partial" in gpu.flags


@pytest.mark.parametrize(
    ("release", "util_ratio"),
    [("6.14.0-29-generic", 0.0), ("6.11.0", 0.0), ("6.8.0-40", None), ("?", None)],
)
def test_no_clients_mean_idle_only_on_a_kernel_that_would_show_them(
    tree: Tree, release: str, util_ratio: float | None
) -> None:
    tree.write("/proc/sys/kernel/osrelease", release)
    add_xe(tree)
    reader = opened(tree)
    reader.read(at(1))
    gpu = one(reader.read(at(2)))
    assert (gpu.util_ratio, gpu.processes) == (util_ratio, ())


def test_a_sleeping_card_is_left_alone_and_its_counter_goes_on(tree: Tree) -> None:
    device = add_xe(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/power/runtime_status", "suspended")
    with failing(tree.root / device.lstrip("/") / "hwmon") as tried:
        asleep = reader.read(at(2))
    assert (tried, one(asleep).state) == ([], DeviceState.ASLEEP)
    tree.write(f"{device}/power/runtime_status", "active")
    tree.write(f"{device}/{ENERGY}", 81_003_000_000)
    assert one(reader.read(at(3))).energy_j == 3


def test_a_card_that_was_away_starts_its_counter_anew(tree: Tree) -> None:
    device = add_xe(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.unplug(0, device)
    assert one(reader.read(at(2))).state is DeviceState.LOST
    device = add_xe(tree)
    tree.write(f"{device}/{ENERGY}", 81_000_500_000)
    back = one(reader.read(at(3)))
    assert (back.state, back.energy_j) == (DeviceState.ACTIVE, 0)


def test_joules_count_from_open(tree: Tree) -> None:
    device = add_xe(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/{ENERGY}", 81_100_000_000)
    assert one(reader.read(at(2))).energy_j == 100
    reader.close()
    reader.open()
    assert one(reader.read(at(3))).energy_j == 0


def test_cards_of_two_drivers_are_read_side_by_side(tree: Tree) -> None:
    tree.card(0, INTEGRATED_BDF, "i915", {"vendor": "0x8086"})
    add_xe(tree, 1)
    tree.card(2, "0000:83:00.0", "amdgpu", {"vendor": "0x1002"})
    ids = [gpu.gpu_id for gpu in opened(tree).read(at(1)).gpus]
    assert ids == [f"pci:edge1/{INTEGRATED_BDF}", f"pci:edge1/{BDF}"]


def test_without_an_intel_gpu_there_is_nothing_to_open(tree: Tree) -> None:
    with pytest.raises(EnvironmentFault, match="no GPU for the reader intel"):
        opened(tree)


FILES = sorted({*XE_FILES, *(f"hwmon/hwmon5/{name}" for name in XE_SENSORS), "hwmon/hwmon5/name"})


@settings(max_examples=40)
@given(
    changes=st.dictionaries(st.sampled_from(FILES), st.binary(max_size=40), max_size=8),
    numbers=st.dictionaries(
        st.sampled_from(FILES),
        st.integers(-(1 << 70), 1 << 70).map(lambda n: b"%d" % n),
        max_size=8,
    ),
    fdinfo=st.binary(max_size=60),
)
def test_no_content_of_any_file_makes_a_reader_raise(
    tmp_path_factory: pytest.TempPathFactory,
    changes: dict[str, bytes],
    numbers: dict[str, bytes],
    fdinfo: bytes,
) -> None:
    tree = Tree(tmp_path_factory.mktemp("intel"))
    device = add_xe(tree)
    tree.process(50, "job")
    tree.open_gpu(50, 4, b"drm-driver: xe\ndrm-pdev: " + BDF.encode() + b"\n" + fdinfo)
    reader = opened(tree)
    reader.read(at(1))
    for name, content in {**changes, **numbers}.items():
        tree.write(f"{device}/{name}", content)
    for t_s in (2, 3):
        (gpu,) = reader.read(at(t_s)).gpus
        assert gpu.unexplained == ()
        assert gpu.power_w is None or gpu.power_w <= 20_000
