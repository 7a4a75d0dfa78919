"""The driver as a whole: opened once, its devices found, lost and found again.

Everything here runs on the worker's thread.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers._nvml_asker import DeviceLost
from eaco_telemetry.readers._nvml_binding import GONE, Code, Nvml, NvmlFailure
from eaco_telemetry.readers._nvml_device import NvmlDevice
from eaco_telemetry.readers._nvml_events import EventSet
from eaco_telemetry.readers._nvml_system import LinuxView, bdf_of
from eaco_telemetry.readers.base import DeviceEvent, Reading
from eaco_telemetry.samples import DeviceState, GpuSample

if TYPE_CHECKING:
    from collections.abc import Collection

RETRY_S: Final = 60.0
"""How long a driver that cannot be opened is left alone."""

LOOK_AROUND_S: Final = 60.0
"""How often devices are counted anew even if their number has not changed."""

SILENT_READS: Final = 3
"""After so many reads of nothing but "unknown error" the driver is opened anew, once."""

REOPEN_S: Final = 3600.0
"""Only one such reopening in this time; opening again and again has broken drivers."""

_NOTHING_HERE: Final = frozenset({Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED})

_PROBLEMS: Final[dict[int, str]] = {
    Code.LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver was updated while its old kernel module runs on:"
        " reboot, or unload and load the module nvidia"
    ),
    Code.UNKNOWN: (
        "the NVIDIA driver answers with unknown errors; in a container this comes after"
        " systemctl daemon-reload on the host: restart the container"
    ),
}

# Opening the driver is counted by the binding and must happen once in a process. A child
# made by fork inherits the count but not the state of the driver.
_opened_in: set[int] = set()


@define
class NvmlDriver:
    """NVML with all its devices, in one process."""

    node_id: str
    system: LinuxView
    nvml: Nvml
    devices: dict[str, NvmlDevice] = field(factory=dict[str, NvmlDevice], init=False)
    is_open: bool = field(default=False, init=False)
    must_restart: bool = field(default=False, init=False)
    _problem: str | None = field(default=None, init=False)
    _retry_at_s: float = field(default=-math.inf, init=False)
    _look_at_s: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False)
    _silent_reads: int = field(default=0, init=False)
    _reopened_s: float | None = field(default=None, init=False)
    _news: list[DeviceEvent] = field(factory=list[DeviceEvent], init=False)
    _event_set: EventSet = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._event_set = EventSet(self.nvml)

    def open(self, now_s: float) -> None:
        """Open the driver and find its devices.

        Raises `EnvironmentFault` where there is no driver; a driver that is there but does
        not work is tried again later.
        """
        try:
            self._open(now_s)
        except NvmlFailure as failure:
            if failure.code in _NOTHING_HERE:
                raise EnvironmentFault("there is no NVIDIA driver on this machine") from failure
            self._note_failure(failure, now_s)

    def read(self, now_s: float, *, with_processes: bool, asleep: Collection[str] = ()) -> Reading:
        """Read all devices except those `asleep` (PCI addresses)."""
        if not self.is_open and now_s >= self._retry_at_s:
            try:
                self._open(now_s)
            except NvmlFailure as failure:
                self._note_failure(failure, now_s)
        if not self.is_open:
            reason = self._problem or "the driver is not open"
            return self._reading(self._without_driver(reason))
        self._look_around(now_s)
        samples: list[GpuSample] = []
        for device in list(self.devices.values()):
            samples += self._read_device(
                device, now_s, with_processes=with_processes, asleep=asleep
            )
        self._watch(now_s)
        self._news += self._event_set.take(now_s)
        self._judge_silence(now_s)
        return self._reading(samples)

    def shut(self) -> None:
        """Let the driver go, so that a GPU can fall asleep. Devices and counters are kept."""
        self._event_set.close()
        if self.is_open:
            with contextlib.suppress(NvmlFailure):  # it is let go either way
                self.nvml.call("nvmlShutdown")
            _opened_in.discard(os.getpid())
        self.is_open = False

    def forget_parent(self) -> None:
        """After a fork: nothing that the driver gave to the parent is valid in the child."""
        self._event_set = EventSet(self.nvml)
        self.is_open = False
        self._retry_at_s = -math.inf

    def close(self) -> None:
        """Stop watching. The driver stays open: others in this process may use it."""
        self._event_set.close()

    def _open(self, now_s: float) -> None:
        if os.getpid() not in _opened_in:
            self.nvml.call("nvmlInit")
            _opened_in.add(os.getpid())
        first = not self.devices
        self._find(now_s, renew=True)
        if first:
            self._news.clear()
        self.is_open = True
        self._problem = None

    def _note_failure(self, failure: NvmlFailure, now_s: float) -> None:
        self._retry_at_s = now_s + RETRY_S
        mismatch = failure.code == Code.LIB_RM_VERSION_MISMATCH
        problem = _PROBLEMS.get(failure.code, f"NVML does not work: {failure}")
        if problem != self._problem:
            kind = "driver_mismatch" if mismatch else "failed"
            self._news.append(DeviceEvent(kind, None, failure.code, problem))
        self._problem = problem

    def _reading(self, samples: Collection[GpuSample]) -> Reading:
        events, self._news = tuple(self._news), []
        gpus = tuple(sorted(samples, key=lambda gpu: gpu.gpu_id))
        parts = [part for device in self.devices.values() for part in device.instances]
        aliases = {part.alias: part.gpu_id for part in parts if part.alias is not None}
        return Reading(gpus=gpus, events=events, problem=self._problem, aliases=aliases)

    def _without_driver(self, reason: str) -> list[GpuSample]:
        return [
            device.empty_sample(DeviceState.LOST if device.lost else DeviceState.ACTIVE, reason)
            for device in self.devices.values()
        ]

    def _look_around(self, now_s: float) -> None:
        try:
            count = self.nvml.call("nvmlDeviceGetCount")
            if count != self._count or now_s >= self._look_at_s:
                self._find(now_s, renew=False)
        except NvmlFailure:
            return  # the devices themselves will show whether anything is wrong

    def _find(self, now_s: float, *, renew: bool) -> None:
        """Match what the driver lists with what is known. Indices mean nothing."""
        self._look_at_s = now_s + LOOK_AROUND_S
        self._count = int(self.nvml.call("nvmlDeviceGetCount"))
        seen: set[str] = set()
        certain = True
        for index in range(self._count):
            try:
                handle = self.nvml.call("nvmlDeviceGetHandleByIndex", index)
                gpu_id, bdf = self._identity(handle)
                seen.add(gpu_id)
                self._take(gpu_id, bdf, handle, renew=renew)
            except DeviceLost:
                continue  # it stays lost
            except NvmlFailure as failure:
                # Only an answer that says so means lost; else the device's own reads will tell.
                certain = certain and failure.code in GONE
        for gpu_id in sorted(self.devices.keys() - seen) if certain else ():
            self._mark_lost(self.devices[gpu_id], "the driver does not list it any more")

    def _take(self, gpu_id: str, bdf: str | None, handle: object, *, renew: bool) -> None:
        device = self.devices.get(gpu_id)
        if device is None:
            name = self._name_of(handle)
            device = NvmlDevice(self.nvml, handle, gpu_id, bdf, self.system, name)
            self.devices[gpu_id] = device
            self._news.append(DeviceEvent("appeared", gpu_id))
            self._event_set.close()  # and opened again with this handle in it
        elif device.lost or renew:
            was_lost = device.lost
            device.renew(handle)
            self._event_set.close()
            if was_lost:
                self._news.append(DeviceEvent("returned", gpu_id))
        else:
            device.refresh()

    def _identity(self, handle: object) -> tuple[str, str | None]:
        bdf: str | None = None
        try:
            given: Any = self.nvml.call("nvmlDeviceGetPciInfo_v3", handle).busId
            bdf = bdf_of(given.decode(errors="replace") if isinstance(given, bytes) else given)
        except NvmlFailure as failure:
            if failure.code in GONE:
                raise
        try:
            return self.nvml.text("nvmlDeviceGetUUID", handle), bdf
        except NvmlFailure as failure:
            if failure.code in GONE:
                raise
        return (f"soc:{self.node_id}" if bdf is None else f"pci:{self.node_id}/{bdf}"), bdf

    def _name_of(self, handle: object) -> str | None:
        try:
            return self.nvml.text("nvmlDeviceGetName", handle)
        except NvmlFailure:
            return None

    def _read_device(
        self, device: NvmlDevice, now_s: float, *, with_processes: bool, asleep: Collection[str]
    ) -> tuple[GpuSample, ...]:
        if device.lost:
            return (device.empty_sample(DeviceState.LOST, "the GPU is lost"),)
        if device.bdf in asleep:
            return (device.empty_sample(DeviceState.ASLEEP, "the GPU is asleep"),)
        try:
            return device.read(now_s, with_processes=with_processes)
        except DeviceLost as lost:
            self._mark_lost(device, str(lost))
            return (device.empty_sample(DeviceState.LOST, "the GPU is lost"),)

    def _mark_lost(self, device: NvmlDevice, why: str) -> None:
        if not device.lost:
            device.lost = True
            self._news.append(DeviceEvent("lost", device.gpu_id, Code.GPU_IS_LOST.value, why))

    def _watch(self, now_s: float) -> None:
        if self._event_set.may_watch(now_s):
            handles = {one.gpu_id: one.handle for one in self.devices.values() if not one.lost}
            if handles:
                self._event_set.watch(handles, now_s)

    def _judge_silence(self, now_s: float) -> None:
        alive = [device for device in self.devices.values() if not device.lost]
        if not alive or not all(device.silent for device in alive):
            self._silent_reads = 0
            self._problem = None
            self.must_restart = False
            return
        self._silent_reads += 1
        if self._silent_reads < SILENT_READS:
            return
        self._problem = _PROBLEMS[Code.UNKNOWN]
        self._silent_reads = 0
        if self._reopened_s is not None and now_s - self._reopened_s < REOPEN_S:
            self.must_restart = True
            return
        self._reopened_s = now_s
        self._news.append(DeviceEvent("reinitialised", None, Code.UNKNOWN.value, self._problem))
        self.shut()
        try:
            self._open(now_s)
        except NvmlFailure as failure:
            self._note_failure(failure, now_s)
