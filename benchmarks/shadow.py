"""Does `eaco shadow` say of a fifo history what a simulation of eaco says of the same jobs?

For each seed: the built-in workload of `eaco simulate` (400 jobs, 28 nodes of 8 GPUs), and a
small cluster with loose and with tight deadlines. Prints the saving that `eaco simulate --policy
fifo,eaco` finds, the one that the shadow tells from the history of fifo alone, and its interval;
jobs that would have been late by either (late, late'); and what the shadow cost. Exit status 1
if the two are more than 5 points apart, or the interval misses, or is wider than 15 points.
"""

from __future__ import annotations

import argparse
import sys
import time

from eaco_adapters.experiment import ExperimentConfig, prepare, run_policy
from eaco_adapters.shadow import Past, shadow_report
from eaco_core.history import decode_line

MOST_APART = 0.05
WIDEST = 0.15


SMALL = {"4 x 4, loose": "2h:1.2,2,10", "4 x 4, tight": "30m:1.1,1.5,3"}


def small(seed: int, deadlines: str) -> ExperimentConfig:
    """Give 60 jobs of 2 GPUs on 4 nodes of 4 GPUs."""
    return ExperimentConfig(
        seed=seed,
        policies=("fifo", "eaco"),
        nodes=4,
        gpus_per_node=4,
        jobs=60,
        job_gpus=2,
        epochs_min=5,
        epochs_max=20,
        deadlines=deadlines,
    )


def compare(config: ExperimentConfig, name: str) -> bool:
    """Run one comparison, print it, and tell whether it is good enough."""
    experiment = prepare(config)
    past = Past()
    fifo = run_policy(
        experiment, "fifo", write_line=lambda line: past.take(decode_line(line, "fifo"))
    )
    eaco = run_policy(experiment, "eaco")
    horizon_s = max(fifo.end_s, eaco.end_s)
    was, would = fifo.energy_until_s(horizon_s), eaco.energy_until_s(horizon_s)
    if was is None or would is None:
        raise SystemExit("the energy of a run is not known")
    simulated = 1 - would.total_j / was.total_j
    began_s = time.process_time()
    report = shadow_report(past)
    cpu_s = time.process_time() - began_s
    saving, low, high = report.saving_ratio, report.low_ratio, report.high_ratio
    if saving is None or low is None or high is None:
        raise SystemExit("the shadow has nothing to compare")
    good = abs(saving - simulated) <= MOST_APART and low <= simulated <= high <= low + WIDEST
    late = "-" if report.would_be is None else str(report.would_be.late)
    print(
        f"{name:14} {config.seed:4} {100 * simulated:9.2f} {100 * saving:9.2f} {100 * low:7.2f}"
        f" {100 * high:7.2f} {100 * (high - low):6.2f} {eaco.deadline_misses:5} {late:>5}"
        f" {report.shared:7} {report.undone:7} {cpu_s:6.1f}  {'' if good else 'NO'}",
        flush=True,
    )
    return good


def main() -> int:
    """Compare for every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=["built-in", "small"])
    chosen = parser.parse_args()
    print(
        "workload       seed simulate%  shadow%    low%   high%  width  late  late'  shared"
        "  undone  CPU s"
    )
    good = True
    for seed in range(chosen.seeds):
        if chosen.only != "small":
            good &= compare(ExperimentConfig(seed=seed, policies=("fifo", "eaco")), "built-in")
        if chosen.only != "built-in":
            for name, deadlines in SMALL.items():
                good &= compare(small(seed, deadlines), name)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
