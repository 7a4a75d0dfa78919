"""Who uses which GPU, from the DRM usage statistics in /proc/<pid>/fdinfo.

One parser for every driver that follows the kernel's "DRM client usage stats": amdgpu,
i915, xe, msm, panfrost, v3d and others. A *client* is one opening of a GPU. Two file
descriptors may be one client (after dup, fork or passing), so clients are counted by
their id, once.

Without root rights only own processes can be seen. What is seen then is a part, and a
part is no utilisation of the device: it is marked as incomplete, with the reason.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from attrs import Factory, frozen

from eaco_telemetry.readers.counters import BusyMeter
from eaco_telemetry.readers.sysfs import is_pci_address, list_names, read_text
from eaco_telemetry.samples import ProcessSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

RESCAN_S = 10.0
"""How often processes without a GPU are looked at again; new ones are seen at once."""

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER = re.compile(r"([0-9]{1,20})(?:\s+([A-Za-z]+))?")
# Engines that copy pixels or films; what remains computes or draws, on whatever name.
_NO_SHADERS = re.compile(r"(?:copy|bcs|dma|video|vcs|vecs|dec|enc|jpeg|vpe|tfu|cache|other)")
_PID = re.compile(r"[1-9][0-9]{0,9}")
# The kernel's own thread 2: seen only where /proc shows every process of the machine.
_KERNEL_THREAD = ("2", "kthreadd")


@frozen
class ClientUse:
    """What one fdinfo file says about one client. Absent keys are absent here too.

    `busy_ns` and `cycles` count since the client was opened, per engine (a kind of
    engine with `capacity` members). `cycles` is (busy, passed).
    """

    driver: str
    pci_bdf: str | None = None
    client_id: int | None = None
    busy_ns: Mapping[str, int] = Factory(dict[str, int])
    cycles: Mapping[str, tuple[int, int]] = Factory(dict[str, tuple[int, int]])
    capacity: Mapping[str, int] = Factory(dict[str, int])
    resident_bytes: Mapping[str, int] = Factory(dict[str, int])

    @property
    def device(self) -> str:
        """The PCI address, or the name of the driver on chips without PCI."""
        return self.pci_bdf or self.driver

    def memory_bytes(self, *, system: bool) -> int:
        """Give the memory in regions of the device, or in those of the main memory."""
        return sum(size for name, size in self.resident_bytes.items() if system == _is_system(name))


def _is_system(region: str) -> bool:
    system = ("system", "gtt", "cpu", "memory", "shmem", "stolen-system")
    return region == "stolen" or region.startswith(system)


@frozen
class Client:
    """One client and the process that holds it."""

    pid: int
    process_name: str | None
    use: ClientUse


@frozen
class Clients:
    """The clients that could be seen. `hidden`: why these may not be all; None: they are."""

    clients: tuple[Client, ...] = ()
    hidden: str | None = None

    def on(self, device: str) -> tuple[Client, ...]:
        """Give the clients of one device: a PCI address or the name of a driver."""
        return tuple(client for client in self.clients if client.use.device == device)


def parse_fdinfo(text: str) -> ClientUse | None:
    """Read an fdinfo file. None if it is not of a DRM client. Odd lines are left out."""
    entries: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.startswith("drm-"):
            entries.setdefault(key[4:], value.strip())
    driver = entries.get("driver", "")
    if not driver:
        return None
    pci_bdf = entries.get("pdev", "").lower()
    cycles = _numbers(entries, "cycles-")
    passed = _numbers(entries, "total-cycles-")
    return ClientUse(
        driver=driver,
        pci_bdf=pci_bdf if is_pci_address(pci_bdf) else None,
        client_id=_number(entries.get("client-id", "")),
        busy_ns=_numbers(entries, "engine-", but="engine-capacity-"),
        cycles={name: (cycles[name], passed[name]) for name in cycles if name in passed},
        capacity={name: n for name, n in _numbers(entries, "engine-capacity-").items() if n > 0},
        # The oldest word for it first, so that the best one is what stays.
        resident_bytes=_numbers(entries, "memory-") | _numbers(entries, "resident-"),
    )


def _numbers(entries: Mapping[str, str], prefix: str, but: str = "\n") -> dict[str, int]:
    found = {
        key.removeprefix(prefix): _number(value)
        for key, value in entries.items()
        if key.startswith(prefix) and not key.startswith(but)
    }
    return {name: number for name, number in found.items() if name and number is not None}


def _number(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    unit = match[2] or ""
    factor = 1 if unit in {"ns", "Hz"} else _UNITS.get(unit)
    return None if factor is None else int(match[1]) * factor


class ClientScan:
    """Finds the DRM clients of all processes that may be looked at.

    Looking at each open file of each process is what costs, so a process that had no GPU
    open is looked at again only every 10 s; new processes, and those with a GPU, at every
    scan.
    """

    def __init__(self, root: Path, *, rescan_s: float = RESCAN_S) -> None:
        self._proc = root / "proc"
        self._rescan_s = rescan_s
        self._next_full_s = float("-inf")
        self._without_gpu: dict[str, bool] = {}

    def scan(self, now_s: float) -> Clients:
        """Look once, at a monotonic time."""
        listing = list_names(self._proc, ordered=False)
        if listing.value is None:
            return Clients((), f"no list of processes: {listing.reason}")
        pids = sorted((name for name in listing.value if _PID.fullmatch(name)), key=int)
        if now_s >= self._next_full_s or now_s < self._next_full_s - self._rescan_s:
            self._without_gpu.clear()
            self._next_full_s = now_s + self._rescan_s
        alive = set(pids)
        self._without_gpu = {pid: hid for pid, hid in self._without_gpu.items() if pid in alive}
        clients = self._clients_of(pids)
        return Clients(clients, self._why_not_all(alive))

    def _clients_of(self, pids: Iterable[str]) -> tuple[Client, ...]:
        seen: set[tuple[str, int]] = set()
        clients: list[Client] = []
        for pid in pids:
            if pid in self._without_gpu:
                continue
            uses = list(self._uses(pid))
            if not uses:
                self._without_gpu.setdefault(pid, False)
            name = read_text(self._proc / pid / "comm").value if uses else None
            for use in uses:
                if use.client_id is not None:
                    key = (use.device, use.client_id)
                    if key in seen:
                        continue
                    seen.add(key)
                clients.append(Client(int(pid), name or None, use))
        return tuple(clients)

    def _uses(self, pid: str) -> Iterator[ClientUse]:
        folder = self._proc / pid
        files = list_names(folder / "fd", ordered=False)
        if files.forbidden:
            self._without_gpu[pid] = True
        names = [name for name in files.value or () if _is_gpu(f"{folder}/fd/{name}")]
        for name in sorted(names):
            text = read_text(folder / "fdinfo" / name)
            use = parse_fdinfo(text.value or "")
            if use is not None:
                yield use
            elif text.forbidden:
                self._without_gpu[pid] = True

    def _why_not_all(self, alive: set[str]) -> str | None:
        if any(self._without_gpu.values()):
            return "only own processes can be seen; root rights would add the others"
        pid, name = _KERNEL_THREAD
        if pid not in alive or read_text(self._proc / pid / "comm").value != name:
            return "only a part of the processes can be seen (a container, or hidepid)"
        return None


def _is_gpu(path: str) -> bool:
    """Say whether an open file is a GPU. There are many; plain text is four times as fast."""
    try:
        return os.readlink(path).startswith("/dev/dri/")  # noqa: PTH115 - see above
    except OSError:  # closed meanwhile
        return False


@frozen
class DeviceUse:
    """What the clients of one device did since the look before.

    `util_ratio`: of its busiest kind of engine; None at first, or when a client told nothing.
    """

    util_ratio: float | None
    processes: tuple[ProcessSample, ...]


class UseMeter:
    """Busy ratios of one device and of its processes, from look to look.

    `memory_of` says which memory of a client counts; by default that of the device. A
    client adds to the utilisation from its second look on. That there are no clients
    means 0 only where the driver `tells` busy times: an old one shows no clients at all.
    """

    def __init__(
        self, memory_of: Callable[[ClientUse], int] | None = None, *, tells: bool = False
    ) -> None:
        self._memory_of = memory_of or _device_memory
        self.tells = tells
        self._meters: dict[tuple[object, str], BusyMeter] = {}
        self._looks = 0

    def feed(self, clients: Sequence[Client], now_ns: int) -> DeviceUse:
        """Take all clients of the device at a monotonic time."""
        fed: dict[tuple[object, str], BusyMeter] = {}
        device: dict[str, float] = {}
        processes: dict[int, _ProcessUse] = {}
        for place, client in enumerate(clients):
            use = client.use
            key = (client.pid, place if use.client_id is None else use.client_id)
            process = processes.setdefault(client.pid, _ProcessUse(client.process_name))
            if use.resident_bytes:
                process.memory_bytes = (process.memory_bytes or 0) + self._memory_of(use)
            for engine, busy, passed in _engines(use, now_ns):
                meter = self._meters.get((key, engine)) or BusyMeter()
                fed[key, engine] = meter
                ratio = meter.feed(busy, passed)
                if ratio is not None:
                    device[engine] = device.get(engine, 0.0) + ratio
                    process.engines[engine] = process.engines.get(engine, 0.0) + ratio
        self._meters = fed
        self.tells |= bool(fed)
        self._looks += 1
        idle = 0.0 if not clients and self.tells and self._looks > 1 else None
        return DeviceUse(
            util_ratio=min(1.0, max(device.values())) if device else idle,
            processes=tuple(processes[pid].sample(pid) for pid in sorted(processes)),
        )


def _device_memory(use: ClientUse) -> int:
    return use.memory_bytes(system=False)


class _ProcessUse:
    def __init__(self, name: str | None) -> None:
        self.name = name
        self.memory_bytes: int | None = None
        self.engines: dict[str, float] = {}

    def sample(self, pid: int) -> ProcessSample:
        ratio = min(1.0, max(self.engines.values())) if self.engines else None
        return ProcessSample(pid, self.name, sm_ratio=ratio, mem_used_bytes=self.memory_bytes)


def _engines(use: ClientUse, now_ns: int) -> Iterator[tuple[str, int, int]]:
    """Give (engine, busy, passed) of the engines that run kernels, in one unit each."""
    for engine, (busy, passed) in use.cycles.items():
        if not _NO_SHADERS.match(engine):
            yield engine, busy, passed * use.capacity.get(engine, 1)
    for engine, busy_ns in use.busy_ns.items():
        if not _NO_SHADERS.match(engine) and engine not in use.cycles:
            yield engine, busy_ns, now_ns * use.capacity.get(engine, 1)


def process_name(root: Path, pid: int) -> str | None:
    """Give the short name of a process; None where it is not in this /proc."""
    return read_text(root / "proc" / str(pid) / "comm").value or None
