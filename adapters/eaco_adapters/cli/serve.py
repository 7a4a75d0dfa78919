"""`eaco serve`: the scheduler as a daemon on this machine."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
from typing import TYPE_CHECKING

import click

from eaco_adapters.cli._option_types import file_path
from eaco_adapters.cli._output import note
from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_adapters.server.start import Server

_NEEDED = ("msgspec", "starlette", "uvicorn")


@click.command("serve", epilog="Example: eaco serve --config eaco.toml")
@click.option(
    "--config", "config_path", type=file_path, metavar="FILE", help="TOML; see docs/serve.md."
)
@click.option(
    "--simulated-gpus",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Without --config: a node of N CPU cores that play GPUs.",
)
@click.option("--check", "only_check", is_flag=True, help="Read the configuration and end.")
@click.option("--verbose", is_flag=True, help="Tell more on stderr.")
def command(
    *, config_path: Path | None, simulated_gpus: int | None, only_check: bool, verbose: bool
) -> None:
    """Schedule jobs on this machine, until it is stopped.

    Jobs go on when the server ends, however it ends; the next one finds them. Without
    --config: this machine with its own GPUs, state and socket in the folder of this user.
    """
    from eaco_adapters.server.config import (  # noqa: PLC0415 - after the options were checked
        parse_config,
        read_config,
    )

    if config_path is not None:
        if simulated_gpus is not None:
            raise click.UsageError("--simulated-gpus is for a server without --config")
        config = read_config(config_path)
    elif simulated_gpus is not None:
        config = parse_config({"nodes": {"local": {"simulated_gpus": simulated_gpus}}})
    else:
        config = parse_config({})
    if only_check:
        click.echo(f"the configuration is good: {len(config.nodes)} node(s), {config.policy}")
        return
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise EnvironmentFault(
                "the server needs its extra: pip install 'eaco[serve]'"
            ) from None
    from importlib.metadata import version  # noqa: PLC0415 - costs start-up time

    from eaco_adapters.server.start import Server  # noqa: PLC0415 - needs the extra

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s"
    )
    # Not one line for each request that somebody sends in a wrong form.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    asyncio.run(_run(Server(config, version("eaco"), on_ready=_ready)))


async def _run(server: Server) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await server.run(stop)
    note("the server has ended; its jobs go on, and the next server finds them")


def _ready(server: Server) -> None:
    for sentence in server.notes:
        note(sentence)
    for node in server.nodes:
        gpus = ", ".join(f"{gpu.gpu_id} ({gpu.gpu_type})" for gpu in node.spec.gpus)
        note(f"node {node.spec.node_id}: {gpus}")
    listen = server.config.listen
    note(f"ready on {listen.socket}" + (f" and port {listen.http[1]}" if listen.http else ""))
