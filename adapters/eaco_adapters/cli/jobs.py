"""`eaco jobs`: the jobs of the server, once or again each second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import click

from eaco_adapters.cli._option_types import number
from eaco_adapters.cli._output import print_json, print_table
from eaco_adapters.cli._server_options import JOB_COLUMNS, client_of, job_line, server_options

if TYPE_CHECKING:
    from pathlib import Path

_CLEAR = "\x1b[H\x1b[2J"


@click.command("jobs", epilog="Example: eaco jobs --watch")
@click.argument("job", required=False)
@click.option("--state", metavar="STATE", help="Only jobs in this state.")
@click.option("--watch", is_flag=True, help="Show them again each second, until Ctrl-C.")
@click.option(
    "--period-s", type=number(0.2, 3600.0), default=1.0, metavar="S", help="With --watch."
)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    job: str | None,
    state: str | None,
    watch: bool,
    period_s: float,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """List the jobs of the server, or show one JOB."""
    client = client_of(server, token_file)
    while True:
        if job is not None:
            answer = client.job(job)
            found = [answer]
        else:
            answer = client.jobs(state=state, limit=10_000)
            found = answer["jobs"]
        if as_json:
            print_json(answer)
        else:
            if watch:
                click.echo(_CLEAR, nl=False)
            _show(found, alone=job is not None)
        if not watch:
            return
        time.sleep(period_s)


def _show(jobs: list[dict[str, Any]], *, alone: bool) -> None:
    if not jobs:
        click.echo("there are no jobs")
    elif alone:
        width = max(len(name) for name in jobs[0])
        for name, value in jobs[0].items():
            click.echo(f"{name.ljust(width)}  {_cell(value)}")
    else:
        print_table(JOB_COLUMNS, [job_line(job) for job in jobs])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(str, cast("list[object]", value))) or "-"
    return str(value)
