"""The ledger: which job holds which GPUs, and indexes to find room quickly.

The only place where GPUs are booked and released. Two indexes follow every change:
free GPUs by node and count (for exclusive sets, best fit), and host GPUs that may
take one more job, by utilisation and kinds of residents (for shared sets, R4).

`changed_seq` counts the moments when some GPU gained room; a GPU carries the count
of its own last gain. A job that was refused everywhere at count s need only be
looked at again on GPUs whose count is above s.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import groupby
from typing import TYPE_CHECKING

from eaco_core._records import HostKey, NodeRecord
from eaco_core.cluster import NodeState
from eaco_core.errors import InternalError
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core._records import GpuRecord, JobRecord, PoolRecord
    from eaco_core.cluster import NodeSpec
    from eaco_core.evidence import Evidence
    from eaco_core.rules import Rules

GpuKey = tuple[str, str]
WAIT_RANK = {NodeState.AWAKE: 0, NodeState.WAKING: 1, NodeState.ASLEEP: 2}


class Ledger:
    """Nodes, GPUs, bookings and locks of one cluster."""

    def __init__(self, rules: Rules, evidence: Evidence) -> None:
        self._rules = rules
        self._evidence = evidence
        self.nodes: dict[str, NodeRecord] = {}
        self.gpus: dict[str, GpuRecord] = {}
        self.changed_seq = 0
        self.free_seq = 0
        self.pool_sizes: dict[str, int] = {}
        self._free: dict[tuple[str, NodeState], dict[int, list[str]]] = {}
        self._free_at: dict[tuple[str, str], tuple[NodeState, int]] = {}
        self._hosts: dict[str, dict[HostKey, list[GpuKey]]] = {}
        self._host_keys: dict[str, list[HostKey]] = {}

    # ---- nodes -----------------------------------------------------------------

    def add_node(self, spec: NodeSpec, state: NodeState, now_s: float) -> NodeRecord:
        """Take in a node that joins (again)."""
        old = self.nodes.get(spec.node_id)
        if old is not None:
            for pool in old.pools.values():
                for gpu in pool.gpus:
                    del self.gpus[gpu.spec.gpu_id]
        node = NodeRecord(spec, state, now_s)
        self.nodes[spec.node_id] = node
        for pool in node.pools.values():
            for gpu in pool.gpus:
                self.gpus[gpu.spec.gpu_id] = gpu
        self.pool_sizes.clear()
        for pool in (pool for known in self.nodes.values() for pool in known.pools.values()):
            size = self.pool_sizes.get(pool.gpu_type, 0)
            self.pool_sizes[pool.gpu_type] = max(size, len(pool.gpus))
        self.refresh_node(node)
        return node

    def set_node_state(self, node: NodeRecord, state: NodeState) -> None:
        """Move a node to another power state."""
        node.state = state
        self.refresh_node(node)

    def refresh_node(self, node: NodeRecord) -> None:
        """Bring the indexes in line with whatever changed on the node."""
        for pool in node.pools.values():
            self._refresh_pool(pool)
            for gpu in pool.gpus:
                self._refresh_host(gpu)

    # ---- bookings --------------------------------------------------------------

    def book(self, job: JobRecord, gpus: tuple[GpuRecord, ...]) -> None:
        """Give `gpus` to the job, beside whoever holds them already."""
        if job.gpus:
            raise InternalError(f"job {job.spec.job_id} is booked twice")
        job.gpus = list(gpus)
        for gpu in gpus:
            gpu.residents.append(job)
            gpu.node.resident_count += 1
        for pool in {id(g.node.pools[g.spec.gpu_type]): g for g in gpus}.values():
            self._refresh_pool(pool.node.pools[pool.spec.gpu_type])
        for gpu in gpus:
            self._refresh_host(gpu)

    def release(self, job: JobRecord, gpu: GpuRecord, now_s: float) -> None:
        """Take one GPU back from the job."""
        gpu.residents.remove(job)
        job.gpus.remove(gpu)
        node = gpu.node
        node.resident_count -= 1
        if node.resident_count == 0:
            node.idle_since_s = now_s
        self._refresh_pool(node.pools[gpu.spec.gpu_type])
        self.refresh(gpu)

    def lock(self, gpu: GpuRecord, newcomer_id: str) -> None:
        """Close a GPU to newcomers while a window is open (R9).

        Two windows may lock one GPU: each has a gang there, and newcomers elsewhere.
        """
        gpu.locks.append(newcomer_id)
        self._refresh_host(gpu)

    def unlock(self, gpu: GpuRecord, newcomer_id: str) -> None:
        """Take back one window's lock."""
        if newcomer_id in gpu.locks:
            gpu.locks.remove(newcomer_id)
            self.refresh(gpu)

    def refresh(self, gpu: GpuRecord) -> None:
        """Bring the host index in line with whatever changed on the GPU."""
        self._refresh_host(gpu)

    def note_news(self, gpu: GpuRecord) -> None:
        """Let one GPU count as changed although its residents are the same."""
        self.changed_seq += 1
        gpu.changed_seq = self.changed_seq

    def touch_all(self) -> None:
        """Let every GPU count as changed: a bound fell somewhere."""
        self.changed_seq += 1
        for gpu in self.gpus.values():
            gpu.changed_seq = self.changed_seq

    def note_reservation_moved(self) -> None:
        """GPUs that were held for one job are there for all again."""
        self.changed_seq += 1
        self.free_seq = self.changed_seq

    # ---- free GPUs -------------------------------------------------------------

    def free_pools(
        self, gpu_type: str, state: NodeState, at_least: int
    ) -> Iterator[tuple[int, PoolRecord]]:
        """Give pools with at least that many free GPUs: fewest first, then by node id."""
        counts = self._free.get((gpu_type, state))
        if counts:
            for count in sorted(c for c in counts if c >= at_least):
                for node_id in tuple(counts[count]):
                    yield count, self.nodes[node_id].pools[gpu_type]

    def _refresh_pool(self, pool: PoolRecord) -> None:
        node = pool.node
        count = 0
        if node.usable:
            count = sum(1 for g in pool.gpus if not g.residents and g.up and not g.foreign)
        at = (pool.gpu_type, node.spec.node_id)
        old, new = self._free_at.get(at), (node.state, count)
        if old == new:
            return
        if old is not None and old[1] > 0:
            counts = self._free[pool.gpu_type, old[0]]
            names = counts[old[1]]
            names.remove(node.spec.node_id)
            if not names:
                del counts[old[1]]
        if count > 0:
            counts = self._free.setdefault((pool.gpu_type, node.state), {})
            insort(counts.setdefault(count, []), node.spec.node_id)
            if old is None or count > old[1]:
                self.changed_seq += 1
                self.free_seq = self.changed_seq
        self._free_at[at] = new
        pool.free_count = count

    # ---- host GPUs -------------------------------------------------------------

    def host_groups(
        self, gpu_type: str, min_key: tuple[int, float]
    ) -> Iterator[tuple[tuple[int, float], list[tuple[HostKey, list[GpuKey]]]]]:
        """Give host GPUs from `min_key` on, grouped by utilisation, highest first (R4)."""
        keys = self._host_keys.get(gpu_type, [])
        hosts = self._hosts.get(gpu_type, {})
        start = bisect_left(keys, (*min_key, (), -1))
        chosen = keys[start:]
        for group, members in groupby(chosen, key=lambda key: key[:2]):
            yield group, [(key, hosts[key]) for key in members]

    def _refresh_host(self, gpu: GpuRecord) -> None:
        self._index_host(gpu, self._host_key(gpu))

    def leave_out(self, gpu: GpuRecord) -> None:
        """Keep a GPU out of the index of hosts until something happens to it."""
        self._index_host(gpu, None)

    def _index_host(self, gpu: GpuRecord, new: HostKey | None) -> None:
        old = gpu.host_key
        if old == new:
            return
        gpu_type = gpu.spec.gpu_type
        hosts = self._hosts.setdefault(gpu_type, {})
        keys = self._host_keys.setdefault(gpu_type, [])
        pool = gpu.node.pools[gpu_type]
        if old is not None:
            pool.host_count -= 1
            names = hosts[old]
            names.remove(gpu.key)
            if not names:
                del hosts[old]
                keys.remove(old)
        gpu.host_key = new
        if new is not None:
            pool.host_count += 1
            if new not in hosts:
                hosts[new] = []
                insort(keys, new)
            insort(hosts[new], gpu.key)
            self.changed_seq += 1
            gpu.changed_seq = self.changed_seq

    def _host_key(self, gpu: GpuRecord) -> HostKey | None:
        residents = gpu.residents
        if (
            not residents
            or gpu.locks
            or len(residents) >= self._rules.max_degree
            or not gpu.up
            or not gpu.node.usable
            or gpu.foreign
            or not all(self._open(job, gpu.spec.gpu_type) for job in residents)
        ):
            return None
        numbers = tuple(sorted(job.kind.number for job in residents))
        util = util_ratio(gpu)
        mem_bytes = -1 if gpu.spec.mem_bytes is None else gpu.spec.mem_bytes
        known, order = (1, 0.0) if util is None else (0, -util)
        return known, order, numbers, mem_bytes

    def _open(self, job: JobRecord, gpu_type: str) -> bool:
        """Tell whether a resident lets anyone join: R2, and R13 for unknown memory."""
        if job.unknown or job.exclusive(self._rules.exclusive_priority):
            return False
        if job.state not in _JOINABLE:
            return False
        if job.solo_epoch_s(gpu_type) is None:
            return False
        if self._evidence.peak_mem_bytes(gpu_type, job.kind) is None:
            return job.epochs_this_attempt > 0
        return True


_JOINABLE = frozenset({JobState.STARTING, JobState.SETTLED})


def util_ratio(gpu: GpuRecord) -> float | None:
    """Give u_g of R2: the higher of the mean reading and the sum of the residents' solo means."""
    total = solo_sum(gpu)
    if total is None:
        return gpu.util_reading
    return total if gpu.util_reading is None else max(total, gpu.util_reading)


def solo_sum(gpu: GpuRecord) -> float | None:
    """Give the sum of the residents' solo utilisations, None if one is unknown."""
    utils: list[float] = []
    for job in gpu.residents:
        profile = job.kind.profiles.get(gpu.spec.gpu_type)
        if profile is None or profile.util_ratio is None:
            return None
        utils.append(profile.util_ratio)
    # Sorted, so that the same residents give the same float in whatever order they came.
    return sum(sorted(utils))


def mem_busy_ratio(gpu: GpuRecord) -> float | None:
    """Give the sum of the residents' solo memory-busy means, None if one is unknown."""
    busy: list[float] = []
    for job in gpu.residents:
        profile = job.kind.profiles.get(gpu.spec.gpu_type)
        if profile is None or profile.mem_busy_ratio is None:
            return None
        busy.append(profile.mem_busy_ratio)
    return sum(sorted(busy))
