"""Running the policies of an experiment, and comparing what came out."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

import attrs
from attrs import field, frozen

from eaco_adapters.experiment.config import plain
from eaco_adapters.simulator import SimResult, simulate
from eaco_core.history import EnergyLine, encode_energy, encode_header, encode_step
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eaco_adapters.experiment.prepare import Experiment
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_telemetry.accounting import EnergyParts, NodeInterval

    WriteLine = Callable[[str], object]

RESULT_SCHEMA = "eaco.simulate/1"


@frozen(hash=False)
class ExperimentResult:
    """What came out, one result for each policy, in the order in which they were named."""

    experiment: Experiment = field(repr=False)
    results: tuple[SimResult, ...]

    @property
    def horizon_s(self) -> float:
        """The latest end among the runs: every energy counts from 0 until then."""
        return max(result.end_s for result in self.results)

    def energy(self, result: SimResult) -> EnergyParts | None:
        """Give the energy of one run until the horizon; None = not known."""
        return result.energy_until_s(self.horizon_s)

    @property
    def notes(self) -> tuple[str, ...]:
        """The assumptions, one sentence each."""
        if all(result.energy is None for result in self.results):
            return self.experiment.notes
        return (
            *self.experiment.notes,
            f"energy runs from 0 to {self.horizon_s:.0f} s, the latest end among the policies",
        )

    def to_json(self) -> dict[str, object]:
        """Give the document `eaco.simulate/1` (docs/simulate.md)."""
        config = self.experiment.config
        return {
            "schema": RESULT_SCHEMA,
            "config": {
                "versions": versions(),
                "options": config.to_json(),
                "inputs_sha256": dict(self.experiment.inputs),
                "workload": {
                    "name": self.experiment.trace.name,
                    "jobs": len(self.experiment.trace.jobs),
                    "jobs_with_deadline": sum(
                        job.deadline_s is not None for job in self.experiment.trace.jobs
                    ),
                },
                "rules": {name: rules_json(config.rules_of(name)) for name in config.policies},
                "energy_until_s": self.horizon_s,
                "notes": list(self.notes),
            },
            "results": [result.to_json(self.horizon_s) for result in self.results],
        }


def run_experiment(
    experiment: Experiment,
    *,
    histories: Mapping[str, WriteLine] | None = None,
    energy_lines: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> ExperimentResult:
    """Run every policy, one after another.

    `histories` takes each line of the history of a policy, with its line end.
    `progress` gets (jobs ended, jobs in all), over all policies.
    """
    names = experiment.config.policies
    jobs = len(experiment.trace.jobs)
    results: list[SimResult] = []
    for number, name in enumerate(names):
        results.append(
            run_policy(
                experiment,
                name,
                write_line=(histories or {}).get(name),
                energy_lines=energy_lines,
                progress=_shifted(progress, number * jobs, len(names) * jobs),
            )
        )
    return ExperimentResult(experiment, tuple(results))


def run_policy(
    experiment: Experiment,
    name: str,
    *,
    write_line: WriteLine | None = None,
    energy_lines: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> SimResult:
    """Run one policy. `write_line` takes each line of its history, with its line end."""
    machine = SchedulerMachine(
        policy_named(name),
        rules=experiment.config.rules_of(name),
        power=experiment.power,
        history=experiment.known_before.observations,
    )
    on_step: Callable[[Event, Sequence[Effect], Sequence[Record], int], None] | None = None
    on_energy: Callable[[NodeInterval], None] | None = None
    if write_line is not None:
        write = write_line
        write(history_header(experiment, name) + "\n")

        def keep_step(
            event: Event, effects: Sequence[Effect], records: Sequence[Record], seq: int
        ) -> None:
            write(encode_step(seq, event.t_s, machine.term, event, effects, records) + "\n")

        def keep_energy(interval: NodeInterval) -> None:
            write(encode_energy(_energy_line(interval)) + "\n")

        on_step = keep_step
        on_energy = keep_energy if energy_lines else None
    return simulate(
        jobs=experiment.trace.jobs,
        nodes=experiment.nodes(name),
        machine=machine,
        truth=experiment.truth,
        power=experiment.power,
        settings=experiment.settings(name),
        on_step=on_step,
        on_energy=on_energy,
        progress=progress,
    )


def history_header(experiment: Experiment, name: str) -> str:
    """Give the first line of the history of a policy, without a line end."""
    config = experiment.config
    return encode_header(
        policy=name,
        rules=config.rules_of(name),
        seed=config.seed,
        info={
            "versions": versions(),
            "options": config.to_json(),
            "inputs_sha256": dict(experiment.inputs),
            "truth": dict(experiment.truth_id),
            "in_sample": experiment.in_sample,
        },
    )


def rules_json(rules: Rules) -> dict[str, object]:
    """Give all parameters as plain JSON data, in the order of the fields."""
    return {one.name: plain(getattr(rules, one.name)) for one in attrs.fields(Rules)}


def versions() -> dict[str, str]:
    """Give the versions of what a result depends on."""
    return {"eaco": metadata.version("eaco"), "python": platform.python_version()}


def _energy_line(interval: NodeInterval) -> EnergyLine:
    return EnergyLine(
        t0_s=interval.t0_s,
        t1_s=interval.t1_s,
        node_id=interval.node_id,
        node_j=interval.node_j,
        jobs_j=interval.jobs_j,
        idle_j=interval.idle_j,
        unattributed_j=interval.unattributed_j,
        sleep_j=interval.sleep_j,
        wake_j=interval.wake_j,
    )


def _shifted(
    progress: Callable[[int, int], None] | None, before: int, total: int
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, _total: progress(before + done, total)
