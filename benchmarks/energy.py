"""How long `eaco energy` takes for a day of 1 Hz samples of 8 GPUs with 50 jobs.

Makes the recording (not timed), then runs the command as its own process and prints wall
time, CPU time and peak memory. Half of the jobs share GPUs, all with known processes; the
host has RAPL, so that the server part is split too. Processes change at every 10th sample,
as they are read, or at each with --restless. --days 7 shows that memory is bounded.

    python benchmarks/energy.py
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from eaco_telemetry.recording.columns import COLUMNS

START_S = 1_796_000_000
DAY_S = 86_400
GPUS = 8
JOBS = 50
_RUN = "import sys; from eaco_adapters.cli import main; sys.exit(main())"


def main() -> None:
    """Parse the options, make the files, run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rule", default="default")
    parser.add_argument("--restless", action="store_true")
    parser.add_argument("--make", type=Path, help="Only make the files, in this folder.")
    chosen = parser.parse_args()
    if chosen.make:
        held = write_jobs(chosen.make / "jobs.csv", chosen.days)
        every = 1 if chosen.restless else 10
        write_recording(chosen.make / "day.parquet", held, chosen.days, every)
        return
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: a child's peak memory counts from that of its parent.
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--make", folder], check=True)
        recording, jobs = Path(folder, "day.parquet"), Path(folder, "jobs.csv")
        rows, size = GPUS * DAY_S * chosen.days, recording.stat().st_size / 1e6
        print(f"{rows:,} GPU rows, {JOBS} jobs, {size:.1f} MB; {os.cpu_count()} cores")
        print(f"this machine now: {loop_s():.2f} s of CPU for a loop of 10 million steps")
        for _ in range(chosen.runs):
            run(recording, jobs, chosen.rule)


def loop_s() -> float:
    """Give what a plain loop costs, to compare machines and how busy they are."""
    started_s, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - started_s


def run(recording: Path, jobs: Path, rule: str) -> None:
    """Run the command once."""
    command = [sys.executable, "-c", _RUN, "energy", "--json", "--rule", rule]
    command += ["--telemetry", str(recording), "--jobs", str(jobs)]
    command += ["--tariff", "0.30", "--intensity", "400"]
    command += ["--output", str(recording.with_name("report.json"))]
    started_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)  # of this child alone
    wall_s, process.returncode = time.perf_counter() - started_s, status
    report = json.loads(recording.with_name("report.json").read_text(encoding="utf-8"))
    split = [f"{by} {joules / 3.6e6:.2f}" for by, joules in report["active_split_j"].items()]
    print(
        f"wall {wall_s:.2f} s, CPU {used.ru_utime + used.ru_stime:.2f} s,"
        f" peak {used.ru_maxrss / 1024:.0f} MiB; {report['total']['energy_kwh']:.3f} kWh,"
        f" off by {report['difference_j']:.1g} J; active kWh: {', '.join(split)}"
    )


def write_jobs(path: Path, days: int) -> list[tuple[int, int, tuple[int, ...], int]]:
    """Write the holds; give (start, end, GPUs, process id) of each, in seconds of the recording."""
    chance = random.Random(1)  # noqa: S311 - made-up data
    held: list[tuple[int, int, tuple[int, ...], int]] = []
    lines = ["job,user,gpu_ids,start,end,pids"]
    for number in range(JOBS):
        first, count = chance.randrange(GPUS), chance.choice((1, 1, 2, 4))
        gpus = tuple(sorted({(first + i) % GPUS for i in range(count)}))
        start_s = chance.randrange(int(0.9 * days * DAY_S))
        end_s = min(days * DAY_S, start_s + chance.randrange(600, days * 20_000))
        held.append((start_s, end_s, gpus, 1000 + number))
        ids = ";".join(f"GPU-{gpu}" for gpu in gpus)
        lines.append(
            f"job-{number},user-{number % 5},{ids},{START_S + start_s + 0.5},"
            f"{START_S + end_s},{1000 + number}"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return held


def write_recording(
    path: Path, held: list[tuple[int, int, tuple[int, ...], int]], days: int, every: int
) -> None:
    """Write the recording, sorted by time as an agent does."""
    chance = random.Random(2)  # noqa: S311 - made-up data
    ticks = range(days * DAY_S)
    times = [(START_S + k) * 10**9 for k in ticks]
    base: dict[str, Any] = {
        "node_id": ["box"] * len(ticks),
        "session_id": ["s"] * len(ticks),
        "seq": list(ticks),
        "wall_ns": times,
        "monotonic_ns": [(100 + k) * 10**9 for k in ticks],
        "simulated": [True] * len(ticks),
    }
    frames = [gpu_frame(number, base, held, every, chance) for number in range(GPUS)]
    used_j = 0.0
    package: list[float] = []
    for _ in ticks:
        used_j += 150 + 80 * chance.random()
        package.append(used_j)
    kind = ["host"] * len(ticks)
    frames.append(full(pl.DataFrame({**base, "kind": kind, "host_package_energy_j": package})))
    order = pl.concat(frames).lazy().sort("seq", maintain_order=True)  # pyright: ignore[reportUnknownMemberType] - polars names numpy there
    order.collect().write_parquet(path, row_group_size=100_000)


def gpu_frame(
    number: int,
    base: dict[str, Any],
    held: list[tuple[int, int, tuple[int, ...], int]],
    every: int,
    chance: random.Random,
) -> pl.DataFrame:
    """Make the rows of one GPU."""
    mine = [one for one in held if number in one[2]]
    used_j = 0.0
    energy: list[float] = []
    power: list[float] = []
    util: list[float] = []
    processes: list[list[dict[str, Any]]] = []
    seen: list[dict[str, Any]] = []
    for k in base["seq"]:
        if k % every == 0:
            here = [pid for start, end, _, pid in mine if start <= k < end]
            seen = [
                {
                    "pid": pid,
                    "name": "python3",
                    "sm_ratio": round(chance.random() / len(here), 2),
                    "mem_used_bytes": 1 << 33,
                }
                for pid in here
            ]
        watts = round(60 + 180 * chance.random(), 3) if seen else 30.0
        used_j += watts
        energy.append(used_j)
        power.append(watts)
        util.append(min(1.0, sum((one["sm_ratio"] for one in seen), start=0.0)))
        processes.append(seen)
    count = len(energy)
    return full(
        pl.DataFrame(
            {
                **base,
                "kind": ["gpu"] * count,
                "gpu_id": [f"GPU-{number}"] * count,
                "vendor": ["nvidia"] * count,
                "energy_j": energy,
                "power_w": power,
                "util_ratio": util,
                "processes": processes,
            },
            schema_overrides={"processes": COLUMNS["processes"]},
        )
    )


def full(frame: pl.DataFrame) -> pl.DataFrame:
    """Give all columns of a recording; those that are not there are null."""
    columns = [
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in COLUMNS.items()
    ]
    return frame.select(columns)  # pyright: ignore[reportUnknownMemberType] - polars names numpy there


if __name__ == "__main__":
    main()
