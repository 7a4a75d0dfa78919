"""GPUs of all other DRM drivers: Adreno (msm), Mali (panfrost, panthor), VideoCore (v3d) and more.

What every such driver shows alike: the DRM usage statistics of its clients, and the sensors
under hwmon where there are any (nouveau has some, chips mostly have none). Cards that can
only show pictures, and those that another reader reads better, are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from eaco_telemetry.readers.base import PowerIntegral
from eaco_telemetry.readers.cards import (
    CardReader,
    hwmon_folders,
    read_limit_w,
    read_power_w,
    read_temperature_c,
    take_processes,
)
from eaco_telemetry.readers.fdinfo import ClientUse, UseMeter
from eaco_telemetry.readers.meminfo import read_meminfo
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    first_known,
    forbidden,
    known,
    names_in,
    pci_address,
)
from eaco_telemetry.samples import EnergyKind, MemoryKind, PowerKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from eaco_telemetry.readers.cards import Card, Found
    from eaco_telemetry.samples import Moment

OTHER_READERS: Final = frozenset({"amdgpu", "i915", "xe", "nvidia", "nvidia-drm", "tegra"})
"""Drivers whose GPUs have a reader of their own."""

_ONLY_PICTURES = frozenset(
    {"vgem", "vkms", "virtio_gpu", "virtio-pci", "vmwgfx", "qxl", "bochs-drm", "ast", "mgag200"}
)
_VENDORS: Final = {
    "msm": "qualcomm",
    "adreno": "qualcomm",
    "panfrost": "arm",
    "panthor": "arm",
    "lima": "arm",
    "v3d": "broadcom",
    "vc4-drm": "broadcom",
    "etnaviv": "vivante",
    "nouveau": "nvidia",
    "radeon": "amd",
    "powervr": "imagination",
    "asahi": "apple",
}
_NEEDS_ALL = "the utilisation is the sum over all processes: "


class DrmReader(CardReader):
    """Reads the GPUs that no other reader of this package reads.

    `but`: PCI addresses that another reader has. `chips`: also GPUs that are no PCI cards.
    """

    def __init__(
        self,
        node_id: str,
        *,
        root: Path = Path("/"),
        but: Collection[str] = (),
        chips: bool = True,
    ) -> None:
        super().__init__(node_id, root=root)
        self._but = frozenset(but)
        self._chips = chips
        self._uses: dict[str, UseMeter] = {}
        self._integrals: dict[str, PowerIntegral] = {}

    @property
    def name(self) -> str:
        """The name of this reader."""
        return "drm"

    @property
    def _vendor(self) -> str:
        return "unknown"

    def _vendor_of(self, card: Card) -> str:
        return _VENDORS.get(card.driver, card.driver)

    def _is_ours(self, folder: Path, driver: str) -> bool:
        if driver in OTHER_READERS or driver in _ONLY_PICTURES:
            return False
        bdf = pci_address(folder / "device")
        if bdf in self._but or (bdf is None and not self._chips):
            return False
        # Without a render node a card has no engine that programs can use.
        nodes = names_in(folder / "device" / "drm")
        return any(name.startswith("renderD") for name in nodes)

    def _forget(self) -> None:
        self._uses, self._integrals = {}, {}

    def _interrupted(self, card: Card, *, lost: bool) -> None:
        integral = self._integrals.get(card.gpu_id)
        if integral is not None:
            integral.add(None, 0.0)
        if lost:
            self._uses.pop(card.gpu_id, None)

    def _measure(self, card: Card, found: Found, now: Moment | None) -> None:
        _take_sensors(card, found)
        integral = self._integrals.setdefault(card.gpu_id, PowerIntegral())
        power_w: float | None = found.values.get("power_w")
        if now is not None:
            integral.add(power_w, now.monotonic_s)
        if power_w is not None or integral.total_j:
            for name in ("energy_j", "integrated_j"):
                found.take(name, known(integral.total_j))
            found.values["energy_kind"] = EnergyKind.INTEGRATED
        on_chip = card.pci_bdf is None
        found.values["mem_kind"] = MemoryKind.UNIFIED if on_chip else MemoryKind.DEDICATED
        if on_chip:
            found.take("mem_total_bytes", read_meminfo(self._root).total_bytes)
        if now is None:
            found.able.add("processes")
            return
        self._take_use(card, found, now, on_chip=on_chip)

    def _take_use(self, card: Card, found: Found, now: Moment, *, on_chip: bool) -> None:
        def memory_of(use: ClientUse) -> int:
            # A chip has one memory, under whatever names; a card's own is not the host's.
            return use.memory_bytes(system=False) + on_chip * use.memory_bytes(system=True)

        meter = self._uses.setdefault(card.gpu_id, UseMeter(memory_of))
        use = meter.feed(self._clients_on(card), now.monotonic_ns)
        if not meter.tells:
            # A driver without statistics looks exactly like one without users.
            reason = f"the driver {card.driver} has told no usage by process so far"
            found.take("util_ratio", absent(reason))
            found.take("processes", absent(reason))
            return
        take_processes(found, use.processes, self._clients.hidden)
        if self._clients.hidden is not None:
            found.take("util_ratio", forbidden(_NEEDS_ALL + self._clients.hidden))
        else:
            nothing = "no process told its busy time twice yet"
            found.take("util_ratio", Value(use.util_ratio, nothing), able=True)


def _take_sensors(card: Card, found: Found) -> None:
    folders = hwmon_folders(card.device)
    if not folders:
        for name in ("power_w", "power_limit_w", "temperature_c"):
            found.take(name, absent("this GPU has no sensors (hwmon)"))
        return
    hwmon = folders[0]
    average, instant = (read_power_w(hwmon / f"power1_{kind}") for kind in ("average", "input"))
    found.take("power_w", first_known(average, instant))
    found.take("power_inst_w", instant)
    if "power_w" in found.values:
        averaged = average.value is not None
        found.values["power_kind"] = PowerKind.AVERAGE if averaged else PowerKind.INSTANT
    found.take("power_limit_w", read_limit_w(hwmon / "power1_cap", hwmon / "power1_max"))
    found.take("temperature_c", read_temperature_c(hwmon / "temp1_input"))
