"""Checkers of the queue: I14 and I24."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import TYPE_CHECKING

from eaco_core.cluster import NodeState
from eaco_core.decisions import Reserved, Waits
from eaco_core.events import Tick
from eaco_core.invariants._checker import TIME_SLACK, Checker, above
from eaco_core.invariants._placement import compatible_complaint, memory_complaint
from eaco_core.jobs import CheckpointScope

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.decisions import Placed, Record
    from eaco_core.history import Header, Step
    from eaco_core.invariants._replay import Gpu, Job, Node, Placement, QueueKey, World


def has_room(world: World, job: Job, *, idle_only: bool) -> bool:
    """Tell whether a set for the job exists: of idle GPUs, or of any that are up (R3).

    A gang takes whole nodes of the largest size that its type has, and the rest on one.
    """
    sizes: Counter[str] = Counter()
    free: dict[str, list[int]] = {}
    for node in world.nodes.values():
        # What a whole node is does not change while the largest are out for repair.
        sizes |= Counter(gpu.spec.gpu_type for gpu in node.gpus)
        for gpu_type, count in _free_by_type(world, node, job, idle_only=idle_only).items():
            free.setdefault(gpu_type, []).append(count)
    for gpu_type, counts in free.items():
        size = sizes[gpu_type]
        whole, rest = divmod(job.spec.gpus, size)
        if job.spec.gpus <= size:
            whole, rest = 0, job.spec.gpus
        full = sum(1 for count in counts if count >= size)
        if full < whole:
            continue
        if rest == 0 or full > whole or any(rest <= count < size for count in counts):
            return True
    return False


def _free_by_type(world: World, node: Node, job: Job, *, idle_only: bool) -> Counter[str]:
    if idle_only:
        asleep = node.state is NodeState.ASLEEP and node.spec.can_sleep
        usable = node.state is NodeState.AWAKE or asleep
    else:
        usable = node.state is not NodeState.OUT
    if node.drained or not usable or not _has_checkpoint(world, node, job):
        return Counter()
    return Counter(
        gpu.spec.gpu_type
        for gpu in node.gpus
        if gpu.up
        and not gpu.foreign
        and not (idle_only and gpu.residents)
        and memory_complaint(gpu.spec, [job.spec], world.rules, world.peak_bytes) is None
        and compatible_complaint(job.spec, gpu.spec, node.spec) is None
    )


def _has_checkpoint(world: World, node: Node, job: Job) -> bool:
    """Tell whether a job can go on from this node; one whose checkpoint is lost can anywhere."""
    last = job.placement
    if job.spec.checkpoint_scope is not CheckpointScope.NODE or not job.epochs_done or not last:
        return True
    known = [world.gpus[gpu_id].node for gpu_id in last.gpu_ids if gpu_id in world.gpus]
    lost = any(other.state is NodeState.OUT for other in known)
    return lost or node in known


class Fallback(Checker):
    """I14: after a Tick, a queued job without a recorded reason must not fit an idle set."""

    invariant = "I14"
    needs_records = True

    def on_record(self, record: Record) -> None:
        """Note that a job has a reason to wait."""
        if isinstance(record, Waits):
            self.world.unexplained.pop(record.job_id, None)

    def at_end(self, step: Step) -> None:
        """Look for idle sets that suit a job of which nothing is said."""
        if not isinstance(step.event, Tick) or not self.world.unexplained:
            return
        for job in self.world.unexplained.values():
            if has_room(self.world, job, idle_only=True):
                self.broken(f"job {job.job_id} waits without a reason while it fits idle GPUs")
                return


class Fairness(Checker):
    """I24: the order of R1 within a pass, and the reservation of R11."""

    invariant = "I24"
    needs_records = True

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._reserved: dict[str, Reserved] = {}
        self._crossing: list[tuple[float, QueueKey, Job]] = []
        self._starved: list[tuple[QueueKey, Job]] = []
        self._head: Job | None = None
        self._last_key: QueueKey | None = None
        self._granted: QueueKey | None = None  # whose it was in this step, and was right

    def before_event(self, step: Step, stale: str | None) -> None:  # noqa: ARG002 - one signature for all
        """Note who has waited too long, before anything is decided."""
        self._last_key = self._granted = None
        self._head = self._first_starved() if isinstance(step.event, Tick) else None

    def _note(self, job: Job) -> None:
        """Remember when a job that has just come into the queue will have waited too long."""
        crossing_s = job.queued_since_s + self.rules.starvation_s - job.waited_s
        if math.isfinite(crossing_s):
            heapq.heappush(self._crossing, (crossing_s, job.key, job))

    def _first_starved(self) -> Job | None:
        now_s = self.world.now_s
        while self._crossing and above(now_s, self._crossing[0][0]):
            _, key, job = heapq.heappop(self._crossing)
            if self._is_starved(job):
                heapq.heappush(self._starved, (key, job))
        while self._starved and not self._is_starved(self._starved[0][1]):
            heapq.heappop(self._starved)
        return self._starved[0][1] if self._starved else None

    def _is_starved(self, job: Job) -> bool:
        queued = job.job_id in self.world.queue
        return queued and above(job.waited_by(self.world.now_s), self.rules.starvation_s)

    def on_record(self, record: Record) -> None:
        """Look whether a reservation goes to the job that has a right to it."""
        if not isinstance(record, Reserved):
            return
        job = self.world.jobs.get(record.job_id)
        self._reserved = {record.job_id: record}
        if job is None or job.job_id not in self.world.queue:
            self.broken(f"GPUs were reserved for job {record.job_id}, which is not in the queue")
            return
        self._granted = job.key
        for gpu_id in record.gpus:
            if gpu_id not in self.world.gpus:
                self.broken(f"GPU {gpu_id} is reserved for job {job.job_id}, and no node has it")
        if job.alone_from_now:
            return
        waited_s = job.waited_by(self.world.now_s)
        if above(self.rules.starvation_s, waited_s):
            self.broken(f"GPUs were reserved for job {job.job_id} after {waited_s:g} s of waiting")
        head = self._head
        earlier = head is not None and head.job_id in self.world.queue and head.key < job.key
        # A job that no set of GPUs suits now keeps nobody from a reservation.
        if head is not None and earlier and has_room(self.world, head, idle_only=False):
            self.broken(
                f"GPUs were reserved for job {job.job_id} although job {head.job_id} comes first"
            )

    def on_placement(self, placement: Placement) -> None:
        """Look at the order of placements, and whether one delays who holds a reservation."""
        job, record = placement.job, placement.record
        if record is None:
            return
        if self._last_key is not None and job.key < self._last_key:
            self.broken(f"job {job.job_id} was placed after {self._last_key[2]}, which comes later")
        self._last_key = job.key
        if self._reserved.pop(job.job_id, None) is not None:
            # The pass that placed it began with its reservation: the next one's turn comes later.
            self._granted = job.key
        for reserved in self._reserved.values():
            holder = self.world.queue.get(reserved.job_id)
            if holder is None or job.key < holder.key:
                continue
            if not set(reserved.gpus) & set(record.gpus):
                continue
            end_s = self._upper_end_s(placement, record)
            if reserved.start_s is None or end_s is None or above(end_s, reserved.start_s):
                self.broken(
                    f"job {job.job_id} was placed on GPUs that are reserved for job "
                    f"{holder.job_id} and may delay it"
                )

    def _upper_end_s(self, placement: Placement, record: Placed) -> float | None:
        for bound in record.affected:
            if bound.job_id == record.job_id:
                return record.start_s + bound.upper_ratio * bound.remaining_s
        gpu: Gpu | None = self.world.gpus.get(record.gpus[0]) if record.gpus else None
        left_s = None if gpu is None else placement.job.solo_left_s(gpu.spec.gpu_type)
        return None if left_s is None else record.start_s + left_s

    def at_end(self, step: Step) -> None:  # noqa: ARG002 - one signature for all
        """Look whether the first of those that waited too long holds the reservation."""
        for job in self.world.queued_now:
            self._note(job)
        for job_id in [i for i in self._reserved if i not in self.world.queue]:
            del self._reserved[job_id]
        head = self._head
        if head is None or head.job_id not in self.world.queue or head.job_id in self._reserved:
            return
        holder = next((self.world.queue[i] for i in self._reserved), None)
        if holder is not None and (holder.alone_from_now or holder.key < head.key):
            return
        if self._granted is not None and self._granted < head.key:
            return  # an earlier one held it, and was placed in this very step
        if has_room(self.world, head, idle_only=False):
            waited_s = head.waited_by(self.world.now_s)
            self.broken(
                f"job {head.job_id} has waited for {waited_s - TIME_SLACK:.0f} s in all, "
                "comes first, and holds no reservation"
            )
