"""How long from a start to a running job, and from an undo to a free GPU, with real processes.

    python benchmarks/local_executor.py [--jobs 50]

- submit to start: `LocalExecutor.start` until the job's first instruction has run (the job writes
  the time of it), and until JobStarted is reported.
- undo to free: `request_stop` of a job with short epochs until GpusReleased, less the rest of the
  running epoch; and `kill` of a job that ends at TERM.
- shim: time from its start to the job's, and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from eaco_adapters.executors import LocalExecutor
from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import NodeRunner
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev

GPUS = ("virtual-0", "virtual-1")
STAMP = ("sh", "-c", "cat /proc/uptime; exec sleep 600")


def _figures(name: str, seconds_s: list[float]) -> None:
    ms = sorted(1000 * value_s for value_s in seconds_s)
    median, worst = statistics.median(ms), ms[-1]
    p95 = ms[min(len(ms) - 1, int(0.95 * len(ms)))]
    print(
        f"{name:<44} {median:8.1f} ms median {p95:8.1f} ms p95 {worst:8.1f} ms worst  n={len(ms)}"
    )


class Heard:
    """When each event of each job was reported, in the loop's seconds."""

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor
        self._at: dict[tuple[str, str], float] = {}
        self._news = asyncio.Event()

    async def listen(self) -> None:
        """Take note of every report."""
        async for report in self._executor.reports():
            event = report.event
            key = (getattr(event, "job_id", ""), type(event).__name__)
            self._at.setdefault(key, time.monotonic())
            self._news.set()

    async def at_s(self, job_id: str, kind: type[ev.JobEvent]) -> float:
        """Wait for an event; gives when it was reported."""
        async with asyncio.timeout(60):
            while (job_id, kind.__name__) not in self._at:
                self._news.clear()
                await self._news.wait()
        return self._at[job_id, kind.__name__]


async def _starts(executor: LocalExecutor, heard: Heard, jobs: int) -> None:
    told: list[float] = []
    ran: list[float] = []
    returned: list[float] = []
    killed: list[float] = []
    for number in range(jobs):
        job_id = f"start {number}"
        began_s, began_boot_s = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        await executor.start(job_id, 1, 1, gpus={"n1": GPUS[:1]}, resume_epoch=0)
        returned.append(time.monotonic() - began_s)
        told.append(await heard.at_s(job_id, ev.JobStarted) - began_s)
        await asyncio.sleep(0.1)
        (log,) = executor.runner_of("n1").log_paths(job_id, 1)
        uptime_s = float(log.read_text().split()[0])
        ran.append(max(0.0, uptime_s - began_boot_s))
        began_s = time.monotonic()
        await executor.kill(job_id, 1, 1, grace_s=5)
        killed.append(time.monotonic() - began_s)
        await executor.forget(job_id, 1)
    _figures("start() returns", returned)
    _figures("start() to JobStarted reported", told)
    _figures("start() to the job's first output (10 ms steps)", ran)
    _figures("kill() until proven free", killed)


async def _undos(executor: LocalExecutor, heard: Heard, jobs: int) -> None:
    freed: list[float] = []
    for number in range(jobs):
        job_id = f"undo {number}"
        await executor.start(job_id, 1, 1, gpus={"n1": GPUS[:1]}, resume_epoch=0)
        await heard.at_s(job_id, ev.EpochCompleted)
        began_s = time.monotonic()
        await executor.request_stop(job_id, 1, 1)
        freed.append(await heard.at_s(job_id, ev.GpusReleased) - began_s)
        await executor.forget(job_id, 1)
    _figures("request_stop() to GpusReleased, 20 ms epochs", freed)


def _shim_figures(runner: NodeRunner) -> None:
    del runner
    sizes: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                is_shim = b"/node/shim.py" in (entry / "cmdline").read_bytes()
                status = (entry / "status").read_text()
            except OSError:
                continue
            if is_shim and "VmRSS" in status:
                sizes.append(int(status.split("VmRSS:")[1].split()[0]))
    if sizes:
        print(f"shim: {max(sizes) / 1024:.1f} MiB resident")


async def _main(jobs: int) -> None:
    launches = {f"start {n}": LaunchSpec(STAMP) for n in range(jobs)}
    toy = LaunchSpec(toy_command(epochs=100_000, epoch_s=0.02))
    launches |= {f"undo {n}": toy for n in range(jobs)} | {"shim": toy}
    with tempfile.TemporaryDirectory() as folder:
        runner = NodeRunner(Path(folder), node_id="n1", gpu_ids=GPUS)
        async with LocalExecutor([runner], launches.__getitem__) as executor:
            heard = Heard(executor)
            task = asyncio.create_task(heard.listen())
            await _starts(executor, heard, jobs)
            await _undos(executor, heard, max(3, jobs // 2))
            await executor.start("shim", 1, 1, gpus={"n1": GPUS[:1]}, resume_epoch=0)
            await asyncio.sleep(0.5)
            _shim_figures(runner)
            await executor.kill("shim", 1, 1, grace_s=0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=50)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f} at the start"
    )
    asyncio.run(_main(options.jobs))


if __name__ == "__main__":
    main()
