"""GPUs that are played by CPU cores: real processes, real utilisation, modelled power.

For trying a scheduler out on a machine without a GPU. A process is on a virtual GPU if its
environment says so (CUDA_VISIBLE_DEVICES, by GPU id), as a runner sets it. Utilisation is the CPU
time of these processes against one core per GPU, memory is what they hold in main memory, and power
follows from utilisation by the model of `eaco_telemetry.power`. Nothing of it is a GPU: every
`Reading` says that it is simulated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field

from eaco_core.errors import InputError
from eaco_telemetry.power import SqrtGpu
from eaco_telemetry.readers.base import Reading
from eaco_telemetry.readers.fdinfo import process_name
from eaco_telemetry.readers.sysfs import names_in
from eaco_telemetry.samples import EnergyKind, GpuSample, MemoryKind, PowerKind, ProcessSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import Moment

_VARIABLE: Final = b"CUDA_VISIBLE_DEVICES="
_MEM_BUSY_PER_UTIL: Final = 0.5
_REASON: Final = "a virtual GPU has none"
_FIRST: Final = "the utilisation needs two readings"
_LONGEST_ENVIRON_BYTES: Final = 1 << 20


@define(eq=False)
class _Process:
    """One process: CPU seconds used at the reading before, and on which GPUs it is."""

    gpu_ids: frozenset[str]
    cpu_s: float
    name: str | None
    started: bytes


@define(eq=False)
class _Gpu:
    gpu_id: str
    mem_total_bytes: int
    energy_j: float = 0.0
    processes: dict[int, tuple[float, int, str | None]] = field(
        factory=dict[int, tuple[float, int, "str | None"]]
    )


class VirtualGpuReader:
    """Reads virtual GPUs. See `eaco_telemetry.readers.base.Reader`.

    `gpus`: for each GPU id its memory in bytes. Only processes that this user may look into are
    seen. `power`: watts from utilisation.
    """

    def __init__(
        self, gpus: Mapping[str, int], *, power: SqrtGpu | None = None, root: Path = Path("/")
    ) -> None:
        if not gpus:
            raise InputError("a virtual reader needs at least one GPU id")
        self._gpus = {gpu_id: _Gpu(gpu_id, total) for gpu_id, total in gpus.items()}
        self._power = SqrtGpu() if power is None else power
        self._proc = root / "proc"
        self._root = root
        self._processes: dict[int, _Process | None] = {}
        self._last_s: float | None = None
        self._ticks_hz = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "virtual"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each GPU, the values that are modelled."""
        return dict.fromkeys(self._gpus, _CAPABILITIES)

    def open(self) -> None:
        """Begin anew; joules count from the first reading."""
        self._processes.clear()
        self._last_s = None
        for gpu in self._gpus.values():
            gpu.energy_j = 0.0

    def read(self, now: Moment) -> Reading:
        """Look at all processes once."""
        now_s = now.monotonic_s
        passed_s = None if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        for gpu in self._gpus.values():
            gpu.processes.clear()
        seen: set[int] = set()
        for name in names_in(self._proc):
            if name.isdecimal():
                pid = int(name)
                seen.add(pid)
                self._look_at(pid, passed_s)
        for pid in self._processes.keys() - seen:
            del self._processes[pid]
        samples = tuple(self._sample(gpu, passed_s) for gpu in self._gpus.values())
        return Reading(gpus=samples, simulated=True)

    def close(self) -> None:
        """Forget all processes."""
        self._processes.clear()

    def _look_at(self, pid: int, passed_s: float | None) -> None:
        stat = self._stat(pid)
        if stat is None:
            self._processes.pop(pid, None)
            return
        cpu_s, resident_bytes, started = stat
        known = self._processes.get(pid)
        if pid not in self._processes or (known is not None and known.started != started):
            known = self._identify(pid, cpu_s, started)
            self._processes[pid] = known
        if known is None:
            return
        used_s = max(0.0, cpu_s - known.cpu_s)
        known.cpu_s = cpu_s
        share = used_s / passed_s / len(known.gpu_ids) if passed_s else 0.0
        for gpu_id in known.gpu_ids:
            each_bytes = resident_bytes // len(known.gpu_ids)
            self._gpus[gpu_id].processes[pid] = (min(1.0, share), each_bytes, known.name)

    def _stat(self, pid: int) -> tuple[float, int, bytes] | None:
        """Give CPU seconds, resident bytes and start time of a process; None if it is gone."""
        try:
            text = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        fields = text.rpartition(b")")[2].split()
        try:
            cpu_s = (int(fields[11]) + int(fields[12])) / self._ticks_hz
            return cpu_s, int(fields[21]) * self._page_bytes, fields[19]
        except (IndexError, ValueError):
            return None

    def _identify(self, pid: int, cpu_s: float, started: bytes) -> _Process | None:
        try:
            with (self._proc / str(pid) / "environ").open("rb") as stream:
                environ = stream.read(_LONGEST_ENVIRON_BYTES)
        except OSError:
            return None
        for variable in environ.split(b"\0"):
            if variable.startswith(_VARIABLE):
                named = variable[len(_VARIABLE) :].decode("utf-8", errors="replace").split(",")
                gpu_ids = frozenset(named) & self._gpus.keys()
                if gpu_ids:
                    return _Process(
                        frozenset(gpu_ids), cpu_s, process_name(self._root, pid), started
                    )
        return None

    def _sample(self, gpu: _Gpu, passed_s: float | None) -> GpuSample:
        missing = dict.fromkeys(_ABSENT, _REASON)
        util_ratio = power_w = None
        if passed_s:
            util_ratio = min(1.0, sum(share for share, _, _ in gpu.processes.values()))
            power_w = self._power.power_w(util_ratio)
            gpu.energy_j += power_w * passed_s
        else:
            missing |= dict.fromkeys(("util_ratio", "mem_busy_ratio", "power_w"), _FIRST)
        used_bytes = sum(resident for _, resident, _ in gpu.processes.values())
        return GpuSample(
            gpu_id=gpu.gpu_id,
            vendor="simulated",
            name="virtual GPU (a CPU core)",
            util_ratio=util_ratio,
            mem_busy_ratio=None if util_ratio is None else util_ratio * _MEM_BUSY_PER_UTIL,
            mem_used_bytes=used_bytes,
            mem_total_bytes=gpu.mem_total_bytes,
            mem_reserved_bytes=0,
            mem_kind=MemoryKind.DEDICATED,
            power_w=power_w,
            power_kind=PowerKind.AVERAGE,
            energy_j=gpu.energy_j,
            energy_kind=EnergyKind.INTEGRATED,
            processes=tuple(
                ProcessSample(pid, name, share if passed_s else None, resident)
                for pid, (share, resident, name) in sorted(gpu.processes.items())
            ),
            missing=missing,
            capabilities=_CAPABILITIES,
        )


_CAPABILITIES: Final = (
    "energy_j",
    "mem_busy_ratio",
    "mem_reserved_bytes",
    "mem_total_bytes",
    "mem_used_bytes",
    "power_w",
    "processes",
    "util_ratio",
)
_ABSENT: Final = tuple(sorted(set(GpuSample("any", "simulated").unexplained) - set(_CAPABILITIES)))
