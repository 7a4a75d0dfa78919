"""The library amdsmi, played by a module of our own: odd values, odd counters, odd imports."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers import amdsmi
from eaco_telemetry.readers.amd import AmdReader
from eaco_telemetry.readers.amdsmi import AmdSmiReader, isolated_amdsmi
from eaco_telemetry.readers.base import Reader, node_sample
from eaco_telemetry.samples import EnergyKind, GpuSample, MemoryKind, Moment, PowerKind
from eaco_telemetry.testing.trees import AMD_MI210, AMD_MI210_SENSORS, Tree

if TYPE_CHECKING:
    from pathlib import Path

BDF = "0000:03:00.0"
NOT_AVAILABLE = "N/A"


class Library:
    """What amdsmi of ROCm 7 answers for an MI210; a test changes the answers."""

    class AmdSmiTemperatureType:
        EDGE, HOTSPOT, VRAM = "edge", "hotspot", "vram"

    class AmdSmiTemperatureMetric:
        CURRENT = "current"

    class AmdSmiClkType:
        GFX, MEM = "gfx", "mem"

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "amdsmi_get_gpu_device_bdf": BDF,
            "amdsmi_get_gpu_activity": {
                "gfx_activity": 73,
                "umc_activity": 21,
                "mm_activity": "N/A",
            },
            "amdsmi_get_power_info": {
                "current_socket_power": NOT_AVAILABLE,
                "average_socket_power": 100,
                "power_limit": 300_000_000,
            },
            "amdsmi_get_gpu_vram_usage": {"vram_total": 65_520, "vram_used": 10_902},
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1},
            "amdsmi_get_energy_count": {
                "energy_accumulator": 1_000_000,
                "counter_resolution": 15.3,
                "timestamp": 1,
            },
            "amdsmi_get_violation_status": {
                "active_ppt_pwr": True,
                "active_socket_thrm": False,
                "active_hbm_thrm": NOT_AVAILABLE,
            },
        }
        self.temperatures: dict[str, Any] = {"edge": 48, "hotspot": 56, "vram": 51}
        self.clocks: dict[str, Any] = {"gfx": {"clk": 1700}, "mem": {"cur_clk": 1600}}
        self.handles: list[object] = ["handle"]
        self.shut = 0

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_shut_down(self) -> None:
        self.shut += 1

    def amdsmi_get_processor_handles(self) -> list[object]:
        return self.handles

    def amdsmi_get_temp_metric(self, handle: object, place: str, metric: str) -> Any:  # noqa: ANN401 - as the library
        assert (handle, metric) == ("handle", "current")
        return self.temperatures[place]

    def amdsmi_get_clock_info(self, handle: object, kind: str) -> Any:  # noqa: ANN401 - as the library
        del handle
        return self.clocks[kind]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the library
        def answer(handle: object) -> Any:  # noqa: ANN401 - as the library
            del handle
            return self.answers[name]

        return answer

    def energy_uj(self, microjoules: float) -> None:
        self.answers["amdsmi_get_energy_count"] = {
            "energy_accumulator": microjoules,
            "counter_resolution": 1.0,
        }

    def power(self, *, current: object, average: object) -> None:
        self.answers["amdsmi_get_power_info"] = {
            "current_socket_power": current,
            "average_socket_power": average,
        }


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(amdsmi, "_load", lambda: library)
    return library


def opened() -> AmdSmiReader:
    reader = AmdSmiReader("n")
    reader.open()
    reader.open()
    return reader


def one(reader: AmdSmiReader, seconds: float) -> GpuSample:
    reading = reader.read(Moment(1, int(seconds * 1e9)))
    assert reading.problem is None
    (gpu,) = reading.gpus
    assert gpu.unexplained == ()
    return gpu


def test_amdsmi_gives_si_units(library: Library) -> None:
    reader = opened()
    assert isinstance(reader, Reader)
    gpu = one(reader, 1)
    assert (gpu.gpu_id, gpu.pci_bdf, gpu.vendor) == (f"pci:n/{BDF}", BDF, "amd")
    assert (gpu.util_ratio, gpu.mem_busy_ratio) == (0.73, 0.21)
    assert (gpu.power_w, gpu.power_kind, gpu.power_inst_w) == (100, PowerKind.AVERAGE, None)
    assert (gpu.mem_total_bytes, gpu.mem_used_bytes) == (65_520 << 20, 10_902 << 20)
    assert gpu.mem_kind is MemoryKind.DEDICATED
    assert (gpu.temperature_c, gpu.mem_temperature_c) == (48, 51)
    assert (gpu.clock_sm_hz, gpu.clock_mem_hz) == (1.7e9, 1.6e9)
    assert (gpu.throttle, gpu.ecc_uncorrected) == (("sw_power_cap",), 1)
    reader.close()
    reader.close()
    assert library.shut == 1


def test_a_chip_with_current_power_only_gives_instant_power(library: Library) -> None:
    library.power(current=450, average=NOT_AVAILABLE)
    gpu = one(opened(), 1)
    assert (gpu.power_w, gpu.power_kind, gpu.power_inst_w) == (450, PowerKind.INSTANT, 450)


@pytest.mark.parametrize("nothing", [NOT_AVAILABLE, None, 0xFFFF, 0xFFFFFFFF, "63"])
def test_what_amdsmi_does_not_know_is_none_and_not_0(library: Library, nothing: object) -> None:
    library.power(current=nothing, average=nothing)
    library.answers["amdsmi_get_gpu_activity"] = {"gfx_activity": nothing}
    library.answers["amdsmi_get_gpu_vram_usage"] = nothing
    library.temperatures = {"edge": nothing, "hotspot": 60}  # vram: a KeyError
    gpu = one(opened(), 1)
    assert (gpu.power_w, gpu.util_ratio, gpu.mem_used_bytes) == (None, None, None)
    assert (gpu.temperature_c, gpu.mem_temperature_c) == (60, None)
    assert gpu.rejected == 0


def test_an_impossible_value_of_amdsmi_is_none_and_counted(library: Library) -> None:
    library.answers["amdsmi_get_gpu_activity"] = {"gfx_activity": 1234}
    library.power(current=99_999, average=NOT_AVAILABLE)
    gpu = one(opened(), 1)
    assert (gpu.util_ratio, gpu.power_w) == (None, None)
    assert gpu.rejected == 3


# ------------------------------------------------------------------- the energy counter


def test_a_counter_that_agrees_with_power_gives_the_joules(library: Library) -> None:
    reader = opened()
    library.energy_uj(5e9)
    assert one(reader, 0).energy_j is None  # nothing to compare yet
    library.energy_uj(5e9 + 98e6)
    gpu = one(reader, 1)
    assert (gpu.energy_j, gpu.energy_kind) == (98, EnergyKind.COUNTER)
    assert gpu.integrated_j == 100


@pytest.mark.parametrize(
    "counter",
    [
        pytest.param([5e9] * 6, id="frozen"),
        pytest.param([5e9, 4.9e9, 4.8e9, 4.7e9, 4.6e9, 4.5e9], id="backwards"),
        pytest.param([5e9, 5.001e9, 5.002e9, 5.003e9, 5.004e9, 5.005e9], id="wrong unit"),
        pytest.param([5e9, 5.9e9, 6.8e9, 7.7e9, 8.6e9, 9.5e9], id="far too fast"),
        pytest.param([5e9, 200e6, 300e6, 400e6, 500e6, 600e6], id="reset"),
    ],
)
def test_a_counter_of_amd_that_lies_is_replaced_by_power_summed_up(
    library: Library, counter: list[float]
) -> None:
    """amdsmi#22, #38, #115, rocm_smi_lib#180: frozen, wrong, or going backwards."""
    reader = opened()
    seen: list[GpuSample] = []
    for second, microjoules in enumerate(counter):
        library.energy_uj(microjoules)
        seen.append(one(reader, second))
    assert seen[0].energy_j is None
    kinds = {gpu.energy_kind for gpu in seen if gpu.energy_j is not None}
    assert kinds == {EnergyKind.INTEGRATED}
    assert seen[-1].energy_j == 500
    assert seen[-1].flags == ()


def test_a_counter_that_fails_later_is_rebased_and_never_falls(library: Library) -> None:
    reader = opened()
    raw = [0, 100e6, 200e6, 3e6, 103e6, 203e6]
    seen: list[GpuSample] = []
    for second, microjoules in enumerate(raw):
        library.energy_uj(microjoules)
        seen.append(one(reader, second))
    assert [gpu.energy_j for gpu in seen] == [None, 100, 200, 200, 300, 400]
    assert seen[-1].flags == ("energy_rebased",)


def test_an_old_amdsmi_calls_the_counter_power(library: Library) -> None:
    reader, seen = opened(), list[GpuSample]()
    for second in range(2):
        told = {"power": second * 10e6, "counter_resolution": 10.0}
        library.answers["amdsmi_get_energy_count"] = told
        seen.append(one(reader, second))
    assert seen[1].energy_j == 100


# ------------------------------------------------------------------- beside sysfs


def test_amdsmi_adds_to_a_card_what_sysfs_lacks_and_no_more(
    library: Library, tmp_path: Path
) -> None:
    tree = Tree(tmp_path)
    tree.kernel_threads()
    device = tree.card(0, BDF, "amdgpu", {**AMD_MI210, "unique_id": "7d3a1f2e9b4c5d6e"})
    tree.hwmon(device, 1, "amdgpu", AMD_MI210_SENSORS)
    files = AmdReader("n", root=tmp_path)
    files.open()
    reader = opened()
    for second in range(3):
        now = Moment(1, second * 10**9)
        library.energy_uj(second * 100e6)
        readings = {"amd": files.read(now), "amdsmi": reader.read(now)}
        sample = node_sample(readings, node_id="n", session_id="s", seq=0, now=now)
        (gpu,) = sample.gpus
        assert (gpu.gpu_id, gpu.power_w) == ("GPU-7d3a1f2e9b4c5d6e", 187)
        assert (gpu.throttle, gpu.ecc_uncorrected) == (("sw_power_cap",), 1)
        assert gpu.energy_kind is EnergyKind.INTEGRATED  # of sysfs, from the first sample on
        assert gpu.energy_j == 187 * second


# ------------------------------------------------------------------- the import


def test_an_amdsmi_without_rocm_prints_and_raises_and_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
        print("Unable to find libamd_smi.so library")
        raise KeyError("libamd_smi.so")
    """
    (tmp_path / "amdsmi.py").write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(
        EnvironmentFault, match=r"cannot be loaded \(KeyError.*of the installed ROCm"
    ):
        isolated_amdsmi("n").open()
    assert capfd.readouterr() == ("", "")


def test_where_amdsmi_is_not_installed_the_reader_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "amdsmi", None)
    with pytest.raises(EnvironmentFault, match="not installed; it comes with ROCm"):
        AmdSmiReader("n").open()


def test_an_amdsmi_that_lists_nothing_or_fails_is_no_reader(library: Library) -> None:
    library.handles = []
    with pytest.raises(EnvironmentFault, match="lists no GPU"):
        opened()
    library.handles = ["handle"]
    del library.answers["amdsmi_get_gpu_device_bdf"]
    with pytest.raises(EnvironmentFault, match="does not work here: KeyError"):
        opened()
    assert AmdSmiReader("n").read(Moment(1, 1)).problem == "amdsmi is not open"
