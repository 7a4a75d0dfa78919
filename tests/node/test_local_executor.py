"""The local executor: jobs on one node and on several, as one job each."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.executors import LocalExecutor
from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import NodeRunner, RunnerOptions
from eaco_adapters.testing.node_kit import processes_with
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev
from eaco_core.errors import InputError
from eaco_core.ports import CommandRefused, StaleTerm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from eaco_core.ports import Executor

NOTHING: dict[str, LaunchSpec] = {}
BOTH = {"n1": ("n1-a", "n1-b"), "n2": ("n2-a",)}


class Stand:
    """An executor over two nodes, and what it told."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor
        self.told: list[ev.Event] = []
        self._news = asyncio.Event()

    async def listen(self) -> None:
        async for report in self.executor.reports():
            assert report.age_s >= 0
            self.told.append(report.event)
            self._news.set()

    def kinds(self, job_id: str) -> list[str]:
        mine = [event for event in self.told if getattr(event, "job_id", "") == job_id]
        return [type(event).__name__ for event in mine]

    async def wait(self, job_id: str, *kinds: str) -> list[str]:
        async with asyncio.timeout(30):
            while not set(kinds) & set(self.kinds(job_id)):
                self._news.clear()
                await self._news.wait()
        return self.kinds(job_id)

    async def wait_over(self, job_id: str) -> list[str]:
        return await self.wait(job_id, "GpusReleased", "StartFailed")


@contextlib.asynccontextmanager
async def stand(root: Path, launches: dict[str, LaunchSpec]) -> AsyncGenerator[Stand, None]:
    options = RunnerOptions(poll_s=0.05, use_cgroups=False)
    runners = [
        NodeRunner(root / node, node_id=node, gpu_ids=(f"{node}-a", f"{node}-b"), options=options)
        for node in ("n1", "n2")
    ]
    async with LocalExecutor(runners, launches.__getitem__) as executor:
        one = Stand(executor)
        task = asyncio.create_task(one.listen())
        try:
            yield one
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_it_is_an_executor_of_the_core(tmp_path: Path) -> None:
    del tmp_path
    executor: Executor = LocalExecutor([], NOTHING.__getitem__)
    assert isinstance(executor, LocalExecutor)


def test_a_gang_is_one_job(tmp_path: Path) -> None:
    launches = {"gang": LaunchSpec(toy_command(epochs=3, epoch_s=0.1))}

    async def main() -> None:
        async with stand(tmp_path, launches) as one:
            await one.executor.start("gang", 1, 1, gpus=BOTH, resume_epoch=0)
            kinds = await one.wait_over("gang")
            assert kinds == [
                "JobStarted",
                *["EpochCompleted"] * 3,
                "JobFinished",
                "GpusReleased",
            ]
            gpus = ("n1-a", "n1-b", "n2-a")
            assert one.told[0] == ev.JobStarted(0.0, "gang", 1, gpus)
            assert one.told[-1] == ev.GpusReleased(0.0, "gang", 1, gpus)
            assert await one.executor.list_running() == []

    asyncio.run(main())


def test_each_part_knows_its_place(tmp_path: Path) -> None:
    launches = {"gang": LaunchSpec(("sh", "-c", "echo $EACO_NODE_RANK of $EACO_NODE_COUNT"))}

    async def main() -> None:
        async with stand(tmp_path, launches) as one:
            await one.executor.start("gang", 1, 1, gpus=BOTH, resume_epoch=0)
            await one.wait_over("gang")
            for rank, node in enumerate(BOTH):
                (path,) = one.executor.runner_of(node).log_paths("gang", 1)
                assert path.read_text() == f"{rank} of 2\n"

    asyncio.run(main())


def test_if_one_part_fails_the_others_are_ended(tmp_path: Path) -> None:
    script = 'if [ "$EACO_NODE_RANK" = 1 ]; then sleep 0.3; exit 4; else sleep 60; fi'
    launches = {"gang": LaunchSpec(("sh", "-c", script))}

    async def main() -> None:
        async with stand(tmp_path, launches) as one:
            await one.executor.start("gang", 1, 1, gpus=BOTH, resume_epoch=0)
            assert await one.wait_over("gang") == ["JobStarted", "JobFailed", "GpusReleased"]
            assert processes_with(str(tmp_path)) == []

    asyncio.run(main())


def test_if_one_part_cannot_start_none_does(tmp_path: Path) -> None:
    script = "import os, sys; sys.exit(int(os.environ['EACO_NODE_RANK']))"
    launches = {"gang": LaunchSpec(toy_command(epochs=1000)), "job": LaunchSpec(("true", script))}

    async def main() -> None:
        async with stand(tmp_path, launches) as one:
            bad = {"n1": ("n1-a",), "n2": ("n2-x",)}
            with pytest.raises(CommandRefused, match="n2-x"):
                await one.executor.start("gang", 1, 1, gpus=bad, resume_epoch=0)
            assert processes_with(str(tmp_path)) == []
            assert await one.executor.list_running() == []
            with pytest.raises(CommandRefused, match="n9"):
                await one.executor.start("job", 1, 1, gpus={"n9": ("g",)}, resume_epoch=0)
            with pytest.raises(CommandRefused, match="not known"):
                await one.executor.start("stranger", 1, 1, gpus=BOTH, resume_epoch=0)

    asyncio.run(main())


def test_a_gang_stops_together_and_can_be_killed(tmp_path: Path) -> None:
    launch = LaunchSpec(toy_command(epochs=1000, epoch_s=0.1))

    async def main() -> None:
        async with stand(tmp_path, {"stop": launch, "kill": launch}) as one:
            for job in ("stop", "kill"):
                await one.executor.start(job, 1, 1, gpus=BOTH, resume_epoch=0)
                await one.wait(job, "EpochCompleted")
            await one.executor.request_stop("stop", 1, 1)
            assert (await one.wait_over("stop"))[-2:] == ["JobStopped", "GpusReleased"]
            await one.executor.kill("kill", 1, 2, grace_s=0.5)
            assert processes_with(str(tmp_path)) == []
            assert (await one.wait_over("kill"))[-1] == "GpusReleased"
            with pytest.raises(StaleTerm):
                await one.executor.kill("kill", 1, 1, grace_s=0.5)
            with pytest.raises(CommandRefused):
                await one.executor.request_stop("never", 1, 2)

    asyncio.run(main())


def test_a_new_executor_tells_everything_again_and_goes_on(tmp_path: Path) -> None:
    launches = {"gang": LaunchSpec(toy_command(epochs=30, epoch_s=0.1))}

    async def main() -> None:
        async with stand(tmp_path, launches) as one:
            await one.executor.start("gang", 1, 1, gpus=BOTH, resume_epoch=0)
            await one.wait("gang", "EpochCompleted")
            before = one.kinds("gang")
        async with stand(tmp_path, launches) as two:
            ((job, attempt, gpus),) = await two.executor.list_running()
            assert (job, attempt, set(gpus)) == ("gang", 1, {"n1-a", "n1-b", "n2-a"})
            kinds = await two.wait_over("gang")
            assert kinds[: len(before)] == before
            assert kinds.count("EpochCompleted") == 30
            await two.executor.forget("gang", 1)
        async with stand(tmp_path, launches) as three:
            await asyncio.sleep(0.3)
            assert three.told == []

    asyncio.run(main())


def test_two_runners_with_one_name_are_refused(tmp_path: Path) -> None:
    runners = [NodeRunner(tmp_path / str(n), node_id="n1", gpu_ids=("g",)) for n in range(2)]
    with pytest.raises(InputError, match="same node id"):
        LocalExecutor(runners, NOTHING.__getitem__)
