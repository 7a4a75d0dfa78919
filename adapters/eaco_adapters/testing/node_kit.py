"""Helpers for tests with a real runner and real processes: a bench, and who is still there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import NodeRunner, RunnerOptions
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eaco_adapters.node import RunnerReport

E = TypeVar("E")

GPUS = ("GPU-a", "GPU-b")
LAST = (ev.GpusReleased, ev.StartFailed)


def processes_with(text: str) -> list[int]:
    """List processes that have `text` in their environment. A shim has none."""
    wanted = text.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def zombies() -> list[int]:
    """List zombies among this process's own children."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                raw = (entry / "stat").read_bytes()
                fields = raw[raw.rindex(b")") + 2 :].split()
                if fields[0] == b"Z" and int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


def open_files() -> set[str]:
    """Name the open descriptors of this process, by what they are."""
    found: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(f"{entry.name} {entry.readlink()}")
    return found


class Bench:
    """One runner with what it told so far."""

    def __init__(self, runner: NodeRunner) -> None:
        self.runner = runner
        self.reports: list[RunnerReport] = []
        self._news = asyncio.Event()

    async def listen(self) -> None:
        """Collect reports until cancelled."""
        async with contextlib.aclosing(self.runner.reports()) as reports:
            async for report in reports:
                self.reports.append(report)
                self._news.set()

    def events(self, job_id: str, attempt: int = 1) -> list[ev.JobEvent]:
        """Give the events of an attempt so far."""
        return [r.event for r in self.reports if (r.job_id, r.attempt) == (job_id, attempt)]

    def kinds(self, job_id: str, attempt: int = 1) -> list[str]:
        """Give the names of the events of an attempt so far."""
        return [type(event).__name__ for event in self.events(job_id, attempt)]

    async def start(
        self,
        job_id: str,
        attempt: int = 1,
        *,
        launch: LaunchSpec | None = None,
        gpus: Sequence[str] = GPUS[:1],
        resume_epoch: int = 0,
        term: int = 1,
        **knobs: float | str | bool,
    ) -> None:
        """Start a toy trainer, or what `launch` says."""
        launch = launch or LaunchSpec(toy_command(**knobs))
        await self.runner.start(
            job_id, attempt, term, gpus=tuple(gpus), resume_epoch=resume_epoch, launch=launch
        )

    async def wait(
        self, job_id: str, kind: type[E], attempt: int = 1, *, within_s: float = 20
    ) -> E:
        """Wait for an event of an attempt."""
        async with asyncio.timeout(within_s):
            while True:
                for event in self.events(job_id, attempt):
                    if isinstance(event, kind):
                        return event
                self._news.clear()
                await self._news.wait()

    async def wait_over(self, job_id: str, attempt: int = 1, *, within_s: float = 20) -> list[str]:
        """Wait for the last event of an attempt; gives the names of all."""
        async with asyncio.timeout(within_s):
            while not any(isinstance(event, LAST) for event in self.events(job_id, attempt)):
                self._news.clear()
                await self._news.wait()
        return self.kinds(job_id, attempt)

    async def wait_epoch(self, job_id: str, epoch: int, attempt: int = 1) -> None:
        """Wait until so many epochs are told."""
        async with asyncio.timeout(20):
            while not any(
                isinstance(event, ev.EpochCompleted) and event.epoch >= epoch
                for event in self.events(job_id, attempt)
            ):
                self._news.clear()
                await self._news.wait()

    def folders(self) -> list[str]:
        """Name the folders of attempts that are there."""
        return [path.name for path in (self.runner.root / "attempts").iterdir()]

    def output(self, job_id: str, attempt: int = 1) -> str:
        """Give what the attempt wrote."""
        paths = self.runner.log_paths(job_id, attempt)
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


@contextlib.asynccontextmanager
async def bench(root: Path, **changes: object) -> AsyncGenerator[Bench, None]:
    """Open a runner on a folder and collect its reports."""
    options = RunnerOptions(**{"poll_s": 0.05, "use_cgroups": False, **changes})  # type: ignore[arg-type]  # names of RunnerOptions
    async with NodeRunner(root, node_id="n1", gpu_ids=GPUS, options=options) as runner:
        one = Bench(runner)
        task = asyncio.create_task(one.listen())
        try:
            yield one
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
