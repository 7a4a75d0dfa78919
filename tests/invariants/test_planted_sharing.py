"""Planted violations of I01-I13: each is found by its own checker, and by no other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
from eaco_core.decisions import (
    BoundSource,
    Placed,
    Requeued,
    Verdict,
    Waits,
    WindowRestarted,
)
from eaco_core.effects import (
    Observation,
    RecordObservation,
    StartJob,
    StopAtEpochBoundary,
    WakeNode,
)
from eaco_core.events import (
    EpochCompleted,
    GpusReleased,
    JobFinished,
    JobStarted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Tick,
)
from eaco_core.history import Step
from eaco_core.invariants import check_history
from eaco_core.testing.histories import (
    GIB,
    Fields,
    HistoryWriter,
    again,
    alone,
    beside_a,
    bound,
    gate,
    go,
    kept,
    on_trial,
    seen,
    undone,
    until_trial,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.effects import Effect


# ----------------------------------------------------------- what is planted


def beside(**fields: Fields) -> Callable[[HistoryWriter], dict[str, Any]]:
    return lambda run: {
        "affected": (bound(run, "b", "a", left=10, **fields), bound(run, "a", "b", left=19))
    }


def memory_full() -> HistoryWriter:
    return kept(a={"peak_mem_bytes": 8 * GIB}, b={"peak_mem_bytes": 7 * GIB + GIB // 2})


def busy_gpu() -> HistoryWriter:
    return kept(lambda _: {"gates": (gate("a", util_ratio=0.85),)})


def busy_memory() -> HistoryWriter:
    return kept(lambda _: {"gates": (gate("a", mem_busy_ratio=0.9),)})


def gate_below_solo() -> HistoryWriter:
    return kept(lambda _: {"gates": (gate("a", util_ratio=0.2),)})


def gate_not_read() -> HistoryWriter:
    return kept(lambda _: {"gates": ()})


def gate_unknown() -> HistoryWriter:
    return kept(lambda _: {"gates": (gate("a", util_ratio=None),)})


def gate_over_limit() -> HistoryWriter:
    return kept(lambda _: {"gates": (gate("a", mem_needed_bytes=16 * GIB),)})


def partial_gang() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0, gpus=2).start("a", 0.0, "g0")


def scattered_gang() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0, gpus=2).start("a", 0.0, "g0", "g2")


def wrong_type() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0, gpu_types=("a100",)).start("a", 0.0, "g0")


def started_elsewhere() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0)
    return run.add(Tick(0.0), alone(0.0, "a", "g0"), go("a", "g1"))


def drained_node() -> HistoryWriter:
    return HistoryWriter().add(NodeDrained(0.0, "n1")).submit("a", 0.0).start("a", 0.0, "g0")


def lost_node() -> HistoryWriter:
    return HistoryWriter().add(NodeLost(0.0, "n1")).submit("a", 0.0).start("a", 0.0, "g0")


def start_before_awake() -> HistoryWriter:
    run = HistoryWriter()
    run.add(
        NodeJoined(0.0, NodeSpec("n3", (GpuSpec("g9", "v100"),), can_sleep=True), NodeState.ASLEEP)
    )
    run.submit("a", 0.0)
    start = StartJob("a", 1, 1, (("n3", ("g9",)),), 0)
    return run.add(Tick(0.0), alone(0.0, "a", "g9"), WakeNode("n3", 1), start)


def third_job(run: HistoryWriter, t_s: float, left_a: int, left_b: int) -> HistoryWriter:
    """Place c beside a and b on g0."""
    run.submit("c", t_s, epochs=10)
    affected = (
        bound(run, "c", "a", "b", left=10),
        bound(run, "a", "b", "c", left=left_a),
        bound(run, "b", "a", "c", left=left_b),
    )
    placed = Placed(
        t_s,
        "c",
        1,
        ("g0",),
        shared=True,
        start_s=t_s,
        affected=affected,
        gates=(gate("a", "b"),),
        extra_energy_j=1.0,
        alternative_energy_j=2.0,
        explored=False,
        refusals=(),
    )
    return run.add(Tick(t_s), placed, go("c", "g0"))


def placed_into_a_window() -> HistoryWriter:
    return third_job(on_trial(), 250.0, 18, 9)


def degree_off_by_one() -> HistoryWriter:
    run = on_trial(max_degree=2)
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 115.0, 17))
    run.add(EpochCompleted(345.0, "a", 1, 3), verdict(345.0, *evidence))
    return third_job(run, 346.0, 17, 9)


def handed_on_before_release() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").add(JobFinished(100.0, "a", 1))
    return run.submit("b", 101.0).start("b", 101.0, "g0")


def exclusive_job_shares() -> HistoryWriter:
    return kept(b={"exclusive": True})


def deadline_by_bound() -> HistoryWriter:
    # 120 s + 1.25 x 1000 s is after 1360 s.
    return on_trial(b={"deadline_s": 1360.0})


def slower_than_accepted() -> HistoryWriter:
    return kept(beside(upper_ratio=1.6), b={"deadline_s": None})


def remaining_not_true() -> HistoryWriter:
    return kept(beside(remaining_s=900.0))


def deadline_not_true() -> HistoryWriter:
    return kept(beside(deadline_s=6_000.0))


def late_is_not_true() -> HistoryWriter:
    return kept(beside(late=True))


def point_for_bound() -> HistoryWriter:
    return kept(beside(upper_ratio=1.0))


def no_bound() -> HistoryWriter:
    return kept(beside(source=BoundSource.NONE, upper_ratio=float("inf"), point_ratio=float("inf")))


def evidence_argued_away() -> HistoryWriter:
    run = until_trial()
    slow = Observation(115.0, "z", "w-b", ("w-a",), "v100", 130.0, 100.0, 1.3)
    run.add(Tick(120.0), Waits(120.0, "b", "because", ()), RecordObservation(slow))
    observed = beside(upper_ratio=1.2, source=BoundSource.OBSERVED)(run)
    return run.add(Tick(120.0), beside_a(run, **observed), go("b", "g0"))


def explored_with_deadline() -> HistoryWriter:
    return kept(lambda _: {"explored": True}, explore=True)


def explored_without_leave() -> HistoryWriter:
    def no_deadlines(run: HistoryWriter) -> dict[str, Any]:
        assert run.specs["b"].deadline_s is None
        return {"explored": True}

    return kept(no_deadlines, a={"deadline_s": None}, b={"deadline_s": None})


def resident_not_looked_at() -> HistoryWriter:
    return kept(lambda run: {"affected": (bound(run, "b", "a", left=10),)})


def wrong_residents() -> HistoryWriter:
    return kept(beside(co_workloads=("w-z",), source=BoundSource.OBSERVED))


def best_gpu_for_worst() -> HistoryWriter:
    run = (
        HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").submit("b", 120.0, gpus=2, epochs=10)
    )
    affected = (bound(run, "b", left=10), bound(run, "a", "b", left=20))
    placed = Placed(
        120.0,
        "b",
        1,
        ("g0", "g1"),
        shared=True,
        start_s=120.0,
        affected=affected,
        gates=(gate("a"),),
        extra_energy_j=1.0,
        alternative_energy_j=2.0,
        explored=False,
        refusals=(),
    )
    return run.add(Tick(120.0), placed, go("b", "g0", "g1"))


def early_keep() -> HistoryWriter:
    run = on_trial()
    # The epoch of a that ended at 230 s began before the window did.
    evidence = (seen(run, "b", 110.0, 8), seen(run, "a", 120.0, 18))
    return run.add(EpochCompleted(350.0, "b", 1, 2), verdict(350.0, *evidence))


def keep_without_evidence() -> HistoryWriter:
    run = on_trial()
    evidence = (seen(run, "b", 110.0, 8), seen(run, "a", None, 18))
    return run.add(EpochCompleted(350.0, "b", 1, 2), verdict(350.0, *evidence))


def keep_after_void_window() -> HistoryWriter:
    run = until_trial()
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 115.0, 17))
    run.add(Tick(120.0), beside_a(run), go("b", "g0")).add(JobStarted(130.0, "b", 1))
    run.epochs("a", 2, 2, 230.0, 0.0).epochs("b", 1, 1, 240.0, 0.0)
    unclean = EpochCompleted(345.0, "a", 1, 3, clean=False)
    return run.add(unclean, verdict(345.0, *evidence))


def keep_though_late() -> HistoryWriter:
    run = on_trial(a={"deadline_s": 2_600.0})
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 140.0, 17))
    return run.add(EpochCompleted(370.0, "a", 1, 3), verdict(370.0, *evidence))


def keep_with_little_done() -> HistoryWriter:
    run = on_trial(keep_throughput_sum=1.9)
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 115.0, 17))
    return run.add(EpochCompleted(345.0, "a", 1, 3), verdict(345.0, *evidence))


def keep_by_invented_epoch() -> HistoryWriter:
    run = on_trial()
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 101.0, 17))
    return run.add(EpochCompleted(345.0, "a", 1, 3), verdict(345.0, *evidence))


def undo_without_stop() -> HistoryWriter:
    run = undone()
    return run.drop(run.step(Verdict), StopAtEpochBoundary)


def undo_never_killed() -> HistoryWriter:
    run = undone()
    del run.lines[run.step(Verdict) + 1 :]
    # 370 s + 2 x 1.25 x 100 s + 60 s = 680 s.
    return run.add(Tick(681.0))


def resident_stopped_by_undo() -> HistoryWriter:
    run = undone()
    at = run.step(Verdict)
    line = run.lines[at]
    assert isinstance(line, Step)
    more: tuple[Effect, ...] = (*line.effects, StopAtEpochBoundary("a", 1, 1, "undone"))
    run.lines[at] = attrs.evolve(line, effects=more)
    return run


def stale_retry() -> HistoryWriter:
    # 1.05 x 1.4 was seen, so 1.5 has not fallen.
    return again(undone(a={"deadline_s": 10_000.0}), upper_ratio=1.5)


def unbounded_undos() -> HistoryWriter:
    return again(undone(max_undos=1), upper_ratio=1.2)


def share_after_own_miss() -> HistoryWriter:
    # Undone at 370 s for b itself: 370 s + 9 x 110 s x 1.05 is after 1400 s.
    run = undone(b={"deadline_s": 1_400.0})
    at = run.step(Requeued)
    assert at == len(run.lines) - 1
    run.specs["b"] = attrs.evolve(run.specs["b"], deadline_s=1_400.0)
    t_s = 400.0
    late = (
        bound(run, "b", "a", left=8, upper_ratio=1.2, source=BoundSource.OBSERVED),
        bound(run, "a", "b", left=17, upper_ratio=1.2, source=BoundSource.OBSERVED),
    )
    placed = beside_a(run, t_s, affected=late, attempt=2)
    return run.add(Tick(t_s), placed, go("b", "g0", attempt=2, resume=2))


PLANTED: dict[str, tuple[Callable[[], HistoryWriter], ...]] = {
    "I01": (memory_full,),
    "I02": (busy_gpu, busy_memory, gate_below_solo, gate_not_read, gate_unknown, gate_over_limit),
    "I03": (partial_gang, scattered_gang, wrong_type, started_elsewhere),
    "I04": (drained_node, lost_node, start_before_awake),
    "I05": (placed_into_a_window,),
    "I06": (degree_off_by_one, handed_on_before_release, exclusive_job_shares),
    "I07": (
        deadline_by_bound,
        slower_than_accepted,
        remaining_not_true,
        deadline_not_true,
        late_is_not_true,
        point_for_bound,
        no_bound,
        evidence_argued_away,
        explored_with_deadline,
        explored_without_leave,
    ),
    "I08": (resident_not_looked_at, wrong_residents, best_gpu_for_worst),
    "I09": (
        early_keep,
        keep_without_evidence,
        keep_after_void_window,
        keep_though_late,
        keep_with_little_done,
        keep_by_invented_epoch,
    ),
    "I10": (undo_without_stop, undo_never_killed),
    "I11": (resident_stopped_by_undo,),
    "I12": (stale_retry,),
    "I13": (unbounded_undos, share_after_own_miss),
}


@pytest.mark.parametrize(
    ("invariant", "plant"),
    [(i, plant) for i, plants in PLANTED.items() for plant in plants],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_planted_violation_is_found_by_its_checker_alone(
    invariant: str, plant: Callable[[], HistoryWriter]
) -> None:
    report = check_history(plant().lines)
    assert set(report.counts) == {invariant}, [str(v) for v in report.failed]
    assert invariant not in report.passed
    first = report.failed[0]
    assert re.match(r"[A-Za-z0-9]", first.message)
    assert "\n" not in first.message


def test_every_invariant_of_placements_has_a_plant() -> None:
    assert set(PLANTED) == {f"I{number:02d}" for number in range(1, 14)}


def test_a_resident_that_leaves_voids_the_evidence_before_it() -> None:
    run = until_trial()
    run.submit("c", 121.0, epochs=10)
    run.add(Tick(121.0), Waits(121.0, "c", "because", ()), beside_a(run, 121.0), go("b", "g0"))
    run.add(JobStarted(130.0, "b", 1)).epochs("a", 2, 2, 230.0, 0.0).epochs("b", 1, 1, 240.0, 0.0)
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 115.0, 17))
    run.add(EpochCompleted(345.0, "a", 1, 3), verdict(345.0, *evidence))
    run.add(Tick(346.0), *_third(run, 346.0)).add(JobStarted(350.0, "c", 1))
    run.epochs("b", 2, 2, 350.0, 0.0).epochs("a", 4, 4, 445.0, 0.0)
    run.epochs("b", 3, 3, 460.0, 0.0).epochs("a", 5, 5, 555.0, 0.0)
    # a leaves; b and c have seen it all the time, so what they did is void.
    run.add(JobFinished(560.0, "a", 1), WindowRestarted(560.0, "c", 1, "a finished"))
    run.add(GpusReleased(560.0, "a", 1, ("g0",)))
    evidence = (seen(run, "c", 220.0, 9), seen(run, "b", 110.0, 7))
    run.add(EpochCompleted(570.0, "c", 1, 1), verdict(570.0, *evidence, job_id="c", restarts=1))
    assert run.broken() == {"I09"}


def _third(run: HistoryWriter, t_s: float) -> tuple[Any, ...]:
    affected = (
        bound(run, "c", "a", "b", left=10),
        bound(run, "a", "b", "c", left=17),
        bound(run, "b", "a", "c", left=9),
    )
    gates = (gate("a", "b"),)
    placed = Placed(
        t_s,
        "c",
        1,
        ("g0",),
        shared=True,
        start_s=t_s,
        affected=affected,
        gates=gates,
        extra_energy_j=1.0,
        alternative_energy_j=2.0,
        explored=False,
        refusals=(),
    )
    return placed, go("c", "g0")
