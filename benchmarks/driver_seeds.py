"""Run the driver's seeded world for many seeds, half of them with schedulers that die.

    python benchmarks/driver_seeds.py --seeds 10000 --jobs 2

Each seed is a whole run: 8 jobs, an executor with faults, invariants checked at each step. Prints
how many steps were taken, and every seed that broke something (there should be none).
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor

from eaco_adapters.testing.driver_world import World, run_world

_DEATHS = 3


def _one(seed: int) -> tuple[int, int, str]:
    try:
        lines = run_world(World(seed, deaths=_DEATHS if seed % 2 else 0))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the seed is the answer
        return seed, 0, f"{type(error).__name__}: {error}"
    return seed, len(lines), ""


def main() -> None:
    """Run the seeds and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    started_s = time.monotonic()
    steps, broken = 0, 0
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        for seed, count, error in pool.map(_one, seeds, chunksize=20):
            steps += count
            if error:
                broken += 1
                print(f"seed {seed}: {error[:400]}", flush=True)
    took_s = time.monotonic() - started_s
    print(f"{options.seeds} seeds, {steps} steps, {broken} broken, {took_s:.0f} s")


if __name__ == "__main__":
    main()
