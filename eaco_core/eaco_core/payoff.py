"""Does sharing pay? Predicted energy of a shared placement against the best other one (R7).

Energy here is what the cluster draws more because of the newcomer, from now until
the last affected job has ended: the newcomer's own draw, and that of residents who
take longer. An empty node is worth what it would draw asleep (if it can sleep).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from eaco_core.cluster import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core._records import GpuRecord, JobRecord, NodeRecord
    from eaco_core.admission import Effect
    from eaco_core.ports import PowerModel
    from eaco_core.view import View


@define
class Payoff:
    """Both energies in joules; None without a power model or with unknown utilisation."""

    pays: bool
    extra_j: float | None
    alternative_j: float | None
    solo_j: float | None = None


def payoff(
    job: JobRecord,
    effects: list[Effect],
    gpus: tuple[GpuRecord, ...],
    exclusive: tuple[GpuRecord, ...] | None,
    view: View,
) -> Payoff:
    """Compare sharing `gpus` with `exclusive`, or with running there alone later if None.

    Without a power model, sharing pays when the affected jobs together do at least
    1.1 jobs' work: sum of 1/upper >= 1.1.
    """
    if view.power is not None:
        scene = _Scene(view, view.power)
        extra_j = scene.shared_j(job, effects, gpus)
        if exclusive is None:
            alternative_j = scene.alone_later_j(job, gpus)
        else:
            alternative_j = scene.alone_j(job, exclusive)
        if extra_j is not None and alternative_j is not None:
            return Payoff(extra_j < alternative_j, extra_j, alternative_j, alternative_j)
    total = sum(1 / effect.estimate.upper_ratio for effect in effects)
    return Payoff(total >= view.rules.min_throughput_sum, None, None)


class _Scene:
    """Power of nodes under given residents, relative to the node idle."""

    def __init__(self, view: View, power: PowerModel) -> None:
        self._view = view
        self._power = power
        self._gpu_w: dict[tuple[str, float], float] = {}

    def shared_j(
        self, job: JobRecord, effects: list[Effect], gpus: tuple[GpuRecord, ...]
    ) -> float | None:
        """Give the extra energy of sharing, by the upper bounds."""
        newcomer, residents = effects[0], effects[1:]
        joined_s = newcomer.estimate.upper_ratio * newcomer.remaining_s
        without: list[tuple[float, JobRecord]] = []
        with_it: list[tuple[float, JobRecord]] = [(joined_s, job)]
        for effect in residents:
            now_ratio = effect.job.upper_ratio
            without.append((now_ratio * effect.remaining_s, effect.job))
            together_s = effect.estimate.upper_ratio * effect.remaining_s
            if together_s > joined_s:
                done_s = joined_s / effect.estimate.upper_ratio
                together_s = joined_s + (effect.remaining_s - done_s) * now_ratio
            with_it.append((together_s, effect.job))
        places = {effect.job.spec.job_id: effect.job.gpus for effect in residents}
        places[job.spec.job_id] = list(gpus)
        nodes = {gpu.node.spec.node_id: gpu.node for held in places.values() for gpu in held}
        total = 0.0
        for node in nodes.values():
            joined = self._integral_j(node, with_it, places)
            apart = self._integral_j(node, without, places)
            if joined is None or apart is None:
                return None
            total += joined - apart
        return total

    def alone_j(self, job: JobRecord, gpus: tuple[GpuRecord, ...]) -> float | None:
        """Give the extra energy of running alone on an idle set, wake included."""
        total = 0.0
        for node, held in _by_node(gpus):
            others = _residents(node)
            watts = self._added_w(node, job, held, others)
            left_s = job.solo_left_s(held[0].spec.gpu_type)
            if watts is None or left_s is None:
                return None
            total += watts * left_s
            if node.state is NodeState.ASLEEP:
                total += self._power.wake_j(node.spec)
        return total

    def alone_later_j(self, job: JobRecord, gpus: tuple[GpuRecord, ...]) -> float | None:
        """Give the extra energy of running alone on the same GPUs once they are free."""
        total = 0.0
        chosen = {gpu.spec.gpu_id for gpu in gpus}
        for node, held in _by_node(gpus):
            others = [
                resident
                for resident in _residents(node)
                if not any(gpu.spec.gpu_id in chosen for gpu in resident.gpus)
            ]
            watts = self._added_w(node, job, held, others)
            left_s = job.solo_left_s(held[0].spec.gpu_type)
            if watts is None or left_s is None:
                return None
            total += watts * left_s
        return total

    def _added_w(
        self, node: NodeRecord, job: JobRecord, held: list[GpuRecord], others: list[JobRecord]
    ) -> float | None:
        """Give what the node draws more with the job on idle GPUs of it, beside `others`."""
        profile = job.kind.profiles.get(held[0].spec.gpu_type)
        if profile is None or profile.util_ratio is None:
            return None
        load = self._load(node, others)
        added = len(held) / len(node.spec.gpus)
        watts = self._power.server_w(node.spec, load + added) - self._power.server_w(
            node.spec, load
        )
        gpu_type = held[0].spec.gpu_type
        watts += len(held) * (self._watts(gpu_type, profile.util_ratio) - self._watts(gpu_type, 0))
        return watts if others else watts + self._idle_w(node) - self._empty_w(node)

    def _integral_j(
        self,
        node: NodeRecord,
        ends: list[tuple[float, JobRecord]],
        places: dict[str, list[GpuRecord]],
    ) -> float | None:
        """Integrate the node's power above empty until the last end; others stay as they are."""
        affected = {job.spec.job_id for _, job in ends}
        others = [job for job in _residents(node) if job.spec.job_id not in affected]
        here = [
            (end_s, job)
            for end_s, job in sorted(ends, key=lambda item: item[0])
            if any(gpu.node is node for gpu in places[job.spec.job_id])
        ]
        total, start_s = 0.0, 0.0
        for position, (end_s, _) in enumerate(here):
            if end_s > start_s:
                alive = [job for _, job in here[position:]]
                watts = self._above_empty_w(node, alive, others, places)
                if watts is None:
                    return None
                total += watts * (end_s - start_s)
                start_s = end_s
        return total

    def _above_empty_w(
        self,
        node: NodeRecord,
        alive: list[JobRecord],
        others: list[JobRecord],
        places: dict[str, list[GpuRecord]],
    ) -> float | None:
        other_load = self._load(node, others)
        load = other_load
        utils: dict[str, float] = {}
        types: dict[str, str] = {}
        for job in alive:
            held = [gpu for gpu in places[job.spec.job_id] if gpu.node is node]
            load += len(held) / len(node.spec.gpus)
            for gpu in held:
                profile = job.kind.profiles.get(gpu.spec.gpu_type)
                if profile is None or profile.util_ratio is None:
                    return None
                utils[gpu.spec.gpu_id] = utils.get(gpu.spec.gpu_id, 0.0) + profile.util_ratio
                types[gpu.spec.gpu_id] = gpu.spec.gpu_type
        watts = self._power.server_w(node.spec, load) - self._power.server_w(node.spec, other_load)
        for gpu_id, util in utils.items():
            gpu_type = types[gpu_id]
            watts += self._watts(gpu_type, min(util, 1.0)) - self._watts(gpu_type, 0)
        return watts if others else watts + self._idle_w(node) - self._empty_w(node)

    def _watts(self, gpu_type: str, util: float) -> float:
        known = self._gpu_w.get((gpu_type, util))
        if known is None:
            known = self._gpu_w[gpu_type, util] = self._power.gpu_w(gpu_type, util)
        return known

    def _idle_w(self, node: NodeRecord) -> float:
        gpus = sum(self._watts(gpu.gpu_type, 0) for gpu in node.spec.gpus)
        return self._power.server_w(node.spec, 0) + gpus

    def _empty_w(self, node: NodeRecord) -> float:
        """Give what the node draws when nothing is left on it: asleep, if it can."""
        if self._view.rules.sleep and node.spec.can_sleep:
            return self._power.sleep_w(node.spec)
        return self._idle_w(node)

    @staticmethod
    def _load(node: NodeRecord, jobs: Iterable[JobRecord]) -> float:
        held = sum(sum(1 for gpu in job.gpus if gpu.node is node) for job in jobs)
        return held / len(node.spec.gpus)


def _by_node(gpus: tuple[GpuRecord, ...]) -> Iterable[tuple[NodeRecord, list[GpuRecord]]]:
    nodes: dict[str, tuple[NodeRecord, list[GpuRecord]]] = {}
    for gpu in gpus:
        nodes.setdefault(gpu.node.spec.node_id, (gpu.node, []))[1].append(gpu)
    return nodes.values()


def _residents(node: NodeRecord) -> list[JobRecord]:
    found: dict[str, JobRecord] = {}
    for pool in node.pools.values():
        for gpu in pool.gpus:
            for resident in gpu.residents:
                found.setdefault(resident.spec.job_id, resident)
    return list(found.values())
