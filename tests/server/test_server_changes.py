"""A server whose nodes, journal or place were changed: no job runs twice, no command is lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.server.api import SubmitRequest
from eaco_adapters.server.config import parse_config
from eaco_adapters.server.start import Server
from eaco_adapters.testing.killed_server import toy_config
from eaco_adapters.testing.server_process import ServerProcess
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path) as process:
        yield process


def test_a_node_on_which_jobs_run_cannot_be_left_out(server: ServerProcess) -> None:
    server.start()
    job_id = server.submit("sleep", "60")
    server.wait_for(job_id, "settled", "observing")
    server.stop()
    before = server.config_file.read_text()
    server.config_file.write_text(before.replace('"toy"', '"other"', 2))
    with pytest.raises(EnvironmentFault, match="node toy is not in the configuration any more"):
        server.start()
    assert len(server.job_processes()) == 1
    server.config_file.write_text(before)
    server.start()
    assert server.client.job(job_id)["attempt"] == 1
    server.client.cancel(job_id)
    server.wait_for(job_id, "cancelled")
    server.stop()
    server.config_file.write_text(before.replace('"toy"', '"other"', 2))
    server.start()
    states = {node["node_id"]: node["state"] for node in server.client.nodes()["nodes"]}
    assert states == {"toy": "out", "other": "awake"}


def test_a_job_on_a_node_that_has_changed_never_runs_twice_at_once(tmp_path: Path) -> None:
    nodes = {"a": {"simulated_gpus": 1}, "toy": {"simulated_gpus": 1}}
    with ServerProcess(tmp_path, nodes=nodes) as server:
        server.start()
        witness, alone = tmp_path / "witness", tmp_path / "alone"
        words = toy_command(epochs=400, epoch_s=0.1, witness=str(witness), alone=str(alone))
        job_id = server.submit(*words, epochs=400)
        (gpu_id,) = server.wait_for(job_id, "settled", "observing")["gpu_ids"]
        node_id = gpu_id.split("-")[1]
        while server.client.job(job_id)["epochs_done"] < 2:
            time.sleep(0.05)
        server.stop()
        text = server.config_file.read_text()
        place = f'["nodes"."{node_id}"]\n"simulated_gpus" = 1'
        assert place in text
        server.config_file.write_text(text.replace(place, place.replace("= 1", "= 2")))
        server.start()
        assert f"node {node_id} has changed: job {job_id}" in server.words()
        before = server.client.job(job_id)["epochs_done"]
        while server.client.job(job_id)["epochs_done"] <= before:
            time.sleep(0.05)
        assert server.client.job(job_id)["attempt"] == 2
        told = witness.read_text()
        assert told.count("begin") == 2
        assert "twice" not in told


def test_a_new_journal_begins_after_what_the_runners_have_seen(server: ServerProcess) -> None:
    server.start()
    server.stop()
    server.start()
    job_id = server.submit("sleep", "60", job_id="old")
    server.wait_for(job_id, "settled", "observing")
    server.stop()
    for path in server.state_dir.glob("journal*"):
        path.rename(path.with_name(f"old-{path.name}"))
    server.start()
    assert server.client.status()["term"] == 3
    while server.job_processes():  # nobody knows this job any more
        time.sleep(0.05)
    assert server.wait_for(server.submit("true"))["state"] == "finished"
    server.stop()
    (server.state_dir / "nodes" / "toy" / "term").write_text("99")
    server.start()
    assert server.client.status()["term"] == 100


def test_a_server_that_was_replaced_ends_with_one_sentence(tmp_path: Path) -> None:
    async def play() -> None:
        server = Server(parse_config(toy_config(tmp_path / "state", 1)), "test")
        stop, ready = asyncio.Event(), asyncio.Event()
        server.on_ready = lambda _: ready.set()
        running = asyncio.create_task(server.run(stop))
        await ready.wait()
        assert server.service is not None
        server.nodes[0].runner._term = 99  # as if another one had given commands meanwhile
        await server.service.submit(SubmitRequest(command=["true"], job_id="a"))
        await running

    with pytest.raises(EnvironmentFault, match="another scheduler has taken over"):
        asyncio.run(play())
