"""`eaco submit`: hand a job to the server."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaco_adapters.cli._option_types import number
from eaco_adapters.cli._output import note, print_json
from eaco_adapters.cli._server_options import client_of, plain, server_options
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB = 1 << 20
_GIB = 1 << 30


def _pair(value: object) -> tuple[str, str]:
    name, equals, content = str(value).partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{value!r} must be NAME=VALUE")
    return name, content


@click.command(
    "submit",
    epilog="Example: eaco submit --epochs 20 --workload resnet50 --deadline 'in 6h' -- python"
    " train.py --lr 0.1",
)
@click.option("--gpus", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="How many it will report.")
@click.option("--deadline", metavar="WHEN", help='"in 6h", or a time with its zone.')
@click.option("--workload", metavar="NAME", help="What it trains; jobs of one workload are alike.")
@click.option("--name", metavar="TEXT", help="A name for people; default: the program.")
@click.option("--job-id", metavar="ID", help="Your own id: the same request twice is one job.")
@click.option(
    "--memory-gib",
    type=number(0.0, _MIB, above=True),
    metavar="GIB",
    help="Peak memory on each GPU, if you know it.",
)
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, metavar="N")
@click.option(
    "--max-restarts", type=click.IntRange(0, 1000), metavar="N", help="After so many failures."
)
@click.option("--exclusive", is_flag=True, help="Never share its GPUs.")
@click.option(
    "--share-with",
    type=click.Choice(["any", "same_group", "same_user", "none"]),
    default="same_user",
    show_default=True,
)
@click.option("--group", metavar="NAME")
@click.option("--gpu-type", "gpu_types", multiple=True, metavar="TYPE", help="Only such GPUs.")
@click.option(
    "--select", "selectors", type=_pair, multiple=True, metavar="LABEL=VALUE", help="Only there."
)
@click.option(
    "--env", "variables", type=_pair, multiple=True, metavar="NAME=VALUE", help="For the job."
)
@click.option(
    "--checkpoints",
    type=click.Choice(["shared", "node", "none"]),
    default="shared",
    show_default=True,
    help="From where its last checkpoint can be read; none: it never shares.",
)
@click.option("--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Default: here.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    *,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
    command: tuple[str, ...],
    memory_gib: float | None,
    cwd: Path | None,
    selectors: tuple[tuple[str, str], ...],
    variables: tuple[tuple[str, str], ...],
    gpu_types: tuple[str, ...],
    **given: Any,  # noqa: ANN401 - the other options, typed by click
) -> None:
    """Submit COMMAND, with its arguments, as a job. No shell sees them.

    When this returns, the job is durable: it survives the server. Without --epochs and
    --workload the job always runs alone; a hint says how to gain from sharing.
    """
    request: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    request.update(
        command=list(command),
        cwd=str(Path.cwd() if cwd is None else cwd.absolute()),
        user=_user(),
        env={"PATH": os.environ.get("PATH", os.defpath), **dict(variables)},
        node_selector=dict(selectors),
    )
    if memory_gib is not None:
        request["mem_bytes"] = int(memory_gib * _GIB)
    if gpu_types:
        request["gpu_types"] = list(gpu_types)
    _check_text(command)
    job = client_of(server, token_file).submit(request)
    if as_json:
        print_json(job)
        return
    click.echo(job["job_id"])
    _say(job)


def _check_text(command: tuple[str, ...]) -> None:
    """Refuse an argument with bytes that are no text: no JSON can hold it."""
    for word in command:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"the argument {word!r} is no text in UTF-8") from None


def _say(job: Mapping[str, Any]) -> None:
    if job["hint"]:
        note(plain(f"hint: {job['hint']}"))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())
