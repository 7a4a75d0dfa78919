"""EaCO as its listing says (arXiv 2412.08294, Algorithms 1 and 2), as far as it is defined.

What the listing leaves open is chosen here, and nowhere else:

- thresholds: 0.85, tested strictly (Eqs 3-4), each GPU on its own before placement;
- memory: summed over the set (Algorithm 2 assumes model parallelism), reset for each set;
- degree: at most 4, the largest set that was measured;
- PredictJCT: the point estimate, from observations, else from the overflow law;
- an exhausted list: the job waits, and so does everyone behind it, because
  Schedule(j) does not return; idle sets pass both filters with utilisation 0 and are
  tried last;
- after an undo: a set that was tried is not tried again for the same job.

Invariants that the listing cannot keep: I01 (memory is summed over the set, so one
GPU may be overcommitted), I07 and I08 (a point estimate, not a bound), I12 (another
job of the same workload may try an undone set), I13 (no limit on undos), I14 (a job
that does not fit blocks later ones), I24 (no reservation), I25 (a point estimate may
rise when a resident is removed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core._ledger import mem_busy_ratio, util_ratio
from eaco_core.admission import predict_jct
from eaco_core.candidates import Gate, find_candidates
from eaco_core.decisions import BoundSource
from eaco_core.policies.base import Place, Wait
from eaco_core.policies.fifo import NO_IDLE_SET
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core.policies.base import Action
    from eaco_core.view import View

PAPER_RULES = Rules(
    max_degree=4,
    headroom_bytes=0,
    headroom_ratio=0.0,
    observed_margin=1.0,
    law_margin=1.0,
    keep_throughput_sum=0.0,
    max_slowdown_ratio=1e9,
    max_undos=10**9,
    starvation_s=float("inf"),
)


class EacoPaper:
    """Algorithm 1 for the head of the queue; strict order."""

    name = "eaco-paper"
    rules = PAPER_RULES
    bounded_undo = False

    def decide(self, view: View, /) -> Iterator[Action]:
        """Schedule(j) for one job after another, until one has to wait."""
        while (job := view.queue.head()) is not None:
            place = _schedule(job, view)
            if place is None:
                yield Wait(job, f"{NO_IDLE_SET}; every shared set was refused or tried before")
                break
            yield place
        for cls in view.queue.classes:
            for _, waiting in list(cls.fresh):
                if waiting is not view.queue.head():
                    yield Wait(waiting, "waits behind the first job of the queue")
            cls.fresh.clear()


class _NoGate(Gate):
    """Lets every host GPU through: Algorithm 2 looks at whole sets, in `_passes`."""

    def refusal(self, gpu: GpuRecord) -> tuple[str, str] | None:  # noqa: ARG002 - same shape
        """Refuse nothing."""
        return None


def _schedule(job: JobRecord, view: View) -> Place | None:
    if not job.exclusive(view.rules.exclusive_priority):
        for candidate in find_candidates(job, view, gate=_NoGate(job, view)):
            gpus = candidate.gpus
            ids = tuple(gpu.spec.gpu_id for gpu in gpus)
            if ids in job.tried or not _passes(job, gpus, view):
                continue
            effects = predict_jct(job, gpus, view)
            if all(
                effect.estimate.source is not BoundSource.NONE
                and (
                    effect.job.spec.deadline_s is None
                    or effect.start_s + effect.estimate.point_ratio * effect.remaining_s
                    <= effect.job.spec.deadline_s
                )
                for effect in effects
            ):
                return Place(job, gpus, tuple(effects))
    idle = view.idle_set(job)
    return None if idle is None else Place(job, idle)


def _passes(job: JobRecord, gpus: tuple[GpuRecord, ...], view: View) -> bool:
    """Algorithm 2: thresholds on each GPU, memory over the set."""
    rules = view.rules
    available = 0
    for gpu in gpus:
        util, busy = util_ratio(gpu), mem_busy_ratio(gpu)
        if util is None or util >= rules.util_threshold_ratio:
            return False
        if busy is None or busy >= rules.mem_busy_threshold_ratio:
            return False
        peaks = [view.evidence.peak_mem_bytes(gpu.spec.gpu_type, r.kind) for r in gpu.residents]
        if gpu.spec.mem_bytes is None or any(peak is None for peak in peaks):
            return False
        available += gpu.spec.mem_bytes - sum(peak for peak in peaks if peak is not None)
    needed = view.evidence.peak_mem_bytes(gpus[0].spec.gpu_type, job.kind)
    return needed is not None and available > needed * len(gpus)
