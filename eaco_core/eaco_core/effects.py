"""Effects: what the outside is asked to do. The machine's only output.

Every command to an executor names the job, the attempt and the `term` of the
scheduler that gave it: an executor refuses an older term, and a command that
speaks of another attempt than the one it runs (invariant I19).
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen


@frozen
class _JobCommand:
    job_id: str
    attempt: int
    term: int


@frozen
class StartJob(_JobCommand):
    """Start the job on `gpus` (node id, GPU ids of that node), after `resume_epoch` epochs."""

    gpus: tuple[tuple[str, tuple[str, ...]], ...]
    resume_epoch: int


@frozen
class StopAtEpochBoundary(_JobCommand):
    """Let the job finish its running epoch, write its checkpoint and stop."""

    reason: str


@frozen
class KillJob(_JobCommand):
    """End the job now: TERM, then KILL, for its whole process group."""

    reason: str


@frozen
class WakeNode:
    """Wake the node; answer with NodeAwake or WakeFailed."""

    node_id: str
    term: int


@frozen
class SleepNode:
    """Put the node to sleep; answer with NodeAsleep."""

    node_id: str
    term: int


@frozen
class Observation:
    """One measured epoch of a job that shares: the unit of evidence (rule R5).

    `ratio` = shared epoch time / solo epoch time. `co_workloads` (sorted) are the
    co-residents on the job's worst GPU.
    """

    t_s: float
    job_id: str
    workload: str
    co_workloads: tuple[str, ...]
    gpu_type: str
    epoch_s: float
    solo_epoch_s: float
    ratio: float


@frozen
class RecordObservation:
    """Add the observation to the history store."""

    observation: Observation


Effect: TypeAlias = (
    StartJob | StopAtEpochBoundary | KillJob | WakeNode | SleepNode | RecordObservation
)
