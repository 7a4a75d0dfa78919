"""Which readers a machine gets: no device twice, nothing woken, hints about what is missing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.readers import auto, nvml
from eaco_telemetry.readers.amd import AmdReader
from eaco_telemetry.readers.auto import NAMES, Choice, choose_readers
from eaco_telemetry.readers.base import Reader
from eaco_telemetry.readers.drm import DrmReader
from eaco_telemetry.readers.jetson import JetsonReader
from eaco_telemetry.sampler import Sampler
from eaco_telemetry.samples import DeviceState, NodeSample
from eaco_telemetry.testing.trees import (
    AMD_MI210,
    AMD_MI210_SENSORS,
    Tree,
    amd_fdinfo,
    failing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_telemetry.readers._nvml_binding import Nvml

CHILD = Path(__file__).with_name("auto_child.py")
NO_ROOT = Path(__file__).with_name("no_root_child.py")
BUILD = Path(__file__).parent / "fake_nvml" / "build_fake_nvml.py"
AMD_BDF, INTEL_BDF, NV_BDF = "0000:03:00.0", "0000:83:00.0", "0000:01:00.0"


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see the driver of the machine that it runs on; a child has the fake one."""

    def missing() -> Nvml:
        raise EnvironmentFault("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(nvml, "Nvml", missing)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine without GPUs."""
    tree = Tree(tmp_path)
    tree.kernel_threads()
    tree.meminfo(16_000_000, 9_000_000)
    tree.write("/proc/stat", "cpu  100 0 50 800 20 0 1 0 0 0")
    tree.write("/proc/sys/kernel/osrelease", "6.14.0")
    return tree


def amd(tree: Tree, number: int = 0, bdf: str = AMD_BDF) -> str:
    device = tree.card(number, bdf, "amdgpu", AMD_MI210)
    tree.hwmon(device, number + 1, "amdgpu", AMD_MI210_SENSORS)
    return device


def nvidia_card(tree: Tree, number: int, bdf: str, driver: str, status: str = "active") -> None:
    """An NVIDIA GPU on the PCI bus, with any driver."""
    files = {"vendor": "0x10de", "class": "0x030000", "power/runtime_status": status}
    device = tree.card(number, bdf, driver, {**files, "power/control": "auto"})
    tree.link(f"/sys/bus/pci/devices/{bdf}", device)


def names(choice: Choice) -> list[str]:
    return [reader.name for reader in choice.readers]


def sample(choice: Choice) -> NodeSample:
    sampler = Sampler(choice.readers, node_id="n", session_id="s")
    sampler.open_blocking()
    taken = sampler.sample_blocking().sample
    sampler.close_blocking()
    assert all(gpu.unexplained == () for gpu in taken.gpus)
    return taken


# ------------------------------------------------------------------- the choice


def test_a_machine_without_a_gpu_is_read_as_a_host(tree: Tree) -> None:
    choice = choose_readers("n", root=tree.root)
    assert names(choice) == ["host"]
    assert set(choice.skipped) == set(NAMES) - {"host"}
    assert all(why for why in choice.skipped.values())
    taken = sample(choice)
    assert taken.gpus == ()
    assert taken.host is not None


def test_each_vendor_gets_its_reader_and_the_general_one_the_rest(tree: Tree) -> None:
    amd(tree)
    tree.card(1, INTEL_BDF, "xe", {"vendor": "0x8086"})
    tree.platform_card(2, "1002000000.v3d", "v3d", {})
    choice = choose_readers("n", root=tree.root)
    assert names(choice) == ["amd", "intel", "drm", "host"]
    assert all(isinstance(reader, Reader) for reader in choice.readers)
    taken = sample(choice)
    assert [gpu.vendor for gpu in taken.gpus] == ["amd", "intel", "broadcom"]
    assert len({gpu.gpu_id for gpu in taken.gpus}) == 3


def test_readers_that_were_chosen_are_not_opened_a_second_time(tree: Tree) -> None:
    device = amd(tree)
    choice = choose_readers("n", root=tree.root)
    first = sample(choice)
    tree.unplug(0, device)
    sampler = Sampler(choice_of_open(tree), node_id="n", session_id="s")
    sampler.open_blocking()
    sampler.close_blocking()
    assert first.gpus[0].power_w == 187


def choice_of_open(tree: Tree) -> tuple[Reader, ...]:
    """Open readers whose GPU is gone: opening anew would find nothing and fail."""
    device = amd(tree, 5, "0000:05:00.0")
    choice = choose_readers("n", root=tree.root, want=["amd"])
    tree.unplug(5, device)
    (reader,) = choice.readers
    reader.open()
    assert "pci:n/0000:05:00.0" in reader.capabilities
    return choice.readers


def test_a_gpu_that_another_reader_has_is_left_to_it(tree: Tree) -> None:
    nvidia_card(tree, 0, NV_BDF, "nouveau")
    nvidia_card(tree, 1, "0000:02:00.0", "nouveau")
    reader = DrmReader("n", root=tree.root, but=[NV_BDF])
    reader.open()
    assert list(reader.capabilities) == ["pci:n/0000:02:00.0"]


def test_a_gpu_under_nouveau_is_read_by_the_general_reader_with_a_hint(tree: Tree) -> None:
    nvidia_card(tree, 0, NV_BDF, "nouveau")
    choice = choose_readers("n", root=tree.root)
    assert names(choice) == ["drm", "host"]
    assert [gpu.gpu_id for gpu in sample(choice).gpus] == [f"pci:n/{NV_BDF}"]
    assert any(NV_BDF in hint and "nouveau" in hint for hint in choice.hints)


def test_a_gpu_kept_for_a_virtual_machine_is_nobodys(tree: Tree) -> None:
    nvidia_card(tree, 0, NV_BDF, "vfio-pci", "suspended")
    assert names(choose_readers("n", root=tree.root)) == ["drm", "host"]
    choice = choose_readers("n", root=tree.root, want=["host"])
    assert names(choice) == ["host"]


def jetson(tree: Tree, model: str, soc: str) -> None:
    tree.write("/proc/device-tree/model", f"{model}\0".encode())
    tree.write("/proc/device-tree/compatible", f"{soc}\0".encode())
    # Its display driver shows a card with a render node, which is no second GPU.
    tree.platform_card(0, "13e00000.host1x", "drm", {})


def test_a_jetson_is_read_through_its_files_and_once(tree: Tree) -> None:
    jetson(tree, "NVIDIA Jetson AGX Orin Developer Kit", "nvidia,tegra234")
    tree.write("/sys/class/devfreq/17000000.gpu/device/load", 300)
    choice = choose_readers("n", root=tree.root)
    assert names(choice) == ["jetson", "host"]
    assert "Jetson" in choice.skipped["nvml"]
    (gpu,) = sample(choice).gpus
    assert (gpu.gpu_id, gpu.util_ratio) == ("soc:n", 0.3)


def test_a_sleeping_gpu_is_not_touched_by_the_choice(tree: Tree) -> None:
    device = amd(tree)
    tree.write(f"{device}/power/runtime_status", "suspended")
    # The names of sensors are kept by the kernel; their values are asked of the GPU.
    values = ("gpu_busy_percent", "hwmon/hwmon1/power1_average", "hwmon/hwmon1/temp1_input")
    sensors = [tree.root / device.lstrip("/") / name for name in values]
    with failing(*sensors) as tried:
        choice = choose_readers("n", root=tree.root)
        taken = sample(choice)
    assert tried == []
    assert taken.gpus[0].state is DeviceState.ASLEEP


def test_amdsmi_is_not_loaded_where_a_gpu_can_sleep(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "amdsmi.py").write_text("raise SystemExit('loaded')")
    monkeypatch.setattr(sys, "path", [str(library), *sys.path])
    device = amd(tree)
    tree.write(f"{device}/power/control", "auto")
    choice = choose_readers("n", root=tree.root)
    assert names(choice) == ["amd", "host"]
    assert "awake" in choice.skipped["amdsmi"]


# ------------------------------------------------------------------- what is asked for


def test_only_what_is_asked_for_is_read(tree: Tree) -> None:
    amd(tree)
    choice = choose_readers("n", root=tree.root, want=["amd"])
    assert names(choice) == ["amd"]
    assert choice.skipped["host"] == "not asked for"


@pytest.mark.parametrize("name", ["nvml", "amd", "intel", "drm", "jetson", "dcgm", "amdsmi"])
def test_what_is_asked_for_and_has_nothing_to_read_is_said(tree: Tree, name: str) -> None:
    with pytest.raises(EnvironmentFault, match=name):
        choose_readers(
            "n", root=tree.root, want=["host", name], dcgm_url="http://127.0.0.1:1/metrics"
        )


def test_a_name_that_no_reader_has_is_refused() -> None:
    with pytest.raises(InputError, match="there is no reader 'cuda'"):
        choose_readers("n", want=["cuda"])
    with pytest.raises(InputError, match="no reader is asked for"):
        choose_readers("n", want=[])
    with pytest.raises(InputError, match="stand alone"):
        choose_readers("n", want=["host"], simulate=3)


def test_simulated_gpus_stand_alone(tree: Tree) -> None:
    amd(tree)
    for choice in (
        choose_readers("n", root=tree.root, simulate=3, seed=1),
        choose_readers("n", root=tree.root, want=["simulated"], simulate=3, seed=1),
    ):
        taken = sample(choice)
        assert (names(choice), len(taken.gpus), taken.simulated) == (["simulated"], 3, True)


def test_a_reader_that_hangs_while_it_opens_is_left_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(auto, "OPEN_S", 0.1)

    def hang(_reader: AmdReader) -> None:
        gate.wait()

    monkeypatch.setattr(AmdReader, "open", hang)
    choice = choose_readers("n", root=tree.root)
    gate.set()
    assert names(choice) == ["host"]
    assert "in time" in choice.skipped["amd"]


# ------------------------------------------------------------------- hints


def test_root_rights_for_the_processors_are_hinted_at(tree: Tree) -> None:
    zone = "/sys/class/powercap/intel-rapl:0"
    tree.write(f"{zone}/name", "package-0")
    energy = tree.write(f"{zone}/energy_uj", 900)
    assert choose_readers("n", root=tree.root).hints == ()
    with failing(energy):
        (hint,) = choose_readers("n", root=tree.root).hints
    assert "root rights would add the joules of the processors" in hint


def test_processes_of_others_are_hinted_at(tree: Tree) -> None:
    amd(tree)
    tree.process(77, "train")
    tree.open_gpu(77, 3, amd_fdinfo(AMD_BDF, 1))
    assert choose_readers("n", root=tree.root).hints == ()
    with failing(tree.root / "proc/77/fd"):
        (hint,) = choose_readers("n", root=tree.root).hints
    assert "root rights would add the others" in hint


def test_a_missing_extra_is_hinted_at_where_there_is_an_nvidia_gpu(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "_has_binding", lambda: False)
    assert choose_readers("n", root=tree.root).hints == ()
    tree.write("/dev/nvidia0", "")
    (hint,) = choose_readers("n", root=tree.root).hints
    assert "pip install 'eaco[nvidia]'" in hint
    tree.remove("/dev/nvidia0")
    nvidia_card(tree, 0, NV_BDF, "nvidia")
    assert choose_readers("n", root=tree.root).hints == (hint,)


# ------------------------------------------------------------------- with a driver


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libnvidia")
    code = subprocess.run([sys.executable, str(BUILD), str(folder)], check=False).returncode
    if code == 3:
        pytest.skip("there is no C compiler (cc), so no fake libnvidia-ml")
    assert code == 0
    return folder


def child(library: Path, tree: Tree, *words: str, **settings: object) -> dict[str, object]:
    """Choose readers in a process with the fake driver; give what was read."""
    pytest.importorskip(
        "pynvml", reason="nvidia-ml-py is not installed: pip install 'eaco[nvidia]'"
    )
    script = tree.write("/script", "\n".join(f"{word} {value}" for word, value in settings.items()))
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_SCRIPT": str(script),
    }
    done = subprocess.run(
        [sys.executable, str(CHILD), str(tree.root), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_an_nvidia_gpu_is_read_through_nvml_in_or_out_of_this_process(
    library: Path, tree: Tree
) -> None:
    nvidia_card(tree, 0, "0000:01:00.0", "nvidia")
    for words in ((), ("isolate",)):
        told = child(library, tree, *words)
        assert told["readers"] == ["nvml", "host"]
        assert told["gpus"] == [["GPU-00000000", "0000:01:00.0", 0.5]]


def test_a_thor_is_one_gpu_whose_values_come_from_both(library: Path, tree: Tree) -> None:
    jetson(tree, "NVIDIA Jetson AGX Thor Developer Kit", "nvidia,tegra264")
    tree.write("/sys/class/devfreq/gpu-gpc-0/cur_freq", 1_575_000_000)
    told = child(
        library,
        tree,
        **{"gpu0.error.nvmlDeviceGetClockInfo": 3, "gpu0.error.nvmlDeviceGetPowerUsage": 3},
    )
    assert told["readers"] == ["nvml", "jetson", "host"]
    assert told["gpus"] == [["GPU-00000000", "0000:01:00.0", 0.5]]
    assert told["clocks"] == [1_575_000_000]


@pytest.fixture
def exporter() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            labels = 'UUID="GPU-00000000",pci_bus_id="00000000:01:00.0"'
            self.wfile.write(f"DCGM_FI_PROF_SM_ACTIVE{{{labels}}} 0.25\n".encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_exporter_beside_nvml_adds_to_the_same_gpu(
    library: Path, tree: Tree, exporter: str
) -> None:
    nvidia_card(tree, 0, "0000:01:00.0", "nvidia")
    told = child(library, tree, f"dcgm={exporter}")
    assert told["readers"] == ["nvml", "dcgm", "host"]
    assert told["gpus"] == [["GPU-00000000", "0000:01:00.0", 0.5]]
    assert told["sm_active"] == [0.25]


def test_a_driver_that_comes_after_boot_is_waited_for(library: Path, tree: Tree) -> None:
    nvidia_card(tree, 0, "0000:01:00.0", "nvidia")
    told = child(library, tree, "wait", **{"error.nvmlInitWithFlags": 9})
    assert told["readers"] == ["nvml", "host"]
    assert "no NVIDIA driver" in str(told["problems"])
    assert told["gpus"] == [["GPU-00000000", "0000:01:00.0", 0.5]]


def test_a_driver_without_a_gpu_is_no_reader(library: Path, tree: Tree) -> None:
    told = child(library, tree, count=0)
    assert (told["readers"], told["gpus"], told["problems"]) == (["host"], [], {})


# ------------------------------------------------------------------- odd machines


@pytest.mark.parametrize("gone", ["/sys", "/proc", "/sys/class", ""])
def test_a_machine_without_its_files_gives_reasons_and_no_error(tree: Tree, gone: str) -> None:
    amd(tree)
    if gone:
        tree.remove(gone)
    root = tree.root if gone else tree.root / "nowhere"
    choice = choose_readers("n", root=root)
    assert names(choice) in (["host"], ["amd"], [])
    taken = sample(choice)
    assert all(gpu.unexplained == () for gpu in taken.gpus)


def test_without_root_rights_there_is_less_and_it_says_so() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101, S103 - those of a test are for their owner alone
        tree = Tree(Path(folder))
        tree.kernel_threads()
        tree.meminfo(16_000_000, 9_000_000)
        tree.write("/proc/stat", "cpu  100 0 50 800 20 0 1 0 0 0")
        amd(tree)
        zone = "/sys/class/powercap/intel-rapl:0"
        tree.write(f"{zone}/name", "package-0")
        tree.write(f"{zone}/energy_uj", 900).chmod(0)
        tree.process(77, "train")
        (tree.root / "proc/77/fd").chmod(0)
        told = json.loads(
            subprocess.run(
                [sys.executable, str(NO_ROOT), folder], check=True, stdout=subprocess.PIPE
            ).stdout
        )
        (tree.root / "proc/77/fd").chmod(0o700)
    assert told["uid"] != 0
    assert (told["readers"], told["problems"]) == (["amd", "host"], {})
    hidden = "only own processes can be seen; root rights would add the others"
    assert told["gpus"] == [[187, 0.73, hidden]]
    assert told["memory"] == 16_000_000 * 1024
    assert told["package"] == "no permission to read energy_uj; root rights would add it"
    assert len(told["hints"]) == 2


def test_a_thousand_gpus_are_read_in_one_sample() -> None:
    # Ten thousand files: in memory where that is possible, and gone at once.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - made by tempfile
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        root = Path(folder)
        many_cards(root, 1024)
        choice = choose_readers("n", root=root, want=["amd"])

        async def main() -> NodeSample:
            sampler = Sampler(
                choice.readers, node_id="n", session_id="s", read_timeout_s=60, patience_s=60
            )
            await sampler.open()
            taken = await sampler.sample()
            await sampler.close()
            return taken.sample

        taken = asyncio.run(main())
    assert len(taken.gpus) == 1024
    assert {gpu.util_ratio for gpu in taken.gpus} == {0.07}


def many_cards(root: Path, count: int) -> None:
    """Make cards with as few files as will do."""
    classes = root / "sys/class/drm"
    classes.mkdir(parents=True)
    for number in range(count):
        device = root / f"sys/devices/{number >> 8:04x}:{number & 0xFF:02x}:00.0"
        card = device / f"drm/card{number}"
        card.mkdir(parents=True)
        (device / "gpu_busy_percent").write_text("7\n")
        (device / "driver").symlink_to("../../bus/pci/drivers/amdgpu")
        (card / "device").symlink_to("../..")
        (classes / f"card{number}").symlink_to(card)


def test_a_reader_of_a_jetson_may_bear_the_id_that_nvml_knows(tree: Tree) -> None:
    jetson(tree, "NVIDIA Jetson AGX Thor Developer Kit", "nvidia,tegra264")
    reader = JetsonReader("n", root=tree.root, gpu_id="GPU-7")
    reader.open()
    assert list(reader.capabilities) == ["GPU-7"]
