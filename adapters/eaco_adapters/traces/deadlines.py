"""Deadlines for traces that have none: a base plus a multiple of the solo run time.

Written `24h:1.2,2,10`: deadline = arrival + 24 h + m x solo run time, where m is one
of 1.2, 2 and 10, each equally likely, chosen by the seed and the job's id (so it does
not depend on the order of jobs). The multipliers are those of Gavel's generator.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from eaco_adapters.traces.seeded import pick
from eaco_adapters.traces.trace import Trace, solo_run_s
from eaco_core.errors import InputError
from eaco_predictors.reading import LARGEST_NUMBER, shown

if TYPE_CHECKING:
    from eaco_core.jobs import JobSpec

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
_SPEC = re.compile(rf"({_NUMBER})([smhd]):({_NUMBER}(?:,{_NUMBER})*)", re.ASCII)


def _usable(_instance: object, _attribute: object, value: tuple[float, ...]) -> None:
    if not value or not all(0 < part <= LARGEST_NUMBER for part in value):
        raise InputError("deadline multipliers must be above 0")


@frozen
class DeadlineRule:
    """Deadline = arrival + `base_s` + one of `multipliers` x solo run time."""

    base_s: float = 86400.0
    multipliers: tuple[float, ...] = field(default=(1.2, 2.0, 10.0), validator=_usable)


def parse_deadlines(text: str) -> DeadlineRule | None:
    """Read the option: `none` (gives None) or `BASE:M,M,...`, the base in s, m, h or d."""
    if text.strip() == "none":
        return None
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        raise InputError(
            "deadlines are written none, or a base and multipliers like 24h:1.2,2,10"
            f" (units s, m, h, d), not {shown(text)}"
        )
    return DeadlineRule(
        base_s=float(found[1]) * _UNIT_S[found[2]],
        multipliers=tuple(float(part) for part in found[3].split(",")),
    )


def apply_deadlines(
    trace: Trace,
    rule: DeadlineRule | None,
    *,
    seed: int,
    gpu_type: str,
    override: bool = False,
) -> Trace:
    """Give each job its deadline by `rule`; None = no job has one.

    The trace's own deadlines win where it has such a column, unless `override`.
    Raises InputError for a job whose solo run time is not known.
    """
    if trace.has_deadlines and not override:
        return trace
    if rule is None:
        jobs = tuple(
            job if job.deadline_s is None else evolve(job, deadline_s=None) for job in trace.jobs
        )
        return evolve(trace, jobs=jobs)
    found: list[JobSpec] = []
    for index, job in enumerate(trace.jobs):
        run_s = solo_run_s(job, gpu_type)
        if run_s is None or not math.isfinite(run_s):
            raise InputError(
                f"the deadline of job {job.job_id!r} needs its solo run time on {gpu_type}",
                where=trace.where(index) or None,
            )
        multiplier = pick(rule.multipliers, seed, "deadline", job.job_id)
        found.append(evolve(job, deadline_s=job.submit_s + rule.base_s + multiplier * run_s))
    shown_multipliers = ", ".join(f"{part:g}" for part in rule.multipliers)
    note = (
        f"deadlines: arrival + {rule.base_s:g} s + one of {{{shown_multipliers}}} x solo run"
        " time, by the seed"
    )
    return evolve(trace, jobs=tuple(found), notes=(*trace.notes, note))
