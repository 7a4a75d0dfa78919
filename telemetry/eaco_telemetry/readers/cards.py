"""GPUs that the kernel lists in /sys/class/drm: finding them, losing them, letting them sleep.

The readers for AMD, for Intel and for the other drivers differ in what they read from a
card. What they share is here. Cards are known by their PCI address: the numbers in
``card0`` and ``hwmon3`` change from boot to boot.

A card that sleeps is left alone, because a look at most of its files would wake it. One
that could fall asleep, and that nobody uses, is read rarely: each look begins the time
anew after which the kernel puts it to sleep, so a laptop's GPU under steady eyes burns
5 to 25 W for nothing. A card that went away is reported as lost, and read again when it
is back.
"""

from __future__ import annotations

import abc
import math
import re
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, fields

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers.base import UNSUPPORTED, DeviceEvent, Reading
from eaco_telemetry.readers.fdinfo import Clients, ClientScan
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    can_fall_asleep,
    device_name,
    first_known,
    is_asleep,
    link_name,
    list_names,
    names_in,
    pci_address,
    read_scaled,
    read_text,
)
from eaco_telemetry.samples import ABSOLUTE_ZERO_C, DeviceState, GpuSample

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from eaco_telemetry.readers.fdinfo import Client
    from eaco_telemetry.samples import Moment, ProcessSample

MAX_CARD_W: Final = 3_000.0
"""More than any single card draws."""

MAX_TEMPERATURE_C: Final = 200.0
MAX_CLOCK_HZ: Final = 20e9

ASLEEP: Final = "the GPU is asleep; reading it would wake it"
QUIET: Final = "nobody uses the GPU; it is left alone so that it can fall asleep"
GONE: Final = "the GPU is gone (unplugged, unbound or fallen off the bus)"

# The kernel's delay before sleep is 5 s for most drivers; a quiet time must exceed it.
QUIET_S: Final = 15.0
_IDLE_RATIO = 0.05
# A card that gives none of these, and an error that says "no device", is gone.
_LIVE = frozenset({"util_ratio", "power_w", "module_power_w", "temperature_c", "clock_sm_hz"})

_CARD = re.compile(r"card[0-9]+")
_MEASURED = tuple(one.name for one in fields(GpuSample) if one.metadata.get("measured"))


class Found:
    """Collects the values of one sample, and for each that is missing its reason.

    `able` holds what the device gives at all, `rejected` how many values were nonsense.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self.able: set[str] = set()
        self.flags: list[str] = []
        self.rejected = 0
        self.saw_gone = False

    def take(self, name: str, value: Value[Any], *, able: bool = False) -> None:
        """Note a value or the reason for its absence. `able`: it will have one later."""
        self.rejected += value.impossible
        self.saw_gone |= value.gone
        if value.value is not None:
            self.values[name] = value.value
        else:
            self.missing[name] = value.reason or UNSUPPORTED
        if able or value.value is not None:
            self.able.add(name)

    def all_missing(self, reason: str) -> None:
        """Say why there is nothing at all."""
        self.values.clear()
        self.flags.clear()
        self.missing.update(dict.fromkeys(_MEASURED, reason))


@define(eq=False)
class Card:
    """One card as the kernel shows it, and what is remembered of it between two reads."""

    folder: Path
    driver: str
    pci_bdf: str | None
    gpu_id: str
    name: str | None = None
    state: DeviceState = DeviceState.ACTIVE
    was_read: bool = False
    able: frozenset[str] = frozenset()
    rejected: int = 0
    quiet_until_s: float = -math.inf

    @property
    def device(self) -> Path:
        """The folder of the device behind the card."""
        return self.folder / "device"


class CardReader(abc.ABC):
    """A reader for cards of some drivers. Works without root rights."""

    def __init__(self, node_id: str, *, root: Path) -> None:
        self._node_id = node_id
        self._root = root
        self._cards: dict[str, Card] = {}
        self._scan = ClientScan(root)
        self._clients = Clients()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A short name; the key in `NodeSample.problems`."""

    @property
    @abc.abstractmethod
    def _vendor(self) -> str: ...

    @abc.abstractmethod
    def _is_ours(self, folder: Path, driver: str) -> bool: ...

    @abc.abstractmethod
    def _measure(self, card: Card, found: Found, now: Moment | None) -> None:
        """Read one awake card. Without `now` only to see what it can: counters stay."""

    def _identify(self, card: Card) -> str | None:
        """Give an id of the card that is the same on every machine, if it has one."""
        del card
        return None

    @abc.abstractmethod
    def _forget(self) -> None:
        """Drop what is kept of cards between two reads: a new session begins."""

    def _begin(self, now: Moment) -> None:
        """Do what is done once per tick for all cards."""
        self._clients = self._scan.scan(now.monotonic_s)

    def _clients_on(self, card: Card) -> tuple[Client, ...]:
        return self._clients.on(card.pci_bdf or card.driver)

    def _is_used(self, card: Card) -> bool:
        """Say whether a process has the card open, without touching the card."""
        return bool(self._clients_on(card))

    @abc.abstractmethod
    def _interrupted(self, card: Card, *, lost: bool) -> None:
        """Take note that a card was asleep or away, so that no counter runs on over that."""

    def _vendor_of(self, card: Card) -> str:
        del card
        return self._vendor

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """For each card, the names of the values that it gives at all."""
        return {card.gpu_id: tuple(sorted(card.able)) for card in self._cards.values()}

    @property
    def pci_addresses(self) -> frozenset[str]:
        """Where its cards are, as far as they are on PCI. Known after `open`."""
        return frozenset(card.pci_bdf for card in self._cards.values() if card.pci_bdf)

    @property
    def may_sleep(self) -> bool:
        """Whether one of its cards sleeps now or can fall asleep. Known after `open`."""
        devices = [card.device for card in self._cards.values()]
        return any(is_asleep(device) or can_fall_asleep(device) for device in devices)

    def open(self) -> None:
        """Find the cards; joules count from here. Raise `EnvironmentFault` if there is none."""
        if self._cards:
            return
        self._forget()
        self._look_for_cards()
        if not self._cards:
            raise EnvironmentFault(f"this node has no GPU for the reader {self.name}")
        for card in self._cards.values():
            if not is_asleep(card.device):
                found = Found()
                self._measure(card, found, None)
                card.able |= found.able

    def close(self) -> None:
        """Let the cards go. No file stays open between two reads."""
        self._cards = {}

    def read(self, now: Moment) -> Reading:
        """Read every card once. Cards that were plugged in meanwhile are found."""
        appeared, present = self._look_for_cards()
        self._begin(now)
        gpus: list[GpuSample] = []
        events: list[DeviceEvent] = []
        for key, card in self._cards.items():
            before = card.state if card.was_read else None
            gpus.append(self._read_card(card, now, present=key in present))
            kind = _event_kind(before, card.state, appeared=card in appeared)
            if kind is not None:
                events.append(DeviceEvent(kind, card.gpu_id))
        problem = None if gpus else f"this node has no GPU for the reader {self.name}"
        return Reading(gpus=tuple(gpus), events=tuple(events), problem=problem)

    def _read_card(self, card: Card, now: Moment, *, present: bool) -> GpuSample:
        found = Found()
        if not present:
            self._note_lost(card, found)
        elif is_asleep(card.device):
            card.state = DeviceState.ASLEEP
            card.quiet_until_s = -math.inf
            self._interrupted(card, lost=False)
            found.all_missing(ASLEEP)
        elif now.monotonic_s < card.quiet_until_s and not self._is_used(card):
            card.state = DeviceState.ACTIVE
            found.all_missing(QUIET)
        else:
            card.state = DeviceState.ACTIVE
            self._measure(card, found, now)
            if found.saw_gone and not _LIVE & found.values.keys():
                self._note_lost(card, found)
            else:
                self._decide_quiet(card, found, now)
        card.was_read = True
        card.able |= found.able
        card.rejected += found.rejected
        unknown = [name for name in _MEASURED if name not in found.values]
        return GpuSample(
            gpu_id=card.gpu_id,
            vendor=self._vendor_of(card),
            name=card.name,
            state=card.state,
            pci_bdf=card.pci_bdf,
            missing={name: found.missing.get(name, UNSUPPORTED) for name in unknown}
            | found.missing,
            capabilities=tuple(sorted(card.able)),
            flags=tuple(found.flags),
            rejected=card.rejected,
            **found.values,
        )

    def _note_lost(self, card: Card, found: Found) -> None:
        card.state = DeviceState.LOST
        card.quiet_until_s = -math.inf
        self._interrupted(card, lost=True)
        found.all_missing(GONE)

    def _decide_quiet(self, card: Card, found: Found, now: Moment) -> None:
        idle = found.values.get("util_ratio", 0.0) < _IDLE_RATIO and not self._is_used(card)
        quiet = idle and can_fall_asleep(card.device)
        card.quiet_until_s = now.monotonic_s + QUIET_S if quiet else -math.inf

    def _look_for_cards(self) -> tuple[list[Card], set[str]]:
        """Find new cards; give these, and the keys of all that are there now."""
        drm = self._root / "sys" / "class" / "drm"
        appeared: list[Card] = []
        present: set[str] = set()
        for name in names_in(drm):
            folder = drm / name
            driver = link_name(folder / "device" / "driver") if _CARD.fullmatch(name) else None
            if driver is None or not self._is_ours(folder, driver):
                continue
            bdf = pci_address(folder / "device")
            key = bdf or f"soc:{device_name(folder / 'device')}"
            if key in present:  # a second card of one device
                continue
            present.add(key)
            known = self._cards.get(key)
            if known is not None:
                known.folder, known.driver = folder, driver
                continue
            card = Card(folder, driver, bdf, gpu_id="")
            card.gpu_id = self._free_id(card)
            self._cards[key] = card
            appeared.append(card)
        return appeared, present

    def _free_id(self, card: Card) -> str:
        taken = {other.gpu_id for other in self._cards.values()}
        identity = self._identify(card)
        if identity is not None and identity not in taken:
            return identity
        if card.pci_bdf is not None:
            return f"pci:{self._node_id}/{card.pci_bdf}"
        plain = f"soc:{self._node_id}"
        return plain if plain not in taken else f"{plain}/{device_name(card.device)}"


def _event_kind(
    before: DeviceState | None, after: DeviceState | None, *, appeared: bool
) -> str | None:
    if after is before:
        return None
    if after is DeviceState.LOST:
        return "lost"
    if before is DeviceState.LOST:
        return "returned"
    if before is None:
        return "appeared" if appeared else None
    return "asleep" if after is DeviceState.ASLEEP else "awake"


def take_processes(found: Found, processes: tuple[ProcessSample, ...], hidden: str | None) -> None:
    """Note the processes of a card. A list that may lack some is flagged; an empty one is none."""
    found.able.add("processes")
    if hidden is None:
        found.values["processes"] = processes
        return
    found.missing["processes"] = hidden
    if processes:
        found.values["processes"] = processes
        found.flags.append("processes_partial")


# ------------------------------------------------------------------------------ hwmon


def hwmon_folders(device: Path, names: frozenset[str] | None = None) -> tuple[Path, ...]:
    """Give the sensor folders of a device; with `names` only those that bear one of them."""
    folder = device / "hwmon"
    found = tuple(folder / one for one in names_in(folder) if one.startswith("hwmon"))
    if names is None:
        return found
    return tuple(one for one in found if read_text(one / "name").value in names)


def labelled(hwmon: Path, kind: str) -> dict[str, Path]:
    """Give label -> sensor (``edge`` -> ``.../temp1``) for the sensors of a kind in a folder."""
    pattern = re.compile(rf"({kind}[0-9]+)_label")
    found: dict[str, Path] = {}
    names = list_names(hwmon, ordered=False).value or ()
    for match in sorted(filter(None, map(pattern.fullmatch, names)), key=lambda one: one[0]):
        label = read_text(hwmon / match[0]).value
        if label:
            found.setdefault(label, hwmon / match[1])
    return found


def read_temperature_c(path: Path) -> Value[float]:
    """Read thousandths of a degree."""
    return read_scaled(path, per=1e3, least=ABSOLUTE_ZERO_C, most=MAX_TEMPERATURE_C)


def read_power_w(path: Path, *, most: float = MAX_CARD_W) -> Value[float]:
    """Read microwatts."""
    return read_scaled(path, per=1e6, most=most)


def read_limit_w(*paths: Path) -> Value[float]:
    """Read a limit of power in microwatts; 0 means that no limit is set."""

    def check(limit_w: float) -> Value[float]:
        return Value(limit_w) if limit_w > 0 else absent("no limit is set")

    return first_known(*(read_power_w(path).then(check) for path in paths))


def with_reason(value: Value[Any], reason: str) -> Value[Any]:
    """Put a better reason on a value that is simply not there."""
    if value.value is not None or value.forbidden or value.impossible:
        return value
    return evolve(value, reason=reason)
