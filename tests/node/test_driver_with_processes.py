"""The driver of the core over the local executor: jobs from submission to their end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from eaco_adapters.executors import LocalExecutor
from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import NodeRunner, RunnerOptions
from eaco_adapters.testing.node_kit import processes_with
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.driver import Driver, DriverOptions, Fault
from eaco_core.invariants import check_state
from eaco_core.jobs import JobSpec, JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.states import RUNNING, TERMINAL

if TYPE_CHECKING:
    from pathlib import Path


class _Clock:
    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


LAUNCHES = {
    "good": LaunchSpec(toy_command(epochs=3)),
    "wide": LaunchSpec(toy_command(epochs=3)),
    "bad": LaunchSpec(toy_command(epochs=3, crash_at=2)),
    "none": LaunchSpec(("no-such-program-here",)),
    "taken back": LaunchSpec(toy_command(epochs=1000, ignore_term=True, ignore_stop=True)),
    "last": LaunchSpec(toy_command(epochs=3)),
}
ENDS = {
    "good": JobState.FINISHED,
    "wide": JobState.FINISHED,
    "bad": JobState.FAILED,
    "none": JobState.FAILED,
    "taken back": JobState.CANCELLED,
    "last": JobState.FINISHED,
}


def _node(node_id: str, count: int) -> NodeSpec:
    gpus = tuple(GpuSpec(f"{node_id}-{n}", "virtual", 1 << 30) for n in range(count))
    return NodeSpec(node_id, gpus)


async def _scene(root: Path) -> dict[str, JobState]:
    nodes = (_node("n1", 2), _node("n2", 2))
    options = RunnerOptions(poll_s=0.05)
    runners = [
        NodeRunner(
            root / node.node_id,
            node_id=node.node_id,
            gpu_ids=[gpu.gpu_id for gpu in node.gpus],
            options=options,
        )
        for node in nodes
    ]
    faults: list[Fault] = []
    moved = asyncio.Event()
    machine = SchedulerMachine()
    async with LocalExecutor(runners, LAUNCHES.__getitem__) as executor:
        driver = Driver(
            machine,
            executor,
            _Clock(),
            options=DriverOptions(kill_grace_s=0.5, unknown_after_s=1.0),
            on_fault=faults.append,
            on_step=lambda _: moved.set(),
        )
        running = asyncio.create_task(driver.run())
        for node in nodes:
            await driver.post(ev.NodeJoined(0.0, node))
        for job_id in LAUNCHES:
            gpus = 4 if job_id == "wide" else 1
            epochs = 1000 if job_id == "taken back" else 3
            await driver.submit(JobSpec(job_id, gpus, time.monotonic(), epochs=epochs))
        async with asyncio.timeout(60):
            while machine.states()["taken back"] not in RUNNING:
                await moved.wait()
                moved.clear()
            await driver.cancel("taken back")
            while not set(machine.states().values()) <= TERMINAL:
                await moved.wait()
                moved.clear()
        assert check_state(machine.snapshot()) == []
        states = dict(machine.states())
        assert await executor.list_running() == []
        driver.stop()
        await running
    assert faults == []
    return states


def test_jobs_go_from_submission_to_their_end(tmp_path: Path) -> None:
    assert asyncio.run(_scene(tmp_path)) == ENDS
    assert processes_with(str(tmp_path)) == []
