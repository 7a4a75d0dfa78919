"""The NVML reader and the real nvidia-ml-py on top of a libnvidia-ml of our own.

Each test is about one way in which drivers surprise; docs/telemetry.md lists them.
"""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

from eaco_core.errors import EnvironmentFault, InternalError
from eaco_telemetry.readers import _nvml_driver
from eaco_telemetry.readers._nvml_binding import Nvml, NvmlFailure
from eaco_telemetry.readers.base import Reader, Reading
from eaco_telemetry.readers.nvml import NvmlOptions, NvmlReader
from eaco_telemetry.samples import (
    DeviceState,
    EnergyKind,
    GpuSample,
    MemoryKind,
    Moment,
    PowerKind,
    ProcessSample,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'eaco[nvidia]'")

BUILD = Path(__file__).parent / "fake_nvml" / "build_fake_nvml.py"
GIB = 1 << 30
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, IS_LOST, MISMATCH, UNKNOWN = 3, 4, 13, 15, 18, 999


@define
class Fake:
    """The driver of one test: what it answers, and a `/proc` and `/sys` beside it."""

    library: ctypes.CDLL
    root: Path
    readers: list[NvmlReader] = field(factory=list[NvmlReader])
    start_ns: int = field(factory=time.monotonic_ns)

    def set(self, word: str, value: object) -> None:
        self.library.fake_set(
            word.encode(), value if isinstance(value, bytes) else str(value).encode()
        )

    def fail(self, function: str, code: int, gpu: str = "gpu0.") -> None:
        self.set(f"{gpu}error.{function}", code)

    def heal(self, word: str) -> None:
        self.library.fake_unset(word.encode())

    def calls(self, function: str) -> int:
        return int(self.library.fake_calls(function.encode()))

    def processes(self, *pids: int) -> None:
        """Let these processes be there."""
        for pid in pids:
            (self.root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
            (self.root / f"proc/{pid}/comm").write_text(f"train{pid}\n")

    def memory(self, total: int, available: int) -> None:
        text = (
            f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"
        )
        (self.root / "proc/meminfo").write_text(text)

    def reader(self, **options: Any) -> NvmlReader:  # noqa: ANN401 - any option
        options.setdefault("process_every", 1)
        reader = NvmlReader("n1", NvmlOptions(root=self.root, **options))
        self.readers.append(reader)
        reader.open()
        return reader

    def at(self, seconds: float) -> Moment:
        """Give a time after the start of the test, which is not waited for."""
        return Moment(wall_ns=1, monotonic_ns=self.start_ns + int(seconds * 1e9))

    def one(self, reader: NvmlReader | None = None, seconds: float = 1.0) -> GpuSample:
        """Read a machine with one GPU."""
        (gpu,) = (reader or self.reader()).read(self.at(seconds)).gpus
        assert gpu.unexplained == ()
        return gpu


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("libnvidia")
    code = subprocess.run([sys.executable, str(BUILD), str(folder)], check=False).returncode
    if code == 3:
        pytest.skip("there is no C compiler (cc), so no fake libnvidia-ml")
    assert code == 0
    return ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))


@pytest.fixture
def fake(library: ctypes.CDLL, tmp_path: Path) -> Iterator[Fake]:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    fake = Fake(library, tmp_path)
    fake.memory(64 * GIB, 48 * GIB)
    library.fake_reset()
    _nvml_driver._opened_in.clear()
    yield fake
    for reader in fake.readers:
        reader.close()
    while library.fake_inits():
        library.nvmlShutdown()


def _kinds(reading: Reading) -> list[str]:
    return [event.kind for event in reading.events]


def test_a_healthy_gpu_gives_everything_in_si_units(fake: Fake) -> None:
    fake.set("gpu0.field185.0", 101_000)
    fake.set("gpu0.field186.0", 120_000)
    fake.set("gpu0.field82.0", 60)
    fake.set("gpu0.throttle", 0x4 | 0x40)
    fake.processes(41)
    fake.set("gpu0.processes", f"41:{3 * GIB}")
    fake.set("gpu0.shares", "41:1000:80")
    reader = fake.reader()
    assert isinstance(reader, Reader)
    gpu = fake.one(reader)
    assert (gpu.gpu_id, gpu.vendor) == ("GPU-00000000", "nvidia")
    assert (gpu.name, gpu.pci_bdf) == ("Fake GPU", "0000:01:00.0")
    assert (gpu.util_ratio, gpu.mem_busy_ratio) == (0.5, 0.25)
    assert (gpu.power_w, gpu.power_kind, gpu.power_inst_w) == (101.0, PowerKind.AVERAGE, 120.0)
    assert (gpu.temperature_c, gpu.mem_temperature_c, gpu.power_limit_w) == (45, 60, 300.0)
    assert (gpu.clock_sm_hz, gpu.clock_mem_hz) == (1.5e9, 5e9)
    assert gpu.throttle == ("sw_power_cap", "hw_thermal")
    assert gpu.processes == (ProcessSample(41, "train41", 0.8, 3 * GIB),)
    assert gpu.ecc_uncorrected == 0
    assert (gpu.energy_j, gpu.energy_kind) == (0.0, EnergyKind.COUNTER)
    assert reader.capabilities[gpu.gpu_id] == gpu.capabilities
    assert set(gpu.missing) == {"module_power_w", "sm_active_ratio", "dram_active_ratio"}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_unified_memory_by_error_comes_from_the_kernel(fake: Fake, code: int) -> None:
    fake.fail("nvmlDeviceGetMemoryInfo", code)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", code)
    gpu = fake.one()
    assert gpu.mem_kind is MemoryKind.UNIFIED
    assert (gpu.mem_total_bytes, gpu.mem_used_bytes) == (64 * GIB, 16 * GIB)
    assert gpu.mem_reserved_bytes is None


@pytest.mark.parametrize("total", [0, 64 * GIB])
def test_unified_memory_by_a_wrong_total_comes_from_the_kernel(fake: Fake, total: int) -> None:
    fake.set("gpu0.mem_total", total)
    gpu = fake.one()
    assert (gpu.mem_kind, gpu.mem_used_bytes) == (MemoryKind.UNIFIED, 16 * GIB)


def test_unified_memory_counts_page_cache_as_available(fake: Fake) -> None:
    fake.fail("nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED)
    fake.memory(64 * GIB, 60 * GIB)
    assert fake.one().mem_used_bytes == 4 * GIB, "MemFree is 1 kB in this fake"


def test_what_the_driver_reserves_is_not_used_memory(fake: Fake) -> None:
    gpu = fake.one()
    assert (gpu.mem_used_bytes, gpu.mem_reserved_bytes) == (GIB, GIB // 2)
    assert "mem_used_includes_reserved" not in gpu.flags


def test_memory_version_2_is_asked_for_by_struct_size(fake: Fake) -> None:
    fake.one()
    assert fake.calls("nvmlDeviceGetMemoryInfo_v2") == 1
    assert fake.calls("nvmlDeviceGetMemoryInfo") == 0
    with pytest.raises(NvmlFailure):
        Nvml().call(
            "nvmlDeviceGetMemoryInfo", Nvml().call("nvmlDeviceGetHandleByIndex", 0), version=2
        )


def test_the_longer_process_struct_of_r535_is_noticed(fake: Fake) -> None:
    fake.processes(41, 42)
    fake.set("gpu0.r535", 1)
    fake.set("gpu0.processes", f"41:{GIB} 42:{2 * GIB} 43:{GIB}")
    gpu = fake.one()
    assert gpu.processes is not None
    assert {process.pid for process in gpu.processes} <= {41, 42}
    assert "processes_unreliable" in gpu.flags


@pytest.mark.parametrize("pid", [0, 4294967295, 4194305, 77])
def test_a_process_that_cannot_be_there_is_left_out(fake: Fake, pid: int) -> None:
    fake.processes(41)
    fake.set("gpu0.processes", f"41:5 {pid}:7")
    gpu = fake.one()
    assert gpu.processes is not None
    assert [process.pid for process in gpu.processes] == [41]
    assert "processes_unreliable" in gpu.flags


def test_process_memory_that_is_not_available_is_none(fake: Fake) -> None:
    fake.processes(41, 42)
    fake.set("gpu0.processes", "41:-1 42:9223372036854775792")
    gpu = fake.one()
    assert gpu.processes is not None
    assert [process.mem_used_bytes for process in gpu.processes] == [None, None]


def test_process_shares_above_100_and_old_ones_are_left_out(fake: Fake) -> None:
    fake.processes(41, 42, 43)
    fake.set("gpu0.processes", "41:1 42:1 43:1")
    fake.set("gpu0.shares", "41:1000:30 41:2000:60 42:2000:4000000000 0:2000:50")
    gpu = fake.one()
    assert gpu.processes is not None
    assert [process.sm_ratio for process in gpu.processes] == [0.6, 0.0, 0.0]


def test_the_last_stamp_of_process_shares_is_passed_back(fake: Fake) -> None:
    fake.processes(41)
    fake.set("gpu0.processes", "41:1")
    fake.set("gpu0.shares", "41:5000:30")
    reader = fake.reader()
    fake.one(reader, 1)
    fake.set("gpu0.shares", "41:5000:30 41:6000:70")
    gpu = fake.one(reader, 2)
    assert fake.library.fake_number(b"asked_since") == 5000
    assert gpu.processes is not None
    assert gpu.processes[0].sm_ratio == 0.7


def test_no_process_shares_of_an_idle_gpu_is_no_failure(fake: Fake) -> None:
    gpu = fake.one()
    assert gpu.processes == ()
    fake.processes(41)
    fake.set("gpu0.processes", "41:1")
    fake.set("gpu0.shares", "")
    gpu = fake.one()
    assert gpu.processes is not None
    assert gpu.processes[0].sm_ratio == 0.0, "success without samples is no error either"
    fake.fail("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)
    gpu = fake.one()
    assert gpu.processes is not None
    assert gpu.processes[0].sm_ratio is None


def test_processes_of_the_host_seen_from_a_container_are_kept_without_names(fake: Fake) -> None:
    (fake.root / "proc/self/ns/pid").unlink()
    (fake.root / "proc/self/ns/pid").symlink_to("pid:[4026532890]")
    fake.processes(41)  # another process of the container that has the same number
    fake.set("gpu0.processes", "41:5 9000:7")
    gpu = fake.one()
    assert gpu.processes is not None
    assert [(process.pid, process.name) for process in gpu.processes] == [(41, None), (9000, None)]
    assert gpu.flags == ("pids_of_host",)


def test_processes_are_asked_for_at_every_nth_read_only_and_hold(fake: Fake) -> None:
    fake.processes(41)
    fake.set("gpu0.processes", "41:5")
    reader = fake.reader(process_every=10)
    samples = [fake.one(reader, 1 + tick) for tick in range(10)]
    assert fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 2, "once for size, once"
    assert {sample.processes for sample in samples} == {samples[0].processes}


def test_power_is_named_by_what_the_chip_means(fake: Fake) -> None:
    for major, minor, kind in ((7, 0, "instant"), (8, 0, "instant"), (8, 6, "average")):
        fake.set("gpu0.cc_major", major)
        fake.set("gpu0.cc_minor", minor)
        gpu = fake.one()
        assert gpu.power_w == 100.0
        assert gpu.power_kind is PowerKind(kind)
        assert ("power_sampled_in_part" in gpu.flags) is ((major, minor) == (8, 0))
    fake.fail("nvmlDeviceGetCudaComputeCapability", NOT_SUPPORTED)
    gpu = fake.one()
    assert gpu.power_kind is None
    assert "power_kind_unknown" in gpu.flags


def test_a_field_that_fails_is_none_and_not_0_watts(fake: Fake) -> None:
    fake.set("gpu0.field186.0", 90_000)
    fake.fail("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    gpu = fake.one()
    assert (gpu.power_w, gpu.power_kind) == (90.0, PowerKind.INSTANT)
    assert gpu.module_power_w is None
    assert gpu.mem_temperature_c is None


def test_the_counter_is_preferred_and_doubted_when_power_disagrees(fake: Fake) -> None:
    reader = fake.reader()
    samples: list[GpuSample] = []
    for tick in range(21):
        fake.set("gpu0.energy_mj", 5_000_000 + tick * 50_000)  # 50 W against 100 W of power
        samples.append(fake.one(reader, 1 + tick))
    gpu = samples[-1]
    doubts = ["energy_disagrees" in sample.flags for sample in samples]
    assert doubts == [False] * 3 + [True] * 18, "not below 100 J of difference"
    assert gpu.energy_j == pytest.approx(1000.0)
    assert gpu.integrated_j == pytest.approx(2000.0)
    assert gpu.energy_kind is EnergyKind.COUNTER


def test_without_a_counter_energy_is_power_summed_up(fake: Fake) -> None:
    fake.fail("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    reader = fake.reader()
    fake.one(reader, 1)
    gpu = fake.one(reader, 3)
    assert gpu.energy_j == pytest.approx(200.0)
    assert gpu.energy_kind is EnergyKind.INTEGRATED
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == 1, "asked for once"
    fake.fail("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    gpu = fake.one(reader, 4)
    assert gpu.energy_j is None, "not a silent 0"


def test_power_from_the_counter_needs_100_ms_and_a_rise(fake: Fake) -> None:
    fake.fail("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    reader = fake.reader()
    assert fake.one(reader, 1.0).power_w is None
    fake.set("gpu0.energy_mj", 1_002_000)
    assert fake.one(reader, 1.05).power_w is None
    fake.set("gpu0.energy_mj", 1_020_000)
    gpu = fake.one(reader, 1.2)
    assert gpu.power_w == pytest.approx(100.0)
    assert gpu.power_kind is PowerKind.INTEGRATED
    assert fake.one(reader, 1.4).power_w == pytest.approx(100.0), "the counter stood still"


def test_energy_of_a_module_says_so(fake: Fake) -> None:
    fake.set("gpu0.field186.1", 0)
    assert "energy_of_module" not in fake.one().flags
    fake.set("gpu0.field186.1", 500_000)
    gpu = fake.one()
    assert gpu.module_power_w == 500.0
    assert "energy_of_module" in gpu.flags


@pytest.mark.parametrize("raw_mj", [200_000, 9_000_000_000, 3_690_000_000_000_000])
def test_an_energy_counter_that_drops_or_jumps_is_rebased(fake: Fake, raw_mj: int) -> None:
    reader = fake.reader()
    fake.set("gpu0.energy_mj", 5_000_000)
    fake.one(reader, 1)
    fake.set("gpu0.energy_mj", 5_100_000)
    assert fake.one(reader, 2).energy_j == pytest.approx(100)
    fake.set("gpu0.energy_mj", raw_mj)
    gpu = fake.one(reader, 3)
    assert gpu.energy_j == pytest.approx(100)
    assert "energy_rebased" in gpu.flags
    fake.set("gpu0.energy_mj", raw_mj + 30_000)
    assert fake.one(reader, 4).energy_j == pytest.approx(130)


@pytest.mark.parametrize("percent", [101, 808_334_905, 4_294_967_295])
def test_utilisation_out_of_range_is_none_and_counted(fake: Fake, percent: int) -> None:
    fake.set("gpu0.util", percent)
    reader = fake.reader()
    assert [fake.one(reader, tick).rejected for tick in (1, 2)] == [1, 2]
    gpu = fake.one(reader, 3)
    assert gpu.util_ratio is None
    assert "impossible" in gpu.missing["util_ratio"]
    assert gpu.mem_busy_ratio == 0.25


def test_marks_for_blank_are_none(fake: Fake) -> None:
    for word in ("power_mw", "temperature", "clock_sm", "clock_mem", "limit_mw"):
        fake.set(f"gpu0.{word}", 2_147_483_632)
    fake.set("gpu0.mem_used", 9_223_372_036_854_775_792)
    fake.set("gpu0.ecc", 140_737_488_355_328)
    gpu = fake.one()
    values = (gpu.power_w, gpu.temperature_c, gpu.clock_sm_hz, gpu.clock_mem_hz, gpu.power_limit_w)
    assert values == (None,) * 5
    assert (gpu.mem_used_bytes, gpu.ecc_uncorrected) == (None, None)
    assert gpu.rejected >= 6


def test_0_degrees_of_memory_is_no_sensor(fake: Fake) -> None:
    fake.set("gpu0.field82.0", 0)
    assert fake.one().mem_temperature_c is None


def test_mig_gives_none_for_utilisation_and_a_sample_for_each_instance(fake: Fake) -> None:
    fake.set("gpu0.mig", 1)
    fake.set("gpu0.mig_count", 2)
    fake.set("gpu0.util", 0)
    fake.set("gpu0.mig1.mem_used", 5 * GIB)
    fake.processes(41)
    fake.set("gpu0.mig1.processes", f"41:{GIB}")
    parent, first, second = fake.reader().read(fake.at(1)).gpus
    assert (parent.util_ratio, parent.power_w, parent.processes) == (None, 100.0, None)
    assert (first.gpu_id, second.gpu_id) == ("MIG-00000000-0", "MIG-00000000-1")
    assert second.parent_id == parent.gpu_id == "GPU-00000000"
    assert (second.mem_used_bytes, second.util_ratio, second.power_w) == (5 * GIB, None, None)
    assert second.processes == (ProcessSample(41, "train41", None, GIB),)
    assert (parent.unexplained, first.unexplained, second.unexplained) == ((), (), ())


def test_a_guest_without_sensors_says_so_in_its_capabilities(fake: Fake) -> None:
    for call in ("Temperature", "PowerUsage", "TotalEnergyConsumption", "ClockInfo"):
        fake.fail(f"nvmlDeviceGet{call}", NOT_SUPPORTED)
    gpu = fake.one()
    assert {"util_ratio", "mem_used_bytes"} <= set(gpu.capabilities)
    absent = {"temperature_c", "power_w", "energy_j", "clock_sm_hz", "integrated_j"}
    assert not absent & set(gpu.capabilities)
    assert absent <= set(gpu.missing)


def test_what_a_device_never_gives_is_asked_for_once(fake: Fake) -> None:
    fake.fail("nvmlDeviceGetClockInfo", NOT_SUPPORTED)
    reader = fake.reader()
    for tick in range(5):
        fake.one(reader, tick + 1)
    assert fake.calls("nvmlDeviceGetClockInfo") == 2, "once for each of two clocks"


def test_any_other_error_is_none_with_its_number(fake: Fake) -> None:
    fake.fail("nvmlDeviceGetUtilizationRates", 27)
    gpu = fake.one()
    assert gpu.util_ratio is None
    assert "27" in gpu.missing["util_ratio"]


def test_a_name_with_bad_bytes_is_none_and_the_uuid_is_the_key(fake: Fake) -> None:
    fake.set("gpu0.name", b"NVIDIA \xff\xfe")
    gpu = fake.one()
    assert (gpu.name, gpu.gpu_id) == (None, "GPU-00000000")
    assert "name_unreadable" in gpu.flags


def test_without_a_uuid_the_pci_address_of_the_node_is_the_key(fake: Fake) -> None:
    fake.fail("nvmlDeviceGetUUID", NOT_SUPPORTED)
    assert fake.one().gpu_id == "pci:n1/0000:01:00.0"


def test_gpus_are_keyed_by_uuid_whatever_their_order(fake: Fake) -> None:
    fake.set("count", 3)
    fake.set("order", "201")
    fake.set("gpu2.util", 99)
    gpus = fake.reader().read(fake.at(1)).gpus
    assert [gpu.gpu_id for gpu in gpus] == [f"GPU-0000000{number}" for number in range(3)]
    assert [gpu.util_ratio for gpu in gpus] == [0.5, 0.5, 0.99]


def test_persistence_mode_off_is_told(fake: Fake) -> None:
    fake.set("gpu0.persistence", 0)
    assert "persistence_off" in fake.one().flags


def test_a_lost_gpu_is_reported_left_alone_and_taken_back(fake: Fake) -> None:
    fake.set("count", 2)
    reader = fake.reader()
    assert [gpu.state.value for gpu in reader.read(fake.at(1)).gpus] == ["active", "active"]
    fake.set("gpu1.lost", 1)
    reading = reader.read(fake.at(2))
    assert [gpu.state for gpu in reading.gpus] == [DeviceState.ACTIVE, DeviceState.LOST]
    assert [(event.kind, event.gpu_id) for event in reading.events] == [("lost", "GPU-00000001")]
    before = fake.calls("nvmlDeviceGetUtilizationRates")
    assert reader.read(fake.at(3)).events == (), "told once"
    assert fake.calls("nvmlDeviceGetUtilizationRates") == before + 1, "the healthy one only"
    fake.heal("gpu1.lost")
    fake.set("gpu0.energy_mj", 1_300_000)
    fake.set("gpu1.energy_mj", 1_300_000)
    reading = reader.read(fake.at(100))
    assert _kinds(reading) == ["returned"]
    assert [gpu.state.value for gpu in reading.gpus] == ["active", "active"]
    assert [gpu.energy_j for gpu in reading.gpus] == [300.0, 0.0], "its count may be another"
    assert fake.calls("nvmlDeviceRegisterEvents") == 4, "both are watched again"


def test_a_gpu_that_vanishes_without_an_xid_is_lost(fake: Fake) -> None:
    fake.set("count", 2)
    reader = fake.reader()
    reader.read(fake.at(1))
    fake.set("count", 1)
    reading = reader.read(fake.at(2))
    assert _kinds(reading) == ["lost"]
    assert reading.gpus[1].state is DeviceState.LOST
    assert reading.gpus[1].unexplained == ()


def test_an_xid_is_an_event_of_its_gpu(fake: Fake) -> None:
    fake.set("count", 2)
    reader = fake.reader()
    reader.read(fake.at(1))
    fake.set("gpu1.xid", 79)
    (event,) = reader.read(fake.at(2)).events
    assert (event.kind, event.gpu_id, event.code) == ("xid", "GPU-00000001", 79)
    reader.read(fake.at(100))
    assert fake.calls("nvmlEventSetCreate") == 1, "nothing is missed while devices are counted"


def test_an_event_wait_that_fails_at_once_backs_off(fake: Fake) -> None:
    fake.fail("nvmlEventSetWait_v2", IS_LOST, gpu="")
    reader = fake.reader()
    for tick in range(20):
        reader.read(fake.at(1 + tick))
    assert fake.calls("nvmlEventSetWait_v2") == 1
    assert fake.calls("nvmlEventSetFree") == 1
    reader.read(fake.at(100))
    assert fake.calls("nvmlEventSetWait_v2") == 2


def test_a_driver_mismatch_is_said_plainly_and_tried_again_slowly(fake: Fake) -> None:
    fake.fail("nvmlInitWithFlags", MISMATCH, gpu="")
    reader = fake.reader()
    reading = reader.read(fake.at(1))
    assert reading.gpus == ()
    assert reading.problem is not None
    assert "reboot" in reading.problem
    assert _kinds(reading) == ["driver_mismatch"]
    assert [_kinds(reader.read(fake.at(second))) for second in range(2, 50)] == [[]] * 48
    assert fake.calls("nvmlInitWithFlags") == 1
    fake.heal("error.nvmlInitWithFlags")
    reading = reader.read(fake.at(70))
    assert (len(reading.gpus), reading.problem) == (1, None)


def test_unknown_errors_reopen_the_driver_once_and_then_ask_for_a_restart(fake: Fake) -> None:
    reader = fake.reader()
    assert fake.one(reader, 1).power_w == 100.0
    fake.set("gpu0.error", UNKNOWN)
    kinds = [_kinds(reader.read(fake.at(2 + tick))) for tick in range(8)]
    assert [kind for many in kinds for kind in many] == ["reinitialised"]
    assert fake.calls("nvmlShutdown") == 1
    assert fake.calls("nvmlInitWithFlags") == 2
    assert reader.must_restart
    problem = reader.read(fake.at(11)).problem
    assert problem is not None
    assert "restart the container" in problem
    fake.heal("gpu0.error")
    assert fake.one(reader, 12).power_w == 100.0
    assert not reader.must_restart


def test_the_driver_is_opened_once_in_a_process_and_left_open(fake: Fake) -> None:
    first, second = fake.reader(), fake.reader()
    for tick in range(5):
        first.read(fake.at(1 + tick))
        second.read(fake.at(1 + tick))
    assert fake.calls("nvmlDeviceGetHandleByIndex_v2") == 2, "handles are kept"
    first.close()
    first.close()
    assert fake.one(second, 10).power_w == 100.0
    assert (fake.calls("nvmlInitWithFlags"), fake.calls("nvmlShutdown")) == (1, 0)


def test_a_driver_that_hangs_costs_the_time_limit_and_the_next_read_nothing(fake: Fake) -> None:
    reader = fake.reader(read_timeout_s=0.05)
    fake.one(reader, 1)
    fake.set("delay_ms.nvmlDeviceGetUtilizationRates", 400)
    begin = time.monotonic()
    reading = reader.read(fake.at(2))
    assert reading.problem is not None
    assert reading.gpus[0].power_w is None
    assert reading.gpus[0].unexplained == ()
    assert all(reader.read(fake.at(3 + tick)).problem for tick in range(50))
    assert time.monotonic() - begin < 0.3
    assert fake.calls("nvmlDeviceGetUtilizationRates") == 2, "calls do not queue up"
    fake.heal("delay_ms.nvmlDeviceGetUtilizationRates")
    deadline = time.monotonic() + 5
    while reader.read(fake.at(4)).problem is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_event_loop_goes_on_while_the_driver_is_slow(fake: Fake) -> None:
    reader = fake.reader()
    fake.set("delay_ms.nvmlDeviceGetUtilizationRates", 200)

    async def both() -> tuple[int, Reading]:
        with pytest.raises(InternalError):
            reader.read(fake.at(1))
        reading = asyncio.ensure_future(reader.read_async(fake.at(1)))
        ticks = 0
        while not reading.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks, await reading

    ticks, reading = asyncio.run(both())
    assert ticks >= 5
    assert reading.gpus[0].util_ratio == 0.5


@pytest.mark.parametrize("code", [9, 12])
def test_a_machine_without_a_driver_says_so(fake: Fake, code: int) -> None:
    fake.fail("nvmlInitWithFlags", code, gpu="")
    with pytest.raises(EnvironmentFault, match="no NVIDIA driver"):
        fake.reader()
