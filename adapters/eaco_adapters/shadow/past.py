"""What another scheduler was told and did, folded from its history line by line.

Only events and the commands `StartJob` and `KillJob` are read; no decision of the other
scheduler is judged here (`eaco check` does that). What eaco would have known of a job is put
down when the job is submitted, so that nothing that was measured later can slip in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define, field

from eaco_adapters.shadow.known import Known, Mean
from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.decisions import Ignored
from eaco_core.errors import InputError
from eaco_core.history import EnergyLine, Header, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.history import Line
    from eaco_core.jobs import JobSpec

LONGEST_S = 1e10
"""No history is longer than three centuries: a time beyond that is a mistake in its unit."""


def _nobody() -> dict[Attempt, None]:
    return {}


@define(eq=False)
class Attempt:
    """One time that a job was given GPUs. Times in s since the first step; None = not yet.

    `held`: the GPUs, each with the time of its release. `alone_s`: the length of each
    epoch without company; `shared`: it ever had some; `company`: those that compute on its GPUs
    now. `end`: how it ended; "" = it has not.
    """

    job_id: str
    number: int
    gpus: dict[str, str]
    commanded_s: float
    resumed: bool
    epoch: int
    held: dict[str, float | None] = field(init=False)
    started_s: float | None = None
    ended_s: float | None = None
    end: str = ""
    epochs: int = 0
    last_epoch_s: float | None = None
    alone_s: list[float] = field(factory=list[float])
    shared: bool = False
    company: dict[Attempt, None] = field(factory=_nobody)
    company_since_s: float = 0.0
    util: Mean = field(factory=Mean)

    def __attrs_post_init__(self) -> None:
        self.held = dict.fromkeys(self.gpus)

    @property
    def computing(self) -> bool:
        """Whether its process runs."""
        return self.started_s is not None and self.ended_s is None

    @property
    def released_s(self) -> float | None:
        """When the last of its GPUs was free; None = it holds some."""
        times = [at_s for at_s in self.held.values() if at_s is not None]
        return max(times) if len(times) == len(self.held) else None


@define(eq=False)
class PastJob:
    """One job: what its user said, what eaco would have known of it then, what became of it."""

    spec: JobSpec
    believed: JobSpec
    submit_s: float
    line: str | None
    attempts: list[Attempt] = field(factory=list[Attempt])
    finished_s: float | None = None
    cancelled_s: float | None = None

    @property
    def attempt(self) -> Attempt | None:
        """The last attempt, if there is one."""
        return self.attempts[-1] if self.attempts else None


@define
class MeasuredEnergy:
    """Energy lines, summed: of nodes, of jobs (J), how many, and the node time they cover."""

    node_j: float = 0.0
    jobs_j: float = 0.0
    lines: int = 0
    node_s: float = 0.0


class Past:
    """Takes the lines of a history in; `take` raises InputError for what cannot be.

    `gpu_type` and `gpu_mem_bytes` hold for GPUs of which the history does not say it.
    """

    def __init__(self, gpu_type: str | None = None, gpu_mem_bytes: int | None = None) -> None:
        self._given_type = gpu_type
        self._given_mem_bytes = gpu_mem_bytes
        self.header: Header | None = None
        self.steps = 0
        self.first_s = 0.0
        self.now_s = 0.0
        self.nodes: dict[str, NodeSpec] = {}
        self.jobs: dict[str, PastJob] = {}
        self.known = Known()
        self.measured = MeasuredEnergy()
        self.lost: set[str] = set()
        self.joined_late: set[str] = set()
        self.observations: list[fx.Observation] = []
        self.start_times_s: list[float] = []
        self.named_nodes = True
        self._holders: dict[str, dict[Attempt, None]] = {}
        self._gpus: dict[str, GpuSpec] = {}
        self._places: dict[str, str] = {}
        self._anything_ran = False
        self._takers: dict[type, Callable[[Any, str | None], None]] = {
            ev.JobSubmitted: self._submitted,
            ev.JobCancelled: self._cancelled,
            ev.JobStarted: self._started,
            ev.StartFailed: self._start_failed,
            ev.EpochCompleted: self._epoch,
            ev.JobStopped: self._process_ended,
            ev.JobFinished: self._process_ended,
            ev.JobFailed: self._process_ended,
            ev.GpusReleased: self._released,
            ev.NodeJoined: self._joined,
            ev.NodeSampled: self._sampled,
            ev.NodeLost: self._node_lost,
            ev.GpuLost: self._gpu_lost,
        }

    def gpu_type(self, gpu_id: str) -> str:
        """Give the type of a GPU; "" = the history does not say."""
        spec = self._gpus.get(gpu_id)
        return "" if spec is None else spec.gpu_type

    @property
    def gpu_types(self) -> set[str]:
        """Name the types of GPU that there are."""
        return {gpu.gpu_type for node in self.nodes.values() for gpu in node.gpus}

    @property
    def mem_limits(self) -> dict[str, int]:
        """Give the largest memory of a GPU by type; types of which one is unknown are left out."""
        found: dict[str, list[int | None]] = {}
        for node in self.nodes.values():
            for gpu in node.gpus:
                found.setdefault(gpu.gpu_type, []).append(gpu.mem_bytes)
        known = {kind: [one for one in sizes if one is not None] for kind, sizes in found.items()}
        return {kind: max(known[kind]) for kind, sizes in found.items() if None not in sizes}

    def ignores_labels(self, spec: JobSpec) -> bool:
        """Tell whether the labels that a job asks for leave it too few GPUs."""
        wanted = set(spec.node_selector)
        nodes = [node for node in self.nodes.values() if wanted <= set(node.labels)]
        return sum(len(node.gpus) for node in nodes) < spec.gpus

    def take(self, line: Line, where: str | None = None) -> None:
        """Take one line in; `where` names it in errors."""
        if isinstance(line, Header):
            self.header = line
        elif isinstance(line, EnergyLine):
            self._energy(line)
        else:
            self._step(line, where)

    # ------------------------------------------------------------------- steps

    def _step(self, step: Step, where: str | None) -> None:
        if not self.steps:
            self.first_s = step.t_s
        now_s = step.t_s - self.first_s
        if now_s < self.now_s:
            raise InputError(
                f"time goes back: step {step.seq} is at {step.t_s} s, the one before at "
                f"{self.now_s + self.first_s} s",
                where=where,
            )
        if now_s > LONGEST_S:
            raise InputError(
                f"step {step.seq} is {now_s:g} s after the first one; t_s must be in seconds",
                where=where,
            )
        self.steps += 1
        self.now_s = now_s
        if not any(isinstance(record, Ignored) for record in step.records):
            taker = self._takers.get(type(step.event))
            if taker is not None:
                taker(step.event, where)
        for effect in step.effects:
            if isinstance(effect, fx.StartJob):
                self._given(effect, where)
            elif isinstance(effect, fx.KillJob):
                self._killed(effect)
            elif isinstance(effect, fx.RecordObservation):
                self.observations.append(effect.observation)

    def _energy(self, line: EnergyLine) -> None:
        self.measured.lines += 1
        self.measured.node_j += line.node_j
        self.measured.jobs_j += math.fsum(line.jobs_j.values())
        self.measured.node_s += max(0.0, line.t1_s - line.t0_s)

    # ------------------------------------------------------------------- nodes

    def _joined(self, event: ev.NodeJoined, where: str | None) -> None:
        node = event.node
        known = self.nodes.get(node.node_id)
        if known is None and self._anything_ran:
            self.joined_late.add(node.node_id)
        gpus = {gpu.gpu_id: gpu for gpu in (known.gpus if known is not None else ())}
        gpus.update({gpu.gpu_id: self._completed(gpu) for gpu in node.gpus})
        for gpu_id in gpus:
            other = self._places.get(gpu_id)
            if other is None or other == node.node_id:
                continue
            if other not in self.lost:
                raise InputError(
                    f"GPU {gpu_id} joins with node {node.node_id}, but it is on node {other}",
                    where=where,
                )
            self._take_away(gpu_id, other)
        self._gpus.update(gpus)
        self._places.update(dict.fromkeys(gpus, node.node_id))
        self.nodes[node.node_id] = attrs.evolve(node, gpus=tuple(gpus.values()))

    def _completed(self, gpu: GpuSpec) -> GpuSpec:
        if gpu.mem_bytes is not None or self._given_mem_bytes is None:
            return gpu
        return attrs.evolve(gpu, mem_bytes=self._given_mem_bytes)

    def _take_away(self, gpu_id: str, node_id: str) -> None:
        """Take a GPU from a node that was lost: it came back in another one."""
        node = self.nodes[node_id]
        rest = tuple(gpu for gpu in node.gpus if gpu.gpu_id != gpu_id)
        if rest:
            self.nodes[node_id] = attrs.evolve(node, gpus=rest)
        else:
            del self.nodes[node_id]

    def _node_lost(self, event: ev.NodeLost, _where: str | None) -> None:
        self.lost.add(event.node_id)
        node = self.nodes.get(event.node_id)
        for gpu in node.gpus if node is not None else ():
            self._lose(gpu.gpu_id)

    def _gpu_lost(self, event: ev.GpuLost, _where: str | None) -> None:
        self.lost.add(event.node_id)
        self._lose(event.gpu_id)

    def _lose(self, gpu_id: str) -> None:
        for attempt in list(self._holders.get(gpu_id, ())):
            self._end(attempt, "lost")
            self._free(attempt, [gpu_id])

    def _sampled(self, event: ev.NodeSampled, _where: str | None) -> None:
        for reading in event.readings:
            holders = self._holders.get(reading.gpu_id, {})
            if len(holders) != 1 or reading.foreign:
                continue
            (attempt,) = holders
            if not attempt.computing:
                continue
            attempt.util.add(reading.util_ratio)
            workload = self.jobs[attempt.job_id].spec.workload
            self.known.add_reading(workload, self.gpu_type(reading.gpu_id), reading)

    # -------------------------------------------------------------------- jobs

    def _submitted(self, event: ev.JobSubmitted, where: str | None) -> None:
        spec = event.job
        known = self.jobs.get(spec.job_id)
        if known is not None:
            if known.spec != spec:
                raise InputError(f"job id {spec.job_id} is used by two jobs", where=where)
            return
        believed = self.known.believed(spec)
        self.jobs[spec.job_id] = PastJob(spec, believed, self.now_s, where)

    def _cancelled(self, event: ev.JobCancelled, where: str | None) -> None:
        self._job(event.job_id, where).cancelled_s = self.now_s

    def _given(self, effect: fx.StartJob, where: str | None) -> None:
        gpus = {gpu_id: node_id for node_id, ids in effect.gpus for gpu_id in ids}
        self._hold(effect.job_id, effect.attempt, gpus, effect.resume_epoch, where)

    def _hold(
        self, job_id: str, number: int, gpus: dict[str, str], resume_epoch: int, where: str | None
    ) -> None:
        job = self._job(job_id, where)
        last = job.attempt
        if last is not None and number <= last.number:
            return  # the same command, given again
        if not gpus:
            raise InputError(f"job {job_id} starts without a GPU", where=where)
        if last is not None:  # that nobody said how it ended does not keep it alive
            self._end(last, "unknown")
            self._free(last, list(last.gpus))
        for gpu_id, node_id in gpus.items():
            self._add_gpu(gpu_id, node_id, where)
        resumed = number > 1 and resume_epoch > 0
        attempt = Attempt(job_id, number, gpus, self.now_s, resumed, resume_epoch)
        job.attempts.append(attempt)
        self._anything_ran = True
        for gpu_id in gpus:
            holders = self._holders.setdefault(gpu_id, {})
            for other in [one for one in holders if one.end == "finished"]:
                self._free(other, [gpu_id])  # it never said that it let go
            holders[attempt] = None

    def _add_gpu(self, gpu_id: str, node_id: str, where: str | None) -> None:
        """See that the GPU is there; without NodeJoined events nodes are those that are named."""
        there = self._places.get(gpu_id)
        if there == node_id:
            return
        if there is not None:
            raise InputError(
                f"a job starts on GPU {gpu_id} of node {node_id}, but it is on node {there}",
                where=where,
            )
        if self.nodes and self.named_nodes:
            raise InputError(
                f"a job starts on GPU {gpu_id} of node {node_id}, which never joined", where=where
            )
        self.named_nodes = False
        spec = GpuSpec(gpu_id, self._default_type(), self._given_mem_bytes)
        known = self.nodes.get(node_id)
        gpus = (spec,) if known is None else (*known.gpus, spec)
        self.nodes[node_id] = NodeSpec(node_id, gpus)
        self._gpus[gpu_id] = spec
        self._places[gpu_id] = node_id

    def _default_type(self) -> str:
        """Give the type of GPUs that no NodeJoined describes: as given, or as the profiles say."""
        if self._given_type is not None:
            return self._given_type
        types = {one.gpu_type for job in self.jobs.values() for one in job.spec.profiles}
        return types.pop() if len(types) == 1 else "unknown"

    def _started(self, event: ev.JobStarted, where: str | None) -> None:
        job = self._job(event.job_id, where)
        if event.gpus and (job.attempt is None or job.attempt.number < event.attempt):
            places = {gpu_id: self._places.get(gpu_id) or "node" for gpu_id in event.gpus}
            self._hold(event.job_id, event.attempt, places, 0, where)
        attempt = self._attempt(event, where)
        if attempt is None or attempt.started_s is not None or attempt.end:
            return
        attempt.started_s = attempt.last_epoch_s = attempt.company_since_s = self.now_s
        if not attempt.resumed:
            self.start_times_s.append(self.now_s - attempt.commanded_s)
        for gpu_id in attempt.gpus:
            for other in self._holders.get(gpu_id, ()):
                if other is not attempt and other.computing:
                    self._meet(attempt, other)

    def _meet(self, attempt: Attempt, other: Attempt) -> None:
        for one, its in ((attempt, other), (other, attempt)):
            if its not in one.company:
                one.company[its] = None
                one.company_since_s = self.now_s
                one.shared = True

    def _epoch(self, event: ev.EpochCompleted, where: str | None) -> None:
        job = self._job(event.job_id, where)
        attempt = self._attempt(event, where)
        if attempt is None or not attempt.computing or event.epoch <= attempt.epoch:
            return
        step = event.epoch - attempt.epoch
        began_s = attempt.last_epoch_s if attempt.last_epoch_s is not None else self.now_s
        length_s = (self.now_s - began_s) / step
        attempt.epoch, attempt.last_epoch_s = event.epoch, self.now_s
        attempt.epochs += step
        gpu_type = self.gpu_type(next(iter(attempt.gpus)))
        if event.peak_mem_bytes is not None:
            self._note_mem(attempt, gpu_type, event.peak_mem_bytes)
        if not event.clean or length_s <= 0 or began_s < attempt.company_since_s:
            return
        workload = job.spec.workload
        if not attempt.company:
            attempt.alone_s.extend([length_s] * min(step, 1000))
            self.known.add_epoch(workload, gpu_type, length_s)
        elif step == 1:
            beside = [self.jobs[one.job_id].spec.workload for one in attempt.company]
            self.known.add_shared(workload, beside, gpu_type, length_s)

    def _note_mem(self, attempt: Attempt, gpu_type: str, peak_bytes: int) -> None:
        self.known.add_mem(self.jobs[attempt.job_id].spec.workload, gpu_type, peak_bytes)

    def _start_failed(self, event: ev.StartFailed, where: str | None) -> None:
        attempt = self._attempt(event, where)
        if attempt is not None and attempt.started_s is None:
            self._end(attempt, "not started")
            self._free(attempt, list(attempt.gpus))

    def _process_ended(
        self, event: ev.JobStopped | ev.JobFinished | ev.JobFailed, where: str | None
    ) -> None:
        attempt = self._attempt(event, where)
        if attempt is None or attempt.end:
            return
        if isinstance(event, ev.JobFinished):
            self._job(event.job_id, where).finished_s = self.now_s
            self._end(attempt, "finished")
        else:
            self._end(attempt, "stopped" if isinstance(event, ev.JobStopped) else "failed")

    def _killed(self, effect: fx.KillJob) -> None:
        job = self.jobs.get(effect.job_id)
        attempt = None if job is None else job.attempt
        if attempt is not None and attempt.number == effect.attempt:
            self._end(attempt, "killed")

    def _end(self, attempt: Attempt, how: str) -> None:
        if attempt.end:
            return
        if attempt.computing:
            for other in attempt.company:
                other.company.pop(attempt, None)
                other.company_since_s = self.now_s
            attempt.company.clear()
            attempt.ended_s = self.now_s
        attempt.end = how

    def _released(self, event: ev.GpusReleased, where: str | None) -> None:
        attempt = self._attempt(event, where)
        if attempt is not None:
            if not attempt.end:
                self._end(attempt, "killed")
            self._free(attempt, event.gpus or tuple(attempt.gpus))

    def _free(self, attempt: Attempt, gpu_ids: list[str] | tuple[str, ...]) -> None:
        for gpu_id in gpu_ids:
            if gpu_id in attempt.held and attempt.held[gpu_id] is None:
                attempt.held[gpu_id] = self.now_s
                self._holders.get(gpu_id, {}).pop(attempt, None)

    def _job(self, job_id: str, where: str | None) -> PastJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise InputError(
                f"an event speaks of job {job_id}, which was never submitted", where=where
            )
        return job

    def _attempt(self, event: ev.JobEvent, where: str | None) -> Attempt | None:
        """Give the attempt that the event speaks of; None = it is an older one."""
        attempt = self._job(event.job_id, where).attempt
        if attempt is None or attempt.number < event.attempt:
            raise InputError(
                f"{type(event).__name__} speaks of attempt {event.attempt} of job {event.job_id}, "
                "to which no StartJob gave GPUs",
                where=where,
            )
        return attempt if attempt.number == event.attempt else None
