"""The simulated world: what happens on the nodes while the scheduler decides.

The world knows no policy. It is given effects (`perform`), and says what happens
(`pop`) and when (`next_s`). Of the things that happen at one time the order is
fixed: by kind, then by job or node, then by the order in which they came to be.

A job computes from JobStarted until its process ends. Its speed is 1 / (slowdown on
its worst GPU beside those that compute there now); whenever that changes, the work
done so far is kept exactly.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from eaco_adapters.simulator import chance
from eaco_adapters.simulator.faults import Faults
from eaco_adapters.simulator.state import (
    BROKEN,
    CHECKPOINTING,
    COMPUTING,
    GONE,
    KILLED,
    STARTING,
    SimAttempt,
    SimGpu,
    SimJob,
    SimNode,
)
from eaco_core.cluster import NodeState
from eaco_core.effects import (
    KillJob,
    RecordObservation,
    SleepNode,
    StartJob,
    StopAtEpochBoundary,
    WakeNode,
)
from eaco_core.errors import InputError, InternalError
from eaco_core.events import (
    EpochCompleted,
    GpuLost,
    GpusReleased,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeAsleep,
    NodeAwake,
    NodeJoined,
    NodeLost,
)
from eaco_core.jobs import FailureReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eaco_adapters.simulator.meter import Meter
    from eaco_adapters.simulator.settings import SimSettings
    from eaco_adapters.simulator.truth import Truth
    from eaco_core.cluster import NodeSpec
    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.jobs import JobSpec

_Owner: TypeAlias = SimAttempt | SimNode | SimGpu
_Entry: TypeAlias = tuple[float, int, str, int, _Owner, int]

# Kinds of happenings, in their order at one time.
_JOINED: Final = 0
_EPOCH_ENDS: Final = 1
_STOPPED: Final = 2
_RELEASED: Final = 3
_STARTED: Final = 4
_AWAKE: Final = 5
_ASLEEP: Final = 6
_NODE_FAILS: Final = 7
_GPU_FAILS: Final = 8
_REPAIRED: Final = 9
_SERVICED: Final = 10

_MAX_POSTPONED: Final = 10  # how often a broken GPU waits for its node to be empty

_ALWAYS: Final = -1  # the token of what never becomes void


class World:
    """Jobs on nodes in virtual time. Without a `meter` no energy is booked."""

    def __init__(
        self,
        *,
        jobs: Iterable[JobSpec],
        nodes: Sequence[NodeSpec],
        truth: Truth,
        settings: SimSettings,
        meter: Meter | None = None,
    ) -> None:
        self.now_s = 0.0
        self._truth = truth
        self._settings = settings
        self._faults = Faults(settings)
        self._meter = meter
        self._dirty: dict[SimNode, None] = {}
        self._heap: list[_Entry] = []
        self._count = 0
        self._term = 0
        self.nodes = {spec.node_id: SimNode(spec) for spec in nodes}
        self._gpus = {gpu.spec.gpu_id: gpu for node in self.nodes.values() for gpu in node.gpus}
        self.jobs = {spec.job_id: SimJob(spec, _epochs(spec)) for spec in jobs}
        self._arrivals = sorted(
            (job.spec for job in self.jobs.values()), key=lambda job: (job.submit_s, job.job_id)
        )
        self._arrived = 0
        self.unfinished = len(self.jobs)
        self._solo: dict[tuple[str, str], float] = {}
        for node in self.nodes.values():
            self._at(0.0, _JOINED, node.node_id, node, _ALWAYS)
        self._happen: dict[int, Callable[[_Owner], tuple[Event, ...]]] = {
            _JOINED: self._joined,
            _EPOCH_ENDS: self._epoch_ends,
            _STOPPED: self._stopped,
            _RELEASED: self._released,
            _STARTED: self._started,
            _AWAKE: self._awake,
            _ASLEEP: self._asleep,
            _NODE_FAILS: self._node_fails,
            _GPU_FAILS: self._gpu_fails,
            _REPAIRED: self._joined,
            _SERVICED: self._serviced,
        }

    # --------------------------------------------------------------- time

    def next_s(self) -> float | None:
        """Give the time of the next happening; None = nothing will happen by itself."""
        heap = self._heap
        while heap and heap[0][5] != _ALWAYS and heap[0][5] != heap[0][4].token:
            heapq.heappop(heap)
        next_s = heap[0][0] if heap else None
        if self._arrived < len(self._arrivals):
            arrival_s = self._arrivals[self._arrived].submit_s
            if next_s is None or arrival_s < next_s:
                return arrival_s
        return next_s

    def pop(self) -> tuple[Event, ...] | None:
        """Let the next happening of the present time happen; None = there is none left.

        What it returns happened at once: nothing can come in between.
        """
        heap, now_s = self._heap, self.now_s
        while heap:
            t_s, kind, _, _, owner, token = heap[0]
            if token not in (_ALWAYS, owner.token):
                heapq.heappop(heap)
            elif t_s > now_s:
                break
            else:
                heapq.heappop(heap)
                return self._happen[kind](owner)
        if self._arrived == len(self._arrivals):
            return None
        job = self._arrivals[self._arrived]
        if job.submit_s > now_s:
            return None
        self._arrived += 1
        return (JobSubmitted(now_s, job),)

    def advance(self, t_s: float) -> None:
        """Let time pass until `t_s`; everything due before then must have happened."""
        if t_s < self.now_s:
            raise InternalError(f"the world cannot go back from {self.now_s!r} s to {t_s!r} s")
        if t_s > self.now_s:
            self.settle()
            self.now_s = t_s

    def settle(self) -> None:
        """Book the energy of the nodes that changed at the present time."""
        if self._meter is not None and self._dirty:
            self._meter.book(self._dirty, self.now_s)
        self._dirty.clear()

    def active_node_s(self) -> float:
        """Give the time during which nodes held jobs, summed over the nodes, until now."""
        return math.fsum(
            node.active_s + (self.now_s - node.active_since_s if node.held else 0.0)
            for node in self.nodes.values()
        )

    def all_asleep(self) -> bool:
        """Tell whether every node that can sleep is asleep or out."""
        quiet = (NodeState.ASLEEP, NodeState.OUT)
        return all(node.state in quiet for node in self.nodes.values() if node.spec.can_sleep)

    def fail_for_good(self, job_id: str, reason: FailureReason) -> None:
        """Count the job as ended now without success: the scheduler has given it up."""
        job = self.jobs[job_id]
        if job.end_s is None:
            job.end_s = self.now_s
            job.failure = reason
            self.unfinished -= 1

    def _at(self, t_s: float, kind: int, ident: str, owner: _Owner, token: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (t_s, kind, ident, self._count, owner, token))

    # ------------------------------------------------------------ effects

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what the scheduler asks for, as an executor and a power controller would.

        A command of an older term, or for another attempt than the present one, is
        ignored. One that cannot be (GPUs of a node that sleeps) is an InternalError.
        """
        for effect in effects:
            if isinstance(effect, RecordObservation):
                continue
            if effect.term < self._term:
                continue
            self._term = effect.term
            match effect:
                case StartJob():
                    self._start(effect)
                case StopAtEpochBoundary():
                    attempt = self._attempt(effect.job_id, effect.attempt)
                    if attempt is not None and attempt.state in (STARTING, COMPUTING):
                        attempt.stop_asked = True
                case KillJob():
                    self._kill(effect)
                case WakeNode():
                    self._wake(self._node(effect.node_id))
                case SleepNode():
                    self._sleep(self._node(effect.node_id))

    def _start(self, effect: StartJob) -> None:
        job = self.jobs.get(effect.job_id)
        if job is None:
            raise InternalError(f"asked to start job {effect.job_id}, which is not in the trace")
        if effect.attempt <= job.attempts:
            return
        if job.attempt is not None or job.end_s is not None:
            raise InternalError(f"asked to start job {effect.job_id} while it runs, or after it")
        if not 0 <= effect.resume_epoch <= job.epochs_done:
            raise InternalError(
                f"asked to resume job {effect.job_id} after {effect.resume_epoch} epochs, but it"
                f" has checkpoints up to {job.epochs_done}"
            )
        gpus = [self._usable(gpu_id, node) for node, ids in effect.gpus for gpu_id in ids]
        attempt = SimAttempt(job, effect.attempt, gpus, effect.resume_epoch)
        attempt.epoch_s = max(self._solo_s(job.spec, gpu.spec.gpu_type) for gpu in gpus)
        profile = job.spec.profile_on(gpus[0].spec.gpu_type)
        attempt.peak_mem_bytes = None if profile is None else profile.peak_mem_bytes
        job.attempt = attempt
        job.attempts = effect.attempt
        for gpu in gpus:
            gpu.held.append(attempt)
            node = gpu.node
            if not node.held:
                node.active_since_s = self.now_s
            node.held += 1
        self._touch(attempt)
        settings = self._settings
        delay_s = settings.restart_s if effect.resume_epoch else settings.start_s
        self._at(self.now_s + delay_s, _STARTED, attempt.job_id, attempt, attempt.token)

    def _kill(self, effect: KillJob) -> None:
        attempt = self._attempt(effect.job_id, effect.attempt)
        if attempt is None:
            return
        self._halt(attempt, KILLED)
        self._at(self.now_s, _RELEASED, attempt.job_id, attempt, attempt.token)

    def _wake(self, node: SimNode) -> None:
        if node.state is NodeState.ASLEEP:
            node.state = NodeState.WAKING
            node.token += 1
            self._dirty[node] = None
            self._at(self.now_s + node.spec.wake_s, _AWAKE, node.node_id, node, node.token)
        elif node.state is NodeState.AWAKE:
            self._at(self.now_s, _AWAKE, node.node_id, node, node.token)

    def _sleep(self, node: SimNode) -> None:
        if node.held:
            raise InternalError(
                f"asked to put node {node.node_id} to sleep, but jobs hold its GPUs"
            )
        if not node.spec.can_sleep:
            raise InternalError(f"asked to put node {node.node_id} to sleep, but it cannot")
        if node.state is NodeState.AWAKE:
            node.state = NodeState.ASLEEP
            node.token += 1
            self._dirty[node] = None
            self._at(self.now_s, _ASLEEP, node.node_id, node, node.token)

    def _attempt(self, job_id: str, number: int) -> SimAttempt | None:
        job = self.jobs.get(job_id)
        attempt = None if job is None else job.attempt
        return attempt if attempt is not None and attempt.number == number else None

    def _node(self, node_id: str) -> SimNode:
        node = self.nodes.get(node_id)
        if node is None:
            raise InternalError(f"node {node_id} does not exist in the simulated cluster")
        return node

    def _usable(self, gpu_id: str, node_id: str) -> SimGpu:
        gpu = self._gpus.get(gpu_id)
        if gpu is None or gpu.node.node_id != node_id:
            raise InternalError(f"GPU {gpu_id} does not exist on node {node_id}")
        if not gpu.up or gpu.node.state is not NodeState.AWAKE:
            raise InternalError(
                f"asked to start a job on GPU {gpu_id}, but node {node_id} is"
                f" {gpu.node.state.value}{'' if gpu.up else ' and the GPU is lost'}"
            )
        return gpu

    # --------------------------------------------------- what happens to jobs

    def _started(self, owner: _Owner) -> tuple[Event, ...]:
        attempt = cast("SimAttempt", owner)
        now_s, job = self.now_s, attempt.job
        attempt.state = COMPUTING
        attempt.started_s = now_s
        if job.first_start_s is None:
            job.first_start_s = now_s
        for gpu in attempt.gpus:
            gpu.computing.append(attempt)
        self._begin_epoch(attempt)
        started = JobStarted(now_s, attempt.job_id, attempt.number, attempt.gpu_ids())
        if self._change_speeds(attempt):
            self._touch(attempt)
            return (started,)
        self._halt(attempt, KILLED)
        failed = JobFailed(
            now_s,
            attempt.job_id,
            attempt.number,
            FailureReason.OUT_OF_MEMORY,
            peak_mem_bytes=attempt.peak_mem_bytes,
        )
        return (started, failed, self._release(attempt))

    def _epoch_ends(self, owner: _Owner) -> tuple[Event, ...]:
        attempt = cast("SimAttempt", owner)
        now_s, job = self.now_s, attempt.job
        attempt.epoch += 1
        job.epochs_done = max(job.epochs_done, attempt.epoch)
        completed = EpochCompleted(
            now_s,
            attempt.job_id,
            attempt.number,
            attempt.epoch,
            peak_mem_bytes=attempt.peak_mem_bytes,
        )
        if attempt.epoch >= job.epochs:
            finished = JobFinished(now_s, attempt.job_id, attempt.number)
            self._halt(attempt, GONE)
            job.end_s = now_s
            self.unfinished -= 1
            return (completed, finished, self._release(attempt))
        if attempt.stop_asked:
            self._halt(attempt, CHECKPOINTING)
            done_s = now_s + self._settings.checkpoint_s
            self._at(done_s, _STOPPED, attempt.job_id, attempt, attempt.token)
        else:
            self._begin_epoch(attempt)
            self._schedule_epoch_end(attempt)
        return (completed,)

    def _stopped(self, owner: _Owner) -> tuple[Event, ...]:
        attempt = cast("SimAttempt", owner)
        stopped = JobStopped(self.now_s, attempt.job_id, attempt.number, attempt.epoch)
        return (stopped, self._release(attempt))

    def _released(self, owner: _Owner) -> tuple[Event, ...]:
        return (self._release(cast("SimAttempt", owner)),)

    def _begin_epoch(self, attempt: SimAttempt) -> None:
        work_s = attempt.epoch_s
        sigma = self._settings.noise_sigma
        if sigma:
            seed, epoch = self._settings.seed, attempt.epoch + 1
            work_s *= chance.spread_ratio(sigma, seed, "epoch", attempt.job_id, epoch)
        attempt.left_s = work_s
        attempt.since_s = self.now_s
        attempt.due_s = self.now_s + work_s * attempt.ratio

    def _schedule_epoch_end(self, attempt: SimAttempt) -> None:
        attempt.token += 1
        self._at(attempt.due_s, _EPOCH_ENDS, attempt.job_id, attempt, attempt.token)

    def _change_speeds(self, newcomer: SimAttempt) -> bool:
        """Give everyone on the newcomer's GPUs the new speed; False = it does not fit."""
        others = newcomer.computing_beside()
        ratios = [self._ratio(attempt) for attempt in (newcomer, *others)]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) < len(ratios):
            return False
        newcomer.ratio = known[0]
        newcomer.due_s = self.now_s + newcomer.left_s * newcomer.ratio
        self._schedule_epoch_end(newcomer)
        for attempt, ratio in zip(others, known[1:], strict=True):
            self._set_speed(attempt, ratio)
        return True

    def _set_speed(self, attempt: SimAttempt, ratio: float) -> None:
        if ratio == attempt.ratio:
            return
        now_s = self.now_s
        if attempt.due_s > now_s:
            done_s = (now_s - attempt.since_s) / attempt.ratio
            attempt.left_s = max(0.0, attempt.left_s - done_s)
            attempt.since_s = now_s
            attempt.due_s = now_s + attempt.left_s * ratio
            self._schedule_epoch_end(attempt)
        # Else its epoch ends at this very time; the next one has the new speed.
        attempt.ratio = ratio

    def _ratio(self, attempt: SimAttempt) -> float | None:
        """Give the slowdown on its worst GPU; None = it cannot run beside these."""
        worst = 0.0
        last: tuple[str, ...] | None = None
        for gpu in attempt.gpus:
            if len(gpu.computing) == 1:
                worst = max(worst, 1.0)
                continue
            names = [other.workload for other in gpu.computing if other is not attempt]
            known = sorted([name for name in names if name is not None])
            if attempt.workload is None or len(known) < len(names):
                return None
            co_workloads = tuple(known)
            if co_workloads == last:
                continue
            last = co_workloads
            ratio = self._truth.ratio(attempt.workload, co_workloads)
            if ratio is None:
                return None
            worst = max(worst, ratio)
        return worst

    def _halt(self, attempt: SimAttempt, state: str) -> None:
        """End the computing of an attempt; those beside it get their new speed."""
        was_computing = attempt.state == COMPUTING
        attempt.state = state
        attempt.token += 1
        if was_computing:
            others = attempt.computing_beside()
            for gpu in attempt.gpus:
                gpu.computing.remove(attempt)
            for other in others:
                ratio = self._ratio(other)
                # What ran beside more jobs can run beside fewer, measured or not.
                self._set_speed(other, other.ratio if ratio is None else ratio)
        self._touch(attempt)

    def _release(self, attempt: SimAttempt) -> GpusReleased:
        event = GpusReleased(self.now_s, attempt.job_id, attempt.number, attempt.gpu_ids())
        for gpu in list(attempt.gpus):
            self._let_go(attempt, gpu)
        self._leave(attempt)
        return event

    def _let_go(self, attempt: SimAttempt, gpu: SimGpu) -> None:
        attempt.gpus.remove(gpu)
        gpu.held.remove(attempt)
        gpu.use = None
        node = gpu.node
        node.held -= 1
        if not node.held:
            node.active_s += self.now_s - node.active_since_s
        self._dirty[node] = None

    def _leave(self, attempt: SimAttempt) -> None:
        attempt.state = GONE
        attempt.token += 1
        if attempt.started_s is not None:
            attempt.job.run_s += self.now_s - attempt.started_s
        attempt.job.attempt = None

    def _touch(self, attempt: SimAttempt) -> None:
        for gpu in attempt.gpus:
            gpu.use = None
            self._dirty[gpu.node] = None

    def _solo_s(self, job: JobSpec, gpu_type: str) -> float:
        profile = job.profile_on(gpu_type)
        if profile is None or profile.epoch_s is None:
            raise InputError(
                f"job {job.job_id} cannot be simulated on {gpu_type}:"
                " its solo epoch time there is not known"
            )
        return profile.epoch_s

    # -------------------------------------------------- what happens to nodes

    def _joined(self, owner: _Owner) -> tuple[Event, ...]:
        node = cast("SimNode", owner)
        if node.state is NodeState.OUT:
            node.state = NodeState.AWAKE
        for gpu in node.gpus:
            gpu.up = True
            gpu.token += 1
            gpu.use = None
            self._plan_gpu_failure(gpu)
        self._plan_node_failure(node)
        self._dirty[node] = None
        return (NodeJoined(self.now_s, node.spec, node.state),)

    def _awake(self, owner: _Owner) -> tuple[Event, ...]:
        node = cast("SimNode", owner)
        node.state = NodeState.AWAKE
        self._dirty[node] = None
        return (NodeAwake(self.now_s, node.node_id),)

    def _asleep(self, owner: _Owner) -> tuple[Event, ...]:
        return (NodeAsleep(self.now_s, cast("SimNode", owner).node_id),)

    def _node_fails(self, owner: _Owner) -> tuple[Event, ...]:
        node = cast("SimNode", owner)
        if not self.unfinished or node.fails_s != self.now_s:
            return ()
        if node.state not in (NodeState.AWAKE, NodeState.WAKING):
            # What sleeps does not fail.
            self._plan_node_failure(node)
            return ()
        return self._take_out(node)

    def _take_out(self, node: SimNode) -> tuple[Event, ...]:
        """Lose the node with all that runs on it, until it is repaired."""
        node.state = NodeState.OUT
        node.fails_s = math.inf
        node.token += 1
        for gpu in node.gpus:
            gpu.token += 1
            self._lose_gpu(gpu)
        self._dirty[node] = None
        repaired_s = self.now_s + self._faults.repair_s
        self._at(repaired_s, _REPAIRED, node.node_id, node, _ALWAYS)
        return (NodeLost(self.now_s, node.node_id),)

    def _gpu_fails(self, owner: _Owner) -> tuple[Event, ...]:
        gpu = cast("SimGpu", owner)
        if not self.unfinished:
            return ()
        if gpu.node.state is not NodeState.AWAKE:
            self._plan_gpu_failure(gpu)
            return ()
        self._lose_gpu(gpu)
        gpu.node.postponed = 0
        self._plan_service(gpu.node)
        return (GpuLost(self.now_s, gpu.node.node_id, gpu.spec.gpu_id),)

    def _lose_gpu(self, gpu: SimGpu) -> None:
        """End what computes with this GPU. Of a gang, what it holds elsewhere stays held."""
        gpu.up = False
        for attempt in list(gpu.held):
            if attempt.state in (STARTING, COMPUTING, CHECKPOINTING):
                self._halt(attempt, BROKEN)
            self._let_go(attempt, gpu)
            if not attempt.gpus:
                self._leave(attempt)

    def _serviced(self, owner: _Owner) -> tuple[Event, ...]:
        """Take the node out to replace its broken GPUs, once nobody uses the others."""
        node = cast("SimNode", owner)
        broken = any(not gpu.up for gpu in node.gpus)
        if not self.unfinished or not broken or node.state is NodeState.OUT:
            return ()
        if (node.held or node.state is NodeState.WAKING) and node.postponed < _MAX_POSTPONED:
            node.postponed += 1
            self._plan_service(node)
            return ()
        return self._take_out(node)

    def _plan_service(self, node: SimNode) -> None:
        self._at(self.now_s + self._faults.repair_s, _SERVICED, node.node_id, node, _ALWAYS)

    def _plan_node_failure(self, node: SimNode) -> None:
        life_s = self._faults.node_life_s(node.node_id, node.losses)
        node.losses += 1
        if life_s is not None:
            node.fails_s = self.now_s + life_s
            self._at(node.fails_s, _NODE_FAILS, node.node_id, node, _ALWAYS)

    def _plan_gpu_failure(self, gpu: SimGpu) -> None:
        life_s = self._faults.gpu_life_s(gpu.spec.gpu_id, gpu.losses)
        gpu.losses += 1
        if life_s is not None:
            self._at(self.now_s + life_s, _GPU_FAILS, gpu.spec.gpu_id, gpu, gpu.token)


def _epochs(job: JobSpec) -> int:
    if job.epochs is None:
        raise InputError(f"job {job.job_id} cannot be simulated: its number of epochs is not known")
    return job.epochs
