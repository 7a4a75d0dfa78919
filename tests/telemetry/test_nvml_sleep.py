"""NVML: GPUs that sleep, machines that are none of its business, and processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers import nvml
from eaco_telemetry.readers._nvml_binding import load_binding
from eaco_telemetry.readers._nvml_system import LinuxView, bdf_of
from eaco_telemetry.readers.nvml import NvmlOptions, NvmlReader
from eaco_telemetry.samples import DeviceState, Moment

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'eaco[nvidia]'")

FAKE = Path(__file__).parent / "fake_nvml"
READERS = Path(nvml.__file__).parent


def _at(seconds: float) -> Moment:
    return Moment(wall_ns=1, monotonic_ns=int(seconds * 1e9))


def _pci_gpu(root: Path, bdf: str, *, status: str, control: str = "auto") -> None:
    device = root / "sys/bus/pci/devices" / bdf
    (device / "power").mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("vendor", "0x10de"),
        ("class", "0x030000"),
        ("power/runtime_status", status),
        ("power/control", control),
    ):
        (device / name).write_text(text + "\n")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the driver of today and an old one, each in a folder of its own."""
    found: dict[str, Path] = {}
    for name, defines in (("new", []), ("old", ["-DOLD_DRIVER"])):
        found[name] = tmp_path_factory.mktemp(name)
        build = [sys.executable, str(FAKE / "build_fake_nvml.py"), str(found[name]), *defines]
        code = subprocess.run(build, check=False).returncode
        if code == 3:
            pytest.skip("there is no C compiler (cc), so no fake libnvidia-ml")
        assert code == 0
    return found


def _run(library: Path, script: str, *arguments: str, words: str = "") -> dict[str, object]:
    """Run a part of `nvml_child.py` in a process whose driver is this library."""
    (library / "words").write_text(words)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_SCRIPT": str(library / "words"),
    }
    command = [sys.executable, str(FAKE / "nvml_child.py"), script, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    result: dict[str, object] = json.loads(ran.stdout)
    return result


def test_a_sleeping_gpu_is_reported_and_not_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pci_gpu(tmp_path, "0000:01:00.0", status="suspended")
    reader = NvmlReader("n1", NvmlOptions(root=tmp_path))

    def touched(*_: object) -> None:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr("eaco_telemetry.readers._nvml_binding.Nvml.call", touched)
    reader.open()
    for second in range(3):
        (gpu,) = reader.read(_at(second)).gpus
        assert (gpu.gpu_id, gpu.state) == ("pci:n1/0000:01:00.0", DeviceState.ASLEEP)
        assert (gpu.power_w, gpu.unexplained) == (None, ())
    assert reader._worker is None, "not even a thread was started"


@pytest.mark.parametrize("status", ["active", "unsupported", "resuming", "error"])
def test_a_gpu_without_power_management_counts_as_awake(tmp_path: Path, status: str) -> None:
    _pci_gpu(tmp_path, "0000:01:00.0", status=status)
    (gpu,) = LinuxView(tmp_path).pci_gpus()
    assert not gpu.asleep


def test_only_display_devices_of_nvidia_are_gpus(tmp_path: Path) -> None:
    _pci_gpu(tmp_path, "0000:01:00.0", status="active")
    _pci_gpu(tmp_path, "0000:01:00.1", status="suspended")  # the sound of a graphics card
    (tmp_path / "sys/bus/pci/devices/0000:01:00.1/class").write_text("0x040300\n")
    _pci_gpu(tmp_path, "0000:02:00.0", status="suspended")
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0/vendor").write_text("0x8086\n")
    assert [gpu.bdf for gpu in LinuxView(tmp_path).pci_gpus()] == ["0000:01:00.0"]


def test_an_idle_gpu_that_can_sleep_is_let_go(libraries: dict[str, Path], tmp_path: Path) -> None:
    """The driver is shut after 30 s without work, left alone for 60 s, then looked into again."""
    _pci_gpu(tmp_path, "0000:01:00.0", status="active", control="auto")
    told = _run(libraries["new"], "rest", str(tmp_path), words="gpu0.util 0\n")
    assert told["reasons"] == [None] * 4 + ["the GPU is left alone so that it can fall asleep"] * 5
    assert told["after"] == [0.0, None]
    assert told["energy_j"] == 500.0, "what it used in the meantime was used"
    assert (told["shutdowns"], told["inits"]) == (1, 2)


def test_a_gpu_that_cannot_sleep_or_works_is_never_let_go(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    _pci_gpu(tmp_path, "0000:01:00.0", status="active", control="on")
    assert _run(libraries["new"], "rest", str(tmp_path), words="gpu0.util 0\n")["shutdowns"] == 0
    _pci_gpu(tmp_path, "0000:01:00.0", status="active", control="auto")
    assert _run(libraries["new"], "rest", str(tmp_path), words="gpu0.util 1\n")["shutdowns"] == 0


def test_symbols_that_an_old_driver_lacks_are_done_without(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    told = _run(libraries["old"], "read", str(tmp_path), words="gpu0.throttle 0x20\n")
    assert told["mem_used_bytes"] == (1 << 30) + (512 << 20)
    assert told["mem_reserved_bytes"] is None
    assert "mem_used_includes_reserved" in str(told["flags"])
    assert (told["power_w"], told["power_inst_w"]) == (100.0, None)
    assert told["throttle"] == ["sw_thermal"]
    assert told["unexplained"] == []


def test_of_two_gpus_the_sleeping_one_is_left_alone(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    _pci_gpu(tmp_path, "0000:01:00.0", status="active")
    _pci_gpu(tmp_path, "0000:02:00.0", status="suspended")
    told = _run(libraries["new"], "every", str(tmp_path), words="count 2\n")
    assert told["GPU-00000000"] == ["active", 1 << 30]
    assert told["GPU-00000001"] == ["asleep", None]
    assert told["calls"] == 1


def test_a_mig_instance_without_memory_info_has_not_the_memory_of_the_node(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    words = "gpu0.mig 1\ngpu0.mig_count 1\n"
    words += "".join(f"error.nvmlDeviceGetMemoryInfo{version} 3\n" for version in ("", "_v2"))
    told = _run(libraries["new"], "every", str(tmp_path), words=words)
    assert told["MIG-00000000-0"] == ["active", None]
    assert told["GPU-00000000"] == ["active", 600 * 1024]


def test_a_minute_without_reads_is_no_disagreement_and_a_new_gpu_is_watched(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    told = _run(libraries["new"], "gap", str(tmp_path))
    assert told["energy_j"] == 6000.0
    assert "energy_disagrees" not in str(told["flags"])
    assert told["events"] == [["appeared", "GPU-00000001"]]
    assert told["watched"] == [1, 3]


def test_events_of_a_read_that_came_too_late_are_told_with_the_next(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    told = _run(libraries["new"], "late", str(tmp_path))
    assert told == {"problem": True, "events": [[], ["lost"], []]}


def test_a_child_made_by_fork_opens_the_driver_for_itself(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    told = _run(libraries["new"], "fork", str(tmp_path))
    assert told == {"parent_w": 100.0, "child_w": 100.0, "parent_inits": 1, "child_inits": 2}


def test_a_jetson_is_not_read_through_nvml(tmp_path: Path) -> None:
    model = tmp_path / "proc/device-tree/model"
    model.parent.mkdir(parents=True)
    model.write_text("NVIDIA Jetson AGX Orin\0")
    with pytest.raises(EnvironmentFault, match="Jetson"):
        NvmlReader("n1", NvmlOptions(root=tmp_path)).open()
    model.write_text("NVIDIA Jetson AGX Thor\0")
    assert not LinuxView(tmp_path).is_jetson_without_nvml()


def test_a_package_that_hides_nvidia_ml_py_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", sys)  # any module without NVIDIA's functions
    with pytest.raises(EnvironmentFault, match="pip uninstall"):
        load_binding()


def test_nothing_is_set_on_a_device_and_nvidia_smi_is_not_started() -> None:
    sources = [path.read_text() for path in READERS.glob("*nvml*.py")]
    assert len(sources) > 10
    assert not any("nvmlDeviceSet" in source or "subprocess" in source for source in sources)


def test_a_process_that_proc_hides_is_there_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert LinuxView().has_process(os.getpid())
    assert not LinuxView().has_process(ended.pid)

    def forbidden(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert LinuxView().has_process(ended.pid), "it belongs to somebody else"


def test_the_kernel_and_nvml_name_a_pci_device_alike() -> None:
    assert bdf_of("00000000:0A:00.0") == "0000:0a:00.0"
    assert bdf_of("0001:0A:00.0") == "0001:0a:00.0"
