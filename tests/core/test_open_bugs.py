"""Smallest examples of what the core does wrong today. A repaired one fails here: move it."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.decisions import Placed, Reserved
from eaco_core.invariants import check_history
from eaco_core.machine import SchedulerMachine
from eaco_core.rules import GIB, Rules
from eaco_core.testing import Recorder, a_job, a_node


def _recorder(rules: Rules | None = None) -> Recorder:
    return Recorder(SchedulerMachine(rules=rules), watch=False)


@pytest.mark.xfail(
    strict=True,
    reason="R2: JobFinished, JobFailed and JobStopped do not refresh the index of host GPUs, so "
    "a pass before GpusReleased offers a GPU whose resident is stopping: ActionRefused from step",
)
@pytest.mark.parametrize("end", ["finished", "failed", "stopped"])
def test_a_pass_between_the_end_of_a_job_and_the_release_of_its_gpus(end: str) -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", epochs=2)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(1.0, "a", 1))
    recorder.feed(ev.EpochCompleted(101.0, "a", 1, 1))
    if end == "finished":
        recorder.feed(ev.JobFinished(101.0, "a", 1))
    elif end == "failed":
        recorder.feed(ev.JobFailed(101.0, "a", 1))
    else:
        recorder.feed(ev.JobStopped(101.0, "a", 1, 1))
    recorder.feed(ev.JobSubmitted(101.5, a_job("b", submit_s=101.5)))
    recorder.feed(ev.Tick(101.5))


@pytest.mark.xfail(
    strict=True,
    reason="I01: exclusive sets are not held against memory: a job of 12 GiB goes to a GPU of 8, "
    "although one of 16 is free",
)
def test_a_job_alone_goes_where_its_memory_fits() -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1, mem_gib=8)))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 1, mem_gib=16)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", mem_gib=12)))
    recorder.feed(ev.Tick(0.0))
    assert recorder.machine.job("a").gpus == ("n2-0",)


@pytest.mark.xfail(
    strict=True,
    reason="R2, I02: the gates do not look at the free GPUs of a shared set: a gang of 6 GiB a "
    "GPU shares beside one GPU of 4 GiB (or of unknown memory)",
)
@pytest.mark.parametrize("mem_bytes", [4 * GIB, None])
def test_the_free_gpu_of_a_shared_gang_is_held_against_memory(mem_bytes: int | None) -> None:
    recorder = _recorder()
    gpus = (GpuSpec("g0", "v100", 32 * GIB), GpuSpec("g1", "v100", mem_bytes))
    recorder.feed(ev.NodeJoined(0.0, NodeSpec("n1", gpus)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a")))
    recorder.feed(ev.Tick(0.0))
    assert recorder.machine.job("a").gpus == ("g0",)
    recorder.feed(ev.JobSubmitted(0.0, a_job("b", 2, mem_gib=6)))
    recorder.feed(ev.Tick(0.0))
    assert not any(isinstance(r, Placed) and r.job_id == "b" for r in recorder.records)


@pytest.mark.xfail(
    strict=True,
    reason="R11: a gang over nodes gets no reservation when its remainder has only a smaller "
    "node (or one that lost a GPU): every pool is asked for a whole node of GPUs",
)
def test_a_starving_gang_reserves_its_remainder_on_a_smaller_node() -> None:
    recorder = _recorder(Rules(starvation_s=60.0))
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 2)))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", exclusive=True)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobSubmitted(0.0, a_job("gang", 3)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.Tick(61.0))
    assert [r.job_id for r in recorder.records if isinstance(r, Reserved)] == ["gang"]


@pytest.mark.xfail(
    strict=True,
    reason="R15: a node with wake_s = 0 is taken as not woken in the moment of its waking",
)
def test_a_node_that_wakes_at_once_is_given_a_moment() -> None:
    recorder = _recorder()
    node = a_node("n1", 1, can_sleep=True, wake_s=0.0)
    recorder.feed(ev.NodeJoined(0.0, node, NodeState.ASLEEP))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.Tick(0.0))
    assert recorder.machine.snapshot().nodes["n1"][1] is NodeState.WAKING


@pytest.mark.xfail(
    strict=True,
    reason="checker of I24: it does not know that a node that did not wake in time is out, and "
    "asks for a reservation on it",
)
def test_the_checker_knows_that_a_wake_up_timed_out() -> None:
    recorder = _recorder(Rules(starvation_s=600.0))
    node = a_node("n1", 1, can_sleep=True, wake_s=60.0)
    recorder.feed(ev.NodeJoined(0.0, node, NodeState.ASLEEP))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.Tick(120.0))
    recorder.feed(ev.Tick(700.0))
    recorder.feed(ev.Tick(900.0))
    assert check_history(recorder.lines).ok
