"""The power of the whole node from a smart plug that talks to the same MQTT broker.

Written after the makers' notes on MQTT (Tasmota: "MQTT" and "Commands"; Shelly: the API of
generation 1, and "Switch" and "Notifications" of generation 2 and later). No test has seen
a real plug.

- Tasmota: ``tele/<name>/SENSOR``, and the answers ``stat/<name>/STATUS8`` and ``STATUS10``:
  watts and kWh. ``Total`` counts for ever; ``Today`` falls to 0 each night and is not read.
- Shelly, generation 1: ``shellies/<id>/relay/0/power`` in watts and ``.../energy`` in
  watt-minutes, which start at 0 when the plug does.
- Shelly, generation 2 and later: ``<id>/status/switch:0`` and ``<id>/events/rpc`` with
  ``apower`` in watts and ``aenergy.total`` in watt-hours; a notification may have one of both.

Whoever may publish on the broker can write such messages, so they are only ever numbers
with limits here; everything else is counted and ignored.
"""

from __future__ import annotations

import abc
import json
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import fields, frozen

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import NOT_READ_HERE, Reading
from eaco_telemetry.readers.counters import EnergyMeter
from eaco_telemetry.samples import HostSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_telemetry.samples import Moment

MAX_PAYLOAD_BYTES: Final = 16_384
MAX_PLUG_W: Final = 20_000.0
STALE_S: Final = 300.0
"""A plug that has sent nothing for so long, and for three of its usual periods, is silent."""

_PERIODS: Final = 3.0
_USUAL_GAPS: Final = 16
_MAX_KWH: Final = 1e7
_J_PER_KWH: Final = 3_600_000.0
_J_PER_WH: Final = 3_600.0
_J_PER_WATT_MINUTE: Final = 60.0
_NAME: Final = re.compile(r"[^+#\x00-\x1f/$][^+#\x00-\x1f]{0,127}")
_NUMBER: Final = re.compile(rb"\s*[0-9]{1,12}(?:\.[0-9]{1,9})?\s*")
_MEASURED: Final = tuple(one.name for one in fields(HostSample) if one.metadata.get("measured"))
_VALUES: Final = ("node_energy_j", "node_power_w")


@frozen
class _Told:
    """What one message says. `online`: what the plug's own last will says about it."""

    power_w: float | None = None
    energy_j: float | None = None
    online: bool | None = None


class _Kind(abc.ABC):
    """How plugs of one make talk."""

    word: str
    first_channel: int

    @abc.abstractmethod
    def filters(self, name: str, channel: int) -> tuple[str, ...]:
        """Give the topics to subscribe to."""

    @abc.abstractmethod
    def told(self, name: str, channel: int, topic: str, payload: bytes) -> _Told | None:
        """Give what a message says; None if it says nothing about the plug's power."""


class _Tasmota(_Kind):
    word, first_channel = "tasmota", 1

    def filters(self, name: str, channel: int) -> tuple[str, ...]:
        del channel
        return (
            f"tele/{name}/SENSOR",
            f"stat/{name}/STATUS8",
            f"stat/{name}/STATUS10",
            f"tele/{name}/LWT",
        )

    def told(self, name: str, channel: int, topic: str, payload: bytes) -> _Told | None:
        if topic == f"tele/{name}/LWT":
            return _online(payload, b"Online", b"Offline")
        document = _object(payload)
        energy = _inside(_inside(document, "StatusSNS") or document, "ENERGY")
        power = _of_channel(energy.get("Power"), channel)
        total_kwh = _of_channel(energy.get("Total"), channel)
        return _measured(power, total_kwh, _J_PER_KWH)


class _Shelly1(_Kind):
    word, first_channel = "shelly1", 0

    def filters(self, name: str, channel: int) -> tuple[str, ...]:
        relay = f"shellies/{name}/relay/{channel}"
        return f"{relay}/power", f"{relay}/energy", f"shellies/{name}/online"

    def told(self, name: str, channel: int, topic: str, payload: bytes) -> _Told | None:
        del channel
        if topic == f"shellies/{name}/online":
            return _online(payload, b"true", b"false")
        number = float(payload) if _NUMBER.fullmatch(payload) else None
        if topic.endswith("/power"):
            return _measured(number, None, 0.0)
        return _measured(None, number, _J_PER_WATT_MINUTE)


class _Shelly(_Kind):
    word, first_channel = "shelly", 0

    def filters(self, name: str, channel: int) -> tuple[str, ...]:
        return f"{name}/status/switch:{channel}", f"{name}/events/rpc", f"{name}/online"

    def told(self, name: str, channel: int, topic: str, payload: bytes) -> _Told | None:
        if topic == f"{name}/online":
            return _online(payload, b"true", b"false")
        document = _object(payload)
        if topic == f"{name}/events/rpc":
            if document.get("method") not in ("NotifyStatus", "NotifyFullStatus"):
                return None
            document = _inside(_inside(document, "params"), f"switch:{channel}")
        energy = _inside(document, "aenergy")
        return _measured(document.get("apower"), energy.get("total"), _J_PER_WH)


_KINDS: Final[Mapping[str, _Kind]] = {
    kind.word: kind for kind in (_Tasmota(), _Shelly(), _Shelly1())
}


class PlugReader:
    """Gives `node_power_w` and `node_energy_j` of the node behind one plug.

    Whoever holds the connection to the broker subscribes to `filters` and hands each message
    to `feed`, from any thread. `channel`: which socket of a plug with several (Tasmota counts
    from 1, Shelly from 0).
    """

    def __init__(self, kind: str, name: str, channel: int | None = None) -> None:
        if kind not in _KINDS:
            raise InputError(f"there is no plug of the kind {kind!r}; {_SPELLING}")
        if not _NAME.fullmatch(name) or name.endswith("/"):
            raise InputError(f"{name!r} is no name of a plug on a broker")
        self._kind = _KINDS[kind]
        self._plug = name
        self._channel = self._kind.first_channel if channel is None else channel
        self._topics = self._kind.filters(name, self._channel)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._power_w: float | None = None
        self._meter = EnergyMeter(unit_j=1e-3, max_w=MAX_PLUG_W)
        self._energy_j: float | None = None
        self._rebased = False
        self._heard_s: float | None = None
        self._gaps_s: deque[float] = deque(maxlen=_USUAL_GAPS)
        self._offline = False
        self._messages = self._ignored = 0

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "plug"

    @property
    def filters(self) -> tuple[tuple[str, int], ...]:
        """What to subscribe to: topic and QoS."""
        return tuple((topic, 0) for topic in self._topics)

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """Under the key ``host`` the names of the values that a plug gives."""
        return {"host": _VALUES}

    @property
    def messages(self) -> int:
        """How many messages were handed over."""
        return self._messages

    @property
    def ignored(self) -> int:
        """How many of these said nothing about power, or nothing that can be true."""
        return self._ignored

    def open(self) -> None:
        """Nothing to open: the plug is known by what it sends."""

    def close(self) -> None:
        """Forget what was sent."""
        with self._lock:
            self._forget()

    def feed(self, topic: str, payload: bytes, received_s: float, *, retain: bool = False) -> None:
        """Take one message, received at a time of the monotonic clock. Never raises.

        A retained one (`retain`) is of unknown age: its joules are a base to count from, its
        watts are left out.
        """
        told = self._parse(topic, payload)
        with self._lock:
            self._messages += 1
            if told is None:
                self._ignored += 1
                return
            if told.online is not None:
                self._offline = not told.online
                return
            if told.energy_j is not None:
                seen = self._meter.feed(round(told.energy_j * 1000), received_s)
                self._energy_j = seen.total_j
                self._rebased |= seen.rebased
            if retain:
                return
            self._offline = False
            if told.power_w is not None:
                self._power_w = told.power_w
            if self._heard_s is not None and received_s > self._heard_s:
                self._gaps_s.append(received_s - self._heard_s)
            self._heard_s = max(received_s, self._heard_s or received_s)

    def _parse(self, topic: str, payload: bytes) -> _Told | None:
        if topic not in self._topics or len(payload) > MAX_PAYLOAD_BYTES:
            return None
        try:
            return self._kind.told(self._plug, self._channel, topic, payload)
        except (ValueError, RecursionError):  # no JSON, no text, nested too deeply
            return None

    def read(self, now: Moment) -> Reading:
        """Give what the plug told last, if that is not too old."""
        with self._lock:
            problem = self._silence(now.monotonic_s)
            values: dict[str, float | None] = {
                "node_power_w": self._power_w,
                "node_energy_j": self._energy_j,
            }
            flags = ("node_energy_rebased",) if self._rebased else ()
        given = {name: value for name, value in values.items() if value is not None}
        if problem is not None:
            given = {}
        reasons = dict.fromkeys(_MEASURED, NOT_READ_HERE)
        reasons |= dict.fromkeys(_VALUES, problem or "the plug has not told it yet")
        host = HostSample(
            missing={name: why for name, why in reasons.items() if name not in given},
            capabilities=_VALUES,
            flags=flags,
            **cast("dict[str, Any]", given),
        )
        return Reading(host=host, problem=problem)

    def _silence(self, now_s: float) -> str | None:
        plug = f"the plug {self._kind.word}:{self._plug}"
        if self._offline:
            return f"{plug} is offline, its broker says; check its power and its network"
        if self._heard_s is None:
            return f"{plug} has sent nothing yet; check its name and its MQTT settings"
        silent_s = now_s - self._heard_s
        limit_s = max(STALE_S, _PERIODS * max(self._gaps_s, default=0.0))
        if silent_s <= limit_s:
            return None
        return f"{plug} has sent nothing for {silent_s / 60:.0f} min; check its power and network"


_SPELLING: Final = "write tasmota:NAME, shelly:NAME (generation 2 and later) or shelly1:NAME"


def parse_plug(text: str) -> PlugReader:
    """Read ``kind:NAME`` or ``kind:NAME:CHANNEL``. Raise `InputError` if it is neither."""
    kind, colon, name = text.partition(":")
    name, _, channel = name.partition(":")
    if not colon or kind not in _KINDS or (channel and not re.fullmatch(r"[0-9]{1,2}", channel)):
        raise InputError(f"{text!r} names no plug; {_SPELLING}")
    return PlugReader(kind, name, int(channel) if channel else None)


# ---------------------------------------------------------------------- from messages


def _object(payload: bytes) -> dict[str, Any]:
    document: Any = json.loads(payload)
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _inside(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    inner = document.get(key)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _of_channel(value: object, channel: int) -> object:
    """Tasmota tells a list where a plug has several channels."""
    if not isinstance(value, list):
        return value if channel == 1 else None
    values = cast("list[object]", value)
    return values[channel - 1] if 0 < channel <= len(values) else None


def _measured(power: object, energy: object, unit_j: float) -> _Told | None:
    power_w = _in_range(power, MAX_PLUG_W)
    counted = _in_range(energy, _MAX_KWH * _J_PER_KWH / unit_j if unit_j else 0.0)
    energy_j = None if counted is None else counted * unit_j
    return None if power_w is None and energy_j is None else _Told(power_w, energy_j)


def _in_range(value: object, most: float) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= most else None  # so neither NaN nor infinity


def _online(payload: bytes, yes: bytes, no: bytes) -> _Told | None:
    word = payload.strip()
    return _Told(online=word == yes) if word in {yes, no} else None
