"""Predicates on the state of a scheduler after each step: I01, I03-I06, I15-I18."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.invariants._placement import (
    compatible_complaint,
    gang_complaint,
    max_degree,
    memory_complaint,
)
from eaco_core.invariants._report import Violation
from eaco_core.jobs import JobState
from eaco_core.states import HOLDING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core.snapshot import JobSnapshot, SchedulerState

_Found = tuple[str, str]


def check_state(
    state: SchedulerState, previous: SchedulerState | None = None, *, policy: str = "eaco"
) -> list[Violation]:
    """Give everything that is wrong with a state, and with the step from `previous` to it.

    Checks what a state can tell of I01, I03, I05, I06 and I15, and, given the state
    before, of I04, I16, I17 and I18. `policy` sets how many jobs may hold one GPU.
    """
    found = [
        *_memory(state),
        *_gangs(state),
        *_windows(state),
        *_degrees(state, policy),
        *_conservation(state),
        *_progress(state),
    ]
    if previous is not None:
        found += [*_hardware(state, previous), *_steps(state, previous)]
    return [Violation(i, f"{message}, at t={state.now_s:g} s", state.seq) for i, message in found]


def _memory(state: SchedulerState) -> Iterator[_Found]:
    for gpu in state.gpus.values():
        specs = [state.jobs[job_id].job for job_id in gpu.residents if job_id in state.jobs]
        complaint = memory_complaint(gpu.gpu, specs, state.rules)
        if complaint is not None:
            yield "I01", complaint


def _gangs(state: SchedulerState) -> Iterator[_Found]:
    for job_id, job in state.jobs.items():
        if job.state in HOLDING and job.state is not JobState.STOPPING:
            complaint = gang_complaint(job.job, job.gpus) or _incompatible(state, job)
            if complaint is not None:
                yield "I03", complaint
        elif job.state not in HOLDING and job.gpus:
            yield "I03", f"job {job_id} is {job.state.value} and holds GPU {job.gpus[0]}"
        for gpu_id in job.gpus:
            gpu = state.gpus.get(gpu_id)
            if gpu is not None and job_id not in gpu.residents:
                yield "I03", f"job {job_id} holds GPU {gpu_id}, which does not know it"
    yield from _residents(state)


def _incompatible(state: SchedulerState, job: JobSnapshot) -> str | None:
    for gpu_id in job.gpus:
        gpu = state.gpus.get(gpu_id)
        if gpu is None:
            return f"job {job.job.job_id} holds GPU {gpu_id}, which no node has"
        complaint = compatible_complaint(job.job, gpu.gpu, state.nodes[gpu.node_id][0])
        if complaint is not None:
            return complaint
    return None


def _residents(state: SchedulerState) -> Iterator[_Found]:
    for gpu_id, gpu in state.gpus.items():
        if len(set(gpu.residents)) < len(gpu.residents):
            yield "I03", f"GPU {gpu_id} names a resident twice"
        for job_id in gpu.residents:
            if job_id not in state.jobs or gpu_id not in state.jobs[job_id].gpus:
                yield "I03", f"GPU {gpu_id} names job {job_id}, which does not hold it"


def _hardware(state: SchedulerState, previous: SchedulerState) -> Iterator[_Found]:
    for job_id, job in state.jobs.items():
        before = previous.jobs.get(job_id)
        if before is not None and before.attempt == job.attempt:
            continue
        for gpu_id in job.gpus:
            gpu = state.gpus.get(gpu_id)
            if gpu is not None and (not gpu.up or gpu.drained):
                why = "is drained" if gpu.up else "is not up"
                yield "I04", f"job {job_id} was placed on GPU {gpu_id}, which {why}"


def _windows(state: SchedulerState) -> Iterator[_Found]:
    locks: dict[str, str] = {}
    for window in state.windows:
        for gpu_id in window.locked_gpus:
            if gpu_id in locks:
                other = locks[gpu_id]
                yield "I05", f"the windows of {other} and {window.newcomer_id} lock GPU {gpu_id}"
            locks[gpu_id] = window.newcomer_id
        for job_id in window.affected:
            for gpu_id in state.jobs[job_id].gpus:
                if gpu_id not in window.locked_gpus:
                    yield "I05", f"the window of {window.newcomer_id} leaves GPU {gpu_id} open"
    yield from _trials(state)


def _trials(state: SchedulerState) -> Iterator[_Found]:
    newcomers = {window.newcomer_id for window in state.windows}
    for gpu_id, gpu in state.gpus.items():
        trial = [
            job_id
            for job_id in gpu.residents
            if job_id in newcomers or state.jobs[job_id].state is JobState.OBSERVING
        ]
        if len(trial) > 1:
            yield "I05", f"jobs {', '.join(trial)} are on trial on GPU {gpu_id} at once"
    for job_id, job in state.jobs.items():
        if job.state is JobState.OBSERVING and job_id not in newcomers:
            yield "I05", f"job {job_id} is on trial without a window"


def _degrees(state: SchedulerState, policy: str) -> Iterator[_Found]:
    limit = max_degree(policy, state.rules)
    for gpu_id, gpu in state.gpus.items():
        if len(gpu.residents) > limit:
            yield "I06", f"{len(gpu.residents)} jobs hold GPU {gpu_id}; at most {limit} may"
        alone = [i for i in gpu.residents if i in state.jobs and _must_be_alone(state.jobs[i])]
        if len(gpu.residents) > 1 and alone:
            yield "I06", f"job {alone[0]} must be alone and shares GPU {gpu_id}"


def _must_be_alone(job: JobSnapshot) -> bool:
    # A stopping job may have lost the right to share only as it was undone.
    return job.exclusive and job.state is not JobState.STOPPING


def _conservation(state: SchedulerState) -> Iterator[_Found]:
    if state.submitted != len(state.jobs):
        yield "I15", f"{state.submitted} jobs were submitted and {len(state.jobs)} are known"
    for job_id, job in state.jobs.items():
        if job.job.job_id != job_id:
            yield "I15", f"job {job.job.job_id} is known as {job_id}"
    if len(set(state.queue)) < len(state.queue):
        yield "I15", "the queue names a job twice"
    queued = {job_id for job_id, job in state.jobs.items() if job.state is JobState.QUEUED}
    for job_id in sorted(queued ^ set(state.queue)):
        yield "I15", f"job {job_id} is in the queue or queued, but not both"


def _progress(state: SchedulerState) -> Iterator[_Found]:
    for job_id, job in state.jobs.items():
        total = job.job.epochs
        if job.epochs_done < 0 or (total is not None and job.epochs_done > total):
            yield "I17", f"job {job_id} has done {job.epochs_done} of {total} epochs"


def _steps(state: SchedulerState, previous: SchedulerState) -> Iterator[_Found]:
    if state.seq not in {previous.seq, previous.seq + 1}:
        yield "I18", f"step {state.seq} comes after step {previous.seq}"
    if state.now_s < previous.now_s:
        yield "I18", f"time goes back from {previous.now_s:g} s"
    for job_id, before in previous.jobs.items():
        job = state.jobs.get(job_id)
        if job is None:
            yield "I15", f"job {job_id} is gone"
            continue
        if before.state in TERMINAL and job != before:
            yield "I16", f"job {job_id} changed after it was {before.state.value}"
        if job.epochs_done < before.epochs_done and job.state not in _MAY_FALL_BACK:
            yield "I17", f"job {job_id} went back from epoch {before.epochs_done}"
        if job.attempt < before.attempt:
            yield "I17", f"job {job_id} went back to attempt {job.attempt}"


_MAY_FALL_BACK = frozenset({JobState.QUEUED, JobState.STOPPING, *TERMINAL})
