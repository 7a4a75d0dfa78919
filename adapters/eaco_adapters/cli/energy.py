"""`eaco energy`: joules per job from recorded telemetry and from who held which GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from eaco_adapters.cli import _output
from eaco_adapters.cli._energy_tables import print_report
from eaco_adapters.cli._option_types import file_name, number
from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.booking import RULES, EnergyOptions, Steps, account, document
from eaco_telemetry.booking.job_files import read_jobs, read_steps
from eaco_telemetry.booking.rows import MOST_W
from eaco_telemetry.booking.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eaco_telemetry.booking import EnergyReport, JobHold
    from eaco_telemetry.booking.frames import FrameRecording

_WATTS = number(most=MOST_W)
_SECONDS = number(most=MOST_W)

_EXAMPLES = """\
\b
Examples:
  eaco energy --telemetry rec.parquet --jobs jobs.csv
  eaco energy --telemetry rec.parquet --jobs jobs.csv --tariff 0.30 --intensity 400
  eaco energy --telemetry a.parquet --telemetry b.parquet --jobs run.jsonl --json
"""


def _time(value: object) -> int:
    try:
        return parse_time(str(value))
    except InputError as error:
        raise click.BadParameter(str(error)) from None


@frozen
class _Price:
    """A price or an intensity, and the file it is from."""

    steps: Steps
    file: str | None = None


def _price(what: str) -> Callable[[object], _Price]:
    """Make a reader of a number, or of a CSV file of values over time."""

    def price(value: object) -> _Price:  # click shows the name in --help
        text = str(value)
        try:
            constant = float(text)
        except ValueError:
            try:
                return _Price(read_steps(file_name(text), what), text)
            except InputError as error:
                raise click.BadParameter(f"it is no number, and as a file: {error}") from None
        if not math.isfinite(constant):
            raise click.BadParameter(f"{text!r} is no number that a {what} could have")
        return _Price(Steps.constant(constant))

    return price


@click.command("energy", epilog=_EXAMPLES)
@click.option(
    "--telemetry",
    "telemetry",
    type=file_name,
    metavar="FILE",
    multiple=True,
    required=True,
    help="Recording of `eaco agent --record` (Parquet); more than one for several nodes.",
)
@click.option(
    "--jobs",
    "jobs",
    type=file_name,
    metavar="FILE",
    required=True,
    help="Who held which GPU: CSV (job,user,gpu_ids,start,end) or a history (docs/energy.md).",
)
@click.option(
    "--rule",
    type=click.Choice(RULES),
    default="default",
    show_default=True,
    help="How jobs that share a GPU share its energy.",
)
@click.option(
    "--tariff",
    type=_price("tariff"),
    metavar="PRICE|FILE",
    help="Price of a kWh, or CSV of prices over time (start,value).",
)
@click.option(
    "--intensity",
    type=_price("intensity"),
    metavar="G|FILE",
    help="Grams of CO2 equivalent of a kWh, or CSV over time (start,value).",
)
@click.option(
    "--from",
    "from_ns",
    type=_time,
    metavar="TIME",
    help="Account from this time on (2026-12-01T08:00:00Z).",
)
@click.option("--to", "to_ns", type=_time, metavar="TIME", help="Account until this time.")
@click.option(
    "--gpu-idle-w",
    type=_WATTS,
    metavar="W",
    help="Idle power of each GPU.  [default: measured while nobody held it]",
)
@click.option(
    "--server-w",
    type=_WATTS,
    metavar="W",
    help="Power of the node without GPUs, where no sensor of it was recorded.",
)
@click.option(
    "--server-idle-w",
    type=_WATTS,
    metavar="W",
    help="Idle power of the node without GPUs.  [default: measured while nobody held its GPUs]",
)
@click.option(
    "--max-gap-s",
    type=_SECONDS,
    metavar="S",
    help="How long a power is believed without an energy counter.  [default: 30, or 3 periods]",
)
@click.option(
    "--history-start",
    "history_start_ns",
    type=_time,
    metavar="TIME",
    help="When second 0 of a history was, if it does not say so.",
)
@click.option(
    "--by",
    type=click.Choice(["job", "user"]),
    default="job",
    show_default=True,
    help="Show a line for each job, or for each user only.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON alone on standard output (docs/energy.md)."
)
@click.option("--output", type=file_name, metavar="FILE", help="Write the JSON to a file as well.")
def command(
    *,
    telemetry: tuple[str, ...],
    jobs: str,
    by: str,
    as_json: bool,
    output: str | None,
    history_start_ns: int | None,
    tariff: _Price | None,
    intensity: _Price | None,
    **options: Any,  # noqa: ANN401 - the fields of EnergyOptions, typed by click
) -> None:
    """Book every joule of recorded GPUs on the jobs that held them.

    Energy per job and user, also where jobs share GPUs; the idle rest, and what belongs to
    nobody; and the check that it adds up. Rules and file formats: docs/energy.md.
    """
    if output is not None:
        _output.check_writable(output)
        _keep_inputs(output, telemetry, jobs, tariff, intensity)
    chosen = EnergyOptions(
        tariff=None if tariff is None else tariff.steps,
        intensity=None if intensity is None else intensity.steps,
        **options,
    )
    holds = read_jobs(jobs, history_start_ns=history_start_ns)
    report = _account(telemetry, holds, chosen)
    data = document(report)
    if output is not None:
        _output.write_file(output, _output.json_text(data))
    if as_json:
        _output.print_json(data)
    else:
        print_report(report, by_job=by == "job")


def _keep_inputs(
    output: str,
    telemetry: Sequence[str],
    jobs: str,
    *prices: _Price | None,
) -> None:
    """Refuse to write over what is read, whatever name it goes by."""
    if _output.is_stream(output):
        return
    target = _output.real_path(output)
    inputs = [
        *(("--telemetry", name) for name in telemetry),
        ("--jobs", jobs),
        *(("a price", one.file) for one in prices if one is not None and one.file is not None),
    ]
    for option, name in inputs:
        source = Path(name)
        if _is_same(target, source):
            raise InputError(
                f"--output {output} is the file that {option} reads ({name}); choose another name"
            )
        if option != "--telemetry":
            continue
        # Also of a recording whose parts were not joined yet.
        for parts in {f"{source}.parts", f"{source.resolve()}.parts"}:
            if Path(parts).resolve() in {target, *target.parents}:
                raise InputError(
                    f"--output {output} is among the parts of the recording {name}; choose"
                    " another place"
                )


def _is_same(target: Path, source: Path) -> bool:
    """Tell whether two names are of one file; a second name of it (hard link) is, too."""
    try:
        return target == source.resolve() or (
            target.exists() and source.exists() and target.samefile(source)
        )
    except (OSError, RuntimeError):
        return False  # what is wrong with it is said when it is read


def _account(
    telemetry: Sequence[str], holds: list[JobHold], options: EnergyOptions
) -> EnergyReport:
    known = {gpu_id for hold in holds if hold.pids is not None for gpu_id in hold.gpu_ids}
    recordings = _open(telemetry, known)
    with _output.progress("accounting") as show:
        return account(recordings, holds, options, progress=show)


def _open(telemetry: Sequence[str], processes_of: set[str]) -> list[FrameRecording]:
    try:
        from eaco_telemetry.booking.frames import open_recordings  # noqa: PLC0415 - needs polars
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"reading a recording needs {error.name}; install it with pip install 'eaco[record]'"
        ) from error
    return open_recordings(telemetry, processes_of=processes_of)
