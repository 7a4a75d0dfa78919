"""Small histories made by hand that keep every invariant; and what the report says."""

from __future__ import annotations

import pytest

from eaco_core.cluster import GpuSpec, NodeSpec
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
    JobFailed,
    JobFinished,
    NodeJoined,
    NodeLost,
    Tick,
)
from eaco_core.history import Header
from eaco_core.invariants import TITLES, binding, check_history
from eaco_core.jobs import FailureReason
from eaco_core.testing.histories import (
    HistoryWriter,
    again,
    alone,
    go,
    kept,
    on_trial,
    seen,
    undone,
    verdict,
)

# ------------------------------------------------------------- what is right


@pytest.mark.parametrize("policy", ["eaco", "fifo"])
def test_two_jobs_one_after_the_other_keep_everything(policy: str) -> None:
    run = (
        HistoryWriter(policy=policy)
        .submit("a", 0.0)
        .start("a", 0.0, "g0")
        .epochs("a", 1, 20, 110.0, 100.0)
    )
    run.add(JobFinished(2010.0, "a", 1)).add(GpusReleased(2010.0, "a", 1, ("g0",)))
    run.submit("b", 2020.0).start("b", 2020.0, "g0")
    report = check_history(run.lines)
    assert report.ok
    assert set(report.passed) | set(report.not_checked) == binding(policy)
    assert (report.steps, report.jobs) == (len(run.lines) - 1, 2)


def test_a_newcomer_that_is_kept_keeps_everything() -> None:
    report = check_history(kept().lines)
    assert report.failed == ()
    nothing = {i for i, why in report.not_checked.items() if why.startswith("nothing of the kind")}
    assert nothing == {"I10", "I11", "I12", "I13", "I28", "I29"}
    assert set(report.not_checked) == {"I23", "I25", "I26", "I30"} | nothing
    assert set(report.passed) == set(TITLES) - set(report.not_checked)


def test_a_newcomer_that_is_undone_keeps_everything() -> None:
    run = undone()
    run.start("b", 400.0, "g1", attempt=2, resume=2)
    assert check_history(run.lines).failed == ()
    assert undone().start("b", 400.0, "g2", attempt=2, resume=2).broken() == set()
    # Tried again once the bound has fallen.
    assert again(undone(), upper_ratio=1.2).broken() == set()


def test_the_window_of_a_resident_that_ends_begins_again() -> None:
    run = on_trial()
    # Alone by then, the newcomer settles without evidence.
    run.add(JobFinished(300.0, "a", 1), verdict(300.0, seen(run, "b", 110.0, 9)))
    assert run.broken() == set()


def test_a_failure_sends_a_job_back_to_its_checkpoint() -> None:
    run = (
        HistoryWriter()
        .submit("a", 0.0, max_restarts=1)
        .start("a", 0.0, "g0")
        .epochs("a", 1, 3, 110.0, 100)
    )
    run.add(JobFailed(350.0, "a", 1, FailureReason.EXIT))
    run.add(GpusReleased(351.0, "a", 1, ("g0",)), Requeued(351.0, "a", 0, "failed"))
    assert run.start("a", 360.0, "g0", attempt=2).broken() == set()


def test_the_gang_on_a_lost_node_is_killed_and_requeued() -> None:
    run = HistoryWriter().submit("a", 0.0, gpus=4).start("a", 0.0, "g0", "g1", "g2", "g3")
    run.add(NodeLost(50.0, "n1"), KillJob("a", 1, 1, "node lost"))
    run.add(GpusReleased(60.0, "a", 1, ("g2", "g3")), Requeued(60.0, "a", 0, "node lost"))
    run.add(NodeJoined(70.0, NodeSpec("n1", (GpuSpec("g0", "v100"), GpuSpec("g1", "v100")))))
    assert run.start("a", 80.0, "g0", "g1", "g2", "g3", attempt=2).broken() == set()


def test_a_stale_event_that_is_ignored_is_fine() -> None:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0").epochs("a", 1, 1, 110.0, 0.0)
    run.add(EpochCompleted(115.0, "a", 1, 1), Ignored(115.0, "EpochCompleted", "a", "counted"))
    assert run.broken() == set()


def test_a_reservation_holds_gpus_and_shorter_jobs_may_use_them() -> None:
    run = waiting_gang()
    run.submit("d", 700.0, epochs=3)
    run.add(Tick(700.0), alone(700.0, "d", "g1"), go("d", "g1"))
    assert run.broken() == set()


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


def test_baselines_are_held_to_fewer_invariants() -> None:
    run = HistoryWriter().submit("a", 0.0).add(Tick(0.0))
    assert run.broken() == {"I14"}
    run.lines[0] = Header(policy="fifo-skip")
    assert run.broken() == set()
    run = kept()
    run.lines[0] = Header(policy="fifo")
    assert run.broken() == {"I06"}


def test_a_history_without_steps_passes_nothing() -> None:
    report = check_history([Header(policy="eaco")])
    assert report.passed == ()
    assert set(report.not_checked) == binding("eaco")
    assert report.not_checked["I18"] == "nothing of the kind happened: the history has no steps"


def test_what_never_happened_has_not_passed() -> None:
    run = HistoryWriter(policy="fifo").submit("a", 0.0)
    assert {"I03", "I04", "I06", "I28", "I29"} < set(check_history(run.lines).not_checked)
    run.start("a", 0.0, "g0")
    assert {"I03", "I04", "I06"} < set(check_history(run.lines).passed)
    assert "I28" in check_history(run.add(NodeLost(50.0, "n2")).lines).passed


def test_jobs_that_had_not_ended_are_told() -> None:
    report = check_history(on_trial().lines)
    assert report.unended == 2
    assert report.notes == ("2 jobs had not ended when the history did",)
    assert (check_history(kept().lines).unended, check_history(kept().lines).notes) == (0, ())


def test_an_early_end_and_a_jump_of_epochs_are_told_and_break_nothing() -> None:
    run = HistoryWriter().submit("a", 0.0).start("a", 0.0, "g0")
    run.add(EpochCompleted(310.0, "a", 1, 3)).add(JobFinished(410.0, "a", 1))
    run.add(GpusReleased(410.0, "a", 1, ("g0",)))
    report = check_history(run.lines)
    assert report.failed == ()
    assert report.notes == (
        "1 job finished before the last epoch",
        "the epochs of a job went up by more than one at once, once",
    )


def test_counts_go_on_when_messages_are_no_longer_kept() -> None:
    run = HistoryWriter()
    for _ in range(50):
        run.add(Tick(0.0), KillJob("ghost", 1, 1, "because"))
    report = check_history(run.lines)
    assert report.counts == {"I15": 50}
    assert len(report.failed) == 20


def test_no_reservation_is_asked_for_while_every_node_of_its_size_is_lost() -> None:
    run = HistoryWriter(starvation_s=500.0)
    single = NodeSpec("n3", (GpuSpec("g9", "v100"),))
    run.add(NodeJoined(0.0, single)).submit("c", 100.0, gpus=2)
    run.add(NodeLost(100.0, "n1")).add(NodeLost(100.0, "n2"))
    run.add(Tick(100.0), Waits(100.0, "c", "no node", ())).add(Tick(700.0))
    assert run.broken() == set()
    # Lost nodes that are back can be waited for.
    run.add(NodeJoined(710.0, NodeSpec("n1", (GpuSpec("g0", "v100"), GpuSpec("g1", "v100")))))
    assert run.add(Tick(720.0)).broken() == {"I24"}
