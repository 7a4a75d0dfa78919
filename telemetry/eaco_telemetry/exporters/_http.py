"""A small HTTP server for one page of metrics: bounded, with time limits, closed cleanly."""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from prometheus_client.exposition import choose_encoder

from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

MAX_REQUESTS: Final = 16
"""Requests at the same time; one more is hung up on."""

REQUEST_LIMIT_S: Final = 5.0
"""How long a client may keep silent."""

_PATHS: Final = ("/metrics", "/")


class MetricsServer:
    """Serves a registry at ``/metrics`` on a thread of its own, until `close`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server = _Server(host, port, registry)
        except (OSError, OverflowError) as error:
            raise EnvironmentFault(
                f"cannot serve metrics on {host}, port {port}: {error};"
                " choose another port or address"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="eaco-metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port, *_ = self._server.server_address
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening, hang up on whoever is connected, end all threads."""
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = MAX_REQUESTS
    daemon_threads = False  # so that closing waits for them

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((host, port), _Handler)

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        if not isinstance(request, socket.socket):
            return
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._guard:
            self._open.add(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is to be had
            self._done(request)
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._done(request)

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Say nothing: a client that goes away is its own affair."""

    def hang_up(self) -> None:
        with self._guard:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def _done(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        with self._guard:
            if isinstance(request, socket.socket):
                self._open.discard(request)
        self._free.release()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = REQUEST_LIMIT_S
    server_version = "eaco"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
        """Say nothing: a scrape every few seconds is no news."""

    def _answer(self, *, with_body: bool) -> None:
        if self.path.partition("?")[0] not in _PATHS:
            self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
            return
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = encode(cast("_Server", self.server).registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
