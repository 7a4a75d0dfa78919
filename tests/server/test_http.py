"""The HTTP face and its client, over a real unix socket and a real port."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import stat
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from eaco_adapters.server import api
from eaco_adapters.server.client import Client, ServerAddress, find_server
from eaco_adapters.server.http import NotFound, make_app
from eaco_adapters.server.listen import listen_on_path, listen_on_port, read_token, serve_http
from eaco_core.errors import EnvironmentFault, EventRefused, InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from pathlib import Path

TOKEN = "0123456789abcdef-secret"  # noqa: S105 - made up


class FakeService:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None

    def _note(self, *asked: Any) -> None:  # noqa: ANN401 - whatever was asked
        self.asked.append(asked)
        if self.error is not None:
            raise self.error

    def _view(self, job_id: str) -> api.JobView:
        return api.JobView(
            job_id=job_id, name="n", state="queued", command=["x"], gpus=1, submitted="now"
        )

    async def submit(self, request: api.SubmitRequest) -> tuple[api.JobView, bool]:
        self._note("submit", request)
        return self._view(request.job_id or "made-1"), request.job_id != "old"

    async def jobs(self, state: str | None, offset: int, limit: int) -> api.JobList:
        self._note("jobs", state, offset, limit)
        return api.JobList(jobs=[self._view("a")], total=1)

    def job(self, job_id: str) -> api.JobView:
        self._note("job", job_id)
        return self._view(job_id)

    async def cancel(self, job_id: str) -> api.JobView:
        self._note("cancel", job_id)
        return self._view(job_id)

    async def story(self, job_id: str) -> api.Story:
        self._note("story", job_id)
        return api.Story(job_id=job_id, sentences=[])

    async def log(self, job_id: str, offset: int, limit: int) -> api.LogPart:
        self._note("log", job_id, offset, limit)
        return api.LogPart(job_id=job_id, attempt=1, text="é", offset=0, next_offset=2, ended=True)

    def nodes(self) -> api.NodeList:
        self._note("nodes")
        return api.NodeList(nodes=[])

    async def drain(self, node_id: str, *, drained: bool) -> api.NodeList:
        self._note("drain", node_id, drained)
        return api.NodeList(nodes=[])

    def status(self) -> api.Status:
        self._note("status")
        return api.Status(
            name="lab",
            version="0",
            policy="eaco",
            term=1,
            now_s=0.0,
            steps=1,
            queued=0,
            running=0,
            ended=0,
            faults=0,
            journal="j",
        )

    def metrics(self) -> str:
        self._note("metrics")
        return "eaco_term 1\n"

    async def steps(self) -> AsyncIterator[bytes]:
        yield b'{"seq":1}\n'
        yield b'{"seq":2}\n'


@contextmanager
def serving(service: FakeService, listener: socket.socket, token: str | None) -> Generator[None]:
    """Serve in a loop of a thread of its own."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    app = make_app(service, version="0.1", token=token)
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(serve_http(app, listener, stop))
    )
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()
        listener.close()


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService, tmp_path: Path) -> Generator[Client]:
    path = tmp_path / "eaco.sock"
    with serving(service, listen_on_path(path), None):
        yield Client(ServerAddress(socket=path))


@pytest.fixture
def port(service: FakeService) -> Generator[int]:
    listener = listen_on_port("127.0.0.1", 0)
    number: int = listener.getsockname()[1]
    with serving(service, listener, TOKEN):
        yield number


def test_everything_that_the_client_asks_arrives(client: Client, service: FakeService) -> None:
    assert client.submit({"command": ["python", "a b;c"], "gpus": 2})["job_id"] == "made-1"
    assert client.submit({"command": ["x"], "job_id": "old"})["job_id"] == "old"
    assert client.jobs(state="queued", limit=5)["total"] == 1
    assert client.job("a")["job_id"] == "a"
    client.cancel("a")
    client.story("a")
    assert client.log("a", 3, 7)["text"] == "é"
    client.nodes()
    client.drain("n1", drained=False)
    assert client.status()["name"] == "lab"
    assert list(client.steps()) == ['{"seq":1}\n', '{"seq":2}\n']
    names = [asked[0] for asked in service.asked]
    assert names == [
        *("submit", "submit", "jobs", "job", "cancel", "story", "log", "nodes", "drain", "status")
    ]
    assert service.asked[0][1].command == ["python", "a b;c"]
    assert service.asked[2] == ("jobs", "queued", 0, 5)
    assert service.asked[8] == ("drain", "n1", False)


def test_a_job_id_in_a_path_is_only_a_name(client: Client, service: FakeService) -> None:
    client.job("a b?c#d%20é")
    assert service.asked[-1] == ("job", "a b?c#d%20é")
    with pytest.raises(InputError, match="there is nothing here"):
        client.job("a/../../b")


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (InputError("the deadline has passed"), InputError, "the deadline has passed"),
        (NotFound("there is no job 'x'"), InputError, "there is no job 'x'"),
        (EventRefused("taken", event=None), InputError, "taken"),
        (EnvironmentFault("the disk is full"), EnvironmentFault, "the disk is full"),
        (InternalError("two owners"), EnvironmentFault, "met a fault of its own"),
    ],
)
def test_an_error_of_the_service_reaches_the_user_as_one_sentence(
    client: Client, service: FakeService, error: Exception, kind: type[Exception], sentence: str
) -> None:
    service.error = error
    with pytest.raises(kind, match=sentence):
        client.job("x")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "missing required field `command`"),
        ({"command": []}, "length >= 1"),
        ({"command": "rm -rf"}, "Expected `array`"),
        ({"command": ["x"], "gpu": 2}, "unknown field `gpu`"),
        ({"command": ["x"], "gpus": 0}, ">= 1"),
        ({"command": ["x"], "job_id": "../etc"}, "regex"),
        ({"command": ["x"], "job_id": "etc\n"}, "line feed"),
        ({"command": ["x"], "share_with": "everyone"}, "Invalid enum value"),
        ({"command": ["x"], "max_slowdown_ratio": 0.5}, ">= 1.0"),
    ],
)
def test_a_wrong_request_names_the_field(
    client: Client, service: FakeService, body: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        client.submit(body)
    assert service.asked == []


def _raw(port: int, text: bytes) -> tuple[int, Any]:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(text)
        response = http.client.HTTPResponse(connection)
        response.begin()
        data = response.read()
        response.close()
    return response.status, json.loads(data)


def _post(body: bytes, *headers: str) -> bytes:
    head = ["POST /v1/jobs HTTP/1.1", "host: x", f"authorization: Bearer {TOKEN}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (_post(b"{}", "content-type: text/plain", "content-length: 2"), 415),
        (_post(b"", "content-type: application/json", "content-length: 104857600"), 413),
        (_post(b"{", "content-type: application/json", "content-length: 1"), 400),
        (_post(b"\xff\xff", "content-type: application/json", "content-length: 2"), 400),
        (
            _post(b"[" * 200_000, "content-type: application/json", "content-length: 200000"),
            400,
        ),
        (
            _post(
                b"%x\r\n" % (2 << 20) + b" " * (2 << 20) + b"\r\n0\r\n\r\n",
                "content-type: application/json",
                "transfer-encoding: chunked",
            ),
            413,
        ),
    ],
)
def test_a_hostile_body_is_one_sentence(port: int, request_bytes: bytes, status: int) -> None:
    got, answer = _raw(port, request_bytes)
    assert got == status
    assert set(answer) == {"error"}


def test_a_port_needs_the_token(port: int, service: FakeService) -> None:
    for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1]):
        with pytest.raises(InputError, match="needs the server's token"):
            Client(ServerAddress(port=port, token=token)).status()
    assert service.asked == []
    assert Client(ServerAddress(port=port, token=TOKEN)).status()["name"] == "lab"


def test_query_parameters_are_checked(port: int) -> None:
    for query in ("limit=0", "limit=x", "limit=1e3", "offset=-1", "limit=" + "9" * 5000):
        text = f"GET /v1/jobs?{query} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        status, answer = _raw(port, text.encode())
        assert status == 400
        assert "whole number" in answer["error"]


def test_a_misspelt_query_parameter_is_refused(port: int) -> None:
    for path in ("/v1/jobs?stat=queued", "/v1/jobs/a/log?start=5"):
        text = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        status, answer = _raw(port, text.encode())
        assert status == 400
        assert "no query parameter" in answer["error"]


def test_what_cannot_be_done_here_names_what_can(client: Client) -> None:
    with pytest.raises(InputError, match="cannot be done here"):
        client._json("DELETE", "/v1/jobs")
    with pytest.raises(InputError, match="nothing here"):
        client._json("GET", "/v1/jobs/")  # no redirect to somewhere else


def test_a_fault_that_nobody_thought_of_is_one_sentence(
    client: Client, service: FakeService
) -> None:
    service.error = ZeroDivisionError("secret")
    with pytest.raises(EnvironmentFault, match="a fault of its own") as told:
        client.job("x")
    assert "secret" not in str(told.value)


def test_the_socket_is_for_its_owner_and_a_left_over_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen_on_path(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(EnvironmentFault, match="another server answers"):
        listen_on_path(path)
    first.close()  # as after SIGKILL: the file stays
    listen_on_path(path).close()
    path.unlink()
    path.write_text("mine")
    with pytest.raises(EnvironmentFault, match="is no socket"):
        listen_on_path(path)
    assert path.read_text() == "mine"
    with pytest.raises(EnvironmentFault, match="cannot listen"):
        listen_on_path(tmp_path / "no" / "s")
    with pytest.raises(EnvironmentFault, match="cannot listen"):
        listen_on_path(tmp_path / ("x" * 200))


def test_a_taken_port_is_one_sentence() -> None:
    with listen_on_port("127.0.0.1", 0) as first:
        number = first.getsockname()[1]
        with pytest.raises(EnvironmentFault, match="choose another port"):
            listen_on_port("127.0.0.1", number)


def test_a_token_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("short\n")
    path.chmod(0o600)
    with pytest.raises(InputError, match="at least 16"):
        read_token(path)
    path.write_text(TOKEN + "\n")
    assert read_token(path) == TOKEN
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_token(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_token(tmp_path / "missing")


def test_no_server_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="start one with `eaco serve`"):
        Client(ServerAddress(socket=tmp_path / "missing")).status()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = ServerAddress(port=mute.getsockname()[1], token=TOKEN)
        with pytest.raises(EnvironmentFault, match=r"did not answer within 0\.2 s"):
            Client(address, timeout_s=0.2).status()


def test_where_the_server_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EACO_SERVER", raising=False)
    default = tmp_path / "d.sock"
    assert find_server(None, None, default).socket == default
    monkeypatch.setenv("EACO_SERVER", "http://[::1]:99")
    monkeypatch.setenv("EACO_TOKEN", TOKEN)
    found = find_server(None, None, default)
    assert (found.host, found.port, found.token) == ("::1", 99, TOKEN)
    assert TOKEN not in repr(found)
    for secret in ("line\nbreak-secret", "ünicode-secret"):
        monkeypatch.setenv("EACO_TOKEN", secret)
        with pytest.raises(InputError) as told:
            find_server(None, None, default)
        assert "secret" not in str(told.value)
    for wrong in ("https://x", "http://", "http://x:y", "http://u:p@x", "http://x/path"):
        with pytest.raises(InputError):
            find_server(wrong, None, default)
