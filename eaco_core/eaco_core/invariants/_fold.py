"""How one step changes the world: its event first, then its records, then its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eaco_core.cluster import NodeState
from eaco_core.decisions import Evicted, Placed, Requeued, Verdict, WindowRestarted
from eaco_core.effects import KillJob, SleepNode, StartJob, StopAtEpochBoundary, WakeNode
from eaco_core.events import (
    EpochCompleted,
    GpuLost,
    GpusReleased,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobUnknown,
    NodeAsleep,
    NodeAwake,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeSampled,
    StartFailed,
    Tick,
    WakeFailed,
)
from eaco_core.invariants._replay import Gpu, Job, Node, Placement, World, must_be_alone
from eaco_core.jobs import FailureReason, JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.history import Step

JOB_EVENTS: frozenset[type[Any]] = frozenset(
    {
        JobStarted,
        StartFailed,
        EpochCompleted,
        JobStopped,
        JobFinished,
        JobFailed,
        JobUnknown,
        GpusReleased,
    }
)


# ---------------------------------------------------------------- stale or not


def stale_reason(world: World, step: Step) -> str | None:
    """Say why the event of a step can change nothing (I20), None if it can."""
    event = step.event
    kind = type(event)
    if kind not in JOB_EVENTS and kind is not JobCancelled:
        return None
    job_id: str = _event(step).job_id
    if job_id in world.ended:
        return f"job {job_id} has ended"
    job = world.jobs.get(job_id)
    if job is None:
        return None
    if isinstance(event, JobCancelled):
        return f"job {job_id} has ended" if job.then in _ENDS else None
    return _stale_job_event(job, event)


def _event(step: Step) -> Any:  # noqa: ANN401 - which event it is, the tables below know
    return step.event


_ENDS = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})


def _stale_job_event(job: Job, event: Any) -> str | None:  # noqa: ANN401 - one of JOB_EVENTS
    kind: type[Any] = event.__class__
    if event.attempt < job.attempt:
        return f"attempt {event.attempt} of job {job.job_id} is over; it is at {job.attempt}"
    if not job.gpus:
        return f"job {job.job_id} holds no GPU"
    if kind is GpusReleased:
        held = {gpu.spec.gpu_id for gpu in job.gpus}
        return None if held & set(event.gpus) else f"job {job.job_id} holds none of these GPUs"
    if job.ended:
        return f"attempt {job.attempt} of job {job.job_id} has ended"
    if kind is EpochCompleted and event.epoch <= job.epochs_done:
        return f"epoch {event.epoch} of job {job.job_id} was counted before"
    if kind in {JobStarted, StartFailed} and job.computing:
        return f"job {job.job_id} runs already"
    return None


# --------------------------------------------------------------------- events


def apply_event(world: World, step: Step) -> None:
    """Fold in what happened."""
    event = step.event
    kind = type(event)
    if kind in JOB_EVENTS:
        job = world.jobs.get(_event(step).job_id)
        if job is not None:
            _JOB_EVENTS[kind](world, job, step)
        return
    change = _EVENTS.get(kind)
    if change is not None:
        change(world, step)


def _submitted(world: World, step: Step) -> None:
    spec = _event(step).job
    world.submitted += 1
    if spec.job_id in world.jobs or spec.job_id in world.ended:
        return
    job = Job(spec, (-spec.priority, spec.submit_s, spec.job_id), must_be_alone(spec, world.rules))
    world.jobs[spec.job_id] = job
    world.enqueue(job)


def _cancelled(world: World, step: Step) -> None:
    job = world.jobs.get(_event(step).job_id)
    if job is None:
        return
    if job.gpus and not job.start_sent:
        world.release(job, tuple(gpu.spec.gpu_id for gpu in job.gpus))
    if job.gpus:
        job.state, job.then = JobState.STOPPING, JobState.CANCELLED
    else:
        world.end(job, JobState.CANCELLED)


def _started(world: World, job: Job, step: Step) -> None:
    if job.state is JobState.STARTING:
        shared = world.window_of(job) is not None
        job.state = JobState.OBSERVING if shared else JobState.SETTLED
    job.start_sent = True
    world.set_computing(job, computing=True)
    event = step.event
    told = set(event.gpus) if isinstance(event, JobStarted) else set[str]()
    if world.ours and told and told != {gpu.spec.gpu_id for gpu in job.gpus}:
        # Where it runs it cannot stay.
        job.state, job.then = JobState.STOPPING, job.then or JobState.QUEUED


def _start_failed(world: World, job: Job, step: Step) -> None:
    # No process of it exists, so all its GPUs are free at once.
    job.failure = FailureReason.EXIT if world.ours else FailureReason.NODE_LOST
    _free(world, job, step, tuple(gpu.spec.gpu_id for gpu in job.gpus))


def _epoch(world: World, job: Job, step: Step) -> None:
    event = step.event
    if isinstance(event, EpochCompleted):
        world.lost_by_s.pop(job.job_id, None)
        world.note_peak(job, event.peak_mem_bytes)
        world.count_epoch(job, event.epoch, clean=event.clean)


def _stopped(world: World, job: Job, step: Step) -> None:
    event = step.event
    if isinstance(event, JobStopped):
        job.epochs_done = max(job.epochs_done, event.checkpoint_epoch)
    _over(world, job, job.then or JobState.QUEUED)


def _finished(world: World, job: Job, step: Step) -> None:  # noqa: ARG001 - one signature for all
    _over(world, job, JobState.FINISHED)


def _failed(world: World, job: Job, step: Step) -> None:
    event = step.event
    if isinstance(event, JobFailed):
        job.failure = event.reason
        world.note_peak(job, event.peak_mem_bytes)
    job.lost = True
    _over(world, job, job.then if job.then is JobState.CANCELLED else None)


def _unknown(world: World, job: Job, step: Step) -> None:  # noqa: ARG001 - one signature for all
    job.lost = True
    if job.computing:
        known = world.lost_by_s.get(job.job_id)
        if known is None or known[0] != job.attempt:
            due_s = world.now_s + world.rules.lost_after_s
            world.lost_by_s[job.job_id] = (job.attempt, due_s)


def _over(world: World, job: Job, then: JobState | None) -> None:
    world.set_computing(job, computing=False)
    job.state, job.then, job.ended = JobState.STOPPING, then, True


def _released(world: World, job: Job, step: Step) -> None:
    event = step.event
    if isinstance(event, GpusReleased):
        _free(world, job, step, event.gpus)


def _free(world: World, job: Job, step: Step, gpu_ids: tuple[str, ...]) -> None:
    if not world.release(job, gpu_ids):
        job.state = JobState.STOPPING
        return
    end = _where_to(world, job, step)
    if end is JobState.QUEUED:
        world.enqueue(job)
    else:
        world.end(job, end)


def _where_to(world: World, job: Job, step: Step) -> JobState:
    """Tell where a job goes that holds nothing any more."""
    if world.ours and job.then not in _ENDS:
        requeued = any(isinstance(r, Requeued) and r.job_id == job.job_id for r in step.records)
        return JobState.QUEUED if requeued or job.failure is None else JobState.FAILED
    if job.then is not None:
        return job.then
    if job.failure is None:
        return JobState.QUEUED
    return JobState.FAILED if job.failure is FailureReason.EXIT else JobState.QUEUED


def _joined(world: World, step: Step) -> None:
    event = step.event
    if not isinstance(event, NodeJoined):
        return
    world.nodes_seen = True
    node = Node(event.node, event.state)
    world.nodes[event.node.node_id] = node
    world.wake_by_s.pop(event.node.node_id, None)
    for spec in event.node.gpus:
        gpu = world.gpus.get(spec.gpu_id)
        if gpu is None:
            gpu = Gpu(spec, node)
            world.gpus[spec.gpu_id] = gpu
        gpu.spec, gpu.node, gpu.up, gpu.foreign = spec, node, True, False
        node.gpus.append(gpu)


def _node_lost(world: World, step: Step) -> None:
    node = world.nodes.get(_event(step).node_id)
    if node is None:
        return
    node.state = NodeState.OUT
    world.wake_by_s.pop(node.spec.node_id, None)
    _lose(world, step, node.gpus)


def _gpu_lost(world: World, step: Step) -> None:
    gpu = world.gpus.get(_event(step).gpu_id)
    if gpu is not None:
        _lose(world, step, [gpu])


def _lose(world: World, step: Step, gpus: list[Gpu]) -> None:
    lost = tuple(gpu.spec.gpu_id for gpu in gpus)
    hit: dict[str, Job] = {}
    for gpu in gpus:
        gpu.up = False
        hit.update({job.job_id: job for job in gpu.residents})
    for job in hit.values():
        job.lost = True
        if job.then is None and job.failure is None:
            job.then = JobState.QUEUED
        _free(world, job, step, lost)


def _wake_failed(world: World, step: Step) -> None:
    node = world.nodes.get(_event(step).node_id)
    if node is not None:
        _not_woken(world, node, step)


def _not_woken(world: World, node: Node, step: Step) -> None:
    # Whatever was to start there has no process anywhere.
    node.state = NodeState.OUT
    world.wake_by_s.pop(node.spec.node_id, None)
    for job in {job.job_id: job for gpu in node.gpus for job in gpu.residents}.values():
        job.lost = True
        job.then = job.then or JobState.QUEUED
        _free(world, job, step, tuple(gpu.spec.gpu_id for gpu in job.gpus))


def _node_is(state: NodeState) -> Callable[[World, Step], None]:
    def change(world: World, step: Step) -> None:
        node = world.nodes.get(_event(step).node_id)
        if node is not None:
            node.state = state
            world.wake_by_s.pop(node.spec.node_id, None)

    return change


def _time_passed(world: World, step: Step) -> None:
    """Conclude from silence what the rules conclude from it, at a Tick and not before."""
    for node in world.silent_nodes():
        _not_woken(world, node, step)
    overdue = [i for i, (_, due_s) in world.lost_by_s.items() if due_s <= world.now_s]
    for job_id in overdue:
        attempt, _ = world.lost_by_s.pop(job_id)
        job = world.jobs.get(job_id)
        if job is not None and job.attempt == attempt and job.computing and not job.stopping:
            job.state, job.then = JobState.STOPPING, JobState.QUEUED


def _sampled(world: World, step: Step) -> None:
    event = step.event
    for reading in event.readings if isinstance(event, NodeSampled) else ():
        gpu = world.gpus.get(reading.gpu_id)
        if gpu is not None:
            gpu.foreign = reading.foreign is True


def _drained(world: World, step: Step) -> None:
    event = step.event
    if isinstance(event, NodeDrained) and event.node_id in world.nodes:
        world.nodes[event.node_id].drained = event.drained


_JOB_EVENTS: dict[type[Any], Callable[[World, Job, Step], None]] = {
    JobStarted: _started,
    StartFailed: _start_failed,
    EpochCompleted: _epoch,
    JobStopped: _stopped,
    JobFinished: _finished,
    JobFailed: _failed,
    JobUnknown: _unknown,
    GpusReleased: _released,
}
_EVENTS: dict[type[Any], Callable[[World, Step], None]] = {
    JobSubmitted: _submitted,
    JobCancelled: _cancelled,
    NodeJoined: _joined,
    NodeLost: _node_lost,
    GpuLost: _gpu_lost,
    NodeAwake: _node_is(NodeState.AWAKE),
    NodeAsleep: _node_is(NodeState.ASLEEP),
    WakeFailed: _wake_failed,
    NodeDrained: _drained,
    NodeSampled: _sampled,
    Tick: _time_passed,
}


# -------------------------------------------------------- records and effects


def placement_in(world: World, item: object) -> Placement | None:
    """Read a placement from a record, or from a command that no record explains."""
    if isinstance(item, Placed):
        job = world.jobs.get(item.job_id)
        gpu_ids, shared, record = item.gpus, item.shared, item
    elif isinstance(item, StartJob):
        job = world.jobs.get(item.job_id)
        if job is not None and job.gpus and job.attempt == item.attempt:
            return None
        gpu_ids = tuple(gpu_id for _, gpu_ids in item.gpus for gpu_id in gpu_ids)
        residents = [world.gpus[g].residents for g in gpu_ids if g in world.gpus]
        shared, record = any(residents), None
    else:
        return None
    if job is None:
        return None
    before = {
        gpu_id: tuple(other.job_id for other in world.gpus[gpu_id].residents)
        for gpu_id in gpu_ids
        if gpu_id in world.gpus
    }
    return Placement(job, item.attempt, gpu_ids, shared, world.now_s, record, before)


def apply_record(world: World, record: object) -> None:
    """Fold in a decision that is not a placement."""
    if isinstance(record, Verdict):
        _verdict(world, record)
    elif isinstance(record, WindowRestarted):
        job = world.jobs.get(record.job_id)
        window = None if job is None else world.window_of(job)
        if window is not None:
            window.restarts = record.restarts
    elif isinstance(record, Evicted):
        victim = world.jobs.get(record.victim_id)
        if victim is not None and victim.gpus:
            victim.state, victim.then = JobState.STOPPING, victim.then or JobState.QUEUED
    elif isinstance(record, Requeued):
        _requeued(world, record)


def _verdict(world: World, record: Verdict) -> None:
    job = world.jobs.get(record.job_id)
    window = None if job is None else world.window_of(job)
    if job is None:
        return
    if record.keep:
        if job.state is JobState.OBSERVING:
            job.state = JobState.SETTLED
        if window is not None:
            world.close_window(window)
        return
    job.undos += 1
    job.alone_from_now = job.alone_from_now or _misses_its_own(world, job, record)
    if job.gpus:
        job.state, job.then = JobState.STOPPING, job.then or JobState.QUEUED
    if window is not None:
        window.undone_s = world.now_s


def _misses_its_own(world: World, job: Job, record: Verdict) -> bool:
    """Tell whether a newcomer is undone because its own deadline would be missed (R10)."""
    deadline_s, left = job.spec.deadline_s, job.epochs_left()
    own = next((seen for seen in record.evidence if seen.job_id == job.job_id), None)
    if deadline_s is None or left is None or (own is not None and own.late):
        return False
    margin = world.rules.observed_margin
    own_epoch_s = None if own is None else own.epoch_s
    if own_epoch_s is not None and world.now_s + left * own_epoch_s * margin > deadline_s:
        return True
    for seen in record.evidence:
        bound_by = None if seen.late or seen.epoch_s is None else seen.deadline_s
        end_s = world.now_s + seen.epochs_left * (seen.epoch_s or 0.0) * margin
        if bound_by is not None and end_s > bound_by:
            return False
    if record.evidence and all(seen.epoch_s is not None for seen in record.evidence):
        return False
    elapsed_s = world.now_s - job.epoch_began_s if job.computing else 0.0
    return world.now_s + max(0, left - 1) * elapsed_s * margin > deadline_s


def _requeued(world: World, record: Requeued) -> None:
    job = world.jobs.get(record.job_id)
    if job is None:
        return
    job.epochs_done = record.epoch
    if job.gpus and not job.start_sent:
        world.release(job, tuple(gpu.spec.gpu_id for gpu in job.gpus))
    if not job.gpus:
        if job.state is not JobState.QUEUED:
            world.enqueue(job)
    elif job.then not in _ENDS:
        job.state, job.then = JobState.STOPPING, JobState.QUEUED


# A node that wakes at once still needs a moment to say so.
_SHORTEST_WAKE_S = 1.0


def apply_effect(world: World, effect: object) -> None:
    """Fold in a command."""
    if isinstance(effect, StartJob):
        job = world.jobs.get(effect.job_id)
        if job is not None:
            job.start_sent = True
            job.epochs_done = effect.resume_epoch
            job.lost = False
    elif isinstance(effect, (StopAtEpochBoundary, KillJob)):
        job = world.jobs.get(effect.job_id)
        if job is None or not job.gpus:
            return
        job.state = JobState.STOPPING
        job.then = job.then or (None if job.failure is not None else JobState.QUEUED)
        job.kill_sent = job.kill_sent or isinstance(effect, KillJob)
    elif isinstance(effect, (WakeNode, SleepNode)):
        node = world.nodes.get(effect.node_id)
        if node is not None:
            wakes = isinstance(effect, WakeNode)
            node.state = NodeState.WAKING if wakes else NodeState.FALLING_ASLEEP
            if wakes and world.ours:
                patience_s = world.rules.wake_timeout_factor * node.spec.wake_s
                world.wake_by_s[effect.node_id] = world.now_s + max(patience_s, _SHORTEST_WAKE_S)
