"""Events: what happened outside. The machine's only input.

Every event carries `t_s`, its time in scheduler seconds (rule R16); times never
go back. Events of a job carry the `attempt` that they speak of: attempt k is the
k-th time that the job was placed, from 1. An event of an older attempt, or one
that was already counted, changes nothing (invariant I20).
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen
from attrs.validators import optional

from eaco_core import _validate as check
from eaco_core.cluster import NodeReading, NodeSpec, NodeState
from eaco_core.jobs import FailureReason, JobSpec


@frozen
class _Event:
    t_s: float = field(validator=check.not_negative)


@frozen
class _JobEvent(_Event):
    job_id: str
    attempt: int = field(validator=check.count)


@frozen
class _NodeEvent(_Event):
    node_id: str


@frozen
class JobSubmitted(_Event):
    """A user hands in a job."""

    job: JobSpec = field(validator=check.instance_of(JobSpec))


@frozen
class JobCancelled(_Event):
    """A user takes a job back."""

    job_id: str


@frozen
class JobStarted(_JobEvent):
    """The job runs. `gpus` are those it really got; empty = the executor cannot tell."""

    gpus: tuple[str, ...] = field(default=(), validator=check.tuple_of(str))


@frozen
class StartFailed(_JobEvent):
    """The job could not be started; no process of it exists."""

    reason: str = ""


@frozen
class EpochCompleted(_JobEvent):
    """The job has completed `epoch` epochs in all and can resume from there.

    `clean` is False when the time of this epoch is not comparable (clocks or power
    limit changed, process paused); it still counts as progress.
    """

    epoch: int = field(validator=check.count)
    clean: bool = True
    peak_mem_bytes: int | None = field(default=None, validator=optional(check.not_negative))


@frozen
class JobStopped(_JobEvent):
    """The job stopped as asked, with a checkpoint after `checkpoint_epoch` epochs."""

    checkpoint_epoch: int = field(validator=check.not_negative)


@frozen
class JobFinished(_JobEvent):
    """The job has done all its work."""


@frozen
class JobFailed(_JobEvent):
    """The job ended without finishing."""

    reason: FailureReason = FailureReason.EXIT
    exit_code: int | None = None
    peak_mem_bytes: int | None = field(default=None, validator=optional(check.not_negative))


@frozen
class JobUnknown(_JobEvent):
    """The executor has lost sight of the job; it may or may not run (rule R14)."""


@frozen
class GpusReleased(_JobEvent):
    """It is proven that nothing of this attempt uses `gpus` any more."""

    gpus: tuple[str, ...] = field(validator=check.tuple_of(str))


@frozen
class NodeJoined(_Event):
    """A node is there (again). `state` is awake or asleep."""

    node: NodeSpec = field(validator=check.instance_of(NodeSpec))
    state: NodeState = NodeState.AWAKE


@frozen
class NodeSampled(_NodeEvent):
    """Readings from the GPUs of one node."""

    readings: tuple[NodeReading, ...] = field(validator=check.tuple_of(NodeReading))


@frozen
class NodeLost(_NodeEvent):
    """The node is gone, with everything that ran on it."""


@frozen
class NodeDrained(_NodeEvent):
    """No new job may start on the node (`drained`), or they may again (not `drained`)."""

    drained: bool = True


@frozen
class NodeAwake(_NodeEvent):
    """The node has woken up."""


@frozen
class NodeAsleep(_NodeEvent):
    """The node has fallen asleep."""


@frozen
class WakeFailed(_NodeEvent):
    """The node could not be woken; it is out until it joins again."""


@frozen
class GpuLost(_NodeEvent):
    """One GPU of the node fell off; jobs on it are lost."""

    gpu_id: str


@frozen
class ClockAnchored(_Event):
    """Scheduler time `t_s` was wall-clock time `wall_s` (Unix seconds, UTC)."""

    wall_s: float = field(validator=check.finite)


@frozen
class Tick(_Event):
    """Time has come to `t_s`: the machine decides and looks at its timers."""


JobEvent: TypeAlias = (
    JobStarted
    | StartFailed
    | EpochCompleted
    | JobStopped
    | JobFinished
    | JobFailed
    | JobUnknown
    | GpusReleased
)
NodeEvent: TypeAlias = (
    NodeSampled | NodeLost | NodeDrained | NodeAwake | NodeAsleep | WakeFailed | GpuLost
)
Event: TypeAlias = (
    JobEvent | NodeEvent | JobSubmitted | JobCancelled | NodeJoined | ClockAnchored | Tick
)
