"""What the end of a job's first process means: finished, stopped with a checkpoint, failed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from eaco_core import events as ev
from eaco_core.jobs import FailureReason

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_adapters.node.folder import Order
    from eaco_adapters.node.reports import Marks

_TAIL_BYTES = 16384
_SIGKILL = 9

# Sentences of frameworks and drivers at the end of a log. One of them anywhere would be too little:
# many scripts catch the error, make the batch smaller and go on.
_OUT_OF_MEMORY = re.compile(
    rb"CUDA out of memory|HIP out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|cudaErrorMemoryAllocation|hipErrorOutOfMemory|RESOURCE_EXHAUSTED: Out of memory"
    rb"|^MemoryError\b",
    re.MULTILINE,
)


def ending(
    order: Order,
    exit_data: dict[str, Any],
    marks: Marks,
    *,
    stop_asked: bool,
    kill_asked: bool,
    tail: bytes,
    cgroup_oom: bool = False,
) -> ev.JobEvent | None:
    """Give the event of an end; None for a job that was killed and had nothing more to say.

    Exit code 0 after a stop was asked for is a stop, unless the job said that it is done, or never
    spoke to us at all (then it cannot have known of the stop).
    """
    code = int(exit_data["code"])
    job_id, attempt = order.job_id, order.attempt
    if code in order.launch.stop_exit_codes:
        return ev.JobStopped(0.0, job_id, attempt, resume_point(order, marks))
    if code == 0:
        if marks.is_done or not (stop_asked or kill_asked):
            return ev.JobFinished(0.0, job_id, attempt)
        if not kill_asked and not marks.is_aware:
            return ev.JobFinished(0.0, job_id, attempt)
        return (
            None if kill_asked else ev.JobStopped(0.0, job_id, attempt, resume_point(order, marks))
        )
    if kill_asked:
        return None
    number = order.launch.stop_signal_number()
    if stop_asked and number and code in {-number, 128 + number}:
        # It died of the very signal that asked: what it had saved before is what there is.
        return ev.JobStopped(0.0, job_id, attempt, resume_point(order, marks))
    reason = FailureReason.EXIT
    by_kernel = code in {-_SIGKILL, 128 + _SIGKILL} and bool(exit_data.get("oom"))
    if by_kernel or cgroup_oom or _OUT_OF_MEMORY.search(tail):
        reason = FailureReason.OUT_OF_MEMORY
    return ev.JobFailed(0.0, job_id, attempt, reason, code)


def resume_point(order: Order, marks: Marks) -> int:
    """Give after how many epochs the job can go on: its last checkpoint.

    A job that never speaks of checkpoints saves at each epoch that it reports.
    """
    if marks.checkpoint is not None:
        return marks.checkpoint
    return max(marks.epoch, order.resume_epoch)


def log_tail(folder: Path) -> bytes:
    """Give the last bytes of the job's output."""
    try:
        fd = os.open(folder / "output.log", os.O_RDONLY)
    except OSError:
        return b""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return b""
    finally:
        os.close(fd)
