"""Experiments as a library: what configurations mean, and what is known beforehand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from eaco_adapters.experiment import (
    Experiment,
    ExperimentConfig,
    prepare,
    run_experiment,
    run_policy,
)
from eaco_core.errors import InputError
from eaco_core.history import EnergyLine, Header, Step, read_lines
from eaco_core.policies import policy_named
from eaco_core.rules import GIB

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ExperimentConfig(jobs=12, nodes=3, epochs_max=20, policies=("fifo", "eaco"))

OWN_TRACE = """\
job_id,submit_s,gpus,epochs,workload,epoch_s,util_ratio,mem_busy_ratio,peak_mem_bytes,deadline_s
a,0,8,10,ours,1000,0.2,0.1,1000000000,
b,100,8,10,ours,1000,0.2,0.1,1000000000,
"""


def _write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def _history(experiment: Experiment, policy: str, *, energy_lines: bool = True) -> list[str]:
    lines: list[str] = []
    run_policy(experiment, policy, write_line=lines.append, energy_lines=energy_lines)
    return lines


def test_the_cluster_is_numbered_so_that_names_sort_as_numbers() -> None:
    nodes = prepare(evolve(SMALL, nodes=12, gpus_per_node=16)).nodes("eaco")
    names = [node.node_id for node in nodes]
    gpus = [gpu.gpu_id for node in nodes for gpu in node.gpus]
    assert names[0] == "node-001"
    assert names == sorted(names)
    assert gpus == sorted(gpus)
    assert all(gpu.mem_bytes == 16 * GIB for node in nodes for gpu in node.gpus)


def test_a_policy_keeps_its_own_rules_unless_told_otherwise() -> None:
    paper = policy_named("eaco-paper").rules
    assert SMALL.rules_of("eaco-paper") == paper
    told = evolve(SMALL, rules={"max_degree": 2, "starvation_s": math.inf})
    assert told.rules_of("eaco-paper") == evolve(paper, max_degree=2)
    assert told.rules_of("eaco").starvation_s == math.inf


def test_no_sleep_differs_for_the_named_policy_only() -> None:
    experiment = prepare(evolve(SMALL, no_sleep=("fifo",)))
    rules = experiment.config.rules_of
    assert (rules("fifo").sleep, rules("eaco").sleep) == (False, True)
    assert not any(node.can_sleep for node in experiment.nodes("fifo"))
    assert all(node.can_sleep for node in experiment.nodes("eaco"))
    outcome = run_experiment(experiment)
    always_on, asleep = (outcome.energy(result) for result in outcome.results)
    assert always_on is not None
    assert asleep is not None
    assert always_on.sleep_j == 0
    assert asleep.sleep_j > 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policies": ()}, "at least one policy"),
        ({"policies": ("eaco", "eaco")}, "named twice"),
        ({"policies": ("eaco", "lifo")}, "known are fifo"),
        ({"no_sleep": ("fifo-skip",)}, "does not run here"),
        ({"rules": {"max_degre": 2}}, "there is no rule 'max_degre'"),
        ({"rules": {"max_degree": 0}}, "at least 1"),
        ({"nodes": 200_000}, "more than the 1,000,000 GPUs"),
        ({"load_ratio": math.nan}, "finite"),
        ({"epochs_min": 30}, "must not be below"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evolve(SMALL, **changes)


def test_energy_of_all_policies_runs_until_the_same_time() -> None:
    outcome = run_experiment(prepare(SMALL))
    fifo, eaco = outcome.results
    assert fifo.end_s != eaco.end_s
    assert outcome.horizon_s == max(fifo.end_s, eaco.end_s)
    for result in outcome.results:
        assert outcome.energy(result) == result.energy_until_s(outcome.horizon_s)
    longer = outcome.energy(fifo)
    own = fifo.energy_until_s(fifo.end_s)
    assert longer is not None
    assert own is not None
    assert longer.total_j > own.total_j


def test_progress_counts_the_jobs_of_all_policies() -> None:
    seen: list[tuple[int, int]] = []
    run_experiment(prepare(SMALL), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (24, 24)


def test_the_trace_keeps_its_own_deadlines_unless_others_are_given(tmp_path: Path) -> None:
    trace = _write(tmp_path, "t.csv", OWN_TRACE.replace("1000000000,\n", "1000000000,50000\n", 1))
    config = evolve(SMALL, trace=trace)
    assert [job.deadline_s for job in prepare(config).trace.jobs] == [50000, None]
    assert [job.deadline_s for job in prepare(evolve(config, deadlines="1h:2")).trace.jobs] == [
        3600 + 2 * 10_000,
        100 + 3600 + 2 * 10_000,
    ]
    none = prepare(evolve(config, deadlines="none")).trace.jobs
    assert [job.deadline_s for job in none] == [None, None]


def test_without_a_column_every_job_has_a_deadline() -> None:
    assert all(job.deadline_s is not None for job in prepare(SMALL).trace.jobs)


def test_a_workload_that_only_the_trace_describes_can_share(tmp_path: Path) -> None:
    """The truth must know what the trace knows; else the second job would not fit."""
    trace = _write(tmp_path, "t.csv", OWN_TRACE)
    result = run_policy(prepare(evolve(SMALL, trace=trace, deadlines="none")), "eaco")
    assert result.shared_placements == 1
    assert [job.failure for job in result.jobs] == [None, None]


@pytest.mark.parametrize("history", ["paper", "truth"])
def test_knowing_the_published_sets_beforehand_is_in_sample(history: str) -> None:
    experiment = prepare(evolve(SMALL, history=history))
    assert experiment.in_sample
    assert len(experiment.known_before.observations) == 16
    assert run_policy(experiment, "eaco").in_sample


def test_knowing_nothing_beforehand_is_not_in_sample() -> None:
    assert not prepare(SMALL).in_sample


PROFILES = """\
kind,workload,gpu_type,epoch_s,util_ratio,mem_busy_ratio,peak_mem_bytes,co_workloads,ratio
solo,alexnet,v100,1390,0.05,0.02,700000000,,
solo,resnet50,v100,1440,0.37,0.22,7000000000,,
shared,alexnet,v100,,,,,resnet50,1.5
"""


def test_a_file_of_other_measurements_is_not_in_sample(tmp_path: Path) -> None:
    path = _write(tmp_path, "p.csv", PROFILES)
    experiment = prepare(evolve(SMALL, history=path))
    assert len(experiment.known_before.observations) == 1
    assert not experiment.in_sample


def test_a_file_with_the_measurements_of_the_truth_is_in_sample(tmp_path: Path) -> None:
    path = _write(tmp_path, "p.csv", PROFILES)
    experiment = prepare(evolve(SMALL, profiles=path, history=path))
    assert experiment.in_sample


def test_a_history_of_the_same_truth_is_in_sample_even_with_noise(tmp_path: Path) -> None:
    noisy = prepare(evolve(SMALL, noise_sigma=0.1, jobs=30))
    path = _write(tmp_path, "h.jsonl", "".join(_history(noisy, "eaco")))
    again = prepare(evolve(SMALL, history=path))
    assert again.known_before.observations
    assert again.in_sample
    elsewhere = prepare(evolve(SMALL, history=path, interference_ratio=1.4))
    assert not elsewhere.in_sample


def test_a_history_names_policy_rules_and_truth() -> None:
    experiment = prepare(SMALL)
    lines = list(read_lines(_history(experiment, "eaco")))
    head = lines[0]
    assert isinstance(head, Header)
    assert head.policy == "eaco"
    assert head.rules == SMALL.rules_of("eaco")
    assert head.seed == 0
    assert head.info["options"]["jobs"] == 12
    steps = [line for line in lines if isinstance(line, Step)]
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))


def test_energy_lines_hold_every_joule_of_the_run() -> None:
    experiment = prepare(SMALL)
    lines = list(read_lines(_history(experiment, "eaco")))
    booked = [line for line in lines if isinstance(line, EnergyLine)]
    result = run_policy(experiment, "eaco")
    assert result.energy is not None
    last_s = max(line.t1_s for line in booked)
    assert math.fsum(line.node_j for line in booked) == pytest.approx(
        result.energy.until_s(last_s).total_j, rel=1e-9
    )
    without = _history(experiment, "eaco", energy_lines=False)
    assert not any(isinstance(line, EnergyLine) for line in read_lines(without))


def test_energy_is_unknown_without_utilisation_and_known_when_assumed(tmp_path: Path) -> None:
    text = OWN_TRACE.replace(",0.2,0.1,1000000000,", ",,,,")
    config = evolve(SMALL, trace=_write(tmp_path, "t.csv", text), deadlines="none")
    bare = prepare(config)
    assert bare.power is None
    assert any("2 of 2 jobs have no GPU utilisation" in note for note in bare.notes)
    assert run_policy(bare, "eaco").energy is None
    assumed = prepare(evolve(config, assume_gpu_util_ratio=0.5))
    assert any("assumed to be 0.5" in note for note in assumed.notes)
    assert run_policy(assumed, "eaco").energy is not None


def test_no_power_model_means_no_energy() -> None:
    outcome = run_experiment(prepare(evolve(SMALL, power_model="none")))
    assert [outcome.energy(result) for result in outcome.results] == [None, None]
    assert not any("energy runs from 0" in note for note in outcome.notes)


def test_power_options_reach_the_model() -> None:
    dear, cheap = (
        run_experiment(prepare(evolve(SMALL, policies=("fifo",), idle_w=idle_w, sleep_w=sleep_w)))
        for idle_w, sleep_w in ((900.0, 50.0), (400.0, 5.0))
    )
    first, second = dear.energy(dear.results[0]), cheap.energy(cheap.results[0])
    assert first is not None
    assert second is not None
    assert first.sleep_j == pytest.approx(10 * second.sleep_j)
    assert first.wake_j == pytest.approx(900 / 400 * second.wake_j)


def test_waking_takes_as_long_as_asked() -> None:
    slow, fast = (
        run_policy(prepare(evolve(SMALL, wake_s=wake_s, load_ratio=0.1)), "fifo")
        for wake_s in (600.0, 0.0)
    )
    assert slow.jobs[0].wait_s == pytest.approx(610)
    assert fast.jobs[0].wait_s == pytest.approx(10)
