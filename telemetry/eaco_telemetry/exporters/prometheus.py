"""A Prometheus endpoint: the newest sample of a node, under two sets of names.

Needs the extra ``prometheus``. A sink of the agent; see `_families` for the names.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from attrs import frozen

try:
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector, CollectorRegistry
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "the Prometheus endpoint needs the package prometheus_client, which is not installed;"
        " install it with: pip install 'eaco[prometheus]'",
        name=missing.name,
    ) from None

from eaco_core.errors import InputError
from eaco_telemetry.exporters._families import Families, dcgm_families, hw_families
from eaco_telemetry.exporters._http import MetricsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from eaco_telemetry.meta import NodeEvent
    from eaco_telemetry.samples import GpuSample, NodeSample

DEFAULT_PORT: Final = 9426
NAME_SETS: Final = ("hw", "dcgm")
STALE_AFTER_PERIODS: Final = 3.0
"""So many periods without a sample, and its values are no longer given."""

_MAX_PORT: Final = 65535
_DIGITS: Final = 5


def parse_listen(text: str) -> tuple[str, int]:
    """Give host and port of ``PORT``, ``HOST:PORT`` or ``[IPv6]:PORT``.

    Without a host it is this machine only.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and len(port) <= _DIGITS and int(port) <= _MAX_PORT):
        raise InputError(f"{text!r} is not where to listen; write PORT or HOST:PORT")
    return host, int(port)


class PrometheusExporter:
    """Serves the newest sample at ``http://HOST:PORT/metrics``. A sink of the agent.

    `port` 0: any free one; see `address`. `host`: this machine only, unless another is
    given: whoever reaches the port can read the metrics. `names`: sets of names, of
    ``hw`` and ``dcgm``. `period_s`: the time between samples; values vanish when no sample
    came for three of these, and only `eaco_up` and the age are left.

    Raises `EnvironmentFault` if the port cannot be had.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        period_s: float = 1.0,
        names: Iterable[str] = NAME_SETS,
    ) -> None:
        self.collector: Final = SampleCollector(period_s, names)
        registry = CollectorRegistry()
        registry.register(self.collector)
        self._server: MetricsServer | None = MetricsServer(host, port, registry)
        self._address = self._server.address

    @property
    def name(self) -> str:
        """The name of this sink."""
        return "prometheus"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._address

    def take(self, sample: NodeSample, events: Sequence[NodeEvent] = ()) -> None:
        """Give this sample from now on."""
        self.collector.take(sample, events)

    def close(self) -> None:
        """Stop serving. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


@frozen
class _Seen:
    sample: NodeSample
    taken_s: float
    count: int
    xids: Mapping[str, tuple[int, int]]  # GPU -> (last Xid, how many)
    numbers: Mapping[str, int]


class SampleCollector(Collector):
    """The newest sample as metrics, for a registry of `prometheus_client` of your own."""

    def __init__(
        self,
        period_s: float = 1.0,
        names: Iterable[str] = NAME_SETS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = tuple(names)
        if not set(self._names) <= set(NAME_SETS):
            raise InputError(f"the sets of names are {NAME_SETS}, not {self._names}")
        if not period_s > 0:
            raise InputError(f"period_s must be above 0 seconds, not {period_s!r}")
        self._stale_s = STALE_AFTER_PERIODS * period_s
        self._clock = clock
        self._guard = threading.Lock()
        self._xids: dict[str, tuple[int, int]] = {}
        self._places: set[tuple[bool, str]] = set()
        self._session_id: str | None = None
        self._seen: _Seen | None = None
        self._count = 0

    def take(self, sample: NodeSample, events: Sequence[NodeEvent] = ()) -> None:
        """Give this sample from now on."""
        with self._guard:
            if sample.session_id != self._session_id:
                self._session_id = sample.session_id
                self._xids, self._places = {}, set()
            for event in events:
                if event.kind == "xid" and event.gpu_id is not None and event.code is not None:
                    _, before = self._xids.get(event.gpu_id, (0, 0))
                    self._xids[event.gpu_id] = (event.code, before + 1)
            self._count += 1
            self._seen = _Seen(
                sample, self._clock(), self._count, dict(self._xids), self._numbers(sample)
            )

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of now. Called by the registry, from any thread."""
        families = Families()
        seen = self._seen
        if seen is None:
            families.add("eaco_up", _UP, {}, 0)
            yield from families
            return
        node = {"node": seen.sample.node_id}
        age_s = self._clock() - seen.taken_s
        fresh = age_s <= self._stale_s
        families.add("eaco_up", _UP, node, float(fresh))
        families.add("eaco_sample_age_seconds", "Time since the newest sample.", node, age_s)
        families.add("eaco_samples", "Samples taken.", node, seen.count, CounterMetricFamily)
        if fresh:
            self._fresh(seen, families, node)
        yield from families

    def _fresh(self, seen: _Seen, families: Families, node: Mapping[str, str]) -> None:
        sample = seen.sample
        families.add("eaco_simulated", "1 if the numbers are made up.", node, sample.simulated)
        for reader in sample.problems:
            families.add(
                "eaco_reader_problem",
                "1 for each reader that could not do its work.",
                {**node, "reader": reader},
                1,
            )
        if "hw" in self._names:
            hw_families(sample, families, seen.xids)
        if "dcgm" in self._names:
            dcgm_families(sample, families, seen.xids, seen.numbers)

    def _numbers(self, sample: NodeSample) -> dict[str, int]:
        """Number the GPUs by PCI address. One that goes away keeps its number for the session."""
        whole = [gpu for gpu in sample.gpus if gpu.parent_id is None]
        self._places.update(_place(gpu) for gpu in whole)
        order = {place: number for number, place in enumerate(sorted(self._places))}
        return {gpu.gpu_id: order[_place(gpu)] for gpu in whole}


_UP: Final = "1 if there was a sample in the last three periods."


def _place(gpu: GpuSample) -> tuple[bool, str]:
    """Give what GPUs are numbered by: those without a PCI address come last, by their id."""
    if gpu.pci_bdf is None:
        return True, gpu.gpu_id
    return False, gpu.pci_bdf.lower()
