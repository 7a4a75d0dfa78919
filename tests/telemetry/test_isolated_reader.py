"""Readers in a process of their own: what crashes or hangs there is a sentence here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.readers import isolated
from eaco_telemetry.readers._reading_json import plain_reading, reading_of
from eaco_telemetry.readers.base import DeviceEvent, Reader, Reading
from eaco_telemetry.readers.host import HostReader
from eaco_telemetry.readers.isolated import IsolatedReader, isolated_nvml
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.sampler import Sampler
from eaco_telemetry.samples import DeviceState, GpuSample, Moment

BUILD = Path(__file__).parent / "fake_nvml" / "build_fake_nvml.py"
SIMULATED = "eaco_telemetry.readers.simulated:SimulatedReader"
ODD = "odd_reader:Odd"
ODD_TEXT = """
import os, sys, time
from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import Reading
from eaco_telemetry.samples import GpuSample

class Odd:
    name = "odd"
    capabilities = {}
    def __init__(self, do="", pid_file=None):
        self.do, self.reads = do, 0
        self.must_restart = False
        print("a library that prints")
        assert not [key for key in os.environ if key.startswith("EACO_")]
        if pid_file:
            with open(pid_file, "a") as file:
                file.write(f"{os.getpid()}\\n")
    def open(self):
        if self.do == "no device":
            raise EnvironmentFault("there is nothing here")
        if self.do == "crash in open":
            os.abort()
    def read(self, now):
        self.reads += 1
        print("it prints")
        if self.reads == 2:
            if self.do == "hang":
                time.sleep(60)
            if self.do == "exit":
                os._exit(3)
            if self.do == "raise":
                raise KeyError("libamd_smi.so")
            if self.do == "restart":
                self.must_restart = True
        return Reading(gpus=(GpuSample("G", "odd", energy_j=10.0 * self.reads),))
    def close(self):
        pass
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that only the child can import, and a pause of nothing after a crash."""
    (tmp_path / "odd_reader.py").write_text(ODD_TEXT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("EACO_MQTT_PASSWORD", "not for a child")
    monkeypatch.setattr(isolated, "FIRST_PAUSE_S", 0.0)
    return tmp_path


def read(reader: Reader, seconds: float = 1.0) -> Reading:
    return reader.read(Moment(1, int(seconds * 1e9)))


def test_a_reading_through_the_pipe_is_the_same() -> None:
    here = SimulatedReader("n", gpus=3, seed=4)
    here.open()
    host = HostReader()
    host.open()
    event = DeviceEvent("xid", "G", 79, "why")
    readings = [read(here), read(here, 90), read(host), Reading(events=(event,), problem="p")]
    readings.append(
        Reading(gpus=(GpuSample("G", "v", state=DeviceState.LOST),), aliases={"a": "G"})
    )
    for reading in readings:
        assert reading_of(plain_reading(reading)) == reading


def test_a_reader_in_its_own_process_gives_the_same_values() -> None:
    there = IsolatedReader("simulated", SIMULATED, {"node_id": "n", "gpus": 2, "seed": 4})
    assert isinstance(there, Reader)
    here = SimulatedReader("n", gpus=2, seed=4)
    for reader in (there, here):
        reader.open()
        reader.open()
    for seconds in (1, 2, 60):
        assert read(there, seconds) == read(here, seconds)
    assert there.capabilities == here.capabilities
    pid = there.pid
    assert pid is not None
    there.close()
    there.close()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("do", "why"),
    [
        ("hang", "it did not answer in 3 s"),
        ("exit", "it ended with code 3"),
        ("raise", "it failed (KeyError: 'libamd_smi.so')"),
    ],
)
def test_a_child_that_fails_is_a_problem_and_started_again(odd: Path, do: str, why: str) -> None:
    pids = odd / "pids"
    arguments = {"do": do, "pid_file": str(pids)}
    reader = IsolatedReader("odd", ODD, arguments, read_timeout_s=3)
    reader.open()
    first = read(reader)
    failed = read(reader, 2)
    again = read(reader, 3)
    reader.close()
    assert (first.gpus[0].energy_j, first.problem) == (10, None)
    assert failed.problem is not None
    assert f"the process for the reader odd: {why}" in failed.problem
    assert (failed.gpus[0].gpu_id, failed.gpus[0].energy_j) == ("G", None)
    assert [event.kind for event in failed.events] == ["failed"]
    # Joules go on from where they were, and say that some are missing.
    assert (again.problem, again.gpus[0].energy_j) == (None, 20)
    assert again.gpus[0].flags == ("energy_rebased",)
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


@pytest.mark.usefixtures("odd")
def test_a_driver_that_needs_a_new_process_gets_one() -> None:
    reader = IsolatedReader("odd", ODD, {"do": "restart"})
    reader.open()
    read(reader)
    pid = reader.pid
    asked = read(reader, 2)
    assert (asked.gpus[0].energy_j, asked.problem) == (20, None)
    assert [event.kind for event in asked.events] == ["failed"]
    assert read(reader, 3).gpus[0].energy_j == 30
    assert reader.pid != pid
    reader.close()


@pytest.mark.usefixtures("odd")
def test_after_a_crash_there_is_a_pause_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr(isolated, "LONGEST_PAUSE_S", 1500.0)
    reader = IsolatedReader("odd", ODD, {"do": "exit"})
    reader.open()
    read(reader)
    failed = read(reader)
    assert "started again 1000 s later" in (failed.problem or "")
    paused = read(reader)
    assert (paused.problem, paused.events) == (failed.problem, ())
    assert (paused.gpus[0].gpu_id, reader.pid, reader.restarts) == ("G", None, 1)
    reader._not_before_s = 0.0
    read(reader)
    assert "started again 1500 s later" in (read(reader).problem or "")
    reader.close()


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize(
    ("do", "why"), [("no device", "there is nothing here"), ("crash in open", "SIGABRT")]
)
def test_a_child_that_finds_nothing_is_no_reader(do: str, why: str) -> None:
    reader = IsolatedReader("odd", ODD, {"do": do})
    with pytest.raises(EnvironmentFault, match=why):
        reader.open()
    assert reader.pid is None


def test_a_factory_that_is_none_is_refused() -> None:
    with pytest.raises(InputError):
        IsolatedReader("x", "no_colon", {})
    with pytest.raises(EnvironmentFault, match="ModuleNotFoundError: No module named"):
        IsolatedReader("x", "no_such_module:make", {}).open()


@pytest.mark.usefixtures("odd")
def test_a_child_ends_with_its_parent() -> None:
    program = (
        "import os, signal, sys\n"
        "from eaco_telemetry.readers.isolated import IsolatedReader\n"
        f"reader = IsolatedReader('odd', {ODD!r}, {{}})\n"
        "reader.open()\n"
        "print(reader.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    child = Path(f"/proc/{int(done.stdout)}")
    for _ in range(200):
        if not child.exists() or "(zombie)" in (child / "status").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child outlived its parent")


# ------------------------------------------------------------------- a driver library


def test_a_driver_library_that_crashes_the_process_is_a_sentence_in_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvitop#139: a GPU fell off the bus, and the library took the program with it."""
    pytest.importorskip(
        "pynvml", reason="nvidia-ml-py is not installed: pip install 'eaco[nvidia]'"
    )
    code = subprocess.run([sys.executable, str(BUILD), str(tmp_path)], check=False).returncode
    if code == 3:
        pytest.skip("there is no C compiler (cc), so no fake libnvidia-ml")
    script = tmp_path / "script"
    script.write_text("crash_at.nvmlDeviceGetUtilizationRates 3\ngpu0.energy_mj 5000\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(script))
    monkeypatch.setattr(isolated, "FIRST_PAUSE_S", 0.0)
    reader = isolated_nvml("n", root=tmp_path)
    reader.open()
    assert reader.pci_addresses == {"0000:01:00.0"}
    sampler = Sampler([reader], node_id="n", session_id="s", read_timeout_s=30, patience_s=30)
    sampler.open_blocking()
    good = [sampler.sample_blocking() for _ in range(2)]
    crashed = sampler.sample_blocking()
    script.write_text("gpu0.util 70\n")
    again = sampler.sample_blocking()
    sampler.close_blocking()
    assert [one.sample.gpus[0].util_ratio for one in good] == [0.5, 0.5]
    assert "it crashed (SIGSEGV)" in crashed.sample.problems["nvml"]
    assert [event.code for event in crashed.events] == [signal.SIGSEGV]
    (lost,) = crashed.sample.gpus
    assert (lost.gpu_id, lost.util_ratio, lost.unexplained) == ("GPU-00000000", None, ())
    assert dict(again.sample.problems) == {}
    assert again.sample.gpus[0].util_ratio == 0.7
