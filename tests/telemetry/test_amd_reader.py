"""AMD GPUs from files: what is read, what is missing and why, and what must not be touched."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.amd import AmdReader
from eaco_telemetry.readers.base import Reader, Reading
from eaco_telemetry.samples import (
    DeviceState,
    EnergyKind,
    GpuSample,
    MemoryKind,
    Moment,
    PowerKind,
    ProcessSample,
)
from eaco_telemetry.testing.trees import (
    AMD_MI210,
    AMD_MI210_SENSORS,
    Tree,
    amd_fdinfo,
    failing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BDF = "0000:03:00.0"
SECOND_BDF = "0000:83:00.0"
GIB = 1 << 30


def at(t_s: float) -> Moment:
    return Moment(wall_ns=0, monotonic_ns=round(t_s * 1e9))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.kernel_threads()
    return tree


SLEEPY = {"power/control": "auto", "power/runtime_status": "active"}


def add_card(
    tree: Tree,
    number: int = 0,
    bdf: str = BDF,
    *,
    power: Mapping[str, str] | None = None,
    **changes: str | int,
) -> str:
    device = tree.card(number, bdf, "amdgpu", {**AMD_MI210, **(power or {}), **changes})
    tree.hwmon(device, number + 4, "amdgpu", AMD_MI210_SENSORS)
    return device


def opened(tree: Tree) -> AmdReader:
    reader = AmdReader("edge1", root=tree.root)
    reader.open()
    return reader


def one(reading: Reading) -> GpuSample:
    (gpu,) = reading.gpus
    assert gpu.unexplained == ()
    return gpu


def test_a_data_centre_card_gives_all_that_its_files_hold(tree: Tree) -> None:
    add_card(tree, unique_id="7d3a1f2e9b4c5d6e", product_name="Instinct MI210")
    reader = opened(tree)
    assert isinstance(reader, Reader)
    gpu = one(reader.read(at(1)))
    assert (gpu.gpu_id, gpu.vendor, gpu.name, gpu.pci_bdf) == (
        "GPU-7d3a1f2e9b4c5d6e",
        "amd",
        "Instinct MI210",
        BDF,
    )
    assert (gpu.util_ratio, gpu.mem_busy_ratio) == (0.73, 0.21)
    assert (gpu.mem_total_bytes, gpu.mem_used_bytes) == (68702699520, 11431616512)
    assert gpu.mem_kind is MemoryKind.DEDICATED
    assert (gpu.power_w, gpu.power_kind, gpu.power_limit_w) == (187, PowerKind.AVERAGE, 300)
    assert (gpu.temperature_c, gpu.mem_temperature_c) == (48, 51)
    assert (gpu.clock_sm_hz, gpu.clock_mem_hz) == (1.7e9, 1.6e9)
    assert gpu.processes == ()
    assert gpu.missing["power_inst_w"] == "this chip gives average power only"
    assert set(gpu.capabilities) == set(reader.capabilities[gpu.gpu_id])
    assert "power_w" in gpu.capabilities
    assert "ecc_uncorrected" not in gpu.capabilities


def test_energy_is_summed_up_from_power(tree: Tree) -> None:
    device = add_card(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/hwmon/hwmon4/power1_average", 213000000)
    gpu = one(reader.read(at(3)))
    assert gpu.energy_j == gpu.integrated_j == pytest.approx(400)
    assert gpu.energy_kind is EnergyKind.INTEGRATED


@pytest.mark.parametrize(
    ("average", "instant", "expected"),
    [
        (150_000_000, None, (150, None, PowerKind.AVERAGE)),
        (None, 140_000_000, (140, 140, PowerKind.INSTANT)),
        (150_000_000, 140_000_000, (150, 140, PowerKind.AVERAGE)),
        (None, None, (None, None, None)),
    ],
)
def test_power_is_named_after_what_the_chip_gives(
    tree: Tree,
    average: int | None,
    instant: int | None,
    expected: tuple[float | None, float | None, PowerKind | None],
) -> None:
    """pytorch PR#130331: MI200 has average power only, MI300 instant power only."""
    device = add_card(tree)
    tree.remove(f"{device}/hwmon/hwmon4/power1_average")
    for name, value in (("power1_average", average), ("power1_input", instant)):
        if value is not None:
            tree.write(f"{device}/hwmon/hwmon4/{name}", value)
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.power_w, gpu.power_inst_w, gpu.power_kind) == expected
    if gpu.power_w is None:
        assert (gpu.energy_j, gpu.energy_kind) == (None, None)
        assert gpu.missing["energy_j"] == "no power to sum up: no power1_average"


def test_the_power_of_an_apu_is_not_that_of_its_gpu(tree: Tree) -> None:
    """The sensor of an APU covers the processor: booking it to the GPU counts it twice."""
    device = add_card(tree)
    tree.write(f"{device}/hwmon/hwmon4/in1_label", "vddnb")
    tree.write(f"{device}/hwmon/hwmon4/power1_average", 28000000)
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.power_w, gpu.module_power_w) == (None, 28)
    assert gpu.missing["power_w"].startswith("the sensor of an APU covers the processor too")


def test_two_cards_are_told_apart_and_a_failing_one_hurts_only_itself(tree: Tree) -> None:
    add_card(tree, 0)
    second = add_card(tree, 1, SECOND_BDF, gpu_busy_percent=5)
    tree.write(f"{second}/gpu_busy_percent", "")
    first_gpu, second_gpu = opened(tree).read(at(1)).gpus
    assert (first_gpu.gpu_id, first_gpu.util_ratio) == (f"pci:edge1/{BDF}", 0.73)
    assert (second_gpu.gpu_id, second_gpu.util_ratio) == (f"pci:edge1/{SECOND_BDF}", None)
    assert second_gpu.missing["util_ratio"] == "gpu_busy_percent is empty"


def test_card_numbers_that_change_do_not_change_the_id(tree: Tree) -> None:
    device = add_card(tree, 0)
    reader = opened(tree)
    before = one(reader.read(at(1))).gpu_id
    tree.unplug(0, device)
    add_card(tree, 7)
    reading = reader.read(at(2))
    assert one(reading).gpu_id == before
    assert reading.events == ()


@pytest.mark.parametrize("unique_id", ["", "0000000000000000", "none", "../../etc", "f" * 40])
def test_an_unusable_unique_id_is_not_taken(tree: Tree, unique_id: str) -> None:
    add_card(tree, unique_id=unique_id)
    assert one(opened(tree).read(at(1))).gpu_id == f"pci:edge1/{BDF}"


def test_two_cards_with_one_unique_id_get_two_ids(tree: Tree) -> None:
    add_card(tree, 0, unique_id="7d3a1f2e9b4c5d6e")
    add_card(tree, 1, SECOND_BDF, unique_id="7d3a1f2e9b4c5d6e")
    ids = [gpu.gpu_id for gpu in opened(tree).read(at(1)).gpus]
    assert ids == ["GPU-7d3a1f2e9b4c5d6e", f"pci:edge1/{SECOND_BDF}"]


@pytest.mark.parametrize("busy", ["101", "808334905", "4294967295", "-1", "N/A", "73%", "7" * 5000])
def test_a_utilisation_that_cannot_be_is_dropped_and_counted(tree: Tree, busy: str) -> None:
    """DCGM#199: single samples of 808,334,905 or 4294967295 per cent."""
    add_card(tree, gpu_busy_percent=busy)
    reader = opened(tree)
    gpu = one(reader.read(at(1)))
    assert gpu.util_ratio is None
    assert gpu.missing["util_ratio"].startswith("gpu_busy_percent ")
    assert (gpu.rejected, one(reader.read(at(2))).rejected) == (1, 2)


def test_a_missing_file_is_none_and_never_zero(tree: Tree) -> None:
    device = add_card(tree)
    for name in ("gpu_busy_percent", "mem_busy_percent", "mem_info_vram_used"):
        tree.remove(f"{device}/{name}")
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.util_ratio, gpu.mem_busy_ratio, gpu.mem_used_bytes) == (None, None, None)
    assert gpu.missing["util_ratio"] == "no gpu_busy_percent"
    assert gpu.rejected == 0


def test_a_card_without_sensors_still_gives_its_memory(tree: Tree) -> None:
    device = add_card(tree)
    tree.remove(f"{device}/hwmon")
    gpu = one(opened(tree).read(at(1)))
    assert (gpu.util_ratio, gpu.power_w, gpu.energy_j) == (0.73, None, None)
    assert gpu.missing["temperature_c"] == "no sensors (hwmon) for this card"


def test_a_forbidden_file_says_what_root_would_add(tree: Tree) -> None:
    device = add_card(tree)
    with failing(tree.root / device.lstrip("/") / "gpu_busy_percent"):
        gpu = one(opened(tree).read(at(1)))
    assert gpu.missing["util_ratio"] == (
        "no permission to read gpu_busy_percent; root rights would add it"
    )
    assert gpu.power_w == 187


def test_a_driver_error_is_a_reason_in_words(tree: Tree) -> None:
    device = add_card(tree)
    with failing(tree.root / device.lstrip("/") / "gpu_busy_percent", code=errno.EBUSY):
        gpu = one(opened(tree).read(at(1)))
    assert gpu.missing["util_ratio"] == "gpu_busy_percent cannot be read: Device or resource busy"


@pytest.mark.parametrize(("raw", "temperature_c"), [(0, None), (51000, 51.0), (999000, None)])
def test_zero_degrees_in_the_memory_mean_no_sensor(
    tree: Tree, raw: int, temperature_c: float | None
) -> None:
    """dcgm-exporter#460: the memory temperature is blank or 0 where there is no sensor."""
    device = add_card(tree)
    tree.write(f"{device}/hwmon/hwmon4/temp3_input", raw)
    assert one(opened(tree).read(at(1))).mem_temperature_c == temperature_c


def test_a_chip_without_an_edge_sensor_gives_the_junction(tree: Tree) -> None:
    device = add_card(tree)
    for name in ("temp1_input", "temp1_label"):
        tree.remove(f"{device}/hwmon/hwmon4/{name}")
    assert one(opened(tree).read(at(1))).temperature_c == 56


def test_uncorrected_errors_are_summed_over_the_blocks(tree: Tree) -> None:
    device = add_card(tree)
    tree.write(f"{device}/ras/umc_err_count", "ue: 2\nce: 17")
    tree.write(f"{device}/ras/gfx_err_count", "ue: 1\nce: 0")
    reader = opened(tree)
    assert one(reader.read(at(1))).ecc_uncorrected == 3
    tree.write(f"{device}/ras/gfx_err_count", "ue: 5\nce: 0")
    assert one(reader.read(at(30))).ecc_uncorrected == 3, "the hardware is asked once a minute"
    assert one(reader.read(at(62))).ecc_uncorrected == 7
    tree.write(f"{device}/ras/gfx_err_count", "no")
    assert one(reader.read(at(200))).ecc_uncorrected is None


# ------------------------------------------------------------------- asleep and lost


def test_a_sleeping_card_is_left_alone(tree: Tree) -> None:
    """gnome-freon#250, Vitals#442: polling keeps a laptop's GPU awake at 5 to 25 W."""
    device = add_card(tree, power={**SLEEPY, "power/runtime_status": "suspended"})
    folder = tree.root / device.lstrip("/")
    untouched = [path for path in folder.iterdir() if path.name not in {"power", "vendor"}]
    with failing(*untouched) as tried:
        reader = opened(tree)
        gpu = one(reader.read(at(1)))
    assert {path.name for path in tried} <= {"unique_id", "product_name"}, "cached by the driver"
    assert gpu.state is DeviceState.ASLEEP
    assert gpu.missing["power_w"] == "the GPU is asleep; reading it would wake it"
    tree.write(f"{device}/power/runtime_status", "active")
    awake = reader.read(at(2))
    assert (one(awake).state, one(awake).power_w) == (DeviceState.ACTIVE, 187)
    assert [event.kind for event in awake.events] == ["awake"]
    tree.write(f"{device}/power/runtime_status", "suspended")
    assert [event.kind for event in reader.read(at(3)).events] == ["asleep"]


def test_no_energy_is_made_up_for_the_time_asleep(tree: Tree) -> None:
    device = add_card(tree)
    reader = opened(tree)
    reader.read(at(1))
    tree.write(f"{device}/power/runtime_status", "suspended")
    reader.read(at(2))
    tree.write(f"{device}/power/runtime_status", "active")
    assert one(reader.read(at(3))).energy_j == 0
    assert one(reader.read(at(4))).energy_j == 187


def test_an_unused_card_that_could_fall_asleep_is_read_rarely(tree: Tree) -> None:
    """Each look begins the delay anew after which the kernel puts the card to sleep."""
    device = add_card(tree, gpu_busy_percent=0, power=SLEEPY)
    reader = opened(tree)
    assert one(reader.read(at(1))).power_w == 187
    folder = tree.root / device.lstrip("/")
    with failing(folder / "gpu_busy_percent", folder / "hwmon") as tried:
        for t_s in (2, 8, 15):
            quiet = one(reader.read(at(t_s)))
            assert quiet.state is DeviceState.ACTIVE
            assert quiet.missing["power_w"].startswith("nobody uses the GPU; it is left alone")
    assert tried == []
    assert one(reader.read(at(16))).power_w == 187


def test_an_unused_card_is_read_at_once_when_somebody_opens_it(tree: Tree) -> None:
    add_card(tree, gpu_busy_percent=0, power=SLEEPY)
    reader = opened(tree)
    reader.read(at(1))
    assert one(reader.read(at(2))).power_w is None
    tree.process(4711, "python")
    tree.open_gpu(4711, 5, amd_fdinfo(BDF, 1, vram_kib=1024))
    assert one(reader.read(at(3))).power_w == 187
    assert one(reader.read(at(4))).power_w == 187


def test_a_card_that_is_unplugged_between_two_reads_is_lost_and_comes_back(tree: Tree) -> None:
    device = add_card(tree, 0)
    add_card(tree, 1, SECOND_BDF)
    reader = opened(tree)
    reader.read(at(1))
    tree.unplug(0, device)
    lost = reader.read(at(2))
    assert [gpu.state for gpu in lost.gpus] == [DeviceState.LOST, DeviceState.ACTIVE]
    assert [(e.kind, e.gpu_id) for e in lost.events] == [("lost", f"pci:edge1/{BDF}")]
    assert lost.gpus[0].power_w is None
    assert lost.gpus[0].missing["power_w"].startswith("the GPU is gone")
    assert reader.read(at(3)).events == ()
    add_card(tree, 0)
    back = reader.read(at(60))
    assert [event.kind for event in back.events] == ["returned"]
    assert back.gpus[0].energy_j == 0, "nothing is summed up over the time away"


def test_a_card_that_fell_off_the_bus_is_lost_though_its_files_are_there(tree: Tree) -> None:
    """NVSentinel#155, nvitop#139: a GPU can be gone without any notice."""
    device = add_card(tree)
    reader = opened(tree)
    reader.read(at(1))
    with failing(tree.root / device.lstrip("/"), code=errno.ENODEV):
        reading = reader.read(at(2))
    assert one(reading).state is DeviceState.LOST
    assert [event.kind for event in reading.events] == ["lost"]


def test_a_card_that_is_plugged_in_later_is_found(tree: Tree) -> None:
    add_card(tree, 0)
    reader = opened(tree)
    reader.read(at(1))
    add_card(tree, 1, SECOND_BDF)
    reading = reader.read(at(2))
    assert [(e.kind, e.gpu_id) for e in reading.events] == [("appeared", f"pci:edge1/{SECOND_BDF}")]
    assert len(reading.gpus) == 2


def test_without_such_a_card_there_is_nothing_to_open(tree: Tree) -> None:
    tree.card(0, BDF, "i915", {"vendor": "0x8086"})
    with pytest.raises(EnvironmentFault, match="no GPU for the reader amd"):
        AmdReader("edge1", root=tree.root).open()
    with pytest.raises(EnvironmentFault):
        AmdReader("edge1", root=tree.root / "nowhere").open()


def test_a_closed_reader_can_be_closed_and_opened_again(tree: Tree) -> None:
    add_card(tree)
    reader = opened(tree)
    reader.read(at(1))
    assert one(reader.read(at(2))).energy_j == 187
    reader.close()
    reader.close()
    reader.open()
    again = one(reader.read(at(3)))
    assert (again.power_w, again.energy_j) == (187, 0), "joules count from open"


# ------------------------------------------------------------------------- processes


def kfd(tree: Tree, pid: int, vram_bytes: int | str) -> None:
    base = "/sys/class/kfd/kfd"
    tree.write(f"{base}/topology/nodes/0/gpu_id", 0)
    tree.write(f"{base}/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0")
    tree.write(f"{base}/topology/nodes/1/gpu_id", 50661)
    tree.write(
        f"{base}/topology/nodes/1/properties",
        "cpu_cores_count 0\nsimd_count 416\nlocation_id 768\ndomain 0\nunique_id 9019",
    )
    tree.write(f"{base}/proc/{pid}/vram_50661", vram_bytes)
    tree.write(f"{base}/proc/{pid}/pasid", 32770)


def test_programs_under_rocm_are_seen_with_their_memory(tree: Tree) -> None:
    add_card(tree)
    kfd(tree, 4711, 8 * GIB)
    tree.process(4711, "python")
    gpu = one(opened(tree).read(at(1)))
    assert gpu.processes == (ProcessSample(4711, "python", None, 8 * GIB),)


def test_rocm_names_a_card_by_bus_device_and_function(tree: Tree) -> None:
    kfd(tree, 4711, 8 * GIB)
    bdf = "0001:c3:05.2"
    place = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    tree.write(place, f"simd_count 416\nlocation_id {0xC3 << 8 | 5 << 3 | 2}\ndomain 1")
    add_card(tree, 0, bdf)
    add_card(tree, 1, BDF)
    by_id = {gpu.pci_bdf: gpu.processes for gpu in opened(tree).read(at(1)).gpus}
    assert by_id == {bdf: (ProcessSample(4711, None, None, 8 * GIB),), BDF: ()}


def test_memory_that_both_kfd_and_fdinfo_show_is_counted_once(tree: Tree) -> None:
    add_card(tree)
    kfd(tree, 4711, 8 * GIB)
    tree.process(4711, "python")
    tree.open_gpu(4711, 5, amd_fdinfo(BDF, 1, vram_kib=8 << 20))
    gpu = one(opened(tree).read(at(1)))
    assert gpu.processes == (ProcessSample(4711, "python", None, 8 * GIB),)


def test_rocm_processes_without_memory_here_or_with_nonsense_are_left_out(tree: Tree) -> None:
    add_card(tree)
    kfd(tree, 4711, 0)
    kfd(tree, 4712, "many")
    tree.write("/sys/class/kfd/kfd/proc/4713/vram_99999", 77)
    tree.write("/sys/class/kfd/kfd/proc/self/vram_50661", 77)
    assert one(opened(tree).read(at(1))).processes == ()


def test_the_busy_share_of_a_process_comes_from_fdinfo(tree: Tree) -> None:
    add_card(tree)
    tree.process(900, "blender")
    tree.open_gpu(900, 3, amd_fdinfo(BDF, 1, gfx_ns=10**9, vram_kib=2048))
    reader = opened(tree)
    first = one(reader.read(at(1))).processes
    assert first is not None
    assert first == (ProcessSample(900, "blender", None, 2 << 20),)
    tree.open_gpu(900, 3, amd_fdinfo(BDF, 1, gfx_ns=10**9 + 250_000_000, vram_kib=2048))
    second = one(reader.read(at(2))).processes
    assert second is not None
    assert [process.sm_ratio for process in second] == [pytest.approx(0.25)]


def test_without_root_the_list_of_processes_is_flagged_as_a_part(tree: Tree) -> None:
    add_card(tree)
    kfd(tree, 4711, GIB)
    tree.process(1, "systemd")
    with failing(tree.root / "proc/1/fd"):
        gpu = one(opened(tree).read(at(1)))
    assert gpu.flags == ("processes_partial",)
    assert gpu.processes == (ProcessSample(4711, None, None, GIB),)
    assert gpu.missing["processes"].endswith("root rights would add the others")


def test_without_root_an_empty_list_of_processes_is_unknown(tree: Tree) -> None:
    add_card(tree)
    tree.process(1, "systemd")
    with failing(tree.root / "proc/1/fd"):
        gpu = one(opened(tree).read(at(1)))
    assert (gpu.processes, gpu.flags) == (None, ())


# --------------------------------------------------------------------------- nonsense

NONSENSE = st.one_of(
    st.binary(max_size=60),
    st.integers(-(1 << 70), 1 << 70).map(lambda n: str(n).encode()),
    st.sampled_from(
        [b"", b"\0\0\0", b"N/A", b"[N/A]", b"nan", b"1e9", b"inf", b"0x10", b"\xff\xfe"]
    ),
)
FILES = sorted(
    {
        *AMD_MI210,
        *(f"hwmon/hwmon4/{name}" for name in AMD_MI210_SENSORS),
        "hwmon/hwmon4/name",
        "unique_id",
        "product_name",
        "ras/umc_err_count",
    }
    - {"vendor"}
)


@settings(max_examples=60)
@given(changes=st.dictionaries(st.sampled_from(FILES), NONSENSE, max_size=12))
def test_no_content_of_any_file_makes_a_reader_raise(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, bytes]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("amd"))
    device = add_card(tree)
    for name, content in changes.items():
        tree.write(f"{device}/{name}", content)
    reader = opened(tree)
    for t_s in (1, 2):
        (gpu,) = reader.read(at(t_s)).gpus
        assert gpu.unexplained == ()
