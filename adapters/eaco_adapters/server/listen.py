"""Sockets of the server, and the HTTP server that runs on them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

import uvicorn

from eaco_adapters.server.connection import Connection
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from starlette.types import ASGIApp

_BACKLOG: Final = 512
_CONCURRENCY: Final = 256
_SHORTEST_TOKEN: Final = 16
_STOP_S: Final = 5


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def serve_http(app: ASGIApp, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve an app on a socket that listens, until `stop`."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        http=Connection,
        ws="none",
        limit_concurrency=_CONCURRENCY,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_STOP_S,
        server_header=False,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        server.should_exit = True
        await asyncio.wait([serving])
    serving.result()


def listen_on_path(path: Path) -> socket.socket:
    """Listen on a unix socket that only this user may open. Raises EnvironmentFault.

    A socket that a server left behind when it was killed is taken away; one that answers is not.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_over(path)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
        listener.settimeout(0.0)
    except OSError as error:
        listener.close()
        raise EnvironmentFault(f"cannot listen on {path}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def listen_on_port(host: str, port: int) -> socket.socket:
    """Listen on a TCP port. Raises EnvironmentFault."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.settimeout(0.0)
    except OSError as error:
        listener.close()
        raise EnvironmentFault(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port"
        ) from error
    return listener


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def read_token(path: Path) -> str:
    """Read the token of the server. Raises InputError if it is short, or not only its owner's."""
    try:
        mode = path.stat().st_mode
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token cannot be read: {error}", where=str(path)) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError("others may read the token; chmod 600 it", where=str(path))
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(
            f"a token has at least {_SHORTEST_TOKEN} printable characters, such as "
            "`openssl rand -hex 32` gives",
            where=str(path),
        )
    return token


def _remove_left_over(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise EnvironmentFault(f"{path} is there and is no socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise EnvironmentFault(f"another server answers at {path}; stop it first")
