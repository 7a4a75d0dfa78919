"""The test's end of `runner_host`: a runner in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Self

from attrs import define, field

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_adapters.launch import LaunchSpec


class HostDied(Exception):
    """The runner's process ended before it answered."""


@define(eq=False)
class RunnerProcess:
    """One life of a runner on a folder. `told` collects (job, attempt, seq, event, detail)."""

    root: Path
    gpus: tuple[str, ...] = ("GPU-a", "GPU-b")
    crash: str = ""
    shim_crash: str = ""
    told: list[dict[str, Any]] = field(factory=list[dict[str, Any]])
    _process: asyncio.subprocess.Process | None = None
    _answers: dict[int, asyncio.Future[Any]] = field(factory=dict[int, "asyncio.Future[Any]"])
    _task: asyncio.Task[None] | None = None
    _number: int = 0
    _news: asyncio.Event = field(factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        env = {name: value for name, value in os.environ.items() if "EACO_TEST" not in name}
        if self.crash:
            env["EACO_TEST_RUNNER_CRASH"] = self.crash
        if self.shim_crash:
            env["EACO_TEST_SHIM_CRASH"] = self.shim_crash
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "eaco_adapters.testing.runner_host",
            str(self.root),
            *self.gpus,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=env,
        )
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        assert self._task is not None
        await self._task

    def kill(self) -> None:
        """End the runner as by a crash."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def died(self) -> int:
        """Wait for its end; gives the exit code."""
        assert self._process is not None
        async with asyncio.timeout(30):
            return await self._process.wait()

    async def ask(self, do: str, **data: Any) -> Any:  # noqa: ANN401 - plain JSON data
        """Give a command and wait for its answer. Raises HostDied, RuntimeError for an error."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._number += 1
        number = self._number
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        line = json.dumps({"id": number, "do": do, **data}) + "\n"
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line.encode())
            await self._process.stdin.drain()
        if self._task is not None and self._task.done():
            raise HostDied
        async with asyncio.timeout(40):
            answer = await future
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    async def start(self, job_id: str, attempt: int, launch: LaunchSpec, **more: Any) -> None:  # noqa: ANN401 - plain JSON data
        """Start an attempt on the first GPU."""
        await self.ask(
            "start",
            job_id=job_id,
            attempt=attempt,
            gpus=[self.gpus[0]],
            launch=launch.to_dict(),
            **more,
        )

    def events(self, job_id: str, attempt: int = 1) -> list[str]:
        """Give the names of the events of an attempt, in the order of their numbers."""
        mine = [t for t in self.told if (t["job_id"], t["attempt"]) == (job_id, attempt)]
        assert [t["seq"] for t in mine] == list(range(1, len(mine) + 1))
        return [t["event"] for t in mine]

    def detail(self, job_id: str, event: str) -> str:
        """Give an event of a job as text."""
        return next(
            str(t["detail"]) for t in self.told if (t["job_id"], t["event"]) == (job_id, event)
        )

    async def wait(self, job_id: str, *kinds: str, attempt: int = 1) -> list[str]:
        """Wait for one of these events of an attempt; gives all so far."""
        async with asyncio.timeout(40):
            while not set(kinds) & set(self.events(job_id, attempt)):
                if self._task is None or self._task.done():
                    raise HostDied
                self._news.clear()
                await self._news.wait()
        return self.events(job_id, attempt)

    async def wait_over(self, job_id: str, attempt: int = 1) -> list[str]:
        """Wait for the last event of an attempt; gives all."""
        return await self.wait(job_id, "GpusReleased", "StartFailed", attempt=attempt)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            data = json.loads(line)
            if "id" in data:
                self._answers.pop(data["id"]).set_result(data)
            elif "event" in data:
                self.told.append(data)
            self._news.set()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(HostDied())
                future.exception()  # whoever waits gets it; nobody else has to
        self._news.set()
