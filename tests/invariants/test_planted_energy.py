"""Planted violations of I30: whose energy, of which node, and over which intervals."""

from __future__ import annotations

import pytest

from eaco_core.events import GpusReleased, JobFinished
from eaco_core.history import EnergyLine
from eaco_core.invariants import check_history
from eaco_core.testing.histories import HistoryWriter


def one_job_then_another() -> HistoryWriter:
    """Run a on g0 from 0 s to 100 s, and b on g2 from 100 s on."""
    run = HistoryWriter().submit("a", 0.0, epochs=1).start("a", 0.0, "g0")
    run.epochs("a", 1, 1, 90.0, 0.0)
    run.add(JobFinished(95.0, "a", 1)).add(GpusReleased(100.0, "a", 1, ("g0",)))
    return run.submit("b", 100.0).start("b", 100.0, "g2")


def energy(t0_s: float, t1_s: float, node_id: str, job_id: str | None = None) -> EnergyLine:
    jobs_j = {} if job_id is None else {job_id: 100.0}
    return EnergyLine(t0_s, t1_s, node_id, 100.0, jobs_j, 0.0 if jobs_j else 100.0)


RIGHT = (
    energy(0.0, 50.0, "n1", "a"),
    energy(50.0, 105.0, "n1", "a"),
    energy(105.0, 110.0, "n1"),
    energy(0.0, 100.0, "n2"),
    energy(100.0, 110.0, "n2", "b"),
)


def test_energy_that_is_told_once_for_whoever_was_there_is_fine() -> None:
    run = one_job_then_another()
    run.lines += RIGHT
    report = check_history(run.lines)
    assert report.failed == ()
    assert "I30" in report.passed


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ((energy(0.0, 50.0, "n1"), energy(49.0, 60.0, "n1")), "is told twice"),
        ((energy(0.0, 50.0, "n1"), energy(0.0, 50.0, "n1")), "is told twice"),
        ((energy(0.0, 50.0, "n1"), energy(51.0, 60.0, "n1")), "is not told from 50 s on"),
        ((energy(0.0, 50.0, "n7"),), "node n7 never joined"),
        ((energy(0.0, 50.0, "n1", "ghost"),), "goes to job ghost, never submitted"),
        ((energy(0.0, 50.0, "n1", "b"),), "goes to job b, which held no GPU there"),
        ((energy(0.0, 50.0, "n2", "b"),), "goes to job b, which held no GPU there"),
        ((energy(101.0, 110.0, "n1", "a"),), "goes to job a, which held no GPU there"),
        ((energy(50.0, 10.0, "n1"),), "ends before it begins"),
    ],
)
def test_energy_in_the_wrong_place_is_found(lines: tuple[EnergyLine, ...], complaint: str) -> None:
    run = one_job_then_another()
    run.lines += lines
    report = check_history(run.lines)
    assert set(report.counts) == {"I30"}
    assert [complaint in violation.message for violation in report.failed] == [True]
