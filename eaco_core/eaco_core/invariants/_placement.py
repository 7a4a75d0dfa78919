"""Checkers that look at which GPUs a job was given: I01-I06."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.cluster import NodeState
from eaco_core.effects import StartJob
from eaco_core.events import NodeJoined
from eaco_core.invariants._checker import Checker, above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eaco_core.cluster import GpuSpec, NodeSpec
    from eaco_core.decisions import GateReading, Placed
    from eaco_core.effects import Effect
    from eaco_core.history import Step
    from eaco_core.invariants._replay import Gpu, Placement
    from eaco_core.jobs import JobSpec
    from eaco_core.rules import Rules

_CANNOT_RUN = frozenset({NodeState.OUT})


def memory_limit_bytes(capacity_bytes: int, residents: int, rules: Rules) -> float:
    """Give what residents may use together: the headroom is kept where jobs share."""
    if residents <= 1:
        return capacity_bytes
    return capacity_bytes - max(rules.headroom_bytes, rules.headroom_ratio * capacity_bytes)


def memory_complaint(
    gpu: GpuSpec,
    jobs: Iterable[JobSpec],
    rules: Rules,
    peak_bytes: Callable[[JobSpec, str], int | None] | None = None,
) -> str | None:
    """Say how the jobs do not fit into one GPU; None if they do, or nobody knows.

    `peak_bytes` gives what a job needs on a type of GPU; None = what its profile says.
    """
    specs = list(jobs)
    peak_of = _declared_bytes if peak_bytes is None else peak_bytes
    peaks = [peak_of(spec, gpu.gpu_type) for spec in specs]
    known = [peak for peak in peaks if peak is not None]
    if gpu.mem_bytes is None or len(known) < len(specs):
        return None
    limit = memory_limit_bytes(gpu.mem_bytes, len(specs), rules)
    if sum(known) <= limit:
        return None
    names = ", ".join(spec.job_id for spec in specs)
    return f"jobs {names} need {sum(known)} bytes on GPU {gpu.gpu_id}, which has room for {limit:g}"


def _declared_bytes(spec: JobSpec, gpu_type: str) -> int | None:
    profile = spec.profile_on(gpu_type)
    return None if profile is None else profile.peak_mem_bytes


class Memory(Checker):
    """I01. Peaks that nobody measured are left to I02, which asks for evidence then."""

    invariant = "I01"

    def after_placement(self, placement: Placement) -> None:
        """Add up the peaks on every GPU of the set."""
        if not self.world.nodes_seen:
            self.unanswered = "no NodeJoined event tells the memory of the GPUs"
        for gpu in placement.job.gpus:
            specs = [job.spec for job in gpu.residents]
            complaint = memory_complaint(gpu.spec, specs, self.rules, self.world.peak_bytes)
            if complaint is not None:
                self.broken(complaint)
                return


class Gates(Checker):
    """I02, by the readings that the placement recorded and the solo profiles."""

    invariant = "I02"
    needs_records = True

    def on_placement(self, placement: Placement) -> None:
        """Hold every reading against the thresholds, and against what is known here."""
        if placement.record is None or not placement.shared:
            return
        gates = {gate.gpu_id: gate for gate in placement.record.gates}
        for gpu_id, residents in placement.before.items():
            gate = gates.get(gpu_id)
            if gate is None and residents:
                self._say(placement, f"no gate of GPU {gpu_id} was read")
            elif gate is not None:
                self._check(placement, gate, self.world.gpus[gpu_id])

    def _say(self, placement: Placement, what: str) -> None:
        self.broken(f"job {placement.job.job_id} was placed beside others although {what}")

    def _check(self, placement: Placement, gate: GateReading, gpu: Gpu) -> None:
        util, busy = gate.util_ratio, gate.mem_busy_ratio
        solo = _solo_util(gpu)
        if None in {util, busy, gate.mem_needed_bytes, gate.mem_limit_bytes}:
            if not gate.by_evidence:
                self._say(
                    placement, f"GPU {gate.gpu_id} was not measured, nor run like this before"
                )
        elif (gate.mem_needed_bytes or 0) > (gate.mem_limit_bytes or 0):
            self._say(placement, f"GPU {gate.gpu_id} lacks memory")
        if util is not None and util >= self.rules.util_threshold_ratio:
            self._say(placement, f"GPU {gate.gpu_id} was {util:.1%} utilised")
        if busy is not None and busy >= self.rules.mem_busy_threshold_ratio:
            self._say(placement, f"the memory of GPU {gate.gpu_id} was {busy:.1%} busy")
        if util is not None and solo is not None and above(solo, util):
            self._say(
                placement,
                f"GPU {gate.gpu_id} was read at {util:.1%} and its residents alone make {solo:.1%}",
            )
        if set(gate.residents) != {job.job_id for job in gpu.residents}:
            self._say(placement, f"the gate of GPU {gate.gpu_id} saw other residents")


def _solo_util(gpu: Gpu) -> float | None:
    total = 0.0
    for job in gpu.residents:
        profile = job.spec.profile_on(gpu.spec.gpu_type)
        if profile is None or profile.util_ratio is None:
            return None
        total += profile.util_ratio
    return total


def gang_complaint(spec: JobSpec, gpu_ids: tuple[str, ...]) -> str | None:
    """Say how a set of GPUs is not the number that a job asks for."""
    if len(set(gpu_ids)) != len(gpu_ids):
        return f"job {spec.job_id} was given the same GPU twice"
    if len(gpu_ids) != spec.gpus:
        return f"job {spec.job_id} asks for {spec.gpus} GPUs and holds {len(gpu_ids)}"
    return None


def compatible_complaint(spec: JobSpec, gpu: GpuSpec, node: NodeSpec) -> str | None:
    """Say how a GPU is not of the kind that a job asks for."""
    if spec.gpu_types is not None and gpu.gpu_type not in spec.gpu_types:
        return f"job {spec.job_id} does not run on type {gpu.gpu_type} of GPU {gpu.gpu_id}"
    if not set(spec.node_selector) <= set(node.labels):
        return f"node {node.node_id} lacks a label that job {spec.job_id} asks for"
    return None


def topology_complaint(spec: JobSpec, gpus: Iterable[Gpu]) -> str | None:
    """Say how a gang is spread otherwise than over whole nodes and one more (R3)."""
    used: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for gpu in gpus:
        node_id = gpu.node.spec.node_id
        used[node_id] = used.get(node_id, 0) + 1
        alike = [g for g in gpu.node.gpus if g.spec.gpu_type == gpu.spec.gpu_type]
        sizes[node_id] = len(alike)
    partial = [node_id for node_id, count in used.items() if count < sizes[node_id]]
    if used and spec.gpus <= min(sizes.values()) and len(used) > 1:
        return f"job {spec.job_id} fits one node and was spread over {', '.join(sorted(used))}"
    if len(partial) > 1:
        return f"job {spec.job_id} uses more than one node in part: {', '.join(sorted(partial))}"
    return None


class Gang(Checker):
    """I03. That a gang lies on whole nodes is asked of eaco only."""

    invariant = "I03"

    def on_placement(self, placement: Placement) -> None:
        """Count the GPUs, and look at their types and where they are."""
        spec = placement.job.spec
        known = [self.world.gpus[g] for g in placement.gpu_ids if g in self.world.gpus]
        complaint = gang_complaint(spec, placement.gpu_ids)
        for gpu in known:
            complaint = complaint or compatible_complaint(spec, gpu.spec, gpu.node.spec)
        if self.world.ours:
            complaint = complaint or topology_complaint(spec, known)
        if complaint is not None:
            self.broken(complaint)

    def on_effect(self, effect: Effect) -> None:
        """Compare the GPUs that a job is started on with those it was given."""
        if not isinstance(effect, StartJob):
            return
        job = self.world.jobs.get(effect.job_id)
        started = [gpu_id for _, gpu_ids in effect.gpus for gpu_id in gpu_ids]
        if job is None or job.placement is None or job.attempt != effect.attempt:
            return
        if sorted(started) != sorted(job.placement.gpu_ids):
            self.broken(f"job {job.job_id} was started on other GPUs than it was given")


class Hardware(Checker):
    """I04."""

    invariant = "I04"

    def on_placement(self, placement: Placement) -> None:
        """Look whether every GPU is there, up and open to jobs."""
        if not self.world.nodes_seen:
            self.unanswered = "no NodeJoined event tells which GPUs are up"
            return
        name = f"job {placement.job.job_id} was placed on GPU"
        for gpu_id in placement.gpu_ids:
            gpu = self.world.gpus.get(gpu_id)
            if gpu is None:
                self.broken(f"{name} {gpu_id}, which no node has")
            elif not gpu.up or gpu.node.state in _CANNOT_RUN:
                self.broken(f"{name} {gpu_id}, which is not up")
            elif gpu.node.drained:
                self.broken(f"{name} {gpu_id} of node {gpu.node.spec.node_id}, which is drained")

    def before_event(self, step: Step, stale: str | None) -> None:  # noqa: ARG002 - one signature for all
        """Look for a GPU that two nodes say they have."""
        event = step.event
        if not isinstance(event, NodeJoined) or self.world.ignored:
            return
        node_id = event.node.node_id
        named: set[str] = set()
        for spec in event.node.gpus:
            if spec.gpu_id in named:
                self.broken(f"node {node_id} names GPU {spec.gpu_id} twice")
            named.add(spec.gpu_id)
            known = self.world.gpus.get(spec.gpu_id)
            other = None if known is None else known.node
            if other is None or other.spec.node_id == node_id or other.state in _CANNOT_RUN:
                continue
            self.broken(f"GPU {spec.gpu_id} is on nodes {other.spec.node_id} and {node_id} at once")

    def on_effect(self, effect: Effect) -> None:
        """Look whether the nodes of a job that starts are awake, and have these GPUs."""
        if not isinstance(effect, StartJob) or not (self.world.nodes_seen or self.world.ours):
            return
        name = f"job {effect.job_id} was started on"
        for node_id, gpu_ids in effect.gpus:
            node = self.world.nodes.get(node_id)
            if node is None:
                self.broken(f"{name} node {node_id}, which never joined")
            elif node.state is not NodeState.AWAKE:
                self.broken(f"{name} node {node_id}, which is {node.state.value}")
            for gpu_id in gpu_ids if node is not None else ():
                gpu = self.world.gpus.get(gpu_id)
                if gpu is None or gpu.node.spec.node_id != node_id:
                    self.broken(f"{name} GPU {gpu_id}, which node {node_id} does not have")


class OneExperiment(Checker):
    """I05."""

    invariant = "I05"
    needs_records = True

    def on_placement(self, placement: Placement) -> None:
        """Look whether a GPU is locked by a window that is still open (R9)."""
        for gpu_id in placement.gpu_ids:
            gpu = self.world.gpus.get(gpu_id)
            for resident in gpu.residents if gpu is not None else ():
                if resident.windows:
                    newcomer = resident.windows[0].newcomer.job_id
                    self.broken(
                        f"job {placement.job.job_id} was placed on GPU {gpu_id}, "
                        f"which the window of job {newcomer} locks"
                    )
                    return


class Degree(Checker):
    """I06."""

    invariant = "I06"

    def on_placement(self, placement: Placement) -> None:
        """Look for residents of GPUs that were given to one job alone."""
        record: Placed | None = placement.record
        if record is None or record.shared:
            return
        for gpu_id, residents in placement.before.items():
            if residents:
                self.broken(
                    f"job {record.job_id} was given GPU {gpu_id} for itself, "
                    f"but job {residents[0]} holds it"
                )
                return

    def after_placement(self, placement: Placement) -> None:
        """Count the jobs on every GPU of the set."""
        limit = max_degree(self.header.policy, self.rules)
        for gpu in placement.job.gpus:
            count = len(gpu.residents)
            alone = [job.job_id for job in gpu.residents if job.always_alone]
            if count > limit and (placement.shared or placement.record is None):
                self.broken(f"{count} jobs hold GPU {gpu.spec.gpu_id}; at most {limit} may")
                return
            if count > 1 and alone and placement.shared:
                self.broken(f"job {alone[0]} must be alone and shares GPU {gpu.spec.gpu_id}")
                return


_PAPER_DEGREE = 4


def max_degree(policy: str, rules: Rules) -> int:
    """Give how many jobs may hold one GPU under a policy (R2, R17)."""
    if policy in {"fifo", "fifo-skip"}:
        return 1
    return max(_PAPER_DEGREE, rules.max_degree) if policy == "eaco-paper" else rules.max_degree
