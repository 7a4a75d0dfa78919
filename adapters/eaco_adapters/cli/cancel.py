"""`eaco cancel`: take jobs back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eaco_adapters.cli._output import print_json
from eaco_adapters.cli._server_options import client_of, server_options
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@click.command("cancel", epilog="Example: eaco cancel train-7")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON.")
def command(
    *, jobs: tuple[str, ...], server: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Cancel one JOB or more. One that runs is ended; one that has ended stays as it is."""
    client = client_of(server, token_file)
    answers: list[dict[str, Any]] = []
    refused: list[str] = []
    for job in jobs:
        try:
            answers.append(client.cancel(job))
        except InputError as error:
            refused.append(str(error))
    if as_json:
        print_json({"jobs": answers})
    else:
        for answer in answers:
            click.echo(f"{answer['job_id']}: {answer['state']}")
    if refused:
        raise InputError("; ".join(refused))
