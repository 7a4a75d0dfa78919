"""The world as a history tells it, folded step by step.

Written from the meaning of events, effects and records alone, apart from the
machine that made them: the checkers compare what a scheduler did with what this
model says was true. It never refuses anything; whatever makes no sense is left to
the checkers. Memory is bounded by the jobs that are alive: of an ended job only its
id and its end are kept.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field

from eaco_core.jobs import CheckpointScope, JobState, ShareWith

if TYPE_CHECKING:
    from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
    from eaco_core.decisions import Placed
    from eaco_core.effects import Observation
    from eaco_core.jobs import FailureReason, JobSpec
    from eaco_core.rules import Rules

QueueKey: TypeAlias = tuple[int, float, str]
RECENT = 20


@define(eq=False)
class Gpu:
    """One GPU: who holds it, in order of placement. `foreign`: others use it as well."""

    spec: GpuSpec
    node: Node
    up: bool = True
    foreign: bool = False
    residents: list[Job] = field(factory=list["Job"])


@define(eq=False)
class Node:
    """One node with its GPUs."""

    spec: NodeSpec
    state: NodeState
    drained: bool = False
    gpus: list[Gpu] = field(factory=list[Gpu])


@define(eq=False)
class Placement:
    """A job was given GPUs; `record` says why, when the history holds it."""

    job: Job
    attempt: int
    gpu_ids: tuple[str, ...]
    shared: bool
    t_s: float
    record: Placed | None
    before: dict[str, tuple[str, ...]] = field(factory=dict[str, tuple[str, ...]])


@define(eq=False)
class Window:
    """The trial of a newcomer (R9): whom it affects, and since when it runs."""

    placement: Placement
    affected: dict[str, Job]
    restarts: int = 0
    undone_s: float | None = None

    @property
    def newcomer(self) -> Job:
        """Give the job on trial."""
        return self.placement.job


@define(eq=False)
class EpochRun:
    """Clean epochs, each under the same computing residents from end to end."""

    count: int = 0
    sum_s: float = 0.0
    min_s: float = float("inf")
    max_s: float = 0.0

    def add(self, epoch_s: float) -> None:
        """Count one more epoch."""
        self.count += 1
        self.sum_s += epoch_s
        self.min_s = min(self.min_s, epoch_s)
        self.max_s = max(self.max_s, epoch_s)


class Observations:
    """The last clean observations of every set of workloads (R5)."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str, tuple[str, ...]], deque[float]] = {}

    def add(self, seen: Observation) -> None:
        """Keep one observation."""
        key = (seen.gpu_type, seen.workload, tuple(sorted(seen.co_workloads)))
        self._ratios.setdefault(key, deque(maxlen=RECENT)).append(seen.ratio)

    def largest(self, gpu_type: str, workload: str | None, beside: tuple[str, ...]) -> float:
        """Give the largest ratio seen beside these workloads or some of them; 0 = none."""
        largest = 0.0
        for size in range(len(beside) + 1) if workload is not None else ():
            for part in set(combinations(sorted(beside), size)):
                seen = self._ratios.get((gpu_type, workload or "", part))
                largest = max(largest, *seen) if seen else largest
        return largest


@define(eq=False)
class Job:
    """One job that is alive.

    `then` is where it goes when its last GPU is released. `lost`: since its last start
    something happened that may have cost it epochs. `trial` are its clean epochs since the
    open window began or began again, `best` all since it first began. `changed_s` are the
    last two different times at which the computing residents of its GPUs changed.
    """

    spec: JobSpec
    key: QueueKey
    always_alone: bool
    state: JobState = JobState.QUEUED
    attempt: int = 0
    gpus: list[Gpu] = field(factory=list[Gpu])
    placement: Placement | None = None
    then: JobState | None = None
    failure: FailureReason | None = None
    start_sent: bool = False
    kill_sent: bool = False
    computing: bool = False
    ended: bool = False
    lost: bool = False

    epochs_done: int = 0
    epoch_began_s: float = 0.0
    changed_s: tuple[float, float] = (0.0, 0.0)
    trial: EpochRun = field(factory=EpochRun)
    best: EpochRun = field(factory=EpochRun)

    queued_since_s: float = 0.0
    waited_s: float = 0.0
    undos: int = 0
    alone_from_now: bool = False
    windows: list[Window] = field(factory=list[Window])

    @property
    def job_id(self) -> str:
        """Give the id of the job."""
        return self.spec.job_id

    @property
    def stopping(self) -> bool:
        """Tell whether the job was told to stop, or has stopped, and still holds GPUs."""
        return self.state is JobState.STOPPING

    def epochs_left(self) -> int | None:
        """Give how many epochs are still to do, None if the job does not say."""
        return None if self.spec.epochs is None else self.spec.epochs - self.epochs_done

    def solo_epoch_s(self, gpu_type: str) -> float | None:
        """Give the time of one epoch alone, None if nobody says."""
        profile = self.spec.profile_on(gpu_type)
        return None if profile is None else profile.epoch_s

    def solo_left_s(self, gpu_type: str) -> float | None:
        """Give what is left at solo speed in whole epochs, None if nobody says."""
        left, epoch_s = self.epochs_left(), self.solo_epoch_s(gpu_type)
        return None if left is None or epoch_s is None else left * epoch_s

    def co_residents(self) -> dict[str, Job]:
        """Give the other jobs on any of its GPUs."""
        found: dict[str, Job] = {}
        for gpu in self.gpus:
            for other in gpu.residents:
                if other is not self:
                    found[other.job_id] = other
        return found

    def waited_by(self, now_s: float) -> float:
        """Give how long the job has been in the queue in total."""
        queued = self.state is JobState.QUEUED
        return self.waited_s + (now_s - self.queued_since_s if queued else 0.0)


def must_be_alone(spec: JobSpec, rules: Rules) -> bool:
    """Tell whether a job may never share a GPU, whatever happens (R1, R2)."""
    return (
        spec.exclusive
        or spec.priority >= rules.exclusive_priority
        or spec.share_with is ShareWith.NONE
        or spec.checkpoint_scope is CheckpointScope.NONE
        or spec.epochs is None
    )


@define(eq=False)
class World:
    """Jobs, GPUs and nodes after the steps that were folded in so far.

    `ours`: eaco wrote the history, so it holds every decision: what it does not say
    did not happen. `ignored`: it says that the event of this step changed nothing.
    `unexplained` are the queued jobs of which no record says why they
    wait; `queued_now` those that came into the queue in this step. `wake_by_s` says until
    when a waking node may stay silent (R15), `lost_by_s` until when an attempt of which
    nobody knows may (R14). `stays_s` says by node and job from when until when the job held
    GPUs there (infinity: it still does), as far as no energy line has covered it yet.
    `peaks_bytes` are the most memory seen by GPU type and workload.
    """

    rules: Rules
    ours: bool
    jobs: dict[str, Job] = field(factory=dict[str, Job])
    ended: dict[str, JobState] = field(factory=dict[str, JobState])
    gpus: dict[str, Gpu] = field(factory=dict[str, Gpu])
    nodes: dict[str, Node] = field(factory=dict[str, Node])
    queue: dict[str, Job] = field(factory=dict[str, Job])
    submitted: int = 0
    now_s: float = 0.0
    last_seq: int = 0
    last_s: float = 0.0
    nodes_seen: bool = False
    ignored: bool = False
    unexplained: dict[str, Job] = field(factory=dict[str, Job])
    queued_now: list[Job] = field(factory=list[Job])
    seen: Observations = field(factory=Observations)
    wake_by_s: dict[str, float] = field(factory=dict[str, float])
    lost_by_s: dict[str, tuple[int, float]] = field(factory=dict[str, tuple[int, float]])
    peaks_bytes: dict[tuple[str, str], int] = field(factory=dict[tuple[str, str], int])
    stays_s: dict[str, dict[str, tuple[float, float]]] = field(
        factory=dict[str, dict[str, tuple[float, float]]]
    )

    def silent_nodes(self) -> list[Node]:
        """Give the nodes that were to wake and have not said so in time."""
        overdue = [i for i, due_s in self.wake_by_s.items() if due_s <= self.now_s]
        return [self.nodes[node_id] for node_id in overdue]

    def peak_bytes(self, spec: JobSpec, gpu_type: str) -> int | None:
        """Give what a job needs on each GPU: declared or seen, the higher; None = unknown."""
        profile = spec.profile_on(gpu_type)
        declared = None if profile is None else profile.peak_mem_bytes
        seen = self.peaks_bytes.get((gpu_type, spec.workload or ""))
        known = [peak for peak in (declared, seen) if peak is not None]
        return max(known, default=None)

    def note_peak(self, job: Job, peak_bytes: int | None) -> None:
        """Keep how much memory a job was seen to use."""
        if peak_bytes is None or job.spec.workload is None or not job.gpus:
            return
        key = (job.gpus[0].spec.gpu_type, job.spec.workload)
        self.peaks_bytes[key] = max(peak_bytes, self.peaks_bytes.get(key, 0))

    def enqueue(self, job: Job) -> None:
        """Put a job that holds nothing (back) into the queue."""
        job.state = JobState.QUEUED
        job.then = None
        job.failure = None
        job.start_sent = False
        job.kill_sent = False
        job.ended = False
        job.queued_since_s = self.now_s
        self.queue[job.job_id] = job
        self.unexplained[job.job_id] = job
        self.queued_now.append(job)

    def end(self, job: Job, state: JobState) -> None:
        """Take a job that holds nothing out of the world."""
        self._dequeue(job)
        self.jobs.pop(job.job_id, None)
        self.ended[job.job_id] = state
        job.state = state

    def _dequeue(self, job: Job) -> None:
        self.queue.pop(job.job_id, None)
        self.unexplained.pop(job.job_id, None)

    def book(self, placement: Placement) -> None:
        """Give GPUs to a job; GPUs that no node has named are taken as they come."""
        job = placement.job
        if job.state is JobState.QUEUED:
            job.waited_s += self.now_s - job.queued_since_s
            self._dequeue(job)
        for gpu in list(job.gpus):
            self._leave(job, gpu)
        job.state = JobState.STARTING
        job.attempt = placement.attempt
        job.placement = placement
        job.then = None
        job.ended = False
        job.start_sent = False
        for gpu_id in placement.gpu_ids:
            given = self.gpus.get(gpu_id)
            if given is not None:
                job.gpus.append(given)
                given.residents.append(job)
                self._note_stay(job, given, math.inf)
        if placement.shared:
            self._open_window(placement)

    def _open_window(self, placement: Placement) -> None:
        job = placement.job
        affected = {job.job_id: job, **job.co_residents()}
        window = Window(placement, affected)
        for member in affected.values():
            member.windows.append(window)

    def window_of(self, job: Job) -> Window | None:
        """Give the open window in which the job is the newcomer."""
        for window in job.windows:
            if window.newcomer is job:
                return window
        return None

    def close_window(self, window: Window) -> None:
        """End a trial: its GPUs are open to newcomers again."""
        for member in window.affected.values():
            if window in member.windows:
                member.windows.remove(window)

    def release(self, job: Job, gpu_ids: tuple[str, ...]) -> bool:
        """Take GPUs back from a job. Tells whether it now holds nothing."""
        self.set_computing(job, computing=False)
        held = [gpu for gpu in job.gpus if gpu.spec.gpu_id in gpu_ids]
        for gpu in held:
            self._leave(job, gpu)
        if job.gpus:
            return False
        window = self.window_of(job)
        if window is not None:
            self.close_window(window)
        for other in list(job.windows):
            other.affected.pop(job.job_id, None)
            job.windows.remove(other)
        return True

    def _leave(self, job: Job, gpu: Gpu) -> None:
        job.gpus.remove(gpu)
        if job in gpu.residents:
            gpu.residents.remove(job)
        if all(other.node.spec.node_id != gpu.node.spec.node_id for other in job.gpus):
            self._note_stay(job, gpu, self.now_s)

    def _note_stay(self, job: Job, gpu: Gpu, until_s: float) -> None:
        stays = self.stays_s.setdefault(gpu.node.spec.node_id, {})
        from_s, _ = stays.get(job.job_id, (self.now_s, until_s))
        stays[job.job_id] = (from_s, until_s)

    def set_computing(self, job: Job, *, computing: bool) -> None:
        """Note that a job begins or ceases to compute: a change for all on its GPUs."""
        if job.computing is computing:
            return
        job.computing = computing
        for gpu in job.gpus:
            for resident in gpu.residents:
                newest_s = resident.changed_s[1]
                if newest_s != self.now_s:
                    resident.changed_s = (newest_s, self.now_s)
        for window in job.windows:
            for member in window.affected.values():
                member.trial = EpochRun()
        if computing:
            job.epoch_began_s = self.now_s
            job.changed_s = (self.now_s, self.now_s)
            own = self.window_of(job)
            for member in own.affected.values() if own is not None else ():
                member.best = EpochRun()

    def count_epoch(self, job: Job, epoch: int, *, clean: bool) -> None:
        """Count a completed epoch, and keep its time if it is evidence (R9)."""
        job.epochs_done = max(job.epochs_done, epoch)
        if not job.computing:
            return
        began_s, job.epoch_began_s = job.epoch_began_s, self.now_s
        epoch_s = self.now_s - began_s
        if not clean or epoch_s <= 0:
            return
        older_s, newest_s = job.changed_s
        if began_s >= newest_s:
            job.trial.add(epoch_s)
        # A change in the very moment of its end leaves the epoch itself whole.
        if began_s >= (older_s if newest_s == self.now_s else newest_s):
            job.best.add(epoch_s)
