"""`eaco profile`: measure a workload alone, or two together, and keep it as profiles."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaco_adapters.cli._option_types import file_path
from eaco_adapters.cli._output import check_writable, print_json, print_table, write_file
from eaco_adapters.cli.agent import default_node_id
from eaco_adapters.measuring import Measured, Place, Workload, measure, virtual_place
from eaco_core.errors import InputError
from eaco_core.jobs import SoloProfile
from eaco_predictors.own_profiles import format_profiles, read_profiles
from eaco_predictors.profile_table import ProfileTable
from eaco_telemetry.readers.auto import choose_readers
from eaco_telemetry.sampler import Sampler

if TYPE_CHECKING:
    from eaco_telemetry.samples import GpuSample

SCHEMA = "eaco.profile-run/1"
_UNITS = (
    ("util_ratio", "GPU busy", 100.0, "%"),
    ("mem_busy_ratio", "memory busy", 100.0, "%"),
    ("peak_mem_bytes", "memory", 1 / 2**30, "GiB"),
    ("power_w", "power", 1.0, "W"),
)


@click.command(
    "profile",
    context_settings={"ignore_unknown_options": True},
    epilog="Example: eaco profile --output ours.jsonl -- python train.py --batch 64",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...", required=True)
@click.option("--pair", metavar="COMMAND", help="A second command: alone, then beside the first.")
@click.option("--name", help="Name of the workload in the profiles; default: its script.")
@click.option("--pair-name", help="Name of the second workload.")
@click.option("--epochs", type=click.IntRange(1, 1000), default=3, show_default=True)
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True)
@click.option("--gpu-type", help="Type of the GPU in the profiles; default: what it calls itself.")
@click.option(
    "--output",
    type=file_path,
    metavar="FILE",
    help="Profiles to write, or to add to (eaco.profiles/1).",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON.")
def command(
    words: tuple[str, ...],
    pair: str | None,
    output: Path | None,
    *,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - click's values
) -> None:
    """Run a training script for a few epochs and record what it needs alone.

    The first epoch warms up and is not counted. The script reports its epochs to eaco (see
    docs/training_scripts.md) and is ended when enough are measured. What this machine cannot
    measure stays empty, and the reason is printed. Without a GPU, a CPU core stands for one.
    """
    old = _old_profiles(output)
    first = Workload(options["name"] or _name(words), words)
    workloads = [first]
    if pair is not None:
        parts = _split(pair)
        workloads.append(Workload(options["pair_name"] or _name(parts), parts))
    solo, shared, gpu_type = asyncio.run(_measure(workloads, options))
    table = _table(solo, shared, options["gpu_type"] or gpu_type, old)
    if output is not None:
        write_file(output, format_profiles(table))
    if as_json:
        print_json(_document(table.gpu_type, solo, shared))
    else:
        _print(table.gpu_type, solo, shared, output)


def _split(text: str) -> tuple[str, ...]:
    try:
        parts = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"--pair: {text!r} cannot be split into words: {error}") from None
    if not parts:
        raise InputError("--pair needs a command")
    return parts


def _name(command: tuple[str, ...]) -> str:
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem or "workload"


async def _measure(
    workloads: list[Workload], options: dict[str, Any]
) -> tuple[list[Measured], list[Measured], str]:
    """Measure each alone, and two together; also gives what the GPU calls itself."""
    choice = await asyncio.to_thread(choose_readers, default_node_id())
    sampler = Sampler(choice.readers, node_id=default_node_id(), session_id="profile")
    await sampler.open()
    try:
        gpus = [gpu for gpu in (await sampler.sample()).sample.gpus if gpu.parent_id is None]
        place = _place(gpus, options["gpus"])
        epochs = options["epochs"]
        solo: list[Measured] = []
        done: dict[Workload, Measured] = {}
        for workload in workloads:
            if workload not in done:
                (done[workload],) = await measure([workload], place, epochs=epochs, sampler=sampler)
                solo.append(done[workload])
        shared: list[Measured] = []
        if len(workloads) > 1:
            shared = await measure(workloads, place, epochs=epochs, sampler=sampler)
    finally:
        await sampler.close()
    known = {gpu.gpu_id: gpu.name for gpu in gpus}
    return solo, shared, known.get(place.gpus[0]) or "virtual"


def _place(gpus: list[GpuSample], count: int) -> Place:
    if not gpus and count == 1:
        return virtual_place("no GPU here: a CPU core stands for one, and has no such sensor")
    if count > len(gpus):
        raise InputError(f"--gpus {count}: this machine has {len(gpus)}")
    return Place(tuple(gpu.gpu_id for gpu in gpus[:count]))


def _old_profiles(output: Path | None) -> ProfileTable | None:
    """Read what the file holds already, before anything is measured."""
    if output is None:
        return None
    check_writable(output)
    if not output.is_file() or not output.stat().st_size:
        return None
    return read_profiles(output)


def _table(
    solo: list[Measured], shared: list[Measured], gpu_type: str, old: ProfileTable | None
) -> ProfileTable:
    if old is not None and old.gpu_type != gpu_type:
        raise InputError(
            f"it holds profiles of {old.gpu_type!r}, this is {gpu_type!r}: write to another file",
            where=old.name,
        )
    profiles: dict[str, SoloProfile] = {} if old is None else dict(old.profiles)
    ratios: dict[tuple[str, tuple[str, ...]], float] = {} if old is None else dict(old.measured)
    rates = {} if old is None else dict(old.iteration_rates_hz)
    for one in solo:
        profiles[one.workload] = SoloProfile(
            gpu_type, one.epoch_s, one.util_ratio, one.mem_busy_ratio, one.peak_mem_bytes
        )
    alone_s = {one.workload: one.epoch_s for one in solo}
    for one, other in zip(shared, reversed(shared), strict=True):
        ratios[one.workload, (other.workload,)] = one.epoch_s / alone_s[one.workload]
    return ProfileTable("measured", gpu_type, profiles, ratios, iteration_rates_hz=rates)


def _document(gpu_type: str, solo: list[Measured], shared: list[Measured]) -> object:
    def row(one: Measured) -> dict[str, object]:
        values = {name: getattr(one, name) for name, *_ in _UNITS}
        return {
            "workload": one.workload,
            "epochs": one.epochs,
            "epoch_s": one.epoch_s,
            **values,
            "missing": dict(one.missing),
        }

    return {
        "schema": SCHEMA,
        "gpu_type": gpu_type,
        "alone": [row(one) for one in solo],
        "together": [row(one) for one in shared],
    }


def _print(
    gpu_type: str, solo: list[Measured], shared: list[Measured], output: Path | None
) -> None:
    rows = [_row(one, "alone", None) for one in solo]
    alone_s = {one.workload: one.epoch_s for one in solo}
    for one, other in zip(shared, reversed(shared), strict=True):
        rows.append(_row(one, f"beside {other.workload}", one.epoch_s / alone_s[one.workload]))
    columns = ["workload", "how", "epochs", "epoch", "slowdown", *(unit[1] for unit in _UNITS)]
    print_table(columns, rows)
    reasons = {why: name for one in (*solo, *shared) for name, why in one.missing.items()}
    for why, name in reasons.items():
        click.echo(f"- {name} and the like: not measured: {why}")
    if shared:
        click.echo("Together, the figures of the GPU are those of both workloads.")
    where = f"written to {output}" if output is not None else "not kept; --output FILE keeps it"
    click.echo(f"GPU type {gpu_type}; {where}.")


def _row(one: Measured, how: str, slowdown: float | None) -> list[str]:
    cells = [one.workload, how, str(one.epochs), f"{one.epoch_s:.3g} s"]
    cells.append("-" if slowdown is None else f"{slowdown:.2f}")
    for name, _, factor, unit in _UNITS:
        value = getattr(one, name)
        cells.append("-" if value is None else f"{value * factor:.3g} {unit}")
    return cells
