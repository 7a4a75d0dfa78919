"""Histories that other schedulers wrote: what is known of jobs, and what cannot be judged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from eaco_adapters.shadow import Past, ShadowReport, shadow_report
from eaco_adapters.shadow.work import work_of
from eaco_adapters.testing.history_by_hand import HistoryByHand
from eaco_core.errors import InputError
from eaco_core.history import decode_line

DOCUMENT = Path(__file__).parents[2] / "docs" / "history.md"
PROFILE = {
    "gpu_type": "a100",
    "epoch_s": 100,
    "util_ratio": 0.3,
    "mem_busy_ratio": 0.2,
    "peak_mem_bytes": 2**30,
}
KNOWN: dict[str, Any] = {"epochs": 10, "workload": "bert", "profiles": [PROFILE]}


def past_of(text: str) -> Past:
    past = Past()
    for number, line in enumerate(text.splitlines(), start=1):
        past.take(decode_line(line), f"by hand, line {number}")
    return past


def judged(history: HistoryByHand) -> ShadowReport:
    return shadow_report(past_of(history.text()))


def two_jobs_at_once(**facts: Any) -> HistoryByHand:  # noqa: ANN401 - fields of a job
    """Give two jobs on two GPUs of one node, for 1000 s."""
    history = HistoryByHand(nodes=2)
    for job_id in ("a", "b"):
        history.submit(0, job_id, **facts)
    history.start(0, "a", ["n0-g0"])
    history.start(0, "b", ["n1-g0"])
    for epoch in range(1, 11):
        for job_id in ("a", "b"):
            history.epoch(100 * epoch, job_id, epoch)
    history.end(1000, "a", ["n0-g0"])
    history.end(1000, "b", ["n1-g0"])
    return history


def test_the_example_of_the_documentation_is_judged() -> None:
    found = re.search(r"```jsonl\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    report = shadow_report(past_of(found[1]))
    assert (report.origin, report.policy, report.jobs) == ("example-cluster 4.2", "backfill", 1)
    assert report.left_out == {"never started in the history": 1}
    assert report.alone == {"it names no workload": 1}
    assert report.measured_j == 63300
    assert report.saving_ratio == pytest.approx(0, abs=1e-6)


def test_jobs_with_profiles_are_shared_as_they_would_have_been() -> None:
    report = judged(two_jobs_at_once(**KNOWN))
    assert report.shared == 1
    assert report.kept == 1
    assert report.as_was is not None
    assert report.would_be is not None
    assert report.would_be.energy_j < report.as_was.energy_j
    (story,) = report.savings
    assert (story.job_id, story.beside) == ("b", ("a",))
    assert "beside job a" in story.text
    assert story.bound_ratio == 1.25


def test_times_may_count_from_any_beginning() -> None:
    history = two_jobs_at_once(**KNOWN)
    late = HistoryByHand(nodes=2, start_s=1.7e9)
    assert late.lines[0] == history.lines[0]
    for job_id in ("a", "b"):
        late.submit(0, job_id, **KNOWN, deadline_s=1.7e9 + 1001)
    late.run(0, "a", ["n0-g0"], [100] * 10)
    report = judged(late)
    assert report.span_s == 1000
    assert report.as_was is not None
    assert report.as_was.late == 0


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"workload": "bert", "profiles": [PROFILE]}, "it does not say how many epochs it has"),
        ({"epochs": 10, "profiles": [PROFILE]}, "it names no workload"),
        (
            {"epochs": 10, "workload": "bert"},
            "its epoch time alone was not known when it was submitted",
        ),
        (
            {**KNOWN, "profiles": [{"gpu_type": "a100", "epoch_s": 100}]},
            "its GPU utilisation was not known when it was submitted",
        ),
        (
            {**KNOWN, "profiles": [{**PROFILE, "mem_busy_ratio": None}]},
            "how busy it keeps the GPU memory was not known when it was submitted",
        ),
        (
            {**KNOWN, "profiles": [{**PROFILE, "peak_mem_bytes": None}]},
            "its peak GPU memory was not known when it was submitted",
        ),
        ({**KNOWN, "share_with": "none"}, "its user does not share"),
    ],
)
def test_what_cannot_be_judged_is_said_and_runs_alone(facts: dict[str, Any], why: str) -> None:
    report = judged(two_jobs_at_once(**facts))
    assert report.alone == {why: 2}
    assert report.shared == 0


def test_a_job_is_known_from_earlier_jobs_of_its_workload_that_ran_alone() -> None:
    history = HistoryByHand(nodes=2)
    facts: dict[str, Any] = {"epochs": 10, "workload": "bert"}
    history.submit(0, "first", **facts)
    history.start(0, "first", ["n0-g0"])
    for epoch in range(1, 11):
        history.sample(100 * epoch - 50, "n0-g0", 0.25, mem_busy_ratio=0.2)
        history.event(
            100 * epoch,
            "EpochCompleted",
            job_id="first",
            attempt=1,
            epoch=epoch,
            peak_mem_bytes=2**30,
        )
    history.end(1000, "first", ["n0-g0"])
    for job_id in ("second", "third"):
        history.submit(1000, job_id, **facts)
    history.start(1000, "second", ["n0-g0"])
    history.start(1000, "third", ["n1-g0"])
    for epoch in range(1, 11):
        history.epoch(1000 + 100 * epoch, "second", epoch)
        history.epoch(1000 + 100 * epoch, "third", epoch)
    history.end(2000, "second", ["n0-g0"])
    history.end(2000, "third", ["n1-g0"])
    past = past_of(history.text())
    believed = past.jobs["first"].believed
    assert believed.profiles == ()  # nothing was known yet, and nothing of later is used
    profile = past.jobs["second"].believed.profile_on("a100")
    assert profile is not None
    assert (profile.epoch_s, profile.util_ratio, profile.peak_mem_bytes) == (100, 0.25, 2**30)
    assert profile.mem_busy_ratio == pytest.approx(0.2)
    report = shadow_report(past)
    assert report.alone == {"its epoch time alone was not known when it was submitted": 1}
    assert report.jobs == 3
    assert report.shared == 1


def test_readings_of_shared_gpus_and_of_others_processes_say_nothing() -> None:
    history = HistoryByHand()
    for job_id in ("a", "b"):
        history.submit(0, job_id, epochs=2, workload=job_id)
    history.start(0, "a", ["n0-g0"])
    history.start(10, "b", ["n0-g0"])
    history.sample(20, "n0-g0", 0.9)
    history.sample(20, "n0-g1", 0.9)
    past = past_of(history.text())
    assert past.known.seen("a", "a100") is None
    assert past.known.seen("b", "a100") is None


def test_epochs_beside_others_become_a_measured_slowdown() -> None:
    history = HistoryByHand()
    for job_id in ("a", "b"):
        history.submit(0, job_id, epochs=4, workload=job_id)
    history.start(0, "a", ["n0-g0"])
    history.epoch(100, "a", 1)
    history.start(100, "b", ["n0-g0"])
    history.epoch(250, "a", 2)
    history.epoch(260, "b", 1)
    past = past_of(history.text())
    seen = past.known.seen("a", "a100")
    assert seen is not None
    assert seen.epoch_s == 100
    assert past.known.shared() == {("a", ("b",), "a100"): 150, ("b", ("a",), "a100"): 160}
    (first, second) = work_of(past, assumed_util_ratio=0.5).jobs
    assert first.truth.epochs == 2
    assert first.truth.profiles[0].epoch_s == 100
    assert second.alone == "it was never seen alone"
    assert second.believed.exclusive


def test_jobs_that_never_start_or_end_are_told() -> None:
    history = HistoryByHand(gpus=4)
    history.submit(0, "waits", **KNOWN)
    history.submit(0, "taken back", **KNOWN)
    history.event(1, "JobCancelled", job_id="taken back")
    history.submit(1, "young", **KNOWN)
    history.start(1, "young", ["n0-g0"])
    history.submit(1, "runs", **KNOWN)
    history.start(1, "runs", ["n0-g1"])
    history.epoch(101, "runs", 1)
    history.epoch(201, "runs", 2)
    history.submit(201, "starts", **KNOWN)
    history.event(280, "Tick")
    report = judged(history)
    assert report.jobs == 1
    assert report.left_out == {
        "never started in the history": 2,
        "taken back before they started": 1,
        "still in their first epoch": 1,
    }
    (work,) = work_of(past_of(history.text()), assumed_util_ratio=0.5).jobs
    assert (work.end_s, work.truth.epochs, work.finished) == (201, 2, False)
    assert work.believed.epochs == 10  # eaco would not have known that the history ends


def test_a_failed_attempt_is_work_that_both_schedules_do() -> None:
    history = HistoryByHand()
    history.submit(0, "a", **KNOWN)
    history.start(0, "a", ["n0-g0"])
    history.epoch(100, "a", 1)
    history.event(150, "JobFailed", job_id="a", attempt=1)
    history.event(150, "GpusReleased", job_id="a", attempt=1, gpus=["n0-g0"])
    history.start(150, "a", ["n0-g1"], attempt=2)
    for epoch in range(1, 11):
        history.epoch(150 + 100 * epoch, "a", epoch, attempt=2)
    history.end(1150, "a", ["n0-g1"], attempt=2)
    (work,) = work_of(past_of(history.text()), assumed_util_ratio=0.5).jobs
    assert work.truth.epochs in {11, 12}
    assert work.truth.profiles[0].epoch_s == 100
    assert judged(history).jobs == 1


def test_an_end_that_nobody_told_comes_with_the_next_attempt_or_user_of_the_gpu() -> None:
    history = HistoryByHand()
    history.submit(0, "a", **KNOWN)
    history.start(0, "a", ["n0-g0"])
    history.epoch(100, "a", 1)
    history.start(300, "a", ["n0-g1"], attempt=2)  # the first attempt just vanished
    history.epoch(400, "a", 1, attempt=2)
    history.event(400, "JobFinished", job_id="a", attempt=2)  # and never lets go
    history.submit(400, "b", **KNOWN)
    history.start(500, "b", ["n0-g1"])
    history.epoch(600, "b", 1)
    past = past_of(history.text())
    assert not past.jobs["b"].attempts[0].company
    (first, second) = work_of(past, assumed_util_ratio=0.5).jobs
    assert [one.released_s for one in first.held] == [300, 500]
    assert second.end_s == 600


def test_a_lost_node_ends_what_runs_on_it() -> None:
    history = two_jobs_at_once(**KNOWN)
    history.submit(1000, "c", **KNOWN)
    history.start(1000, "c", ["n0-g0"])
    history.epoch(1100, "c", 1)
    history.event(1110, "NodeLost", node_id="n0")
    report = judged(history)
    assert report.jobs == 3
    assert any("1 node came later, or failed" in note for note in report.notes)


def test_without_nodes_the_gpus_that_were_used_are_the_cluster() -> None:
    history = two_jobs_at_once(**KNOWN)
    history.lines = [line for line in history.lines if "NodeJoined" not in line]
    past = past_of(history.text())
    assert past.gpu_types == {"a100"}
    report = shadow_report(past)
    assert report.alone == {"the memory of its GPUs is not known": 2}
    assert any("no NodeJoined event" in note for note in report.notes)
    told = Past(gpu_mem_bytes=40 * 2**30)
    for line in history.lines:
        told.take(decode_line(line))
    assert shadow_report(told).shared == 1


@pytest.mark.parametrize(
    ("kind", "fields", "complaint"),
    [
        ("JobStarted", {"job_id": "x", "attempt": 1}, "job x, which was never submitted"),
        ("JobStarted", {"job_id": "a", "attempt": 7}, "attempt 7 of job a, to which no StartJob"),
        ("JobCancelled", {"job_id": "x"}, "job x, which was never submitted"),
        (
            "NodeJoined",
            {"node": {"node_id": "n9", "gpus": [{"gpu_id": "n0-g0", "gpu_type": "a100"}]}},
            "GPU n0-g0 joins with node n9, but it is on node n0",
        ),
        (
            "JobSubmitted",
            {"job": {"job_id": "a", "gpus": 2, "submit_s": 0}},
            "job id a is used by two jobs",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(
    kind: str, fields: dict[str, Any], complaint: str
) -> None:
    history = two_jobs_at_once(**KNOWN)
    history.event(2000, kind, **fields)
    with pytest.raises(InputError, match=rf"by hand, line {len(history.lines)}.*{complaint}"):
        past_of(history.text())


def test_gpus_that_do_not_exist_and_time_that_goes_back_are_refused() -> None:
    history = HistoryByHand()
    history.submit(5, "a", **KNOWN)
    history.start(5, "a", ["n7-g0"])
    with pytest.raises(InputError, match=r"line 4.*GPU n7-g0 of node n7, which never joined"):
        past_of(history.text())
    history = HistoryByHand()
    history.event(5, "Tick")
    history.event(4, "Tick")
    with pytest.raises(InputError, match=r"line 4.*time goes back"):
        past_of(history.text())
    history.lines.pop()
    history.event(1e12, "Tick")
    with pytest.raises(InputError, match="t_s must be in seconds"):
        past_of(history.text())


def test_more_epochs_than_can_be_simulated_are_refused() -> None:
    history = HistoryByHand()
    history.submit(0, "a", epochs=2 * 10**9, workload="x")
    history.start(0, "a", ["n0-g0"])
    history.epoch(100, "a", 2 * 10**9)
    history.end(100, "a", ["n0-g0"])
    with pytest.raises(InputError, match="at most 10,000,000 can be simulated"):
        judged(history)
