"""Planted violations of I14-I30: each is found by its own checker, and by no other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import pytest

from eaco_core.decisions import (
    Ignored,
    Requeued,
    Reserved,
    Waits,
)
from eaco_core.effects import (
    KillJob,
)
from eaco_core.events import (
    EpochCompleted,
    GpusReleased,
    JobCancelled,
    JobFinished,
    JobStopped,
    NodeLost,
    Tick,
)
from eaco_core.history import EnergyLine, Step
from eaco_core.invariants import TITLES, check_history
from eaco_core.testing.histories import (
    HistoryWriter,
    alone,
    go,
    undone,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def waiting_gang() -> HistoryWriter:
    """Let c wait for four GPUs while a holds one, and get a reservation after 500 s."""
    run = (
        HistoryWriter(starvation_s=500.0)
        .submit("a", 0.0)
        .start("a", 0.0, "g0")
        .submit("c", 100.0, gpus=4)
    )
    run.add(Tick(100.0), Waits(100.0, "c", "no idle set", ()))
    held = Reserved(610.0, "c", ("g0", "g1", "g2", "g3"), 2010.0)
    return run.add(Tick(610.0), held)


def waits_without_reason() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0).add(Tick(0.0))


def submitted_twice() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0).submit("a", 1.0)


def event_of_nobody() -> HistoryWriter:
    return HistoryWriter().add(JobFinished(0.0, "ghost", 1))


def command_to_nobody() -> HistoryWriter:
    return HistoryWriter().add(Tick(0.0), KillJob("ghost", 1, 1, "because"))


def placed_while_running() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0")
    return run.add(Tick(20.0), alone(20.0, "a", "g1", attempt=2), go("a", "g1", attempt=2))


def started_after_the_end() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").add(JobFinished(100.0, "a", 1))
    run.add(GpusReleased(100.0, "a", 1, ("g0",)))
    return run.add(Tick(110.0), go("a", "g0", attempt=2))


def epoch_too_many() -> HistoryWriter:
    return (
        HistoryWriter()
        .submit("a", 0.0, epochs=2)
        .start("a", 0.0, "g0")
        .epochs("a", 1, 3, 110.0, 100.0)
    )


def checkpoint_lost() -> HistoryWriter:
    run = undone()
    line = run.lines[run.step(JobStopped)]
    assert isinstance(line, Step)
    event = JobStopped(385.0, "b", 1, 0)
    run.lines[run.step(JobStopped)] = attrs.evolve(line, event=event)
    return run


def epochs_lost_without_failure() -> HistoryWriter:
    run = undone()
    run.change(run.step(Requeued), Requeued, epoch=1)
    return run


def resumed_ahead() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0", resume=3)


def step_left_out() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0).add(Tick(0.0), Waits(0.0, "a", "because", ()), seq=9)


def time_goes_back() -> HistoryWriter:
    run = HistoryWriter().submit("a", 5.0).add(Tick(5.0), Waits(5.0, "a", "because", ()))
    return run.add(Tick(4.0))


def term_goes_back() -> HistoryWriter:
    return HistoryWriter().add(Tick(0.0), term=2).add(Tick(0.0), term=1)


def command_of_another_term() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0)
    start = attrs.evolve(go("a", "g0"), term=2)
    return run.add(Tick(0.0), alone(0.0, "a", "g0"), start)


def stale_event_with_effects() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").epochs("a", 1, 1, 110.0, 0.0)
    return run.add(EpochCompleted(115.0, "a", 1, 1), KillJob("a", 1, 1, "because"))


def ignored_event_with_effects() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0")
    ignored = Ignored(115.0, "Tick", None, "because")
    return run.add(Tick(115.0), ignored, KillJob("a", 1, 1, "because"))


def stale_event_not_ignored() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").epochs("a", 1, 1, 110.0, 0.0)
    return run.add(EpochCompleted(115.0, "a", 1, 1))


def event_of_an_attempt_to_come() -> HistoryWriter:
    return (
        HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").add(EpochCompleted(50.0, "a", 2, 1))
    )


def starved_without_reservation() -> HistoryWriter:
    run = waiting_gang()
    return run.drop(run.step(Reserved), Reserved)


def reserved_too_early() -> HistoryWriter:
    run = (
        HistoryWriter(starvation_s=500.0)
        .submit("a", 0.0)
        .start("a", 0.0, "g0")
        .submit("c", 100.0, gpus=4)
    )
    held = Reserved(200.0, "c", ("g0", "g1", "g2", "g3"), 2010.0)
    return run.add(Tick(200.0), Waits(200.0, "c", "no idle set", ()), held)


def reserved_for_the_second() -> HistoryWriter:
    run = waiting_gang()
    run.lines.pop()
    run.submit("e", 105.0, gpus=4).add(Tick(105.0), Waits(105.0, "e", "no idle set", ()))
    held = Reserved(610.0, "e", ("g0", "g1", "g2", "g3"), 2010.0)
    run.add(Tick(610.0), held)
    report = check_history(run.lines)
    assert "although job c comes first" in report.failed[0].message
    return run


def reservation_delayed() -> HistoryWriter:
    run = waiting_gang().submit("d", 700.0, epochs=14)
    return run.add(Tick(700.0), alone(700.0, "d", "g1"), go("d", "g1"))


def placed_out_of_order() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).submit("b", 1.0)
    return run.add(
        Tick(1.0), alone(1.0, "b", "g1"), alone(1.0, "a", "g0"), go("b", "g1"), go("a", "g0")
    )


def gang_runs_on() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0, gpus=4).start("a", 0.0, "g0", "g1", "g2", "g3")
    return run.add(NodeLost(50.0, "n1"))


def lost_and_forgotten() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").add(NodeLost(50.0, "n1"))


def cancelled_and_runs_on() -> HistoryWriter:
    return HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").add(JobCancelled(50.0, "a"))


def started_after_cancel() -> HistoryWriter:
    return (
        HistoryWriter().submit("a", 0.0).add(JobCancelled(1.0, "a")).add(Tick(1.0), go("a", "g0"))
    )


def energy_that_does_not_add_up() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0")
    run.lines.append(EnergyLine(0.0, 10.0, "n1", 1000.0, {"a": 600.0}, idle_j=399.0))
    return run


def negative_energy() -> HistoryWriter:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0")
    run.lines.append(EnergyLine(0.0, 10.0, "n1", 1000.0, {"a": 1100.0}, idle_j=-100.0))
    return run


PLANTED: dict[str, tuple[Callable[[], HistoryWriter], ...]] = {
    "I14": (waits_without_reason,),
    "I15": (submitted_twice, event_of_nobody, command_to_nobody, placed_while_running),
    "I16": (started_after_the_end,),
    "I17": (epoch_too_many, checkpoint_lost, epochs_lost_without_failure, resumed_ahead),
    "I18": (step_left_out, time_goes_back),
    "I19": (term_goes_back, command_of_another_term),
    "I20": (
        stale_event_with_effects,
        ignored_event_with_effects,
        stale_event_not_ignored,
        event_of_an_attempt_to_come,
    ),
    "I24": (
        starved_without_reservation,
        reserved_too_early,
        reserved_for_the_second,
        reservation_delayed,
        placed_out_of_order,
    ),
    "I28": (gang_runs_on, lost_and_forgotten),
    "I29": (cancelled_and_runs_on, started_after_cancel),
    "I30": (energy_that_does_not_add_up, negative_energy),
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


def test_every_other_invariant_of_one_history_has_a_plant() -> None:
    first = {f"I{number:02d}" for number in range(1, 14)}
    assert set(PLANTED) == set(TITLES) - first - {"I23", "I25", "I26"}
