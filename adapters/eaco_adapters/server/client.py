"""The client of `eaco serve`: what the commands use, over its unix socket or its port.

Standard library only, so that `eaco submit` starts fast. Every call has a time limit, and what goes
wrong is an error by who must act: InputError for a request that was refused, EnvironmentFault for a
server that is not there or met a fault.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from attrs import field, frozen

from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

SERVER_VARIABLE: Final = "EACO_SERVER"
TOKEN_VARIABLE: Final = "EACO_TOKEN"  # noqa: S105 - the name of a variable
MAX_REQUEST_BYTES: Final = 1 << 20
"""As `api.MAX_BODY_BYTES`, which needs an extra."""
_MOST_BYTES: Final = 256 << 20


@frozen
class ServerAddress:
    """Where the server is: a unix socket, or host and port with a token."""

    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8470
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.socket) if self.socket is not None else f"http://{self.host}:{self.port}"


def find_server(given: str | None, token_file: Path | None, default_socket: Path) -> ServerAddress:
    """Give the address from an option, else from EACO_SERVER, else the socket of this user.

    A text with ``http://`` is a port, anything else the path of a socket. The token comes from its
    file or from EACO_TOKEN. Raises InputError.
    """
    text = given or os.environ.get(SERVER_VARIABLE) or str(default_socket)
    if not text.startswith("http://"):
        if text.startswith("https://"):
            raise InputError("the server speaks plain HTTP; give http:// or the path of its socket")
        return ServerAddress(socket=Path(text).expanduser())
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{text!r} is no address of a server: {error}") from None
    if not host or parts.path not in {"", "/"} or parts.username is not None:
        raise InputError(f"{text!r} is no address of a server; write http://127.0.0.1:8470")
    return ServerAddress(host=host, port=port or 8470, token=_token(token_file))


def _token(path: Path | None) -> str | None:
    where = TOKEN_VARIABLE if path is None else str(path)
    try:
        token = os.environ.get(TOKEN_VARIABLE) if path is None else path.read_text("utf-8").strip()
    except OSError as error:
        raise InputError(f"the token cannot be read: {error.strerror}", where=where) from None
    except UnicodeDecodeError:
        raise InputError("the token is not text", where=where) from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise InputError("the token has a character that none has", where=where)  # not which
    return token


class Client:
    """Asks one server. Each call is one connection."""

    def __init__(self, address: ServerAddress, *, timeout_s: float = 30.0) -> None:
        self.address = address
        self._timeout_s = timeout_s

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a job; give it as it is now."""
        return self._json("POST", "/v1/jobs", body=request)

    def jobs(
        self, *, state: str | None = None, limit: int = 1000, offset: int = 0
    ) -> dict[str, Any]:
        """List jobs in the order of submission; `state` may also be `open` or `ended`."""
        query: dict[str, Any] = {"limit": limit, "offset": offset}
        if state is not None:
            query["state"] = state
        return self._json("GET", f"/v1/jobs?{urlencode(query)}")

    def job(self, job_id: str) -> dict[str, Any]:
        """Give one job."""
        return self._json("GET", _job_path(job_id))

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel a job."""
        return self._json("DELETE", _job_path(job_id))

    def story(self, job_id: str) -> dict[str, Any]:
        """Tell why a job is where it is."""
        return self._json("GET", f"{_job_path(job_id)}/story")

    def log(self, job_id: str, offset: int = 0, limit: int = 65_536) -> dict[str, Any]:
        """Give what a job printed, from an offset on."""
        query = urlencode({"offset": offset, "limit": limit})
        return self._json("GET", f"{_job_path(job_id)}/log?{query}")

    def nodes(self) -> dict[str, Any]:
        """List nodes."""
        return self._json("GET", "/v1/nodes")

    def drain(self, node_id: str, *, drained: bool = True) -> dict[str, Any]:
        """Keep new jobs off a node, or let them again."""
        path = f"/v1/nodes/{_quoted(node_id, 'node')}/drain"
        return self._json("POST", path, body={"drained": drained})

    def status(self) -> dict[str, Any]:
        """Tell how the server is."""
        return self._json("GET", "/v1/status")

    def steps(self) -> Iterator[str]:
        """Follow the scheduler, step by step, until the server ends."""
        with self._connected(None) as connection:
            response = self._ask(connection, "GET", "/v1/steps", None)
            if response.status != HTTPStatus.OK:
                raise self._refusal(response.status, response.read(_MOST_BYTES))
            for line in response:
                yield line.decode("utf-8", errors="replace")

    def _json(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._connected(self._timeout_s) as connection:
            response = self._ask(connection, verb, path, body)
            data = response.read(_MOST_BYTES)
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self._refusal(response.status, data)
        try:
            return cast("dict[str, Any]", json.loads(data))
        except ValueError:
            raise EnvironmentFault(
                f"what answers at {self.address} is not eaco serve: its answer is not JSON"
            ) from None

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {"accept": "application/json", "connection": "close"}
        if self.address.token is not None:
            headers["authorization"] = f"Bearer {self.address.token}"
        data = None
        if body is not None:
            headers["content-type"] = "application/json"
            data = json.dumps(body).encode()
            if len(data) > MAX_REQUEST_BYTES:
                raise InputError(
                    f"this request has {len(data)} bytes; a server takes {MAX_REQUEST_BYTES}"
                )
        connection.request(verb, path, body=data, headers=headers)
        try:
            return connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            if verb != "POST":
                raise
            raise EnvironmentFault(
                f"the server at {self.address} went away before it answered; whether it took this "
                "is not known, `eaco jobs` tells (with --job-id the same may be given again)"
            ) from error

    @contextmanager
    def _connected(self, timeout_s: float | None) -> Generator[http.client.HTTPConnection]:
        address = self.address
        connection: http.client.HTTPConnection
        if address.socket is not None:
            connection = _UnixConnection(address.socket, self._timeout_s)
        else:
            connection = http.client.HTTPConnection(
                address.host, address.port, timeout=self._timeout_s
            )
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            yield connection
        except (FileNotFoundError, ConnectionRefusedError):
            raise EnvironmentFault(
                f"no server answers at {address}; start one with `eaco serve`, or name another "
                "with --server"
            ) from None
        except TimeoutError:
            raise EnvironmentFault(
                f"the server at {address} did not answer within {self._timeout_s:g} s"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise EnvironmentFault(f"the server at {address} cannot be asked: {error}") from None
        finally:
            connection.close()

    def _refusal(self, status: int, data: bytes) -> InputError | EnvironmentFault:
        try:
            sentence = str(cast("dict[str, Any]", json.loads(data))["error"])
        except (ValueError, KeyError, TypeError):
            sentence = f"the server at {self.address} answered with status {status}"
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                sentence = f"the server at {self.address} has too much to do; try again later"
        its_fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return EnvironmentFault(sentence) if its_fault else InputError(sentence)


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{_quoted(job_id, 'job')}"


def _quoted(name: str, what: str) -> str:
    if not name or name in {".", ".."}:
        raise InputError(f"there is no {what} {name!r}")
    return quote(name, safe="", errors="surrogateescape")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(str(self._path))
        except BaseException:
            self.sock.close()
            raise
