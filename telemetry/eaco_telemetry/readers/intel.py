"""Intel GPUs with the drivers i915 and xe, from hwmon, sysfs and DRM fdinfo.

Sources: the kernel's ABI notes sysfs-driver-intel-i915-hwmon and
sysfs-driver-intel-xe-hwmon, and "DRM client usage stats". No library is needed.

- Energy is a counter (`energy1_input`); power comes from its difference. It is known to
  drop and to jump by terawatts, so it goes through `EnergyMeter`.
- Only the sensors of the whole card count: those of a tile (``i915_gt0``) are part of it.
- There is no file with the utilisation. It is the sum over all clients, so it exists
  only where all clients can be seen, with root rights; a part of them would be a lie.
- Integrated GPUs have no counter of energy, and their memory is that of the node.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field

from eaco_telemetry.readers.base import PowerIntegral
from eaco_telemetry.readers.cards import (
    MAX_CLOCK_HZ,
    CardReader,
    hwmon_folders,
    labelled,
    read_limit_w,
    read_temperature_c,
    take_processes,
    with_reason,
)
from eaco_telemetry.readers.counters import EnergyMeter
from eaco_telemetry.readers.fdinfo import ClientUse, UseMeter
from eaco_telemetry.readers.meminfo import read_meminfo
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    first_known,
    forbidden,
    known,
    names_in,
    read_count,
    read_int,
    read_scaled,
    read_text,
)
from eaco_telemetry.samples import EnergyKind, MemoryKind, PowerKind

if TYPE_CHECKING:
    from eaco_telemetry.readers.cards import Card, Found
    from eaco_telemetry.samples import Moment

VENDOR: Final = "intel"
_DRIVERS = frozenset({"i915", "xe"})
# From this kernel on a driver tells busy times, so that no client means no use.
_TELLS_SINCE = {"i915": (5, 19), "xe": (6, 11)}
# An integrated GPU of Intel is always at this place.
_INTEGRATED = "0000:00:02.0"
_MAX_W = 2_000.0
_NEEDS_ALL = "the utilisation is the sum over all processes: "
_NO_DEVICE_MEMORY = (
    "i915 and xe tell the memory of the card only through a system call with CAP_PERFMON"
)


@define(eq=False)
class _Memory:
    """What is kept of one card between two reads."""

    use: UseMeter
    energy: EnergyMeter = field(factory=lambda: EnergyMeter(unit_j=1e-6, max_w=_MAX_W))
    integral: PowerIntegral = field(factory=PowerIntegral)


class IntelReader(CardReader):
    """Reads all Intel GPUs of this node.

    `node_id` goes into the ids, since these GPUs have none of their own. `root` is where
    /sys and /proc are.
    """

    def __init__(self, node_id: str, *, root: Path = Path("/")) -> None:
        super().__init__(node_id, root=root)
        self._memories: dict[str, _Memory] = {}

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "intel"

    @property
    def _vendor(self) -> str:
        return VENDOR

    def _is_ours(self, folder: Path, driver: str) -> bool:
        del folder
        return driver in _DRIVERS

    def _forget(self) -> None:
        self._memories = {}

    def _interrupted(self, card: Card, *, lost: bool) -> None:
        memory = self._memories.get(card.gpu_id)
        if memory is not None:
            memory.integral.add(None, 0.0)
            if lost:
                memory.energy.forget()
                memory.use = _use_meter(card, self._root)

    def _measure(self, card: Card, found: Found, now: Moment | None) -> None:
        memory = self._memories.setdefault(card.gpu_id, _Memory(_use_meter(card, self._root)))
        sensors = hwmon_folders(card.device, _DRIVERS)
        _take_energy(memory, sensors[0] if sensors else None, found, now)
        _take_sensors(sensors[0] if sensors else None, found)
        found.take("clock_sm_hz", _clock(card))
        found.take("throttle", _throttle(card))
        self._take_use(memory, card, found, now)

    def _take_use(self, memory: _Memory, card: Card, found: Found, now: Moment | None) -> None:
        integrated = card.pci_bdf == _INTEGRATED
        if integrated:
            found.values["mem_kind"] = MemoryKind.UNIFIED
            found.take("mem_total_bytes", read_meminfo(self._root).total_bytes)
        else:
            found.values["mem_kind"] = MemoryKind.DEDICATED
            found.take("mem_total_bytes", forbidden(_NO_DEVICE_MEMORY))
        if now is None:
            found.able.add("processes")
            return
        use = memory.use.feed(self._clients_on(card), now.monotonic_ns)
        take_processes(found, use.processes, self._clients.hidden)
        if self._clients.hidden is not None:
            found.take("util_ratio", forbidden(_NEEDS_ALL + self._clients.hidden))
            found.take("mem_used_bytes", forbidden(_NO_DEVICE_MEMORY))
            return
        nothing = "no process told its busy time twice yet"
        found.take("util_ratio", Value(use.util_ratio, nothing), able=True)
        sizes = [process.mem_used_bytes for process in use.processes]
        if None in sizes:
            found.take("mem_used_bytes", absent("a process does not tell its memory"))
        else:
            found.take("mem_used_bytes", known(sum(size or 0 for size in sizes)))
            found.flags.append("mem_used_from_processes")


def _use_meter(card: Card, root: Path) -> UseMeter:
    integrated = card.pci_bdf == _INTEGRATED

    def memory_of(use: ClientUse) -> int:
        return use.memory_bytes(system=integrated)

    release = read_text(root / "proc" / "sys" / "kernel" / "osrelease").value or ""
    version = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", release)
    since = _TELLS_SINCE.get(card.driver)
    if version is None or since is None:
        return UseMeter(memory_of)
    return UseMeter(memory_of, tells=(int(version[1]), int(version[2])) >= since)


def _take_energy(memory: _Memory, hwmon: Path | None, found: Found, now: Moment | None) -> None:
    names = ("power_w", "energy_j", "integrated_j")
    raw: Value[int] = absent("no counter of energy: integrated GPUs have none")
    if hwmon is not None:
        card = read_count(hwmon / "energy1_input")
        package = read_count(hwmon / "energy2_input")  # on xe: the chip without the board
        raw = with_reason(first_known(card, package), "the card has no counter of energy")
        if card.value is None and package.value is not None:
            found.flags.append("energy_without_board")
    if raw.value is None or now is None:
        for name in names:
            found.take(name, absent(raw.reason or "not read yet"), able=raw.value is not None)
        if raw.value is None and now is not None:
            memory.integral.add(None, now.monotonic_s)
        found.rejected += raw.impossible
        found.saw_gone |= raw.gone
        return
    seen = memory.energy.feed(raw.value, now.monotonic_s)
    found.take("power_w", Value(seen.power_w, seen.reason), able=True)
    found.take("energy_j", known(seen.total_j))
    found.take("integrated_j", known(memory.integral.add(seen.power_w, now.monotonic_s)))
    found.values["energy_kind"] = EnergyKind.COUNTER
    if seen.power_w is not None:
        found.values["power_kind"] = PowerKind.INTEGRATED
    if seen.rebased:
        found.flags.append("energy_rebased")
        found.rejected += 1


def _take_sensors(hwmon: Path | None, found: Found) -> None:
    if hwmon is None:
        for name in ("temperature_c", "mem_temperature_c", "power_limit_w"):
            found.take(name, absent("no sensors (hwmon) for this card"))
        return
    heat = labelled(hwmon, "temp")
    core = heat.get("pkg") or hwmon / ("temp2" if "vram" in heat else "temp1")
    found.take("temperature_c", read_temperature_c(core.with_name(f"{core.name}_input")))
    vram = heat.get("vram")
    if vram is None:
        found.take("mem_temperature_c", absent("this driver shows no sensor in the memory"))
    else:
        found.take("mem_temperature_c", read_temperature_c(hwmon / f"{vram.name}_input"))
    limits = [hwmon / f"power{place}_max" for place in (1, 2)]
    found.take("power_limit_w", read_limit_w(*limits))


def _clock(card: Card) -> Value[float]:
    """Give the real clock of the first tile; 0 Hz while it is switched off between jobs."""
    places = (
        card.device / "tile0" / "gt0" / "freq0" / "act_freq",
        card.folder / "gt" / "gt0" / "rps_act_freq_mhz",
        card.folder / "gt_act_freq_mhz",
    )
    return first_known(*(read_scaled(place, 1e6, most=MAX_CLOCK_HZ) for place in places))


def _throttle(card: Card) -> Value[tuple[str, ...]]:
    """Give the reasons that are on: files with 0 or 1, one for each reason."""
    for folder, prefix in (
        (card.device / "tile0" / "gt0" / "freq0" / "throttle", "reason_"),
        (card.folder / "gt" / "gt0", "throttle_reason_"),
    ):
        names = [
            name
            for name in names_in(folder)
            if name.startswith(prefix) and not name.endswith("status")
        ]
        if names:
            on = [name for name in names if read_int(folder / name).value == 1]
            return known(tuple(name.removeprefix(prefix) for name in on))
    return absent("this driver shows no reasons for throttling")
