"""Planted violations: what runs, starts, releases or speaks without ever having been there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.decisions import Reserved, Waits
from eaco_core.effects import SleepNode, StartJob, WakeNode
from eaco_core.invariants import check_history
from eaco_core.machine import SchedulerMachine
from eaco_core.testing import Recorder, a_job, a_node
from eaco_core.testing.histories import HistoryWriter, alone, go, undone

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.events import Event


def placed(*effects: StartJob | WakeNode, attempt: int = 1, t_s: float = 0.0) -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0)
    return run.add(ev.Tick(0.0), alone(t_s, "a", "g0", attempt=attempt), *effects)


def started_without_decision() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).add(ev.Tick(0.0), go("a", "g0"))
    return run.add(ev.JobStarted(10.0, "a", 1))


def placed_and_forgotten() -> HistoryWriter:
    return placed()


def woken_and_forgotten() -> HistoryWriter:
    run = HistoryWriter().add(ev.NodeAsleep(0.0, "n1")).submit("a", 0.0)
    run.add(ev.Tick(0.0), alone(0.0, "a", "g0"), WakeNode("n1", 1))
    assert run.broken() == set()
    return run.add(ev.NodeAwake(50.0, "n1"))


def started_twice() -> HistoryWriter:
    return placed(go("a", "g0")).add(ev.Tick(5.0), go("a", "g0"))


def runs_before_its_start() -> HistoryWriter:
    run = HistoryWriter().add(ev.NodeAsleep(0.0, "n1")).submit("a", 0.0)
    run.add(ev.Tick(0.0), alone(0.0, "a", "g0"), WakeNode("n1", 1))
    return run.add(ev.JobStarted(10.0, "a", 1))


def finished_before_it_ran() -> HistoryWriter:
    return placed(go("a", "g0")).add(ev.JobFinished(10.0, "a", 1))


def counts_before_it_ran() -> HistoryWriter:
    return placed(go("a", "g0")).add(ev.EpochCompleted(10.0, "a", 1, 1))


def attempt_left_out() -> HistoryWriter:
    return placed(go("a", "g0", attempt=2), attempt=2)


def released_what_it_never_held() -> HistoryWriter:
    run = placed(go("a", "g0")).add(ev.JobStarted(1.0, "a", 1)).add(ev.JobFinished(10.0, "a", 1))
    return run.add(ev.GpusReleased(10.0, "a", 1, ("g0", "g3")))


def record_of_another_time() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0)
    return run.add(ev.Tick(5.0), alone(4.0, "a", "g0"), go("a", "g0"))


def speaks(event: Event) -> Callable[[], HistoryWriter]:
    return lambda: HistoryWriter().add(event)


def commands(effect: SleepNode | WakeNode) -> Callable[[], HistoryWriter]:
    return lambda: HistoryWriter().add(ev.Tick(0.0), effect)


def started_on(node_id: str, gpu_id: str) -> Callable[[], HistoryWriter]:
    return lambda: placed(StartJob("a", 1, 1, ((node_id, (gpu_id,)),), 0))


def gpu_on_two_nodes() -> HistoryWriter:
    node = NodeSpec("n3", (GpuSpec("g0", "v100"),))
    return HistoryWriter().add(ev.NodeJoined(0.0, node))


def gpu_named_twice() -> HistoryWriter:
    node = NodeSpec("n3", (GpuSpec("g9", "v100"), GpuSpec("g9", "v100")))
    return HistoryWriter().add(ev.NodeJoined(0.0, node))


def reserved_nowhere() -> HistoryWriter:
    run = HistoryWriter(starvation_s=500.0).submit("a", 0.0).start("a", 0.0, "g0")
    run.submit("c", 100.0, gpus=4).add(ev.Tick(100.0), Waits(100.0, "c", "no idle set", ()))
    return run.add(ev.Tick(610.0), Reserved(610.0, "c", ("g0", "g1", "g2", "ghost"), 2010.0))


PLANTED: tuple[tuple[str, str, Callable[[], HistoryWriter]], ...] = (
    ("I03", "attempt 1 of job a was started without a Placed record", started_without_decision),
    ("I03", "was placed and not started", placed_and_forgotten),
    ("I03", "was placed and not started", woken_and_forgotten),
    ("I03", "attempt 1 of job a was started twice", started_twice),
    ("I03", "which no StartJob started", runs_before_its_start),
    ("I03", "which does not run", finished_before_it_ran),
    ("I03", "which does not run", counts_before_it_ran),
    ("I03", "attempt 2 of job a comes after attempt 0", attempt_left_out),
    ("I03", "released GPU g3, which it never held", released_what_it_never_held),
    ("I18", "a record of the step (Placed) says 4 s", record_of_another_time),
    ("I18", "NodeAsleep speaks of node n9, which never joined", speaks(ev.NodeAsleep(0.0, "n9"))),
    ("I18", "NodeLost speaks of node n9, which never joined", speaks(ev.NodeLost(0.0, "n9"))),
    ("I18", "which its node does not have", speaks(ev.GpuLost(0.0, "n1", "g2"))),
    ("I18", "WakeNode speaks of node n9, which never joined", commands(WakeNode("n9", 1))),
    ("I18", "SleepNode speaks of node n9, which never joined", commands(SleepNode("n9", 1))),
    ("I04", "was started on node n9, which never joined", started_on("n9", "g0")),
    ("I04", "GPU g0, which node n2 does not have", started_on("n2", "g0")),
    ("I04", "GPU g0 is on nodes n1 and n3 at once", gpu_on_two_nodes),
    ("I04", "node n3 names GPU g9 twice", gpu_named_twice),
    ("I24", "GPU ghost is reserved for job c, and no node has it", reserved_nowhere),
)


@pytest.mark.parametrize(("invariant", "complaint", "plant"), PLANTED)
def test_what_was_never_there_is_found(
    invariant: str, complaint: str, plant: Callable[[], HistoryWriter]
) -> None:
    report = check_history(plant().lines)
    assert report.counts == {invariant: 1}, [str(v) for v in report.failed]
    assert complaint in report.failed[0].message


def test_the_same_faults_of_another_scheduler_are_found() -> None:
    other = {"policy": "x", "origin": "other"}
    run = HistoryWriter(**other).submit("a", 0.0).add(ev.EpochCompleted(10.0, "a", 1, 1))
    assert run.broken() == {"I20"}
    run = HistoryWriter(**other).submit("a", 0.0).add(ev.Tick(0.0), go("a", "g0"))
    assert run.add(ev.JobStarted(10.0, "a", 1)).broken() == set()
    assert run.add(ev.Tick(11.0), go("a", "g0")).broken() == {"I03"}


def test_a_gpu_may_move_from_a_node_that_is_lost() -> None:
    run = HistoryWriter().add(ev.NodeLost(0.0, "n1"))
    run.add(ev.NodeJoined(1.0, NodeSpec("n3", (GpuSpec("g0", "v100"),)), NodeState.AWAKE))
    assert run.broken() == set()


def test_whoever_is_undone_is_started_again_as_the_next_attempt() -> None:
    assert undone().start("b", 400.0, "g1", attempt=2, resume=2).broken() == set()
    assert undone().start("b", 400.0, "g1", attempt=3, resume=2).broken() == {"I03"}


def test_a_job_that_has_ended_may_still_count_as_a_co_resident() -> None:
    recorder = Recorder(SchedulerMachine(), watch=False)
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("x")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "x", 1))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("gang", 2)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "gang", 1))
    recorder.feed(ev.JobFinished(10.0, "x", 1))
    recorder.feed(ev.JobSubmitted(10.0, a_job("new", submit_s=10.0)))
    recorder.feed(ev.Tick(10.0))
    assert recorder.machine.job("new").gpus == ("n2-0",)
    report = check_history(recorder.lines)
    assert report.ok, report.failed
