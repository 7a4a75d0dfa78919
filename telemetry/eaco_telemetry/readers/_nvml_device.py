"""One NVIDIA GPU: what is asked of it at each read, and what its answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

from eaco_telemetry.readers._nvml_asker import Asker, DeviceLost
from eaco_telemetry.readers._nvml_binding import GONE, Code, Nvml, NvmlFailure
from eaco_telemetry.readers._nvml_draft import Draft
from eaco_telemetry.readers._nvml_energy import DeviceEnergy
from eaco_telemetry.readers._nvml_memory import read_memory
from eaco_telemetry.readers._nvml_mig import MigInstance, find_instances
from eaco_telemetry.readers._nvml_power import PowerSource
from eaco_telemetry.readers._nvml_processes import ProcessList
from eaco_telemetry.samples import DeviceState, GpuSample, ProcessSample

if TYPE_CHECKING:
    from eaco_telemetry.readers._nvml_system import LinuxView

_CLOCK_SM, _CLOCK_MEM = 1, 2
_MAX_CLOCK_MHZ: Final = 20_000
_MAX_CELSIUS: Final = 150
_UNCORRECTED, _AGGREGATE = 1, 1
_FIELD_MEMORY_TEMP: Final = 82

THROTTLE: Final = {
    0x1: "idle",
    0x2: "clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""The bits of NVML's reasons for clocks that are not at their highest."""

MIG_REASON: Final = "not given while MIG is on"


@define
class NvmlDevice:
    """A GPU with its counters. All methods are called on the worker's thread."""

    nvml: Nvml
    handle: object
    gpu_id: str
    bdf: str | None
    system: LinuxView
    name: str | None = None
    instances: tuple[MigInstance, ...] = field(default=(), init=False)
    lost: bool = field(default=False, init=False)
    _asker: Asker = field(init=False)
    _power: PowerSource = field(init=False)
    _energy: DeviceEnergy = field(init=False)
    _processes: ProcessList = field(init=False)
    _held: tuple[tuple[ProcessSample, ...] | None, str, frozenset[str]] = field(
        default=(None, "not asked for yet", frozenset()), init=False
    )
    _mig: bool = field(default=False, init=False)
    _constant_flags: frozenset[str] = field(default=frozenset(), init=False)
    _given: frozenset[str] = field(default=frozenset(), init=False)
    _rejected: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._asker = Asker(self.nvml, self.handle)
        self._power = PowerSource()
        self._energy = DeviceEnergy()
        self._processes = ProcessList(self.nvml, self.system)
        self.refresh()

    def refresh(self) -> None:
        """Ask for what changes rarely: chip, limits, persistence, MIG. May raise `DeviceLost`."""
        ask = self._asker
        self._power.probe(ask)
        self._energy.probe(ask, self._power.limit_w)
        flags: set[str] = set()
        try:
            if ask.ask("nvmlDeviceGetPersistenceMode") == 0:
                flags.add("persistence_off")
        except NvmlFailure:
            pass  # not a Linux server
        if self.name is None:
            flags.add("name_unreadable")
        self._constant_flags = frozenset(flags)
        try:
            self._mig = ask.ask("nvmlDeviceGetMigMode")[0] == 1
        except NvmlFailure:
            self._mig = False
        self.instances = find_instances(ask, self.gpu_id, self.system) if self._mig else ()

    def renew(self, handle: object) -> None:
        """Take a new handle after the driver was opened again; counters and ids stay."""
        self.handle = handle
        self._asker = Asker(self.nvml, handle)
        self._energy.resume(was_lost=self.lost)
        self.refresh()
        self.lost = False

    @property
    def silent(self) -> bool:
        """Whether the last read got nothing but "unknown error"."""
        return self._asker.silent

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The values that this device has given in this session."""
        return tuple(sorted(self._given))

    def read(self, now_s: float, *, with_processes: bool) -> tuple[GpuSample, ...]:
        """Give the sample of the GPU, and of each MIG instance of it.

        Raises `DeviceLost`; then do not read again before `renew`.
        """
        draft = Draft()
        ask = self._asker
        ask.start_counting()
        self._utilisation(draft)
        read_memory(ask, draft, self.system)
        self._power.read(ask, draft)
        self._energy.read(ask, draft, now_s)
        self._temperatures(draft)
        self._clocks(draft)
        self._throttle(draft)
        self._ecc(draft)
        if with_processes:
            self._ask_processes()
        processes, reason, flags = self._held
        draft.put("processes", processes)
        draft.without(reason, "processes")
        draft.flags |= flags | self._constant_flags
        children = [one.read(with_processes=with_processes) for one in self.instances]
        return (self._sample(draft), *children)

    def empty_sample(self, state: DeviceState, reason: str) -> GpuSample:
        """Give the sample of a device that was not read, and why it was not."""
        sample = empty_sample(self.gpu_id, self.bdf, state, reason)
        return evolve(
            sample, name=self.name, capabilities=self.capabilities, rejected=self._rejected
        )

    def _sample(self, draft: Draft) -> GpuSample:
        self._given = self._given | draft.given()
        self._rejected += draft.rejected
        return GpuSample(
            gpu_id=self.gpu_id,
            vendor="nvidia",
            name=self.name,
            pci_bdf=self.bdf,
            missing=draft.missing(),
            capabilities=self.capabilities,
            flags=tuple(sorted(draft.flags)),
            rejected=self._rejected,
            **draft.values,
        )

    def _utilisation(self, draft: Draft) -> None:
        if self._mig:
            draft.without(MIG_REASON, "util_ratio", "mem_busy_ratio")
            return
        try:
            rates = self._asker.ask("nvmlDeviceGetUtilizationRates")
        except NvmlFailure as failure:
            draft.without(failure.reason, "util_ratio", "mem_busy_ratio")
            return
        draft.put_if("util_ratio", rates.gpu / 100, 0, 1)
        draft.put_if("mem_busy_ratio", rates.memory / 100, 0, 1)

    def _temperatures(self, draft: Draft) -> None:
        try:
            celsius = self._asker.ask("nvmlDeviceGetTemperature", 0)
            draft.put_if("temperature_c", celsius, 0, _MAX_CELSIUS)
        except NvmlFailure as failure:
            draft.without(failure.reason, "temperature_c")
        celsius = self._power.field_values.get((_FIELD_MEMORY_TEMP, 0))
        if not celsius:
            # 0 is what a chip without this sensor says.
            draft.without("this device has no such sensor", "mem_temperature_c")
        else:
            draft.put_if("mem_temperature_c", celsius, 0, _MAX_CELSIUS)

    def _clocks(self, draft: Draft) -> None:
        for name, clock in (("clock_sm_hz", _CLOCK_SM), ("clock_mem_hz", _CLOCK_MEM)):
            try:
                mega = self._asker.ask("nvmlDeviceGetClockInfo", clock)
            except NvmlFailure as failure:
                draft.without(failure.reason, name)
            else:
                hertz = mega * 1e6 if mega <= _MAX_CLOCK_MHZ else None
                draft.put_if(name, hertz, 0, _MAX_CLOCK_MHZ * 1e6)

    def _throttle(self, draft: Draft) -> None:
        try:
            try:
                bits = self._asker.ask("nvmlDeviceGetCurrentClocksEventReasons")
            except NvmlFailure as failure:
                if failure.code not in {Code.FUNCTION_NOT_FOUND, Code.WRONG_CALL}:
                    raise
                bits = self._asker.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        except NvmlFailure as failure:
            draft.without(failure.reason, "throttle")
            return
        known = [word for bit, word in THROTTLE.items() if bits & bit]
        other = bits & ~sum(THROTTLE)
        draft.put("throttle", (*known, f"bits_{other:#x}") if other else tuple(known))

    def _ecc(self, draft: Draft) -> None:
        try:
            count = self._asker.ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE)
        except NvmlFailure as failure:
            draft.without(failure.reason, "ecc_uncorrected")
        else:
            draft.put_if("ecc_uncorrected", count, 0, (1 << 47) - 1)

    def _ask_processes(self) -> None:
        if self._mig:
            self._held = (None, "given by the MIG instances", frozenset())
            return
        try:
            processes, flags = self._processes.read(self.handle, shares=True)
        except NvmlFailure as failure:
            if failure.code in GONE:
                raise DeviceLost(str(failure)) from failure
            reason = failure.reason
            self._held = (None, reason, frozenset())
        else:
            self._held = (processes, "", frozenset(flags))


def empty_sample(gpu_id: str, bdf: str | None, state: DeviceState, reason: str) -> GpuSample:
    """Give the sample of a device that was not read, and why it was not."""
    return GpuSample(
        gpu_id=gpu_id,
        vendor="nvidia",
        state=state,
        pci_bdf=bdf,
        missing=dict.fromkeys(Draft().missing(), reason),
    )
