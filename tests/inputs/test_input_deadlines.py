"""Deadlines by rule, and the generated workload."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from eaco_adapters.traces import (
    DeadlineRule,
    Trace,
    WorkloadSettings,
    apply_deadlines,
    generate_trace,
    parse_deadlines,
    solo_run_s,
)
from eaco_core.errors import InputError
from eaco_core.jobs import JobSpec, SoloProfile
from eaco_predictors.profiles import ProfileTable, paper_profiles


def one(job_id: str = "a", deadline_s: float | None = None) -> JobSpec:
    return JobSpec(
        job_id,
        gpus=1,
        submit_s=100,
        epochs=10,
        profiles=(SoloProfile("v100", epoch_s=60),),
        deadline_s=deadline_s,
    )


def test_rule_as_written() -> None:
    assert parse_deadlines("none") is None
    assert parse_deadlines("24h:1.2,2,10") == DeadlineRule()
    assert parse_deadlines("90m:3") == DeadlineRule(5400, (3.0,))
    assert parse_deadlines("0s:1") == DeadlineRule(0, (1.0,))
    assert parse_deadlines("1.5d:2") == DeadlineRule(129600, (2.0,))


@pytest.mark.parametrize(
    "text",
    ["", "24h", "24h:", "24:1", "h:1", "24h:1,,2", "-1h:2", "24h:0", "24h:-1", "nanh:1", "1w:2"],
)
def test_rule_that_is_wrong(text: str) -> None:
    with pytest.raises(InputError, match="deadline"):
        parse_deadlines(text)


@given(st.text(max_size=20) | st.from_regex(r"[0-9.]{1,20}[smhd]:[0-9.,]{1,20}", fullmatch=True))
def test_any_text_is_a_rule_or_an_input_error(text: str) -> None:
    try:
        rule = parse_deadlines(text)
    except InputError:
        return
    assert rule is None or (rule.base_s >= 0 and min(rule.multipliers) > 0)


def test_deadline_is_arrival_plus_base_plus_a_multiple() -> None:
    trace = apply_deadlines(Trace((one(),)), DeadlineRule(1000, (2.0,)), seed=0, gpu_type="v100")
    assert trace.jobs[0].deadline_s == 100 + 1000 + 2 * 600
    assert any("deadlines: arrival + 1000 s" in note for note in trace.notes)


def test_multipliers_are_equally_likely_and_do_not_depend_on_order() -> None:
    jobs = tuple(one(f"job-{number}") for number in range(3000))
    rule = DeadlineRule(0, (1.0, 2.0, 4.0))
    there = apply_deadlines(Trace(jobs), rule, seed=7, gpu_type="v100")
    back = apply_deadlines(Trace(jobs[::-1]), rule, seed=7, gpu_type="v100")
    assert there.jobs == back.jobs[::-1]
    chosen = Counter(job.deadline_s for job in there.jobs)
    assert set(chosen) == {700, 1300, 2500}
    assert all(900 < count < 1100 for count in chosen.values())
    assert there.jobs != apply_deadlines(Trace(jobs), rule, seed=8, gpu_type="v100").jobs


def test_own_deadlines_of_a_trace_win_unless_overridden() -> None:
    trace = Trace((one("a", 555), one("b")), has_deadlines=True)
    rule = DeadlineRule(0, (1.0,))
    assert apply_deadlines(trace, rule, seed=0, gpu_type="v100") is trace
    assert apply_deadlines(trace, None, seed=0, gpu_type="v100") is trace
    forced = apply_deadlines(trace, rule, seed=0, gpu_type="v100", override=True)
    assert [job.deadline_s for job in forced.jobs] == [700, 700]
    freed = apply_deadlines(trace, None, seed=0, gpu_type="v100", override=True)
    assert [job.deadline_s for job in freed.jobs] == [None, None]


def test_deadline_needs_a_solo_run_time() -> None:
    trace = Trace((evolve(one(), profiles=()),), name="t.csv", lines=(4,))
    with pytest.raises(InputError, match=r"t\.csv, line 4: the deadline of job 'a' needs"):
        apply_deadlines(trace, DeadlineRule(), seed=0, gpu_type="v100")


# ------------------------------------------------------------ generated workload


def test_default_workload() -> None:
    trace = generate_trace(paper_profiles())
    assert len(trace.jobs) == 400
    assert {job.gpus for job in trace.jobs} == {8}
    assert [job.submit_s for job in trace.jobs] == sorted(job.submit_s for job in trace.jobs)
    epochs = [job.epochs or 0 for job in trace.jobs]
    assert min(epochs) >= 10
    assert max(epochs) <= 90
    assert sum(epochs) / 400 == pytest.approx(50, abs=4)  # three standard errors are 3.5
    counts = Counter(job.workload for job in trace.jobs)
    assert all(70 < count < 130 for count in counts.values())
    assert len(counts) == 4
    assert not trace.has_deadlines


def test_epochs_reach_both_ends() -> None:
    trace = generate_trace(paper_profiles(), WorkloadSettings(jobs=200, epochs_min=2, epochs_max=3))
    assert {job.epochs for job in trace.jobs} == {2, 3}


@pytest.mark.parametrize("load_ratio", [0.4, 0.8, 2.0])
def test_load_is_what_was_asked_for(load_ratio: float) -> None:
    settings = WorkloadSettings(
        jobs=4000, load_ratio=load_ratio, nodes=10, gpus=((1, 2.0), (4, 1.0), (8, 1.0))
    )
    trace = generate_trace(paper_profiles(), settings, seed=3)
    work_gpu_s = sum(job.gpus * (solo_run_s(job, "v100") or 0) for job in trace.jobs)
    assert work_gpu_s / (trace.jobs[-1].submit_s * 80) == pytest.approx(load_ratio, rel=0.06)
    ones = sum(job.gpus == 1 for job in trace.jobs)
    assert ones == pytest.approx(2000, abs=120)


def test_gaps_between_arrivals_are_exponential() -> None:
    trace = generate_trace(paper_profiles(), WorkloadSettings(jobs=4000), seed=5)
    times = [0.0, *(job.submit_s for job in trace.jobs)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean_s = sum(gaps) / len(gaps)
    # For an exponential distribution the share above the mean is 1/e, above twice it 1/e^2.
    assert sum(gap > mean_s for gap in gaps) / 4000 == pytest.approx(0.368, abs=0.025)
    assert sum(gap > 2 * mean_s for gap in gaps) / 4000 == pytest.approx(0.135, abs=0.02)


def test_same_seed_same_trace_in_another_process() -> None:
    script = (
        "from eaco_adapters.traces import *\n"
        "from eaco_predictors.profiles import paper_profiles\n"
        "t = generate_trace(paper_profiles(), seed=4)\n"
        "print(format_trace(apply_deadlines(t, DeadlineRule(), seed=4, gpu_type='v100')))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") > 400
    assert generate_trace(paper_profiles(), seed=4) != generate_trace(paper_profiles(), seed=5)


def test_settings_that_are_wrong() -> None:
    with pytest.raises(InputError, match="epochs_max"):
        WorkloadSettings(epochs_min=5, epochs_max=4)
    with pytest.raises(InputError, match="load_ratio must be above 0"):
        WorkloadSettings(load_ratio=0)
    with pytest.raises(InputError, match="GPU counts"):
        WorkloadSettings(gpus=((0, 1.0),))
    without_epochs = ProfileTable("t", "v100", {"a": SoloProfile("v100")}, {})
    with pytest.raises(InputError, match="no epoch time for 'a'"):
        generate_trace(without_epochs)
