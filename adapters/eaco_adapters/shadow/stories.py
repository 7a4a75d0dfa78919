"""The largest single savings and risks, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from eaco_core.decisions import BoundSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eaco_adapters.shadow.work import Work
    from eaco_adapters.shadow.would_be import WouldBe
    from eaco_adapters.simulator import JobOutcome
    from eaco_core.decisions import AffectedBound, Placed

_J_PER_KWH = 3.6e6
_SOURCES = {
    BoundSource.OBSERVED: "as seen in the simulation so far, with a margin",
    BoundSource.LEARNED: "a learned bound",
    BoundSource.LAW: "the law with its margin",
    BoundSource.SOLO: "alone",
    BoundSource.NONE: "no bound",
}


@frozen
class Story:
    """One shared placement: who beside whom, what for, and the highest bound of those affected.

    `saving_j`: against running alone, as predicted when it was placed; None = not known.
    `slack_s`: what is left to the tightest deadline if the bound comes true; None = no deadline.
    """

    job_id: str
    beside: tuple[str, ...]
    t_s: float
    bound_ratio: float
    saving_j: float | None
    slack_s: float | None
    undone: bool
    text: str


def savings_of(would: WouldBe, top: int) -> list[Story]:
    """Give the placements that saved most, by what was predicted of those that were kept."""
    stories = [_story(placed, would, why="") for placed in would.shared]
    kept = [one for one in stories if not one.undone and (one.saving_j or 0.0) > 0]
    kept.sort(key=lambda one: (-(one.saving_j or 0.0), one.t_s, one.job_id))
    return kept[:top]


def risks_of(would: WouldBe, jobs: Iterable[Work], top: int) -> list[Story]:
    """Give the placements that risked most: late jobs, undone sets, little time, high bounds."""
    works = {work.job_id: work for work in jobs}
    outcomes = {job.job_id: job for job in would.result.jobs}
    ranked: list[tuple[tuple[float, ...], Story]] = []
    for placed in would.shared:
        why, rank = _risk(placed, would, outcomes, works)
        story = _story(placed, would, why=why)
        ranked.append(((rank, -story.bound_ratio, story.t_s), story))
    ranked.sort(key=lambda one: (one[0], one[1].job_id))
    return [story for _, story in ranked[:top]]


def _risk(
    placed: Placed,
    would: WouldBe,
    outcomes: Mapping[str, JobOutcome],
    works: Mapping[str, Work],
) -> tuple[str, float]:
    """Say what is risky about a placement, and how much: lower comes first."""
    affected = [bound.job_id for bound in placed.affected]
    late = [
        job_id
        for job_id in affected
        if job_id in works and outcomes[job_id].missed and not works[job_id].late
    ]
    if late:
        return f"{_jobs(late)} would have been late, and was not", 0.0
    verdict = would.verdicts.get((placed.job_id, placed.attempt))
    if verdict is not None and not verdict.keep:
        return f"undone after a look: {verdict.reason}", 1.0
    slack_s = _slack_s(placed)
    if slack_s is None:
        return "no deadline is at stake", 4.0
    lengths = [bound.upper_ratio * bound.remaining_s for bound in placed.affected]
    share = slack_s / max(1.0, max(lengths, default=1.0))
    text = f"{_span(max(0.0, slack_s))} are left to the tightest deadline by the bound"
    return text, 2.0 + max(0.0, min(1.0, share))


def _story(placed: Placed, would: WouldBe, *, why: str) -> Story:
    beside = tuple(
        sorted({job for gate in placed.gates for job in gate.residents if job != placed.job_id})
    ) or tuple(one.job_id for one in placed.affected if one.job_id != placed.job_id)
    verdict = would.verdicts.get((placed.job_id, placed.attempt))
    undone = verdict is not None and not verdict.keep
    saving_j = None
    if placed.extra_energy_j is not None and placed.alternative_energy_j is not None:
        saving_j = placed.alternative_energy_j - placed.extra_energy_j
    worst = max(placed.affected, key=lambda bound: bound.upper_ratio, default=None)
    return Story(
        job_id=placed.job_id,
        beside=beside,
        t_s=placed.t_s,
        bound_ratio=1.0 if worst is None else worst.upper_ratio,
        saving_j=saving_j,
        slack_s=_slack_s(placed),
        undone=undone,
        text=_text(placed, beside, worst=worst, saving_j=saving_j, why=why),
    )


def _text(
    placed: Placed,
    beside: tuple[str, ...],
    *,
    worst: AffectedBound | None,
    saving_j: float | None,
    why: str,
) -> str:
    text = f"job {placed.job_id} beside {_jobs(beside)} at {_span(placed.t_s)}"
    if worst is not None:
        text += (
            f": at most {worst.upper_ratio:.2f} times slower"
            f" ({_SOURCES[worst.source]}, for job {worst.job_id})"
        )
    if why:
        return f"{text}; {why}"
    if saving_j is not None:
        text += f"; {saving_j / _J_PER_KWH:.2f} kWh less than alone, as predicted"
    return text


def _slack_s(placed: Placed) -> float | None:
    """Give the least time to a deadline that still binds, if every bound comes true."""
    start_s = max(placed.t_s, placed.start_s)
    slacks = [
        bound.deadline_s - (start_s + bound.upper_ratio * bound.remaining_s)
        for bound in placed.affected
        if bound.deadline_s is not None and not bound.late
    ]
    return min(slacks, default=None)


def _jobs(job_ids: Iterable[str]) -> str:
    names = list(job_ids)
    return f"job{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _span(seconds: float) -> str:
    if seconds < 7200:  # noqa: PLR2004 - two hours, from where minutes say too much
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
