"""The read-only view: everything that a policy may look at.

A view shows the present state; after a policy has yielded a placement and the
machine has carried it out, the same view shows the state with that placement.
Policies must not write to anything they reach through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, frozen

from eaco_core.cluster import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core._ledger import Ledger
    from eaco_core._power_table import PowerTable
    from eaco_core._queue import JobQueue
    from eaco_core._records import GpuRecord, JobRecord, NodeRecord, PoolRecord
    from eaco_core.evidence import Evidence
    from eaco_core.rules import Rules


@frozen(eq=False)
class Reservation:
    """GPUs held for a job that waited too long (R11); `start_s` None = unknown."""

    job: JobRecord
    gpus: tuple[GpuRecord, ...]
    start_s: float | None
    evidence_version: int


@define(eq=False)
class View:
    """What a policy sees. `open_windows` counts newcomers under observation."""

    rules: Rules
    ledger: Ledger
    queue: JobQueue
    evidence: Evidence
    power: PowerTable | None
    now_s: float = 0.0
    reservation: Reservation | None = None
    open_windows: int = 0

    def suits(self, job: JobRecord, node: NodeRecord) -> bool:
        """Tell whether a node meets the job's selector and holds its checkpoint (R2)."""
        return node.usable and self._meets(job, node)

    def can_be_promised(self, job: JobRecord, node: NodeRecord) -> bool:
        """Tell whether a node will suit the job: one that is falling asleep does soon (R11)."""
        return node.promisable and self._meets(job, node)

    @staticmethod
    def _meets(job: JobRecord, node: NodeRecord) -> bool:
        if job.pinned_nodes is not None and node.spec.node_id not in job.pinned_nodes:
            return False
        if job.spec.node_selector:
            labels = dict(node.spec.labels)
            return all(labels.get(key) == value for key, value in job.spec.node_selector)
        return True

    def gpu_types(self, job: JobRecord) -> list[str]:
        """Give the GPU types that the job accepts and the cluster has, sorted."""
        known = sorted(self.ledger.pool_sizes)
        accepted = job.spec.gpu_types
        return known if accepted is None else [t for t in known if t in accepted]

    def start_s(self, gpus: tuple[GpuRecord, ...]) -> float:
        """Give when a job on these GPUs can start: now, or when their nodes are awake."""
        start_s = self.now_s
        for gpu in gpus:
            state = gpu.node.state
            if state is NodeState.ASLEEP:
                start_s = max(start_s, self.now_s + gpu.node.spec.wake_s)
            elif state is NodeState.WAKING:
                start_s = max(start_s, gpu.node.wake_due_s)
        return start_s

    def may_use(self, job: JobRecord, gpu: GpuRecord, end_s: float | None) -> bool:
        """Tell whether a reservation leaves the GPU to this job until `end_s` (R11).

        `end_s` is its end if it could start now; a node that has to wake ends it later.
        """
        held = self.reservation
        if held is None or held.job is job or gpu.reserved_for is None:
            return True
        if end_s is None or held.start_s is None:
            return False
        return end_s + self.start_s((gpu,)) - self.now_s <= held.start_s

    def free_gpus(self, job: JobRecord, pool: PoolRecord, end_s: float | None) -> list[GpuRecord]:
        """Give the free GPUs of a pool that the job may use, and fits on alone."""
        return [
            gpu
            for gpu in pool.gpus
            if not gpu.residents
            and gpu.up
            and not gpu.foreign
            and self.may_use(job, gpu, end_s)
            and self.fits_alone(job, gpu)
        ]

    def fits_alone(self, job: JobRecord, gpu: GpuRecord) -> bool:
        """Tell whether the job's memory, if known, fits on the GPU: alone it needs no headroom."""
        if gpu.spec.mem_bytes is None:
            return True
        peak = self.evidence.peak_mem_bytes(gpu.spec.gpu_type, job.kind)
        return peak is None or peak <= gpu.spec.mem_bytes

    def idle_set(self, job: JobRecord) -> tuple[GpuRecord, ...] | None:
        """Give the best exclusive set (R3, R4): awake before waking before asleep, best fit."""
        for state in (NodeState.AWAKE, NodeState.WAKING, NodeState.ASLEEP):
            best: tuple[int, str, list[GpuRecord]] | None = None
            for gpu_type in self.gpu_types(job):
                if job.spec.gpus > self.ledger.pool_sizes[gpu_type]:
                    continue
                found = self._idle_on_one_node(job, gpu_type, state)
                if found is not None and (best is None or found[:2] < best[:2]):
                    best = found
            if best is not None:
                return tuple(best[2])
        for gpu_type in self.gpu_types(job):
            if job.spec.gpus > self.ledger.pool_sizes[gpu_type]:
                whole = self._idle_on_many_nodes(job, gpu_type)
                if whole is not None:
                    return whole
        return None

    def _idle_on_one_node(
        self, job: JobRecord, gpu_type: str, state: NodeState
    ) -> tuple[int, str, list[GpuRecord]] | None:
        wanted = job.spec.gpus
        end_s = self._solo_end_s(job, gpu_type)
        for count, pool in self.ledger.free_pools(gpu_type, state, wanted):
            if self.suits(job, pool.node):
                free = self.free_gpus(job, pool, end_s)
                if len(free) >= wanted:
                    return count, pool.node.spec.node_id, free[:wanted]
        return None

    def _idle_on_many_nodes(self, job: JobRecord, gpu_type: str) -> tuple[GpuRecord, ...] | None:
        size = self.ledger.pool_sizes[gpu_type]
        whole, rest = divmod(job.spec.gpus, size)
        end_s = self._solo_end_s(job, gpu_type)
        if end_s is not None and self.reservation is not None:
            # A gang starts when the last of its nodes is awake.
            free_nodes = [pool.node for pool in self._free_in_order(gpu_type, 1)]
            asleep = [n.spec.wake_s for n in free_nodes if n.state is not NodeState.AWAKE]
            end_s += max(asleep, default=0.0)
        chosen: list[GpuRecord] = []
        nodes = 0
        for pool in self._free_in_order(gpu_type, size):
            free = self.free_gpus(job, pool, end_s) if self.suits(job, pool.node) else []
            if nodes < whole and len(free) == size:
                chosen += free
                nodes += 1
        if nodes < whole:
            return None
        if rest:
            used = {gpu.node.spec.node_id for gpu in chosen}
            for pool in self._free_in_order(gpu_type, rest):
                free = self.free_gpus(job, pool, end_s) if self.suits(job, pool.node) else []
                if pool.node.spec.node_id not in used and len(free) >= rest:
                    return (*chosen, *free[:rest])
            return None
        return tuple(chosen)

    def _free_in_order(self, gpu_type: str, at_least: int) -> Iterator[PoolRecord]:
        for state in (NodeState.AWAKE, NodeState.WAKING, NodeState.ASLEEP):
            for _, pool in self.ledger.free_pools(gpu_type, state, at_least):
                yield pool

    def _solo_end_s(self, job: JobRecord, gpu_type: str) -> float | None:
        left_s = job.solo_left_s(gpu_type)
        return None if left_s is None else self.now_s + left_s
