"""`eaco drain`: keep new jobs off a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eaco_adapters.cli._output import print_json, print_table
from eaco_adapters.cli._server_options import client_of, server_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command("drain", epilog="Example: eaco drain box-1; eaco drain --undo box-1")
@click.argument("node", required=False)
@click.option("--undo", is_flag=True, help="Let jobs start there again.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as JSON.")
def command(
    *, node: str | None, undo: bool, server: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Let no new job start on NODE; those that run go on. Without NODE: list the nodes."""
    client = client_of(server, token_file)
    answer = client.nodes() if node is None else client.drain(node, drained=not undo)
    if as_json:
        print_json(answer)
        return
    rows = [
        (
            str(one["node_id"]),
            str(one["state"]) + (", drained" if one["drained"] else ""),
            str(len(one["gpus"])),
            str(sum(bool(gpu["jobs"]) for gpu in one["gpus"])),
            "simulated" if one["simulated"] else "",
        )
        for one in answer["nodes"]
    ]
    print_table(("node", "state", "gpus", "held", ""), rows)
