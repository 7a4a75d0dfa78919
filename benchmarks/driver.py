"""How fast the driver decides: jobs through a real journal on disk, an executor that is instant.

    python benchmarks/driver.py --jobs 2000

Submits jobs side by side, each durable before it is answered, runs each for two epochs without a
process, and prints steps per second, placements per second and the time from a submission to the
start of its job. The executor takes no time, so this is the scheduler alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from eaco_adapters.journal.opening import open_journal
from eaco_core import events as ev
from eaco_core.driver import Driver
from eaco_core.machine import SchedulerMachine
from eaco_core.ports import Report
from eaco_core.testing.builders import a_job, a_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from eaco_core.history import Step

_EPOCHS = 2


class _Clock:
    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


class _Instant:
    """An executor in which every job is done at once."""

    def __init__(self) -> None:
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self.started_s: dict[str, float] = {}

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        del term
        self.started_s.setdefault(job_id, time.monotonic())
        held = tuple(gpu for ids in gpus.values() for gpu in ids)
        told: list[ev.Event] = [ev.JobStarted(0.0, job_id, attempt, held)]
        told += [
            ev.EpochCompleted(0.0, job_id, attempt, epoch + 1)
            for epoch in range(resume_epoch, _EPOCHS)
        ]
        told += [
            ev.JobFinished(0.0, job_id, attempt),
            ev.GpusReleased(0.0, job_id, attempt, held),
        ]
        for event in told:
            self._reports.put_nowait(Report(event))

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:
        """Every job is done already."""

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        """Every job is done already."""

    async def reports(self) -> AsyncIterator[Report]:
        while True:
            yield await self._reports.get()

    async def list_running(self) -> list[tuple[str, int, tuple[str, ...]]]:
        return []

    async def forget(self, job_id: str, attempt: int) -> None:
        """Nothing is kept."""


async def _run(folder: Path, jobs: int, nodes: int) -> None:
    opened = await asyncio.to_thread(open_journal, folder / "journal", SchedulerMachine)
    executor = _Instant()
    done = asyncio.Event()
    released = 0

    def look(step: Step) -> None:
        nonlocal released
        released += isinstance(step.event, ev.GpusReleased)
        if released == jobs:
            done.set()

    driver = Driver(opened.machine, executor, _Clock(), journal=opened.writer, on_step=look)
    running = asyncio.get_running_loop().create_task(driver.run())
    for number in range(nodes):
        await driver.ask(ev.NodeJoined(0.0, a_node(f"n{number}", 8)))
    asked_s: dict[str, float] = {}
    answers_s: list[float] = []

    async def submit(number: int) -> None:
        job_id = f"j{number}"
        asked_s[job_id] = time.monotonic()
        await driver.submit(a_job(job_id, epochs=_EPOCHS, workload=f"w{number % 5}"))
        answers_s.append(time.monotonic() - asked_s[job_id])

    began_s, cpu_s, first = time.monotonic(), time.process_time(), driver.machine.seq
    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(submit(number))
    await done.wait()
    took_s, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
    driver.stop()
    await running
    opened.writer.close()
    steps = driver.machine.seq - first
    starts_s = [executor.started_s[job_id] - at_s for job_id, at_s in asked_s.items()]
    print(f"{jobs} jobs on {nodes} nodes of 8 GPUs: {steps} steps in {took_s:.2f} s")
    print(f"{steps / took_s:.0f} steps/s, {jobs / took_s:.0f} placements/s; CPU {used_s:.2f} s")
    print(f"answer to a submission: median {1e3 * statistics.median(answers_s):.1f} ms")
    print(f"submission to start: median {1e3 * statistics.median(starts_s):.1f} ms")


def main() -> None:
    """Measure a burst, and single submissions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=28)
    options = parser.parse_args()
    for jobs in (1, options.jobs):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_run(Path(folder), jobs, options.nodes))


if __name__ == "__main__":
    main()
