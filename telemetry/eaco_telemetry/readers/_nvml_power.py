"""Watts of one device: which of several calls gives them, and what that call means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import Factory, define, field

from eaco_telemetry.readers._nvml_binding import Code, NvmlFailure
from eaco_telemetry.readers.base import MAX_DEVICE_W
from eaco_telemetry.samples import PowerKind

if TYPE_CHECKING:
    from eaco_telemetry.readers._nvml_asker import Asker
    from eaco_telemetry.readers._nvml_draft import Draft

_AVERAGE, _INSTANT, _MEMORY_TEMP = 185, 186, 82
_GPU, _MODULE = 0, 1
FIELDS: Final = ((_AVERAGE, _GPU), (_INSTANT, _GPU), (_INSTANT, _MODULE), (_MEMORY_TEMP, _GPU))

# The type of a field value, and the member of the union that holds it.
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_GA100: Final = (8, 0)
_SAMPLED_IN_PART: Final = frozenset({(8, 0), (9, 0)})
"""A100 and H100: the sensor looks at a quarter of the time only (arXiv 2312.02741)."""


def _no_fields() -> dict[tuple[int, int], float]:
    return {}


@define
class PowerSource:
    """`field_values`: what the last read gave, by field and scope; only fields that worked."""

    field_values: dict[tuple[int, int], float] = Factory(_no_fields)
    limit_w: float | None = field(default=None, init=False)
    _limit_reason: str = field(default="", init=False)
    _chip: tuple[int, int] | None = field(default=None, init=False)

    def probe(self, asker: Asker) -> None:
        """Ask for the chip and its limit, which change rarely.

        The enforced limit is there on laptops too, where the settable one is not.
        """
        try:
            major, minor = asker.ask("nvmlDeviceGetCudaComputeCapability")
            self._chip = (int(major), int(minor))
        except NvmlFailure:
            self._chip = None
        try:
            limit_w = asker.ask("nvmlDeviceGetEnforcedPowerLimit") / 1000
        except NvmlFailure as failure:
            self.limit_w, self._limit_reason = None, failure.reason
            return
        possible = 0 < limit_w <= MAX_DEVICE_W
        self.limit_w = limit_w if possible else None
        self._limit_reason = "" if possible else "the driver gave an impossible value"

    def read(self, asker: Asker, draft: Draft) -> None:
        """Put power and limit into the draft."""
        self._ask_fields(asker, draft)
        draft.put("power_limit_w", self.limit_w)
        draft.without(self._limit_reason, "power_limit_w")
        average_w = self._watts(draft, _AVERAGE, _GPU)
        instant_w = self._watts(draft, _INSTANT, _GPU)
        module_w = self._watts(draft, _INSTANT, _MODULE)
        if average_w is not None:
            draft.put("power_w", average_w)
            draft.put("power_kind", PowerKind.AVERAGE)
        else:
            self._ask_power(asker, draft, instant_w)
        if instant_w is not None:
            draft.put("power_inst_w", instant_w)
        if module_w:  # 0 W is what a GPU without a module around it may say
            draft.put("module_power_w", module_w)
        else:
            draft.without("not a module with a processor", "module_power_w")
        if self._chip in _SAMPLED_IN_PART and "power_w" in draft.values:
            draft.flags.add("power_sampled_in_part")

    def _ask_power(self, asker: Asker, draft: Draft, instant_w: float | None) -> None:
        try:
            watts = asker.ask("nvmlDeviceGetPowerUsage") / 1000
        except NvmlFailure as failure:
            draft.without(failure.reason, "power_w")
            if instant_w is not None:
                draft.put("power_w", instant_w)
                draft.put("power_kind", PowerKind.INSTANT)
            return
        draft.put_if("power_w", watts, 0, MAX_DEVICE_W)
        if draft.values.get("power_w") is not None:
            draft.put("power_kind", self._kind())
            if self._kind() is None:
                draft.flags.add("power_kind_unknown")

    def _kind(self) -> PowerKind | None:
        """What `nvmlDeviceGetPowerUsage` means on this chip.

        A mean over a second on Ampere and newer, except GA100; instantaneous on GA100 and
        older (NVML reference).
        """
        if self._chip is None:
            return None
        return PowerKind.AVERAGE if self._chip > _GA100 else PowerKind.INSTANT

    def _ask_fields(self, asker: Asker, draft: Draft) -> None:
        """Read all fields at once. Each has a return code of its own: failing ones hold 0."""
        self.field_values = {}
        try:
            values: Any = asker.ask("nvmlDeviceGetFieldValues", FIELDS)
        except NvmlFailure as failure:
            reason = failure.reason
        else:
            reason = "the driver does not give this field"
            each: Any
            for key, each in zip(FIELDS, values, strict=True):
                form = int(each.valueType)
                if each.nvmlReturn == Code.SUCCESS and 0 <= form < len(_MEMBERS):
                    self.field_values[key] = float(getattr(each.value, _MEMBERS[form]))
        draft.without(reason, "power_inst_w", "mem_temperature_c", "module_power_w")

    def _watts(self, draft: Draft, number: int, scope: int) -> float | None:
        milliwatts = self.field_values.get((number, scope))
        if milliwatts is None:
            return None
        if 0 <= milliwatts / 1000 <= MAX_DEVICE_W:
            return milliwatts / 1000
        draft.rejected += 1
        return None
