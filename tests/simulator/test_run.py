"""The loop between machine and world, what it refuses, and what it reports."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from eaco_adapters.simulator import GroundTruth, SimResult, SimSettings, simulate
from eaco_adapters.traces import (
    WorkloadSettings,
    apply_deadlines,
    generate_trace,
    parse_deadlines,
)
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.decisions import Placed, Verdict
from eaco_core.effects import StartJob, WakeNode
from eaco_core.errors import InputError, InternalError
from eaco_core.events import EpochCompleted, Event, JobFailed, JobSubmitted, NodeJoined, Tick
from eaco_core.jobs import FailureReason, JobSpec, JobState, SoloProfile
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_predictors.profiles import ProfileTable, paper_profiles
from eaco_telemetry.accounting import NodeInterval, check_interval
from eaco_telemetry.power import DefaultNodePower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect

GIB = 1024**3


def cluster(count: int, size: int = 8, *, can_sleep: bool = True) -> list[NodeSpec]:
    return [
        NodeSpec(
            f"n{i:03}",
            tuple(GpuSpec(f"n{i:03}-{k}", "v100", 16 * GIB) for k in range(size)),
            can_sleep=can_sleep,
        )
        for i in range(count)
    ]


def job(job_id: str, gpus: int = 8, util: float | None = 0.36, submit_s: float = 0.0) -> JobSpec:
    profile = SoloProfile("v100", 100.0, util, peak_mem_bytes=GIB)
    return JobSpec(job_id, gpus, submit_s, 2, workload="w", profiles=(profile,))


def table_of(*profiles: tuple[str, float | None, int | None]) -> ProfileTable:
    return ProfileTable(
        name="test",
        gpu_type="v100",
        profiles={
            name: SoloProfile("v100", 100.0, util, peak_mem_bytes=peak)
            for name, util, peak in profiles
        },
        measured={("a", ("b",)): 1.5, ("b", ("a",)): 0.98},
        notes=(),
    )


def run(
    jobs: Sequence[JobSpec],
    nodes: Sequence[NodeSpec],
    policy: str = "fifo",
    *,
    settings: SimSettings | None = None,
    on_energy: Callable[[NodeInterval], None] | None = None,
    on_step: Callable[[Event, Sequence[Effect], Sequence[Record], int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimResult:
    power = DefaultNodePower()
    return simulate(
        jobs=jobs,
        nodes=nodes,
        machine=SchedulerMachine(policy_named(policy), power=power),
        truth=GroundTruth(paper_profiles("v100"), mem_bytes=16 * GIB),
        power=power,
        settings=settings,
        on_energy=on_energy,
        on_step=on_step,
        progress=progress,
    )


# ----------------------------------------------------------------------- truth


def test_truth_is_measured_else_the_sum_of_utilisations_else_unknown() -> None:
    truth = GroundTruth(table_of(("a", 0.5, 10), ("b", 0.7, 10), ("c", 0.3, 90), ("d", None, 1)))
    assert truth.ratio("a", ()) == truth.ratio("d", ()) == truth.ratio("nobody", ()) == 1.0
    assert truth.ratio("a", ("b",)) == 1.5
    assert truth.ratio("b", ("a",)) == 0.98
    assert truth.ratio("a", ("c",)) == 1.035
    assert truth.ratio("a", ("b", "c")) == pytest.approx(1.5 * 1.035)
    assert truth.ratio("a", ("d",)) is None
    assert truth.ratio("a", ("nobody",)) is None


def test_truth_knows_what_does_not_fit_only_when_told_the_size() -> None:
    table = table_of(("a", 0.5, 10), ("b", 0.7, 95), ("c", 0.3, 90))
    small = GroundTruth(table, 1.2, mem_bytes=100)
    assert small.ratio("b", ("c",)) is None
    assert small.ratio("a", ("c",)) == 1.2
    # What was measured ran, whatever the peaks say.
    assert small.ratio("a", ("b",)) == 1.5
    assert GroundTruth(table).ratio("b", ("c",)) == 1.035


@pytest.mark.parametrize("bad", [0.9, float("nan"), float("inf")])
def test_interference_that_speeds_up_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="interference"):
        GroundTruth(paper_profiles("v100"), bad)


# ------------------------------------------------------------------- the result


def test_one_job_by_hand() -> None:
    result = run([evolve(job("a"), deadline_s=280.0)], cluster(2))
    outcome = result.jobs[0]
    # Wake 60, start 10, two epochs of 100.
    assert (outcome.start_s, outcome.end_s) == (70.0, 270.0)
    assert (outcome.jct_s, outcome.wait_s, outcome.runtime_s) == (270.0, 70.0, 200.0)
    assert not outcome.missed
    facts = result.to_json()
    assert facts["submitted"] == facts["finished"] == facts["placements"] == 1
    assert facts["makespan_s"] == facts["avg_jct_s"] == facts["p99_jct_s"] == 270.0
    # The node is active from the end of its wake at 60.
    assert facts["avg_active_nodes"] == pytest.approx(210 / 270)
    parts = result.energy_until_s(270.0)
    assert parts is not None
    assert parts.sleep_j == pytest.approx(15 * 270)
    assert parts.wake_j == pytest.approx(458.7 * 60)
    assert parts.idle_j == parts.unattributed_j == 0.0
    assert outcome.energy_j == pytest.approx(parts.jobs_j)
    assert facts["energy_j"] == pytest.approx(parts.total_j)


def test_energy_goes_on_until_the_nodes_sleep_and_for_ever_after() -> None:
    result = run([job("a")], cluster(2))
    at_end, in_tail, asleep = (result.energy_until_s(t) for t in (270.0, 400.0, 100_000.0))
    assert at_end is not None
    assert in_tail is not None
    assert asleep is not None
    assert in_tail.idle_j == pytest.approx(458.7 * 130)
    assert in_tail.sleep_j - at_end.sleep_j == pytest.approx(15 * 130)
    # Awake since 60 for at least 600 s, idle since 270 for at least 300 s.
    assert asleep.idle_j == pytest.approx(458.7 * (660 - 270))
    assert asleep.sleep_j - at_end.sleep_j == pytest.approx(15 * (100_000 - 270 + 100_000 - 660))
    assert at_end.jobs_j == in_tail.jobs_j == asleep.jobs_j
    with pytest.raises(InputError, match="energy is known until"):
        result.energy_until_s(269.0)


def test_nodes_that_cannot_sleep_idle_for_ever() -> None:
    result = run([job("a")], cluster(2, can_sleep=False))
    parts = result.energy_until_s(1210.0)
    assert result.end_s == 210.0
    assert parts is not None
    assert parts.sleep_j == parts.wake_j == 0.0
    assert parts.idle_j == pytest.approx(458.7 * (210 + 2 * 1000))


def test_missed_deadlines_and_percentiles() -> None:
    jobs = [evolve(job(f"j{i:03}", submit_s=0.0), deadline_s=500.0) for i in range(4)]
    result = run(jobs, cluster(1))
    ends = [outcome.end_s for outcome in result.jobs]
    assert ends == [270.0, 480.0, 690.0, 900.0]
    assert result.deadline_misses == 2
    assert result.to_json()["p99_jct_s"] == 900.0


def test_energy_is_none_and_not_zero_where_a_utilisation_is_unknown() -> None:
    facts = run([job("a"), job("b", util=None)], cluster(2)).to_json()
    assert facts["energy_j"] is None
    assert facts["energy_parts_j"] is None
    assert facts["finished"] == 2


def test_no_jobs_is_a_result_too() -> None:
    facts = run([], cluster(1)).to_json()
    assert facts["submitted"] == 0
    assert facts["avg_jct_s"] is facts["makespan_s"] is None
    assert facts["energy_j"] == 0.0
    json.dumps(facts, allow_nan=False)


def test_hooks_get_every_step_in_order_and_every_ended_job() -> None:
    seqs: list[int] = []
    ended: list[tuple[int, int]] = []
    result = run(
        [job("a"), job("b")],
        cluster(1),
        on_step=lambda _event, _effects, _records, seq: seqs.append(seq),
        progress=lambda done, total: ended.append((done, total)),
    )
    assert seqs == list(range(1, len(seqs) + 1))
    assert result.steps == len(seqs)
    assert ended == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("jobs", "nodes", "words"),
    [
        ([job("a"), job("a")], cluster(1), "same id"),
        ([job("a", gpus=9)], cluster(1), "asks for 9 GPUs, but there are 8"),
        ([job("a")], cluster(1) + cluster(1), "two nodes"),
    ],
    ids=["jobs", "gpus", "nodes"],
)
def test_input_that_cannot_be_is_refused(
    jobs: list[JobSpec], nodes: list[NodeSpec], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        run(jobs, nodes)


# ------------------------------------------------- machines that contradict the world


class NothingFits:
    """Whatever any predictor believes: no two jobs fit on one GPU."""

    def ratio(self, workload: str, co_workloads: tuple[str, ...], /) -> float | None:
        assert workload
        return None if co_workloads else 1.0


class _View:
    state = JobState.QUEUED


class _Idler:
    """A scheduler that does nothing, and wants a Tick at once (`greedy`) or never."""

    def __init__(self, *, greedy: bool) -> None:
        self.records: Sequence[Record] = ()
        self.seq = 0
        self.next_wakeup_s = 0.0 if greedy else None
        self.seen: list[Event] = []

    def step(self, event: Event, /) -> Sequence[Effect]:
        self.seq += 1
        self.seen.append(event)
        return ()

    def job(self, job_id: str, /) -> _View:
        assert job_id
        return _View()


def idle(machine: _Idler) -> SimResult:
    table = paper_profiles("v100")
    jobs = [job(f"j{i}") for i in range(7)]
    return simulate(
        jobs=jobs, nodes=cluster(1), machine=machine, truth=GroundTruth(table), power=None
    )


def test_jobs_that_never_end_are_named() -> None:
    with pytest.raises(InternalError, match=r"j0 \(queued, 8 GPUs, 0 of 2 epochs\).* and 2 more"):
        idle(_Idler(greedy=False))


def test_a_scheduler_that_wants_ticks_for_ever_is_stopped() -> None:
    machine = _Idler(greedy=True)
    with pytest.raises(InternalError, match="Tick after Tick"):
        idle(machine)
    # All that happened at this time came first.
    kinds = [type(event) for event in machine.seen]
    assert kinds[:9] == [NodeJoined] + [JobSubmitted] * 7 + [Tick]


class _Sharer(_Idler):
    """Starts every job on the first GPU, and gives up those that fail."""

    def __init__(self) -> None:
        super().__init__(greedy=False)
        self.failed: set[str] = set()

    def step(self, event: Event, /) -> Sequence[Effect]:
        super().step(event)
        if isinstance(event, JobFailed):
            self.failed.add(event.job_id)
        if isinstance(event, JobSubmitted):
            return (StartJob(event.job.job_id, 1, 1, (("n000", ("n000-0",)),), 0),)
        return ()

    def job(self, job_id: str, /) -> _View:
        view = _View()
        if job_id in self.failed:
            view.state = JobState.FAILED
        return view


def test_a_job_that_the_scheduler_gives_up_has_failed() -> None:
    jobs = [job("a", gpus=1), evolve(job("b", gpus=1, submit_s=20.0), deadline_s=1e6)]
    result = simulate(
        jobs=jobs,
        nodes=cluster(1, can_sleep=False),
        machine=_Sharer(),
        truth=NothingFits(),
        power=DefaultNodePower(),
    )
    assert [outcome.failure for outcome in result.jobs] == [None, FailureReason.OUT_OF_MEMORY]
    assert [outcome.end_s for outcome in result.jobs] == [210.0, 30.0]
    facts = result.to_json()
    assert (facts["submitted"], facts["finished"], facts["failed"]) == (2, 1, 1)
    assert facts["avg_jct_s"] == 210.0
    assert facts["deadline_misses"] == 1


# ----------------------------------------------------- whole runs under every policy

POLICIES = ["fifo", "fifo-skip", "eaco-paper", "eaco"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_every_job_ends_and_every_joule_is_booked_in_a_world_with_faults(
    policy: str, seed: int
) -> None:
    table = paper_profiles("v100")
    workload = WorkloadSettings(
        jobs=40, gpus=((1, 0.3), (4, 0.3), (8, 0.3), (16, 0.1)), epochs_max=12, nodes=4
    )
    jobs = generate_trace(table, workload, seed=seed).jobs
    settings = SimSettings(
        seed=seed, noise_sigma=0.1, node_mtbf_s=40_000.0, repair_s=5000.0, policy=policy
    )
    intervals: list[NodeInterval] = []
    result = run(jobs, cluster(4), policy, settings=settings, on_energy=intervals.append)
    assert all(outcome.failure is None for outcome in result.jobs)
    assert max(outcome.attempts for outcome in result.jobs) > 1  # the faults did hit
    for interval in intervals:
        check_interval(interval)
    parts = result.energy_until_s(result.end_s)
    assert parts is not None
    assert math.fsum(i.node_j for i in intervals if i.t1_s <= result.end_s) == pytest.approx(
        parts.total_j, rel=1e-9
    )
    assert math.fsum(o.energy_j or 0.0 for o in result.jobs) == pytest.approx(parts.jobs_j)
    for outcome in result.jobs:
        assert outcome.runtime_s >= 0
        assert outcome.wait_s >= settings.start_s - 1e-6


@pytest.mark.parametrize("policy", ["eaco-paper", "eaco"])
def test_jobs_that_run_out_of_memory_together_go_on_alone(policy: str) -> None:
    profile = SoloProfile("v100", 100.0, 0.3, 0.1, peak_mem_bytes=GIB)
    jobs = [
        JobSpec(f"j{i}", 4, 10.0 * i, 30, workload=f"w{i}", profiles=(profile,)) for i in range(3)
    ]
    failures: list[JobFailed] = []

    def note(event: Event, *_: object) -> None:
        if isinstance(event, JobFailed):
            failures.append(event)

    result = simulate(
        jobs=jobs,
        nodes=cluster(1, 4),
        machine=SchedulerMachine(policy_named(policy), power=DefaultNodePower()),
        truth=NothingFits(),
        power=DefaultNodePower(),
        on_step=note,
    )
    assert {event.reason for event in failures} == {FailureReason.OUT_OF_MEMORY}
    assert all(outcome.failure is None for outcome in result.jobs)


def test_verdicts_and_placements_are_counted_as_recorded() -> None:
    table = paper_profiles("v100")
    trace = generate_trace(table, WorkloadSettings(jobs=80, nodes=6), seed=2)
    rule = parse_deadlines("1h:1.3,2,10")
    jobs = apply_deadlines(trace, rule, seed=2, gpu_type="v100", override=True).jobs
    seen: list[Record] = []
    result = simulate(
        jobs=jobs,
        nodes=cluster(6),
        machine=SchedulerMachine(policy_named("eaco"), power=DefaultNodePower()),
        truth=GroundTruth(table, 1.4),
        power=DefaultNodePower(),
        on_step=lambda _event, _effects, records, _seq: seen.extend(records),
    )
    verdicts = [record.keep for record in seen if isinstance(record, Verdict)]
    placed = [record.shared for record in seen if isinstance(record, Placed)]
    assert (result.observations_kept, result.undos) == (sum(verdicts), verdicts.count(False))
    assert (result.placements, result.shared_placements) == (len(placed), sum(placed))
    assert 0 < result.undos < len(verdicts)
    assert 0 < result.shared_placements < len(placed)


def test_a_placement_on_a_sleeping_node_wakes_it_before_the_start() -> None:
    seen: list[tuple[float, str]] = []

    def note(event: Event, effects: Sequence[Effect], _: Sequence[Record], __: int) -> None:
        seen.extend((event.t_s, type(e).__name__) for e in effects if not isinstance(e, Event))

    run([job("a")], cluster(1), on_step=note)
    assert seen[:2] == [(0.0, WakeNode.__name__), (60.0, StartJob.__name__)]


def test_epoch_events_count_up_within_each_attempt() -> None:
    table = paper_profiles("v100")
    jobs = generate_trace(table, WorkloadSettings(jobs=20, epochs_max=12, nodes=2), seed=1).jobs
    last: dict[tuple[str, int], int] = {}

    def note(event: Event, *_: object) -> None:
        if isinstance(event, EpochCompleted):
            key = (event.job_id, event.attempt)
            assert event.epoch == last.get(key, event.epoch - 1) + 1
            last[key] = event.epoch

    result = run(jobs, cluster(2), "eaco", on_step=note)
    assert result.shared_placements > 0
    assert len(last) >= 20


SCRIPT = """
import json, hashlib
from test_run import cluster, run
from eaco_adapters.simulator import SimSettings
from eaco_adapters.traces import WorkloadSettings, generate_trace
from eaco_predictors.profiles import paper_profiles
digest = hashlib.sha256()
jobs = generate_trace(paper_profiles("v100"), WorkloadSettings(jobs=60, nodes=4), seed=5).jobs
settings = SimSettings(seed=5, noise_sigma=0.1, node_mtbf_s=400_000.0)
result = run(jobs, cluster(4), "eaco", settings=settings,
             on_step=lambda *step: digest.update(repr(step).encode()),
             on_energy=lambda interval: digest.update(repr(interval).encode()))
facts = {k: v for k, v in result.to_json().items() if k not in ("cpu_s", "peak_rss_bytes")}
print(json.dumps([facts, digest.hexdigest()]))
"""


def test_same_seed_same_run_whatever_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    facts, _ = json.loads(outputs[0])
    assert facts["shared_placements"] > 0
