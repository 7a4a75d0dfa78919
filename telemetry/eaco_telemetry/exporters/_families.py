"""What a sample looks like in Prometheus: tables of names, units and values.

Two sets of names. ``hw``: OpenTelemetry's ``hw.*`` as Prometheus spells it, in SI units, and
``eaco_*`` for what it has no name for. ``dcgm``: the names and units of NVIDIA's exporter, so
that boards made for it work. A value that is None is no line at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UnknownMetricFamily,
)

from eaco_telemetry.samples import DeviceState, GpuSample, HostSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from eaco_telemetry.samples import NodeSample

_MIB: Final = 1 << 20
_HW: Final = ("hw_id", "hw_type", "hw_vendor", "hw_name", "hw_parent", "node")
_DCGM: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
_STATES: Final = (
    (DeviceState.ACTIVE, "ok"),
    (DeviceState.ASLEEP, "asleep"),
    (DeviceState.LOST, "failed"),
)
SIMULATED: Final = "simulated"
"""A label that only made-up numbers carry."""

_Family = type[GaugeMetricFamily] | type[CounterMetricFamily] | type[UnknownMetricFamily]


@frozen
class _Value:
    """One value of one device: where it comes from, and labels of its own."""

    name: str
    help: str
    get: Callable[[GpuSample], float | None]
    family: _Family = GaugeMetricFamily
    labels: tuple[tuple[str, str], ...] = ()


def _field(name: str, factor: float = 1.0) -> Callable[[GpuSample], float | None]:
    def get(gpu: GpuSample) -> float | None:
        value: float | None = getattr(gpu, name)
        return None if value is None else value * factor

    return get


def _mem_ratio(gpu: GpuSample) -> float | None:
    if gpu.mem_used_bytes is None or not gpu.mem_total_bytes:
        return None
    return gpu.mem_used_bytes / gpu.mem_total_bytes


def _fb_free_mib(gpu: GpuSample) -> float | None:
    if gpu.mem_used_bytes is None or gpu.mem_total_bytes is None:
        return None
    reserved = 0 if "mem_used_includes_reserved" in gpu.flags else gpu.mem_reserved_bytes or 0
    return max(0, gpu.mem_total_bytes - gpu.mem_used_bytes - reserved) / _MIB


_CORE: Final = (("hw_sensor_location", "gpu"),)
_MEMORY: Final = (("hw_sensor_location", "memory"),)
_ECC: Final = (("error_type", "ecc_uncorrected"),)

_GPU_VALUES: Final = (
    _Value(
        "hw_gpu_utilization_ratio", "Share of time in which any kernel ran.", _field("util_ratio")
    ),
    _Value("hw_gpu_memory_usage_bytes", "Memory of the GPU in use.", _field("mem_used_bytes")),
    _Value("hw_gpu_memory_limit_bytes", "Memory of the GPU.", _field("mem_total_bytes")),
    _Value("hw_gpu_memory_utilization_ratio", "Memory in use, of all of it.", _mem_ratio),
    _Value("hw_power_watts", "Power, as the device reports it.", _field("power_w")),
    _Value(
        "hw_energy_joules",
        "Energy since the session of the agent began.",
        _field("energy_j"),
        CounterMetricFamily,
    ),
    _Value("hw_temperature_celsius", "Temperature.", _field("temperature_c"), labels=_CORE),
    _Value("hw_temperature_celsius", "Temperature.", _field("mem_temperature_c"), labels=_MEMORY),
    _Value(
        "hw_errors",
        "Errors of a device by kind.",
        _field("ecc_uncorrected"),
        CounterMetricFamily,
        _ECC,
    ),
    _Value(
        "eaco_gpu_memory_busy_ratio",
        "Share of time in which memory was read or written.",
        _field("mem_busy_ratio"),
    ),
    _Value(
        "eaco_gpu_sm_active_ratio", "Mean share of SMs that had work.", _field("sm_active_ratio")
    ),
    _Value(
        "eaco_gpu_dram_active_ratio",
        "Share of cycles in which memory moved data.",
        _field("dram_active_ratio"),
    ),
    _Value(
        "eaco_gpu_memory_reserved_bytes",
        "Memory that the driver keeps.",
        _field("mem_reserved_bytes"),
    ),
    _Value(
        "eaco_gpu_module_power_watts",
        "Power of the module with a processor.",
        _field("module_power_w"),
    ),
    _Value("eaco_gpu_power_limit_watts", "Power limit in force.", _field("power_limit_w")),
    _Value("eaco_gpu_clock_hertz", "Clock.", _field("clock_sm_hz"), labels=(("clock", "sm"),)),
    _Value("eaco_gpu_clock_hertz", "Clock.", _field("clock_mem_hz"), labels=(("clock", "memory"),)),
    _Value(
        "eaco_gpu_processes",
        "Processes on the GPU.",
        lambda gpu: None if gpu.processes is None else len(gpu.processes),
    ),
)

_DCGM_VALUES: Final = (
    _Value("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", _field("power_w")),
    _Value(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since the session of the agent began (in mJ).",
        _field("energy_j", 1e3),
        UnknownMetricFamily,
    ),
    _Value("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", _field("util_ratio", 100)),
    _Value(
        "DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", _field("mem_busy_ratio", 100)
    ),
    _Value(
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        _field("mem_used_bytes", 1 / _MIB),
    ),
    _Value("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", _fb_free_mib),
    _Value(
        "DCGM_FI_DEV_FB_RESERVED",
        "Framebuffer memory reserved (in MiB).",
        _field("mem_reserved_bytes", 1 / _MIB),
    ),
    _Value("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", _field("clock_sm_hz", 1e-6)),
    _Value(
        "DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", _field("clock_mem_hz", 1e-6)
    ),
    _Value("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", _field("temperature_c")),
    _Value("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", _field("mem_temperature_c")),
    _Value(
        "DCGM_FI_PROF_SM_ACTIVE",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        _field("sm_active_ratio"),
    ),
    _Value(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active.",
        _field("dram_active_ratio"),
    ),
)

_HOST_VALUES: Final = (
    ("eaco_host_cpu_utilization_ratio", "Share of time the processors worked.", "cpu_util_ratio"),
    ("eaco_host_memory_limit_bytes", "Main memory.", "mem_total_bytes"),
    ("eaco_host_memory_available_bytes", "Main memory that can be had.", "mem_available_bytes"),
    (
        "eaco_platform_power_watts",
        "Power of the board; it contains the packages.",
        "platform_power_w",
    ),
    ("hw_host_power_watts", "Power of the whole node, by a meter.", "node_power_w"),
)
_HOST_ENERGIES: Final = (
    (
        "eaco_platform_energy_joules",
        "Energy of the board; it contains the packages.",
        "platform_energy_j",
    ),
    ("hw_host_energy_joules", "Energy of the whole node, by a meter.", "node_energy_j"),
)
_HOST_PARTS: Final = (("cpu", "package"), ("memory", "dram"))


class Families:
    """Collects lines of one scrape by the name of their metric."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        value: float | None,
        family: _Family = GaugeMetricFamily,
    ) -> None:
        """Add one line; none for None."""
        if value is None:
            return
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = family(name, text)
        suffix = "_total" if family is CounterMetricFamily else ""
        found.add_sample(name + suffix, {key: _clean(one) for key, one in labels.items()}, value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def hw_families(
    sample: NodeSample, families: Families, xids: Mapping[str, tuple[int, int]]
) -> None:
    """Add what a sample says, with the names of OpenTelemetry.

    `xids`: for each GPU the last Xid and how many were seen.
    """
    mark = {SIMULATED: "true"} if sample.simulated else {}
    for gpu in sample.gpus:
        labels = _hw_labels(gpu, sample.node_id) | mark
        for one in _GPU_VALUES:
            families.add(one.name, one.help, labels | dict(one.labels), one.get(gpu), one.family)
        if gpu.gpu_id in xids:
            families.add(
                "hw_errors",
                "Errors of a device by kind.",
                labels | {"error_type": "xid"},
                xids[gpu.gpu_id][1],
                CounterMetricFamily,
            )
        for state, word in _STATES:
            families.add(
                "hw_status",
                "1 for the state that the device is in.",
                labels | {"hw_state": word},
                float(gpu.state is state),
            )
        for reason in gpu.throttle or ():
            families.add(
                "eaco_gpu_throttle",
                "1 for each reason why clocks are held down.",
                labels | {"reason": reason},
                1,
            )
    if sample.host is not None:
        _host_families(sample.host, sample.node_id, mark, families)


def dcgm_families(
    sample: NodeSample,
    families: Families,
    xids: Mapping[str, tuple[int, int]],
    numbers: Mapping[str, int],
) -> None:
    """Add what a sample says, as NVIDIA's exporter names it. MIG instances are left out.

    `numbers`: for each GPU its number.
    """
    mark = {SIMULATED: "true"} if sample.simulated else {}
    for gpu in sample.gpus:
        if gpu.parent_id is not None:
            continue
        number = numbers[gpu.gpu_id]
        values = (
            str(number),
            gpu.gpu_id,
            gpu.pci_bdf or "",
            f"{gpu.vendor}{number}",
            gpu.name or "",
            sample.node_id,
        )
        labels = dict(zip(_DCGM, values, strict=True)) | mark
        for one in _DCGM_VALUES:
            families.add(one.name, one.help, labels, one.get(gpu), one.family)
        if gpu.gpu_id in xids:
            families.add(
                "DCGM_FI_DEV_XID_ERRORS",
                "Value of the last XID error encountered.",
                labels,
                xids[gpu.gpu_id][0],
            )


def _hw_labels(gpu: GpuSample, node_id: str) -> dict[str, str]:
    values = (gpu.gpu_id, "gpu", gpu.vendor, gpu.name or "", gpu.parent_id or "", node_id)
    return dict(zip(_HW, values, strict=True))


def _host_families(
    host: HostSample, node_id: str, mark: Mapping[str, str], families: Families
) -> None:
    node = {"hw_id": node_id, "node": node_id, **mark}
    for name, text, field in _HOST_VALUES:
        families.add(name, text, node, getattr(host, field))
    for name, text, field in _HOST_ENERGIES:
        families.add(name, text, node, getattr(host, field), CounterMetricFamily)
    for kind, part in _HOST_PARTS:
        values = (f"{node_id}/{part}", kind, "", part, node_id, node_id)
        labels = dict(zip(_HW, values, strict=True)) | dict(mark)
        families.add(
            "hw_power_watts",
            "Power, as the device reports it.",
            labels,
            getattr(host, f"{part}_power_w"),
        )
        families.add(
            "hw_energy_joules",
            "Energy since the session of the agent began.",
            labels,
            getattr(host, f"{part}_energy_j"),
            CounterMetricFamily,
        )
    values = (f"{node_id}/temperature", "temperature", "", "", node_id, node_id)
    labels = dict(zip(_HW, values, strict=True)) | dict(mark) | {"hw_sensor_location": "host"}
    families.add("hw_temperature_celsius", "Temperature.", labels, host.temperature_c)


def _clean(text: str) -> str:
    """Give text that can be sent: half a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
