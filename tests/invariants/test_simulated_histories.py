"""Histories of whole simulations keep every invariant that binds their policy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import jsonschema
import pytest

from eaco_adapters.simulator import GroundTruth, SimSettings, simulate
from eaco_adapters.traces.deadlines import apply_deadlines, parse_deadlines
from eaco_adapters.traces.generator import WorkloadSettings, generate_trace
from eaco_core import GpuSpec, NodeSpec, SchedulerMachine, history, policy_named
from eaco_core.decisions import AffectedBound, Placed, Verdict
from eaco_core.history import Header, Line, Step
from eaco_core.invariants import binding, check_history, compare_histories
from eaco_core.schemas import history_schema
from eaco_predictors.paper_tables import paper_profiles
from eaco_telemetry.power import DefaultNodePower

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event

GIB = 2**30
MIXED = ((1, 0.3), (2, 0.2), (4, 0.2), (8, 0.2), (16, 0.1))


def simulated(policy_name: str, *, seed: int, interference: float = 1.4) -> list[Line]:
    """Run 60 jobs of mixed sizes on 4 nodes that fail now and then."""
    table = paper_profiles()
    settings = WorkloadSettings(jobs=60, nodes=4, gpus=MIXED, load_ratio=1.1)
    trace = generate_trace(table, settings, seed=seed)
    deadlines = parse_deadlines("1h:1.3,2,10")
    jobs = apply_deadlines(trace, deadlines, seed=seed, gpu_type="v100").jobs
    nodes = [
        NodeSpec(
            f"node-{i}",
            tuple(GpuSpec(f"node-{i}/gpu-{g}", "v100", 16 * GIB) for g in range(8)),
            can_sleep=True,
        )
        for i in range(4)
    ]
    power, policy = DefaultNodePower(), policy_named(policy_name)
    machine = SchedulerMachine(policy, power=power)
    lines: list[Line] = [Header(policy=policy_name, rules=machine.rules, seed=seed)]

    def keep(event: Event, effects: Sequence[Effect], records: Sequence[Record], seq: int) -> None:
        lines.append(Step(seq, event.t_s, machine.term, event, tuple(effects), tuple(records)))

    simulate(
        jobs=jobs,
        nodes=nodes,
        machine=machine,
        truth=GroundTruth(table, interference),
        power=power,
        settings=SimSettings(
            seed=seed, noise_sigma=0.1, node_mtbf_s=150_000.0, gpu_mtbf_s=3_000_000.0
        ),
        on_step=keep,
    )
    return lines


def records_of(lines: list[Line], kind: type[Any]) -> list[Any]:
    steps = [line for line in lines if isinstance(line, Step)]
    return [record for step in steps for record in step.records if isinstance(record, kind)]


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "eaco-paper", "eaco"])
def test_a_simulated_history_keeps_what_binds_its_policy(policy: str) -> None:
    for seed in (1, 3):
        lines = simulated(policy, seed=seed)
        report = check_history(lines)
        assert report.failed == ()
        unanswered = set(report.not_checked)
        # Nobody cancels a job there.
        assert unanswered <= {"I23", "I25", "I26", "I29", "I30"}
        assert set(report.passed) == binding(policy) - unanswered
        assert report.jobs == 60


def test_the_simulated_histories_are_worth_checking() -> None:
    lines = simulated("eaco", seed=1)
    assert sum(placed.shared for placed in records_of(lines, Placed)) >= 10
    assert {verdict.keep for verdict in records_of(lines, Verdict)} == {True, False}


def test_every_simulated_line_is_valid_and_comes_back_as_it_was() -> None:
    validator: Any = jsonschema.Draft202012Validator(history_schema())
    lines = simulated("eaco", seed=1)
    for line in lines[::7]:
        validator.validate(json.loads(history.encode(line)))
    text = "".join(f"{history.encode(line)}\n" for line in lines)
    assert list(history.read_lines(text.splitlines(keepends=True))) == lines


def test_the_same_input_gives_the_same_history() -> None:
    assert compare_histories(simulated("eaco", seed=1), simulated("eaco", seed=1)) == []
    assert len(compare_histories(simulated("eaco", seed=1), simulated("eaco", seed=2))) == 1


def test_a_lie_in_a_real_history_is_found() -> None:
    lines = simulated("eaco", seed=1)

    def point_for_bound(bound: AffectedBound) -> AffectedBound:
        return attrs.evolve(bound, upper_ratio=1.0, point_ratio=1.0)

    def lie(record: Record) -> Record:
        if not isinstance(record, Placed):
            return record
        return attrs.evolve(record, affected=tuple(map(point_for_bound, record.affected)))

    told = [
        attrs.evolve(line, records=tuple(map(lie, line.records)))
        if isinstance(line, Step)
        else line
        for line in lines
    ]
    assert "I07" in check_history(told).counts
