"""What a message may look like: msgspec Structs with every limit, checked while parsing.

A Struct is parsed and checked in a third of the time that the attrs classes take, whose
validators are Python. `eaco_telemetry.wire` turns one into the other; a test holds both
to the same rules. A limit of length is only here: it is about what strangers may send.

Fields stand in the order in which they are written, because the parser is fastest on keys
in order; the constants of a device stand last, because most messages leave them out.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType, field

from eaco_telemetry import _check
from eaco_telemetry.meta import NodeCondition  # noqa: TC001 - msgspec reads the annotations
from eaco_telemetry.samples import DeviceState, EnergyKind, MemoryKind, PowerKind

MAX_GPUS: Final = 1024
MAX_PROCESSES: Final = 4096
MAX_WORDS: Final = 128
MAX_NAME: Final = 256
MAX_SENTENCE: Final = 2000

# Annotated with what msgspec checks. A length counts characters.
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, Meta(max_length=MAX_NAME)]
Sentence = Annotated[str, Meta(max_length=MAX_SENTENCE)]
Count = Annotated[int, Meta(ge=0, le=_check.MOST)]
Code = Annotated[int, Meta(ge=-_check.MOST, le=_check.MOST)]
Measure = Annotated[float, Meta(ge=0)]
Period = Annotated[float, Meta(ge=_check.MIN_PERIOD_S, le=_check.MAX_PERIOD_S)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Degrees = Annotated[float, Meta(ge=_check.ABSOLUTE_ZERO_C)]
Words = Annotated[tuple[Text, ...], Meta(max_length=MAX_WORDS)]
Reasons = Annotated[dict[Text, Sentence], Meta(max_length=MAX_WORDS)]
OpenReasons = Annotated[dict[Text, Sentence | None], Meta(max_length=MAX_WORDS)]
"""A reason of None takes back the one that the meta gives."""


class ProcessForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `ProcessSample`, in its order."""

    pid: Count
    name: Text | None = None
    sm_ratio: Ratio | None = None
    mem_used_bytes: Count | None = None


class GpuForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `GpuSample`; from `name` on, what is left out may be in the meta."""

    gpu_id: Name
    vendor: Name
    state: DeviceState = DeviceState.ACTIVE
    parent_id: Text | None = None
    util_ratio: Ratio | None = None
    mem_busy_ratio: Ratio | None = None
    sm_active_ratio: Ratio | None = None
    dram_active_ratio: Ratio | None = None
    mem_used_bytes: Count | None = None
    mem_reserved_bytes: Count | None = None
    power_w: Measure | None = None
    power_inst_w: Measure | None = None
    module_power_w: Measure | None = None
    energy_j: Measure | None = None
    integrated_j: Measure | None = None
    temperature_c: Degrees | None = None
    mem_temperature_c: Degrees | None = None
    clock_sm_hz: Measure | None = None
    clock_mem_hz: Measure | None = None
    power_limit_w: Measure | None = None
    throttle: Words | None = None
    ecc_uncorrected: Count | None = None
    processes: Annotated[list[ProcessForm], Meta(max_length=MAX_PROCESSES)] | None = None
    flags: Words = ()
    rejected: Count = 0
    name: Text | UnsetType | None = UNSET
    pci_bdf: Text | UnsetType | None = UNSET
    mem_kind: MemoryKind | UnsetType | None = UNSET
    mem_total_bytes: Count | UnsetType | None = UNSET
    power_kind: PowerKind | UnsetType | None = UNSET
    energy_kind: EnergyKind | UnsetType | None = UNSET
    capabilities: Words | UnsetType = UNSET
    missing: OpenReasons | UnsetType = UNSET


class HostForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `HostSample`; `capabilities` and `missing` may be in the meta."""

    cpu_util_ratio: Ratio | None = None
    mem_total_bytes: Count | None = None
    mem_available_bytes: Count | None = None
    package_power_w: Measure | None = None
    package_energy_j: Measure | None = None
    dram_power_w: Measure | None = None
    dram_energy_j: Measure | None = None
    platform_power_w: Measure | None = None
    platform_energy_j: Measure | None = None
    node_power_w: Measure | None = None
    node_energy_j: Measure | None = None
    temperature_c: Degrees | None = None
    flags: Words = ()
    capabilities: Words | UnsetType = UNSET
    missing: OpenReasons | UnsetType = UNSET


class SampleForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `NodeSample`. `meta_wall_ns`: the version of the meta that says what is left out."""

    schema: Name
    node_id: Name
    session_id: Name
    seq: Count
    wall_ns: Count
    monotonic_ns: Count
    meta_wall_ns: Count | None = None
    simulated: bool = False
    gpus: Annotated[list[GpuForm], Meta(max_length=MAX_GPUS)] = field(default_factory=list[GpuForm])
    host: HostForm | None = None
    problems: Reasons = field(default_factory=dict[str, str])


class DeviceMetaForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `DeviceMeta`, in its order."""

    gpu_id: Name
    vendor: Name
    name: Text | None = None
    parent_id: Text | None = None
    pci_bdf: Text | None = None
    mem_kind: MemoryKind | None = None
    mem_total_bytes: Count | None = None
    power_kind: PowerKind | None = None
    energy_kind: EnergyKind | None = None
    capabilities: Words = ()
    missing: Reasons = field(default_factory=dict[str, str])


class HostMetaForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `HostMeta`, in its order."""

    capabilities: Words = ()
    missing: Reasons = field(default_factory=dict[str, str])


class MetaForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `NodeMeta`."""

    schema: Name
    node_id: Name
    session_id: Name
    period_s: Period
    wall_ns: Count
    agent: Name
    gpus: Annotated[list[DeviceMetaForm], Meta(max_length=MAX_GPUS)] = field(
        default_factory=list[DeviceMetaForm]
    )
    host: HostMetaForm | None = None
    simulated: bool = False
    readers: Words = ()


class StateForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `NodeState`."""

    schema: Name
    node_id: Name
    session_id: Name
    condition: NodeCondition
    wall_ns: Count | None = None


class EventForm(Struct, frozen=True, gc=False, omit_defaults=True):
    """As `NodeEvent`."""

    schema: Name
    node_id: Name
    session_id: Name
    event_seq: Count
    wall_ns: Count
    monotonic_ns: Count
    kind: Name
    gpu_id: Text | None = None
    code: Code | None = None
    message: Sentence = ""


class VersionForm(Struct, frozen=True, gc=False):
    """Only the version, to tell a message of another version from a broken one."""

    schema: str
