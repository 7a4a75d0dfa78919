"""The predicates on one state, and on the step from one state to the next."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
import pytest

from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.invariants import check_state
from eaco_core.jobs import JobSpec, JobState, SoloProfile
from eaco_core.rules import Rules
from eaco_core.snapshot import GpuSnapshot, JobSnapshot, SchedulerState, WindowSnapshot

GIB = 2**30
Fields: TypeAlias = Any
NODE = NodeSpec("n1", tuple(GpuSpec(f"g{i}", "v100", 16 * GIB) for i in range(3)))


def job(job_id: str, state: JobState, *gpus: str, **fields: Fields) -> JobSnapshot:
    spec = JobSpec(
        job_id=job_id,
        gpus=fields.pop("wants", max(1, len(gpus))),
        submit_s=0.0,
        epochs=10,
        profiles=(SoloProfile("v100", peak_mem_bytes=fields.pop("peak", 4 * GIB)),),
        gpu_types=fields.pop("gpu_types", None),
    )
    known: dict[str, Any] = {
        "attempt": 1,
        "epochs_done": 3,
        "undos": 0,
        "exclusive": False,
        **fields,
    }
    return JobSnapshot(spec, state, gpus=gpus, **known)


def state(
    *jobs: JobSnapshot, windows: tuple[WindowSnapshot, ...] = (), **fields: Fields
) -> SchedulerState:
    by_id = {j.job.job_id: j for j in jobs}
    gpus = {
        gpu.gpu_id: GpuSnapshot(
            gpu,
            "n1",
            tuple(j.job.job_id for j in jobs if gpu.gpu_id in j.gpus),
            up=True,
            drained=False,
        )
        for gpu in NODE.gpus
    }
    known = SchedulerState(
        now_s=10.0,
        seq=5,
        term=1,
        rules=Rules(),
        submitted=len(by_id),
        jobs=by_id,
        gpus=gpus,
        nodes={"n1": (NODE, NodeState.AWAKE)},
        queue=tuple(j.job.job_id for j in jobs if j.state is JobState.QUEUED),
        windows=windows,
    )
    return attrs.evolve(known, **fields)


SETTLED, OBSERVING, QUEUED = JobState.SETTLED, JobState.OBSERVING, JobState.QUEUED
GOOD = state(
    job("a", SETTLED, "g0", "g1"),
    job("b", OBSERVING, "g0"),
    job("c", QUEUED),
    job("d", JobState.FINISHED, epochs_done=10),
    job("e", JobState.STOPPING, "g2", wants=2),
    windows=(WindowSnapshot("b", ("b", "a"), ("g0", "g1")),),
)


def broken(bad: SchedulerState, previous: SchedulerState | None = None) -> set[str]:
    return {violation.invariant for violation in check_state(bad, previous)}


def test_a_good_state_has_nothing_to_tell() -> None:
    assert check_state(GOOD) == []
    assert check_state(attrs.evolve(GOOD, seq=6), GOOD) == []


SHARED_FULL = state(job("a", SETTLED, "g0", peak=8 * GIB), job("b", SETTLED, "g0", peak=8 * GIB))
ALONE_FULL = state(job("a", SETTLED, "g0", peak=16 * GIB))
FOUR = state(*(job(name, SETTLED, "g0", peak=GIB) for name in "abcd"))
LONELY = state(job("a", SETTLED, "g0", exclusive=True), job("b", SETTLED, "g0"))
TWO_TRIALS = state(
    job("a", OBSERVING, "g0"),
    job("b", OBSERVING, "g0"),
    windows=(WindowSnapshot("a", ("a",), ("g0",)), WindowSnapshot("b", ("b",), ("g0",))),
)


@pytest.mark.parametrize(
    ("invariant", "bad"),
    [
        ("I01", SHARED_FULL),
        ("I03", state(job("a", SETTLED, "g0", wants=2))),
        ("I03", state(job("a", SETTLED, "g0", "g0", wants=2))),
        ("I03", state(job("a", SETTLED, "g0", gpu_types=("a100",)))),
        ("I03", state(job("a", JobState.FINISHED, "g0"))),
        ("I03", attrs.evolve(state(job("a", SETTLED, "g0")), gpus=state().gpus)),
        ("I05", TWO_TRIALS),
        ("I05", state(job("a", OBSERVING, "g0"))),
        ("I05", attrs.evolve(GOOD, windows=(WindowSnapshot("b", ("b", "a"), ("g0",)),))),
        ("I06", FOUR),
        ("I06", LONELY),
        ("I15", attrs.evolve(GOOD, submitted=9)),
        ("I15", attrs.evolve(GOOD, queue=("c", "c"))),
        ("I15", attrs.evolve(GOOD, queue=())),
        ("I15", attrs.evolve(GOOD, queue=("c", "a"))),
        ("I17", state(job("a", QUEUED, epochs_done=11))),
        ("I17", state(job("a", QUEUED, epochs_done=-1))),
    ],
)
def test_a_bad_state_is_told_by_its_invariant_alone(invariant: str, bad: SchedulerState) -> None:
    assert broken(bad) == {invariant}


def test_headroom_is_kept_only_where_jobs_share() -> None:
    assert check_state(ALONE_FULL) == []
    assert broken(state(job("a", SETTLED, "g0", peak=17 * GIB))) == {"I01"}


@pytest.mark.parametrize(
    ("invariant", "after"),
    [
        ("I04", {"gpus": {i: attrs.evolve(g, drained=True) for i, g in GOOD.gpus.items()}}),
        ("I04", {"gpus": {i: attrs.evolve(g, up=False) for i, g in GOOD.gpus.items()}}),
        ("I16", {"jobs": {**GOOD.jobs, "d": job("d", QUEUED)}, "queue": ("c", "d")}),
        ("I17", {"jobs": {**GOOD.jobs, "b": job("b", OBSERVING, "g0", epochs_done=2)}}),
        ("I17", {"jobs": {**GOOD.jobs, "c": job("c", QUEUED, attempt=0)}}),
        ("I18", {"seq": 7}),
        ("I18", {"now_s": 9.0}),
    ],
)
def test_a_bad_step_is_told_by_its_invariant_alone(invariant: str, after: dict[str, Any]) -> None:
    before = GOOD
    if invariant == "I04":
        queued = job("b", QUEUED, attempt=0)
        before = attrs.evolve(GOOD, jobs={**GOOD.jobs, "b": queued}, queue=("b", "c"))
    assert broken(attrs.evolve(GOOD, **{"seq": 6, **after}), before) == {invariant}


def test_the_policy_sets_the_degree() -> None:
    two = state(job("a", SETTLED, "g0"), job("b", SETTLED, "g0"))
    assert check_state(two) == []
    assert [v.invariant for v in check_state(two, policy="fifo")] == ["I06"]
    assert check_state(FOUR, policy="eaco-paper") == []
