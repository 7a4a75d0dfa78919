"""Where should the first job of a pass go? By brute force, from the rules alone.

Independent of the scheduler: it looks at a snapshot, enumerates every set of GPUs of the
right size and shape, and applies R2-R7 and the memory of undos (R10) as they are
written. It keeps its own books on observations, undone sets and the locks of undos,
from the records of each step. Only for small clusters, and without telemetry, priorities
that reserve (R11) or exploration.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field, frozen

from eaco_core.cluster import NodeState
from eaco_core.decisions import Verdict
from eaco_core.effects import RecordObservation, WakeNode
from eaco_core.jobs import JobState, ShareWith

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eaco_core.cluster import GpuSpec, NodeSpec
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.jobs import JobSpec
    from eaco_core.ports import PowerModel
    from eaco_core.snapshot import JobSnapshot, SchedulerState

Names: TypeAlias = tuple[str, ...]
# Node id, and for each of its GPUs in the set who is there: GPUs alike stand for each other.
Shape: TypeAlias = tuple[tuple[str, tuple[Names, ...]], ...]
NO_BOUND = float("inf")
_USABLE = (NodeState.AWAKE, NodeState.WAKING, NodeState.ASLEEP)


@define
class Memory:
    """What the oracle remembers of the run so far."""

    ratios: dict[tuple[str, str, Names], list[float]] = field(
        factory=dict["tuple[str, str, Names]", "list[float]"]
    )
    undone: dict[tuple[str, str, Names], float] = field(
        factory=dict["tuple[str, str, Names]", float]
    )
    locks: dict[str, frozenset[str]] = field(factory=dict[str, "frozenset[str]"])
    awake_s: dict[str, float] = field(factory=dict[str, float])

    def note(
        self,
        before: SchedulerState,
        after: SchedulerState,
        effects: Iterable[Effect],
        records: Iterable[Record],
    ) -> None:
        """Take in one step of the scheduler."""
        for effect in effects:
            if isinstance(effect, RecordObservation):
                seen = effect.observation
                key = (seen.gpu_type, seen.workload, tuple(sorted(seen.co_workloads)))
                self.ratios.setdefault(key, []).append(seen.ratio)
            elif isinstance(effect, WakeNode):
                wake_s = after.nodes[effect.node_id][0].wake_s
                self.awake_s[effect.node_id] = after.now_s + wake_s
        for record in records:
            if isinstance(record, Verdict) and not record.keep:
                self._note_undo(before, record)
        # The locks of a window stay until its newcomer, undone or ended, has left its GPUs.
        for window in before.windows:
            if after.jobs[window.newcomer_id].state is JobState.STOPPING:
                self.locks[window.newcomer_id] = frozenset(window.locked_gpus)
        for job_id in list(self.locks):
            if after.jobs[job_id].state is not JobState.STOPPING:
                del self.locks[job_id]

    def _note_undo(self, before: SchedulerState, record: Verdict) -> None:
        cluster = _Cluster(before, self)
        newcomer = before.jobs[record.job_id]
        residents = [before.jobs[seen.job_id] for seen in record.evidence]
        others = [job for job in residents if job.job.job_id != record.job_id]
        alive = {job.job.job_id for job in residents}
        bounds = [
            cluster.bound_of(job, job.gpus, extra=None, only=alive) for job in (newcomer, *others)
        ]
        gpu_type = before.gpus[newcomer.gpus[0]].gpu.gpu_type
        names = tuple(sorted(job.job.workload or "" for job in others))
        self.undone[gpu_type, newcomer.job.workload or "", names] = max(bounds)


@frozen
class Answer:
    """What should happen: all sets that are equally right, none = the job has to wait."""

    shared: bool
    shapes: frozenset[Shape]


def decide(
    state: SchedulerState, job_id: str, memory: Memory, power: PowerModel | None = None
) -> Answer:
    """Say where a queued job should be placed now, if it is the first that is looked at."""
    cluster = _Cluster(state, memory)
    job = state.jobs[job_id]
    idle = _best_idle(cluster, job)
    if not job.exclusive:
        best: tuple[tuple[int, float], set[Shape]] | None = None
        for gpus in cluster.sets(job.job, idle_only=False):
            order = cluster.order(gpus)
            if best is not None and order > best[0]:
                continue
            if cluster.admits(job, gpus) and _pays(cluster, job, gpus, idle, power):
                if best is None or order < best[0]:
                    best = order, set()
                best[1].add(cluster.shape(gpus))
        if best is not None:
            return Answer(shared=True, shapes=frozenset(best[1]))
    return Answer(shared=False, shapes=frozenset(cluster.shape(gpus) for gpus in idle))


class _Cluster:
    """A snapshot, with what the rules ask about it."""

    def __init__(self, state: SchedulerState, memory: Memory) -> None:
        self.state = state
        self.memory = memory
        self.rules = state.rules
        self.locked = {g for window in state.windows for g in window.locked_gpus}
        for gpus in memory.locks.values():
            self.locked |= gpus

    # ---- sets (R3) -----------------------------------------------------------------

    def sets(self, job: JobSpec, *, idle_only: bool) -> Iterator[tuple[str, ...]]:
        """Give every set of the right size and shape with a resident, or of idle GPUs only."""
        types = {gpu.gpu.gpu_type for gpu in self.state.gpus.values()}
        for gpu_type in sorted(types):
            if job.gpu_types is not None and gpu_type not in job.gpu_types:
                continue
            pools: list[list[str]] = []
            size = 0
            for node_id, (node, node_state) in sorted(self.state.nodes.items()):
                count = sum(gpu.gpu_type == gpu_type for gpu in node.gpus)
                size = max(size, count)
                if self._suits(job, node, node_state):
                    pools.append(self._usable(job, node_id, gpu_type, idle_only=idle_only))
            for gpus in _of_shape(pools, job.gpus, size):
                if idle_only or any(self.residents(gpu) for gpu in gpus):
                    yield gpus

    def _suits(self, job: JobSpec, node: NodeSpec, state: NodeState) -> bool:
        drained = any(self.state.gpus[gpu.gpu_id].drained for gpu in node.gpus)
        return state in _USABLE and not drained and set(job.node_selector) <= set(node.labels)

    def _usable(self, job: JobSpec, node_id: str, gpu_type: str, *, idle_only: bool) -> list[str]:
        found: list[str] = []
        for gpu_id, gpu in sorted(self.state.gpus.items()):
            if gpu.node_id != node_id or gpu.gpu.gpu_type != gpu_type or not gpu.up:
                continue
            if gpu.residents and (idle_only or not self.passes(job, gpu_id)):
                continue
            alone = idle_only or not gpu.residents
            if alone and not self._fits(job, gpu.gpu, shared_set=not idle_only):
                continue
            found.append(gpu_id)
        return found

    def _fits(self, job: JobSpec, gpu: GpuSpec, *, shared_set: bool) -> bool:
        peak = _peak(job, gpu.gpu_type)
        if shared_set:
            if peak is None or gpu.mem_bytes is None:
                return self._has_run(gpu.gpu_type, [job])
            return peak <= self._limit(gpu)
        return peak is None or gpu.mem_bytes is None or peak <= gpu.mem_bytes

    # ---- gates (R2) ----------------------------------------------------------------

    def residents(self, gpu_id: str) -> list[JobSnapshot]:
        """Give who holds a GPU."""
        return [self.state.jobs[job_id] for job_id in self.state.gpus[gpu_id].residents]

    def _limit(self, gpu: GpuSpec) -> float:
        mem = gpu.mem_bytes or 0
        return mem - max(self.rules.headroom_bytes, int(self.rules.headroom_ratio * mem))

    def passes(self, job: JobSpec, gpu_id: str) -> bool:
        """Tell whether a job may join on a GPU that has residents, by the gates alone."""
        gpu, residents = self.state.gpus[gpu_id], self.residents(gpu_id)
        gpu_type = gpu.gpu.gpu_type
        if gpu_id in self.locked or len(residents) >= self.rules.max_degree:
            return False
        for resident in residents:
            if resident.state not in {JobState.STARTING, JobState.SETTLED} or resident.exclusive:
                return False
            if not (_accepts(job, resident.job) and _accepts(resident.job, job)):
                return False
            if _epoch_s(resident.job, gpu_type) is None:
                return False
        if _epoch_s(job, gpu_type) is None:
            return False
        util = _sum(_util(resident.job, gpu_type) for resident in residents)
        busy = _sum(_busy(resident.job, gpu_type) for resident in residents)
        peak = _sum(_peak(each, gpu_type) for each in (job, *(r.job for r in residents)))
        evidence = self._has_run(gpu_type, [job, *(r.job for r in residents)])
        if any(_peak(r.job, gpu_type) is None and not r.epochs_done for r in residents):
            return False
        if util is None or busy is None or peak is None or gpu.gpu.mem_bytes is None:
            known_fine = (
                (util is None or util < self.rules.util_threshold_ratio)
                and (busy is None or busy < self.rules.mem_busy_threshold_ratio)
                and (peak is None or gpu.gpu.mem_bytes is None or peak <= self._limit(gpu.gpu))
            )
            return evidence and known_fine
        return (
            util < self.rules.util_threshold_ratio
            and busy < self.rules.mem_busy_threshold_ratio
            and peak <= self._limit(gpu.gpu)
        )

    def _has_run(self, gpu_type: str, jobs: list[JobSpec]) -> bool:
        names = tuple(sorted(job.workload or "" for job in jobs))
        for seen_type, workload, co in self.memory.ratios:
            if seen_type == gpu_type and _contains(tuple(sorted((workload, *co))), names):
                return True
        return False

    # ---- bounds (R5) and admission (R6, R8, R10) -------------------------------------

    def bound(self, gpu_type: str, affected: JobSpec, co: list[JobSpec]) -> float:
        """Give the upper bound of one job beside others on one GPU."""
        if not co:
            return 1.0
        if affected.workload is None or any(job.workload is None for job in co):
            return NO_BOUND
        names = tuple(sorted(job.workload or "" for job in co))
        floor, above = 0.0, NO_BOUND
        for (seen_type, workload, beside), ratios in self.memory.ratios.items():
            if (seen_type, workload) == (gpu_type, affected.workload):
                worst = max(ratios[-20:])
                if _contains(names, beside):
                    floor = max(floor, worst)
                if _contains(beside, names):
                    above = min(above, worst)
        util = _sum(_util(job, gpu_type) for job in (affected, *co))
        profiled = all(job.profile_on(gpu_type) is not None for job in (affected, *co))
        law = NO_BOUND
        if util is not None and profiled:
            law = self.rules.law_margin * max(1.0, util)
        best = min(self.rules.observed_margin * above, law)
        return max(1.0, self.rules.observed_margin * floor, best)

    def bound_of(
        self,
        job: JobSnapshot,
        gpus: tuple[str, ...],
        *,
        extra: tuple[JobSpec, frozenset[str]] | None,
        only: set[str] | None = None,
    ) -> float:
        """Give the bound on its worst GPU; `extra` joins on some, `only` are still there."""
        worst = 1.0
        for gpu_id in gpus:
            here = [r for r in self.residents(gpu_id) if r.job.job_id != job.job.job_id]
            co = [r.job for r in here if only is None or r.job.job_id in only]
            if extra is not None and gpu_id in extra[1]:
                co.append(extra[0])
            worst = max(worst, self.bound(self.state.gpus[gpu_id].gpu.gpu_type, job.job, co))
        return worst

    def affected(self, gpus: tuple[str, ...]) -> list[JobSnapshot]:
        """Give the residents of a set, each once."""
        found: dict[str, JobSnapshot] = {}
        for gpu_id in gpus:
            found.update({job.job.job_id: job for job in self.residents(gpu_id)})
        return list(found.values())

    def start_s(self, gpus: tuple[str, ...]) -> float:
        """Give when a job can start there, if every sleeping node is woken now."""
        start_s = self.state.now_s
        for gpu_id in gpus:
            node, state = self.state.nodes[self.state.gpus[gpu_id].node_id]
            if state is NodeState.ASLEEP:
                start_s = max(start_s, self.state.now_s + node.wake_s)
            elif state is NodeState.WAKING:
                start_s = max(start_s, self.memory.awake_s[node.node_id])
        return start_s

    def admits(self, job: JobSnapshot, gpus: tuple[str, ...]) -> bool:
        """Tell whether nobody's deadline or limit is in danger, and it was not undone (R10)."""
        extra = (job.job, frozenset(gpus))
        residents = self.affected(gpus)
        gpu_type = self.state.gpus[gpus[0]].gpu.gpu_type
        newcomer = self.bound_of(job, gpus, extra=None)
        bounds = [newcomer, *(self.bound_of(r, r.gpus, extra=extra) for r in residents)]
        if NO_BOUND in bounds:
            return False
        names = tuple(sorted(r.job.workload or "" for r in residents))
        undone = self.memory.undone.get((gpu_type, job.job.workload or "", names))
        if undone is not None and max(bounds) >= undone * (1 - 1e-9):
            return False
        starts = [self.start_s(gpus)]
        for resident in residents:
            waits = resident.state is JobState.STARTING
            starts.append(self.start_s(resident.gpus) if waits else self.state.now_s)
        return all(
            self._holds(each, bound, start_s, gpu_type)
            for each, bound, start_s in zip((job, *residents), bounds, starts, strict=True)
        )

    def _holds(self, job: JobSnapshot, bound: float, start_s: float, gpu_type: str) -> bool:
        left_s, deadline_s = left_of(job, gpu_type), job.job.deadline_s
        if deadline_s is None or self.state.now_s + left_s > deadline_s:
            limit = job.job.max_slowdown_ratio
            return bound <= (self.rules.max_slowdown_ratio if limit is None else limit)
        return start_s + bound * left_s <= deadline_s

    # ---- order (R4) ----------------------------------------------------------------

    def order(self, gpus: tuple[str, ...]) -> tuple[int, float]:
        """Give the sort key of a set: highest mean utilisation first, unknown last."""
        utils = [
            _sum(_util(r.job, self.state.gpus[g].gpu.gpu_type) for r in self.residents(g))
            for g in gpus
        ]
        known = [util for util in utils if util is not None]
        if len(known) < len(utils):
            return 1, 0.0
        return 0, -round(sum(known) / len(known), 9)

    def shape(self, gpus: tuple[str, ...]) -> Shape:
        """Give what distinguishes a set from others: nodes, and who is there."""
        nodes: dict[str, list[Names]] = {}
        for gpu_id in gpus:
            gpu = self.state.gpus[gpu_id]
            nodes.setdefault(gpu.node_id, []).append(tuple(sorted(gpu.residents)))
        return tuple((node_id, tuple(sorted(here))) for node_id, here in sorted(nodes.items()))


def _of_shape(pools: list[list[str]], wanted: int, size: int) -> Iterator[tuple[str, ...]]:
    """Give every choice of GPUs on one node, or of whole nodes and a rest on one more (R3)."""
    if wanted <= size:
        for pool in pools:
            yield from combinations(pool, wanted)
        return
    whole, rest = divmod(wanted, size)
    full = [index for index, pool in enumerate(pools) if len(pool) == size]
    for chosen in combinations(full, whole):
        gpus = tuple(gpu for index in chosen for gpu in pools[index])
        if not rest:
            yield gpus
        for index, pool in enumerate(pools):
            if rest and index not in chosen:
                for more in combinations(pool, rest):
                    yield (*gpus, *more)


def _best_idle(cluster: _Cluster, job: JobSnapshot) -> list[tuple[str, ...]]:
    """Give the idle sets that are best: awake first, then the node with fewest free GPUs."""
    state = cluster.state
    ranked: dict[tuple[int, int, str], list[tuple[str, ...]]] = {}
    anywhere: list[tuple[str, ...]] = []
    for gpus in cluster.sets(job.job, idle_only=True):
        nodes = {state.gpus[gpu_id].node_id for gpu_id in gpus}
        if len(nodes) > 1:
            anywhere.append(gpus)
            continue
        (node_id,) = nodes
        gpu_type = state.gpus[gpus[0]].gpu.gpu_type
        free = sum(
            1
            for gpu in state.gpus.values()
            if gpu.node_id == node_id
            and gpu.gpu.gpu_type == gpu_type
            and gpu.up
            and not gpu.residents
        )
        rank = _USABLE.index(state.nodes[node_id][1])
        ranked.setdefault((rank, free, node_id), []).append(gpus)
    return ranked[min(ranked)] if ranked else anywhere


# ---- energy (R7) ---------------------------------------------------------------------


def _pays(
    cluster: _Cluster,
    job: JobSnapshot,
    gpus: tuple[str, ...],
    idle: list[tuple[str, ...]],
    power: PowerModel | None,
) -> bool:
    """Tell whether sharing draws less than the best exclusive alternative."""
    extra = (job.job, frozenset(gpus))
    residents = cluster.affected(gpus)
    gpu_type = cluster.state.gpus[gpus[0]].gpu.gpu_type
    bounds = [
        cluster.bound_of(job, gpus, extra=None),
        *(cluster.bound_of(r, r.gpus, extra=extra) for r in residents),
    ]
    utils = [_util(each.job, gpu_type) for each in (job, *residents)]
    if power is None or None in utils:
        return sum(1 / bound for bound in bounds) >= cluster.rules.min_throughput_sum
    new_end_s = bounds[0] * left_of(job, gpu_type)
    now: list[_Span] = []
    then: list[_Span] = [_Span(new_end_s, gpus, utils[0] or 0.0)]
    for resident, bound, util in zip(residents, bounds[1:], utils[1:], strict=True):
        left_s, bound_now = (
            left_of(resident, gpu_type),
            cluster.bound_of(resident, resident.gpus, extra=None),
        )
        end_s = bound * left_s
        if end_s > new_end_s:  # alone again, as now, once the newcomer has ended
            end_s = new_end_s + (left_s - new_end_s / bound) * bound_now
        now.append(_Span(bound_now * left_s, resident.gpus, util or 0.0))
        then.append(_Span(end_s, resident.gpus, util or 0.0))
    ids = {resident.job.job_id for resident in residents}
    nodes = {cluster.state.gpus[g].node_id for span in then for g in span.gpus}
    extra_j = sum(
        _energy_j(cluster, node_id, then, ids, power) - _energy_j(cluster, node_id, now, ids, power)
        for node_id in nodes
    )
    extra_j += _waking_j(cluster, gpus, power)
    where, gone = (idle[0], set[str]()) if idle else (gpus, ids)
    where_type = cluster.state.gpus[where[0]].gpu.gpu_type
    alone_s = left_of(job, where_type) or left_of(job, gpu_type)
    alone = [_Span(alone_s, where, utils[0] or 0.0)]
    alone_j = _waking_j(cluster, where, power)
    for node_id in {cluster.state.gpus[g].node_id for g in where}:
        alone_j += _energy_j(cluster, node_id, alone, gone, power)
    return extra_j < alone_j


@frozen
class _Span:
    """A job holds these GPUs from now until `end_s` from now."""

    end_s: float
    gpus: tuple[str, ...]
    util: float


def _energy_j(
    cluster: _Cluster, node_id: str, spans: list[_Span], gone: set[str], power: PowerModel
) -> float:
    """Integrate what a node draws with these jobs beside who is not `gone`, less without them."""
    here = [span for span in spans if any(_on(cluster, g, node_id) for g in span.gpus)]
    total, start_s = 0.0, 0.0
    for end_s in sorted({span.end_s for span in here}):
        alive = [span for span in here if span.end_s >= end_s]
        watts = _node_w(cluster, node_id, alive, gone, power)
        total += (watts - _node_w(cluster, node_id, [], gone, power)) * (end_s - start_s)
        start_s = end_s
    return total


def _node_w(
    cluster: _Cluster, node_id: str, spans: list[_Span], gone: set[str], power: PowerModel
) -> float:
    """Give the power of a node; empty it sleeps, if it can."""
    node, _ = cluster.state.nodes[node_id]
    bookings = 0
    watts = 0.0
    for gpu in node.gpus:
        stay = [r for r in cluster.residents(gpu.gpu_id) if r.job.job_id not in gone]
        utils = [_util(r.job, gpu.gpu_type) or 0.0 for r in stay]
        utils += [span.util for span in spans if gpu.gpu_id in span.gpus]
        bookings += len(utils)
        watts += power.gpu_w(gpu.gpu_type, min(1.0, sum(utils)))
    if not bookings and cluster.rules.sleep and node.can_sleep:
        return power.sleep_w(node)
    return watts + power.server_w(node, bookings / len(node.gpus))


def _waking_j(cluster: _Cluster, gpus: tuple[str, ...], power: PowerModel) -> float:
    nodes = {cluster.state.gpus[g].node_id for g in gpus}
    asleep = [cluster.state.nodes[n] for n in nodes]
    return sum(power.wake_j(node) for node, state in asleep if state is NodeState.ASLEEP)


def _on(cluster: _Cluster, gpu_id: str, node_id: str) -> bool:
    return cluster.state.gpus[gpu_id].node_id == node_id


# ---- one job -------------------------------------------------------------------------


def left_of(job: JobSnapshot, gpu_type: str) -> float:
    """Give the seconds that a job has left alone, in whole epochs; 0 if it cannot be known."""
    epoch_s = _epoch_s(job.job, gpu_type)
    if epoch_s is None or job.job.epochs is None:
        return 0.0
    return (job.job.epochs - job.epochs_done) * epoch_s


def _epoch_s(job: JobSpec, gpu_type: str) -> float | None:
    profile = job.profile_on(gpu_type)
    return None if profile is None else profile.epoch_s


def _util(job: JobSpec, gpu_type: str) -> float | None:
    profile = job.profile_on(gpu_type)
    return None if profile is None else profile.util_ratio


def _busy(job: JobSpec, gpu_type: str) -> float | None:
    profile = job.profile_on(gpu_type)
    return None if profile is None else profile.mem_busy_ratio


def _peak(job: JobSpec, gpu_type: str) -> int | None:
    profile = job.profile_on(gpu_type)
    return None if profile is None else profile.peak_mem_bytes


def _accepts(one: JobSpec, other: JobSpec) -> bool:
    if one.share_with is ShareWith.SAME_USER:
        return one.user == other.user
    if one.share_with is ShareWith.SAME_GROUP:
        return one.group == other.group
    return one.share_with is ShareWith.ANY


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    present = sorted(value for value in known if value is not None)
    return sum(present) if len(present) == len(known) else None


def _contains(larger: Names, smaller: Names) -> bool:
    rest = list(larger)
    for name in smaller:
        if name not in rest:
            return False
        rest.remove(name)
    return True
