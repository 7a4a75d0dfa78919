"""AMD GPUs, from sysfs, hwmon, DRM fdinfo and KFD. No library is needed.

Sources, as the kernel documents them (amdgpu "GPU Power/Thermal Controls and
Monitoring", DRM client usage stats): `gpu_busy_percent`, `mem_busy_percent`,
`mem_info_vram_*`, hwmon `power1_average` or `power1_input`, `temp*`, `freq*`. The binary
file `gpu_metrics` is not read: its layout and units differ from chip to chip.

- Some chips give average power only (MI200), some instant power only (MI300), so the
  kind is told with the value. Joules are summed up from power; the accumulator of AMD's
  libraries has stood still, lied and run backwards, and is not in these files anyway.
- The power sensor of an APU covers processor and GPU; it is `module_power_w` then.
- Programs under ROCm are listed by KFD for everyone to see. It tells their memory, but
  no time on the compute units. Other programs are seen through fdinfo: own ones, or all
  with root rights.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

from eaco_telemetry.readers.base import PowerIntegral
from eaco_telemetry.readers.cards import (
    MAX_CLOCK_HZ,
    CardReader,
    hwmon_folders,
    labelled,
    read_limit_w,
    read_power_w,
    read_temperature_c,
    take_processes,
    with_reason,
)
from eaco_telemetry.readers.fdinfo import UseMeter, process_name
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    first_known,
    known,
    names_in,
    read_count,
    read_int,
    read_scaled,
    read_text,
)
from eaco_telemetry.samples import EnergyKind, MemoryKind, PowerKind, ProcessSample

if TYPE_CHECKING:
    from eaco_telemetry.readers.cards import Card, Found
    from eaco_telemetry.samples import Moment

VENDOR: Final = "amd"
_PCI_VENDOR = 0x1002
# Counting uncorrected errors asks the hardware, and they are rare.
_ECC_PERIOD_S = 60.0
_UNIQUE_ID = re.compile(r"[0-9a-f]{1,16}")
_PID = re.compile(r"[1-9][0-9]{0,9}")
_PROPERTY = re.compile(r"(domain|location_id) ([0-9]{1,10})")


@define(eq=False)
class _Memory:
    """What is kept of one card between two reads."""

    integral: PowerIntegral = field(factory=PowerIntegral)
    use: UseMeter = field(factory=UseMeter)
    ecc: Value[int] | None = None
    ecc_due_s: float = 0.0


class AmdReader(CardReader):
    """Reads all AMD GPUs with the driver amdgpu of this node.

    `node_id` goes into the id of a GPU that has no unique id of its own. `root` is where
    /sys and /proc are.
    """

    def __init__(self, node_id: str, *, root: Path = Path("/")) -> None:
        super().__init__(node_id, root=root)
        self._memories: dict[str, _Memory] = {}
        self._kfd: dict[str, dict[int, int]] = {}

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "amd"

    @property
    def _vendor(self) -> str:
        return VENDOR

    def _is_ours(self, folder: Path, driver: str) -> bool:
        return driver == "amdgpu" and _hex(folder / "device" / "vendor") in {_PCI_VENDOR, None}

    def _identify(self, card: Card) -> str | None:
        """The id that ROCm uses: ROCR_VISIBLE_DEVICES takes it. A cached value of the driver."""
        card.name = read_text(card.device / "product_name").value or None
        unique = (read_text(card.device / "unique_id").value or "").lower().removeprefix("0x")
        if not _UNIQUE_ID.fullmatch(unique) or not int(unique, 16):
            return None
        return f"GPU-{unique:0>16}"

    def _forget(self) -> None:
        self._memories = {}

    def _begin(self, now: Moment) -> None:
        super()._begin(now)
        self._kfd = _kfd_memory(self._root)

    def _is_used(self, card: Card) -> bool:
        return super()._is_used(card) or bool(self._kfd.get(card.pci_bdf or ""))

    def _interrupted(self, card: Card, *, lost: bool) -> None:
        memory = self._memories.get(card.gpu_id)
        if memory is not None:
            memory.integral.add(None, 0.0)
            if lost:
                memory.use = UseMeter()
                memory.ecc = None

    def _measure(self, card: Card, found: Found, now: Moment | None) -> None:
        memory = self._memories.setdefault(card.gpu_id, _Memory())
        device = card.device
        found.take("util_ratio", read_scaled(device / "gpu_busy_percent", per=100, most=1.0))
        found.take("mem_busy_ratio", read_scaled(device / "mem_busy_percent", per=100, most=1.0))
        found.take("mem_used_bytes", read_count(device / "mem_info_vram_used"))
        found.take("mem_total_bytes", read_count(device / "mem_info_vram_total"))
        if "mem_total_bytes" in found.values:
            found.values["mem_kind"] = MemoryKind.DEDICATED
        sensors = hwmon_folders(device, frozenset({"amdgpu"}))
        if sensors:
            _take_sensors(sensors[0], found)
        else:
            reason = "no sensors (hwmon) for this card"
            for name in (*_SENSED, "power_w", "power_inst_w"):
                found.take(name, absent(reason))
        found.take("throttle", absent("only in gpu_metrics, whose layout differs by chip"))
        _take_energy(memory, found, now)
        self._take_errors(memory, card, found, now)
        if now is None:
            found.able.add("processes")
        else:
            self._take_processes(memory, card, found, now)

    def _take_errors(self, memory: _Memory, card: Card, found: Found, now: Moment | None) -> None:
        now_s = 0.0 if now is None else now.monotonic_s
        if memory.ecc is None or now_s >= memory.ecc_due_s:
            memory.ecc = _uncorrected_errors(card.device / "ras")
            memory.ecc_due_s = now_s + _ECC_PERIOD_S
        found.take("ecc_uncorrected", memory.ecc)

    def _take_processes(self, memory: _Memory, card: Card, found: Found, now: Moment) -> None:
        bdf = card.pci_bdf or ""
        drawn = memory.use.feed(self._clients_on(card), now.monotonic_ns).processes
        by_pid = {process.pid: process for process in drawn}
        for pid, vram_bytes in self._kfd.get(bdf, {}).items():
            process = by_pid.get(pid) or ProcessSample(pid, process_name(self._root, pid))
            # Newer kernels count memory of ROCm in fdinfo too: the same bytes, not more.
            most = max(vram_bytes, process.mem_used_bytes or 0)
            # Work that ROCm submits by itself is not in the busy time of fdinfo.
            by_pid[pid] = evolve(process, mem_used_bytes=most, sm_ratio=None)
        processes = tuple(by_pid[pid] for pid in sorted(by_pid))
        take_processes(found, processes, self._clients.hidden)


_SENSED = (
    "module_power_w",
    "power_limit_w",
    "temperature_c",
    "mem_temperature_c",
    "clock_sm_hz",
    "clock_mem_hz",
)


def _take_sensors(hwmon: Path, found: Found) -> None:
    instant = read_power_w(hwmon / "power1_input")
    average = read_power_w(hwmon / "power1_average")
    if read_text(hwmon / "in1_label").value == "vddnb":  # only APUs have a northbridge rail
        found.take("module_power_w", first_known(average, instant))
        reason = "the sensor of an APU covers the processor too; see module_power_w"
        found.take("power_w", absent(reason))
        found.take("power_inst_w", absent(reason))
    else:
        found.take("module_power_w", absent("this card is no module with a processor"))
        found.take("power_w", first_known(average, instant))
        if "power_w" in found.values:
            averaged = average.value is not None
            found.values["power_kind"] = PowerKind.AVERAGE if averaged else PowerKind.INSTANT
        found.take("power_inst_w", with_reason(instant, "this chip gives average power only"))
    found.take("power_limit_w", read_limit_w(hwmon / "power1_cap"))
    heat = labelled(hwmon, "temp")
    core = heat.get("edge") or heat.get("junction") or hwmon / "temp1"
    found.take("temperature_c", read_temperature_c(core.with_name(f"{core.name}_input")))
    found.take("mem_temperature_c", _memory_temperature(heat.get("mem")))
    clocks = labelled(hwmon, "freq")
    found.take("clock_sm_hz", _clock(clocks.get("sclk") or hwmon / "freq1"))
    found.take("clock_mem_hz", _clock(clocks.get("mclk") or hwmon / "freq2"))


def _memory_temperature(sensor: Path | None) -> Value[float]:
    if sensor is None:
        return absent("this chip has no sensor in its memory")
    read = read_temperature_c(sensor.with_name(f"{sensor.name}_input"))
    return read.then(lambda c: known(c) if c != 0 else absent("0 C means that it has no sensor"))


def _clock(sensor: Path) -> Value[float]:
    return read_scaled(sensor.with_name(f"{sensor.name}_input"), most=MAX_CLOCK_HZ)


def _take_energy(memory: _Memory, found: Found, now: Moment | None) -> None:
    power_w: float | None = found.values.get("power_w")
    if now is not None:
        memory.integral.add(power_w, now.monotonic_s)
    if "power_w" not in found.able and not memory.integral.total_j:
        for name in ("energy_j", "integrated_j"):
            found.take(name, absent(f"no power to sum up: {found.missing['power_w']}"))
        return
    for name in ("energy_j", "integrated_j"):
        found.take(name, known(memory.integral.total_j))  # what was summed up stays true
    found.values["energy_kind"] = EnergyKind.INTEGRATED


def _uncorrected_errors(folder: Path) -> Value[int]:
    """Sum the uncorrected errors of all blocks (memory, caches, engines) that count them."""
    names = [name for name in names_in(folder) if name.endswith("_err_count")]
    if not names:
        return absent("this card has no error counters (RAS)")
    total = 0
    for name in names:
        text = read_text(folder / name)
        match = re.search(r"\bue:\s*([0-9]{1,18})\b", text.value or "")
        if match is None:
            return absent(text.reason or f"{name} holds no count of uncorrected errors")
        total += int(match[1])
    return known(total)


def _hex(path: Path) -> int | None:
    text = read_text(path).value or ""
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else None


def _kfd_memory(root: Path) -> dict[str, dict[int, int]]:
    """Give PCI address -> pid -> bytes on the card, for programs under ROCm."""
    kfd = root / "sys" / "class" / "kfd" / "kfd"
    found: dict[str, dict[int, int]] = {}
    pids = [pid for pid in names_in(kfd / "proc") if _PID.fullmatch(pid)]
    if not pids:
        return found
    bdfs = _kfd_cards(kfd / "topology" / "nodes")
    for pid in pids:
        for name in names_in(kfd / "proc" / pid):
            bdf = bdfs.get(name.removeprefix("vram_")) if name.startswith("vram_") else None
            vram = None if bdf is None else read_count(kfd / "proc" / pid / name).value
            if bdf is not None and vram:
                on_card = found.setdefault(bdf, {})
                on_card[int(pid)] = on_card.get(int(pid), 0) + vram
    return found


def _kfd_cards(nodes: Path) -> dict[str, str]:
    """Give KFD's number of a GPU -> PCI address."""
    found: dict[str, str] = {}
    for node in names_in(nodes):
        gpu_id = read_int(nodes / node / "gpu_id").value
        if not gpu_id:  # 0: a processor
            continue
        text = read_text(nodes / node / "properties").value or ""
        matches = (_PROPERTY.fullmatch(line.strip()) for line in text.splitlines())
        place = {match[1]: int(match[2]) for match in matches if match}
        if "location_id" in place:
            bus, rest = place["location_id"] >> 8 & 0xFF, place["location_id"] & 0xFF
            domain = place.get("domain", 0)
            found[str(gpu_id)] = f"{domain:04x}:{bus:02x}:{rest >> 3:02x}.{rest & 7}"
    return found
