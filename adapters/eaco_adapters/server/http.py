"""The HTTP face of the server: Starlette routes over a `Service`.

One app for the unix socket, where the file's permissions say who may ask, and one for a port, where
every request needs the token. Bodies are bounded, checked while they are parsed, and read within a
time limit. Whatever goes wrong is one sentence in JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from eaco_adapters.server import api
from eaco_adapters.server.openapi import openapi_document
from eaco_core.errors import EacoError, EnvironmentFault, EventRefused, InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    Handler = Callable[[Request], Awaitable[Response]]

_LOG: Final = logging.getLogger("eaco.server")
_BODY_TIMEOUT_S: Final = 30.0
_JSON: Final = "application/json"
_MOST_LISTED: Final = 10_000
_MOST_LOG_BYTES: Final = 1 << 20
_LARGEST: Final = 1 << 50


class NotFound(InputError):
    """The user must act: there is no such job or node."""


class Service(Protocol):
    """What the server can do; `eaco_adapters.server.service` does it."""

    async def submit(self, request: api.SubmitRequest) -> tuple[api.JobView, bool]:
        """Submit a job; True if it is new. Raises InputError, EventRefused, EnvironmentFault."""
        ...

    async def jobs(self, state: str | None, offset: int, limit: int) -> api.JobList:
        """List jobs."""
        ...

    def job(self, job_id: str) -> api.JobView:
        """Give one job. Raises NotFound."""
        ...

    async def cancel(self, job_id: str) -> api.JobView:
        """Cancel a job; one that has ended stays as it is. Raises NotFound."""
        ...

    async def story(self, job_id: str) -> api.Story:
        """Tell why a job is where it is. Raises NotFound."""
        ...

    async def log(self, job_id: str, offset: int, limit: int) -> api.LogPart:
        """Give what a job printed. Raises NotFound."""
        ...

    def nodes(self) -> api.NodeList:
        """List nodes."""
        ...

    async def drain(self, node_id: str, *, drained: bool) -> api.NodeList:
        """Keep new jobs off a node, or let them again. Raises NotFound."""
        ...

    def status(self) -> api.Status:
        """Tell how the server is."""
        ...

    def metrics(self) -> str:
        """Give figures in the text format of Prometheus."""
        ...

    def steps(self) -> AsyncIterator[bytes]:
        """Give every step from now on, as lines of history."""
        ...


def make_app(service: Service, *, version: str, token: str | None = None) -> ASGIApp:
    """Make the app. With a `token` every request needs it."""
    routes = _Routes(service, version)
    app = Starlette(routes=[*routes.all()], exception_handlers={404: _no_route, 405: _no_method})
    app.router.redirect_slashes = False
    return app if token is None else _TokenGate(app, token)


class _Routes:
    def __init__(self, service: Service, version: str) -> None:
        self._service = service
        self._document = msgspec.json.encode(openapi_document(version))

    def all(self) -> list[Route]:
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/v1/status", self.status),
            ("POST", "/v1/jobs", self.submit),
            ("GET", "/v1/jobs", self.jobs),
            ("GET", "/v1/jobs/{job_id}", self.job),
            ("DELETE", "/v1/jobs/{job_id}", self.cancel),
            ("GET", "/v1/jobs/{job_id}/story", self.story),
            ("GET", "/v1/jobs/{job_id}/log", self.log),
            ("GET", "/v1/nodes", self.nodes),
            ("POST", "/v1/nodes/{node_id}/drain", self.drain),
            ("GET", "/v1/steps", self.steps),
            ("GET", "/metrics", self.metrics),
            ("GET", "/openapi.json", self.openapi),
        ]
        return [Route(path, _answered(handler), methods=[verb]) for verb, path, handler in table]

    async def status(self, _request: Request) -> Response:
        return _json(self._service.status())

    async def submit(self, request: Request) -> Response:
        form = _decoded(await _body(request), api.SubmitRequest)
        view, is_new = await self._service.submit(form)
        return _json(view, 201 if is_new else 200)

    async def jobs(self, request: Request) -> Response:
        _only(request, "state", "offset", "limit")
        state = request.query_params.get("state")
        offset = _whole(request, "offset", 0, least=0, most=_LARGEST)
        limit = _whole(request, "limit", 1000, least=1, most=_MOST_LISTED)
        return _json(await self._service.jobs(state, offset, limit))

    async def job(self, request: Request) -> Response:
        return _json(self._service.job(request.path_params["job_id"]))

    async def cancel(self, request: Request) -> Response:
        return _json(await self._service.cancel(request.path_params["job_id"]), 202)

    async def story(self, request: Request) -> Response:
        return _json(await self._service.story(request.path_params["job_id"]))

    async def log(self, request: Request) -> Response:
        _only(request, "offset", "limit")
        offset = _whole(request, "offset", 0, least=0, most=_LARGEST)
        limit = _whole(request, "limit", 65_536, least=1, most=_MOST_LOG_BYTES)
        return _json(await self._service.log(request.path_params["job_id"], offset, limit))

    async def nodes(self, _request: Request) -> Response:
        return _json(self._service.nodes())

    async def drain(self, request: Request) -> Response:
        form = _decoded(await _body(request), api.DrainRequest)
        node_id = request.path_params["node_id"]
        return _json(await self._service.drain(node_id, drained=form.drained))

    async def steps(self, _request: Request) -> Response:
        return StreamingResponse(self._service.steps(), media_type="application/x-ndjson")

    async def metrics(self, _request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self._service.metrics(), headers={"content-type": kind})

    async def openapi(self, _request: Request) -> Response:
        return Response(self._document, media_type=_JSON)


class _TokenGate:
    """Lets a request through only with the right token; compares in constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            given: bytes = headers.get(b"authorization", b"")
            kind, _, value = given.partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(value.strip(), self._token):
                sentence = "this needs the server's token (authorization: Bearer ...)"
                response = _json(api.Problem(error=sentence), 401)
                response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Refusal(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def _answered(handler: Handler) -> Handler:
    """Turn what a handler raises into an answer with one sentence."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except _Refusal as refusal:
            return _problem(refusal.status, str(refusal))
        except NotFound as error:
            return _problem(404, str(error))
        except EventRefused as error:
            return _problem(409, str(error))
        except InputError as error:
            return _problem(400, str(error))
        except EnvironmentFault as error:
            return _problem(503, str(error))
        except EacoError:
            _LOG.exception("a request met a fault of the server")
            return _problem(503, "the server met a fault of its own; its log has the details")
        except Exception:  # noqa: BLE001 - one sentence also for what nobody thought of
            _LOG.exception("a request met a fault of the server")
            return _problem(500, "the server met a fault of its own; its log has the details")

    return answer


def _only(request: Request, *names: str) -> None:
    """Refuse query parameters that do not exist: a misspelt one would be without effect."""
    unknown = sorted(set(request.query_params) - set(names))
    if unknown:
        known = f"; there are {', '.join(names)}" if names else ""
        raise _Refusal(400, f"there is no query parameter `{unknown[0]}` here{known}")


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise _Refusal(415, f"send JSON with the content type {_JSON}")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > api.MAX_BODY_BYTES:
        raise _Refusal(413, f"a request holds at most {api.MAX_BODY_BYTES} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > api.MAX_BODY_BYTES:
                    raise _Refusal(413, f"a request holds at most {api.MAX_BODY_BYTES} bytes")
                parts.append(part)
    except TimeoutError:
        raise _Refusal(408, f"the request did not arrive within {_BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise _Refusal(400, "the client went away") from None
    return b"".join(parts)


def _decoded(body: bytes, form: type[Any]) -> Any:  # noqa: ANN401 - an instance of the form
    try:
        return msgspec.json.decode(body, type=form)
    except msgspec.ValidationError as error:
        raise _Refusal(400, f"the request is wrong: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _Refusal(400, f"the request is not JSON: {error}") from None


def _whole(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    # No more digits than the largest number has: Python refuses to read very long ones.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):  # noqa: PLR2004 - 2**64 has 20
        raise _Refusal(400, f"`{name}` must be a whole number from {least} to {most}")
    return int(text)


def _json(form: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(form), status, media_type=_JSON)


def _problem(status: int, sentence: str) -> Response:
    return _json(api.Problem(error=" ".join(sentence.split())), status)


async def _no_route(_request: Request, _error: Exception) -> Response:
    return _problem(404, "there is nothing here; /openapi.json tells what there is")


async def _no_method(_request: Request, error: Exception) -> Response:
    answer = _problem(405, "this cannot be done here; /openapi.json tells what can")
    answer.headers.update(getattr(error, "headers", None) or {})  # Allow: what can be done
    return answer
