"""`eaco top`: live nodes, GPUs, watts and processes, of this machine or of a broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from eaco_adapters.cli._mqtt_options import Login, connection, mqtt_options_with, new_client_id
from eaco_adapters.cli._option_types import number
from eaco_adapters.cli._output import print_json
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from eaco_adapters.cli._top_snapshot import Snapshot
    from eaco_adapters.cli._top_source import Source

_EXAMPLES: Final = """\
\b
Examples:
  eaco top
  eaco top --simulate 8
  eaco top --broker mqtt://broker.lab --username ann --password-file secret
  eaco top --broker mqtts://broker.lab --once --json
"""
_MIN_PERIOD_S: Final = 0.1
_MAX_PERIOD_S: Final = 3600.0
_MOST_SIMULATED: Final = 1024
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_BROKER_ONLY: Final = ("site", "wait_s")


@click.command("top", epilog=_EXAMPLES)
@mqtt_options_with(
    "Show the nodes of this MQTT broker: mqtt://HOST[:1883], or mqtts://HOST[:8883] for TLS."
    "  [default: the sensors of this machine]"
)
@click.option("--site", metavar="NAME", help="Only the nodes of this site.  [default: all]")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="PATTERN",
    help="Only nodes with such a name, like box-1 or 'box-*'. Can be given again.",
)
@click.option(
    "--simulate",
    type=click.IntRange(1, _MOST_SIMULATED),
    metavar="N",
    help="Show N GPUs that do not exist, to try it out.",
)
@click.option(
    "--period-s",
    type=number(_MIN_PERIOD_S, _MAX_PERIOD_S),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, print and end.")
@click.option(
    "--wait-s",
    type=number(0.0, _MAX_PERIOD_S),
    default=5.0,
    show_default=True,
    metavar="S",
    help="With --broker: wait so long for nodes to send.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON (docs/top.md); without --once a line for each look.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    broker: str | None,
    site: str | None,
    nodes: tuple[str, ...],
    simulate: int | None,
    period_s: float,
    once: bool,
    wait_s: float,
    as_json: bool,
    **login: Any,  # noqa: ANN401 - the options of the login, typed by click
) -> None:
    """Show nodes, GPUs, watts and processes, again each second.

    Without --broker: the sensors of this machine, as far as your rights go. On a
    terminal a screen that q or Ctrl-C leaves; elsewhere a table for each look. What
    is not measured is shown as "-". Exit status: 0, or 1 if the broker cannot be
    reached or no node was seen.
    """
    _refuse_idle_options(context, Login(**login), broker, simulate)
    if broker is None:
        source = _local(nodes, simulate, period_s)
    else:
        options = connection(broker, Login(**login), client_id=new_client_id("top"))
        source = _broker(options, site, nodes)
    asyncio.run(_show(source, period_s, wait_s, once=once, as_json=as_json))


def _refuse_idle_options(
    context: click.Context, login: Login, broker: str | None, simulate: int | None
) -> None:
    """Refuse options that would do nothing: whoever gives one expects something of it."""
    if broker is not None:
        if simulate is not None:
            raise click.UsageError("--simulate is for this machine, but --broker is given", context)
        return
    given = list(login.given)
    given += [
        f"--{name.replace('_', '-')}"
        for name in _BROKER_ONLY
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{given[0]} needs --broker", context)


def _local(
    patterns: tuple[str, ...], simulate: int | None, period_s: float
) -> AbstractAsyncContextManager[Source]:
    from fnmatch import fnmatchcase  # noqa: PLC0415 - costs start-up time, as below

    from eaco_adapters.cli._top_source import local_source  # noqa: PLC0415 - as above
    from eaco_telemetry.readers.auto import choose_readers  # noqa: PLC0415 - as above

    node_id = _NO_NAME.sub("-", socket.gethostname())[:64] or "here"
    if patterns and not any(fnmatchcase(node_id, pattern) for pattern in patterns):
        raise InputError(f"this machine is {node_id}, which --node does not name")
    # Before the event loop runs: it blocks, and Ctrl-C shall end it at once.
    choice = choose_readers(node_id, simulate=simulate)
    return local_source(node_id, choice, period_s)


def _broker(
    options: Any,  # noqa: ANN401 - MqttOptions, whose module is loaded late
    site: str | None,
    patterns: tuple[str, ...],
) -> AbstractAsyncContextManager[Source]:
    from eaco_adapters.cli._top_source import broker_source  # noqa: PLC0415 - costs start-up time

    return broker_source(options, site=site or "+", patterns=patterns)


async def _show(
    opening: AbstractAsyncContextManager[Source],
    period_s: float,
    wait_s: float,
    *,
    once: bool,
    as_json: bool,
) -> None:
    async with opening as source:
        if once:
            _print(await source.first(wait_s), whole=True, as_json=as_json)
        elif _has_screen() and not as_json:
            from eaco_adapters.cli._top_screen import run_live  # noqa: PLC0415 - for a terminal

            await run_live(source, period_s)
        else:
            await _again_and_again(source, period_s, wait_s, as_json=as_json)


def _has_screen() -> bool:
    """Tell whether there is a terminal that can be drawn on, and not only written to."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


async def _again_and_again(
    source: Source, period_s: float, wait_s: float, *, as_json: bool
) -> None:
    loop = asyncio.get_running_loop()
    snapshot = await source.first(wait_s)
    next_s = loop.time()
    while True:
        _print(snapshot, whole=False, as_json=as_json)
        next_s = max(next_s + period_s, loop.time())
        await asyncio.sleep(next_s - loop.time())
        snapshot = await source.now()


def _print(snapshot: Snapshot, *, whole: bool, as_json: bool) -> None:
    """Print one look: `whole` if it is the only one, else something that can be followed."""
    if as_json:
        from eaco_adapters.cli._top_json import document  # noqa: PLC0415 - one of two ways

        found = document(snapshot)
        if whole:
            print_json(found)
        else:
            click.echo(json.dumps(found, allow_nan=False))
        sys.stdout.flush()
        return
    from eaco_adapters.cli import _top_cells as cells  # noqa: PLC0415 - as above
    from eaco_adapters.cli._top_pages import everything  # noqa: PLC0415 - as above

    lines = everything(snapshot, cells.terminal_size().columns)
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - as above

        console = Console(highlight=False, markup=False, emoji=False)
        for line in lines:
            console.print(line, no_wrap=True, crop=True)
    else:
        for line in lines:
            click.echo(cells.for_encoding(line.plain, sys.stdout.encoding).rstrip())
    if not whole:
        click.echo("")
    sys.stdout.flush()
