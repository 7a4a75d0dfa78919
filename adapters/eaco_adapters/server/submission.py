"""From a request to a job: everything that can be wrong with it is found here, before it counts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.server.deadline import parse_deadline
from eaco_core.errors import InputError
from eaco_core.jobs import CheckpointScope, JobSpec, ShareWith, SoloProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eaco_adapters.server.api import SubmitRequest
    from eaco_predictors.profile_table import ProfileTable

_NO_EPOCHS = (
    "it always runs alone, because it does not say how many epochs it has: give --epochs, and let "
    "the program report them (docs/training_scripts.md)"
)
_NO_WORKLOAD = (
    "it always runs alone, because it does not say what it trains: give --workload, and measure "
    "that workload once with `eaco profile`"
)
_NO_PROFILE = (
    "nobody has measured the workload {workload!r} on the GPUs here, so it shares only where that "
    "was seen to go well: measure it once with `eaco profile`"
)


@frozen
class Cluster:
    """What the cluster can take: how many GPUs of each type, and what workloads do on them."""

    gpus_by_type: Mapping[str, int]
    profiles: Mapping[str, ProfileTable]


def launch_of(request: SubmitRequest) -> LaunchSpec:
    """Give how the job is started. Raises InputError with the field that is wrong."""
    return LaunchSpec(
        command=tuple(request.command),
        cwd=request.cwd,
        env=request.env,
        stop_signal=request.stop_signal,
    )


def check_program(request: SubmitRequest) -> None:
    """Raise InputError for a program or a folder that is not there on this machine."""
    if request.cwd is not None:
        if not request.cwd.startswith("/"):
            raise InputError(f"`cwd` must be the full path of a folder, not {request.cwd!r}")
        if not _is(Path.is_dir, Path(request.cwd)):
            raise InputError(f"there is no folder {request.cwd!r} to start the job in")
    program = request.command[0]
    if "/" in program:
        if request.cwd is None and not program.startswith("/"):
            raise InputError(f"give `cwd`, or the program {program!r} with its full path")
        place = Path(request.cwd or "/") / program
        found = _is(Path.is_file, place) and os.access(place, os.X_OK)
    else:
        found = _which(program, request.env.get("PATH"))
    if not found:
        raise InputError(f"there is no program {program!r} that can be run here")


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    try:
        return kind(path)
    except (OSError, ValueError):  # too long, a loop of links, no permission, a NUL byte
        return False


def _which(program: str, path: str | None) -> bool:
    try:
        return shutil.which(program, path=path) is not None
    except (OSError, ValueError):
        return False


def job_of(
    request: SubmitRequest, job_id: str, *, user: str, now_s: float, wall_s: float, cluster: Cluster
) -> JobSpec:
    """Give what the scheduler knows of the job. Raises InputError.

    `now_s`: scheduler seconds; `wall_s`: the same time on the wall clock, for the deadline.
    """
    _check_fits(request, cluster.gpus_by_type)
    deadline_s = None
    if request.deadline is not None:
        deadline_s = now_s + parse_deadline(request.deadline, wall_s)
    return JobSpec(
        job_id=job_id,
        gpus=request.gpus,
        submit_s=now_s,
        epochs=request.epochs,
        workload=request.workload,
        profiles=_profiles(request, cluster),
        deadline_s=deadline_s,
        priority=request.priority,
        exclusive=request.exclusive,
        user=user,
        group=request.group or "",
        share_with=ShareWith(request.share_with),
        gpu_types=None if request.gpu_types is None else tuple(request.gpu_types),
        node_selector=tuple(sorted(request.node_selector.items())),
        checkpoint_scope=CheckpointScope(request.checkpoints),
        max_slowdown_ratio=request.max_slowdown_ratio,
        max_restarts=request.max_restarts,
    )


def hint_for(job: JobSpec) -> str | None:
    """Tell what would let the job share, if something stands against it."""
    if job.exclusive or job.share_with is ShareWith.NONE:
        return None
    if job.epochs is None:
        return _NO_EPOCHS
    if job.workload is None:
        return _NO_WORKLOAD
    if not any(profile.util_ratio is not None for profile in job.profiles):
        return _NO_PROFILE.format(workload=job.workload)
    return None


def _check_fits(request: SubmitRequest, gpus_by_type: Mapping[str, int]) -> None:
    wanted = gpus_by_type
    if request.gpu_types is not None:
        wanted = {one: gpus_by_type[one] for one in request.gpu_types if one in gpus_by_type}
        if not wanted:
            known = ", ".join(sorted(gpus_by_type)) or "none"
            raise InputError(f"no GPU here is a {' or '.join(request.gpu_types)}; known: {known}")
    most = max(wanted.values(), default=0)
    if request.gpus > most:
        raise InputError(
            f"the job asks for {request.gpus} GPUs of one type, and the cluster has {most}"
        )


def _profiles(request: SubmitRequest, cluster: Cluster) -> tuple[SoloProfile, ...]:
    found: list[SoloProfile] = []
    for gpu_type in sorted(cluster.gpus_by_type):
        table = cluster.profiles.get(gpu_type)
        profile = None
        if table is not None and request.workload is not None:
            profile = table.profiles.get(request.workload)
        if profile is None and request.mem_bytes is not None:
            profile = SoloProfile(gpu_type)
        if profile is not None:
            if request.mem_bytes is not None:
                profile = evolve(profile, peak_mem_bytes=request.mem_bytes)
            found.append(profile)
    return tuple(found)
