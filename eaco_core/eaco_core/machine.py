"""The scheduler: one event in, effects out, and nothing else.

How it works, in one screen.

1. `step(event)` is synchronous and deterministic. Time comes with the events; there
   is no clock, no I/O and no randomness here.
2. Facts and decisions are apart. An ordinary event says what happened; it changes
   the state, and may bring about what the rules demand in the same step: the verdict
   of a window (R10), the eviction for a deadline (R12), the requeueing of whoever ran
   on a lost node (R14). Placements are decided only at a `Tick`. So all events of one
   moment are in before anyone decides, and their order does not matter (I23).
3. When something happened that a policy should see, `next_wakeup_s` is now: feed what
   else has the same time, then `Tick(now)`. Otherwise it is when the next timer is due.
4. An event that cannot be is refused: `EventRefused`, and nothing has changed. One
   that is stale or was counted before is ignored: no effects, an `Ignored` record.
5. GPUs stay booked until `GpusReleased`: handing them on earlier would give one GPU
   to a job while another still uses its memory.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from eaco_core import events as ev
from eaco_core._actions import Actions
from eaco_core._context import Context
from eaco_core._dump import as_data, dump_state, fill, read_state
from eaco_core._lifecycle import Lifecycle
from eaco_core._nodes import Nodes
from eaco_core._outstanding import outstanding
from eaco_core._records import JobRecord
from eaco_core._watch import Watch
from eaco_core._windows import Windows
from eaco_core.decisions import Ignored
from eaco_core.errors import EacoError, EventRefused, InputError, InternalError
from eaco_core.evidence import OverflowLaw
from eaco_core.jobs import JobState
from eaco_core.policies import policy_named
from eaco_core.policies.eaco import Eaco
from eaco_core.rules import Rules
from eaco_core.snapshot import GpuSnapshot, JobSnapshot, SchedulerState, WindowSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from eaco_core._records import NodeRecord
    from eaco_core.cluster import NodeSpec, NodeState
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect, Observation
    from eaco_core.events import Event
    from eaco_core.policies.base import Policy
    from eaco_core.ports import JctPredictor, PowerModel


class SchedulerMachine:
    """Decides which jobs run where.

    `rules` default to those of the policy; `predictor` to the overflow law, with the
    rules' margin; without a `power` model R7 goes by throughput alone. `term` goes
    into every command. `history` are observations from earlier runs.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        rules: Rules | None = None,
        predictor: JctPredictor | None = None,
        power: PowerModel | None = None,
        term: int = 1,
        history: Iterable[Observation] = (),
    ) -> None:
        if isinstance(term, bool) or not isinstance(term, int) or term < 0:
            raise InputError(f"term must be a whole number of at least 0, not {term!r}")
        if rules is not None and not isinstance(rules, Rules):
            raise InputError(f"rules must be Rules, not {rules!r}")
        if policy is not None and not hasattr(policy, "decide"):
            raise InputError(f"{policy!r} is not a policy: policy_named() gives one by its name")
        self.policy: Policy = Eaco() if policy is None else policy
        self.rules = self.policy.rules if rules is None else rules
        self.given_predictor, self.power = predictor, power
        if predictor is None:
            predictor = OverflowLaw(self.rules.law_margin)
        self._c = Context(
            self.policy,
            rules=self.rules,
            predictor=predictor,
            power=power,
            term=term,
            history=history,
        )
        self._windows = Windows(self._c)
        self._watch = Watch(self._c)
        self._jobs = Lifecycle(self._c, self._windows, self._watch)
        self._nodes = Nodes(self._c, self._jobs)
        self._actions = Actions(self._c, self._windows, self._nodes)
        self._handlers = self._make_handlers()
        self._job_handlers = self._make_job_handlers()
        self._node_handlers = self._make_node_handlers()
        self._known_events = {*self._handlers, *self._job_handlers, *self._node_handlers}
        self.seq = 0
        self.records: tuple[Record, ...] = ()

    @property
    def now_s(self) -> float:
        """Give the time of the last event."""
        return self._c.now_s

    @property
    def term(self) -> int:
        """Give the term under which commands are given."""
        return self._c.term

    @property
    def next_wakeup_s(self) -> float | None:
        """Give when the machine wants a `Tick`; None = not before something happens."""
        if self._c.pass_due and len(self._c.queue):
            return self._c.now_s
        starving_s = self._c.queue.next_starving_s
        due = [t for t in (self._c.timers.next_s, starving_s) if t is not None]
        return max(min(due), self._c.now_s) if due else None

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Take in one event; give what is to be done now, in this order.

        Raises EventRefused for an event that cannot be; the state is then as before.
        """
        c = self._c
        if type(event) not in self._known_events:
            raise EventRefused(f"{event!r} is not an event", event=event)
        if not event.t_s >= c.now_s or math.isinf(event.t_s):
            raise EventRefused(
                f"{type(event).__name__} at {event.t_s!r} s comes after {c.now_s!r} s: "
                "time does not go back",
                event=event,
            )
        before_s = c.now_s
        c.effects, c.records = [], []
        c.now_s = c.view.now_s = event.t_s
        try:
            ignored = self._handle(event)
        except EacoError:
            c.now_s = c.view.now_s = before_s
            raise
        if ignored is not None:
            name = type(event).__name__
            c.records.append(Ignored(c.now_s, name, getattr(event, "job_id", None), ignored))
        self.seq += 1
        self.records = tuple(c.records)
        return tuple(c.effects)

    def dump(self) -> dict[str, Any]:
        """Give the whole state as plain JSON data (`eaco.state/1`), for `restore`."""
        return as_data(self.dump_text())

    def dump_text(self) -> str:
        """Give the same as one line of JSON. Costs time in proportion to all jobs so far."""
        return dump_state(self._c, self._windows, self.seq)

    @classmethod
    def restore(
        cls,
        data: Mapping[str, Any],
        *,
        policy: Policy | None = None,
        predictor: JctPredictor | None = None,
        power: PowerModel | None = None,
        term: int | None = None,
    ) -> SchedulerMachine:
        """Give a machine that goes on exactly as the one that gave `data` by `dump`.

        `policy`, `predictor` and `power` must be what that machine had; the rules come
        with the state. `term`: that of the new scheduler, if it is a new one. `records`
        begin empty. Raises InputError for anything that is not such a state.
        """
        form = read_state(data)
        policy = policy_named(form.policy) if policy is None else policy
        if policy.name != form.policy:
            raise InputError(f"this state is one of policy {form.policy}, not of {policy.name}")
        machine = cls(policy, rules=form.rules, predictor=predictor, power=power, term=form.term)
        fill(machine._c, machine._windows, form)
        machine.seq = form.seq
        if term is not None:
            machine.begin_term(term)
        return machine

    def begin_term(self, term: int) -> None:
        """Give all commands from now on in this term: another scheduler has taken over.

        Raises InputError for a term that has passed.
        """
        if isinstance(term, bool) or not isinstance(term, int) or term < self._c.term:
            raise InputError(f"term {term!r} does not come after term {self._c.term}")
        self._c.term = term

    def outstanding(self) -> tuple[Effect, ...]:
        """Give the commands that a new scheduler has to give again, in its term.

        What became of them is not on record; every command is idempotent.
        """
        return tuple(outstanding(self._c))

    def job(self, job_id: str) -> JobSnapshot:
        """Give one job as it is now. Raises KeyError for an unknown id."""
        return self._job_snapshot(self._c.jobs[job_id])

    def states(self) -> dict[str, JobState]:
        """Give the state of every job, in the order of submission. Cheap, unlike a snapshot."""
        return {job_id: job.state for job_id, job in self._c.jobs.items()}

    def gpus(self) -> dict[str, GpuSnapshot]:
        """Give all GPUs as they are now."""
        return {
            gpu_id: GpuSnapshot(
                gpu.spec,
                gpu.node.spec.node_id,
                tuple(job.spec.job_id for job in gpu.residents),
                gpu.up and gpu.node.state.value != "out",
                gpu.node.drained,
            )
            for gpu_id, gpu in self._c.ledger.gpus.items()
        }

    def nodes(self) -> dict[str, tuple[NodeSpec, NodeState]]:
        """Give all nodes as they are now."""
        return {i: (node.spec, node.state) for i, node in self._c.ledger.nodes.items()}

    def snapshot(self) -> SchedulerState:
        """Give the whole state as immutable data. Costs time in proportion to its size."""
        c = self._c
        windows = tuple(
            WindowSnapshot(
                window.newcomer.spec.job_id,
                tuple(job.spec.job_id for job in window.affected),
                tuple(gpu.spec.gpu_id for gpu in window.locked),
            )
            for window in self._windows
        )
        return SchedulerState(
            now_s=c.now_s,
            seq=self.seq,
            term=c.term,
            rules=self.rules,
            submitted=len(c.jobs),
            jobs=MappingProxyType({i: self._job_snapshot(job) for i, job in c.jobs.items()}),
            gpus=MappingProxyType(self.gpus()),
            nodes=MappingProxyType(self.nodes()),
            queue=tuple(job.spec.job_id for job in c.queue),
            windows=windows,
        )

    def _job_snapshot(self, job: JobRecord) -> JobSnapshot:
        return JobSnapshot(
            job.spec,
            job.state,
            job.attempt,
            tuple(gpu.spec.gpu_id for gpu in job.gpus),
            job.epochs_done,
            job.undos,
            job.exclusive(self.rules.exclusive_priority),
        )

    # ---- events ----------------------------------------------------------------

    def _make_handlers(self) -> dict[type, Callable[[Any], str | None]]:
        return {
            ev.JobSubmitted: self._submitted,
            ev.JobCancelled: self._cancelled,
            ev.GpusReleased: self._released,
            ev.NodeJoined: self._nodes.joined,
            ev.WakeFailed: self._wake_failed,
            ev.GpuLost: self._gpu_lost,
            ev.ClockAnchored: self._noted,
            ev.Tick: self._tick,
        }

    def _make_job_handlers(self) -> dict[type, Callable[[JobRecord, Any], str | None]]:
        jobs = self._jobs
        return {
            ev.JobStarted: jobs.started,
            ev.StartFailed: jobs.start_failed,
            ev.EpochCompleted: jobs.epoch_completed,
            ev.JobStopped: jobs.stopped,
            ev.JobFinished: jobs.finished,
            ev.JobFailed: jobs.failed,
            ev.JobUnknown: jobs.unknown,
        }

    def _make_node_handlers(self) -> dict[type, Callable[[NodeRecord, Any], str | None]]:
        nodes = self._nodes
        return {
            ev.NodeSampled: nodes.sampled,
            ev.NodeLost: nodes.lost,
            ev.NodeDrained: nodes.drained,
            ev.NodeAwake: nodes.awake,
            ev.NodeAsleep: nodes.asleep,
        }

    def _handle(self, event: Event) -> str | None:
        kind = type(event)
        of_job = self._job_handlers.get(kind)
        if of_job is not None:
            return self._of_job(cast("ev.JobEvent", event), of_job)
        handler = self._handlers.get(kind)
        if handler is not None:
            return handler(event)
        of_node = self._node_handlers.get(kind)
        if of_node is not None:
            return of_node(self._node(cast("ev.NodeEvent", event)), event)
        raise EventRefused(f"{event!r} is not an event", event=event)

    @staticmethod
    def _noted(_: ev.ClockAnchored) -> None:
        """Nothing depends on wall time; the history has it."""

    def _cancelled(self, event: ev.JobCancelled) -> str | None:
        return self._jobs.cancelled(self._known(event))

    def _submitted(self, event: ev.JobSubmitted) -> str | None:
        spec = event.job
        known = self._c.jobs.get(spec.job_id)
        if known is not None:
            if known.spec == spec:
                return "the job was submitted before"
            raise EventRefused(
                f"job id {spec.job_id} is taken by another job", event=event, job_id=spec.job_id
            )
        if spec.submit_s > event.t_s:
            raise EventRefused(
                f"job {spec.job_id} says that it was submitted at {spec.submit_s} s, "
                f"which is after now ({event.t_s} s)",
                event=event,
                job_id=spec.job_id,
            )
        job = JobRecord(spec, self._c.queue.kind_of(spec))
        self._c.jobs[spec.job_id] = job
        self._c.queue.add(job, self._c.now_s)
        self._c.pass_due = True
        return None

    def _known(self, event: ev.JobCancelled | ev.JobEvent) -> JobRecord:
        job = self._c.jobs.get(event.job_id)
        if job is None:
            raise EventRefused(
                f"{type(event).__name__} speaks of job {event.job_id}, which was never submitted",
                event=event,
                job_id=event.job_id,
            )
        return job

    def _of_job(
        self, event: ev.JobEvent, handle: Callable[[JobRecord, Any], str | None]
    ) -> str | None:
        job = self._known(event)
        if event.attempt > job.attempt:
            raise EventRefused(
                f"job {event.job_id} was placed {job.attempt} times; "
                f"there is no attempt {event.attempt}",
                event=event,
                job_id=event.job_id,
            )
        if event.attempt < job.attempt:
            return f"it speaks of attempt {event.attempt}, now is attempt {job.attempt}"
        return handle(job, event)

    def _released(self, event: ev.GpusReleased) -> str | None:
        ignored = self._of_job(event, self._jobs.released)
        if ignored is None:
            for gpu_id in event.gpus:
                gpu = self._c.ledger.gpus.get(gpu_id)
                if gpu is not None:
                    self._nodes.arm_sleep(gpu.node)
        return ignored

    def _node(self, event: ev.NodeEvent) -> NodeRecord:
        node = self._c.ledger.nodes.get(event.node_id)
        if node is None:
            raise EventRefused(
                f"{type(event).__name__} speaks of node {event.node_id}, which never joined",
                event=event,
            )
        return node

    def _wake_failed(self, event: ev.WakeFailed) -> str | None:
        node = self._node(event)
        if node.state.value != "waking":
            return f"the node is {node.state.value}"
        return self._nodes.out(node, f"node {event.node_id} could not be woken")

    def _gpu_lost(self, event: ev.GpuLost) -> str | None:
        node = self._node(event)
        gpu = self._c.ledger.gpus.get(event.gpu_id)
        if gpu is None or gpu.node is not node:
            raise EventRefused(f"node {event.node_id} has no GPU {event.gpu_id}", event=event)
        ignored = self._nodes.gpu_lost(gpu)
        self._nodes.arm_sleep(node)
        return ignored

    # ---- time ------------------------------------------------------------------

    def _tick(self, event: ev.Tick) -> None:
        c = self._c
        while (key := c.timers.pop_due(event.t_s)) is not None:
            self._timer(*key)
        starving_s = c.queue.next_starving_s
        if starving_s is not None and starving_s <= event.t_s:
            c.queue.starving(event.t_s)
            c.pass_due = True
        if c.pass_due:
            c.pass_due = False
            if len(c.queue):
                self._pass()

    def _timer(self, kind: str, name: str) -> None:
        c = self._c
        if kind == "sleep":
            self._nodes.fall_asleep(name)
        elif kind == "wake":
            self._nodes.out(c.ledger.nodes[name], f"node {name} did not wake in time")
        elif kind == "early":
            self._windows.time_is_up(c.jobs[name])
        elif kind == "kill":
            job = c.jobs[name]
            if job.state is JobState.STOPPING:
                c.kill(job, "it did not stop at its epoch boundary in time")
        elif kind == "lost":
            self._jobs.give_up_unknown(c.jobs[name])
        elif kind == "relook":
            for cls in c.queue.classes:
                if cls.timely:
                    cls.looked_seq, cls.timely = 0, False
                    c.pass_due = True
        else:
            raise InternalError(f"there is no timer {kind!r}")

    def _pass(self) -> None:
        c = self._c
        for action in self.policy.decide(c.view):
            self._actions.apply(action)
        if any(cls.timely for cls in c.queue.classes) and ("relook", "") not in c.timers:
            c.timers.set(("relook", ""), c.now_s + self.rules.relook_s)
