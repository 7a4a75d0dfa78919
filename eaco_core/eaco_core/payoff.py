"""Does sharing pay? Predicted energy of a shared placement against the best other one (R7).

Energy here is what the cluster draws more because of the newcomer, from now until
the last affected job has ended: the newcomer's own draw, and that of residents who
take longer. Whoever is not affected stays as now. An empty node is worth what it
would draw asleep (if it can sleep).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from eaco_core.cluster import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eaco_core._power_table import PowerTable
    from eaco_core._records import GpuRecord, NodeRecord
    from eaco_core.admission import Effect
    from eaco_core.view import View


@define
class Payoff:
    """Both energies in joules; None without a power model or with unknown utilisation."""

    pays: bool
    extra_j: float | None
    alternative_j: float | None


def payoff(
    effects: Sequence[Effect],
    gpus: tuple[GpuRecord, ...],
    exclusive: tuple[GpuRecord, ...] | None,
    view: View,
) -> Payoff:
    """Compare sharing `gpus` with `exclusive`, or with running there alone later if None.

    Without a power model, sharing pays when the affected jobs together do at least
    1.1 jobs' work: sum of 1/upper >= 1.1.
    """
    if view.power is not None:
        utils = _utils(effects)
        if utils is not None:
            extra_j = _shared_j(effects, gpus, utils, view.power)
            alternative_j = _alone_j(effects, gpus, exclusive, utils[0], view.power)
            return Payoff(extra_j < alternative_j, extra_j, alternative_j)
    total = sum(1 / effect.estimate.upper_ratio for effect in effects)
    return Payoff(total >= view.rules.min_throughput_sum, None, None)


def _utils(effects: Sequence[Effect]) -> list[float] | None:
    """Give the solo utilisation of each affected job, None if one is unknown."""
    utils: list[float] = []
    for effect in effects:
        profile = effect.job.kind.profiles.get(effect.gpu_type)
        if profile is None or profile.util_ratio is None:
            return None
        utils.append(profile.util_ratio)
    return utils


# Of one affected job on one node: when it ends (s from now), its GPUs there, its utilisation.
_Stay = tuple[float, "Sequence[GpuRecord]", float]


def _shared_j(
    effects: Sequence[Effect], gpus: tuple[GpuRecord, ...], utils: list[float], power: PowerTable
) -> float:
    """Give the extra energy of sharing, by the upper bounds; a gang may wake a node for it."""
    newcomer = effects[0]
    joined_s = newcomer.estimate.upper_ratio * newcomer.remaining_s
    apart: list[_Stay] = []
    together: list[_Stay] = [(joined_s, gpus, utils[0])]
    for effect, util in zip(effects[1:], utils[1:], strict=True):
        ratio_now, ratio_then = effect.job.upper_ratio, effect.estimate.upper_ratio
        apart.append((ratio_now * effect.remaining_s, effect.job.gpus, util))
        end_s = ratio_then * effect.remaining_s
        if end_s > joined_s:
            end_s = joined_s + (effect.remaining_s - joined_s / ratio_then) * ratio_now
        together.append((end_s, effect.job.gpus, util))
    if all(len(held) == 1 for _, held, _ in together):
        return _on_one_gpu_j(gpus[0], together, power) - _on_one_gpu_j(gpus[0], apart, power, 1)
    residents = {id(effect.job) for effect in effects[1:]}
    nodes = {gpu.node.spec.node_id: gpu.node for _, held, _ in together for gpu in held}
    total = 0.0
    for node in nodes.values():
        booked = sum(1 for _, held, _ in apart for gpu in held if gpu.node is node)
        others = node.resident_count - booked
        total += _integral_j(node, together, others, residents, power)
        total -= _integral_j(node, apart, others, residents, power)
        if node.state is NodeState.ASLEEP:
            total += power.wake_j(node)
    return total


def _on_one_gpu_j(
    gpu: GpuRecord, stays: list[_Stay], power: PowerTable, newcomers: int = 0
) -> float:
    """As `_integral_j`, for the frequent case that all affected jobs hold just this GPU.

    `newcomers`: how many jobs of the comparison are missing in `stays`.
    """
    node, gpu_type = gpu.node, gpu.spec.gpu_type
    others = node.resident_count - (len(stays) + newcomers - 1)
    apart_w = power.server_w(node, others) + power.gpu_w(gpu_type, 0.0)
    if not others:
        apart_w -= power.base_w(node)
    total, end_s = 0.0, 0.0
    util, alive = sum(util for _, _, util in stays), len(stays)
    for next_s, _, leaving in sorted(stays, key=_end_of):
        if next_s > end_s:
            watts = power.server_w(node, others + alive) + power.gpu_w(gpu_type, util)
            total += (watts - apart_w) * (next_s - end_s)
            end_s = next_s
        util -= leaving
        alive -= 1
    return total


def _integral_j(
    node: NodeRecord, stays: list[_Stay], others: int, residents: set[int], power: PowerTable
) -> float:
    """Integrate what affected jobs make the node draw above empty, until the last has ended."""
    here: list[tuple[float, list[GpuRecord], float]] = []
    for end_s, held, util in stays:
        on_node = [gpu for gpu in held if gpu.node is node]
        if on_node:
            here.append((end_s, on_node, util))
    here.sort(key=_end_of)
    base_w = 0.0 if others else power.base_w(node)
    total, start_s = 0.0, 0.0
    for position, (end_s, _, _) in enumerate(here):
        if end_s > start_s:
            alive = here[position:]
            watts = base_w + _alive_w(node, alive, others, residents, power)
            total += watts * (end_s - start_s)
            start_s = end_s
    return total


def _end_of(stay: tuple[float, object, object]) -> float:
    return stay[0]


def _alive_w(
    node: NodeRecord,
    alive: list[tuple[float, list[GpuRecord], float]],
    others: int,
    residents: set[int],
    power: PowerTable,
) -> float:
    """Give what these jobs make the node draw above idle, beside `others` bookings."""
    bookings = others
    utils: dict[str, float] = {}
    gpus: dict[str, GpuRecord] = {}
    for _, held, util in alive:
        bookings += len(held)
        for gpu in held:
            gpu_id = gpu.spec.gpu_id
            utils[gpu_id] = utils.get(gpu_id, 0.0) + util
            gpus[gpu_id] = gpu
    watts = power.server_w(node, bookings) - power.server_w(node, others)
    gpu_type = alive[0][1][0].spec.gpu_type
    idle_w = power.gpu_w(gpu_type, 0.0)
    for gpu_id, util in utils.items():
        base = _util_of_others(gpus[gpu_id], residents) if others else 0.0
        base_w = power.gpu_w(gpu_type, base) if base else idle_w
        watts += power.gpu_w(gpu_type, base + util) - base_w
    return watts


def _util_of_others(gpu: GpuRecord, residents: set[int]) -> float:
    """Give the utilisation by residents that are not affected: co-residents of a gang elsewhere."""
    total = 0.0
    for job in gpu.residents:
        if id(job) not in residents:
            profile = job.kind.profiles.get(gpu.spec.gpu_type)
            total += (profile.util_ratio if profile is not None else None) or 0.0
    return total


def _alone_j(
    effects: Sequence[Effect],
    gpus: tuple[GpuRecord, ...],
    exclusive: tuple[GpuRecord, ...] | None,
    util: float,
    power: PowerTable,
) -> float:
    """Give the extra energy of running alone: on an idle set, wake included, or later on `gpus`.

    Later, the residents of `gpus` are gone and the rest of the node is as now.
    """
    job, left_s = effects[0].job, effects[0].remaining_s
    leaving = [] if exclusive is not None else [effect.job for effect in effects[1:]]
    if exclusive is not None and exclusive[0].spec.gpu_type != effects[0].gpu_type:
        left_s = job.solo_left_s(exclusive[0].spec.gpu_type) or left_s
    total = 0.0
    for node, held in _by_node(gpus if exclusive is None else exclusive):
        gone = sum(1 for resident in leaving for gpu in resident.gpus if gpu.node is node)
        others = node.resident_count - gone
        gpu_type = held[0].spec.gpu_type
        watts = power.server_w(node, others + len(held)) - power.server_w(node, others)
        watts += len(held) * (power.gpu_w(gpu_type, util) - power.gpu_w(gpu_type, 0.0))
        if not others:
            watts += power.base_w(node)
        total += watts * left_s
        if node.state is NodeState.ASLEEP:
            total += power.wake_j(node)
    return total


def _by_node(gpus: tuple[GpuRecord, ...]) -> Iterable[tuple[NodeRecord, list[GpuRecord]]]:
    nodes: dict[str, tuple[NodeRecord, list[GpuRecord]]] = {}
    for gpu in gpus:
        nodes.setdefault(gpu.node.spec.node_id, (gpu.node, []))[1].append(gpu)
    return nodes.values()
