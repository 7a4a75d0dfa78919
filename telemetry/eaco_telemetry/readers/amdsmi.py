"""AMD GPUs through the library amdsmi, for what the kernel's files do not tell.

The reader `amd` needs no library and comes first; this one adds why clocks are held down,
and what else sysfs lacks on a chip. Only the amdsmi that came with the installed ROCm
works. One from elsewhere prints to standard output and raises a KeyError when it is
imported, and may do worse, so it is only ever loaded in a process of its own
(`isolated_amdsmi`); used directly, this class loads it into yours.

- Values are numbers or the text "N/A". MI200 has average power only, MI300 current only.
- The energy counter has stood still, lied and run backwards (amdsmi#22, #38, #115,
  rocm_smi_lib#180). So it is first held against power over at least half a second and 20 J;
  if they differ by over a quarter, joules are summed up from power for the whole session.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, field, fields

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import (
    NOT_READ_HERE,
    PowerIntegral,
    Reading,
    without_values,
)
from eaco_telemetry.readers.cards import MAX_CARD_W, MAX_CLOCK_HZ, MAX_TEMPERATURE_C
from eaco_telemetry.readers.counters import EnergyMeter
from eaco_telemetry.readers.isolated import IsolatedReader
from eaco_telemetry.readers.sysfs import is_pci_address
from eaco_telemetry.samples import EnergyKind, GpuSample, MemoryKind, PowerKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from eaco_telemetry.samples import Moment

_MIB: Final = 1 << 20
_MAX_BYTES: Final = 1 << 50
_COMPARE_S: Final = 0.5
_COMPARE_J: Final = 20.0
_TOLERANCE: Final = 0.25
_UNIT_J: Final = 1e-6
_MEASURED: Final = tuple(one.name for one in fields(GpuSample) if one.metadata.get("measured"))
_VIOLATIONS: Final = {
    "active_ppt_pwr": "sw_power_cap",
    "active_prochot_thrm": "hw_thermal",
    "active_socket_thrm": "sw_thermal",
    "active_vr_thrm": "power_brake",
    "active_hbm_thrm": "mem_thermal",
}


@define(eq=False)
class _Energy:
    """Joules of one GPU: of the counter if it agrees with power at first, else summed up."""

    meter: EnergyMeter = field(factory=lambda: EnergyMeter(unit_j=_UNIT_J, max_w=MAX_CARD_W))
    integral: PowerIntegral = field(factory=PowerIntegral)
    kind: EnergyKind | None = None
    began_s: float | None = None
    rebased: bool = False

    def feed(self, counter_uj: int | None, power_w: float | None, now_s: float) -> float | None:
        """Give the joules so far; None while the two are still compared."""
        summed_j = self.integral.add(power_w, now_s)
        counted_j: float | None = None
        if counter_uj is not None and self.kind is not EnergyKind.INTEGRATED:
            seen = self.meter.feed(counter_uj, now_s)
            counted_j = seen.total_j
            self.rebased |= seen.rebased
        if self.kind is None:
            self.kind = self._decide(counted_j, power_w, summed_j, now_s)
        if self.kind is EnergyKind.INTEGRATED:
            return summed_j if power_w is not None or summed_j else None
        return counted_j if self.kind is EnergyKind.COUNTER else None

    def _decide(
        self, counted_j: float | None, power_w: float | None, summed_j: float, now_s: float
    ) -> EnergyKind | None:
        if counted_j is None:
            return EnergyKind.INTEGRATED if power_w is not None else None
        if power_w is None and not summed_j:
            return EnergyKind.COUNTER  # there is nothing to hold it against
        if self.began_s is None:
            self.began_s = now_s
        if now_s - self.began_s < _COMPARE_S or max(summed_j, counted_j) < _COMPARE_J:
            return None
        agree = abs(counted_j - summed_j) <= _TOLERANCE * max(counted_j, summed_j)
        return EnergyKind.COUNTER if agree and not self.rebased else EnergyKind.INTEGRATED


@define(eq=False)
class _Gpu:
    """One GPU: the library's handle, where it is, and what is kept between two reads."""

    handle: object
    bdf: str
    gpu_id: str
    energy: _Energy = field(factory=_Energy)
    able: frozenset[str] = frozenset()
    rejected: int = 0


class AmdSmiReader:
    """Reads all AMD GPUs that amdsmi lists. See `eaco_telemetry.readers.base.Reader`."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._library: Any = None
        self._gpus: list[_Gpu] = []
        self._last: tuple[GpuSample, ...] = ()

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "amdsmi"

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each GPU, the values that it has given so far."""
        return {gpu.gpu_id: tuple(sorted(gpu.able)) for gpu in self._gpus}

    @property
    def pci_addresses(self) -> frozenset[str]:
        """Where its GPUs are."""
        return frozenset(gpu.bdf for gpu in self._gpus)

    def open(self) -> None:
        """Load the library and list its GPUs.

        Raise `EnvironmentFault` where it is not installed, does not fit, or lists none.
        """
        if self._library is not None:
            return
        library = _load()
        try:
            library.amdsmi_init()
            found = [self._gpu(library, one) for one in library.amdsmi_get_processor_handles()]
        except Exception as error:  # noqa: BLE001 - its errors share no base class
            raise EnvironmentFault(f"amdsmi does not work here: {_told(error)}") from None
        self._gpus = [gpu for gpu in found if gpu is not None]
        if not self._gpus:
            raise EnvironmentFault("amdsmi lists no GPU")
        self._library = library

    def read(self, now: Moment) -> Reading:
        """Ask for every GPU once."""
        if self._library is None:
            problem = "amdsmi is not open"
            return Reading(
                gpus=tuple(without_values(gpu, problem) for gpu in self._last), problem=problem
            )
        self._last = tuple(self._sample(gpu, now.monotonic_s) for gpu in self._gpus)
        return Reading(gpus=self._last)

    def close(self) -> None:
        """Shut the library down."""
        library, self._library = self._library, None
        if library is not None:
            with contextlib.suppress(Exception):  # it is given up either way
                library.amdsmi_shut_down()

    def _gpu(self, library: Any, handle: object) -> _Gpu | None:  # noqa: ANN401 - a module without types
        bdf = str(library.amdsmi_get_gpu_device_bdf(handle)).lower()
        if not is_pci_address(bdf):
            return None
        return _Gpu(handle, bdf, f"pci:{self._node_id}/{bdf}")

    def _sample(self, gpu: _Gpu, now_s: float) -> GpuSample:
        answers = _Answers(self._library, gpu.handle)
        answers.ask_all()
        counter_uj = answers.energy_uj()
        power_w: float | None = answers.values.get("power_w")
        energy_j = gpu.energy.feed(counter_uj, power_w, now_s)
        values = answers.values
        if energy_j is not None:
            values["energy_j"] = energy_j
            values["energy_kind"] = gpu.energy.kind
        else:
            answers.missing["energy_j"] = "the counter is held against power first"
        if power_w is not None:
            values["integrated_j"] = gpu.energy.integral.total_j
        gpu.able |= {name for name in _MEASURED if name in values}
        gpu.rejected += answers.rejected
        rebased = gpu.energy.kind is EnergyKind.COUNTER and gpu.energy.rebased
        return GpuSample(
            gpu_id=gpu.gpu_id,
            vendor="amd",
            pci_bdf=gpu.bdf,
            missing={
                name: answers.missing.get(name, NOT_READ_HERE)
                for name in _MEASURED
                if name not in values
            },
            capabilities=tuple(sorted(gpu.able)),
            flags=("energy_rebased",) if rebased else (),
            rejected=gpu.rejected,
            **values,
        )


@define(eq=False)
class _Answers:
    """What the library says about one GPU at one read."""

    library: Any
    handle: object
    values: dict[str, Any] = field(factory=dict[str, Any])
    missing: dict[str, str] = field(factory=dict[str, str])
    rejected: int = 0

    def ask_all(self) -> None:
        activity = self._ask("amdsmi_get_gpu_activity")
        for name, key in (("util_ratio", "gfx_activity"), ("mem_busy_ratio", "umc_activity")):
            percent = _number(activity, key)
            self._put(name, None if percent is None else percent / 100, 1.0)
        power = self._ask("amdsmi_get_power_info")
        current, average = (_number(power, f"{one}_socket_power") for one in ("current", "average"))
        # A chip without one of the two gives "N/A", or 0 in some versions.
        self._put("power_w", average or current, MAX_CARD_W)
        if "power_w" in self.values:
            self.values["power_kind"] = PowerKind.AVERAGE if average else PowerKind.INSTANT
        self._put("power_inst_w", current or None, MAX_CARD_W)
        memory = self._ask("amdsmi_get_gpu_vram_usage")
        for name, key in (("mem_used_bytes", "vram_used"), ("mem_total_bytes", "vram_total")):
            mib = _number(memory, key)
            self._put(name, None if mib is None else int(mib) * _MIB, _MAX_BYTES)
        if "mem_total_bytes" in self.values:
            self.values["mem_kind"] = MemoryKind.DEDICATED
        self._put("temperature_c", self._temperature("EDGE", "HOTSPOT"), MAX_TEMPERATURE_C)
        self._put("mem_temperature_c", self._temperature("VRAM") or None, MAX_TEMPERATURE_C)
        for name, kind in (("clock_sm_hz", "GFX"), ("clock_mem_hz", "MEM")):
            self._put(name, self._clock(kind), MAX_CLOCK_HZ, 1e6)
        errors = _number(self._ask("amdsmi_get_gpu_total_ecc_count"), "uncorrectable_count")
        self._put("ecc_uncorrected", None if errors is None else int(errors), 1 << 47)
        self._throttle()

    def energy_uj(self) -> int | None:
        """Give the counter in microjoules."""
        told = self._ask("amdsmi_get_energy_count")
        count = _number(told, "energy_accumulator")
        if count is None:
            count = _number(told, "power")  # what older versions called it
        unit_uj = _number(told, "counter_resolution")
        return None if count is None or not unit_uj else int(count * unit_uj)

    def _throttle(self) -> None:
        told = self._ask("amdsmi_get_violation_status")
        known = {key: told[key] for key in _VIOLATIONS if isinstance(told.get(key), bool | int)}
        if known:
            words = [_VIOLATIONS[key] for key, active in known.items() if active]
            self.values["throttle"] = tuple(words)
        else:
            self.missing["throttle"] = "this chip or this amdsmi does not tell it"

    def _temperature(self, *places: str) -> float | None:
        for place in places:
            kind = getattr(getattr(self.library, "AmdSmiTemperatureType", None), place, None)
            metric = getattr(
                getattr(self.library, "AmdSmiTemperatureMetric", None), "CURRENT", None
            )
            told = self._call("amdsmi_get_temp_metric", kind, metric)
            number = _as_number(told)
            if number is not None:
                return number
        return None

    def _clock(self, kind: str) -> float | None:
        told = self._ask(
            "amdsmi_get_clock_info",
            getattr(getattr(self.library, "AmdSmiClkType", None), kind, None),
        )
        number = _number(told, "clk")
        return number if number is not None else _number(told, "cur_clk")

    def _ask(self, call: str, *arguments: object) -> dict[str, Any]:
        told = self._call(call, *arguments)
        return cast("dict[str, Any]", told) if isinstance(told, dict) else {}

    def _call(self, call: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the library says
        try:
            return getattr(self.library, call)(self.handle, *arguments)
        except Exception:  # noqa: BLE001 - not on this chip, in this version, or for this user
            return None

    def _put(self, name: str, value: float | None, most: float, factor: float = 1.0) -> None:
        if value is None:
            self.missing[name] = "this chip or this amdsmi does not tell it"
            return
        # Not times 1.0: what is counted stays a whole number.
        scaled = value if factor == 1 else value * factor
        if not 0 <= scaled <= most:
            self.rejected += 1
            self.missing[name] = f"amdsmi gave an impossible value ({value:g})"
        else:
            self.values[name] = scaled


def _number(told: Mapping[str, Any], key: str) -> float | None:
    return _as_number(told.get(key))


def _as_number(value: object) -> float | None:
    """Give a number; None for "N/A" and for the marks of 16, 32 and 64 bits for "none"."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return None if value in {0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF} else value


def _load() -> ModuleType:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return importlib.import_module("amdsmi")
    except ModuleNotFoundError:
        raise EnvironmentFault(
            "amdsmi is not installed; it comes with ROCm (/opt/rocm/share/amd_smi)"
        ) from None
    except Exception as error:  # noqa: BLE001 - it raises a KeyError where ROCm is missing
        raise EnvironmentFault(
            f"amdsmi cannot be loaded ({_told(error)}): it must be the one of the installed ROCm"
        ) from None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def isolated_amdsmi(node_id: str) -> IsolatedReader:
    """Give this reader in a process of its own, into which alone the library is loaded."""
    factory = "eaco_telemetry.readers.amdsmi:AmdSmiReader"
    return IsolatedReader("amdsmi", factory, {"node_id": node_id}, open_timeout_s=20.0)
