"""All file readers on one machine whose files vanish, turn into folders, loops and nonsense."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_telemetry.readers.amd import AmdReader
from eaco_telemetry.readers.drm import DrmReader
from eaco_telemetry.readers.host import HostReader
from eaco_telemetry.readers.intel import IntelReader
from eaco_telemetry.readers.jetson import JetsonReader
from eaco_telemetry.samples import Moment
from eaco_telemetry.testing.trees import (
    AMD_MI210,
    AMD_MI210_SENSORS,
    Tree,
    amd_fdinfo,
    failing,
    xe_fdinfo,
)

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_telemetry.readers.base import Reader, Reading

AMD_BDF, INTEL_BDF = "0000:03:00.0", "0000:83:00.0"
I2C = "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon9"


def machine(root: Path) -> Tree:
    """A machine that does not exist: every kind of sensor at once."""
    tree = Tree(root)
    tree.kernel_threads()
    tree.meminfo(16_000_000, 9_000_000)
    tree.write("/proc/stat", "cpu  100 0 50 800 20 0 1 0 0 0")
    tree.write("/proc/sys/kernel/osrelease", "6.14.0")
    amd = tree.card(0, AMD_BDF, "amdgpu", {**AMD_MI210, "unique_id": "7d3a1f2e9b4c5d6e"})
    tree.hwmon(amd, 1, "amdgpu", AMD_MI210_SENSORS)
    intel = tree.card(1, INTEL_BDF, "xe", {"vendor": "0x8086", "tile0/gt0/freq0/act_freq": 900})
    tree.hwmon(intel, 2, "xe", {"energy1_input": 5_000_000, "temp2_input": 40_000})
    chip = tree.platform_card(2, "1002000000.v3d", "v3d", {})
    tree.hwmon(chip, 3, "v3d", {"temp1_input": 50_000, "power1_input": 3_000_000})
    for pid, text in (
        (10, amd_fdinfo(AMD_BDF, 1)),
        (11, xe_fdinfo(INTEL_BDF, 2, rcs=1, ccs=1, total=9)),
    ):
        tree.process(pid, "job")
        tree.open_gpu(pid, 5, text)
    tree.write("/sys/class/kfd/kfd/proc/10/vram_7", 4096)
    tree.write("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", 7)
    tree.write("/sys/class/kfd/kfd/topology/nodes/1/properties", "location_id 768\ndomain 0")
    tree.write("/sys/class/powercap/intel-rapl:0/name", "package-0")
    tree.write("/sys/class/powercap/intel-rapl:0/energy_uj", 900)
    tree.write("/sys/class/powercap/intel-rapl:0/max_energy_range_uj", 65_532_610_987)
    tree.write("/proc/device-tree/compatible", b"nvidia,tegra234\0")
    tree.write("/sys/class/devfreq/17000000.gpu/device/load", 300)
    tree.write(f"{I2C}/in1_label", "VDD_IN")
    tree.write(f"{I2C}/in1_input", 5000)
    tree.write(f"{I2C}/curr1_input", 900)
    tree.write("/sys/class/thermal/thermal_zone0/type", "gpu-thermal")
    tree.write("/sys/class/thermal/thermal_zone0/temp", 44_000)
    return tree


def readers(root: Path) -> list[Reader]:
    made: list[Reader] = [
        AmdReader("n", root=root),
        IntelReader("n", root=root),
        DrmReader("n", root=root),
        JetsonReader("n", root=root),
        HostReader(root=root),
    ]
    for reader in made:
        reader.open()
    return made


def joules(reading: Reading) -> dict[str, float | None]:
    found = {f"{gpu.gpu_id}/energy": gpu.energy_j for gpu in reading.gpus}
    found |= {f"{gpu.gpu_id}/integrated": gpu.integrated_j for gpu in reading.gpus}
    if reading.host is not None:
        found["package"] = reading.host.package_energy_j
    return found


def test_the_whole_machine_can_be_read(tmp_path: Path) -> None:
    machine(tmp_path)
    seen = [reader.read(Moment(0, 10**9)) for reader in readers(tmp_path)]
    assert [len(reading.gpus) for reading in seen] == [1, 1, 1, 1, 0]
    assert [reading.problem for reading in seen] == [None] * 5


def spoil(path: Path, how: str) -> None:
    """Do to a file or a folder what a driver, a hot-unplug or a strange kernel may do."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    if not path.parent.is_dir():
        return
    match how:
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "empty":
            path.touch()
        case "nonsense":
            path.write_bytes(b"\xff\xfe\0drm-driver: \xff\n-17: ::\n")
        case "huge number":
            path.write_bytes(b"18446744073709551615\n")
        case _:
            pass


HOW = st.sampled_from(["gone", "folder", "loop", "empty", "nonsense", "huge number"])


@settings(max_examples=20)
@given(rounds=st.lists(st.lists(st.tuples(st.integers(0, 9999), HOW), max_size=6), max_size=3))
def test_no_damage_makes_a_reader_raise_or_its_joules_fall(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[int, str]]]
) -> None:
    root = tmp_path_factory.mktemp("machine")
    machine(root)
    all_readers = readers(root)
    most: dict[str, float] = {}
    paths = sorted(root.rglob("*"))
    for t_s, damages in enumerate([[], *rounds], start=1):
        for place, how in damages:
            spoil(paths[place % len(paths)], how)
        for reader in all_readers:
            reading = reader.read(Moment(0, t_s * 10**9))
            assert all(gpu.unexplained == () for gpu in reading.gpus)
            for name, now_j in joules(reading).items():
                if now_j is not None:
                    assert now_j >= most.get(name, 0.0)
                    most[name] = now_j
    shutil.rmtree(root)


@pytest.mark.parametrize(
    "code", [errno.EACCES, errno.EIO, errno.ENODEV, errno.EBUSY, errno.ENOENT, errno.ETIMEDOUT]
)
def test_a_machine_on_which_every_read_fails_gives_reasons(tmp_path: Path, code: int) -> None:
    machine(tmp_path)
    all_readers = readers(tmp_path)
    with failing(tmp_path, code=code):
        for reader in all_readers:
            reading = reader.read(Moment(0, 10**9))
            for gpu in reading.gpus:
                assert gpu.unexplained == ()
                assert (gpu.power_w, gpu.util_ratio, gpu.mem_used_bytes) == (None, None, None)
            if reading.host is not None:
                assert reading.host.unexplained == ()
    healed = [reader.read(Moment(0, 2 * 10**9)) for reader in all_readers]
    assert [gpu.state.value for reading in healed for gpu in reading.gpus] == ["active"] * 4
