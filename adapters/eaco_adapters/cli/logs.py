"""`eaco logs`: what a job printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from eaco_adapters.cli._server_options import client_of, server_options

if TYPE_CHECKING:
    from pathlib import Path

_PAUSE_S = 0.5


@click.command("logs", epilog="Example: eaco logs --follow train-7")
@click.argument("job")
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@server_options
def command(*, job: str, follow: bool, server: str | None, token_file: Path | None) -> None:
    """Print what the newest attempt of JOB wrote to its standard output and error."""
    client = client_of(server, token_file)
    offset, attempt = 0, None
    while True:
        part = client.log(job, offset)
        if attempt not in {None, part["attempt"]}:
            click.echo(f"--- attempt {part['attempt']} ---", err=True)
            offset, attempt = 0, part["attempt"]
            continue
        attempt = part["attempt"]
        click.echo(part["text"], nl=False)
        at_end = part["next_offset"] == part["offset"]
        offset = part["next_offset"]
        if at_end and (not follow or part["ended"]):
            return
        if at_end:
            time.sleep(_PAUSE_S)
