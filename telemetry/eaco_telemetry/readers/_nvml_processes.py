"""The processes on one device, cleaned of what drivers make up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from eaco_telemetry.readers._nvml_binding import Code, Nvml, NvmlFailure
from eaco_telemetry.readers.base import percent_to_ratio
from eaco_telemetry.samples import ProcessSample

if TYPE_CHECKING:
    from eaco_telemetry.readers._nvml_system import LinuxView

UNRELIABLE = "processes_unreliable"
"""Flag: the driver named processes that cannot exist; those were left out."""

HOST_PIDS = "pids_of_host"
"""Flag: the process numbers are those of the host, and this is a container."""


@define
class ProcessList:
    """Asks one device for its processes. `last_seen_us`: how far its samples were taken."""

    nvml: Nvml
    system: LinuxView
    last_seen_us: int = field(default=0, init=False)
    shares_reason: str | None = field(default=None, init=False)

    def read(self, handle: object, *, shares: bool) -> tuple[tuple[ProcessSample, ...], set[str]]:
        """Give the processes and flags. `shares`: also ask for the use of the SMs.

        Raises `NvmlFailure` if the device gives no list at all.
        """
        flags: set[str] = set()
        entries = self._entries(handle, flags)
        sm_ratios = self._sm_ratios(handle) if shares else {}
        local = self.system.sees_all_processes()
        if not local:
            flags.add(HOST_PIDS)
        samples = tuple(
            ProcessSample(
                pid,
                name=self.system.process_name(pid) if local else None,
                # A process that was listed and had no sample did nothing since the last one,
                # but only where the device gives samples at all.
                sm_ratio=sm_ratios.get(pid, 0.0) if shares and not self.shares_reason else None,
                mem_used_bytes=mem_used_bytes,
            )
            for pid, mem_used_bytes in sorted(entries.items())
        )
        return samples, flags

    def _entries(self, handle: object, flags: set[str]) -> dict[int, int | None]:
        pid_max, local = self.system.pid_max(), self.system.sees_all_processes()
        entries: dict[int, int | None] = {}
        for entry in self.nvml.call("nvmlDeviceGetComputeRunningProcesses", handle):
            pid = int(entry.pid)
            if not 0 < pid <= pid_max or pid in entries:
                flags.add(UNRELIABLE)
            elif local and not self.system.has_process(pid):
                # It may just have ended; a scrambled list names many such numbers.
                flags.add(UNRELIABLE)
            else:
                entries[pid] = _bytes(entry.usedGpuMemory)
        return entries

    def _sm_ratios(self, handle: object) -> dict[int, float]:
        """Give the newest share of the SMs by process since the last call."""
        try:
            samples: list[Any] = list(
                self.nvml.call("nvmlDeviceGetProcessUtilization", handle, self.last_seen_us)
            )
        except NvmlFailure as failure:
            idle = failure.code in {Code.SUCCESS, Code.NOT_FOUND}
            self.shares_reason = None if idle else failure.reason
            return {}
        self.shares_reason = None
        newest: dict[int, tuple[int, float]] = {}
        for sample in samples:
            ratio = percent_to_ratio(sample.smUtil)
            pid, stamp_us = int(sample.pid), int(sample.timeStamp)
            if ratio is None or pid == 0 or stamp_us <= self.last_seen_us:
                continue
            if stamp_us >= newest.get(pid, (0, 0.0))[0]:
                newest[pid] = (stamp_us, ratio)
        if newest:
            self.last_seen_us = max(stamp_us for stamp_us, _ in newest.values())
        return {pid: ratio for pid, (_, ratio) in newest.items()}


def _bytes(value: int | None) -> int | None:
    # The binding gives None for "not available"; older ones give the number itself.
    return None if value is None or value >= 1 << 62 else int(value)
