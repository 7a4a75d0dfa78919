"""Which GPUs to hold for a job that has waited too long (R11)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaco_core._records import GpuRecord, JobRecord, PoolRecord
    from eaco_core.view import View


def reservation_for(
    job: JobRecord, view: View
) -> tuple[tuple[GpuRecord, ...], float | None] | None:
    """Give the set that is free first by the upper bounds, and when; None if none suits.

    The time is None when a resident's end is not known: then nobody else may use
    the set meanwhile.
    """
    best: tuple[float, tuple[GpuRecord, ...]] | None = None
    for gpu_type in view.gpu_types(job):
        found = _on_type(job, view, gpu_type)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    return best[1], best[0] if math.isfinite(best[0]) else None


def _on_type(
    job: JobRecord, view: View, gpu_type: str
) -> tuple[float, tuple[GpuRecord, ...]] | None:
    size = view.ledger.pool_sizes[gpu_type]
    whole, rest = divmod(job.spec.gpus, size)
    if job.spec.gpus <= size:
        whole, rest = 0, job.spec.gpus
    pools: list[tuple[str, list[tuple[float, GpuRecord]]]] = []
    for node_id in sorted(view.ledger.nodes):
        node = view.ledger.nodes[node_id]
        pool = node.pools.get(gpu_type)
        if pool is not None and view.can_be_promised(job, node):
            releases = _releases(job, pool, view)
            pools.append((node_id, releases))
    chosen: list[GpuRecord] = []
    end_s = view.now_s
    for count in [size] * whole + ([rest] if rest else []):
        fitting = [(found[count - 1][0], name) for name, found in pools if len(found) >= count]
        if not fitting:
            return None
        release_s, node_id = min(fitting)
        releases = next(found for name, found in pools if name == node_id)
        pools = [(name, found) for name, found in pools if name != node_id]
        chosen += [gpu for _, gpu in releases[:count]]
        end_s = max(end_s, release_s)
    return (end_s, tuple(chosen)) if len(chosen) == job.spec.gpus else None


def _releases(job: JobRecord, pool: PoolRecord, view: View) -> list[tuple[float, GpuRecord]]:
    releases: list[tuple[float, GpuRecord]] = []
    for gpu in pool.gpus:
        if gpu.up and not gpu.foreign and view.fits_alone(job, gpu):
            ends = [_upper_end_s(resident, gpu, view) for resident in gpu.residents]
            releases.append((max(ends, default=view.now_s), gpu))
    return sorted(releases, key=lambda item: (item[0], item[1].key))


def _upper_end_s(resident: JobRecord, gpu: GpuRecord, view: View) -> float:
    """Count from the start of the running epoch: else a promise slides within each epoch."""
    left_s = resident.solo_left_s(gpu.spec.gpu_type)
    if left_s is None:
        return math.inf
    began_s = view.now_s if resident.epoch_started_s is None else resident.epoch_started_s
    return max(view.now_s, began_s + resident.upper_ratio * left_s)
