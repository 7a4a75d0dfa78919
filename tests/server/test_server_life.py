"""What outlives a server, and what the next one makes of it."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.testing.server_process import ServerProcess
from eaco_adapters.testing.toy_trainer import toy_command

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path) as process:
        yield process


def test_jobs_outlive_the_server_and_the_next_one_finds_them(server: ServerProcess) -> None:
    server.start()
    witness = server.state_dir.parent / "witness"
    words = toy_command(epochs=30, epoch_s=0.1, witness=str(witness))
    first = server.submit(*words, job_id="first", epochs=30)
    server.wait_for(first, "settled", "observing")
    queued = server.submit("true", job_id="queued", gpus=2)
    assert server.stop() == 0
    assert "its jobs go on" in server.words().splitlines()[-1]
    assert not server.socket.exists()
    assert len(server.job_processes()) == 1
    server.start()
    assert server.client.status()["term"] == 2
    server.wait_for(first, "settled", "observing", "finished")
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert server.socket.exists()  # and the next server takes it over
    server.start()
    assert server.wait_for(first)["attempt"] == 1
    assert server.wait_for(queued)["state"] == "finished"
    assert server.client.job(first)["epochs_done"] == 30
    assert len(witness.read_text().splitlines()) == 2


def test_what_ended_while_no_server_was_there_is_told_by_the_next(server: ServerProcess) -> None:
    server.start()
    job_id = server.submit(*toy_command(epochs=2, epoch_s=0.2, exit_code=9), max_restarts=0)
    server.wait_for(job_id, "settled", "observing")
    server.stop(signal.SIGKILL)
    while server.job_processes():
        time.sleep(0.05)
    server.start()
    job = server.wait_for(job_id)
    assert (job["state"], job["exit_code"]) == ("failed", 9)


def test_an_end_that_only_the_journal_knows_is_completed(server: ServerProcess) -> None:
    server.start()
    job_id = server.submit("false", max_restarts=0, deadline="in 1h")
    server.wait_for(job_id, "failed")
    path = server.state_dir / "jobs" / f"{job_id}.json"
    while b'"exit_code":1' not in path.read_bytes():
        time.sleep(0.05)
    before = server.client.job(job_id)
    server.stop()
    text = path.read_text()
    kept = text[: text.index('"started_wall_s"')] + '"exit_code":null}'
    path.write_text(kept)  # as if it had been killed before it wrote this
    server.start()
    after = server.client.job(job_id)
    assert (after["exit_code"], after["late"]) == (1, False)
    assert after["ended"][:16] >= before["ended"][:16]


def test_a_job_of_which_the_journal_knows_nothing_is_set_aside(server: ServerProcess) -> None:
    server.start()
    server.submit("true", job_id="known")
    server.wait_for("known")
    server.stop()
    jobs = server.state_dir / "jobs"
    (jobs / "ghost.json").write_text((jobs / "known.json").read_text().replace("known", "ghost"))
    server.start()
    assert "knows nothing of 1 job(s): ghost" in server.words()
    assert [job["job_id"] for job in server.client.jobs()["jobs"]] == ["known"]
    assert (jobs / "ghost.unknown").exists()
    assert server.submit("true", job_id="ghost") == "ghost"
    server.wait_for("ghost", "finished")


def test_a_lost_file_of_a_job_does_not_stop_the_server(server: ServerProcess) -> None:
    server.start()
    server.client.drain("toy")
    server.submit("true", job_id="lost")
    server.stop()
    (server.state_dir / "jobs" / "lost.json").unlink()
    server.start()
    server.client.drain("toy", drained=False)
    assert server.wait_for(server.submit("true"))["state"] == "finished"
    assert server.client.status()["queued"] in {0, 1}
