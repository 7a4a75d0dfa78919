"""What clients see of jobs, nodes and the scheduler, made from its state."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from eaco_adapters.server import api
from eaco_adapters.server.deadline import format_wall
from eaco_adapters.server.submission import hint_for
from eaco_core.jobs import JobState
from eaco_core.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from eaco_adapters.server.job_book import JobEntry
    from eaco_core.cluster import NodeReading
    from eaco_core.machine import SchedulerMachine
    from eaco_core.snapshot import GpuSnapshot, JobSnapshot

GROUPS: Final = {
    "open": frozenset(JobState) - TERMINAL,
    "ended": TERMINAL,
    **{state.value: frozenset({state}) for state in JobState},
}
"""What `state` in a request can be: one state, or a group of them."""


def durable_state(entry: JobEntry, state: JobState) -> JobState:
    """Give the state of a job that clients see: no end before that end is on the disk."""
    is_noted = entry.ended_wall_s is not None
    return JobState.STOPPING if state in TERMINAL and not is_noted else state


def job_view(
    entry: JobEntry, job: JobSnapshot, residents: Mapping[str, tuple[str, ...]]
) -> api.JobView:
    """Give one job; `residents`: who holds each GPU."""
    others = {one for gpu_id in job.gpus for one in residents.get(gpu_id, ())} - {entry.job_id}
    request = entry.request
    state = durable_state(entry, job.state)
    is_over = state in TERMINAL
    end_s = entry.ended_wall_s if is_over else time.time()
    deadline_s = entry.deadline_wall_s
    return api.JobView(
        job_id=entry.job_id,
        name=request.name or stem(request.command[0]),
        state=state.value,
        command=request.command,
        gpus=request.gpus,
        submitted=format_wall(entry.submitted_wall_s),
        user=entry.user or None,
        workload=request.workload,
        started=_wall(entry.started_wall_s),
        ended=_wall(entry.ended_wall_s),
        deadline=_wall(deadline_s),
        late=None if deadline_s is None or end_s is None else end_s > deadline_s,
        attempt=job.attempt,
        epochs_done=job.epochs_done,
        epochs=request.epochs,
        gpu_ids=list(job.gpus),
        sharing_with=sorted(others),
        undos=job.undos,
        why=entry.why if state is JobState.QUEUED else None,
        hint=None if is_over else hint_for(job.job),
        exit_code=entry.exit_code,
    )


def node_list(
    machine: SchedulerMachine,
    readings: Mapping[str, NodeReading],
    simulated: Collection[str],
) -> api.NodeList:
    """List nodes with their GPUs and what was last read from each."""
    gpus = machine.gpus()
    return api.NodeList(
        nodes=[
            api.NodeView(
                node_id=node_id,
                state=state.value,
                drained=all(gpus[gpu.gpu_id].drained for gpu in spec.gpus if gpu.gpu_id in gpus),
                simulated=node_id in simulated,
                gpus=[
                    _gpu_view(gpus[gpu.gpu_id], readings.get(gpu.gpu_id))
                    for gpu in spec.gpus
                    if gpu.gpu_id in gpus
                ],
            )
            for node_id, (spec, state) in machine.nodes().items()
        ]
    )


def metrics_text(machine: SchedulerMachine, faults: int, followers: int) -> str:
    """Give figures in the text format of Prometheus."""
    states = Counter(machine.states().values())
    gpus = machine.gpus().values()
    lines = ["# HELP eaco_jobs Jobs by state.", "# TYPE eaco_jobs gauge"]
    lines += [f'eaco_jobs{{state="{one.value}"}} {states[one]}' for one in JobState]
    held = sum(bool(gpu.residents) for gpu in gpus)
    shared = sum(len(gpu.residents) > 1 for gpu in gpus)
    for name, kind, what, value in (
        ("eaco_gpus", "gauge", "GPUs of the cluster.", len(gpus)),
        ("eaco_gpus_held", "gauge", "GPUs that a job holds.", held),
        ("eaco_gpus_shared", "gauge", "GPUs that several jobs hold.", shared),
        ("eaco_steps_total", "counter", "Steps of the scheduler.", machine.seq),
        ("eaco_faults_total", "counter", "Calls to the outside that failed.", faults),
        ("eaco_followers", "gauge", "Clients that follow the steps.", followers),
        ("eaco_term", "gauge", "Term of this scheduler.", machine.term),
    ):
        lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value}"]
    return "\n".join(lines) + "\n"


def stem(program: str) -> str:
    """Give the name of a program without its folders."""
    return program.rstrip("/").rpartition("/")[2] or "job"


def _gpu_view(gpu: GpuSnapshot, reading: NodeReading | None) -> api.GpuView:
    view = api.GpuView(
        gpu_id=gpu.gpu.gpu_id,
        gpu_type=gpu.gpu.gpu_type,
        mem_bytes=gpu.gpu.mem_bytes,
        up=gpu.up,
        jobs=list(gpu.residents),
    )
    if reading is not None:
        view.util_ratio = reading.util_ratio
        view.mem_used_bytes = reading.mem_used_bytes
        view.power_w = reading.power_w
        view.foreign = reading.foreign
    return view


def _wall(wall_s: float | None) -> str | None:
    return None if wall_s is None else format_wall(wall_s)
