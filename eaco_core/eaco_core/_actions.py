"""Actions of a policy: checked, then carried out. A policy cannot break an invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.admission import gate_readings
from eaco_core.decisions import BoundSource, Placed, Reserved, Waits
from eaco_core.errors import ActionRefused
from eaco_core.jobs import JobState
from eaco_core.policies.base import Place, Preempt, Reserve, Wait
from eaco_core.states import RUNNING
from eaco_core.view import Reservation

if TYPE_CHECKING:
    from eaco_core._context import Context
    from eaco_core._nodes import Nodes
    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core._windows import Windows
    from eaco_core.policies.base import Action


class Actions:
    """Validates, then mutates."""

    def __init__(self, context: Context, windows: Windows, nodes: Nodes) -> None:
        self._c = context
        self._windows = windows
        self._nodes = nodes

    def apply(self, action: Action) -> None:
        """Carry out one action. Raises ActionRefused if it is not possible."""
        if isinstance(action, Place):
            self._place(action)
        elif isinstance(action, Wait):
            self._wait(action)
        elif isinstance(action, Reserve):
            self._reserve(action)
        elif isinstance(action, Preempt):
            self._preempt(action)
        else:
            raise ActionRefused(f"{action!r} is not an action", action=action)

    def _place(self, action: Place) -> None:
        job, c = action.job, self._c
        reason = self._cannot_place(action)
        if reason is not None:
            raise ActionRefused(
                f"job {job.spec.job_id} cannot be placed: {reason}",
                action=action,
                job_id=job.spec.job_id,
            )
        shared = bool(action.effects)
        gates = gate_readings(job, action.gpus, c.view) if shared else []
        payoff = action.payoff
        c.queue.remove(job, c.now_s)
        job.attempt += 1
        c.records.append(
            Placed(
                t_s=c.now_s,
                job_id=job.spec.job_id,
                attempt=job.attempt,
                gpus=tuple(gpu.spec.gpu_id for gpu in action.gpus),
                shared=shared,
                start_s=c.view.start_s(action.gpus),
                affected=tuple(effect.as_record() for effect in action.effects),
                gates=tuple(gates),
                extra_energy_j=None if payoff is None else payoff.extra_j,
                alternative_energy_j=None if payoff is None else payoff.alternative_j,
                explored=action.explored,
                refusals=action.refusals,
            )
        )
        self._end_reservation(job)
        c.move(job, JobState.STARTING)
        c.ledger.book(job, action.gpus)
        if job.spec.checkpoint_scope.value == "node":
            job.checkpoint_nodes = frozenset(gpu.node.spec.node_id for gpu in action.gpus)
        c.refresh_bounds(action.gpus)
        if shared:
            self._windows.open(job, [effect.job for effect in action.effects])
        self._nodes.start(job)

    def _cannot_place(self, action: Place) -> str | None:
        job, gpus = action.job, action.gpus
        if job.state is not JobState.QUEUED:
            return f"it is {job.state.value}"
        if len({gpu.spec.gpu_id for gpu in gpus}) != job.spec.gpus or len(gpus) != job.spec.gpus:
            return f"it asks for {job.spec.gpus} GPUs, not {len(gpus)}"
        if len({gpu.spec.gpu_type for gpu in gpus}) != 1:
            return "a gang may not mix types of GPU"
        residents: dict[str, JobRecord] = {}
        for gpu in gpus:
            reason = self._cannot_use(job, gpu)
            if reason is not None:
                return reason
            residents.update({r.spec.job_id: r for r in gpu.residents})
        named = {effect.job.spec.job_id for effect in action.effects} - {job.spec.job_id}
        if named != set(residents):
            return "the affected jobs are not those that hold its GPUs"
        if residents and action.effects[0].job is not job:
            return "the newcomer must be the first of the affected jobs"
        unbounded = any(e.estimate.source is BoundSource.NONE for e in action.effects)
        if unbounded and not action.explored:
            return "a shared placement without a bound is an exploration, and must say so"
        return None

    def _cannot_use(self, job: JobRecord, gpu: GpuRecord) -> str | None:
        name = f"GPU {gpu.spec.gpu_id}"
        if not gpu.up or not self._c.view.suits(job, gpu.node):
            return f"{name} is not up, or its node does not suit it"
        accepted = job.spec.gpu_types
        if accepted is not None and gpu.spec.gpu_type not in accepted:
            return f"{name} is of type {gpu.spec.gpu_type}"
        if not gpu.residents:
            return None
        priority = self._c.rules.exclusive_priority
        if gpu.locks:
            return f"{name} is locked by the window of job {gpu.locks[0]}"
        if len(gpu.residents) >= self._c.rules.max_degree:
            return f"{name} has {len(gpu.residents)} residents already"
        if job.exclusive(priority) or any(r.exclusive(priority) for r in gpu.residents):
            return f"a job on {name}, or the newcomer, must run alone"
        if any(r.state is JobState.STOPPING or r.unknown for r in gpu.residents):
            return f"a job on {name} is stopping or unknown"
        return None

    def _wait(self, action: Wait) -> None:
        job = action.job
        if job.state is JobState.QUEUED and job.wait_reason != action.reason:
            job.wait_reason = action.reason
            record = Waits(self._c.now_s, job.spec.job_id, action.reason, action.refusals)
            self._c.records.append(record)

    def _reserve(self, action: Reserve) -> None:
        c, job = self._c, action.job
        old = c.view.reservation
        if job.state is not JobState.QUEUED:
            raise ActionRefused(
                f"job {job.spec.job_id} is {job.state.value}: nothing to reserve",
                action=action,
                job_id=job.spec.job_id,
            )
        if old is not None:
            for gpu in old.gpus:
                gpu.reserved_for = None
        for gpu in action.gpus:
            gpu.reserved_for = job.spec.job_id
        c.view.reservation = Reservation(job, action.gpus, action.start_s, c.evidence.version)
        ids = tuple(gpu.spec.gpu_id for gpu in action.gpus)
        same = old is not None and old.job is job and old.gpus == action.gpus
        if old is None or not same or old.start_s != action.start_s:
            c.ledger.note_reservation_moved()
            c.records.append(Reserved(c.now_s, job.spec.job_id, ids, action.start_s))

    def _end_reservation(self, job: JobRecord) -> None:
        held = self._c.view.reservation
        if held is not None and held.job is job:
            for gpu in held.gpus:
                gpu.reserved_for = None
            self._c.view.reservation = None
            self._c.ledger.note_reservation_moved()
            self._c.pass_due = True

    def _preempt(self, action: Preempt) -> None:
        c, job = self._c, action.job
        if job.state not in RUNNING:
            raise ActionRefused(
                f"job {job.spec.job_id} is {job.state.value}: it cannot be preempted",
                action=action,
                job_id=job.spec.job_id,
            )
        self._windows.resident_gone(job, action.reason)
        c.move(job, JobState.STOPPING)
        job.then, job.then_reason = JobState.QUEUED, action.reason
        c.stop_at_boundary(job, action.reason)
