"""NVIDIA GPUs through NVML, which nvidia-ml-py (extra ``nvidia``) gives to Python.

All calls into the driver run on one thread of the reader, with a time limit. A read that
takes longer gives samples without values and a `problem`; the next read tries again.
Nothing is ever set on a device, and nvidia-smi is never started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve, field, frozen
from attrs.validators import ge, gt

from eaco_core.errors import EnvironmentFault, InternalError
from eaco_telemetry.readers._nvml_binding import Nvml
from eaco_telemetry.readers._nvml_device import NvmlDevice, empty_sample
from eaco_telemetry.readers._nvml_driver import NvmlDriver
from eaco_telemetry.readers._nvml_system import LinuxView, PciGpu
from eaco_telemetry.readers._worker import Silent, Worker
from eaco_telemetry.readers.base import DeviceEvent, Reading
from eaco_telemetry.samples import DeviceState, GpuSample, Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

_REST_REASON: Final = "the GPU is left alone so that it can fall asleep"
_ASLEEP_REASON: Final = "the GPU is asleep"


@frozen
class NvmlOptions:
    """How NVML is read.

    - `process_every`: processes are asked for at every n-th read (that call is slow); their
      values hold until then. 0: never.
    - `read_timeout_s`, `open_timeout_s`: how long the driver may take.
    - `idle_close_s`: where all GPUs can fall asleep (laptops), the driver is let go after so
      many seconds without work; `rest_s`: and not looked into again for so long.
    - `root`: where ``/sys``, ``/proc`` and ``/etc`` are.
    """

    process_every: int = field(default=10, validator=ge(0))
    read_timeout_s: float = field(default=5.0, validator=gt(0))
    open_timeout_s: float = field(default=60.0, validator=gt(0))
    idle_close_s: float = field(default=30.0, validator=gt(0))
    rest_s: float = field(default=60.0, validator=gt(0))
    root: Path = Path("/")


class NvmlReader:
    """Reads all NVIDIA GPUs of this machine. See `eaco_telemetry.readers.base.Reader`.

    `read` blocks and refuses to run in an event loop; `read_async` is for there.
    """

    def __init__(self, node_id: str, options: NvmlOptions | None = None) -> None:
        self._node_id = node_id
        self._options = options or NvmlOptions()
        self._system = LinuxView(self._options.root)
        self._reads = 0
        self._pid = os.getpid()
        self._worker: Worker | None = None
        self._driver: NvmlDriver | None = None
        self._rest_until_s: float | None = None
        self._idle_since_s: float | None = None
        self._asleep: frozenset[str] = frozenset()
        self._late: Future[Reading] | None = None

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "nvml"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each GPU, the values that it has given so far; it fills up with the first read."""
        if self._driver is None:
            return {}
        devices = dict(self._driver.devices)
        return {gpu_id: device.capabilities for gpu_id, device in devices.items()}

    @property
    def pci_addresses(self) -> frozenset[str]:
        """Where its GPUs are; those that sleep too. Known after `open`."""
        devices = {} if self._driver is None else dict(self._driver.devices)
        seen = {device.bdf for device in devices.values() if device.bdf is not None}
        return frozenset(seen | {gpu.bdf for gpu in self._system.pci_gpus()})

    @property
    def must_restart(self) -> bool:
        """Whether only a new process can help; let a supervisor start one."""
        return self._driver is not None and self._driver.must_restart

    def open(self) -> None:
        """Find the GPUs. Blocks.

        Raises `EnvironmentFault` where nvidia-ml-py, a driver or a GPU is missing, and on a
        Jetson, whose NVML knows next to nothing. A driver that is there and does not work
        is no error here: each `Reading` has the problem, and the driver is tried again.
        """
        if self._system.is_jetson_without_nvml():
            raise EnvironmentFault("this is a Jetson: its sensors are not read through NVML")
        if self._driver is not None:
            return
        driver = NvmlDriver(self._node_id, self._system, Nvml())
        self._driver = driver
        gpus = self._system.pci_gpus()
        if gpus and all(gpu.asleep for gpu in gpus):
            return
        now_s = Moment.now().monotonic_s
        try:
            self._hands().call(lambda: driver.open(now_s), self._options.open_timeout_s)
        except Silent:
            return
        except EnvironmentFault:
            self.close()
            raise
        if driver.is_open and not driver.devices:
            self.close()
            raise EnvironmentFault("the NVIDIA driver lists no GPU")

    def read(self, now: Moment) -> Reading:
        """Read all GPUs. Blocks for at most `read_timeout_s`; not for an event loop."""
        _refuse_event_loop()
        plan = self._plan(now)
        if isinstance(plan, Reading):
            return plan
        try:
            future = self._hands().submit(plan)
        except Silent as silent:
            return self._silent(str(silent))
        try:
            return self._with_late_events(future.result(self._options.read_timeout_s))
        except TimeoutError:
            return self._overdue(future)

    async def read_async(self, now: Moment) -> Reading:
        """Read all GPUs without blocking the event loop."""
        plan = self._plan(now)
        if isinstance(plan, Reading):
            return plan
        try:
            future = self._hands().submit(plan)
        except Silent as silent:
            return self._silent(str(silent))
        waiting = asyncio.shield(asyncio.wrap_future(future))
        try:
            reading = await asyncio.wait_for(waiting, self._options.read_timeout_s)
        except TimeoutError:
            return self._overdue(future)
        return self._with_late_events(reading)

    def close(self) -> None:
        """Let the thread go. The driver stays open in this process; others may use it."""
        worker, driver = self._worker, self._driver
        self._worker = self._driver = None
        if worker is None:
            return
        if driver is not None and self._pid == os.getpid():
            with contextlib.suppress(Silent):  # it is given up either way
                worker.call(driver.close, self._options.read_timeout_s)
        worker.stop()

    def _hands(self) -> Worker:
        """Give the thread for the driver. After a fork the child needs one of its own."""
        if self._pid != os.getpid():
            self._pid, self._worker, self._late = os.getpid(), None, None
            if self._driver is not None:
                self._driver.forget_parent()
        if self._worker is None:
            self._worker = Worker("eaco-nvml")
        return self._worker

    def _plan(self, now: Moment) -> Reading | Callable[[], Reading]:
        """Decide whether to ask the driver at all; if so, give the call."""
        driver = self._driver
        if driver is None:
            raise InternalError("NvmlReader.read needs NvmlReader.open first")
        now_s = now.monotonic_s
        gpus = self._system.pci_gpus()
        news = self._sleep_news(gpus)
        if gpus and len(self._asleep) == len(gpus):
            self._rest_until_s = self._idle_since_s = None
            return self._untouched(gpus, DeviceState.ASLEEP, _ASLEEP_REASON, news)
        if self._rest_until_s is not None and now_s < self._rest_until_s:
            return self._untouched(gpus, DeviceState.ACTIVE, _REST_REASON, news)
        self._rest_until_s = None
        every = self._options.process_every
        with_processes = every > 0 and self._reads % every == 0
        self._reads += 1
        asleep = self._asleep
        may_rest = bool(gpus) and all(gpu.may_sleep for gpu in gpus)

        def job() -> Reading:
            reading = driver.read(now_s, with_processes=with_processes, asleep=asleep)
            if may_rest:
                self._rest_if_idle(driver, reading, now_s)
            return evolve(reading, events=(*news, *reading.events))

        return job

    def _sleep_news(self, gpus: tuple[PciGpu, ...]) -> tuple[DeviceEvent, ...]:
        before, self._asleep = self._asleep, frozenset(gpu.bdf for gpu in gpus if gpu.asleep)
        changed = [("asleep", bdf) for bdf in sorted(self._asleep - before)]
        changed += [("awake", bdf) for bdf in sorted(before - self._asleep)]
        return tuple(DeviceEvent(kind, self._id_of(bdf)) for kind, bdf in changed)

    def _id_of(self, bdf: str) -> str:
        device = self._device_at(bdf)
        return f"pci:{self._node_id}/{bdf}" if device is None else device.gpu_id

    def _device_at(self, bdf: str) -> NvmlDevice | None:
        devices = {} if self._driver is None else dict(self._driver.devices)
        return next((device for device in devices.values() if device.bdf == bdf), None)

    def _untouched(
        self,
        gpus: tuple[PciGpu, ...],
        state: DeviceState,
        reason: str,
        events: tuple[DeviceEvent, ...],
    ) -> Reading:
        samples: list[GpuSample] = []
        for gpu in gpus:
            device = self._device_at(gpu.bdf)
            if device is None:
                samples.append(empty_sample(self._id_of(gpu.bdf), gpu.bdf, state, reason))
            else:
                samples.append(device.empty_sample(state, reason))
        return Reading(gpus=tuple(samples), events=events)

    def _rest_if_idle(self, driver: NvmlDriver, reading: Reading, now_s: float) -> None:
        """Let the driver go after a while without work: an open driver keeps a GPU awake."""
        if any(gpu.processes or gpu.util_ratio for gpu in reading.gpus):
            self._idle_since_s = None
            return
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        if now_s - self._idle_since_s >= self._options.idle_close_s:
            driver.shut()
            self._idle_since_s = None
            self._rest_until_s = now_s + self._options.rest_s

    def _overdue(self, future: Future[Reading]) -> Reading:
        self._late = future
        return self._silent(f"the driver did not answer in {self._options.read_timeout_s:g} s")

    def _with_late_events(self, reading: Reading) -> Reading:
        """What happened is told even if the read that saw it came too late."""
        late, self._late = self._late, None
        if late is None or late.exception() is not None:
            return reading
        return evolve(reading, events=(*late.result().events, *reading.events))

    def _silent(self, reason: str) -> Reading:
        devices = {} if self._driver is None else dict(self._driver.devices)
        gpus = [one.empty_sample(DeviceState.ACTIVE, reason) for one in devices.values()]
        problem = f"NVML: {reason}; the GPUs are not read until it does"
        return Reading(gpus=tuple(sorted(gpus, key=lambda gpu: gpu.gpu_id)), problem=problem)


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InternalError("NvmlReader.read would block the event loop; await read_async instead")
