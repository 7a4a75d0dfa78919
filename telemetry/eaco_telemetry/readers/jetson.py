"""The GPU of an NVIDIA Jetson, from devfreq, the INA3221 power monitors and thermal zones.

NVML is absent or mostly empty on a Jetson, so this reader comes before it. It reads the
files that the kernel of NVIDIA shows, and no tool or service is needed.

- Load: `device/load` of the GPU's devfreq, 0 to 1000. The GPU's files may appear some time
  after boot, so they are looked for at every read. Thor has no such file; there, NVML
  tells the utilisation.
- Power: rails, volts x amperes. Which rails exist depends on the board. A rail that feeds
  the GPU together with others (``VDD_CPU_GPU_CV``) is given with a flag. The module's
  own rail (``VDD_IN``) is `module_power_w`.
- Memory is that of the node: it must not be added to the host's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import fields, frozen

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import UNSUPPORTED, DeviceEvent, PowerIntegral, Reading
from eaco_telemetry.readers.cards import GONE, MAX_CLOCK_HZ, Found, read_temperature_c
from eaco_telemetry.readers.meminfo import read_meminfo
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    first_known,
    known,
    names_in,
    read_int,
    read_scaled,
    read_text,
)
from eaco_telemetry.samples import DeviceState, EnergyKind, GpuSample, MemoryKind, PowerKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import Moment

VENDOR: Final = "nvidia"
MAX_RAIL_W: Final = 200.0

_GPU_FREQ = re.compile(r".+\.(?:gpu|gm20b|gp10b|gv11b|ga10b|gb10b)|gpu-gpc-[0-9]+")
# Rails of the GPU by what they are called on the boards, the purest first; `shared` ones
# feed other parts of the chip too.
_GPU_RAILS: Final = (
    ("GPU", False),
    ("VDD_GPU", False),
    ("VDD_SYS_GPU", False),
    ("POM_5V_GPU", False),
    ("VDD_GPU_SOC", True),
    ("VDD_CPU_GPU_CV", True),
)
_MODULE_RAILS: Final = ("VDD_IN", "POM_5V_IN")
_GPU_ZONES = re.compile(r"gpu-?therm(?:al)?", re.IGNORECASE)
_NO_RAIL = "no power rail of the GPU on this board (INA3221)"
_MEASURED = tuple(one.name for one in fields(GpuSample) if one.metadata.get("measured"))


@frozen
class _Rail:
    """One channel of a power monitor: a file in mW, or one in mV and one in mA."""

    milliwatt: Path | None
    millivolt: Path
    milliampere: Path

    def read_w(self) -> Value[float]:
        if self.milliwatt is not None:
            return read_scaled(self.milliwatt, per=1e3, most=MAX_RAIL_W)
        volt = read_scaled(self.millivolt, per=1e3, most=MAX_RAIL_W)
        ampere = read_scaled(self.milliampere, per=1e3, most=MAX_RAIL_W)
        if volt.value is None:
            return volt
        return ampere.then(lambda amperes: known((volt.value or 0.0) * amperes))


def is_jetson(root: Path = Path("/")) -> bool:
    """Say whether this node is a Jetson, without opening a device."""
    if read_text(root / "etc" / "nv_tegra_release").value is not None:
        return True
    compatible = read_text(root / "proc" / "device-tree" / "compatible").value or ""
    return "nvidia,tegra" in compatible


class JetsonReader:
    """Reads the GPU of a Jetson. Works without root rights.

    `gpu_id`: the id of this GPU where another reader (NVML on a Thor) knows a better one.
    """

    def __init__(self, node_id: str, *, root: Path = Path("/"), gpu_id: str | None = None) -> None:
        self._root = root
        self._gpu_id = gpu_id or f"soc:{node_id}"
        self._name: str | None = None
        self._integral = PowerIntegral()
        self._state: DeviceState | None = None
        self._able: frozenset[str] = frozenset()
        self._rejected = 0
        self._is_open = False

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "jetson"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For the GPU, the names of the values that it gives at all."""
        return {self._gpu_id: tuple(sorted(self._able))}

    def open(self) -> None:
        """See what this board gives; joules count from here.

        Raise `EnvironmentFault` if it is no Jetson.
        """
        if self._is_open:
            return
        if not is_jetson(self._root):
            raise EnvironmentFault("this node is no Jetson")
        self._integral, self._state = PowerIntegral(), None
        self._name = read_text(self._root / "proc" / "device-tree" / "model").value or None
        found = Found()
        self._take_all(found, None)
        self._able |= found.able
        self._is_open = True

    def close(self) -> None:
        """No file stays open between two reads."""
        self._is_open = False

    def read(self, now: Moment) -> Reading:
        """Read the GPU once."""
        found = Found()
        there = self._take_all(found, now)
        before, self._state = self._state, DeviceState.ACTIVE if there else DeviceState.LOST
        if not there:
            found.all_missing(GONE)
        self._able |= found.able
        self._rejected += found.rejected
        unknown = [name for name in _MEASURED if name not in found.values]
        gpu = GpuSample(
            gpu_id=self._gpu_id,
            vendor=VENDOR,
            name=self._name,
            state=self._state,
            missing={name: found.missing.get(name, UNSUPPORTED) for name in unknown},
            capabilities=tuple(sorted(self._able)),
            flags=tuple(found.flags),
            rejected=self._rejected,
            **found.values,
        )
        return Reading(gpus=(gpu,), events=_events(self._gpu_id, before, self._state))

    def _take_all(self, found: Found, now: Moment | None) -> bool:
        """Take everything; say whether there is a trace of the GPU at all."""
        freq = self._devfreq()
        rails = _rails(self._root)
        _take_clock_and_load(freq, found)
        self._take_power(rails, found, now)
        found.take("temperature_c", _temperature(self._root))
        memory = read_meminfo(self._root)
        found.take("mem_total_bytes", memory.total_bytes)
        found.take("mem_used_bytes", memory.used_bytes)
        found.values["mem_kind"] = MemoryKind.UNIFIED
        found.take("processes", absent("the kernel of a Jetson does not list them for users"))
        return freq is not None or bool(rails)

    def _devfreq(self) -> Path | None:
        folder = self._root / "sys" / "class" / "devfreq"
        names = [name for name in names_in(folder) if _GPU_FREQ.fullmatch(name)]
        return folder / names[0] if names else None

    def _take_power(self, rails: Mapping[str, _Rail], found: Found, now: Moment | None) -> None:
        power: Value[float] = absent(_NO_RAIL)
        for label, shared in _GPU_RAILS:
            if label in rails:
                power = rails[label].read_w()
                if shared and power.value is not None:
                    found.flags.append("power_rail_shared")
                break
        found.take("power_w", power)
        if power.value is not None:
            found.values["power_kind"] = PowerKind.INSTANT
        found.take("power_inst_w", power)
        module = [rails[label].read_w() for label in _MODULE_RAILS if label in rails]
        no_module = absent("no rail carries the whole module on this board")
        found.take("module_power_w", first_known(*module, no_module) if module else no_module)
        if now is None:
            if power.value is not None:
                found.able |= {"energy_j", "integrated_j"}
            return
        total_j = self._integral.add(power.value, now.monotonic_s)
        if power.value is not None or total_j:
            found.take("energy_j", known(total_j))
            found.take("integrated_j", known(total_j))
            found.values["energy_kind"] = EnergyKind.INTEGRATED
        else:
            reason = f"no power to sum up: {power.reason}"
            found.take("energy_j", absent(reason))
            found.take("integrated_j", absent(reason))


def _events(gpu_id: str, before: DeviceState | None, after: DeviceState) -> tuple[DeviceEvent, ...]:
    if before is after or before is None:
        return ()
    return (DeviceEvent("lost" if after is DeviceState.LOST else "returned", gpu_id),)


def _take_clock_and_load(freq: Path | None, found: Found) -> None:
    if freq is None:
        reason = "the GPU's devfreq is not there (yet); it is looked for at every read"
        found.take("util_ratio", absent(reason))
        found.take("clock_sm_hz", absent(reason))
        return
    found.take("clock_sm_hz", read_scaled(freq / "cur_freq", most=MAX_CLOCK_HZ))
    if freq.name.startswith("gpu-gpc"):
        found.take("util_ratio", absent("Thor has no file with the load; NVML tells it"))
        return
    found.take("util_ratio", read_scaled(freq / "device" / "load", per=1e3, most=1.0))


def _temperature(root: Path) -> Value[float]:
    folder = root / "sys" / "class" / "thermal"
    zones = [
        folder / name
        for name in names_in(folder)
        if name.startswith("thermal_zone")
        and _GPU_ZONES.fullmatch(read_text(folder / name / "type").value or "")
    ]
    # The zone of a GPU that is switched off answers with an error.
    reads = [read_temperature_c(zone / "temp") for zone in zones]
    return first_known(*reads) if reads else absent("no thermal zone of the GPU")


def _rails(root: Path) -> dict[str, _Rail]:
    """Give label -> rail over all power monitors, for the new driver and for the old one."""
    drivers = root / "sys" / "bus" / "i2c" / "drivers"
    rails: dict[str, _Rail] = {}
    chips = [drivers / "ina3221" / name for name in names_in(drivers / "ina3221")]
    for chip in chips:
        for hwmon in (chip / "hwmon" / name for name in names_in(chip / "hwmon")):
            # Channels 4 to 6 are the drops over the shunts and 7 their sum: no rails.
            for channel in (1, 2, 3):
                if read_int(hwmon / f"in{channel}_enable").value == 0:
                    continue
                label = read_text(hwmon / f"in{channel}_label").value
                if label and label != "NC":
                    volt, ampere = hwmon / f"in{channel}_input", hwmon / f"curr{channel}_input"
                    rails.setdefault(label, _Rail(None, volt, ampere))
    old = drivers / "ina3221x"
    for chip in (old / name for name in names_in(old)):
        for device in (chip / name for name in names_in(chip) if name.startswith("iio:device")):
            for channel in (0, 1, 2):
                label = read_text(device / f"rail_name_{channel}").value
                if label:
                    rail = _Rail(
                        device / f"in_power{channel}_input",
                        device / f"in_voltage{channel}_input",
                        device / f"in_current{channel}_input",
                    )
                    rails.setdefault(label, rail)
    return rails
