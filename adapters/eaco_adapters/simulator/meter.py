"""The meter of the simulated cluster: from what computes where to booked joules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eaco_adapters.simulator.state import COMPUTING
from eaco_core.cluster import NodeState
from eaco_core.errors import InputError
from eaco_telemetry.accounting import (
    OFF,
    EnergyLedger,
    GpuUse,
    NodeUse,
    asleep_shares,
    split_node_power,
    waking_shares,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eaco_adapters.simulator.state import SimGpu, SimNode
    from eaco_core.cluster import NodeSpec
    from eaco_core.ports import PowerModel
    from eaco_telemetry.accounting import NodeInterval, NodeShares


class Meter:
    """Books the energy of nodes whose load has changed.

    Powered by a `PowerModel`. A GPU works at the sum of the solo utilisations of the
    jobs that compute on it, at most 1. A job that starts or writes its checkpoint
    holds its GPUs without working on them. A node that is out draws nothing.
    """

    def __init__(
        self, power: PowerModel, on_interval: Callable[[NodeInterval], None] | None = None
    ) -> None:
        self.ledger = EnergyLedger(on_interval=on_interval)
        self._power = power
        self._server_w: dict[tuple[str, int], float] = {}
        self._active_w: dict[tuple[str, float], float] = {}
        self._idle_w: dict[str, float] = {}

    def book(self, nodes: Iterable[SimNode], now_s: float) -> None:
        """Book these nodes until now, and read what they draw from now on."""
        for node in nodes:
            self.ledger.advance(node.node_id, now_s)
            self.ledger.set_shares(node.node_id, self._shares(node))

    def _shares(self, node: SimNode) -> NodeShares:
        state = node.state
        if state is NodeState.ASLEEP:
            return asleep_shares(self._power.sleep_w(node.spec))
        if state is NodeState.WAKING:
            return waking_shares(_waking_w(self._power, node.spec))
        if state is NodeState.OUT:
            return OFF
        idle_w = self._server(node, 0)
        gpus = tuple([gpu.use or self._read(gpu) for gpu in node.gpus])
        return split_node_power(NodeUse(idle_w, self._server(node, node.held) - idle_w, gpus))

    def _server(self, node: SimNode, held: int) -> float:
        key = (node.node_id, held)
        watts = self._server_w.get(key)
        if watts is None:
            load = held / len(node.gpus) if node.gpus else 0.0
            watts = self._server_w[key] = self._power.server_w(node.spec, load)
        return watts

    def _read(self, gpu: SimGpu) -> GpuUse:
        gpu_type = gpu.spec.gpu_type
        idle_w = self._idle_w.get(gpu_type)
        if idle_w is None:
            idle_w = self._idle_w[gpu_type] = self._power.gpu_w(gpu_type, 0.0)
        if not gpu.held:
            use = GpuUse(idle_w, 0.0)
        else:
            utils = tuple([_util_ratio(gpu, number) for number in range(len(gpu.held))])
            # fsum: the same for every order of the residents.
            total = min(1.0, math.fsum(utils))
            key = (gpu_type, total)
            active_w = self._active_w.get(key)
            if active_w is None:
                active_w = max(0.0, self._power.gpu_w(gpu_type, total) - idle_w)
                self._active_w[key] = active_w
            use = GpuUse(
                idle_w,
                active_w,
                tuple([attempt.job_id for attempt in gpu.held]),
                util_ratio=utils,
            )
        gpu.use = use
        return use


def _util_ratio(gpu: SimGpu, number: int) -> float:
    attempt = gpu.held[number]
    if attempt.state != COMPUTING:
        return 0.0
    profile = attempt.job.spec.profile_on(gpu.spec.gpu_type)
    if profile is None or profile.util_ratio is None:
        raise InputError(
            f"the energy of job {attempt.job_id} is not known: its profile has no utilisation"
            f" on {gpu.spec.gpu_type}"
        )
    return profile.util_ratio


def _waking_w(power: PowerModel, node: NodeSpec) -> float:
    if node.wake_s > 0:
        return power.wake_j(node) / node.wake_s
    return 0.0
