"""`eaco demo`: the whole live loop on this machine in about a minute."""

from __future__ import annotations

import asyncio
import importlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaco_adapters.cli._output import note, print_json, print_table
from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from eaco_adapters.demo.stage import Outcome

SCHEMA = "eaco.demo/1"
EXIT_INCOMPLETE = 1
_NEEDED = ("msgspec", "starlette", "uvicorn")


@click.command("demo", epilog="Example: eaco demo --seed 3")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.pass_context
def command(context: click.Context, /, *, seed: int, as_json: bool) -> None:
    """Show everything at once: a broker, a node, a server, and jobs that really train.

    It needs no GPU and no root. A virtual GPU is a CPU core to which its jobs are pinned;
    its watts are a model, and all of it is called simulated. One of the jobs is busier
    than its profile says, so that a placement has to be undone. Nothing is left behind.
    Exit status: 0 if a shared placement was kept and one undone, 1 if not.
    """
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise EnvironmentFault("the demo needs the extra: pip install 'eaco[serve]'") from None
    outcome = asyncio.run(_run(seed))
    if as_json:
        print_json(_document(outcome, seed))
    else:
        _print(outcome)
    if not (outcome.kept and outcome.undone):
        note(
            "this time no shared placement was kept and another undone: is the machine busy with"
            " other work? Try again"
        )
        context.exit(EXIT_INCOMPLETE)


async def _run(seed: int) -> Outcome:
    from eaco_adapters.demo.stage import Stage  # noqa: PLC0415 - needs the extra

    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def end(number: int) -> None:
        signals.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    try:
        with tempfile.TemporaryDirectory(prefix="eaco-demo-") as folder:
            return await Stage(Path(folder), seed, note).run()
    except asyncio.CancelledError:
        if signals:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _print(outcome: Outcome) -> None:
    click.echo()
    rows: list[tuple[str, ...]] = []
    for job in outcome.jobs:
        ratio = None if job.runtime_s is None else job.runtime_s / job.alone_s
        rows.append(
            (
                job.role.job_id,
                job.state,
                _number(job.alone_s, "{:.1f}"),
                _number(job.runtime_s, "{:.1f}"),
                _number(ratio, "x{:.2f}"),
                _number(job.wait_s, "{:.1f}"),
                str(job.undos),
                "-" if job.late is None else ("late" if job.late else "kept"),
                _number(job.energy_j, "{:.0f}"),
                _number(job.alone_j, "{:.0f}"),
            )
        )
    columns = (
        "job",
        "state",
        "alone s",
        "ran s",
        "",
        "wait s",
        "undone",
        "deadline",
        "J",
        "alone J",
    )
    print_table(columns, rows)
    energy = outcome.energy
    click.echo()
    click.echo(
        f"jobs {energy.of_jobs.energy_j:.0f} J + idle {energy.idle.energy_j:.0f} J + unattributed "
        f"{energy.unattributed.energy_j:.0f} J = {energy.total.energy_j:.0f} J of simulated GPUs"
    )
    saved = 1 - energy.of_jobs.energy_j / outcome.alone_j
    click.echo(
        f"each alone, at the watts measured alone: {outcome.alone_j:.0f} J; sharing saved "
        f"{saved:.0%} of the jobs' energy"
    )
    kept = f"{outcome.kept} shared placement{'s' * (outcome.kept != 1)} kept"
    click.echo(f"{kept}, {outcome.undone} undone, in {outcome.took_s:.0f} s")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _document(outcome: Outcome, seed: int) -> dict[str, Any]:
    energy = outcome.energy
    return {
        "schema": SCHEMA,
        "seed": seed,
        "simulated": True,
        "broker": outcome.through_broker,
        "took_s": outcome.took_s,
        "kept": outcome.kept,
        "undone": outcome.undone,
        "jobs": [
            {
                "job_id": job.role.job_id,
                "workload": job.role.workload.name,
                "state": job.state,
                "epochs": job.role.epochs,
                "alone_s": job.alone_s,
                "runtime_s": job.runtime_s,
                "wait_s": job.wait_s,
                "undos": job.undos,
                "late": job.late,
                "energy_j": job.energy_j,
                "alone_j": job.alone_j,
            }
            for job in outcome.jobs
        ],
        "energy": {
            "jobs_j": energy.of_jobs.energy_j,
            "idle_j": energy.idle.energy_j,
            "unattributed_j": energy.unattributed.energy_j,
            "total_j": energy.total.energy_j,
            "alone_j": outcome.alone_j,
        },
    }
