"""Small builders, so that a test reads as a list of facts.

Defaults describe a small job on a small GPU: 10 epochs of 100 s, a fifth of the GPU
busy, 2 of 16 GiB. Every argument left out is unremarkable.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import frozen

from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.effects import Observation
from eaco_core.jobs import JobSpec, SoloProfile
from eaco_core.rules import GIB


def a_node(
    node_id: str = "n1",
    gpus: int = 1,
    *,
    gpu_type: str = "v100",
    mem_gib: float | None = 16,
    can_sleep: bool = False,
    wake_s: float = 60.0,
    labels: tuple[tuple[str, str], ...] = (),
) -> NodeSpec:
    """Build a node whose GPUs are called ``n1-0``, ``n1-1`` and so on."""
    mem_bytes = None if mem_gib is None else int(mem_gib * GIB)
    specs = tuple(GpuSpec(f"{node_id}-{i}", gpu_type, mem_bytes) for i in range(gpus))
    return NodeSpec(node_id, specs, labels, can_sleep, wake_s)


def a_profile(
    gpu_type: str = "v100",
    *,
    epoch_s: float | None = 100.0,
    util: float | None = 0.2,
    busy: float | None = 0.1,
    mem_gib: float | None = 2,
) -> SoloProfile:
    """Build what a job does alone on one type of GPU. None = not measured."""
    peak = None if mem_gib is None else int(mem_gib * GIB)
    return SoloProfile(gpu_type, epoch_s, util, busy, peak)


def a_job(
    job_id: str = "a",
    gpus: int = 1,
    *,
    submit_s: float = 0.0,
    epochs: int | None = 10,
    epoch_s: float | None = 100.0,
    util: float | None = 0.2,
    busy: float | None = 0.1,
    mem_gib: float | None = 2,
    workload: str | None = "",
    gpu_type: str = "v100",
    **others: Any,  # noqa: ANN401 - the fields of JobSpec by name
) -> JobSpec:
    """Build a job with a profile on one type of GPU; its workload is its id if not given."""
    profile = a_profile(gpu_type, epoch_s=epoch_s, util=util, busy=busy, mem_gib=mem_gib)
    fields: dict[str, Any] = {"profiles": (profile,), **others}
    return JobSpec(
        job_id=job_id,
        gpus=gpus,
        submit_s=submit_s,
        epochs=epochs,
        workload=job_id if workload == "" else workload,
        **fields,
    )


def an_observation(
    workload: str, co_workloads: tuple[str, ...], ratio: float, *, gpu_type: str = "v100"
) -> Observation:
    """Build one earlier observation, for the history of a machine."""
    return Observation(
        t_s=0.0,
        job_id="earlier",
        workload=workload,
        co_workloads=tuple(sorted(co_workloads)),
        gpu_type=gpu_type,
        epoch_s=100.0 * ratio,
        solo_epoch_s=100.0,
        ratio=ratio,
    )


@frozen
class PlainPower:
    """A power model with round numbers: each part can be added up by hand. Watts.

    The server draws `idle_w` + `busy_w` x load, a GPU `gpu_idle_w` + `gpu_busy_w` x
    the root of its utilisation, so that a busy GPU takes on more work cheaply.
    """

    idle_w: float = 100.0
    busy_w: float = 50.0
    gpu_idle_w: float = 20.0
    gpu_busy_w: float = 100.0
    asleep_w: float = 10.0
    waking_j: float = 6000.0

    def server_w(self, node: NodeSpec, job_load: float, /) -> float:  # noqa: ARG002 - the port
        """Server part while jobs hold `job_load` x all GPUs of the node."""
        return self.idle_w + self.busy_w * min(1.0, job_load)

    def gpu_w(self, gpu_type: str, util_ratio: float, /) -> float:  # noqa: ARG002 - the port
        """Power of one GPU at a utilisation."""
        return self.gpu_idle_w + self.gpu_busy_w * math.sqrt(util_ratio)

    def sleep_w(self, node: NodeSpec, /) -> float:  # noqa: ARG002 - the port
        """Power of the node asleep."""
        return self.asleep_w

    def wake_j(self, node: NodeSpec, /) -> float:  # noqa: ARG002 - the port
        """Energy of waking the node once."""
        return self.waking_j
