"""Smallest examples of what the core once did wrong, as the hostile world found it."""

from __future__ import annotations

import pytest

from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.decisions import Placed, Reserved
from eaco_core.jobs import JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.rules import GIB, Rules
from eaco_core.testing import Recorder, Script, a_job, a_node


def _recorder(rules: Rules | None = None) -> Recorder:
    return Recorder(SchedulerMachine(rules=rules), watch=False)


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


def test_a_job_alone_goes_where_its_memory_fits() -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1, mem_gib=8)))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 1, mem_gib=16)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", mem_gib=12)))
    recorder.feed(ev.Tick(0.0))
    assert recorder.machine.job("a").gpus == ("n2-0",)


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


def test_a_node_that_wakes_at_once_is_given_a_moment() -> None:
    recorder = _recorder()
    node = a_node("n1", 1, can_sleep=True, wake_s=0.0)
    recorder.feed(ev.NodeJoined(0.0, node, NodeState.ASLEEP))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.Tick(0.0))
    assert recorder.machine.snapshot().nodes["n1"][1] is NodeState.WAKING


def _c_beside_a_and_b(recorder: Recorder, *, far_node_asleep: bool) -> None:
    """Settle `a` and `b` on one GPU; then place the gang `c` there and on another node."""
    state = NodeState.ASLEEP if far_node_asleep else NodeState.AWAKE
    far = a_node("n2", 1, can_sleep=far_node_asleep)
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", epochs=1)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "a", 1))
    recorder.feed(ev.JobSubmitted(0.0, a_job("b")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "b", 1))
    recorder.feed(ev.EpochCompleted(100.0, "b", 1, 1))
    recorder.feed(ev.EpochCompleted(100.0, "a", 1, 1))
    recorder.feed(ev.NodeJoined(100.0, far, state))
    recorder.feed(ev.JobSubmitted(100.0, a_job("c", 2, submit_s=100.0)))
    recorder.feed(ev.Tick(100.0))
    assert recorder.machine.job("c").gpus == ("n1-0", "n2-0")


def test_a_resident_that_ends_before_the_newcomer_starts_is_no_restart() -> None:
    recorder = _recorder(Rules(window_max_restarts=0))
    _c_beside_a_and_b(recorder, far_node_asleep=False)
    recorder.feed(ev.JobFinished(100.0, "a", 1))
    assert recorder.machine.job("c").undos == 0


def test_an_epoch_done_after_an_undo_counts() -> None:
    recorder = _recorder(Rules(window_max_restarts=0))
    _c_beside_a_and_b(recorder, far_node_asleep=False)
    recorder.feed(ev.JobFinished(100.0, "a", 1))
    recorder.feed(ev.JobStarted(101.0, "c", 1))
    recorder.feed(ev.EpochCompleted(201.0, "c", 1, 1))
    recorder.feed(ev.JobStopped(201.0, "c", 1, 1))
    assert recorder.machine.job("c").epochs_done == 1


def test_no_command_to_a_job_that_was_never_started() -> None:
    recorder = _recorder(Rules(window_max_restarts=0))
    _c_beside_a_and_b(recorder, far_node_asleep=True)
    effects = recorder.feed(ev.JobFinished(100.0, "a", 1))
    assert effects == ()


def test_the_signature_of_an_undo_is_who_was_left() -> None:
    recorder = _recorder(Rules(window_max_restarts=0))
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a", epochs=1)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "a", 1))
    recorder.feed(ev.NodeDrained(0.0, "n1"))
    recorder.feed(ev.NodeJoined(0.0, a_node("n2", 2)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("b", 2, epochs=90)))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobStarted(0.0, "b", 1))
    recorder.feed(ev.NodeDrained(0.0, "n1", drained=False))
    recorder.feed(ev.JobSubmitted(0.0, a_job("c", 3)))
    recorder.feed(ev.Tick(0.0))
    assert set(recorder.machine.job("c").gpus) == {"n1-0", "n2-0", "n2-1"}
    recorder.feed(ev.JobStarted(1.0, "c", 1))
    recorder.feed(ev.JobFinished(100.0, "a", 1))
    assert recorder.machine.job("c").undos == 1
    recorder.feed(ev.GpusReleased(100.0, "a", 1, ("n1-0",)))
    recorder.feed(ev.JobStopped(110.0, "c", 1, 0))
    recorder.feed(ev.GpusReleased(110.0, "c", 1, ("n1-0", "n2-0", "n2-1")))
    recorder.feed(ev.Tick(110.0))
    # Beside `b` alone it was undone; its bound is still that of the law.
    assert not any(isinstance(r, Placed) and r.attempt == 2 and r.shared for r in recorder.records)


def test_a_start_that_fails_after_a_cancellation_frees_the_gpus() -> None:
    recorder = _recorder()
    recorder.feed(ev.NodeJoined(0.0, a_node("n1", 1)))
    recorder.feed(ev.JobSubmitted(0.0, a_job("a")))
    recorder.feed(ev.Tick(0.0))
    recorder.feed(ev.JobCancelled(0.0, "a"))
    recorder.feed(ev.StartFailed(1.0, "a", 1))
    assert recorder.machine.job("a").gpus == ()


@pytest.mark.parametrize("policy", ["fifo", "eaco-paper"])
def test_who_waits_behind_a_job_that_is_cancelled_starts(policy: str) -> None:
    story = Script(a_node("n1", 1), policy=policy_named(policy))
    story.submit(a_job("big", 2), a_job("small"))
    assert story.state("small") is JobState.QUEUED
    story.cancel("big")
    assert story.state("small") is JobState.STARTING


def test_a_reservation_that_starts_later_is_told() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("slow", exclusive=True)).submit(a_job("gang", 2, exclusive=True))
    story.at(60.0).tick()
    assert story.told(Reserved).start_s == 1000.0
    story.at(1100.0).submit(a_job("short", submit_s=1100.0, epochs=3, exclusive=True))
    assert story.told(Reserved).start_s == 1100.0, "slow is over its time, and may end at once"
    assert story.gpus("short") == ()


def test_a_promise_does_not_slide_within_an_epoch() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("slow", exclusive=True)).submit(a_job("gang", 2, exclusive=True))
    story.at(60.0).tick()
    story.at(900.0).submit(a_job("short", submit_s=900.0, epochs=3, exclusive=True))
    assert story.told(Reserved).start_s == 1000.0
    assert story.gpus("short") == (), "it would end at 1200 s"
    story.check()


def test_a_gpu_of_more_memory_is_found_behind_one_of_less() -> None:
    gpus = (GpuSpec("g0", "v100", None), GpuSpec("g1", "v100", 32 * GIB))
    story = Script(NodeSpec("n1", gpus)).run(a_job("gang", 2)).submit(a_job("b", mem_gib=3))
    assert story.gpus("b") == ("g1",)
