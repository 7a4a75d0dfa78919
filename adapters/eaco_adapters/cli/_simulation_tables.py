"""What a person reads after `eaco simulate`: energy, jobs, and the assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eaco_adapters.cli import _output
from eaco_adapters.words import counted

if TYPE_CHECKING:
    from eaco_adapters.experiment import ExperimentResult
    from eaco_adapters.simulator import SimResult
    from eaco_telemetry.accounting import EnergyParts

_J_PER_KWH = 3.6e6
_UNKNOWN = "-"


def print_tables(outcome: ExperimentResult) -> None:
    """Print one row for each policy in every table, then the assumptions."""
    experiment = outcome.experiment
    trace = experiment.trace
    config = experiment.config
    click.echo(
        f"{counted(len(trace.jobs), 'job')} ({trace.name}) on {counted(config.nodes, 'node')} x"
        f" {config.gpus_per_node} {config.gpu_type}, seed {config.seed}"
    )
    click.echo()
    _print_energy(outcome)
    click.echo()
    _print_jobs(outcome)
    click.echo()
    _print_sharing(outcome)
    click.echo()
    click.echo("Assumptions:")
    for note in outcome.notes:
        click.echo(f"- {note}")
    click.echo(f"in_sample: {str(experiment.in_sample).lower()}")


def _print_energy(outcome: ExperimentResult) -> None:
    first = outcome.results[0]
    columns = ("energy", "kWh", f"vs {first.policy}", "jobs", "idle", "unattr.", "sleep", "wake")
    rows: list[tuple[str, ...]] = []
    for result in outcome.results:
        parts = outcome.energy(result)
        if parts is None:
            rows.append((result.policy, *(_UNKNOWN,) * (len(columns) - 1)))
            continue
        amounts = (parts.jobs_j, parts.idle_j, parts.unattributed_j, parts.sleep_j, parts.wake_j)
        rows.append(
            (
                result.policy,
                _kwh(parts.total_j),
                _versus(parts, outcome.energy(first)),
                *(_kwh(amount) for amount in amounts),
            )
        )
    _output.print_table(columns, rows)


def _print_jobs(outcome: ExperimentResult) -> None:
    columns = ("jobs", "done", "failed", "late", "mean JCT h", "p99 JCT h", "run h", "wait h")
    rows = [
        (
            result.policy,
            str(sum(job.failure is None for job in result.jobs)),
            str(sum(job.failure is not None for job in result.jobs)),
            str(result.deadline_misses),
            *(
                _hours(facts[name])
                for name in ("avg_jct_s", "p99_jct_s", "avg_runtime_s", "avg_wait_s")
            ),
        )
        for result in outcome.results
        for facts in (result.to_json(),)
    ]
    _output.print_table(columns, rows)


def _print_sharing(outcome: ExperimentResult) -> None:
    columns = ("sharing", "placements", "shared", "kept", "undone", "active nodes", "CPU s")
    rows = [
        (
            result.policy,
            str(result.placements),
            _percent(result.shared_placements, result.placements),
            str(result.observations_kept),
            str(result.undos),
            _active_nodes(result),
            f"{result.cpu_s:.1f}",
        )
        for result in outcome.results
    ]
    _output.print_table(columns, rows)


def _kwh(energy_j: float) -> str:
    return f"{energy_j / _J_PER_KWH:.1f}"


def _versus(parts: EnergyParts, first: EnergyParts | None) -> str:
    if first is None or first.total_j <= 0:
        return _UNKNOWN
    return f"{100 * (parts.total_j / first.total_j - 1):+.1f}%"


def _hours(value_s: object) -> str:
    return f"{value_s / 3600:.2f}" if isinstance(value_s, float | int) else _UNKNOWN


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else _UNKNOWN


def _active_nodes(result: SimResult) -> str:
    return f"{result.active_node_s / result.end_s:.2f}" if result.end_s > 0 else _UNKNOWN
