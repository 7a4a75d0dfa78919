"""What `eaco agent` costs: share of a core and memory at one sample a second, 8 GPUs.

    python benchmarks/agent.py [--seconds 60] [--gpus 8] [--period-s 1]

Against a real broker (mosquitto), once without and once with recording. Linux only.
Wanted, without recording: under 1 % of a core, under 60 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from eaco_telemetry.broker import BrokerAddress, running_broker

WANTED_RATIO = 0.01
WANTED_MB = 60.0
_WARM_S = 5.0  # what happens once, at the start, is told apart


def cpu_s(pid: int) -> float:
    """Give the processor seconds of a process so far, all threads, user and system."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """Give the highest resident memory of a process so far, in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")


async def measure(
    address: BrokerAddress, given: argparse.Namespace, *more: str
) -> tuple[float, float, float]:
    """Run one agent; give start-up seconds of a processor, share of a core, and MB."""
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from eaco_adapters.cli import main; main()",
        "agent",
        *("--simulate", str(given.gpus), "--period-s", str(given.period_s)),
        *("--node", "benchmark", "--broker", str(address), *more),
        stderr=asyncio.subprocess.DEVNULL,
    )
    await asyncio.sleep(_WARM_S)
    start_s, began_s = cpu_s(agent.pid), time.monotonic()
    await asyncio.sleep(given.seconds)
    used_s, passed_s = cpu_s(agent.pid) - start_s, time.monotonic() - began_s
    memory_mb = peak_mb(agent.pid)
    agent.send_signal(signal.SIGTERM)
    status = await agent.wait()
    if status != 0:
        raise SystemExit(f"the agent ended with status {status}")
    return start_s, used_s / passed_s, memory_mb


async def run(given: argparse.Namespace) -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_broker("mosquitto") as address:
            plain = await measure(address, given)
            recording = await measure(address, given, "--record", f"{folder}/recording.parquet")
    for name, (start_s, ratio, memory_mb) in (
        ("publishing only", plain),
        ("publishing and recording", recording),
    ):
        print(
            f"{name}: {ratio:.2%} of a core, {memory_mb:.1f} MB at the most,"
            f" {start_s:.2f} s of a core to start"
        )
    print(f"wanted, publishing only: under {WANTED_RATIO:.0%}, under {WANTED_MB:.0f} MB")
    return 0 if plain[1] < WANTED_RATIO and plain[2] < WANTED_MB else 1


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--period-s", type=float, default=1.0)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
