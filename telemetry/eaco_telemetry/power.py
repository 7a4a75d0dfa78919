"""Where the watts of a node come from when they are modelled and not measured.

Node power = server part + sum over its GPUs. The server follows Fan et al.
(ISCA'07), P_idle + (P_busy - P_idle)(2u - u^r); a GPU follows a square root of its
utilisation. The default numbers describe a server with 8 V100: they were fitted to
the ten node powers of arXiv 2412.08294 (Tables 1 and 3), rms 47 W, worst 90 W; the
idle parts are public estimates for such a machine (459 W idle). Power asleep and
time to wake are assumptions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import optional

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from attrs import Attribute

    from eaco_core.cluster import NodeSpec

# Mean CPU utilisation with 0, 1, 2, 3, 4 jobs on all GPUs (arXiv 2412.08294, Fig. 2).
_CPU_BY_JOBS = (0.0, 0.066, 0.124, 0.188, 0.245)
_CPU_PER_FURTHER_JOB = 0.06


def _watts(instance: object, attribute: Attribute[float], value: float) -> None:
    if not math.isfinite(value) or value < 0:
        name = f"{type(instance).__name__}.{attribute.name}"
        raise InputError(f"{name} must be a number of watts of at least 0, not {value!r}")


def cpu_ratio_of_load(job_load: float) -> float:
    """Give the CPU utilisation (0..1) of a server under a load of training jobs.

    `job_load` is the sum over the jobs here of (GPUs held here / GPUs of the node):
    1 = one job on every GPU. Linear between the published points.
    """
    if job_load < 0 or not math.isfinite(job_load):
        raise InputError(f"a load of jobs must be a number of at least 0, not {job_load!r}")
    last = len(_CPU_BY_JOBS) - 1
    if job_load >= last:
        return min(1.0, _CPU_BY_JOBS[last] + _CPU_PER_FURTHER_JOB * (job_load - last))
    below = int(job_load)
    low, high = _CPU_BY_JOBS[below], _CPU_BY_JOBS[below + 1]
    return low + (high - low) * (job_load - below)


@frozen
class FanServer:
    """Power of a server without its GPUs, from its CPU utilisation (Fan et al., ISCA'07)."""

    idle_w: float = field(default=180.3, validator=_watts)
    busy_w: float = field(default=594.3, validator=_watts)
    r: float = 1.4

    def dynamic_w(self, cpu_ratio: float) -> float:
        """Give what is added to the idle power at a CPU utilisation from 0 to 1."""
        u = min(1.0, max(0.0, cpu_ratio))
        shape = 2.0 * u - math.pow(u, self.r)
        return (self.busy_w - self.idle_w) * shape

    def power_w(self, cpu_ratio: float) -> float:
        """Give the power at a CPU utilisation from 0 to 1."""
        return self.idle_w + self.dynamic_w(cpu_ratio)


@frozen
class SqrtGpu:
    """Power of one GPU: idle + slope x square root of its utilisation in percent."""

    idle_w: float = field(default=34.8, validator=_watts)
    slope_w: float = field(default=17.13, validator=_watts)

    def power_w(self, util_ratio: float) -> float:
        """Give the power at a utilisation; above 1 (jobs that add up) counts as 1."""
        return self.idle_w + self.slope_w * math.sqrt(100.0 * min(1.0, max(0.0, util_ratio)))


@frozen
class DefaultNodePower:
    """Power of a node from its load: the `PowerModel` of simulations and of rule R7.

    `idle_w` overrides what a whole idle node draws, by moving the idle power of the
    server; what jobs add stays as it is. `asleep_w` is an assumption. While a node
    wakes it draws its idle power, for the `wake_s` of its `NodeSpec`. All GPU types
    share one curve.
    """

    server: FanServer = FanServer()
    gpu: SqrtGpu = SqrtGpu()
    idle_w: float | None = field(default=None, validator=optional(_watts))
    asleep_w: float = field(default=15.0, validator=_watts)

    def server_w(self, node: NodeSpec, job_load: float, /) -> float:
        """Server part while jobs hold `job_load` x all GPUs of the node."""
        return self._server_idle_w(node) + self.server.dynamic_w(cpu_ratio_of_load(job_load))

    def gpu_w(self, gpu_type: str, util_ratio: float, /) -> float:  # noqa: ARG002 - one curve for all
        """Power of one GPU at a utilisation; above 1 counts as 1."""
        return self.gpu.power_w(util_ratio)

    def sleep_w(self, node: NodeSpec, /) -> float:  # noqa: ARG002 - alike for all nodes
        """Power of the node asleep."""
        return self.asleep_w

    def wake_j(self, node: NodeSpec, /) -> float:
        """Energy of waking the node once: its idle power for as long as that takes."""
        return self.node_idle_w(node) * node.wake_s

    def node_idle_w(self, node: NodeSpec, /) -> float:
        """Power of the whole node, awake and without jobs."""
        return self._server_idle_w(node) + len(node.gpus) * self.gpu.idle_w

    def _server_idle_w(self, node: NodeSpec) -> float:
        if self.idle_w is None:
            return self.server.idle_w
        server_idle_w = self.idle_w - len(node.gpus) * self.gpu.idle_w
        if server_idle_w < 0:
            raise InputError(
                f"an idle node cannot draw {self.idle_w:g} W: the {len(node.gpus)} idle GPUs of"
                f" {node.node_id} alone draw {len(node.gpus) * self.gpu.idle_w:g} W"
            )
        return server_idle_w
