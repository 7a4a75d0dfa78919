"""NVIDIA GPUs as NVIDIA's DCGM exporter shows them, fetched from its page.

Worth it where the exporter runs already: its profiling fields say how many of the SMs work
and how much memory moves, which NVML does not know, and they do so for MIG instances too.
Beside NVML this reader only adds what that lacks.

- Units are those of DCGM: %, MiB, MHz, W, mJ; the fields ``PROF`` are ratios.
- Marks for "blank" and numbers that cannot be are None, never 0.
- With MIG the exporter repeats power, energy, clocks and temperature of the whole GPU under
  each instance; they are taken as values of the GPU. The instance has the id
  ``<GPU>/gi<number>`` until NVML tells its own.
- The exporter looks at the GPU at its own pace (30 s by default), so values may be that old.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, fields, frozen

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers._nvml_device import MIG_REASON, THROTTLE
from eaco_telemetry.readers._nvml_system import bdf_of
from eaco_telemetry.readers._prometheus_text import Line, parse_number, parse_page
from eaco_telemetry.readers._scrape import check_url, fetch
from eaco_telemetry.readers.base import (
    MAX_DEVICE_W,
    NOT_READ_HERE,
    DeviceEvent,
    Reading,
    instance_id,
    without_values,
)
from eaco_telemetry.readers.counters import EnergyMeter
from eaco_telemetry.readers.sysfs import is_pci_address
from eaco_telemetry.samples import EnergyKind, GpuSample, MemoryKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import Moment

DEFAULT_URL: Final = "http://127.0.0.1:9400/metrics"
MAX_DEVICES: Final = 1024
"""More GPUs and instances than one exporter has; further ones are not looked at."""

_PREFIX: Final = "DCGM_FI_"
_MIB: Final = 1 << 20
_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,80}")
_INSTANCE: Final = re.compile(r"[0-9]{1,4}")
_CLAMP_MOST: Final = 2.0
# Under MIG these have been seen above 1 (DCGM#152).
_ABOVE_1: Final = {
    "sm_active_ratio": "sm_active_above_1",
    "dram_active_ratio": "dram_active_above_1",
}
# DCGM's marks for "no value" are these and a few numbers above, one for each reason.
_BLANKS: Final = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328)
_BLANK_KINDS: Final = 16  # and one more, since the largest become 2^63 as floats
_MEASURED: Final = tuple(one.name for one in fields(GpuSample) if one.metadata.get("measured"))


@frozen
class _Quantity:
    """Where a DCGM field goes: times `factor`, possible up to `most` (after that)."""

    name: str
    factor: float
    most: float
    whole: bool = False


_MAX_BYTES: Final = float(1 << 50)
QUANTITIES: Final[Mapping[str, _Quantity]] = {
    "DEV_GPU_UTIL": _Quantity("util_ratio", 0.01, 1.0),
    "DEV_MEM_COPY_UTIL": _Quantity("mem_busy_ratio", 0.01, 1.0),
    "DEV_FB_USED": _Quantity("mem_used_bytes", _MIB, _MAX_BYTES, whole=True),
    "DEV_FB_FREE": _Quantity("free", _MIB, _MAX_BYTES, whole=True),
    "DEV_FB_RESERVED": _Quantity("mem_reserved_bytes", _MIB, _MAX_BYTES, whole=True),
    "DEV_FB_TOTAL": _Quantity("mem_total_bytes", _MIB, _MAX_BYTES, whole=True),
    "DEV_POWER_USAGE": _Quantity("power_w", 1.0, MAX_DEVICE_W),
    "DEV_POWER_USAGE_INSTANT": _Quantity("power_inst_w", 1.0, MAX_DEVICE_W),
    "DEV_ENFORCED_POWER_LIMIT": _Quantity("power_limit_w", 1.0, MAX_DEVICE_W),
    "DEV_TOTAL_ENERGY_CONSUMPTION": _Quantity("counter_mj", 1.0, float(1 << 62), whole=True),
    "DEV_GPU_TEMP": _Quantity("temperature_c", 1.0, 150.0),
    "DEV_MEMORY_TEMP": _Quantity("mem_temperature_c", 1.0, 150.0),
    "DEV_SM_CLOCK": _Quantity("clock_sm_hz", 1e6, 20e9),
    "DEV_MEM_CLOCK": _Quantity("clock_mem_hz", 1e6, 20e9),
    "DEV_ECC_DBE_AGG_TOTAL": _Quantity("ecc_uncorrected", 1.0, float(1 << 47), whole=True),
    "DEV_CLOCK_THROTTLE_REASONS": _Quantity("throttle", 1.0, float(1 << 32), whole=True),
    "DEV_CLOCKS_EVENT_REASONS": _Quantity("throttle", 1.0, float(1 << 32), whole=True),
    "DEV_XID_ERRORS": _Quantity("xid", 1.0, 10_000.0, whole=True),
    "PROF_SM_ACTIVE": _Quantity("sm_active_ratio", 1.0, _CLAMP_MOST),
    "PROF_DRAM_ACTIVE": _Quantity("dram_active_ratio", 1.0, _CLAMP_MOST),
}
"""The fields of DCGM that are used, without their prefix."""

_NOT_WITH_MIG: Final = frozenset({"util_ratio", "mem_busy_ratio"})
# What belongs to an instance itself; all else that is told under it is of the whole GPU.
_OF_INSTANCE: Final = frozenset(
    {"mem_used_bytes", "free", "mem_reserved_bytes", "mem_total_bytes"}
    | {"sm_active_ratio", "dram_active_ratio"}
)


@define(eq=False)
class _Seen:
    """What one page says about one device."""

    gpu_id: str
    name: str | None = None
    parent_id: str | None = None
    pci_bdf: str | None = None
    values: dict[str, Any] = field(factory=dict[str, Any])
    missing: dict[str, str] = field(factory=dict[str, str])
    flags: set[str] = field(factory=set[str])
    rejected: int = 0


@define(eq=False)
class _Kept:
    """What is kept of one device between two pages."""

    energy: EnergyMeter = field(factory=lambda: EnergyMeter(unit_j=1e-3, max_w=MAX_DEVICE_W))
    counter_mj: int | None = None
    energy_j: float = 0.0
    rebased: bool = False
    able: frozenset[str] = frozenset()
    rejected: int = 0
    xid: int | None = None


class DcgmReader:
    """Reads the page of a DCGM exporter. See `eaco_telemetry.readers.base.Reader`.

    `node_id` goes into the id of a GPU without a UUID. `xid_events`: tell an Xid as an event;
    not where NVML runs too, which tells it at once. `timeout_s` is for the whole page.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        node_id: str = "node",
        xid_events: bool = True,
        timeout_s: float = 2.0,
    ) -> None:
        self._url = check_url(url)
        self._node_id = node_id
        self._xid_events = xid_events
        self._timeout_s = timeout_s
        self._kept: dict[str, _Kept] = {}
        self._last: tuple[GpuSample, ...] = ()
        self._is_open = False

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "dcgm"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each GPU and instance, the values that the exporter has given so far."""
        return {gpu_id: tuple(sorted(kept.able)) for gpu_id, kept in self._kept.items()}

    def open(self) -> None:
        """Fetch the page once; joules count from here.

        Raise `EnvironmentFault` if there is no DCGM exporter at that place.
        """
        if self._is_open:
            return
        seen = self._fetch()
        if not seen:
            raise EnvironmentFault(f"the page {self._url} shows no GPU of DCGM")
        self._kept = {}
        for one in seen:
            self._kept[one.gpu_id] = _Kept(able=frozenset(_given(one)))
        self._is_open = True

    def read(self, now: Moment) -> Reading:
        """Fetch the page and give what it says."""
        try:
            seen = self._fetch()
        except EnvironmentFault as fault:
            problem = str(fault)
            blank = tuple(without_values(gpu, problem) for gpu in self._last)
            return Reading(gpus=blank, problem=problem)
        events: list[DeviceEvent] = []
        gpus = tuple(self._sample(one, now, events) for one in seen)
        if not gpus:
            problem = f"the page {self._url} shows no GPU of DCGM"
            blank = tuple(without_values(gpu, problem) for gpu in self._last)
            return Reading(gpus=blank, problem=problem)
        self._last = gpus
        return Reading(gpus=gpus, events=tuple(events))

    def close(self) -> None:
        """Nothing stays open between two reads."""
        self._is_open = False
        self._last = ()

    def _fetch(self) -> tuple[_Seen, ...]:
        try:
            text = fetch(self._url, timeout_s=self._timeout_s)
        except EnvironmentFault as fault:
            raise EnvironmentFault(f"the DCGM exporter at {self._url}: {fault}") from None
        found: dict[str, _Seen] = {}
        for line in parse_page(text, _PREFIX).lines:
            self._take(line, found)
        return tuple(sorted(found.values(), key=lambda one: one.gpu_id))

    # ------------------------------------------------------------------- from a line

    def _take(self, line: Line, found: dict[str, _Seen]) -> None:
        quantity = QUANTITIES.get(line.name.removeprefix(_PREFIX))
        if quantity is None:
            return
        whole = self._whole_gpu(line.labels, found)
        if whole is None:
            return
        device = whole
        number = line.labels.get("GPU_I_ID", "")
        if _INSTANCE.fullmatch(number):
            _note_mig(whole)
            instance = self._instance(whole, number, line.labels, found)
            if quantity.name in _OF_INSTANCE:
                device = instance or whole
            if device is whole and (instance is None or quantity.name in _NOT_WITH_MIG):
                return
        _put(device, quantity, line.number)

    def _whole_gpu(self, labels: Mapping[str, str], found: dict[str, _Seen]) -> _Seen | None:
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        bdf: str | None = bdf_of_label(labels.get("pci_bus_id", ""))
        if _UUID.fullmatch(uuid):
            gpu_id = uuid
        elif bdf is not None:
            gpu_id = f"pci:{self._node_id}/{bdf}"
        else:
            return None
        if gpu_id not in found:
            if len(found) >= MAX_DEVICES:
                return None
            name = labels.get("modelName", "")[:128] or None
            found[gpu_id] = _Seen(gpu_id, name, pci_bdf=bdf)
        return found[gpu_id]

    @staticmethod
    def _instance(
        whole: _Seen, number: str, labels: Mapping[str, str], found: dict[str, _Seen]
    ) -> _Seen | None:
        gpu_id = instance_id(whole.gpu_id, int(number))
        if gpu_id not in found:
            if len(found) >= MAX_DEVICES:
                return None
            profile = labels.get("GPU_I_PROFILE", "")[:64]
            name = " ".join(filter(None, (whole.name, "MIG", profile)))
            instance = _Seen(gpu_id, name, parent_id=whole.gpu_id)
            instance.missing.update(dict.fromkeys(_MEASURED, "given for the whole GPU only"))
            found[gpu_id] = instance
        return found[gpu_id]

    # ------------------------------------------------------------------- to a sample

    def _sample(self, one: _Seen, now: Moment, events: list[DeviceEvent]) -> GpuSample:
        kept = self._kept.setdefault(one.gpu_id, _Kept())
        _finish(one)
        self._energy(one, kept, now)
        xid: int = one.values.pop("xid", 0)
        if kept.xid is not None and xid not in {0, kept.xid} and self._xid_events:
            events.append(DeviceEvent("xid", one.gpu_id, xid, f"DCGM reports Xid {xid}"))
        kept.xid = xid
        kept.able |= _given(one)
        kept.rejected += one.rejected
        return GpuSample(
            gpu_id=one.gpu_id,
            vendor="nvidia",
            name=one.name,
            parent_id=one.parent_id,
            pci_bdf=one.pci_bdf,
            missing={
                name: one.missing.get(name, NOT_READ_HERE)
                for name in _MEASURED
                if name not in one.values
            },
            capabilities=tuple(sorted(kept.able)),
            flags=tuple(sorted(one.flags)),
            rejected=kept.rejected,
            **one.values,
        )

    @staticmethod
    def _energy(one: _Seen, kept: _Kept, now: Moment) -> None:
        counter_mj: int | None = one.values.pop("counter_mj", None)
        if counter_mj is None:
            return
        # The exporter renews it rarely: a step covers all the time since the last one.
        if counter_mj != kept.counter_mj:
            kept.counter_mj = counter_mj
            seen = kept.energy.feed(counter_mj, now.monotonic_s)
            kept.energy_j = seen.total_j
            kept.rebased |= seen.rebased
        if kept.rebased:
            one.flags.add("energy_rebased")
        one.values["energy_j"] = kept.energy_j
        one.values["energy_kind"] = EnergyKind.COUNTER


def bdf_of_label(text: str) -> str | None:
    """Give the PCI address of a label; None if it is none."""
    try:
        bdf = bdf_of(text)
    except ValueError:
        return None
    return bdf if is_pci_address(bdf) else None


def _note_mig(whole: _Seen) -> None:
    names = ("util_ratio", "mem_busy_ratio", "sm_active_ratio", "dram_active_ratio")
    whole.missing.update(dict.fromkeys(names, MIG_REASON))


def _put(device: _Seen, quantity: _Quantity, text: str) -> None:
    name = quantity.name
    number = parse_number(text)
    if number is None or any(blank <= number <= blank + _BLANK_KINDS for blank in _BLANKS):
        device.missing[name] = "the exporter says that it is blank"
        return
    value = number * quantity.factor
    if not 0 <= value <= quantity.most:
        device.rejected += 1
        device.missing[name] = f"the exporter gave an impossible value ({text[:40]})"
        return
    if name in _ABOVE_1 and value > 1:
        device.flags.add(_ABOVE_1[name])
        value = 1.0
    device.values.setdefault(name, int(value) if quantity.whole else value)


def _finish(one: _Seen) -> None:
    """Make our values of what is told in another way."""
    values = one.values
    free: int | None = values.pop("free", None)
    parts = (values.get("mem_used_bytes"), free, values.get("mem_reserved_bytes"))
    if "mem_total_bytes" not in values and None not in parts:
        values["mem_total_bytes"] = sum(part for part in parts if part is not None)
    if "mem_used_bytes" in values:
        values["mem_kind"] = MemoryKind.DEDICATED
    if values.get("mem_temperature_c") == 0:  # what a chip without this sensor says
        del values["mem_temperature_c"]
        one.missing["mem_temperature_c"] = "this device has no such sensor"
    if "counter_mj" in one.missing:
        one.missing["energy_j"] = one.missing["counter_mj"]
    if "power_w" in values:
        one.flags.add("power_kind_unknown")
    if "throttle" in values:
        bits: int = values["throttle"]
        words = [word for bit, word in THROTTLE.items() if bits & bit]
        other = bits & ~sum(THROTTLE)
        values["throttle"] = (*words, f"bits_{other:#x}") if other else tuple(words)


def _given(one: _Seen) -> set[str]:
    names = {name for name in _MEASURED if name in one.values}
    return names | ({"energy_j"} if "counter_mj" in one.values else set())
