"""The story of a job is told in plain sentences, with bounds, evidence and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_core import history
from eaco_core.decisions import (
    AffectedBound,
    AtRisk,
    BoundSource,
    Evicted,
    Evidence,
    GateReading,
    Ignored,
    Placed,
    Refusal,
    Requeued,
    Reserved,
    Verdict,
    Waits,
    WindowRestarted,
)
from eaco_core.effects import KillJob, StartJob, StopAtEpochBoundary
from eaco_core.errors import InputError
from eaco_core.events import (
    EpochCompleted,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobUnknown,
    StartFailed,
    Tick,
)
from eaco_core.explain import explain_job, moment, span
from eaco_core.history import Header, Line, Step
from eaco_core.jobs import FailureReason, JobSpec

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event

BOUND = AffectedBound(
    "b", "vgg", ("resnet",), "v100", 1.1, 1.25, BoundSource.LAW, "cal-1", 1000.0, 5000.0, late=False
)
OF_A = AffectedBound(
    "a", "resnet", ("vgg",), "v100", 1.1, 1.3, BoundSource.OBSERVED, None, 900.0, None, late=False
)
PLACED = Placed(
    t_s=120.0,
    job_id="b",
    attempt=1,
    gpus=("g0",),
    shared=True,
    start_s=180.0,
    affected=(BOUND, OF_A),
    gates=(GateReading("g0", 0.3, 0.2, 1, 2, ("a",), by_evidence=False),),
    extra_energy_j=3.6e6,
    alternative_energy_j=7.2e6,
    explored=False,
    refusals=(Refusal("R6", "its own deadline could be missed", 2),),
)
VERDICT = Verdict(
    400.0,
    "b",
    1,
    keep=True,
    reason="every deadline holds",
    evidence=(
        Evidence("b", 110.0, 1.1, 9, 5000.0, late=False),
        Evidence("a", None, None, 7, None, late=False),
    ),
    throughput_sum=1.8,
    restarts=0,
)


def steps() -> list[Line]:
    found: list[Line] = [Header(policy="eaco")]

    def add(event: Event, effects: tuple[Effect, ...] = (), *records: Record) -> None:
        found.append(Step(len(found), event.t_s, 1, event, effects, records))

    add(JobSubmitted(0.0, JobSpec("a", 1, 0.0, epochs=20, workload="resnet")))
    add(JobSubmitted(100.0, JobSpec("b", 1, 100.0, epochs=10, workload="vgg", deadline_s=5000.0)))
    add(Tick(100.0), (), Waits(100.0, "b", "no idle set is free", ()))
    add(Tick(120.0), (), PLACED)
    add(Tick(180.0), (StartJob("b", 1, 1, (("n1", ("g0",)),), 0),))
    add(JobStarted(190.0, "b", 1))
    add(Tick(200.0), (), WindowRestarted(200.0, "b", 1, "job z finished"))
    add(EpochCompleted(300.0, "b", 1, 1))
    add(EpochCompleted(300.0, "b", 1, 1), (), Ignored(300.0, "EpochCompleted", "b", "counted"))
    add(Tick(400.0), (), VERDICT)
    add(Tick(500.0), (), AtRisk(500.0, "b", 6000.0, 5000.0))
    add(Tick(510.0), (), Evicted(510.0, "a", "b", 6000.0, 5000.0))
    add(Tick(520.0), (StopAtEpochBoundary("b", 1, 1, "evicted"),))
    add(JobStopped(600.0, "b", 1, 2), (), Requeued(600.0, "b", 2, "evicted"))
    add(Tick(610.0), (), Reserved(610.0, "b", ("g1",), 900.0))
    add(JobUnknown(700.0, "b", 1), (KillJob("b", 1, 1, "nobody knows"),))
    add(StartFailed(710.0, "b", 1, "no image"))
    add(JobFailed(720.0, "b", 1, FailureReason.OUT_OF_MEMORY, exit_code=137))
    add(JobFinished(4000.0, "b", 1))
    add(JobCancelled(4001.0, "a"))
    return found


def told(job_id: str) -> list[str]:
    return [sentence.text for sentence in explain_job(steps(), job_id)]


def test_the_story_of_a_job_is_told_from_its_coming_to_its_end() -> None:
    assert told("b") == [
        "submitted: 1 GPU, 10 epochs of vgg, to be done by t = 5000 s, 1 h 22 min from now.",
        "waits: no idle set is free.",
        (
            "placed on GPU g0, beside job a; it can start at t = 180 s, when its node has woken up."
            " Refused: 2 sets by R6, its own deadline could be missed."
        ),
        (
            "job b (vgg) beside resnet: at most 1.25 times its time alone, by the sum of the"
            " utilisations, calibration cal-1; done by t = 1430 s, its deadline is t = 5000 s."
        ),
        (
            "job a (resnet) beside vgg: at most 1.30 times its time alone, by what was observed of"
            " this set; done by t = 1350 s, it has no deadline."
        ),
        "sharing is predicted to cost 1.00 kWh, against 2.00 kWh otherwise.",
        "is started on n1.",
        "runs.",
        "its trial begins again (1): job z finished.",
        "kept after its trial: every deadline holds.",
        "job b: one epoch took 2 min, 1.10 times its time alone; 9 epochs to go.",
        "job a had completed no clean epoch in the window.",
        (
            "will probably be late: it would end at t = 6000 s, after t = 5000 s, and stopping"
            " another job would not help."
        ),
        "has to leave its GPUs: beside it job a would end at t = 6000 s, after t = 5000 s.",
        "is told to stop at the end of its epoch: evicted.",
        "stopped with a checkpoint after 2 epochs.",
        "is back in the queue, to go on after 2 epochs: evicted.",
        "GPU g1 is held for it, free by t = 900 s.",
        "is out of sight: nobody knows whether it runs.",
        "is told to end at once: nobody knows.",
        "could not be started: no image.",
        "failed: out of memory (exit code 137), after 2 epochs.",
        "finished, 1 h 5 min after it was submitted; its deadline was met with 17 min to spare.",
    ]


def test_a_resident_learns_who_came_beside_it() -> None:
    story = told("a")
    assert story[0] == "submitted: 1 GPU, 20 epochs of resnet, no deadline."
    assert story[1].startswith(
        "job b was placed beside it. job a (resnet) beside vgg: at most 1.30"
    )
    assert story[2] == "job b is kept beside it: every deadline holds."
    assert "so job b has to leave its GPUs." in story[4]
    assert story[-1] == "cancelled by its user."


def test_a_late_end_says_by_how_much() -> None:
    lines = [line for line in steps() if not isinstance(line, Step) or line.seq < 3]
    lines.append(Step(3, 5600.0, 1, JobFinished(5600.0, "b", 1)))
    assert explain_job(lines, "b")[-1].text.endswith("its deadline was missed by 10 min.")


def test_a_file_tells_the_same_story_and_an_unknown_job_gets_near_matches(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(history.encode(line) + "\n" for line in steps()), encoding="utf-8")
    assert explain_job(path, "b") == explain_job(steps(), "b")
    with pytest.raises(InputError, match=r"run.jsonl: there is no job 'c' .* it has 2 jobs"):
        explain_job(path, "c")
    renamed = path.read_text(encoding="utf-8").replace('"b"', '"job-012"')
    path.write_text(renamed, encoding="utf-8")
    with pytest.raises(InputError, match="did you mean job-012"):
        explain_job(path, "job-12")


def test_spans_and_moments_are_for_people() -> None:
    assert [span(s) for s in (-1.0, 0.04, 59.0, 60.0, 3_599.0, 90_061.0)] == [
        "0.0 s",
        "0.0 s",
        "59.0 s",
        "1 min",
        "1 h 0 min",
        "1 d 1 h",
    ]
    assert moment(12.4) == "t = 12 s"
