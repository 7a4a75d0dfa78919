"""What the simulated world consists of: jobs, their attempts, nodes and GPUs.

Plain slotted classes that only `world` changes: a run over a real trace touches
them millions of times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eaco_core.cluster import NodeState

if TYPE_CHECKING:
    from eaco_core.cluster import GpuSpec, NodeSpec
    from eaco_core.jobs import FailureReason, JobSpec
    from eaco_telemetry.accounting import GpuUse

STARTING = "starting"
COMPUTING = "computing"
CHECKPOINTING = "checkpointing"
KILLED = "killed"
BROKEN = "broken"
GONE = "gone"


class SimJob:
    """A job of the trace. `epochs_done` are those with a checkpoint somewhere."""

    __slots__ = (
        "attempt",
        "attempts",
        "end_s",
        "epochs",
        "epochs_done",
        "failure",
        "first_start_s",
        "run_s",
        "spec",
    )

    def __init__(self, spec: JobSpec, epochs: int) -> None:
        self.spec = spec
        self.epochs = epochs
        self.epochs_done = 0
        self.attempt: SimAttempt | None = None
        self.attempts = 0
        self.first_start_s: float | None = None
        self.run_s = 0.0
        self.end_s: float | None = None
        self.failure: FailureReason | None = None


class SimAttempt:
    """One placement of a job: what it holds and how far it is in its running epoch.

    `left_s` is the work left in this epoch at time `since_s`, in seconds of solo speed;
    `due_s` is when that is done at the present `ratio`. `token` makes what was
    scheduled before void.
    """

    __slots__ = (
        "due_s",
        "epoch",
        "epoch_s",
        "gpus",
        "job",
        "job_id",
        "left_s",
        "number",
        "peak_mem_bytes",
        "ratio",
        "since_s",
        "started_s",
        "state",
        "stop_asked",
        "token",
        "workload",
    )

    def __init__(self, job: SimJob, number: int, gpus: list[SimGpu], epoch: int) -> None:
        self.job = job
        self.job_id = job.spec.job_id
        self.workload = job.spec.workload
        self.number = number
        self.gpus = gpus
        self.epoch = epoch
        self.state = STARTING
        self.stop_asked = False
        self.started_s: float | None = None
        self.epoch_s = 0.0
        self.peak_mem_bytes: int | None = None
        self.ratio = 1.0
        self.left_s = 0.0
        self.since_s = 0.0
        self.due_s = 0.0
        self.token = 0

    def gpu_ids(self) -> tuple[str, ...]:
        """Give the GPUs that it still holds, in the order in which it got them."""
        return tuple(gpu.spec.gpu_id for gpu in self.gpus)

    def computing_beside(self) -> list[SimAttempt]:
        """Give the other attempts that compute on its GPUs, each once."""
        beside: dict[SimAttempt, None] = {}
        for gpu in self.gpus:
            if len(gpu.computing) > 1:
                beside.update(dict.fromkeys(gpu.computing))
        beside.pop(self, None)
        return list(beside)


class SimGpu:
    """One GPU: the attempts that hold it, and those of them that compute."""

    __slots__ = ("computing", "held", "losses", "node", "spec", "token", "up", "use")

    def __init__(self, spec: GpuSpec, node: SimNode) -> None:
        self.spec = spec
        self.node = node
        self.held: list[SimAttempt] = []
        self.computing: list[SimAttempt] = []
        self.up = True
        self.losses = 0
        self.token = 0
        self.use: GpuUse | None = None


class SimNode:
    """One node. `held` counts the pairs of (attempt, GPU) on it.

    `fails_s`: when it is planned to fail. `postponed`: how often the repair of its
    broken GPUs waited for it to be empty.
    """

    __slots__ = (
        "active_s",
        "active_since_s",
        "fails_s",
        "gpus",
        "held",
        "losses",
        "node_id",
        "postponed",
        "spec",
        "state",
        "token",
    )

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.node_id = spec.node_id
        self.gpus = [SimGpu(gpu, self) for gpu in spec.gpus]
        self.state = NodeState.ASLEEP if spec.can_sleep else NodeState.AWAKE
        self.held = 0
        self.active_since_s = 0.0
        self.active_s = 0.0
        self.losses = 0
        self.fails_s = math.inf
        self.postponed = 0
        self.token = 0
