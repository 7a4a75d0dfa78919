"""What a person reads after `eaco energy`: joules by job and user, and whether they add up."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import click

from eaco_adapters.cli import _output
from eaco_adapters.words import counted
from eaco_telemetry.booking import sentences
from eaco_telemetry.booking.times import show_time

if TYPE_CHECKING:
    from eaco_telemetry.booking import Amount, EnergyReport, JobEnergy

_UNKNOWN = "-"
_NOBODY = "(none)"
_JOB_WIDTH = 16
_USER_WIDTH = 10
_S_PER_H = 3600.0
_WIDTH = 80


def print_report(report: EnergyReport, *, by_job: bool) -> None:
    """Print tables of jobs and users, of the parts of the whole, and what they stand on."""
    low, high = report.window
    gpus = sum(node.gpus for node in report.nodes)
    click.echo(
        f"{show_time(low)} to {show_time(high)} ({(high - low) / 1e9 / _S_PER_H:.2f} h),"
        f" {counted(len(report.nodes), 'node')}, {counted(gpus, 'GPU')}"
    )
    if by_job:
        click.echo()
        _print_jobs(report)
        if _is_priced(report.total):
            click.echo()
            _print_prices(report)
    click.echo()
    _print_users(report)
    click.echo()
    _print_parts(report)
    click.echo()
    if report.is_measured:
        click.echo(
            f"Check: jobs + idle + unattributed - total = {report.difference_j:.1g} J"
            f" of {_joules(report.total.energy_j)} J."
        )
    else:
        click.echo("Check: nothing was measured, so there is nothing to add up.")
    for sentence in sentences(report):
        click.echo(fill(f"- {sentence}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False))


def _print_jobs(report: EnergyReport) -> None:
    if not report.jobs:
        click.echo("No job held a GPU in this time.")
        return
    columns = ("job", "user", "GPU h", "covered", "J", "kWh", "mean W")
    _output.print_table(columns, [_job(job) for job in report.jobs])


def _job(job: JobEnergy) -> tuple[str, ...]:
    return (
        _short(job.job_id, _JOB_WIDTH),
        _short(job.user or _NOBODY, _USER_WIDTH),
        f"{job.gpu_s / _S_PER_H:.2f}",
        _covered(job.covered_ratio),
        *_energies(job.amount, is_known=job.is_measured),
        _UNKNOWN if job.mean_w is None else f"{job.mean_w:,.1f}",
    )


def _print_prices(report: EnergyReport) -> None:
    columns = ("job", "user", "kWh", *_price_columns(report.total))
    _output.print_table(
        columns,
        [
            (
                _short(job.job_id, _JOB_WIDTH),
                _short(job.user or _NOBODY, _USER_WIDTH),
                _energies(job.amount, is_known=job.is_measured)[1],
                *_prices(job.amount, is_known=job.is_measured),
            )
            for job in report.jobs
        ],
    )


def _print_users(report: EnergyReport) -> None:
    if not report.users:
        return
    columns = ("user", "jobs", "GPU h", "covered", "J", "kWh", *_price_columns(report.total))
    _output.print_table(
        columns,
        [
            (
                _short(user.user or _NOBODY, _JOB_WIDTH),
                f"{user.jobs:,}",
                f"{user.gpu_s / _S_PER_H:.2f}",
                _covered(user.covered_ratio),
                *_energies(user.amount, is_known=user.is_measured),
                *_prices(user.amount, is_known=user.is_measured),
            )
            for user in report.users
        ],
    )


def _print_parts(report: EnergyReport) -> None:
    parts = (
        ("jobs", report.of_jobs, report.has_measured_jobs),
        ("idle", report.idle, report.is_measured),
        ("unattributed", report.unattributed, report.is_measured),
        ("total", report.total, report.is_measured),
    )
    whole_j = report.total.energy_j
    columns = ("part", "J", "kWh", "share", *_price_columns(report.total))
    _output.print_table(
        columns,
        [
            (
                name,
                *_energies(amount, is_known=is_known),
                f"{amount.energy_j / whole_j:.1%}" if whole_j and is_known else _UNKNOWN,
                *_prices(amount, is_known=is_known),
            )
            for name, amount, is_known in parts
        ],
    )


def _is_priced(amount: Amount) -> bool:
    return amount.cost is not None or amount.co2_g is not None


def _price_columns(total: Amount) -> tuple[str, ...]:
    cost = () if total.cost is None else ("cost",)
    return cost if total.co2_g is None else (*cost, "CO2 g")


def _prices(amount: Amount, *, is_known: bool) -> tuple[str, ...]:
    cost = () if amount.cost is None else (f"{amount.cost:,.4f}" if is_known else _UNKNOWN,)
    if amount.co2_g is None:
        return cost
    return (*cost, f"{amount.co2_g:,.1f}" if is_known else _UNKNOWN)


def _energies(amount: Amount, *, is_known: bool) -> tuple[str, str]:
    """Give J and kWh; what nobody measured is not 0."""
    if not is_known:
        return _UNKNOWN, _UNKNOWN
    return _joules(amount.energy_j), _kwh(amount.energy_kwh)


def _covered(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{_floor_percent(ratio)}%"


def _floor_percent(ratio: float) -> int:
    """Give whole percent; 100 only if nothing is missing beside rounding."""
    return int(ratio * 100 + 1e-6)


def _joules(energy_j: float) -> str:
    return f"{energy_j:,.0f}" if energy_j >= 1000 else f"{energy_j:.4g}"  # noqa: PLR2004 - from here on, whole joules


def _kwh(energy_kwh: float) -> str:
    return f"{energy_kwh:,.4f}" if energy_kwh >= 0.001 or not energy_kwh else f"{energy_kwh:.3g}"  # noqa: PLR2004 - from here on, 4 digits show it


def _short(name: str, width: int) -> str:
    name = "".join(c if c.isprintable() else "?" for c in name)
    return name if len(name) <= width else name[: width - 1] + "…"
