"""GPUs of all other drivers: what every DRM driver shows, and nothing made up beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import Reader, Reading
from eaco_telemetry.readers.drm import DrmReader
from eaco_telemetry.samples import (
    EnergyKind,
    GpuSample,
    MemoryKind,
    Moment,
    PowerKind,
    ProcessSample,
)
from eaco_telemetry.testing.trees import Tree, failing

if TYPE_CHECKING:
    from pathlib import Path

BDF = "0000:01:00.0"
S = 10**9


def at(t_s: float) -> Moment:
    return Moment(wall_ns=0, monotonic_ns=round(t_s * 1e9))


def v3d(busy_ns: int) -> str:
    """An fdinfo file of a Raspberry Pi 5."""
    return (
        f"drm-driver:\tv3d\ndrm-client-id:\t9\ndrm-engine-render:\t{busy_ns} ns\n"
        "drm-engine-tfu:\t99000000000 ns\ndrm-total-memory:\t4096 KiB\n"
        "drm-resident-memory:\t4096 KiB"
    )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.kernel_threads()
    tree.meminfo(8_000_000, 6_000_000)
    return tree


def opened(tree: Tree) -> DrmReader:
    reader = DrmReader("pi5", root=tree.root)
    reader.open()
    return reader


def one(reading: Reading) -> GpuSample:
    (gpu,) = reading.gpus
    assert gpu.unexplained == ()
    return gpu


def test_the_gpu_of_a_raspberry_pi(tree: Tree) -> None:
    tree.platform_card(0, "1002000000.v3d", "v3d", {})
    tree.process(77, "kmscube")
    tree.open_gpu(77, 4, v3d(0))
    reader = opened(tree)
    assert isinstance(reader, Reader)
    reader.read(at(1))
    tree.open_gpu(77, 4, v3d(S // 2))
    gpu = one(reader.read(at(2)))
    assert (gpu.gpu_id, gpu.vendor, gpu.pci_bdf) == ("soc:pi5", "broadcom", None)
    assert gpu.util_ratio == pytest.approx(0.5)
    assert gpu.processes == (ProcessSample(77, "kmscube", 0.5, 4 << 20),)
    assert (gpu.mem_kind, gpu.mem_total_bytes) == (MemoryKind.UNIFIED, 8_000_000 << 10)
    assert gpu.missing["power_w"] == "this GPU has no sensors (hwmon)"


def test_two_gpus_of_one_chip_get_two_ids(tree: Tree) -> None:
    tree.platform_card(0, "fb000000.gpu", "panfrost", {})
    tree.platform_card(1, "fb100000.gpu", "etnaviv", {})
    ids = [gpu.gpu_id for gpu in opened(tree).read(at(1)).gpus]
    assert ids == ["soc:pi5", "soc:pi5/fb100000.gpu"]


def test_a_driver_that_never_told_a_use_is_not_idle(tree: Tree) -> None:
    """A driver without statistics looks exactly like one without users."""
    device = tree.card(0, BDF, "nouveau", {"vendor": "0x10de"})
    tree.hwmon(device, 1, "nouveau", {"temp1_input": 41_000, "power1_input": 31_000_000})
    reader = opened(tree)
    reader.read(at(1))
    gpu = one(reader.read(at(2)))
    assert (gpu.util_ratio, gpu.processes) == (None, None)
    assert gpu.missing["util_ratio"] == "the driver nouveau has told no usage by process so far"
    assert (gpu.power_w, gpu.power_kind, gpu.temperature_c) == (31, PowerKind.INSTANT, 41)
    assert (gpu.energy_j, gpu.energy_kind) == (31, EnergyKind.INTEGRATED)
    assert gpu.mem_kind is MemoryKind.DEDICATED


def test_without_root_a_part_of_the_processes_is_no_utilisation(tree: Tree) -> None:
    tree.platform_card(0, "1002000000.v3d", "v3d", {})
    tree.process(1, "init")
    tree.process(77, "kmscube")
    tree.open_gpu(77, 4, v3d(0))
    reader = opened(tree)
    with failing(tree.root / "proc/1/fd"):
        reader.read(at(1))
        tree.open_gpu(77, 4, v3d(S // 2))
        gpu = one(reader.read(at(2)))
    assert gpu.util_ratio is None
    assert gpu.missing["util_ratio"].endswith("root rights would add the others")
    assert gpu.flags == ("processes_partial",)


@pytest.mark.parametrize("driver", ["amdgpu", "i915", "xe", "nvidia", "ast", "virtio_gpu", "vkms"])
def test_gpus_of_other_readers_and_mere_screens_are_left_out(tree: Tree, driver: str) -> None:
    tree.card(0, BDF, driver, {})
    with pytest.raises(EnvironmentFault, match="no GPU for the reader drm"):
        opened(tree)


def test_a_card_without_a_render_node_is_no_gpu(tree: Tree) -> None:
    device = tree.card(0, BDF, "hibmc", {})
    tree.remove(f"{device}/drm/renderD128")
    with pytest.raises(EnvironmentFault):
        opened(tree)


def test_a_card_that_is_unplugged_is_lost_and_comes_back(tree: Tree) -> None:
    device = tree.card(0, BDF, "nouveau", {})
    reader = opened(tree)
    reader.read(at(1))
    tree.unplug(0, device)
    assert [event.kind for event in reader.read(at(2)).events] == ["lost"]
    tree.card(3, BDF, "nouveau", {})
    assert [event.kind for event in reader.read(at(3)).events] == ["returned"]
