"""The state of a machine as plain data (`eaco.state/1`): one class for each part.

Whatever influences later behaviour has a field here. What follows from other fields
(indexes, locks, who is in which window) has none: restoring computes it again.
"""

# ruff: noqa: TC001 - the codec reads the annotations when the program runs

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen
from attrs.validators import optional

from eaco_core import _validate as check
from eaco_core.cluster import GpuSpec, NodeReading, NodeSpec, NodeState
from eaco_core.errors import InputError
from eaco_core.jobs import JobSpec, JobState
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from attrs import Attribute

STATE_VERSION: Final = 1
STATE_SCHEMA: Final = f"eaco.state/{STATE_VERSION}"


def _bound(_: object, attribute: Attribute[float], value: float) -> None:
    """Accept a slowdown of at least 1; infinity is "no bound"."""
    if not value >= 1:
        raise InputError(f"{attribute.name} must be at least 1, not {value!r}")


def _numbers(instance: object, attribute: Attribute[Any], value: tuple[float, ...]) -> None:
    """Accept only finite numbers of at least 0."""
    for number in value:
        check.not_negative(instance, attribute, number)


_count = [check.whole, check.not_negative]
_seconds = check.not_negative


@frozen
class JobForm:
    """One job. Its kind, its class in the queue and its window follow from the rest."""

    spec: JobSpec
    state: JobState
    attempt: int = field(default=0, validator=_count)
    gpus: tuple[str, ...] = ()
    epochs_done: int = field(default=0, validator=_count)
    epochs_this_attempt: int = field(default=0, validator=check.whole)
    epoch_started_s: float | None = field(default=None, validator=optional(_seconds))
    recent_epochs_s: tuple[float, ...] = field(default=(), validator=_numbers)
    clean_since_s: float = field(default=0.0, validator=_seconds)
    acc_s: float = field(default=0.0, validator=_seconds)
    acc_epochs: int = field(default=0, validator=_count)
    computing: bool = False
    started_s: float | None = field(default=None, validator=optional(_seconds))
    start_sent: bool = False
    upper_ratio: float = field(default=1.0, validator=_bound)
    unknown: bool = False
    then: JobState | None = None
    then_reason: str = ""
    tried: tuple[tuple[str, ...], ...] = ()
    queued_since_s: float = field(default=0.0, validator=_seconds)
    waited_s: float = field(default=0.0, validator=_seconds)
    wait_reason: str = ""
    undos: int = field(default=0, validator=_count)
    failures: int = field(default=0, validator=_count)
    start_failures: int = field(default=0, validator=_count)
    exclusive_only: bool = False
    exclusive_next: bool = False
    reservation_wanted: bool = False
    checkpoint_nodes: tuple[str, ...] | None = None
    pinned_nodes: tuple[str, ...] | None = None
    at_risk_told: bool = False


@frozen
class GpuForm:
    """One GPU of a node. `host`: the ledger's index of host GPUs holds it.

    That does not follow from the rest: the index is brought up to date when something
    happens to the GPU, not when the memory of a workload becomes known elsewhere.
    """

    gpu_id: str
    residents: tuple[str, ...] = ()
    up: bool = True
    changed_seq: int = field(default=0, validator=_count)
    readings: tuple[NodeReading, ...] = ()
    evicted_epoch: tuple[str, int] | None = None
    host: bool = False


@frozen
class NodeForm:
    """One node with its GPUs, in the order of its pools."""

    spec: NodeSpec
    state: NodeState
    gpus: tuple[GpuForm, ...]
    awake_since_s: float = field(validator=_seconds)
    idle_since_s: float = field(validator=_seconds)
    wake_due_s: float = field(validator=_seconds)
    drained: bool = False
    reports: bool = False


@frozen
class GpuRef:
    """A GPU that something refers to. `gone`: it is none of the ledger's any more.

    A node that is lost and joins again has new GPUs, also where their ids are the same.
    """

    gpu_id: str
    gone: GpuSpec | None = None
    node_id: str = ""


@frozen
class ClassForm:
    """A class of queued jobs, also an empty one: the order of classes and `looked_seq` count."""

    gpus: int = field(validator=check.count)
    kind: int = field(validator=_count)
    exclusive: bool
    timed: bool
    looked_seq: int = field(validator=_count)
    timely: bool
    gpu_types: tuple[str, ...] | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    pinned_nodes: tuple[str, ...] | None = None
    fresh: tuple[str, ...] = ()


@frozen
class QueueForm:
    """The queue: who is in it follows from the jobs.

    `starving_at` are the times at which a job would have waited too long, those that are
    out of date included: the machine wakes up for them.
    """

    classes: tuple[ClassForm, ...]
    starving_at: tuple[tuple[float, str], ...]
    starved: tuple[str, ...]


@frozen
class SeenForm:
    """Observations of one workload beside others. `worst`: the largest ratio that counts."""

    gpu_type: str
    workload: str
    co: tuple[str, ...]
    ratios: tuple[float, ...]
    worst: float


@frozen
class UndoneForm:
    """A signature that was undone, and the bound that it had then (R10)."""

    gpu_type: str
    workload: str
    residents: tuple[str, ...]
    bound: float


@frozen
class EvidenceForm:
    """All evidence. `peak_mem`: GPU type, workload, bytes."""

    version: int = field(validator=_count)
    seen: tuple[SeenForm, ...]
    peak_mem: tuple[tuple[str, str, int], ...]
    undone: tuple[UndoneForm, ...]


@frozen
class WindowForm:
    """A window that is open, or closed while its locks are still there."""

    newcomer: str
    affected: tuple[str, ...]
    locked: tuple[GpuRef, ...]
    opened: bool
    closed: bool
    restarts: int = field(validator=_count)
    epoch_s: tuple[tuple[str, float], ...] = ()
    best_epoch_s: tuple[tuple[str, float], ...] = ()


@frozen
class ReservationForm:
    """GPUs held for a job (R11)."""

    job: str
    gpus: tuple[GpuRef, ...]
    start_s: float | None
    evidence_version: int = field(validator=_count)


@frozen
class StateForm:
    """The whole state. `timers`: what, of whom, when."""

    schema: str
    policy: str
    rules: Rules
    term: int = field(validator=_count)
    seq: int = field(validator=_count)
    now_s: float = field(validator=_seconds)
    pass_due: bool
    changed_seq: int = field(validator=_count)
    free_seq: int = field(validator=_count)
    jobs: tuple[JobForm, ...]
    nodes: tuple[NodeForm, ...]
    queue: QueueForm
    timers: tuple[tuple[str, str, float], ...]
    windows: tuple[WindowForm, ...]
    reservation: ReservationForm | None
    evidence: EvidenceForm
