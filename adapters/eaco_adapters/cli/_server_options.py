"""How a command finds the server: the options, alike for every command, and how jobs are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from eaco_adapters.cli._option_types import file_path
from eaco_adapters.server.client import Client, find_server
from eaco_adapters.server.places import default_state_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    F = TypeVar("F", bound=Callable[..., Any])


def server_options(function: F) -> F:
    """Put --server and --token-file on a command; it gets `server` and `token_file`."""
    function = click.option(
        "--token-file",
        type=file_path,
        metavar="FILE",
        help="Token for a server on a port (or EACO_TOKEN).",
    )(function)
    return click.option(
        "--server",
        metavar="SOCKET|http://HOST:PORT",
        help="Where the server is (or EACO_SERVER). Default: the socket of this user's server.",
    )(function)


def client_of(server: str | None, token_file: Path | None) -> Client:
    """Give a client for what the options say. Raises InputError."""
    return Client(find_server(server, token_file, default_state_dir() / "eaco.sock"))


def job_line(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the cells of one job: id, state, epochs, GPUs, what is beside it, what is to be said."""
    epochs = f"{job['epochs_done']}/{job['epochs'] or '?'}"
    beside = ", ".join(job["sharing_with"]) or "-"
    state = str(job["state"])
    if job["late"]:
        state += " (late)"
    said = job["why"] or job["hint"] or ""
    return (str(job["job_id"]), state, epochs, str(job["gpus"]), beside, plain(str(said)))


def plain(text: str) -> str:
    """Give a text of somebody else so that it cannot steer the terminal or break a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


JOB_COLUMNS = ("job", "state", "epochs", "gpus", "beside", "why or hint")
