"""Many clients of one server, and rude ones: nobody keeps others out, nothing is taken twice."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eaco_adapters.server.client import Client, ServerAddress
from eaco_adapters.testing.server_process import ServerProcess
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core.errors import EacoError
from eaco_core.history import decode_line

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("served")) as process:
        process.start()
        yield process


def test_a_body_of_100_mb_is_refused_at_once(server: ServerProcess) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.socket))
        head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(head + b"content-length: 104857600\r\n\r\n")
        before = _resident_bytes(server.pid)
        for _ in range(1600):
            connection.sendall(b" " * 65536)
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 413
        response.close()
    assert _resident_bytes(server.pid) - before < 20_000_000
    assert server.client.jobs()["total"] == 0


def _resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _metrics(server: ServerProcess) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.socket))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        parts: list[bytes] = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def test_one_job_id_under_many_clients_is_one_job(server: ServerProcess) -> None:
    witness = server.state_dir.parent / "witness"
    command = list(toy_command(epochs=1, witness=str(witness)))
    answers: list[str] = []

    def insist() -> None:
        client = Client(ServerAddress(socket=server.socket))
        request = {"command": command, "job_id": "one"}
        answers.extend(client.submit(request)["job_id"] for _ in range(3))

    clients = [threading.Thread(target=insist) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert answers == ["one"] * 24
    server.wait_for("one", "finished")
    assert len(witness.read_text().splitlines()) == 2


def test_a_hundred_jobs_in_a_burst_are_taken_once_or_refused_with_a_reason(
    server: ServerProcess,
) -> None:
    server.client.drain("toy")
    before = server.client.jobs()["total"]
    accepted: list[str] = []
    refused: Counter[str] = Counter()

    def send(first: int) -> None:
        client = Client(ServerAddress(socket=server.socket), timeout_s=60)
        for number in range(first, 100, 20):
            request: dict[str, Any] = {"command": ["true"], "name": f"burst {number}"}
            try:
                accepted.append(str(client.submit(request)["job_id"]))
            except EacoError as error:
                refused[str(error)] += 1

    clients = [threading.Thread(target=send, args=(first,)) for first in range(20)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    assert len(accepted) + refused.total() == 100
    assert all(refused)
    assert len(set(accepted)) == len(accepted) == server.client.jobs()["total"] - before
    for job_id in accepted[:-2]:
        server.client.cancel(job_id)
    server.client.drain("toy", drained=False)
    for job_id in accepted[-2:]:
        server.wait_for(job_id, "finished")


def test_followers_get_every_step_and_do_not_hold_up_the_end(server: ServerProcess) -> None:
    lines: list[str] = []
    follower = threading.Thread(target=lambda: lines.extend(server.client.steps()))
    mute = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    try:
        follower.start()
        for one in mute:  # connect and say nothing, or half a request
            one.connect(str(server.socket))
        for one in mute[:20]:
            one.sendall(b"GET /v1/steps HTTP/1.1\r\nhost: x\r\n\r\n")
        while "eaco_followers 21" not in _metrics(server):
            time.sleep(0.05)
        job_id = server.submit("true")
        server.wait_for(job_id, "finished")
        began_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_s < 20
    finally:
        for one in mute:
            one.close()
        follower.join(20)
    assert not follower.is_alive()
    steps = [decode_line(line) for line in lines]
    assert any(job_id in line and "JobSubmitted" in line for line in lines)
    assert len(steps) >= 4
