"""The node around its GPUs: processor, memory, and their joules. Plain /proc and /sys.

Energy comes from RAPL (/sys/class/powercap). Its files are for root only since Linux
5.10. A counter wraps after 20 to 60 minutes under load, on big servers within a minute
or two: read at least every minute. Of the zones, ``package`` is a processor with its
cores, ``dram`` the memory beside it, and ``psys`` the whole board, which contains the
packages. ``intel-rapl-mmio`` shows the same packages a second time and is not read.

A server may also have a meter of the whole node that ACPI shows (hwmon ``power_meter``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, fields

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import UNSUPPORTED, PowerIntegral, Reading
from eaco_telemetry.readers.cards import Found, labelled, read_power_w, read_temperature_c
from eaco_telemetry.readers.counters import EnergyMeter
from eaco_telemetry.readers.meminfo import read_meminfo
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    first_known,
    known,
    names_in,
    read_count,
    read_text,
)
from eaco_telemetry.samples import HostSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import Moment

MAX_ZONE_W: Final = 1_000.0
"""More than one processor, its memory or one board with a psys zone draws."""

MAX_NODE_W: Final = 20_000.0

_ZONE = re.compile(r"intel-rapl:[0-9]+(?::[0-9]+)?")
# What the zones are called: package-0, package-1-die-0, dram, psys.
_KINDS: Final = {"package": "package", "dram": "dram", "psys": "platform"}
_NO_ZONE: Final = {
    "package": "no RAPL here (not this processor, a virtual machine, or no driver intel_rapl)",
    "dram": "this processor does not measure its memory (no RAPL zone dram)",
    "platform": "this board does not measure itself (no RAPL zone psys)",
}
_NO_METER = "no meter of the whole node (ACPI power_meter)"
_CPU_LINE = re.compile(r"cpu((?: +[0-9]{1,20})+)")
_IDLE_FIELDS = (3, 4)  # idle, iowait
# Guest times are contained in user and nice already.
_TIME_FIELDS = 8
_CPU_SENSORS: Final = {
    "coretemp": re.compile(r"Package id [0-9]+"),
    "k10temp": re.compile(r"Tctl|Tdie"),
    "zenpower": re.compile(r"Tdie|Tctl"),
}
_MEASURED = tuple(one.name for one in fields(HostSample) if one.metadata.get("measured"))


@define(eq=False)
class _Zone:
    folder: Path
    kind: str
    meter: EnergyMeter


@define(eq=False)
class _CpuTimes:
    """The ratio of time in which the processors worked, from two readings of /proc/stat."""

    last: tuple[int, ...] = ()

    def feed(self, times: tuple[int, ...]) -> Value[float]:
        last, self.last = self.last, times
        if len(last) != len(times):
            return absent("the utilisation needs two readings")
        # A field may go back (iowait does): that one then counts for nothing.
        steps = [max(0, now - before) for now, before in zip(times, last, strict=True)]
        if not sum(steps):
            return absent("no time has passed since the last reading")
        idle = sum(steps[place] for place in _IDLE_FIELDS)
        return known(1.0 - idle / sum(steps))


class HostReader:
    """Reads the node itself. Without root rights it lacks the energy of the processors."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        self._zones: dict[str, _Zone] = {}
        self._cpu = _CpuTimes()
        self._node = PowerIntegral()
        self._able: frozenset[str] = frozenset()
        self._is_open = False

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "host"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """Under the key ``host`` the names of the values that this node gives."""
        return {"host": tuple(sorted(self._able))}

    def open(self) -> None:
        """See what can be read; joules count from here.

        Raise `EnvironmentFault` where there is no /proc.
        """
        if self._is_open:
            return
        self._zones, self._cpu, self._node = {}, _CpuTimes(), PowerIntegral()
        stat = read_text(self._root / "proc" / "stat")
        if stat.value is None:
            raise EnvironmentFault(f"this node has no /proc to read: {stat.reason}")
        found = Found()
        self._take_all(found, None)
        self._able |= found.able
        self._is_open = True

    def close(self) -> None:
        """No file stays open between two reads."""
        self._is_open = False

    def read(self, now: Moment) -> Reading:
        """Read everything once."""
        found = Found()
        self._take_all(found, now)
        self._able |= found.able
        unknown = [name for name in _MEASURED if name not in found.values]
        host = HostSample(
            missing={name: found.missing.get(name, UNSUPPORTED) for name in unknown},
            capabilities=tuple(sorted(self._able)),
            flags=tuple(found.flags),
            **found.values,
        )
        return Reading(host=host)

    def _take_all(self, found: Found, now: Moment | None) -> None:
        times = _cpu_times(self._root / "proc" / "stat")
        if now is None:
            found.take("cpu_util_ratio", absent("not read yet"), able=times.value is not None)
        else:
            found.take("cpu_util_ratio", times.then(self._cpu.feed))
        memory = read_meminfo(self._root)
        found.take("mem_total_bytes", memory.total_bytes)
        found.take("mem_available_bytes", memory.available_bytes)
        self._find_zones()
        for kind in _KINDS.values():
            self._take_zones(kind, found, now)
        self._take_sensors(found, now)

    def _find_zones(self) -> None:
        powercap = self._root / "sys" / "class" / "powercap"
        names = [name for name in names_in(powercap) if _ZONE.fullmatch(name)]
        self._zones = {name: zone for name, zone in self._zones.items() if name in names}
        for name in names:
            title = read_text(powercap / name / "name").value or ""
            kind = _KINDS.get(title.split("-", 1)[0])
            known_zone = self._zones.get(name)
            if kind is None or (known_zone is not None and known_zone.kind == kind):
                continue
            largest = read_count(powercap / name / "max_energy_range_uj").value
            meter = EnergyMeter(
                unit_j=1e-6, max_w=MAX_ZONE_W, wraps_at=largest + 1 if largest else None
            )
            self._zones[name] = _Zone(powercap / name, kind, meter)

    def _take_zones(self, kind: str, found: Found, now: Moment | None) -> None:
        names = (f"{kind}_power_w", f"{kind}_energy_j")
        zones = [zone for zone in self._zones.values() if zone.kind == kind]
        raws = [(zone, read_count(zone.folder / "energy_uj")) for zone in zones]
        # A sum over a part of the processors would be a wrong number, not a smaller one.
        unread = [raw for _, raw in raws if raw.value is None]
        if not zones or unread or now is None:
            reason = unread[0].reason if unread else _NO_ZONE[kind]
            for name in names:
                found.take(name, absent(reason or UNSUPPORTED), able=bool(zones) and not unread)
            return
        seen = [
            zone.meter.feed(raw.value, now.monotonic_s)
            for zone, raw in raws
            if raw.value is not None
        ]
        powers = [one.power_w for one in seen if one.power_w is not None]
        no_power = next((one.reason for one in seen if one.reason), None)
        power_w = sum(powers) if len(powers) == len(seen) else None
        found.take(names[0], Value(power_w, no_power), able=True)
        found.take(names[1], known(sum(one.total_j for one in seen)))
        if any(one.rebased for one in seen):
            found.flags.append(f"{kind}_energy_rebased")

    def _take_sensors(self, found: Found, now: Moment | None) -> None:
        hwmon = self._root / "sys" / "class" / "hwmon"
        meters: list[Path] = []
        heats: list[Value[float]] = []
        for folder in (hwmon / name for name in names_in(hwmon)):
            title = read_text(folder / "name").value or ""
            if title == "power_meter":
                meters.append(folder)
            elif title in _CPU_SENSORS:
                heats += [
                    read_temperature_c(folder / f"{sensor.name}_input")
                    for label, sensor in labelled(folder, "temp").items()
                    if _CPU_SENSORS[title].fullmatch(label)
                ]
        hottest = [heat.value for heat in heats if heat.value is not None]
        if hottest:
            found.take("temperature_c", known(max(hottest)))
        else:
            found.take(
                "temperature_c", first_known(*heats, absent("no sensor of the processor (hwmon)"))
            )
        self._take_node_power(meters, found, now)

    def _take_node_power(self, meters: list[Path], found: Found, now: Moment | None) -> None:
        if len(meters) == 1:
            power = read_power_w(meters[0] / "power1_average", most=MAX_NODE_W)
        elif meters:
            power = absent(f"{len(meters)} ACPI power meters: which is the whole node is unknown")
        else:
            power = absent(_NO_METER)
        found.take("node_power_w", power)
        if now is None:
            return
        total_j = self._node.add(power.value, now.monotonic_s)
        if "node_power_w" in found.able or total_j:
            found.take("node_energy_j", known(total_j))
        else:
            found.take("node_energy_j", power.then(known))


def _cpu_times(path: Path) -> Value[tuple[int, ...]]:
    def parse(text: str) -> Value[tuple[int, ...]]:
        match = _CPU_LINE.match(text)
        times = tuple(int(part) for part in match[1].split()) if match else ()
        if len(times) <= max(_IDLE_FIELDS):
            return absent("/proc/stat holds no times of the processors")
        return known(times[:_TIME_FIELDS])

    return read_text(path).then(parse)
