"""Readings of a server: from sensors or a broker, and processes that are not its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from eaco_adapters.server.config import parse_config
from eaco_adapters.server.feed import own_pids
from eaco_adapters.server.start import Server
from eaco_adapters.testing.killed_server import toy_config
from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.agent import Agent, AgentOptions
from eaco_telemetry.broker import running_broker
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.readers.virtual import VirtualGpuReader
from eaco_telemetry.sampler import Sampler
from eaco_telemetry.transport import MqttOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

GPU = "SIM-toy-0"


@asynccontextmanager
async def serving(folder: Path, **telemetry: Any) -> AsyncGenerator[Server]:  # noqa: ANN401 - keys of the table
    config = toy_config(folder / "state", 1)
    config["telemetry"] = {"period_s": 0.2, **telemetry}
    server = Server(parse_config(config), "test")
    stop, ready = asyncio.Event(), asyncio.Event()
    server.on_ready = lambda _: ready.set()
    running = asyncio.create_task(server.run(stop))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield server
    finally:
        waiting.cancel()
        stop.set()
        await asyncio.wait([running])
    running.result()


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not found():  # noqa: ASYNC110 - the server has no event for this
            await asyncio.sleep(0.05)


def gpu_of(server: Server) -> Any:  # noqa: ANN401 - a view
    assert server.service is not None
    return server.service.nodes().nodes[0].gpus[0]


def test_a_process_of_somebody_else_is_seen_and_keeps_jobs_away(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path) as server:
            assert server.service is not None
            await until(lambda: gpu_of(server).foreign is False)
            stranger = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
                [sys.executable, "-c", "input()"],
                stdin=subprocess.PIPE,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": GPU},
            )
            try:
                await until(lambda: gpu_of(server).foreign is True)
            finally:
                stranger.communicate(b"\n")
            await until(lambda: gpu_of(server).foreign is False)

    asyncio.run(play())


def test_processes_of_jobs_are_ours_also_without_their_environment(tmp_path: Path) -> None:
    mark = f"EACO_STOP_FILE={tmp_path}/attempts/a@1/stop"
    script = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60'], env={});"
        "print(p.pid, flush=True); input(); p.kill(); p.wait()"
    )
    job = subprocess.Popen(
        ["/usr/bin/env", mark, sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    child = int(job.stdout.readline())
    pids = {job.pid, child, os.getpid()}
    assert own_pids(pids, tmp_path) == {job.pid, child}
    assert own_pids(pids, tmp_path / "other") == set()
    job.communicate(b"\n")
    assert own_pids({child}, tmp_path / "other") == {child}  # what is gone is no stranger


def test_readings_come_over_a_broker(tmp_path: Path) -> None:
    async def play() -> None:
        async with running_broker("auto") as address:
            where = f"{address.host}:{address.port}"
            async with serving(tmp_path, broker=where, site="here") as server:
                connect = mqtt_connector(MqttOptions(host=address.host, port=address.port))
                for site, node, seen in (("there", "toy", 0), ("here", "toy", 1)):
                    sampler = Sampler(
                        [VirtualGpuReader({GPU: 1 << 30})], node_id=node, session_id=site
                    )
                    stop = asyncio.Event()
                    options = AgentOptions(site=site, node_id=node, period_s=0.1)
                    agent = asyncio.create_task(Agent(sampler, connect, options).run(stop))
                    if seen:
                        await until(lambda: gpu_of(server).util_ratio is not None)
                    else:
                        await asyncio.sleep(0.5)
                        assert gpu_of(server).util_ratio is None
                    stop.set()
                    await agent

    asyncio.run(play())


def test_a_broker_that_is_not_there_does_not_stop_the_server(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path, broker="127.0.0.1:9") as server:
            await asyncio.sleep(0.5)
            assert server.service is not None
            assert server.service.status().queued == 0

    asyncio.run(play())


def _refuse(folder: Path, **telemetry: Any) -> str:  # noqa: ANN401 - keys of the table
    context: AbstractAsyncContextManager[Server] = serving(folder, **telemetry)

    async def play() -> None:
        async with context:
            pass

    with pytest.raises((InputError, EnvironmentFault)) as refused:
        asyncio.run(play())
    return str(refused.value)


def test_what_is_wrong_with_a_broker_is_told_at_the_start(tmp_path: Path) -> None:
    broker = "mqtt://me@127.0.0.1:9"
    assert "cannot be read" in _refuse(tmp_path, broker=broker, password_file=str(tmp_path / "no"))
    assert "is wrong" in _refuse(tmp_path, broker="mqtt://me:secret@host")
    assert "secret" not in _refuse(tmp_path, broker="mqtt://me:secret@host")
    assert "exclude each other" in _refuse(tmp_path, broker=broker, local=True)
    assert "is for readings from a `broker`" in _refuse(tmp_path, username="me")
    with suppress(FileNotFoundError):
        assert not (tmp_path / "state" / "journal").exists()
