"""FindCandidates: which GPU sets may a job share? (R2-R4; arXiv 2412.08294, Algorithm 2).

"All subsets" is replaced by an index. Sets come lazily, highest mean utilisation
first, sets with an unknown utilisation last, ties by node id and then GPU id; and
GPUs of one node with the same residents stand for each other.
"""

from __future__ import annotations

import heapq
from itertools import combinations, islice
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field, frozen

from eaco_core._ledger import WAIT_RANK, mem_busy_ratio, util_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eaco_core._ledger import GpuKey
    from eaco_core._records import GpuRecord, HostKey, JobKind, JobRecord, PoolRecord
    from eaco_core.rules import Rules
    from eaco_core.view import View

SetOrder = tuple[int, float]
MAX_SPREAD_SETS = 64
STALE = ("R2", "its last reading is too old")


@frozen(eq=False)
class Candidate:
    """A GPU set on which a job would share. `util_ratio` = mean of u_g before it joins."""

    gpus: tuple[GpuRecord, ...]
    util_ratio: float | None


@define(eq=False)
class Refusals:
    """Counts why sets were refused, by rule and reason, for `eaco explain`."""

    counts: dict[tuple[str, str], int] = field(factory=dict[tuple[str, str], int])
    timely: bool = False

    def add(self, rule: str, reason: str, *, timely: bool = False) -> None:
        """Count one more; `timely` = time alone may change it."""
        self.counts[rule, reason] = self.counts.get((rule, reason), 0) + 1
        self.timely = self.timely or timely


def mem_limit_bytes(gpu: GpuRecord, rules: Rules) -> int | None:
    """Give how much of the GPU's memory may be used: capacity - headroom (R2)."""
    capacity = gpu.spec.mem_bytes
    if capacity is None:
        return None
    return capacity - max(rules.headroom_bytes, int(rules.headroom_ratio * capacity))


def mem_needed_bytes(gpu: GpuRecord, newcomer: JobRecord, view: View) -> int | None:
    """Give the sum of peak memory with the newcomer; None if one peak is unknown."""
    total = 0
    for job in (*gpu.residents, newcomer):
        peak = view.evidence.peak_mem_bytes(gpu.spec.gpu_type, job.kind)
        if peak is None:
            return None
        total += peak
    return total


def has_evidence(gpu: GpuRecord, kind: JobKind, view: View) -> bool:
    """Tell whether the set that would result has run cleanly before (R2)."""
    names = tuple(sorted([kind.workload, *(job.kind.workload for job in gpu.residents)]))
    return view.evidence.has_run(gpu.spec.gpu_type, names)


_GateKey = tuple["HostKey | None", str, int | None, float | None]


class Gate:
    """The gates of R2 for one newcomer, remembered by what a GPU's residents are."""

    def __init__(self, job: JobRecord, view: View) -> None:
        self._job = job
        self._view = view
        self._known: dict[_GateKey, tuple[str, str] | None] = {}

    def refusal(self, gpu: GpuRecord) -> tuple[str, str] | None:
        """Give (rule, reason) why a shared set may not have this host or free GPU, or None."""
        reading = gpu.util_reading if gpu.host_key is None else None
        key = (gpu.host_key, gpu.spec.gpu_type, gpu.spec.mem_bytes, reading)
        if key not in self._known:
            self._known[key] = self._check(gpu)
        found = self._known[key]
        return self._stale(gpu) if found is None else found

    def _check(self, gpu: GpuRecord) -> tuple[str, str] | None:
        rules, kind = self._view.rules, self._job.kind
        for resident in gpu.residents:
            if not (kind.accepts(resident.kind) and resident.kind.accepts(kind)):
                return "R2", "a job there may not share with this one"
        util, busy = util_ratio(gpu), mem_busy_ratio(gpu)
        if util is None and not has_evidence(gpu, kind, self._view):
            return "R2", "utilisation was never measured"
        if util is not None and util >= rules.util_threshold_ratio:
            return "R2", "GPU utilisation is at the threshold"
        if busy is None and not has_evidence(gpu, kind, self._view):
            return "R2", "memory-busy was never measured"
        if busy is not None and busy >= rules.mem_busy_threshold_ratio:
            return "R2", "memory-busy is at the threshold"
        needed = mem_needed_bytes(gpu, self._job, self._view)
        limit = mem_limit_bytes(gpu, rules)
        if needed is None or limit is None:
            if has_evidence(gpu, kind, self._view):
                return None
            return "R2", "peak memory is not known"
        return ("R2", "memory would not suffice") if needed > limit else None

    def _stale(self, gpu: GpuRecord) -> tuple[str, str] | None:
        if not gpu.node.reports:
            return None
        newest = gpu.readings[-1].received_s if gpu.readings else float("-inf")
        if self._view.now_s - newest > self._view.rules.sample_max_age_s:
            return STALE
        return None


def find_candidates(
    job: JobRecord,
    view: View,
    *,
    since_seq: int = 0,
    refusals: Refusals | None = None,
    gate: Gate | None = None,
    part_refusal: PartRefusal | None = None,
) -> Iterator[Candidate]:
    """Give the sets on which `job` passes the gates of R2, in the order of R4.

    Only sets with a GPU that gained room after `since_seq` are given (0 = all).
    Deadlines, and whether sharing pays, are not looked at here: see `admission`. But
    for gangs, `part_refusal` may say why a GPU, or a node, could be in no set at all;
    what it says of a part must hold for every set with that part. A gang that spans
    nodes is offered the first MAX_SPREAD_SETS sets only.
    """
    gate = Gate(job, view) if gate is None else gate
    noted = Refusals() if refusals is None else refusals
    parts = _Parts(gate, noted, part_refusal)
    streams: list[Iterator[Ranked]] = []
    for gpu_type in view.gpu_types(job):
        if job.solo_epoch_s(gpu_type) is None:
            noted.add("R5", f"its epoch time alone on {gpu_type} is not known")
            continue
        size = view.ledger.pool_sizes[gpu_type]
        if job.spec.gpus == 1:
            streams.append(_single(job, view, gpu_type, parts, since_seq))
        elif job.spec.gpus <= size:
            streams.append(_on_one_node(job, view, gpu_type, parts, since_seq))
        else:
            streams.append(_on_many_nodes(job, view, gpu_type, parts, since_seq))
    if len(streams) == 1:
        yield from (candidate for _, candidate in streams[0])
    else:
        merged = heapq.merge(*streams, key=lambda item: item[0])
        yield from (candidate for _, candidate in merged)


PartRefusal: TypeAlias = "Callable[[tuple[GpuRecord, ...]], tuple[str, str, bool] | None]"
_Alike = tuple[float | None, tuple[str, ...]]
_Rank = tuple[SetOrder, tuple["GpuKey", ...]]
Ranked = tuple[_Rank, Candidate]
# Which whole nodes, and which remainder, by their places in the lists of parts.
_Choice = tuple[tuple[int, ...], int]


def _single(
    job: JobRecord, view: View, gpu_type: str, parts: _Parts, since_seq: int
) -> Iterator[Ranked]:
    ledger, gate, noted = view.ledger, parts.gate, parts.noted
    threshold = (0, -view.rules.util_threshold_ratio)
    for order, buckets in ledger.host_groups(gpu_type, threshold):
        passing: list[list[GpuKey]] = []
        for _, keys in buckets:
            refusal = gate.refusal(ledger.gpus[keys[0][1]])
            if refusal is None or refusal is STALE:
                passing.append(list(keys))
            else:
                noted.add(*refusal)
        keys = passing[0] if len(passing) == 1 else list(heapq.merge(*passing))
        util = None if order[0] else -order[1]
        for key in keys:
            gpu = ledger.gpus[key[1]]
            if gpu.changed_seq <= since_seq or not view.suits(job, gpu.node):
                continue
            refusal = gate.refusal(gpu)
            if refusal is not None:
                noted.add(*refusal)
                continue
            yield (order, (key,)), Candidate((gpu,), util)


class _Parts:
    """Which GPUs, and which whole nodes, may be part of a shared set of a gang."""

    def __init__(self, gate: Gate, noted: Refusals, refusal: PartRefusal | None) -> None:
        self.gate = gate
        self.noted = noted
        self._refusal = refusal

    def gpus(self, pool: PoolRecord) -> tuple[list[GpuRecord], bool]:
        """Give the GPUs of a pool that pass, and whether a host is among them."""
        chosen: list[GpuRecord] = []
        any_host = False
        passed: dict[tuple[int, ...], bool] = {}
        for gpu in pool.gpus:
            if gpu.host_key is not None:
                alike = tuple(id(resident) for resident in gpu.residents)
                if self.gate.refusal(gpu) is None and alike not in passed:
                    passed[alike] = self.suits((gpu,))
                refusal = self.gate.refusal(gpu)
                if refusal is not None:
                    self.noted.add(*refusal)
                elif passed[alike]:
                    chosen.append(gpu)
                    any_host = True
            elif not gpu.residents and gpu.up and not gpu.foreign:
                refusal = self.gate.refusal(gpu)
                if refusal is None:
                    chosen.append(gpu)
                else:
                    self.noted.add(*refusal)
        return chosen, any_host

    def suits(self, gpus: tuple[GpuRecord, ...]) -> bool:
        """Tell whether these GPUs together may be part of a set."""
        if self._refusal is None or not any(gpu.residents for gpu in gpus):
            return True
        refused = self._refusal(gpus)
        if refused is not None:
            self.noted.add(refused[0], refused[1], timely=refused[2])
        return refused is None


def _changed_since(pool: PoolRecord, since_seq: int, view: View) -> bool:
    if view.ledger.free_seq > since_seq:
        return True
    return any(gpu.changed_seq > since_seq for gpu in pool.gpus)


def _util(gpu: GpuRecord) -> float | None:
    """Give u_g of a host or a free GPU, from what the ledger has computed already."""
    key = gpu.host_key
    if key is not None:
        return None if key[0] else -key[1]
    return gpu.util_reading or 0.0


def _rank(gpus: tuple[GpuRecord, ...]) -> _Rank:
    utils = [_util(gpu) for gpu in gpus]
    known = [util for util in utils if util is not None]
    order = (0, -sum(known) / len(known)) if len(known) == len(utils) else (1, 0.0)
    return order, tuple(gpu.key for gpu in gpus)


def _on_one_node(
    job: JobRecord, view: View, gpu_type: str, parts: _Parts, since_seq: int
) -> Iterator[Ranked]:
    """Best first over nodes: a node is opened only when no better set can come before it."""
    wanted = job.spec.gpus
    heap: list[tuple[_Rank, int, Candidate | list[GpuRecord]]] = []
    for number, pool in enumerate(_pools(view, gpu_type)):
        if pool.host_count == 0 or pool.host_count + pool.free_count < wanted:
            continue
        if not view.suits(job, pool.node) or not _changed_since(pool, since_seq, view):
            continue
        gpus, any_host = parts.gpus(pool)
        if any_host and len(gpus) >= wanted:
            utils = [_util(gpu) for gpu in gpus]
            best = sorted(-u for u in utils if u is not None)[:wanted]
            order = (0, sum(best) / wanted) if len(best) == wanted else (1, 0.0)
            # An empty key tuple sorts before every set of the same utilisation.
            heap.append(((order, ()), number, gpus))
    heapq.heapify(heap)
    while heap:
        rank, number, item = heapq.heappop(heap)
        if isinstance(item, Candidate):
            yield rank, item
            continue
        for gpus_of_set in _distinct_sets(item, wanted):
            if not any(gpu.residents for gpu in gpus_of_set):
                continue
            set_rank = _rank(gpus_of_set)
            util = None if set_rank[0][0] else -set_rank[0][1]
            heapq.heappush(heap, (set_rank, number, Candidate(gpus_of_set, util)))


def _distinct_sets(gpus: list[GpuRecord], wanted: int) -> Iterator[tuple[GpuRecord, ...]]:
    """Give every set that differs in its residents.

    GPUs with the same residents stand for each other: those with lower ids go first.
    """
    alike: dict[_Alike, int] = {}
    rank_in_group: list[tuple[_Alike, int]] = []
    for gpu in gpus:
        who = (gpu.util_reading, tuple(sorted(job.spec.job_id for job in gpu.residents)))
        rank_in_group.append((who, alike.get(who, 0)))
        alike[who] = alike.get(who, 0) + 1
    if len(alike) == 1:
        yield tuple(gpus[:wanted])
        return
    for places in combinations(range(len(gpus)), wanted):
        taken: dict[_Alike, int] = {}
        for place in places:
            who, position = rank_in_group[place]
            if position != taken.get(who, 0):
                break
            taken[who] = position + 1
        else:
            yield tuple(gpus[place] for place in places)


def _pools(view: View, gpu_type: str) -> Iterator[PoolRecord]:
    for node_id in sorted(view.ledger.nodes):
        pool = view.ledger.nodes[node_id].pools.get(gpu_type)
        if pool is not None:
            yield pool


def _on_many_nodes(
    job: JobRecord, view: View, gpu_type: str, parts: _Parts, since_seq: int
) -> Iterator[Ranked]:
    """Best first over choices of whole nodes, and of a remainder on one more (R3)."""
    size = view.ledger.pool_sizes[gpu_type]
    whole, rest = divmod(job.spec.gpus, size)
    wholes: list[tuple[GpuRecord, ...]] = []
    rests: list[tuple[GpuRecord, ...]] = [] if rest else [()]
    changed = False
    for pool in _pools(view, gpu_type):
        room = pool.host_count + pool.free_count
        if room < (rest or size) or not view.suits(job, pool.node):
            continue
        gpus, _ = parts.gpus(pool)
        changed = changed or _changed_since(pool, since_seq, view)
        if len(gpus) == size and parts.suits(tuple(gpus)):
            wholes.append(tuple(gpus))
        if rest and len(gpus) >= rest:
            rests += _distinct_sets(gpus, rest)
    wholes, rests = _few_idle(wholes, whole + 1), _few_idle(rests, whole + 1)
    if not changed or len(wholes) < whole:
        return
    wholes.sort(key=_rank)
    rests.sort(key=_rank_or_empty)
    yield from islice(_best_first(wholes, rests, whole), MAX_SPREAD_SETS)


def _few_idle(parts: list[tuple[GpuRecord, ...]], limit: int) -> list[tuple[GpuRecord, ...]]:
    """Keep all parts with residents, and of the idle ones those that are awake first.

    Idle nodes only fill up a set; one set never needs more of them than `limit`.
    """
    hosts = [gpus for gpus in parts if any(gpu.residents for gpu in gpus) or not gpus]
    idle = [gpus for gpus in parts if gpus and not any(gpu.residents for gpu in gpus)]
    idle.sort(key=lambda gpus: (WAIT_RANK[gpus[0].node.state], gpus[0].key))
    return hosts + idle[:limit]


def _rank_or_empty(gpus: tuple[GpuRecord, ...]) -> _Rank:
    return _rank(gpus) if gpus else ((0, 0.0), ())


def _best_first(
    wholes: list[tuple[GpuRecord, ...]], rests: list[tuple[GpuRecord, ...]], whole: int
) -> Iterator[Ranked]:
    if not rests:
        return

    def gpus_of(choice: _Choice) -> tuple[GpuRecord, ...]:
        gpus = [gpu for index in choice[0] for gpu in wholes[index]]
        return (*gpus, *rests[choice[1]])

    first: _Choice = (tuple(range(whole)), 0)
    heap: list[tuple[_Rank, _Choice]] = [(_rank(gpus_of(first)), first)]
    seen: set[_Choice] = {first}
    while heap:
        rank, choice = heapq.heappop(heap)
        gpus = gpus_of(choice)
        distinct = len({gpu.spec.gpu_id for gpu in gpus}) == len(gpus)
        apart = not rests[choice[1]] or rests[choice[1]][0].node not in {
            wholes[index][0].node for index in choice[0]
        }
        if distinct and apart and any(gpu.residents for gpu in gpus):
            yield rank, Candidate(gpus, None if rank[0][0] else -rank[0][1])
        for following in _successors(choice, len(wholes), len(rests)):
            if following not in seen:
                seen.add(following)
                heapq.heappush(heap, (_rank(gpus_of(following)), following))


def _successors(
    choice: tuple[tuple[int, ...], int], wholes: int, rests: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    indexes, rest = choice
    for place, index in enumerate(indexes):
        limit = indexes[place + 1] if place + 1 < len(indexes) else wholes
        if index + 1 < limit:
            yield (*indexes[:place], index + 1, *indexes[place + 1 :]), rest
    if rest + 1 < rests:
        yield indexes, rest + 1
