"""Nodes: asleep, waking, awake or out (R15), and starts that wait for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.errors import EventRefused
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core._context import Context
    from eaco_core._lifecycle import Lifecycle
    from eaco_core._records import GpuRecord, JobRecord, NodeRecord
    from eaco_core.cluster import NodeReading


class Nodes:
    """Power states of all nodes, alike under every policy."""

    def __init__(self, context: Context, jobs: Lifecycle) -> None:
        self._c = context
        self._jobs = jobs

    # ---- events ----------------------------------------------------------------

    def joined(self, event: ev.NodeJoined) -> str | None:
        """Take in a node. Gives why the event is ignored, if it is."""
        known = self._c.ledger.nodes.get(event.node.node_id)
        if event.state not in {NodeState.AWAKE, NodeState.ASLEEP}:
            raise EventRefused(
                f"node {event.node.node_id} can only join awake or asleep", event=event
            )
        if known is not None and known.state is not NodeState.OUT:
            if known.spec == event.node:
                return "the node is here already"
            raise EventRefused(
                f"node {event.node.node_id} is here with other GPUs or labels: lose it first",
                event=event,
            )
        for gpu in event.node.gpus:
            other = self._c.ledger.gpus.get(gpu.gpu_id)
            if other is not None and other.node is not known:
                raise EventRefused(
                    f"GPU {gpu.gpu_id} of node {event.node.node_id} is on node "
                    f"{other.node.spec.node_id} already",
                    event=event,
                )
        if len({gpu.gpu_id for gpu in event.node.gpus}) < len(event.node.gpus):
            raise EventRefused(f"node {event.node.node_id} names a GPU twice", event=event)
        node = self._c.ledger.add_node(event.node, event.state, self._c.now_s)
        self.arm_sleep(node)
        self._c.pass_due = True
        return None

    def awake(self, node: NodeRecord, _: ev.NodeAwake) -> str | None:
        """A node has woken up: start what waits for it."""
        if node.state in {NodeState.AWAKE, NodeState.OUT}:
            return f"the node is {node.state.value}"
        self._c.timers.cancel(("wake", node.spec.node_id))
        node.awake_since_s = self._c.now_s
        node.idle_since_s = self._c.now_s
        self._c.ledger.set_node_state(node, NodeState.AWAKE)
        for job in _residents(node):
            self.start_if_awake(job)
        self.arm_sleep(node)
        self._c.pass_due = True
        return None

    def asleep(self, node: NodeRecord, _: ev.NodeAsleep) -> str | None:
        """A node has fallen asleep."""
        if node.state is NodeState.ASLEEP:
            return "the node is asleep already"
        if node.state is NodeState.OUT or node.resident_count:
            return f"the node is {node.state.value} with {node.resident_count} bookings"
        for kind in ("sleep", "wake"):
            self._c.timers.cancel((kind, node.spec.node_id))
        self._c.ledger.set_node_state(node, NodeState.ASLEEP)
        self._c.pass_due = True
        return None

    def drained(self, node: NodeRecord, event: ev.NodeDrained) -> str | None:
        """Close a node to new jobs, or open it."""
        if node.drained == event.drained:
            return "the node is so already"
        node.drained = event.drained
        self._c.ledger.refresh_node(node)
        self._c.pass_due = True
        return None

    def lost(self, node: NodeRecord, event: ev.NodeLost) -> str | None:
        """A node is gone."""
        return self.out(node, f"node {event.node_id} is lost")

    def out(self, node: NodeRecord, reason: str) -> str | None:
        """A node is gone, or could not be woken: in one step nobody holds anything on it."""
        if node.state is NodeState.OUT:
            return "the node is out already"
        for kind in ("wake", "sleep"):
            self._c.timers.cancel((kind, node.spec.node_id))
        residents = _residents(node)
        self._c.ledger.set_node_state(node, NodeState.OUT)
        for job in residents:
            lost = [gpu for gpu in job.gpus if gpu.node is node]
            self._jobs.lost(job, lost, reason, may_live=False)
        self._jobs.checkpoints_lost(node.spec.node_id, reason)
        return None

    def gpu_lost(self, gpu: GpuRecord) -> str | None:
        """One GPU fell off: whoever used it is lost."""
        if not gpu.up:
            return "the GPU is lost already"
        gpu.up = False
        residents = list(gpu.residents)
        self._c.ledger.refresh_node(gpu.node)
        for job in residents:
            self._jobs.lost(job, [gpu], f"GPU {gpu.spec.gpu_id} is lost", may_live=True)
        return None

    def sampled(self, node: NodeRecord, event: ev.NodeSampled) -> str | None:
        """Take in readings: u_g is their mean over the last 60 s (R2)."""
        node.reports = True
        horizon_s = self._c.now_s - self._c.rules.util_window_s
        gpus = {gpu.spec.gpu_id: gpu for pool in node.pools.values() for gpu in pool.gpus}
        for reading in event.readings:
            gpu = gpus.get(reading.gpu_id)
            if gpu is None:
                continue
            newest_s = gpu.readings[-1].received_s if gpu.readings else -math.inf
            if self._c.now_s - newest_s > self._c.rules.sample_max_age_s:
                self._c.ledger.note_news(gpu)
            gpu.readings.append(reading)
            while gpu.readings[0].received_s < horizon_s and len(gpu.readings) > 1:
                gpu.readings.popleft()
            gpu.util_reading = mean_util(gpu.readings)
        self._c.ledger.refresh_node(node)
        self._c.pass_due = True
        return None

    # ---- starting and sleeping ---------------------------------------------------

    def start(self, job: JobRecord) -> None:
        """Start a job that was just placed, or wake its nodes first."""
        for node in _nodes_of(job):
            self._c.timers.cancel(("sleep", node.spec.node_id))
            if node.state is NodeState.ASLEEP:
                self._wake(node)
        self.start_if_awake(job)

    def start_if_awake(self, job: JobRecord) -> None:
        """Emit StartJob once every node of the job is awake."""
        if job.state is not JobState.STARTING or job.start_sent:
            return
        nodes = _nodes_of(job)
        if any(node.state is not NodeState.AWAKE for node in nodes):
            return
        job.start_sent = True
        placement = tuple(
            (
                node.spec.node_id,
                tuple(gpu.spec.gpu_id for gpu in job.gpus if gpu.node is node),
            )
            for node in nodes
        )
        self._c.effects.append(
            fx.StartJob(job.spec.job_id, job.attempt, self._c.term, placement, job.epochs_done)
        )

    def _wake(self, node: NodeRecord) -> None:
        now_s, wake_s = self._c.now_s, node.spec.wake_s
        node.wake_due_s = now_s + wake_s
        self._c.ledger.set_node_state(node, NodeState.WAKING)
        self._c.effects.append(fx.WakeNode(node.spec.node_id, self._c.term))
        # A node that wakes at once still needs a moment to say so.
        limit_s = now_s + max(self._c.rules.wake_timeout_factor * wake_s, 1.0)
        self._c.timers.set(("wake", node.spec.node_id), limit_s)

    def arm_sleep(self, node: NodeRecord) -> None:
        """Let an idle node sleep when R15 says so."""
        rules = self._c.rules
        key = ("sleep", node.spec.node_id)
        if (
            rules.sleep
            and node.spec.can_sleep
            and node.state is NodeState.AWAKE
            and node.resident_count == 0
        ):
            idle_s = node.idle_since_s + rules.idle_sleep_s
            self._c.timers.set(key, max(idle_s, node.awake_since_s + rules.min_awake_s))
        else:
            self._c.timers.cancel(key)

    def fall_asleep(self, node_id: str) -> None:
        """Put a node to sleep: it was idle for long enough."""
        node = self._c.ledger.nodes[node_id]
        if node.state is NodeState.AWAKE and node.resident_count == 0:
            self._c.ledger.set_node_state(node, NodeState.FALLING_ASLEEP)
            self._c.effects.append(fx.SleepNode(node_id, self._c.term))


def mean_util(readings: Iterable[NodeReading]) -> float | None:
    """Give the mean utilisation of these readings, None if none has one."""
    utils = [r.util_ratio for r in readings if r.util_ratio is not None]
    return sum(utils) / len(utils) if utils else None


def _nodes_of(job: JobRecord) -> list[NodeRecord]:
    return list({gpu.node.spec.node_id: gpu.node for gpu in job.gpus}.values())


def _residents(node: NodeRecord) -> list[JobRecord]:
    found: dict[str, JobRecord] = {}
    for pool in node.pools.values():
        for gpu in pool.gpus:
            for job in gpu.residents:
                found.setdefault(job.spec.job_id, job)
    return list(found.values())
