"""Decisions as data: what was decided, from which facts, and what was refused (R18).

`SchedulerMachine.records` holds those of the last step; the history keeps them
all; `eaco explain` prints them.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from attrs import frozen


class BoundSource(enum.Enum):
    """Where the upper bound of a slowdown comes from (rule R5), strongest first."""

    OBSERVED = "observed"
    LEARNED = "learned"
    LAW = "law"
    SOLO = "solo"
    NONE = "none"


@frozen
class AffectedBound:
    """What one job affected by a placement is predicted to suffer.

    Ratios are shared / solo epoch time; `remaining_s` is what is left at solo
    speed, counted in whole epochs. `late`: at risk already (R8), so its deadline
    does not bind.
    """

    job_id: str
    workload: str | None
    co_workloads: tuple[str, ...]
    gpu_type: str
    point_ratio: float
    upper_ratio: float
    source: BoundSource
    calibration_id: str | None
    remaining_s: float
    deadline_s: float | None
    late: bool


@frozen
class GateReading:
    """What the gates of R2 saw on one GPU of a shared placement.

    Ratios are before the placement, `mem_needed_bytes` is with the newcomer. None =
    not measured; `by_evidence`: a clean observation of this set stood in for it.
    """

    gpu_id: str
    util_ratio: float | None
    mem_busy_ratio: float | None
    mem_needed_bytes: int | None
    mem_limit_bytes: int | None
    residents: tuple[str, ...]
    by_evidence: bool


@frozen
class Refusal:
    """Why candidate sets were refused: the rule, in words, and how many."""

    rule: str
    reason: str
    count: int


@frozen
class Placed:
    """A job was given GPUs. `affected` and `gates` are empty for an exclusive one.

    Energies (J) are those compared by R7, None without a power model. `start_s` is
    when the job can start: later than now if a node has to wake first.
    """

    t_s: float
    job_id: str
    attempt: int
    gpus: tuple[str, ...]
    shared: bool
    start_s: float
    affected: tuple[AffectedBound, ...]
    gates: tuple[GateReading, ...]
    extra_energy_j: float | None
    alternative_energy_j: float | None
    explored: bool
    refusals: tuple[Refusal, ...]


@frozen
class Waits:
    """A job was left in the queue; recorded when its reason changes."""

    t_s: float
    job_id: str
    reason: str
    refusals: tuple[Refusal, ...]


@frozen
class Evidence:
    """What the window saw of one affected job (rules R9, R10).

    `epoch_s` is the observed epoch time, None when the job gave no clean epoch.
    """

    job_id: str
    epoch_s: float | None
    ratio: float | None
    epochs_left: int
    deadline_s: float | None
    late: bool


@frozen
class Verdict:
    """The window of newcomer `job_id` closed: it is kept, or undone (`reason` says why)."""

    t_s: float
    job_id: str
    attempt: int
    keep: bool
    reason: str
    evidence: tuple[Evidence, ...]
    throughput_sum: float | None
    restarts: int


@frozen
class WindowRestarted:
    """The residents changed during the window of `job_id`; evidence so far is void."""

    t_s: float
    job_id: str
    restarts: int
    reason: str


@frozen
class Evicted:
    """`victim_id` is stopped so that `job_id` meets its deadline again (rule R12)."""

    t_s: float
    job_id: str
    victim_id: str
    predicted_end_s: float
    deadline_s: float


@frozen
class AtRisk:
    """`job_id` will miss its deadline and no eviction would help (rules R8, R12)."""

    t_s: float
    job_id: str
    predicted_end_s: float
    deadline_s: float


@frozen
class Reserved:
    """GPUs are held for a job that has waited too long (rule R11).

    `start_s` is when they are free at the latest by the bounds; None = unknown.
    """

    t_s: float
    job_id: str
    gpus: tuple[str, ...]
    start_s: float | None


@frozen
class Requeued:
    """A job went back to the queue, to resume after `epoch` epochs."""

    t_s: float
    job_id: str
    epoch: int
    reason: str


@frozen
class Ignored:
    """An event changed nothing because it is stale or was counted before (I20)."""

    t_s: float
    event: str
    job_id: str | None
    reason: str


Record: TypeAlias = (
    Placed | Waits | Verdict | WindowRestarted | Evicted | AtRisk | Reserved | Requeued | Ignored
)
