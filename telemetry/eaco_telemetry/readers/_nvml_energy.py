"""Joules of one device since the session began: from its counter, or from its watts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field

from eaco_telemetry.readers._nvml_binding import NEVER, NvmlFailure
from eaco_telemetry.readers.base import MAX_DEVICE_W, PowerIntegral
from eaco_telemetry.readers.counters import EnergyMeter
from eaco_telemetry.samples import EnergyKind, PowerKind

if TYPE_CHECKING:
    from eaco_telemetry.readers._nvml_asker import Asker
    from eaco_telemetry.readers._nvml_draft import Draft

DISAGREES: Final = "energy_disagrees"
"""Flag: counter and summed power differ by more than a quarter and by more than 100 J."""

OF_MODULE: Final = "energy_of_module"
"""Flag: the counter covers the module, so the processor beside the GPU too."""

_TOLERANCE: Final = 0.25
_TOLERANCE_J: Final = 100.0
_LEAST_CAP_W: Final = 1000.0


@define
class DeviceEnergy:
    """Keeps counter and summed power apart; one series is never continued by the other."""

    _meter: EnergyMeter = field(init=False)
    _integral: PowerIntegral = field(factory=PowerIntegral, init=False)
    _rebased: bool = field(default=False, init=False)
    _has_counter: bool | None = field(default=None, init=False)
    _compared_from: tuple[float, float] | None = field(default=None, init=False)
    _last_s: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._meter = EnergyMeter(unit_j=1e-3, max_w=MAX_DEVICE_W)

    def probe(self, asker: Asker, limit_w: float | None) -> None:
        """Find out, once in a session, whether there is a counter.

        A rise above three times the power limit is a jump of the counter and not energy.
        """
        self._meter.limit(MAX_DEVICE_W if limit_w is None else max(_LEAST_CAP_W, 3 * limit_w))
        if self._has_counter is None:
            self._find(asker)

    def _find(self, asker: Asker) -> None:
        try:
            asker.ask("nvmlDeviceGetTotalEnergyConsumption")
        except NvmlFailure as failure:
            self._has_counter = False if failure.code in NEVER else None
        else:
            self._has_counter = True

    def resume(self, *, was_lost: bool) -> None:
        """Go on after a time in which the device was not read.

        Its counter went on counting then, and these joules were used. Not so if it was
        lost: it may come back with another count, so counting begins anew.
        """
        if was_lost:
            self._meter.forget()
        self._integral.add(None, 0.0)
        self._compared_from = None

    def read(self, asker: Asker, draft: Draft, now_s: float) -> None:
        """Put joules into the draft; and watts, if the device gives joules only."""
        power_w = draft.values.get("power_w")
        summed_j = self._integral.add(power_w, now_s)
        if power_w is not None:
            draft.put("integrated_j", summed_j)
        else:
            draft.without("no power to sum up", "integrated_j")
        if self._has_counter is None:
            self._find(asker)
        if not self._has_counter:
            self._put_integrated(draft, power_w, summed_j)
            return
        try:
            raw_mj = int(asker.ask("nvmlDeviceGetTotalEnergyConsumption"))
        except NvmlFailure as failure:
            draft.without(failure.reason, "energy_j")
            return
        seen = self._meter.feed(raw_mj, now_s)
        self._rebased |= seen.rebased
        energy_j = seen.total_j
        draft.put("energy_j", energy_j)
        draft.put("energy_kind", EnergyKind.COUNTER)
        self._put_doubts(draft, energy_j, summed_j, now_s)
        if power_w is None and seen.power_w is not None:
            draft.put("power_w", seen.power_w)
            draft.put("power_kind", PowerKind.INTEGRATED)

    def _put_integrated(self, draft: Draft, power_w: float | None, summed_j: float) -> None:
        if power_w is None:
            draft.without("neither an energy counter nor power", "energy_j")
            return
        draft.put("energy_j", summed_j)
        draft.put("energy_kind", EnergyKind.INTEGRATED)

    def _put_doubts(self, draft: Draft, energy_j: float, summed_j: float, now_s: float) -> None:
        if self._rebased:
            draft.flags.add("energy_rebased")
        if draft.values.get("module_power_w") is not None:
            draft.flags.add(OF_MODULE)
            return
        gap = now_s - self._last_s > self._integral.max_gap_s
        self._last_s = now_s
        if draft.values.get("power_w") is None or gap or self._compared_from is None:
            # Only a stretch in which both were measured may be compared.
            self._compared_from = (energy_j, summed_j)
            return
        counted_j, summed_j = energy_j - self._compared_from[0], summed_j - self._compared_from[1]
        apart_j = abs(counted_j - summed_j)
        if apart_j > _TOLERANCE_J and apart_j > _TOLERANCE * max(counted_j, summed_j):
            draft.flags.add(DISAGREES)
