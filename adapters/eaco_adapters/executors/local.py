"""`LocalExecutor`: runs jobs on nodes whose runners are in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from eaco_adapters.executors.gang import Gang
from eaco_core.errors import InputError
from eaco_core.ports import CommandRefused, Report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from eaco_adapters.launch import LaunchSpec
    from eaco_adapters.node import NodeRunner, RunnerReport

    _Item = tuple[str, RunnerReport] | Exception | None

Key = tuple[str, int]

_QUEUE_SIZE = 1024


class LocalExecutor:
    """An `Executor` over one runner per node. Use as `async with`: it opens and closes them.

    `launches` gives for a job id how to start it; KeyError or InputError refuses the start.
    """

    def __init__(
        self, runners: Sequence[NodeRunner], launches: Callable[[str], LaunchSpec]
    ) -> None:
        self._runners = {runner.node_id: runner for runner in runners}
        if len(self._runners) != len(runners):
            raise InputError("two runners have the same node id; each node has one")
        self._launches = launches
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for runner in self._runners.values():
                await stack.enter_async_context(runner)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        """Start the attempt on each of its nodes; if one refuses, on none."""
        for node_id in gpus:
            if node_id not in self._runners:
                raise CommandRefused(f"job {job_id!r}: there is no node {node_id!r} here")
        try:
            launch = self._launches(job_id)
        except (KeyError, InputError) as error:
            raise CommandRefused(f"job {job_id!r}: it is not known how to start it") from error
        nodes = tuple(gpus)
        calls = [
            self._runners[node_id].start(
                job_id,
                attempt,
                term,
                gpus=gpus[node_id],
                resume_epoch=resume_epoch,
                launch=launch,
                gang=nodes,
                env={
                    "EACO_NODE_RANK": str(rank),
                    "EACO_NODE_COUNT": str(len(nodes)),
                    "EACO_NODES": json.dumps(nodes),
                },
            )
            for rank, node_id in enumerate(nodes)
        ]
        errors = [error for error in await _all(calls) if error is not None]
        refused = [error for error in errors if isinstance(error, CommandRefused)]
        if refused and len(nodes) > 1:
            await self.kill(job_id, attempt, term, grace_s=0.0)
            await self.forget(job_id, attempt)
        for problem in refused or errors:
            raise problem

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:
        """Ask every part to stop at its next epoch end."""
        calls = [runner.request_stop(job_id, attempt, term) for runner in self._runners.values()]
        errors = await _all(calls)
        if None not in errors:
            raise errors[0] or CommandRefused(f"job {job_id!r}: no node runs attempt {attempt}")

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        """End every part; returns when all are proven gone."""
        runners = self._runners.values()
        calls = [runner.kill(job_id, attempt, term, grace_s=grace_s) for runner in runners]
        for error in await _all(calls):
            if error is not None:
                raise error

    async def list_running(self) -> Sequence[tuple[str, int, tuple[str, ...]]]:
        """Give (job, attempt, GPUs) of everything that may still run."""
        found: dict[Key, tuple[str, ...]] = {}
        for runner in self._runners.values():
            for job_id, attempt, gpus in await runner.list_running():
                found[job_id, attempt] = found.get((job_id, attempt), ()) + gpus
        return [(job_id, attempt, gpus) for (job_id, attempt), gpus in found.items()]

    async def forget(self, job_id: str, attempt: int) -> None:
        """Drop what is kept of an attempt that is over."""
        for runner in self._runners.values():
            await runner.forget(job_id, attempt)

    async def reports(self) -> AsyncIterator[Report]:
        """Give what happens to jobs; first, again, everything that is not forgotten."""
        queue: asyncio.Queue[_Item] = asyncio.Queue(_QUEUE_SIZE)
        tasks = [
            asyncio.create_task(_pass_on(runner, queue), name=f"reports of {node_id}")
            for node_id, runner in self._runners.items()
        ]
        gangs: dict[Key, Gang] = {}
        try:
            open_runners = len(tasks)
            while open_runners:
                item = await queue.get()
                if item is None:
                    open_runners -= 1
                    continue
                if isinstance(item, Exception):
                    raise item
                node_id, report = item
                key = (report.job_id, report.attempt)
                gang = gangs.setdefault(key, Gang(report.gang or (node_id,)))
                for event in gang.take(node_id, report):
                    yield Report(event, report.age_s)
                if gang.must_die:
                    gang.must_die = False
                    self._kill_rest(key, [node for node in gang.nodes if node != node_id])
                if gang.is_over:
                    del gangs[key]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def runner_of(self, node_id: str) -> NodeRunner:
        """Give the runner of a node; raises KeyError."""
        return self._runners[node_id]

    def _kill_rest(self, key: Key, nodes: Sequence[str]) -> None:
        """A part failed: the others would wait for it for ever."""

        async def end(runner: NodeRunner) -> None:
            with contextlib.suppress(Exception):  # the scheduler's own kill comes later
                await runner.kill(*key, runner.term, grace_s=0.0)

        for node_id in nodes:
            task = asyncio.create_task(end(self._runners[node_id]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _pass_on(runner: NodeRunner, queue: asyncio.Queue[_Item]) -> None:
    try:
        async with contextlib.aclosing(runner.reports()) as reports:
            async for report in reports:
                await queue.put((runner.node_id, report))
    except Exception as error:  # noqa: BLE001 - whoever reads the reports must hear of it
        await queue.put(error)
    await queue.put(None)


async def _all(calls: Sequence[Coroutine[None, None, None]]) -> list[Exception | None]:
    """Carry out all calls, whatever becomes of the others; gives their errors."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            raise result
    return [result if isinstance(result, Exception) else None for result in results]
