"""Fetching a page from an exporter: with limits of time and size, and from nowhere else."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import IO, Final, NoReturn
from urllib.parse import urlsplit

from eaco_core.errors import EnvironmentFault, InputError

MAX_BYTES: Final = 16 << 20
"""More than an exporter of a full node sends; a page that is larger is refused."""

_CHUNK_BYTES: Final = 1 << 16


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A page that sends us elsewhere is no exporter of this node."""

    def redirect_request(  # noqa: PLR0917 - the signature of urllib
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> NoReturn:
        del req, msg, headers, newurl
        fp.close()
        raise EnvironmentFault(f"it answers with a redirect ({code}), which is not followed")


def check_url(url: str) -> str:
    """Give the URL back if it may be fetched; else raise `InputError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"this is no URL of an exporter: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise InputError("the URL of an exporter looks like http://127.0.0.1:9400/metrics")
    if parts.username is not None or parts.password is not None:
        raise InputError("no user name or password in the URL of an exporter: it would be shown")
    return url


def fetch(url: str, *, timeout_s: float) -> str:
    """Fetch a page of text. Raise `EnvironmentFault` with a reason; no proxy, no redirect."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    until_s = time.monotonic() + timeout_s
    try:
        with opener.open(check_url(url), timeout=timeout_s) as answer:
            return _read(answer, until_s, timeout_s).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            raise EnvironmentFault(f"it answers with HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise EnvironmentFault(f"it cannot be reached ({error.reason})") from None
    except TimeoutError:
        raise EnvironmentFault(f"it did not answer in {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        what = str(error) or type(error).__name__
        raise EnvironmentFault(f"its answer cannot be read ({what})") from None


def _read(answer: http.client.HTTPResponse, until_s: float, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(_CHUNK_BYTES):
        size += len(part)
        if size > MAX_BYTES:
            raise EnvironmentFault(f"its page is larger than {MAX_BYTES >> 20} MiB")
        # Each piece has its own time limit; a server that drips must not hold us.
        if time.monotonic() > until_s:
            raise TimeoutError(timeout_s)
        parts.append(part)
    return b"".join(parts)
