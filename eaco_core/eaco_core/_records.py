"""The working state of the machine: jobs, GPUs and nodes as mutable records.

Only the machine and its parts write to them; policies read them through the view.
A record holds what is true now; whatever can be derived is a property, unless a
comment says why it is kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field

from eaco_core.cluster import NodeState
from eaco_core.jobs import CheckpointScope, JobState, ShareWith
from eaco_core.states import HOLDING

if TYPE_CHECKING:
    from eaco_core.cluster import GpuSpec, NodeReading, NodeSpec
    from eaco_core.jobs import JobSpec, SoloProfile

QueueKey = tuple[int, float, str]
# (0, -utilisation) sorts high utilisation first; (1, 0) puts unknown utilisation last (R4).
# Then the kinds of the residents, and the memory (-1 = unknown): GPUs of one key pass the
# gates together.
HostKey = tuple[int, float, tuple[int, ...], int]


class JobKind:
    """What makes jobs alike for sharing: one object for all jobs that are alike.

    Two jobs of one kind have the same workload, owner, profiles (epoch time apart)
    and limits, so whatever is true of one beside given residents is true of the other.
    """

    __slots__ = (
        "group",
        "max_slowdown_ratio",
        "number",
        "profiles",
        "share_with",
        "user",
        "workload",
    )

    def __init__(self, number: int, job: JobSpec) -> None:
        self.number = number
        self.workload = job.workload or ""
        self.user = job.user
        self.group = job.group
        self.share_with = job.share_with
        self.max_slowdown_ratio = job.max_slowdown_ratio
        self.profiles: dict[str, SoloProfile] = {p.gpu_type: p for p in job.profiles}

    @staticmethod
    def key(job: JobSpec) -> tuple[object, ...]:
        """Give what must be equal for two jobs to be of one kind."""
        profiles = tuple(
            (p.gpu_type, p.util_ratio, p.mem_busy_ratio, p.peak_mem_bytes) for p in job.profiles
        )
        return (
            job.workload,
            job.user,
            job.group,
            job.share_with,
            job.max_slowdown_ratio,
            profiles,
        )

    def accepts(self, other: JobKind) -> bool:
        """Tell whether jobs of this kind accept `other` on their GPUs (R2)."""
        if self.share_with is ShareWith.ANY:
            return True
        if self.share_with is ShareWith.SAME_GROUP:
            return self.group == other.group
        return self.share_with is ShareWith.SAME_USER and self.user == other.user


class GpuRecord:
    """One GPU. `locks` are the newcomers whose windows lock it (R9).

    `changed_seq` is the ledger's count of when the GPU last gained room.
    """

    __slots__ = (
        "changed_seq",
        "evicted_epoch",
        "host_key",
        "key",
        "locks",
        "node",
        "readings",
        "reserved_for",
        "residents",
        "spec",
        "up",
        "util_reading",
    )

    def __init__(self, spec: GpuSpec, node: NodeRecord) -> None:
        self.spec = spec
        self.node = node
        self.key = (node.spec.node_id, spec.gpu_id)
        self.residents: list[JobRecord] = []
        self.up = True
        self.locks: list[str] = []
        self.reserved_for: str | None = None
        self.changed_seq = 0
        self.readings: deque[NodeReading] = deque()
        # Mean of the readings over the window of R2; kept because the host index sorts by it.
        self.util_reading: float | None = None
        self.evicted_epoch: tuple[str, int] | None = None
        # Under which key the ledger's host index holds this GPU; None = not in it.
        self.host_key: HostKey | None = None

    @property
    def foreign(self) -> bool:
        """Tell whether the newest reading saw a process that is not ours."""
        return bool(self.readings) and self.readings[-1].foreign is True


class NodeRecord:
    """One node. `pools` are its GPUs by type: a gang never mixes types (R3)."""

    __slots__ = (
        "awake_since_s",
        "drained",
        "idle_since_s",
        "pools",
        "reports",
        "resident_count",
        "spec",
        "state",
        "wake_due_s",
    )

    def __init__(self, spec: NodeSpec, state: NodeState, now_s: float) -> None:
        self.spec = spec
        self.state = state
        self.drained = False
        self.awake_since_s = now_s
        self.idle_since_s = now_s
        self.wake_due_s = now_s
        self.resident_count = 0
        self.reports = False
        self.pools: dict[str, PoolRecord] = {}
        for gpu in sorted(spec.gpus, key=lambda g: g.gpu_id):
            pool = self.pools.setdefault(gpu.gpu_type, PoolRecord(self, gpu.gpu_type))
            pool.gpus.append(GpuRecord(gpu, self))

    @property
    def usable(self) -> bool:
        """Tell whether jobs may be placed here, waking included."""
        return not self.drained and self.state in _PLACEABLE

    @property
    def promisable(self) -> bool:
        """Tell whether jobs may be placed here, if not at once: what falls asleep can be woken."""
        return not self.drained and self.state in _PROMISABLE


_PLACEABLE = frozenset({NodeState.AWAKE, NodeState.ASLEEP, NodeState.WAKING})
_PROMISABLE = _PLACEABLE | {NodeState.FALLING_ASLEEP}


class PoolRecord:
    """The GPUs of one type on one node, in order of their ids."""

    __slots__ = ("free_count", "gpu_type", "gpus", "host_count", "node")

    def __init__(self, node: NodeRecord, gpu_type: str) -> None:
        self.node = node
        self.gpu_type = gpu_type
        self.gpus: list[GpuRecord] = []
        self.free_count = 0
        self.host_count = 0


class JobRecord:
    """One job. Fields below the blank lines are grouped by who writes them."""

    __slots__ = (
        "acc_epochs",
        "acc_s",
        "at_risk_told",
        "attempt",
        "checkpoint_nodes",
        "clean_since_s",
        "computing",
        "epoch_started_s",
        "epochs_done",
        "epochs_this_attempt",
        "exclusive_next",
        "exclusive_only",
        "failures",
        "gpus",
        "key",
        "kind",
        "pinned_nodes",
        "queue_class",
        "queued_since_s",
        "recent_epochs_s",
        "reservation_wanted",
        "spec",
        "start_failures",
        "start_sent",
        "started_s",
        "state",
        "then",
        "then_reason",
        "tried",
        "undos",
        "unknown",
        "upper_ratio",
        "wait_reason",
        "waited_s",
        "window",
    )

    def __init__(self, spec: JobSpec, kind: JobKind) -> None:
        self.spec = spec
        self.kind = kind
        self.key: QueueKey = (-spec.priority, spec.submit_s, spec.job_id)
        self.state = JobState.QUEUED
        self.attempt = 0
        self.gpus: list[GpuRecord] = []

        self.epochs_done = 0
        self.epochs_this_attempt = 0
        self.epoch_started_s: float | None = None
        self.recent_epochs_s: deque[float] = deque(maxlen=3)
        self.clean_since_s = 0.0
        self.acc_s = 0.0
        self.acc_epochs = 0

        # Whether its process is known to run: a job that was asked to stop still computes.
        self.computing = False
        self.started_s: float | None = None
        self.start_sent = False
        self.upper_ratio = 1.0
        self.window: Window | None = None
        self.unknown = False
        self.then: JobState | None = None
        self.then_reason = ""

        self.queue_class: JobClass | None = None
        self.tried: set[tuple[str, ...]] = set()
        self.queued_since_s = 0.0
        self.waited_s = 0.0
        self.wait_reason = ""
        self.undos = 0
        self.failures = 0
        self.start_failures = 0
        self.exclusive_only = False
        self.exclusive_next = False
        self.reservation_wanted = False
        # Where its checkpoints are, if only there; and where it has to go on, while it waits.
        self.checkpoint_nodes: frozenset[str] | None = None
        self.pinned_nodes: frozenset[str] | None = None
        self.at_risk_told = False

    @property
    def epochs_left(self) -> int | None:
        """Give how many epochs are still to do, None if the job does not say."""
        return None if self.spec.epochs is None else self.spec.epochs - self.epochs_done

    def solo_epoch_s(self, gpu_type: str) -> float | None:
        """Give the time of one epoch alone on a type of GPU."""
        profile = self.spec.profile_on(gpu_type)
        return None if profile is None else profile.epoch_s

    def solo_left_s(self, gpu_type: str) -> float | None:
        """Give what is left at solo speed, in whole epochs; None if it cannot be known."""
        left, epoch_s = self.epochs_left, self.solo_epoch_s(gpu_type)
        return None if left is None or epoch_s is None else left * epoch_s

    def late(self, now_s: float, gpu_type: str) -> bool:
        """Tell whether the deadline is missed even alone from now on (R8)."""
        if self.spec.deadline_s is None:
            return False
        return now_s + (self.solo_left_s(gpu_type) or 0.0) > self.spec.deadline_s

    def exclusive(self, exclusive_priority: int) -> bool:
        """Tell whether the job must have its GPUs for itself (R1, R2, R10, R13)."""
        spec = self.spec
        return (
            spec.exclusive
            or self.exclusive_only
            or self.exclusive_next
            or spec.priority >= exclusive_priority
            or spec.share_with is ShareWith.NONE
            or spec.checkpoint_scope is CheckpointScope.NONE
            or spec.workload is None
            or spec.epochs is None
        )

    @property
    def holds(self) -> bool:
        """Tell whether the job holds GPUs."""
        return self.state in HOLDING


class JobClass:
    """Queued jobs that fit the same places.

    `looked_seq`: up to which ledger count every member but the fresh ones was refused
    everywhere. `timely`: time alone may change a refusal of the last look (deadlines,
    energy).
    """

    __slots__ = ("exclusive", "fresh", "kind", "looked_seq", "members", "timely")

    def __init__(self, kind: JobKind, *, exclusive: bool) -> None:
        self.kind = kind
        self.exclusive = exclusive
        self.members: list[tuple[QueueKey, JobRecord]] = []
        self.fresh: list[tuple[QueueKey, JobRecord]] = []
        self.looked_seq = 0
        self.timely = False


@define(eq=False)
class Window:
    """One open window. `epoch_s` holds the evidence of each affected job by its id."""

    newcomer: JobRecord
    affected: list[JobRecord]
    locked: list[GpuRecord]
    opened: bool = False
    closed: bool = False
    restarts: int = 0
    epoch_s: dict[str, float] = field(factory=dict[str, float])
    best_epoch_s: dict[str, float] = field(factory=dict[str, float])
