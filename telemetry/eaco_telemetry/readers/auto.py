"""Which readers this node needs: found out once, without waking a sleeping GPU.

Each device has one main reader. A Jetson is read through its own files and not through
NVML, which knows next to nothing there; except a Thor, where both add to each other. The
reader for all other drivers comes last and takes only what nobody else took. The host is
always read. A DCGM exporter that runs on this node, and the amdsmi of an installed ROCm,
add what the main readers lack.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import Factory, define, field, frozen

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.readers._nvml_system import LinuxView
from eaco_telemetry.readers._worker import Silent, Worker
from eaco_telemetry.readers.amd import AmdReader
from eaco_telemetry.readers.cards import CardReader
from eaco_telemetry.readers.drm import DrmReader
from eaco_telemetry.readers.fdinfo import ClientScan
from eaco_telemetry.readers.host import HostReader
from eaco_telemetry.readers.intel import IntelReader
from eaco_telemetry.readers.isolated import IsolatedReader, isolated_nvml
from eaco_telemetry.readers.jetson import JetsonReader, is_jetson
from eaco_telemetry.readers.nvml import NvmlOptions, NvmlReader
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.readers.sysfs import names_in, read_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eaco_telemetry.readers.base import Reader

NAMES: Final = (
    "nvml",
    "jetson",
    "dcgm",
    "amd",
    "amdsmi",
    "intel",
    "drm",
    "host",
    "simulated",
)
"""The readers that can be asked for by name, in the order in which they are tried."""

OPEN_S: Final = 65.0
"""How long a reader may take to find its devices; a driver may need a minute."""

_NOT_WANTED: Final = "not asked for"


@frozen
class Choice:
    """The readers of a node.

    `readers`: open, except one whose driver is not there yet; a sampler tries it again.
    `skipped`: for each other reader, why it is not among them. `hints`: sentences about
    what root rights or an extra would add.
    """

    readers: tuple[Reader, ...] = ()
    skipped: Mapping[str, str] = Factory(dict[str, str])
    hints: tuple[str, ...] = ()


def choose_readers(
    node_id: str,
    *,
    root: Path = Path("/"),
    want: Sequence[str] | None = None,
    simulate: int | None = None,
    seed: int = 0,
    isolate: bool = False,
    dcgm_url: str | None = None,
) -> Choice:
    """Find the readers for this node and open them. Blocks; not for an event loop.

    `want`: only these (see `NAMES`); one of them that has nothing to read is then an
    `EnvironmentFault`, and an unknown name an `InputError`. `simulate`: so many GPUs that do
    not exist, and nothing else. `isolate`: NVML in a process of its own (`readers.isolated`).
    `dcgm_url`: the page of a DCGM exporter that is not at its usual place.

    `root`: where ``/sys``, ``/proc``, ``/etc`` and ``/dev`` are.
    """
    wanted = _checked(want, simulate)
    if simulate is not None or (want is not None and "simulated" in want):
        reader = SimulatedReader(node_id, gpus=8 if simulate is None else simulate, seed=seed)
        reader.open()
        others = {name: "the GPUs are simulated" for name in NAMES if name != reader.name}
        return Choice((reader,), others)
    search = _Search(node_id, root, wanted, want is not None, isolate, dcgm_url)
    search.run()
    return Choice(tuple(search.readers), search.skipped, _hints(search, root))


def _checked(want: Sequence[str] | None, simulate: int | None) -> tuple[str, ...]:
    if want is None:
        return NAMES
    unknown = [name for name in want if name not in NAMES]
    if unknown or not want:
        what = f"there is no reader {unknown[0]!r}" if unknown else "no reader is asked for"
        raise InputError(f"{what}; the readers are {', '.join(NAMES)}")
    alone = "simulated" in want or simulate is not None
    if alone and set(want) != {"simulated"}:
        raise InputError("simulated GPUs stand alone: ask for no other reader beside them")
    return tuple(want)


@define
class _Search:
    """Tries the readers one after the other."""

    node_id: str
    root: Path
    wanted: tuple[str, ...]
    strict: bool
    isolate: bool
    dcgm_url: str | None
    readers: list[Reader] = field(factory=list["Reader"])
    skipped: dict[str, str] = field(factory=dict[str, str])

    def run(self) -> None:
        try:
            self._nvidia()
            self._dcgm()
            self.take(AmdReader(self.node_id, root=self.root))
            self._amdsmi()
            self.take(IntelReader(self.node_id, root=self.root))
            # The GPU of a Jetson is no PCI card and has a reader of its own.
            taken = [bdf for reader in self.readers for bdf in _pci_addresses(reader)]
            chips = not is_jetson(self.root)
            self.take(DrmReader(self.node_id, root=self.root, but=taken, chips=chips))
            self.take(HostReader(root=self.root))
        except BaseException:
            for reader in self.readers:
                reader.close()
            raise
        self.skipped["simulated"] = _NOT_WANTED

    def _nvidia(self) -> None:
        nvml = self._nvml()
        if not is_jetson(self.root):
            self._unless_wanted("jetson", "this node is no Jetson")
            self._take_nvml(nvml)
            return
        if LinuxView(self.root).is_jetson_without_nvml():
            self.take(nvml)  # it says why it is not for here
            self.take(JetsonReader(self.node_id, root=self.root))
            return
        # Thor: NVML knows the load, the files know power and clocks of the same GPU.
        self._take_nvml(nvml)
        ids = tuple(nvml.capabilities)
        one = ids[0] if len(ids) == 1 else None
        self.take(JetsonReader(self.node_id, root=self.root, gpu_id=one))

    def _nvml(self) -> NvmlReader | IsolatedReader:
        if self.isolate:
            return isolated_nvml(self.node_id, root=self.root)
        return NvmlReader(self.node_id, NvmlOptions(root=self.root))

    def _dcgm(self) -> None:
        """An exporter is looked for where there is an NVIDIA GPU, or where it is named."""
        if "dcgm" not in self.wanted:
            self.skipped["dcgm"] = _NOT_WANTED
            return
        beside_nvml = any(reader.name == "nvml" for reader in self.readers)
        asked = self.dcgm_url is not None or (self.strict and "dcgm" in self.wanted)
        if not (asked or beside_nvml or LinuxView(self.root).pci_gpus()):
            self.skipped["dcgm"] = "this node has no NVIDIA GPU"
            return
        # Loaded here, because most nodes do without it and its libraries.
        from eaco_telemetry.readers.dcgm import DEFAULT_URL, DcgmReader  # noqa: PLC0415 - only where it is wanted

        url = self.dcgm_url or DEFAULT_URL
        reader = DcgmReader(url, node_id=self.node_id, xid_events=not beside_nvml)
        self.take(reader, keep=self.dcgm_url is not None and not self.strict)

    def _amdsmi(self) -> None:
        if importlib.util.find_spec("amdsmi") is None:
            self._unless_wanted("amdsmi", "the library amdsmi is not installed")
            return
        cards = [reader for reader in self.readers if isinstance(reader, AmdReader)]
        if not any(reader.pci_addresses for reader in cards):
            self._unless_wanted("amdsmi", "this node has no AMD GPU")
        elif any(reader.may_sleep for reader in cards):
            self._unless_wanted("amdsmi", "it would keep a GPU awake that can fall asleep")
        else:
            from eaco_telemetry.readers.amdsmi import isolated_amdsmi  # noqa: PLC0415 - as dcgm

            self.take(isolated_amdsmi(self.node_id))

    def _unless_wanted(self, name: str, why: str) -> None:
        """Note why a reader is not even tried."""
        if name in self.wanted:
            self._skip(name, why)
        else:
            self.skipped[name] = _NOT_WANTED

    def _take_nvml(self, nvml: NvmlReader | IsolatedReader) -> None:
        """A GPU whose driver is not there yet, as early after boot, is not given up."""
        waiting = not self.strict and _may_get_driver(self.root)
        self.take(nvml, keep=waiting)

    def take(self, reader: Reader, *, keep: bool = False) -> None:
        """Open a reader; if that fails, note why. `keep` it then for a later try."""
        name = reader.name
        if name not in self.wanted:
            self.skipped[name] = _NOT_WANTED
            return
        worker = Worker(f"eaco-open-{name}")
        try:
            worker.call(reader.open, OPEN_S)
        except Silent as silent:
            self._skip(name, f"it did not find its devices in time: {silent}")
        except EnvironmentFault as fault:
            if keep:
                self.readers.append(reader)
            else:
                self._skip(name, str(fault))
        else:
            self.readers.append(reader)
        finally:
            worker.stop()

    def _skip(self, name: str, why: str) -> None:
        if self.strict:
            raise EnvironmentFault(f"the reader {name} was asked for and cannot work: {why}")
        self.skipped[name] = why


def _pci_addresses(reader: Reader) -> frozenset[str]:
    if isinstance(reader, CardReader | NvmlReader | IsolatedReader):
        return reader.pci_addresses
    return frozenset()


def _has_binding() -> bool:
    return importlib.util.find_spec("pynvml") is not None


def _may_get_driver(root: Path) -> bool:
    """Whether an NVIDIA GPU is there, no other driver has it, and we could read it."""
    return _has_binding() and bool(LinuxView(root).pci_gpus())


# ------------------------------------------------------------------------------ hints


def _hints(search: _Search, root: Path) -> tuple[str, ...]:
    chosen = {reader.name for reader in search.readers}
    hints = [_nvidia_hint(root, search), *_nouveau_hints(root)]
    if "host" in chosen:
        hints.append(_rapl_hint(root))
    if chosen & {"amd", "intel", "drm"}:
        hints.append(_process_hint(root))
    return tuple(hint for hint in hints if hint is not None)


def _nvidia_hint(root: Path, search: _Search) -> str | None:
    if "nvml" not in search.wanted or _has_binding() or is_jetson(root):
        return None
    nodes = [name for name in names_in(root / "dev") if name.startswith("nvidia")]
    if nodes or LinuxView(root).pci_gpus():
        return "there is an NVIDIA GPU: pip install 'eaco[nvidia]' would add its values"
    return None


def _nouveau_hints(root: Path) -> list[str]:
    places = LinuxView(root).gpus_of("nouveau")
    return [
        f"the GPU at {bdf} runs on nouveau; NVIDIA's own driver would add load, power and memory"
        for bdf in places
    ]


def _rapl_hint(root: Path) -> str | None:
    powercap = root / "sys" / "class" / "powercap"
    zones = [name for name in names_in(powercap) if name.startswith("intel-rapl:")]
    if any(read_count(powercap / zone / "energy_uj").forbidden for zone in zones):
        return (
            "root rights would add the joules of the processors"
            " (or the right to read /sys/class/powercap/intel-rapl:*/energy_uj)"
        )
    return None


def _process_hint(root: Path) -> str | None:
    hidden = ClientScan(root).scan(0.0).hidden
    return None if hidden is None else f"processes on the GPUs: {hidden}"
