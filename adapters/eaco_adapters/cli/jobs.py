"""`eaco jobs`: the jobs of the server, once or again each second."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any, cast

import click

from eaco_adapters.cli._option_types import number
from eaco_adapters.cli._output import note, print_json, print_table
from eaco_adapters.cli._server_options import (
    JOB_COLUMNS,
    client_of,
    job_line,
    plain,
    server_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_adapters.server.client import Client

_PAGE = 1000
_ENDED_SHOWN = 20
_CLEAR = "\x1b[H\x1b[2J"


@click.command("jobs", epilog="Example: eaco jobs --watch")
@click.argument("job", required=False)
@click.option("--state", metavar="STATE", help="Only jobs in this state; also: open, ended.")
@click.option("--all", "all_jobs", is_flag=True, help="Also ended jobs beyond the last few.")
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
    all_jobs: bool,
    watch: bool,
    period_s: float,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """List the jobs of the server, or show one JOB.

    Of jobs that have ended only the last few are listed, unless --all or --state is given.
    """
    client = client_of(server, token_file)
    while True:
        if job is not None:
            answer = client.job(job)
            found = [answer]
        else:
            answer = _list(client, state, all_jobs=all_jobs)
            found = answer["jobs"]
        if as_json:
            print_json(answer)
        else:
            if watch:
                click.echo(_CLEAR, nl=False)
            _show(found, alone=job is not None)
            left_out = 0 if job is not None else answer["total"] - len(found)
            if left_out:
                note(f"{left_out} ended jobs are not shown; --all shows them")
        if not watch:
            return
        time.sleep(period_s)


def _list(client: Client, state: str | None, *, all_jobs: bool) -> dict[str, Any]:
    """Give every job that is wanted, in pages; `total` counts also those left out."""
    if all_jobs or state is not None:
        return _pages(client, state)
    # In this order a job that ends meanwhile is seen twice, and never not at all.
    current = _pages(client, "open")["jobs"]
    ended = client.jobs(state="ended", limit=1)["total"]
    recent = client.jobs(state="ended", limit=_ENDED_SHOWN, offset=max(0, ended - _ENDED_SHOWN))
    jobs = {job["job_id"]: job for job in (*recent["jobs"], *current)}
    jobs.update((job["job_id"], job) for job in recent["jobs"])
    left_out = max(0, recent["total"] - len(recent["jobs"]))
    return {"jobs": list(jobs.values()), "total": len(jobs) + left_out}


def _pages(client: Client, state: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while True:
        page = client.jobs(state=state, limit=_PAGE, offset=len(found))
        found.update((job["job_id"], job) for job in page["jobs"])
        if len(page["jobs"]) < _PAGE:
            return {"jobs": list(found.values()), "total": len(found)}


def _show(jobs: list[dict[str, Any]], *, alone: bool) -> None:
    if not jobs:
        click.echo("there are no jobs")
    elif alone:
        width = max(len(name) for name in jobs[0])
        for name, value in jobs[0].items():
            click.echo(f"{name.ljust(width)}  {plain(_cell(value))}")
    else:
        print_table(JOB_COLUMNS, [job_line(job) for job in jobs])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return shlex.join(map(str, cast("list[object]", value))) or "-"
    return str(value)
