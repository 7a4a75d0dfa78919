"""A Jetson from files: the right rail, no made-up zero, and memory that is the node's."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import Reader, Reading
from eaco_telemetry.readers.jetson import JetsonReader, is_jetson
from eaco_telemetry.samples import (
    DeviceState,
    EnergyKind,
    GpuSample,
    MemoryKind,
    Moment,
    PowerKind,
)
from eaco_telemetry.testing.trees import Tree, failing

if TYPE_CHECKING:
    from pathlib import Path

I2C = "/sys/bus/i2c/drivers"
FREQ = "/sys/class/devfreq/17000000.gpu"
ZONE = "/sys/devices/virtual/thermal/thermal_zone1"
# label, millivolts, milliamperes of the three channels
ORIN_NANO = (("VDD_IN", 5072, 1240), ("VDD_CPU_GPU_CV", 5072, 500), ("VDD_SOC", 5064, 280))
AGX_ORIN = (("VDD_GPU_SOC", 19824, 400), ("VDD_CPU_CV", 19824, 60), ("VIN_SYS_5V0", 5032, 800))


def at(t_s: float) -> Moment:
    return Moment(wall_ns=0, monotonic_ns=round(t_s * 1e9))


def rails(tree: Tree, channels: tuple[tuple[str, int, int], ...], chip: str = "1-0040") -> str:
    folder = f"{I2C}/ina3221/{chip}/hwmon/hwmon1"
    tree.write(f"{folder}/name", "ina3221")
    for channel, (label, millivolt, milliampere) in enumerate(channels, start=1):
        tree.write(f"{folder}/in{channel}_label", label)
        tree.write(f"{folder}/in{channel}_enable", 1)
        tree.write(f"{folder}/in{channel}_input", millivolt)
        tree.write(f"{folder}/curr{channel}_input", milliampere)
        tree.write(f"{folder}/in{channel + 3}_input", 40)
    tree.write(f"{folder}/in7_label", "sum of shunt voltages")
    return folder


def jetson(
    tree: Tree, channels: tuple[tuple[str, int, int], ...] = ORIN_NANO, *, load: int | None = 412
) -> str:
    model = b"NVIDIA Jetson Orin Nano Developer Kit\0"
    tree.write("/proc/device-tree/model", model)
    tree.write("/proc/device-tree/compatible", b"nvidia,p3768\0nvidia,tegra234\0")
    tree.meminfo(7_802_000, 4_100_000)
    tree.write(f"{ZONE}/type", "gpu-thermal")
    tree.write(f"{ZONE}/temp", 46_250)
    tree.link("/sys/class/thermal/thermal_zone1", ZONE)
    if load is not None:
        tree.write(f"{FREQ}/cur_freq", 624_750_000)
        tree.write(f"{FREQ}/device/load", load)
    return rails(tree, channels)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def opened(tree: Tree) -> JetsonReader:
    reader = JetsonReader("nano1", root=tree.root)
    reader.open()
    return reader


def one(reading: Reading) -> GpuSample:
    (gpu,) = reading.gpus
    assert gpu.unexplained == ()
    return gpu


def test_an_orin_nano_gives_what_its_files_hold(tree: Tree) -> None:
    jetson(tree)
    reader = opened(tree)
    assert isinstance(reader, Reader)
    gpu = one(reader.read(at(1)))
    assert (gpu.gpu_id, gpu.vendor) == ("soc:nano1", "nvidia")
    assert gpu.name == "NVIDIA Jetson Orin Nano Developer Kit"
    assert (gpu.util_ratio, gpu.clock_sm_hz) == (0.412, 624_750_000)
    assert (gpu.power_w, gpu.power_kind) == (2.536, PowerKind.INSTANT)
    assert gpu.module_power_w == pytest.approx(6.28928)
    assert gpu.temperature_c == 46.25
    assert gpu.flags == ("power_rail_shared",)
    assert set(reader.capabilities["soc:nano1"]) >= {"power_w", "energy_j", "util_ratio"}


def test_the_memory_is_that_of_the_node_and_page_cache_is_not_in_use(tree: Tree) -> None:
    """cosmos#180, vllm#35313: unified memory; MemAvailable and not MemFree."""
    jetson(tree)
    gpu = one(opened(tree).read(at(1)))
    assert gpu.mem_kind is MemoryKind.UNIFIED
    assert gpu.mem_total_bytes == 7_802_000 << 10
    assert gpu.mem_used_bytes == (7_802_000 - 4_100_000) << 10


def test_energy_is_summed_up_from_the_rail(tree: Tree) -> None:
    jetson(tree)
    reader = opened(tree)
    reader.read(at(1))
    gpu = one(reader.read(at(11)))
    assert gpu.energy_j == gpu.integrated_j == pytest.approx(25.36)
    assert gpu.energy_kind is EnergyKind.INTEGRATED
    reader.close()
    reader.open()
    assert one(reader.read(at(12))).energy_j == 0, "joules count from open"


def test_a_board_without_a_rail_for_the_module_does_not_sum_one_up(tree: Tree) -> None:
    jetson(tree, AGX_ORIN)
    gpu = one(opened(tree).read(at(1)))
    assert gpu.power_w == pytest.approx(7.9296)
    assert gpu.module_power_w is None
    assert gpu.missing["module_power_w"] == "no rail carries the whole module on this board"


def test_the_purest_rail_of_the_gpu_is_taken(tree: Tree) -> None:
    jetson(tree, (("VDD_GPU_SOC", 19000, 300), ("GPU", 19000, 100), ("SOC", 19000, 200)))
    gpu = one(opened(tree).read(at(1)))
    assert gpu.power_w == pytest.approx(1.9)
    assert gpu.flags == ()


def test_rails_on_a_second_monitor_are_found_and_unused_channels_are_not(tree: Tree) -> None:
    jetson(tree, (("NC", 0, 0), ("VDD_SOC", 5000, 100)))
    second = rails(tree, (("VDD_CPU_GPU_CV", 5000, 600), ("VDD_IN", 5000, 900)), "1-0041")
    tree.write(f"{second}/in2_enable", 0)
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.power_w, gpu.module_power_w) == (3.0, None)


def test_the_files_of_the_old_driver_are_read_too(tree: Tree) -> None:
    """Jetson Nano and TX2: names in rail_name_*, milliwatts in in_power*_input."""
    jetson(tree, ())
    folder = f"{I2C}/ina3221x/6-0040/iio:device0"
    for channel, (label, milliwatt) in enumerate((("POM_5V_IN", 4106), ("POM_5V_GPU", 1210))):
        tree.write(f"{folder}/rail_name_{channel}", label)
        tree.write(f"{folder}/in_power{channel}_input", milliwatt)
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.power_w, gpu.module_power_w) == (1.21, 4.106)


def test_a_rail_that_cannot_be_read_is_none_with_the_reason(tree: Tree) -> None:
    folder = jetson(tree)
    with failing(tree.root / folder.lstrip("/") / "curr2_input", code=errno.ENODATA):
        gpu = one(opened(tree).read(at(1)))
    assert (gpu.power_w, gpu.energy_j) == (None, None)
    assert gpu.missing["power_w"] == "curr2_input cannot be read: No data available"


@pytest.mark.parametrize("load", ["1001", "-1", "N/A", "", "4294967295"])
def test_a_load_that_cannot_be_is_none(tree: Tree, load: str) -> None:
    jetson(tree)
    tree.write(f"{FREQ}/device/load", load)
    assert one(opened(tree).read(at(1))).util_ratio is None


def test_a_gpu_whose_files_appear_after_boot_is_found(tree: Tree) -> None:
    jetson(tree, load=None)
    reader = opened(tree)
    early = one(reader.read(at(1)))
    assert (early.state, early.util_ratio) == (DeviceState.ACTIVE, None)
    assert early.missing["util_ratio"].startswith("the GPU's devfreq is not there (yet)")
    jetson(tree)
    assert one(reader.read(at(2))).util_ratio == 0.412
    assert "util_ratio" in reader.capabilities["soc:nano1"]


def test_on_thor_the_load_is_left_to_nvml(tree: Tree) -> None:
    jetson(tree, load=None)
    tree.write("/sys/class/devfreq/gpu-gpc-0/cur_freq", 1_575_000_000)
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.clock_sm_hz, gpu.util_ratio) == (1_575_000_000, None)
    assert gpu.missing["util_ratio"] == "Thor has no file with the load; NVML tells it"


def test_a_gpu_without_any_trace_is_lost_and_comes_back(tree: Tree) -> None:
    jetson(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.remove("/sys/class/devfreq")
    tree.remove(I2C)
    lost = reader.read(at(2))
    assert (one(lost).state, one(lost).mem_total_bytes) == (DeviceState.LOST, None)
    assert [event.kind for event in lost.events] == ["lost"]
    jetson(tree)
    assert [event.kind for event in reader.read(at(3)).events] == ["returned"]


def test_a_jetson_is_known_by_its_device_tree_or_its_release_file(tree: Tree) -> None:
    """Its NVML is absent or mostly empty, so this must be known before NVML is tried."""
    assert not is_jetson(tree.root)
    tree.write("/proc/device-tree/compatible", b"raspberrypi,5-model-b\0brcm,bcm2712\0")
    assert not is_jetson(tree.root)
    with pytest.raises(EnvironmentFault, match="this node is no Jetson"):
        opened(tree)
    tree.write("/proc/device-tree/compatible", b"nvidia,p3701\0nvidia,tegra234\0")
    assert is_jetson(tree.root)
    tree.remove("/proc/device-tree/compatible")
    tree.write("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3")
    assert is_jetson(tree.root)


FILES = [
    f"{FREQ}/cur_freq",
    f"{FREQ}/device/load",
    f"{ZONE}/type",
    f"{ZONE}/temp",
    "/proc/meminfo",
    "/proc/device-tree/model",
    *(
        f"{I2C}/ina3221/1-0040/hwmon/hwmon1/in{n}_{what}"
        for n in (1, 2)
        for what in ("label", "input")
    ),
    f"{I2C}/ina3221/1-0040/hwmon/hwmon1/curr2_input",
]
CONTENT = st.binary(max_size=40) | st.integers(-(1 << 70), 1 << 70).map(lambda n: b"%d" % n)


@settings(max_examples=40)
@given(changes=st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=8))
def test_no_content_of_any_file_makes_a_reader_raise(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, bytes]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("jetson"))
    jetson(tree)
    for name, content in changes.items():
        tree.write(name, content)
    reader = opened(tree)
    for t_s in (1, 2):
        (gpu,) = reader.read(at(t_s)).gpus
        assert gpu.unexplained == ()
