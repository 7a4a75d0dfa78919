"""I23: the same input gives the same decisions. Refused and stale events change nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.decisions import Ignored, Placed, Reserved, Verdict
from eaco_core.errors import EventRefused
from eaco_core.history import Header, Step, encode
from eaco_core.invariants import compare_histories
from eaco_core.jobs import FailureReason, JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.rules import GIB
from eaco_core.testing import Habits, PlainPower, Recorder, Script, World, a_job, a_node, strategies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_core.decisions import Record
    from eaco_core.history import Line
    from eaco_core.jobs import JobSpec

POLICIES = ("eaco", "eaco-paper", "fifo", "fifo-skip")


def a_run(
    policy: str, cluster: Sequence[NodeSpec], batches: Sequence[Sequence[JobSpec]], habits: Habits
) -> Recorder:
    """Submit batches of jobs to a hostile world, and let them end."""
    machine = SchedulerMachine(policy_named(policy), power=PlainPower())
    world = World(Recorder(machine, watch=False), habits)
    for node in cluster:
        world.join(node)
    for batch in batches:
        now = [attrs.evolve(job, submit_s=world.now_s) for job in batch]
        world.submit(*now)
        for _ in range(15):
            world.advance()
    world.heal()
    world.run_to_end(600)
    return world.recorder


def replayed(recorder: Recorder, policy: str) -> list[Line]:
    """Feed the events of a run to a new machine."""
    again = Recorder(SchedulerMachine(policy_named(policy), power=PlainPower()), watch=False)
    for line in recorder.lines:
        if isinstance(line, Step):
            again.feed(line.event)
    return again.lines


@st.composite
def batches(draw: st.DrawFn) -> list[list[JobSpec]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    return [
        [draw(strategies.jobs(f"j{batch}{i}", 0.0)) for i in range(size)]
        for batch, size in enumerate(sizes)
    ]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(POLICIES), strategies.clusters(), batches(), strategies.habits())
def test_the_same_log_gives_the_same_decisions(
    policy: str, cluster: tuple[NodeSpec, ...], jobs: list[list[JobSpec]], habits: Habits
) -> None:
    recorder = a_run(policy, cluster, jobs, habits)
    assert compare_histories(recorder.lines, replayed(recorder, policy)) == []


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(POLICIES), strategies.clusters(), batches(), strategies.habits())
def test_the_order_of_simultaneous_arrivals_does_not_matter(
    data: st.DataObject,
    policy: str,
    cluster: tuple[NodeSpec, ...],
    jobs: list[list[JobSpec]],
    habits: Habits,
) -> None:
    mixed = [data.draw(st.permutations(batch)) for batch in jobs]
    first = a_run(policy, cluster, jobs, habits)
    second = a_run(policy, cluster, mixed, habits)
    kinds = (Placed, Verdict, Reserved)
    told = [[r for r in run.records if isinstance(r, kinds)] for run in (first, second)]
    assert told[0] == told[1]


HABITS = Habits(factors=(1.0, 1.3, 1.7, 1.1), late_s=(0.0, 2.0), twice=(False, True))


def a_fixed_run(policy: str) -> str:
    """Give a fingerprint of a run that does not depend on chance."""
    cluster = [a_node("n1", 3), a_node("n2", 4, can_sleep=True), a_node("n3", 2, gpu_type="a100")]
    jobs = [
        a_job(
            f"j{i}",
            1 + i % 4,
            epochs=3 + i % 5,
            util=0.1 + 0.05 * (i % 6),
            mem_gib=1 + i % 3,
            workload=f"w{i % 5}",
            deadline_s=None if i % 3 else 9000.0,
            priority=i % 2,
        )
        for i in range(24)
    ]
    recorder = a_run(policy, cluster, [jobs[:8], jobs[8:16], jobs[16:]], HABITS)
    text = "\n".join(encode(line) for line in recorder.lines)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_hash_seed_changes_a_decision(policy: str) -> None:
    code = (
        "import importlib.util as u, sys\n"
        "spec = u.spec_from_file_location('runs', sys.argv[1]); m = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(m); print(m.a_fixed_run(sys.argv[2]))"
    )
    prints = {a_fixed_run(policy)}
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, __file__, policy],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        prints.add(done.stdout.strip())
    assert len(prints) == 1


def test_the_fixed_run_is_not_trivial() -> None:
    cluster = [a_node("n1", 3)]
    jobs = [a_job(f"j{i}", workload="w", epochs=3) for i in range(6)]
    recorder = a_run("eaco", cluster, [jobs], HABITS)
    assert any(isinstance(r, Placed) and r.shared for r in recorder.records)
    assert any(isinstance(r, Verdict) for r in recorder.records)


# ---- events that cannot be -------------------------------------------------------------


def busy() -> Script:
    """`a` and `b` share a GPU, `b` on trial; `c` waits; `d` was cancelled; the time is 50 s."""
    story = Script(a_node("n1", 1), a_node("n2", 1, gpu_type="a100", can_sleep=True))
    story.run(a_job("a", epochs=5), a_job("b", gpu_types=("v100",)))
    story.submit(a_job("c", 4), a_job("d", 4)).cancel("d")
    return story.at(50.0).tick()


_OTHER = GpuSpec("n1-0", "v100", GIB)
REFUSED: dict[str, ev.Event] = {
    "time goes back": ev.Tick(49.0),
    "an unknown job": ev.JobFinished(60.0, "nobody", 1),
    "an unknown job is cancelled": ev.JobCancelled(60.0, "nobody"),
    "an attempt that never was": ev.EpochCompleted(60.0, "a", 2, 1),
    "an attempt of a queued job": ev.JobStarted(60.0, "c", 1),
    "an unknown node is lost": ev.NodeLost(60.0, "nowhere"),
    "an unknown node is read": ev.NodeSampled(60.0, "nowhere", ()),
    "an unknown node wakes": ev.NodeAwake(60.0, "nowhere"),
    "an unknown node is drained": ev.NodeDrained(60.0, "nowhere"),
    "a GPU that the node has not": ev.GpuLost(60.0, "n1", "n2-0"),
    "an id that is taken": ev.JobSubmitted(60.0, a_job("a", epochs=6)),
    "submitted in the future": ev.JobSubmitted(60.0, a_job("e", submit_s=61.0)),
    "more epochs than it has": ev.EpochCompleted(60.0, "a", 1, 6),
    "a checkpoint after the last epoch": ev.JobStopped(60.0, "a", 1, 6),
    "GPUs of a running job": ev.GpusReleased(60.0, "a", 1, ("n1-0",)),
    "a node that is here, with other GPUs": ev.NodeJoined(60.0, a_node("n1", 2)),
    "a GPU of another node": ev.NodeJoined(60.0, NodeSpec("n3", (_OTHER,))),
    "a GPU twice": ev.NodeJoined(60.0, NodeSpec("n3", (GpuSpec("g", "x"), GpuSpec("g", "x")))),
    "a node that joins while it wakes": ev.NodeJoined(60.0, a_node("n3"), NodeState.WAKING),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_event_that_cannot_be_is_refused_and_changes_nothing(what: str) -> None:
    story, untouched = busy(), busy()
    before = story.machine.snapshot()
    wakeup_s, records = story.machine.next_wakeup_s, story.machine.records
    with pytest.raises(EventRefused):
        story.machine.step(REFUSED[what])
    assert story.machine.snapshot() == before
    assert story.machine.next_wakeup_s == wakeup_s
    assert story.machine.records == records
    # And the two go on alike.
    for one in (story, untouched):
        one.at(100.0).epoch("a").epoch("b").at(130.0).tick()
    assert story.recorder.lines[-1] == untouched.recorder.lines[-1]
    assert story.machine.snapshot() == untouched.machine.snapshot()


STALE: dict[str, ev.Event] = {
    "submitted again": ev.JobSubmitted(60.0, a_job("a", epochs=5)),
    "started again": ev.JobStarted(60.0, "a", 1),
    "a start that failed after it began": ev.StartFailed(60.0, "a", 1, "late"),
    "cancelled again": ev.JobCancelled(60.0, "d"),
    "a node that is here": ev.NodeJoined(60.0, a_node("n1", 1)),
    "a node that is awake": ev.NodeAwake(60.0, "n1"),
    "drained as it is": ev.NodeDrained(60.0, "n1", drained=False),
    "asleep with a job on it": ev.NodeAsleep(60.0, "n1"),
    "could not be woken, but nobody woke it": ev.WakeFailed(60.0, "n1"),
}


@pytest.mark.parametrize("what", STALE)
def test_a_stale_event_has_no_effect_but_a_record(what: str) -> None:
    story = busy()
    before = story.machine.snapshot()
    assert story.machine.step(STALE[what]) == ()
    (record,) = story.machine.records
    assert isinstance(record, Ignored)
    after = story.machine.snapshot()
    assert attrs.evolve(after, now_s=before.now_s, seq=before.seq) == before


def test_events_of_an_older_attempt_are_ignored() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).at(50.0)
    story.fail("a", FailureReason.CO_TENANT).release("a").start("a")
    old: list[ev.Event] = [
        ev.JobStarted(60.0, "a", 1),
        ev.StartFailed(60.0, "a", 1),
        ev.EpochCompleted(60.0, "a", 1, 1),
        ev.JobStopped(60.0, "a", 1, 1),
        ev.JobFinished(60.0, "a", 1),
        ev.JobFailed(60.0, "a", 1),
        ev.JobUnknown(60.0, "a", 1),
        ev.GpusReleased(60.0, "a", 1, ("n1-0",)),
    ]
    for event in old:
        assert story.machine.step(event) == ()
        assert [type(record) for record in story.machine.records] == [Ignored]
    job = story.machine.job("a")
    assert (job.state, job.epochs_done, job.gpus) == (JobState.SETTLED, 0, ("n1-0",))


def test_every_message_twice_gives_the_same_decisions() -> None:
    once, twice = Habits(), Habits(twice=(True,))
    cluster = [a_node("n1", 2), a_node("n2", 2)]
    jobs = [a_job(f"j{i}", 1 + i % 2, epochs=4, workload=f"w{i % 3}") for i in range(8)]
    told: list[list[Record]] = []
    for habits in (once, twice):
        recorder = a_run("eaco", cluster, [jobs], habits)
        told.append([r for r in recorder.records if not isinstance(r, Ignored)])
    assert told[0] == told[1]


def test_the_header_names_policy_and_rules() -> None:
    header = Script().recorder.lines[0]
    assert isinstance(header, Header)
    assert header.policy == "eaco"
