"""The energy of the schedule as it was, by the power model and the rule of sleep (R15).

The same meter that books a simulation books what the other scheduler did. Nodes that can sleep
do so by eaco's rule in both schedules, whatever they did in the history: what is compared is who
ran where, not who switches off machines.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from attrs import field, frozen

from eaco_adapters.simulator.meter import Meter
from eaco_adapters.simulator.result import EnergyRecord
from eaco_adapters.simulator.state import COMPUTING, GONE, SimAttempt, SimJob, SimNode
from eaco_core.cluster import NodeState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eaco_adapters.shadow.work import Held, Work
    from eaco_adapters.simulator.state import SimGpu
    from eaco_core.cluster import NodeSpec
    from eaco_core.ports import PowerModel
    from eaco_core.rules import Rules
    from eaco_telemetry.accounting import PowerParts

_HELD, _STARTED, _ENDED, _FREED, _NODE = range(5)


@frozen
class AsWas:
    """What the schedule as it was has used: all nodes, and by job (J)."""

    energy: EnergyRecord
    jobs_j: Mapping[str, float] = field(repr=False)


@frozen(order=False)
class _Change:
    kind: int
    attempt: SimAttempt | None = None
    gpu: SimGpu | None = None
    node: SimNode | None = None
    state: NodeState = NodeState.AWAKE


def energy_as_was(
    jobs: Sequence[Work], nodes: Sequence[NodeSpec], *, power: PowerModel, rules: Rules
) -> AsWas:
    """Book every joule of the schedule as it was."""
    return _Replay(jobs, nodes, power, rules).run()


class _Replay:
    def __init__(
        self, jobs: Sequence[Work], nodes: Sequence[NodeSpec], power: PowerModel, rules: Rules
    ) -> None:
        self._jobs = jobs
        self._meter = Meter(power)
        self._nodes = [SimNode(spec) for spec in nodes]
        self._gpus = {gpu.spec.gpu_id: gpu for node in self._nodes for gpu in node.gpus}
        self._count = 0
        self._changes: list[tuple[float, int, _Change]] = []
        self._dirty: dict[SimNode, None] = dict.fromkeys(self._nodes)
        busy: dict[SimNode, list[tuple[float, float]]] = {}
        for work in jobs:
            job = SimJob(work.truth, work.truth.epochs or 1)
            for number, held in enumerate(work.held, start=1):
                self._plan(SimAttempt(job, number, [], 0), held, busy)
        for node in self._nodes:
            if node.spec.can_sleep:
                self._plan_sleep(node, sorted(busy.get(node, [])), rules)

    def run(self) -> AsWas:
        end_s = max((work.end_s for work in self._jobs), default=0.0)
        meter = self._meter
        self._until(0.0)
        meter.book(self._dirty, 0.0)
        while self._changes and self._changes[0][0] <= end_s:
            self._next()
        meter.ledger.advance_all(end_s)
        parts = meter.ledger.parts()
        jobs_j = {work.job_id: meter.ledger.job_j(work.job_id) for work in self._jobs}
        tail: list[tuple[float, PowerParts]] = [(end_s, meter.ledger.power())]
        while self._changes:
            at_s = self._next()
            tail.append((at_s, meter.ledger.power()))
        return AsWas(EnergyRecord(end_s, parts, tuple(tail)), jobs_j)

    def _next(self) -> float:
        """Let everything of the next time happen, and book it."""
        at_s = self._changes[0][0]
        self._dirty = {}
        self._until(at_s)
        self._meter.book(self._dirty, at_s)
        return at_s

    def _until(self, at_s: float) -> None:
        while self._changes and self._changes[0][0] <= at_s:
            self._apply(heapq.heappop(self._changes)[2])

    def _at(self, at_s: float, change: _Change) -> None:
        self._count += 1  # of one time, in the order in which they were planned
        heapq.heappush(self._changes, (at_s, self._count, change))

    def _plan(
        self, attempt: SimAttempt, held: Held, busy: dict[SimNode, list[tuple[float, float]]]
    ) -> None:
        self._at(held.started_s, _Change(_STARTED, attempt))
        self._at(held.ended_s, _Change(_ENDED, attempt))
        for gpu_id, freed_s in held.gpus:
            gpu = self._gpus[gpu_id]
            attempt.gpus.append(gpu)
            self._at(held.commanded_s, _Change(_HELD, attempt, gpu))
            self._at(freed_s, _Change(_FREED, attempt, gpu))
            busy.setdefault(gpu.node, []).append((held.commanded_s, freed_s))

    def _plan_sleep(self, node: SimNode, busy: list[tuple[float, float]], rules: Rules) -> None:
        """Let the node wake in time for its jobs, and sleep when it was idle for long enough."""
        sleep_s = awake_s = 0.0
        was_awake = False
        idle_s = -1.0
        for begin_s, end_s in busy:
            if was_awake and begin_s <= idle_s:
                idle_s = max(idle_s, end_s)
            else:
                wake_s = max(0.0, begin_s - node.spec.wake_s)
                if was_awake:
                    sleep_s = max(idle_s + rules.idle_sleep_s, awake_s + rules.min_awake_s)
                if not was_awake or (rules.sleep and wake_s >= sleep_s):
                    if was_awake:
                        self._at(sleep_s, _Change(_NODE, node=node, state=NodeState.ASLEEP))
                    self._at(wake_s, _Change(_NODE, node=node, state=NodeState.WAKING))
                    self._at(begin_s, _Change(_NODE, node=node, state=NodeState.AWAKE))
                    awake_s, was_awake = begin_s, True
                idle_s = end_s
        if was_awake and rules.sleep:
            sleep_s = max(idle_s + rules.idle_sleep_s, awake_s + rules.min_awake_s)
            self._at(sleep_s, _Change(_NODE, node=node, state=NodeState.ASLEEP))

    def _apply(self, change: _Change) -> None:
        if change.node is not None:
            change.node.state = change.state
            self._dirty[change.node] = None
            return
        attempt, gpu = change.attempt, change.gpu
        if attempt is None:
            return
        if gpu is None:
            attempt.state = COMPUTING if change.kind == _STARTED else GONE
            for one in attempt.gpus:
                one.use = None
                self._dirty[one.node] = None
            return
        if change.kind == _HELD:
            gpu.held.append(attempt)
            gpu.node.held += 1
        else:
            gpu.held.remove(attempt)
            gpu.node.held -= 1
        gpu.use = None
        self._dirty[gpu.node] = None
