"""What the shadow says of a fifo history agrees with a simulation of eaco on the same jobs.

The full workload is compared by benchmarks/shadow.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from eaco_adapters.experiment import ExperimentConfig, prepare, run_experiment
from eaco_adapters.shadow import Past, ShadowReport, shadow_report
from eaco_adapters.shadow.as_was import energy_as_was
from eaco_adapters.shadow.work import work_of
from eaco_core import events as ev
from eaco_core.history import EnergyLine, Step, decode_line
from eaco_core.policies import policy_named
from eaco_telemetry.power import DefaultNodePower

if TYPE_CHECKING:
    from eaco_adapters.experiment import ExperimentResult
    from eaco_core.history import Line

SMALL: dict[str, Any] = {
    "nodes": 2,
    "gpus_per_node": 4,
    "jobs": 30,
    "job_gpus": 2,
    "epochs_min": 5,
    "epochs_max": 20,
    "deadlines": "2h:1.2,2,10",
    "policies": ("fifo", "eaco"),
}


@functools.cache
def runs(seed: int, no_sleep: tuple[str, ...] = ()) -> tuple[ExperimentResult, tuple[Line, ...]]:
    """Simulate both policies; give what came out, and the history of fifo."""
    lines: list[str] = []
    experiment = prepare(ExperimentConfig(seed=seed, no_sleep=no_sleep, **SMALL))
    outcome = run_experiment(experiment, histories={"fifo": lines.append})
    return outcome, tuple(decode_line(line) for line in lines)


def past_of(lines: tuple[Line, ...]) -> Past:
    past = Past()
    for line in lines:
        past.take(line)
    return past


def simulated_saving(outcome: ExperimentResult) -> float:
    was, would = (outcome.energy(result) for result in outcome.results)
    assert was is not None
    assert would is not None
    return 1 - would.total_j / was.total_j


def interval(report: ShadowReport) -> tuple[float, float, float]:
    assert report.saving_ratio is not None
    assert report.low_ratio is not None
    assert report.high_ratio is not None
    return report.low_ratio, report.saving_ratio, report.high_ratio


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_saving_of_a_fifo_history_agrees_with_the_simulation(seed: int) -> None:
    outcome, lines = runs(seed)
    simulated = simulated_saving(outcome)
    report = shadow_report(past_of(lines))
    low, saving, high = interval(report)
    assert abs(saving - simulated) <= 0.05
    assert low <= simulated <= high <= low + 0.15
    assert report.jobs == 30
    assert report.shared > 5
    assert report.as_was is not None
    assert report.as_was.late == outcome.results[0].deadline_misses
    assert report.savings
    assert report.risks


def test_it_agrees_where_no_node_can_sleep() -> None:
    outcome, lines = runs(0, ("fifo", "eaco"))
    low, saving, high = interval(shadow_report(past_of(lines)))
    assert abs(saving - simulated_saving(outcome)) <= 0.05
    assert low <= simulated_saving(outcome) <= high


def test_the_energy_as_it_was_is_what_the_simulation_booked() -> None:
    outcome, lines = runs(0)
    past = past_of(lines)
    work = work_of(past, assumed_util_ratio=0.5)
    rules = policy_named("fifo").rules
    was = energy_as_was(
        work.jobs, tuple(past.nodes.values()), power=DefaultNodePower(), rules=rules
    )
    result = outcome.results[0]
    assert was.energy.end_s == pytest.approx(result.end_s)
    booked, again = result.energy_until_s(result.end_s), was.energy.until_end
    assert booked is not None
    # Fifo wakes its nodes once more at the very start, before a job arrives for each.
    assert again.jobs_j == pytest.approx(booked.jobs_j)
    assert again.total_j == pytest.approx(booked.total_j, rel=0.001)
    for job in result.jobs:
        assert was.jobs_j[job.job_id] == pytest.approx(job.energy_j)


def test_without_profiles_nothing_is_shared_and_next_to_nothing_saved() -> None:
    _, lines = runs(0)
    bare = tuple(without_profiles(line) for line in lines)
    report = shadow_report(past_of(bare))
    low, saving, high = interval(report)
    assert report.shared == 0
    assert sum(report.alone.values()) == 30
    assert low <= 0 <= high
    assert abs(saving) < 0.03


def without_profiles(line: Line) -> Line:
    if not isinstance(line, Step) or not isinstance(line.event, ev.JobSubmitted):
        return line
    job = attrs.evolve(line.event.job, profiles=())
    return attrs.evolve(line, event=attrs.evolve(line.event, job=job))


def test_energy_lines_scale_the_joules_and_widen_the_interval() -> None:
    _, lines = runs(0)
    plain = shadow_report(past_of(lines))
    less = tuple(
        attrs.evolve(
            line,
            node_j=line.node_j * 0.9,
            jobs_j={job_id: joules * 0.9 for job_id, joules in line.jobs_j.items()},
        )
        if isinstance(line, EnergyLine)
        else line
        for line in lines
    )
    scaled = shadow_report(past_of(less))
    assert plain.as_was is not None
    assert scaled.as_was is not None
    assert scaled.saving_ratio == plain.saving_ratio
    assert scaled.as_was.energy_j == pytest.approx(0.9 * plain.as_was.energy_j)
    (low, _, high), (wide_low, _, wide_high) = interval(plain), interval(scaled)
    assert wide_low < low < high < wide_high
    assert any("-10% on jobs against the power model" in note for note in scaled.notes)


def test_the_answer_is_the_same_every_time() -> None:
    _, lines = runs(0)
    assert shadow_report(past_of(lines)) == shadow_report(past_of(lines))


def test_every_beginning_of_a_history_can_be_judged() -> None:
    _, lines = runs(1)
    for count in range(1, len(lines), 97):
        report = shadow_report(past_of(lines[:count]))
        assert report.jobs + sum(report.left_out.values()) <= 30
        if report.jobs:
            low, saving, high = interval(report)
            assert low < saving < high < 1
