"""Ask eaco one question from a scheduler of your own: may this job join that GPU?

Nothing but `eaco_core` is needed. The in-house scheduler keeps its queue, its
executor and its last word; eaco finds the GPUs, bounds the slowdown of everyone
affected, and later judges the placement by what was measured.
"""

from __future__ import annotations

from eaco_core import (
    Board,
    GpuSpec,
    JobSpec,
    NodeSpec,
    Rules,
    Running,
    SoloProfile,
    find_candidates,
    predict_jct,
    refusal,
    verify,
)
from eaco_core.decisions import Evidence

GIB = 1024**3
HOUR_S = 3600.0


def training(job_id: str, epoch_s: float, util_ratio: float, deadline_s: float | None) -> JobSpec:
    """Describe a job of the in-house queue."""
    profile = SoloProfile("a100", epoch_s, util_ratio, util_ratio / 2, 8 * GIB)
    return JobSpec(
        job_id,
        gpus=1,
        submit_s=0.0,
        epochs=20,
        workload=job_id.split("-", maxsplit=1)[0],
        profiles=(profile,),
        deadline_s=deadline_s,
    )


def main() -> None:
    """Ask before placing, judge after one epoch."""
    gpus = tuple(GpuSpec(f"gpu-{i}", "a100", 40 * GIB) for i in range(2))
    resident = training("bert-1", 600.0, 0.55, deadline_s=5 * HOUR_S)
    board = Board(
        now_s=1200.0,
        nodes=[NodeSpec("box-1", gpus)],
        running=[Running(resident, ("gpu-0",), epochs_done=2)],
    )
    newcomer = board.newcomer(training("resnet-7", 300.0, 0.30, deadline_s=4 * HOUR_S))

    for candidate in find_candidates(newcomer, board.view):
        names = [gpu.spec.gpu_id for gpu in candidate.gpus]
        effects = predict_jct(newcomer, candidate.gpus, board.view)
        for effect in effects:
            end_s = effect.start_s + effect.estimate.upper_ratio * effect.remaining_s
            print(
                f"{names}: {effect.job.spec.job_id} at most {effect.estimate.upper_ratio:.2f}x "
                f"slower ({effect.estimate.source.value}), done by {end_s / HOUR_S:.2f} h"
            )
        refused = refusal(effects, board.view)
        print("share it" if refused is None else f"do not share: {refused[1]}")

    seen = [
        Evidence("bert-1", 640.0, 640.0 / 600.0, 17, 5 * HOUR_S, late=False),
        Evidence("resnet-7", 330.0, 330.0 / 300.0, 19, 4 * HOUR_S, late=False),
    ]
    judgement = verify(1900.0, seen, Rules())
    print(f"after one epoch: {'keep' if judgement.keep else 'undo'} ({judgement.reason})")


if __name__ == "__main__":
    main()
