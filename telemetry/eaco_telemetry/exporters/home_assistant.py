"""Home Assistant discovery: retained messages that make a node and its GPUs appear there.

One device per node, and one per GPU that names the node as the way to it. Only values in the
capabilities of a device become entities. They read the samples that are published anyway, so
nothing else has to be sent. Needs no extra.

The form is that of device discovery (``<prefix>/device/<id>/config``, Home Assistant 2024.11
and later).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from eaco_core.errors import InputError
from eaco_telemetry.topics import NodeTopics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eaco_telemetry.meta import DeviceMeta, NodeMeta

DEFAULT_PREFIX: Final = "homeassistant"
"""What Home Assistant listens to, unless its MQTT integration was told otherwise."""

_EXPIRE_PERIODS: Final = 3
_MIN_EXPIRE_S: Final = 5
_SLUG: Final = re.compile(r"[^A-Za-z0-9]+")
_MAX_SLUG: Final = 48
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.:/-]")


@frozen
class _Sensor:
    """One value as an entity. `of` is arithmetic on ``v``, the value in SI units."""

    field: str
    name: str
    unit: str
    device_class: str | None
    of: str
    state_class: str = "measurement"


_WATTS: Final = "v | round(1)"
_KWH: Final = "(v / 3600000) | round(6)"
_PERCENT: Final = "(v * 100) | round(1)"
_MIB: Final = "(v / 1048576) | round(1)"
_MHZ: Final = "(v / 1000000) | round(0)"

_GPU_SENSORS: Final = (
    _Sensor("power_w", "Power", "W", "power", _WATTS),
    _Sensor("energy_j", "Energy", "kWh", "energy", _KWH, "total_increasing"),
    _Sensor("util_ratio", "Utilisation", "%", None, _PERCENT),
    _Sensor("mem_busy_ratio", "Memory activity", "%", None, _PERCENT),
    _Sensor("mem_used_bytes", "Memory used", "MiB", "data_size", _MIB),
    _Sensor("temperature_c", "Temperature", "°C", "temperature", "v | round(1)"),
    _Sensor("mem_temperature_c", "Memory temperature", "°C", "temperature", "v | round(1)"),
    _Sensor("clock_sm_hz", "Clock", "MHz", "frequency", _MHZ),
)
_HOST_SENSORS: Final = (
    _Sensor("node_power_w", "Power", "W", "power", _WATTS),
    _Sensor("node_energy_j", "Energy", "kWh", "energy", _KWH, "total_increasing"),
    _Sensor("platform_power_w", "Board power", "W", "power", _WATTS),
    _Sensor("platform_energy_j", "Board energy", "kWh", "energy", _KWH, "total_increasing"),
    _Sensor("package_power_w", "Processor power", "W", "power", _WATTS),
    _Sensor("package_energy_j", "Processor energy", "kWh", "energy", _KWH, "total_increasing"),
    _Sensor("dram_power_w", "Main memory power", "W", "power", _WATTS),
    _Sensor("dram_energy_j", "Main memory energy", "kWh", "energy", _KWH, "total_increasing"),
    _Sensor("cpu_util_ratio", "Processor utilisation", "%", None, _PERCENT),
    _Sensor("mem_available_bytes", "Main memory available", "MiB", "data_size", _MIB),
    _Sensor("temperature_c", "Temperature", "°C", "temperature", "v | round(1)"),
)


def discovery_messages(
    meta: NodeMeta, *, site: str, period_s: float, prefix: str = DEFAULT_PREFIX
) -> tuple[tuple[str, bytes], ...]:
    """Give topic and payload of the discovery messages of a node. Publish them retained, QoS 1.

    The ids are the same for the same site, node and GPU, so that a restart changes nothing.
    Raises `InputError` if `prefix` is no topic.
    """
    if not prefix or prefix.startswith("$") or any(one in prefix for one in "+#\0"):
        raise InputError(f"{prefix!r} is no prefix of a topic")
    topics = NodeTopics(site, meta.node_id)
    common = _common(meta, topics)
    expire_s = max(_MIN_EXPIRE_S, math.ceil(_EXPIRE_PERIODS * period_s))
    node_key = _key(site, meta.node_id)
    mark = " (simulated)" if meta.simulated else ""
    host = _components(
        node_key,
        _HOST_SENSORS,
        () if meta.host is None else meta.host.capabilities,
        _HOST,
        expire_s,
    )
    shown: dict[str, str] = {}
    messages: list[tuple[str, bytes]] = []
    if host:
        device = {"name": f"{meta.node_id}{mark}", "manufacturer": "eaco", "model": f"node{mark}"}
        messages.append(_message(prefix, node_key, device, host, common))
        shown[""] = node_key
    for gpu in sorted(meta.gpus, key=lambda one: one.parent_id is not None):
        key = _key(site, meta.node_id, gpu.gpu_id)
        select = _GPU.format(gpu_id=_literal(gpu.gpu_id))
        components = _components(key, _GPU_SENSORS, gpu.capabilities, select, expire_s)
        if not components:
            continue
        device = _gpu_device(meta, gpu, mark)
        above = shown.get(gpu.parent_id or "", shown.get(""))
        if above is not None:
            device["via_device"] = above
        messages.append(_message(prefix, key, device, components, common))
        shown[gpu.gpu_id] = key
    return tuple(messages)


def removal_messages(
    before: Iterable[tuple[str, bytes]], now: Iterable[tuple[str, bytes]] = ()
) -> tuple[tuple[str, bytes], ...]:
    """Give the messages that take devices away: those of `before` that are not in `now`.

    Publish them retained: an empty retained message removes a device and all its entities.
    """
    kept = {topic for topic, _ in now}
    gone = {topic: b"" for topic, _ in before if topic not in kept}
    return tuple(gone.items())


_HOST: Final = "{% set d = value_json.host | default({}, true) %}"
_GPU: Final = (
    "{{% set d = value_json.gpus | default([], true)"
    " | selectattr('gpu_id', 'eq', {gpu_id}) | list | first | default({{}}) %}}"
)
"""Templates that set ``d`` to the device in a sample; without it ``d`` is empty."""


def _value_template(select: str, sensor: _Sensor) -> str:
    """Give the template of one value; ``None``, which is "unknown", where there is none."""
    return f"{select}{{% set v = d.{sensor.field} %}}{{{{ {sensor.of} if v is number else None }}}}"


def _components(
    key: str,
    sensors: Sequence[_Sensor],
    capabilities: Sequence[str],
    select: str,
    expire_s: int,
) -> dict[str, Any]:
    return {
        sensor.field: _without_none(
            {
                "p": "sensor",
                "name": sensor.name,
                "unique_id": f"{key}_{sensor.field}",
                "device_class": sensor.device_class,
                "state_class": sensor.state_class,
                "unit_of_measurement": sensor.unit,
                "value_template": _value_template(select, sensor),
                "expire_after": expire_s,
            }
        )
        for sensor in sensors
        if sensor.field in capabilities
    }


def _common(meta: NodeMeta, topics: NodeTopics) -> dict[str, Any]:
    return {
        "o": {"name": "eaco", "sw_version": meta.agent},
        "state_topic": topics.sample,
        "availability": [
            {
                "topic": topics.state,
                "value_template": (
                    "{{ 'online' if value_json.condition in ['ready', 'alert'] else 'offline' }}"
                ),
            }
        ],
        "qos": 0,
    }


def _gpu_device(meta: NodeMeta, gpu: DeviceMeta, mark: str) -> dict[str, str]:
    # The end of a UUID tells equal cards of a node apart; PCI addresses end so too.
    short = gpu.gpu_id[-8:]
    return {
        "name": f"{meta.node_id} {gpu.name or gpu.vendor} {short}{mark}",
        "manufacturer": gpu.vendor,
        "model": (gpu.name or "GPU") + mark,
        "serial_number": gpu.gpu_id,
    }


def _message(
    prefix: str,
    key: str,
    device: Mapping[str, str],
    components: dict[str, Any],
    common: dict[str, Any],
) -> tuple[str, bytes]:
    document = {"dev": {"identifiers": [key], **device}, "cmps": components, **common}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"{prefix}/device/{key}/config", text.encode("utf-8", "replace")


def _key(*names: str) -> str:
    """Give an id that can be read, and that no other names have."""
    readable = "_".join(_SLUG.sub("-", name).strip("-")[-_MAX_SLUG:] for name in names)
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
    return f"eaco_{readable}_{digest}"


def _literal(text: str) -> str:
    """Give a text as a string of Jinja, in which nothing can end the string or the template."""
    cleaned = text.encode("utf-8", "replace").decode()
    return "'" + "".join(_escaped(one) for one in cleaned) + "'"


def _escaped(character: str) -> str:
    return character if _PLAIN.fullmatch(character) else f"\\U{ord(character):08x}"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
