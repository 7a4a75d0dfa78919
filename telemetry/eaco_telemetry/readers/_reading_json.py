"""A reading as JSON, for the pipe between two of our own processes. No extra is needed.

This is not the form for MQTT (`eaco_telemetry.wire`): it also carries events and a problem,
and it is never kept.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict

from eaco_telemetry.readers.base import DeviceEvent, Reading
from eaco_telemetry.samples import (
    DeviceState,
    EnergyKind,
    GpuSample,
    HostSample,
    MemoryKind,
    PowerKind,
    ProcessSample,
)

if TYPE_CHECKING:
    from attrs import Attribute

_KINDS: Final[dict[str, type[enum.Enum]]] = {
    "state": DeviceState,
    "mem_kind": MemoryKind,
    "power_kind": PowerKind,
    "energy_kind": EnergyKind,
}
_TUPLES: Final = ("throttle", "capabilities", "flags")


def _plain(_instance: object, _field: Attribute[Any], value: Any) -> Any:  # noqa: ANN401 - as attrs calls it
    return value.value if isinstance(value, enum.Enum) else value


def plain_reading(reading: Reading) -> dict[str, Any]:
    """Give a reading as what JSON can say."""
    return asdict(reading, value_serializer=_plain)


def reading_of(plain: dict[str, Any]) -> Reading:
    """Make a reading again. Raises TypeError, ValueError or KeyError for anything else."""
    host = plain["host"]
    return Reading(
        gpus=tuple(GpuSample(**_sample_fields(gpu)) for gpu in plain["gpus"]),
        host=None if host is None else HostSample(**_sample_fields(host)),
        events=tuple(DeviceEvent(**event) for event in plain["events"]),
        problem=plain["problem"],
        simulated=plain["simulated"],
        aliases=dict(plain["aliases"]),
    )


def _sample_fields(plain: dict[str, Any]) -> dict[str, Any]:
    made = dict(plain)
    for name, kind in _KINDS.items():
        if made.get(name) is not None:
            made[name] = kind(made[name])
    for name in _TUPLES:
        if made.get(name) is not None:
            made[name] = tuple(made[name])
    if made.get("processes") is not None:
        made["processes"] = tuple(ProcessSample(**one) for one in made["processes"])
    return made


def dump_line(document: dict[str, Any]) -> bytes:
    """Give one line of JSON."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"
