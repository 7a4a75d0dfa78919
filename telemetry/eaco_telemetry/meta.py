"""What is said once about a node: what it is made of, how it fares, what happened.

Beside `NodeSample`, these are the messages of a node: `NodeMeta` and `NodeState` are
retained by the broker, so that whoever comes late knows them; a `NodeEvent` is told once.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping  # noqa: TC003 - codecs read the annotations
from typing import TYPE_CHECKING, Final

from attrs import Factory, field, frozen

from eaco_telemetry import _check
from eaco_telemetry.samples import (  # noqa: TC001 - codecs read the annotations
    EnergyKind,
    MemoryKind,
    PowerKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_telemetry.samples import GpuSample, HostSample, NodeSample

META_SCHEMA: Final = "eaco.meta/1"
STATE_SCHEMA: Final = "eaco.state/1"
EVENT_SCHEMA: Final = "eaco.event/1"


class NodeCondition(enum.Enum):
    """How a node fares, in the words of the Homie convention.

    READY: it sends. SLEEPING: it was put to sleep and will be back. ALERT: it sends and
    wants a human. DISCONNECTED: its agent ended in an orderly way. LOST: the broker says
    that the connection broke (the last will).
    """

    READY = "ready"
    SLEEPING = "sleeping"
    ALERT = "alert"
    DISCONNECTED = "disconnected"
    LOST = "lost"


def _no_words() -> Mapping[str, str]:
    return {}


@frozen
class DeviceMeta:
    """What stays the same of one device over a session. The fields are those of `GpuSample`.

    `missing`: reasons for the values that the device never gives.
    """

    gpu_id: str = field(validator=_check.name)
    vendor: str = field(validator=_check.name)
    name: str | None = None
    parent_id: str | None = None
    pci_bdf: str | None = None
    mem_kind: MemoryKind | None = None
    mem_total_bytes: int | None = field(default=None, validator=_check.whole)
    power_kind: PowerKind | None = None
    energy_kind: EnergyKind | None = None
    capabilities: tuple[str, ...] = ()
    missing: Mapping[str, str] = Factory(_no_words)


@frozen
class HostMeta:
    """What stays the same of the host over a session, as in `DeviceMeta`."""

    capabilities: tuple[str, ...] = ()
    missing: Mapping[str, str] = Factory(_no_words)


@frozen
class NodeMeta:
    """What a node is made of. Published anew, with a new `wall_ns`, when something changes.

    `wall_ns` also names this version of the meta: a sample that leaves out what its meta
    says carries this number. `period_s`: seconds between samples. `agent`: program and
    version. `readers`: what the values come from. `simulated`: the numbers are made up.
    """

    node_id: str = field(validator=_check.name)
    session_id: str = field(validator=_check.name)
    period_s: float = field(validator=_check.period)
    wall_ns: int = field(validator=_check.count)
    agent: str = field(validator=_check.name)
    gpus: tuple[DeviceMeta, ...] = ()
    host: HostMeta | None = None
    simulated: bool = False
    readers: tuple[str, ...] = ()
    schema: str = META_SCHEMA


@frozen
class NodeState:
    """How a node fares. `wall_ns` is None in a last will, which is written long before."""

    node_id: str = field(validator=_check.name)
    session_id: str = field(validator=_check.name)
    condition: NodeCondition = field()
    wall_ns: int | None = field(default=None, validator=_check.whole)
    schema: str = STATE_SCHEMA


@frozen
class NodeEvent:
    """Something that happened on a node. `event_seq` counts up by 1 within a session.

    `kind`, `gpu_id`, `code` and `message` are as in `readers.base.DeviceEvent`. The same
    event may be sent again; (session_id, event_seq) tells that it is the same.
    """

    node_id: str = field(validator=_check.name)
    session_id: str = field(validator=_check.name)
    event_seq: int = field(validator=_check.count)
    wall_ns: int = field(validator=_check.count)
    monotonic_ns: int = field(validator=_check.count)
    kind: str = field(validator=_check.name)
    gpu_id: str | None = None
    code: int | None = field(default=None, validator=_check.code)
    message: str = ""
    schema: str = EVENT_SCHEMA


def node_meta(
    sample: NodeSample, *, period_s: float, agent: str, readers: Iterable[str], wall_ns: int
) -> NodeMeta:
    """Give what is constant of a sample. `wall_ns`: now, by the wall clock of the sender."""
    return NodeMeta(
        node_id=sample.node_id,
        session_id=sample.session_id,
        period_s=period_s,
        wall_ns=wall_ns,
        agent=agent,
        gpus=tuple(_device_meta(gpu) for gpu in sample.gpus),
        host=None if sample.host is None else _host_meta(sample.host),
        simulated=sample.simulated,
        readers=tuple(readers),
    )


def _device_meta(gpu: GpuSample) -> DeviceMeta:
    return DeviceMeta(
        gpu_id=gpu.gpu_id,
        vendor=gpu.vendor,
        name=gpu.name,
        parent_id=gpu.parent_id,
        pci_bdf=gpu.pci_bdf,
        mem_kind=gpu.mem_kind,
        mem_total_bytes=gpu.mem_total_bytes,
        power_kind=gpu.power_kind,
        energy_kind=gpu.energy_kind,
        capabilities=gpu.capabilities,
        missing=_never(gpu),
    )


def _host_meta(host: HostSample) -> HostMeta:
    return HostMeta(capabilities=host.capabilities, missing=_never(host))


def _never(sample: GpuSample | HostSample) -> dict[str, str]:
    """Give the reasons for what this device does not give at all, and not only now."""
    return {name: why for name, why in sample.missing.items() if name not in sample.capabilities}
