"""The node from files: joules that survive a wrap, and never a part shown as the whole."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import Reader, Reading
from eaco_telemetry.readers.host import HostReader
from eaco_telemetry.samples import HostSample, Moment
from eaco_telemetry.testing.trees import Tree, failing

if TYPE_CHECKING:
    from pathlib import Path

RAPL = "/sys/class/powercap"
RANGE_UJ = 65_532_610_987


def at(t_s: float) -> Moment:
    return Moment(wall_ns=0, monotonic_ns=round(t_s * 1e9))


def stat(tree: Tree, user: int, idle: int, iowait: int = 0) -> None:
    tree.write(
        "/proc/stat",
        f"cpu  {user} 10 {user // 10} {idle} {iowait} 0 30 0 5000 0\n"
        f"cpu0 {user} 10 0 {idle} 0 0 30 0 0 0\nintr 2693404 0 0\nctxt 77",
    )


def zone(tree: Tree, place: str, name: str, energy_uj: int | str, range_uj: int = RANGE_UJ) -> None:
    folder = f"{RAPL}/intel-rapl:{place}"
    tree.write(f"{folder}/name", name)
    tree.write(f"{folder}/energy_uj", energy_uj)
    tree.write(f"{folder}/max_energy_range_uj", range_uj)
    tree.write(f"{folder}/enabled", 0)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    stat(tree, 1000, 9000)
    tree.meminfo(131_072_000, 98_000_000)
    return tree


def two_sockets(tree: Tree) -> None:
    zone(tree, "0", "package-0", 1_000_000_000)
    zone(tree, "0:0", "core", 500_000_000)
    zone(tree, "0:1", "dram", 300_000_000)
    zone(tree, "1", "package-1", 2_000_000_000)
    zone(tree, "1:0", "dram", 400_000_000)


def opened(tree: Tree) -> HostReader:
    reader = HostReader(root=tree.root)
    reader.open()
    return reader


def one(reading: Reading) -> HostSample:
    assert reading.host is not None
    assert reading.host.unexplained == ()
    return reading.host


def test_processor_and_memory(tree: Tree) -> None:
    reader = opened(tree)
    assert isinstance(reader, Reader)
    assert "cpu_util_ratio" in reader.capabilities["host"]
    first = one(reader.read(at(1)))
    assert first.missing["cpu_util_ratio"] == "the utilisation needs two readings"
    assert (first.mem_total_bytes, first.mem_available_bytes) == (
        131_072_000 << 10,
        98_000_000 << 10,
    )
    stat(tree, 1000 + 500, 9000 + 1250, iowait=200)
    assert one(reader.read(at(2))).cpu_util_ratio == pytest.approx(550 / 2000)


def test_waiting_for_a_disk_is_no_work_and_may_run_backwards(tree: Tree) -> None:
    stat(tree, 1000, 9000, iowait=500)
    reader = opened(tree)
    reader.read(at(1))
    stat(tree, 1000, 9100, iowait=400)
    assert one(reader.read(at(2))).cpu_util_ratio == 0.0


def test_both_packages_and_their_memories_add_up_and_cores_are_not_counted_twice(
    tree: Tree,
) -> None:
    two_sockets(tree)
    reader = opened(tree)
    first = one(reader.read(at(1)))
    assert (first.package_energy_j, first.package_power_w) == (0, None)
    zone(tree, "0", "package-0", 1_000_000_000 + 180_000_000)
    zone(tree, "0:0", "core", 500_000_000 + 150_000_000)
    zone(tree, "1", "package-1", 2_000_000_000 + 120_000_000)
    zone(tree, "1:0", "dram", 400_000_000 + 20_000_000)
    zone(tree, "0:1", "dram", 300_000_000 + 10_000_000)
    host = one(reader.read(at(3)))
    assert (host.package_power_w, host.dram_power_w) == (150, 15)
    assert host.package_energy_j == pytest.approx(300)
    assert host.dram_energy_j == pytest.approx(30)
    assert host.platform_power_w is None
    assert host.missing["platform_energy_j"].startswith("this board does not measure itself")


def test_a_wrap_is_neither_a_spike_nor_a_loss(tree: Tree) -> None:
    """powerjoular#45, zeus#91, scaphandre#280, likwid#646: it wraps every 20 to 60 minutes."""
    zone(tree, "0", "package-0", RANGE_UJ - 50_000_000)
    reader = opened(tree)
    reader.read(at(1))
    zone(tree, "0", "package-0", 69_999_999)
    host = one(reader.read(at(2)))
    assert host.package_energy_j == pytest.approx(120)
    assert host.package_power_w == pytest.approx(120)
    assert host.flags == ()


def test_read_too_rarely_a_wrap_cannot_be_told_and_nothing_is_made_up(tree: Tree) -> None:
    zone(tree, "0", "package-0", 1_000_000)
    reader = opened(tree)
    reader.read(at(1))
    zone(tree, "0", "package-0", 900_000_000)
    host = one(reader.read(at(100)))
    assert (host.package_energy_j, host.package_power_w) == (0, None)
    assert host.flags == ("package_energy_rebased",)
    assert host.missing["package_power_w"].startswith("read too rarely")


def test_psys_is_the_board_and_stands_apart_from_its_packages(tree: Tree) -> None:
    """powercap#3: psys contains the packages."""
    zone(tree, "0", "package-0", 0)
    zone(tree, "1", "psys", 0)
    reader = opened(tree)
    reader.read(at(1))
    zone(tree, "0", "package-0", 20_000_000)
    zone(tree, "1", "psys", 35_000_000)
    host = one(reader.read(at(2)))
    assert (host.package_power_w, host.platform_power_w) == (20, 35)


def test_the_second_view_of_the_same_package_is_not_counted(tree: Tree) -> None:
    zone(tree, "0", "package-0", 0)
    for energy_uj in (0, 20_000_000):
        tree.write(f"{RAPL}/intel-rapl-mmio:0/name", "package-0")
        tree.write(f"{RAPL}/intel-rapl-mmio:0/energy_uj", energy_uj)
    reader = opened(tree)
    reader.read(at(1))
    zone(tree, "0", "package-0", 20_000_000)
    assert one(reader.read(at(2))).package_power_w == 20


def test_without_root_the_joules_are_missing_with_the_reason(tree: Tree) -> None:
    """powercap#7: for root only since Linux 5.10."""
    two_sockets(tree)
    files = [tree.root / RAPL.lstrip("/") / f"intel-rapl:{n}/energy_uj" for n in (0, 1)]
    with failing(*files):
        reader = opened(tree)
        host = one(reader.read(at(1)))
    assert (host.package_power_w, host.package_energy_j) == (None, None)
    assert host.missing["package_energy_j"] == (
        "no permission to read energy_uj; root rights would add it"
    )
    assert host.mem_total_bytes is not None
    assert "package_energy_j" not in reader.capabilities["host"]


def test_one_package_of_two_is_not_shown_as_the_whole(tree: Tree) -> None:
    two_sockets(tree)
    reader = opened(tree)
    reader.read(at(1))
    zone(tree, "1", "package-1", "")
    host = one(reader.read(at(2)))
    assert (host.package_power_w, host.package_energy_j) == (None, None)
    assert host.missing["package_power_w"] == "energy_uj is empty"


def test_a_reset_of_a_counter_without_a_range_adds_nothing(tree: Tree) -> None:
    zone(tree, "0", "package-0", 5_000_000_000, range_uj=0)
    reader = opened(tree)
    reader.read(at(1))
    zone(tree, "0", "package-0", 10_000_000, range_uj=0)
    assert one(reader.read(at(2))).package_energy_j == 0
    zone(tree, "0", "package-0", 60_000_000, range_uj=0)
    assert one(reader.read(at(3))).package_energy_j == pytest.approx(50)


def test_a_virtual_machine_has_no_joules_and_says_so(tree: Tree) -> None:
    host = one(opened(tree).read(at(1)))
    assert host.missing["package_power_w"].startswith("no RAPL here")
    assert host.missing["node_power_w"] == "no meter of the whole node (ACPI power_meter)"
    assert host.missing["temperature_c"] == "no sensor of the processor (hwmon)"


def test_a_meter_of_the_whole_node_gives_watts_and_joules(tree: Tree) -> None:
    tree.write("/sys/class/hwmon/hwmon0/name", "power_meter")
    tree.write("/sys/class/hwmon/hwmon0/power1_average", 412_000_000)
    reader = opened(tree)
    reader.read(at(1))
    host = one(reader.read(at(2)))
    assert (host.node_power_w, host.node_energy_j) == (412, 412)
    reader.close()
    reader.open()
    assert one(reader.read(at(3))).node_energy_j == 0, "joules count from open"


def test_two_meters_are_not_guessed_at(tree: Tree) -> None:
    for number in (0, 1):
        tree.write(f"/sys/class/hwmon/hwmon{number}/name", "power_meter")
        tree.write(f"/sys/class/hwmon/hwmon{number}/power1_average", 412_000_000)
    host = one(opened(tree).read(at(1)))
    assert (host.node_power_w, host.node_energy_j) == (None, None)
    assert host.missing["node_power_w"].startswith("2 ACPI power meters")


def test_the_hottest_package_is_the_temperature(tree: Tree) -> None:
    for number, heat in ((1, 61_000), (2, 74_000)):
        folder = f"/sys/class/hwmon/hwmon{number}"
        tree.write(f"{folder}/name", "coretemp")
        tree.write(f"{folder}/temp1_label", f"Package id {number - 1}")
        tree.write(f"{folder}/temp1_input", heat)
        tree.write(f"{folder}/temp2_label", "Core 0")
        tree.write(f"{folder}/temp2_input", 99_000)
    assert one(opened(tree).read(at(1))).temperature_c == 74


def test_an_old_kernel_without_available_memory_says_so(tree: Tree) -> None:
    tree.write("/proc/meminfo", "MemTotal: 2048 kB\nMemFree: 1024 kB")
    host = one(opened(tree).read(at(1)))
    assert (host.mem_total_bytes, host.mem_available_bytes) == (2 << 20, None)
    assert host.missing["mem_available_bytes"] == "meminfo has no line MemAvailable"


def test_without_a_proc_there_is_nothing_to_open(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="this node has no /proc to read: no stat"):
        HostReader(root=tmp_path).open()


def test_this_machine_can_be_read() -> None:
    reader = HostReader()
    reader.open()
    host = one(reader.read(at(1)))
    reader.close()
    assert host.mem_total_bytes is not None
    assert host.mem_total_bytes > 1 << 26


@given(joules=st.lists(st.integers(0, 900), min_size=1, max_size=60), start=st.integers(0, 65_532))
@settings(max_examples=25)
def test_any_number_of_wraps_gives_the_true_joules(
    tmp_path_factory: pytest.TempPathFactory, joules: list[int], start: int
) -> None:
    tree = Tree(tmp_path_factory.mktemp("rapl"))
    stat(tree, 1, 1)
    true_uj = start * 1_000_000
    zone(tree, "0", "package-0", true_uj, range_uj=RANGE_UJ)
    reader = opened(tree)
    seen = [one(reader.read(at(0))).package_energy_j]
    for t_s, rise in enumerate(joules, start=1):
        true_uj += rise * 1_000_000
        zone(tree, "0", "package-0", true_uj % (RANGE_UJ + 1), range_uj=RANGE_UJ)
        seen.append(one(reader.read(at(t_s))).package_energy_j)
    assert seen[-1] == pytest.approx(sum(joules), abs=1e-3)
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(seen))


CONTENT = st.binary(max_size=60) | st.integers(-(1 << 70), 1 << 70).map(lambda n: b"%d" % n)
FILES = [
    "/proc/stat",
    "/proc/meminfo",
    *(f"{RAPL}/intel-rapl:0/{name}" for name in ("name", "energy_uj", "max_energy_range_uj")),
    "/sys/class/hwmon/hwmon0/name",
    "/sys/class/hwmon/hwmon0/power1_average",
]


@settings(max_examples=40)
@given(rounds=st.lists(st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=5), max_size=4))
def test_no_content_of_any_file_makes_a_reader_raise(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[dict[str, bytes]]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("host"))
    stat(tree, 1000, 9000)
    zone(tree, "0", "package-0", 0)
    tree.write("/sys/class/hwmon/hwmon0/name", "power_meter")
    reader = opened(tree)
    for t_s, changes in enumerate(rounds):
        for name, content in changes.items():
            tree.write(name, content)
        host = one(reader.read(at(t_s)))
        assert host.package_power_w is None or host.package_power_w <= 10_000
