"""What a person reads after `eaco shadow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eaco_adapters.cli import _output
from eaco_adapters.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_adapters.shadow import ShadowReport
    from eaco_adapters.shadow.report import Side
    from eaco_adapters.shadow.stories import Story

_J_PER_KWH = 3.6e6


def print_report(report: ShadowReport) -> None:
    """Print the saving, both schedules side by side, single savings and risks, and what to know."""
    who = report.origin or "another scheduler"
    policy = f", policy {report.policy}" if report.policy else ""
    click.echo(
        f"{who}{policy}: {counted(report.steps, 'step')} over {report.span_s / 3600:.1f} h,"
        f" {counted(report.jobs, 'job')} compared"
    )
    if report.as_was is None or report.would_be is None:
        click.echo("Nothing to compare yet: no job has run for an epoch or to its end.")
    else:
        _print_saving(report)
        click.echo()
        _print_sides(report, report.as_was, report.would_be)
        click.echo()
        _print_sharing(report)
        _print_stories("Largest savings", report.savings)
        _print_stories("Largest risks", report.risks)
    _print_not_judged(report)
    if report.notes:
        click.echo("\nAssumptions:")
        for note in report.notes:
            click.echo(f"- {note}")


def _print_saving(report: ShadowReport) -> None:
    if report.saving_ratio is None or report.low_ratio is None or report.high_ratio is None:
        return
    word = "less" if report.saving_ratio >= 0 else "more"
    click.echo(
        f"eaco would have used {100 * abs(report.saving_ratio):.1f}% {word} energy"
        f" (saving between {100 * report.low_ratio:.1f}% and {100 * report.high_ratio:.1f}%,"
        " by what is assumed below)"
    )
    stress = report.stress
    if stress is not None and report.shared:
        click.echo(
            f"Beyond that, with sets {stress.interference_ratio:g} times slower than the law:"
            f" a saving of {100 * stress.saving_ratio:.1f}%, {stress.late:,} late,"
            f" {stress.undone:,} undone"
        )


def _print_sides(report: ShadowReport, was: Side, would: Side) -> None:
    rows = [
        (name, _kwh(side.energy_j), str(side.late), _h(side.wait_s), _h(side.jct_s))
        for name, side in (("as it was", was), ("with eaco", would))
    ]
    _output.print_table(("schedule", "kWh", "late", "mean wait h", "mean JCT h"), rows)
    if report.late_worst is not None and report.late_worst > would.late:
        click.echo(f"Late with eaco under the worst assumption: {report.late_worst}")
    if report.measured_j is not None:
        click.echo(f"Energy lines of the history: {_kwh(report.measured_j)} kWh")


def _print_sharing(report: ShadowReport) -> None:
    click.echo(
        f"{counted(report.placements, 'placement')}, {report.shared:,} of them shared:"
        f" {report.kept:,} kept after a look, {report.undone:,} undone"
    )


def _print_stories(title: str, stories: Sequence[Story]) -> None:
    if stories:
        click.echo(f"\n{title}:")
        for story in stories:
            click.echo(f"- {story.text}")


def _print_not_judged(report: ShadowReport) -> None:
    if report.alone:
        click.echo("\nRun alone under eaco:")
        for why, count in report.alone.items():
            click.echo(f"- {counted(count, 'job')}: {why}")
    if report.left_out:
        click.echo("\nNot compared:")
        for why, count in report.left_out.items():
            click.echo(f"- {counted(count, 'job')}: {why}")


def _kwh(energy_j: float) -> str:
    value = energy_j / _J_PER_KWH
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _h(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s / 3600:.2f}"
