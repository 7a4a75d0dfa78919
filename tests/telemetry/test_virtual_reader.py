"""Virtual GPUs: real processes are seen by their environment, and everything says simulated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import Reader
from eaco_telemetry.readers.virtual import VirtualGpuReader
from eaco_telemetry.samples import Moment

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
BUSY = "import sys; sys.stdout.write('.'); sys.stdout.flush(); [0 for _ in iter(int, 1)]"


def _start(gpu_ids: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu_ids}
    child = subprocess.Popen([sys.executable, "-c", BUSY], env=environ, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    return child


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def test_a_process_is_on_the_gpus_that_its_environment_names() -> None:
    reader = VirtualGpuReader({"SIM-a": 512 * MIB, "SIM-b": 512 * MIB})
    assert isinstance(reader, Reader)
    reader.open()
    child = _start("SIM-a")
    try:
        first = reader.read(Moment.now())
        assert first.simulated
        assert first.gpus[0].util_ratio is None
        assert "two readings" in first.gpus[0].missing["util_ratio"]
        time.sleep(0.5)
        busy, idle = reader.read(Moment.now()).gpus
    finally:
        _end(child)
    assert (busy.gpu_id, idle.gpu_id) == ("SIM-a", "SIM-b")
    assert busy.util_ratio is not None
    assert busy.util_ratio > 0.05
    assert idle.util_ratio == 0.0
    assert busy.power_w is not None
    assert idle.power_w is not None
    assert busy.power_w > idle.power_w > 0
    assert busy.processes is not None
    (process,) = busy.processes
    assert process.pid == child.pid
    assert process.mem_used_bytes is not None
    assert process.mem_used_bytes > MIB
    assert busy.mem_used_bytes == process.mem_used_bytes
    assert busy.unexplained == idle.unexplained == ()


def test_the_energy_only_rises_and_a_process_that_ended_is_gone() -> None:
    reader = VirtualGpuReader({"SIM-a": MIB})
    reader.open()
    child = _start("SIM-a,other")
    energies: list[float] = []
    try:
        for _ in range(3):
            (gpu,) = reader.read(Moment.now()).gpus
            assert gpu.energy_j is not None
            energies.append(gpu.energy_j)
            time.sleep(0.05)
    finally:
        _end(child)
    (gpu,) = reader.read(Moment.now()).gpus
    assert energies == sorted(energies)
    assert gpu.processes == ()


def test_a_process_on_two_gpus_is_shared_out(tmp_path: Path) -> None:
    place = tmp_path / "proc" / "7"
    place.mkdir(parents=True)
    ticks = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")

    def write(cpu_s: float) -> None:
        numbers = ["S", *["0"] * 10, str(int(cpu_s * ticks)), "0", *["0"] * 6, "5", "0", "100"]
        (place / "stat").write_text(f"7 (a) name) {' '.join(numbers)} 0 0")

    write(0)
    (place / "environ").write_bytes(b"X=1\0CUDA_VISIBLE_DEVICES=SIM-a,SIM-b\0")
    reader = VirtualGpuReader({"SIM-a": MIB, "SIM-b": MIB}, root=tmp_path)
    reader.open()
    reader.read(Moment(1, 10**9))
    write(1)
    one, two = reader.read(Moment(1, 3 * 10**9)).gpus
    assert one.util_ratio == two.util_ratio == 0.25
    assert one.mem_used_bytes == 50 * page
    assert one.energy_j == pytest.approx(2 * (one.power_w or 0))


def test_without_proc_there_is_no_process_and_no_error(tmp_path: Path) -> None:
    reader = VirtualGpuReader({"SIM-a": MIB}, root=tmp_path)
    reader.open()
    reader.read(Moment(1, 0))
    (gpu,) = reader.read(Moment(1, 10**9)).gpus
    assert gpu.util_ratio == 0.0
    reader.close()
    with pytest.raises(InputError):
        VirtualGpuReader({})
