"""A sample while it is made: values, reasons for those that are missing, doubts."""

from __future__ import annotations

from typing import Any, Final

from attrs import Factory, define, fields

from eaco_telemetry.samples import GpuSample

_MEASURED: Final = tuple(one.name for one in fields(GpuSample) if one.metadata.get("measured"))


_ELSEWHERE: Final = dict.fromkeys(
    ("sm_active_ratio", "dram_active_ratio"), "NVML does not give it; a DCGM exporter does"
)


def _values() -> dict[str, Any]:
    return {}


def _reasons() -> dict[str, str]:
    return {}


def _words() -> set[str]:
    return set()


@define
class Draft:
    """Collects what one read of one device gives."""

    values: dict[str, Any] = Factory(_values)
    reasons: dict[str, str] = Factory(_reasons)
    flags: set[str] = Factory(_words)
    rejected: int = 0

    def put(self, name: str, value: object) -> None:
        """Take a value as it is."""
        self.values[name] = value

    def without(self, reason: str, *names: str) -> None:
        """Say why these values are missing."""
        self.reasons.update(dict.fromkeys(names, reason))

    def put_if(self, name: str, value: float | None, low: float, high: float) -> None:
        """Take a number if it is possible; else count it and leave the value out.

        Drivers now and then give numbers that no device can mean: the marks for "blank" of
        DCGM (2147483632, 140737488355328, 9223372036854775792), 4294967295, 808334905.
        """
        if value is not None and low <= value <= high:
            self.values[name] = value
        else:
            self.rejected += 1
            self.reasons[name] = f"the driver gave an impossible value ({value!r})"

    def given(self) -> set[str]:
        """The names of the measured values that are there."""
        return {name for name in _MEASURED if self.values.get(name) is not None}

    def missing(self) -> dict[str, str]:
        """The reasons for those that are not."""
        given = self.given()
        return {
            name: self.reasons.get(name) or _ELSEWHERE.get(name, "the driver did not give it")
            for name in _MEASURED
            if name not in given
        }
