"""The folder of one attempt: made whole in one step, and the shim started in it.

attempts/<job id, quoted>@<attempt>/
  launch.json   what to start, on which GPUs, from which epoch; the mark of its processes
  exec          the same for the shim: command and environment
  lock          held, through a descriptor, by the shim and by whoever inherits it
  control       a pipe with a name: `stop`, `kill MS`
  pid.json      who runs it; written before the job's first instruction
  started.json, exit.json, gone.json   what the shim saw
  progress.jsonl, output.log           what the job wrote
  stop          there once a stop was asked for; killed: once a kill was
  reports.jsonl what the runner told
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
from typing import TYPE_CHECKING, Any

from attrs import frozen

from eaco_adapters.durable import write_file
from eaco_adapters.launch import LaunchSpec, launch_from_dict
from eaco_adapters.node import shim
from eaco_adapters.node.names import attempt_name
from eaco_adapters.node.small_files import crash_point, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHIM_CRASH_VARIABLE = "EACO_TEST_SHIM_CRASH"
_RESERVED = ("reserve-pid", "reserve-started", "reserve-exit", "reserve-gone")
_RESERVED_BYTES = 1024


@frozen
class Order:
    """What to start, as `launch.json` keeps it. `gang`: the nodes of the attempt, in order."""

    job_id: str
    attempt: int
    gpus: tuple[str, ...]
    resume_epoch: int
    launch: LaunchSpec
    gang: tuple[str, ...]
    mark: str
    checkpoint_dir: str
    cgroup: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give plain JSON data."""
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "gpus": list(self.gpus),
            "resume_epoch": self.resume_epoch,
            "launch": self.launch.to_dict(),
            "gang": list(self.gang),
            "mark": self.mark,
            "checkpoint_dir": self.checkpoint_dir,
            "cgroup": self.cgroup,
        }


def read_order(folder: Path) -> Order | None:
    """Read `launch.json`; None when the folder is no attempt."""
    data = read_json(folder / "launch.json")
    if data is None:
        return None
    return Order(
        data["job_id"],
        data["attempt"],
        tuple(data["gpus"]),
        data["resume_epoch"],
        launch_from_dict(data["launch"]),
        tuple(data["gang"]),
        data["mark"],
        data["checkpoint_dir"],
        data["cgroup"],
    )


@frozen
class ShimSettings:
    """What the shim is told besides the order."""

    env: Mapping[str, str]
    cpus: tuple[int, ...]
    note: str
    progress_bytes: int
    leftover_s: float


def new_mark() -> str:
    """Give a text that only the processes of one attempt have in their environment."""
    return secrets.token_hex(16)


def make_folder(attempts: Path, order: Order, settings: ShimSettings) -> Path:
    """Make the folder of an attempt: whole, or not at all. Raises OSError."""
    folder = attempts / attempt_name(order.job_id, order.attempt)
    beside = attempts / f".new-{order.mark}"
    try:
        beside.mkdir(mode=0o750)
        # Not waited for until the disk has it: after a power failure nothing of the attempt runs.
        write_file(beside / "launch.json", json.dumps(order.to_dict()).encode(), sync=False)
        write_file(beside / "exec", _plan(folder, order, settings), sync=False)
        for name in _RESERVED:
            write_file(beside / name, b" " * _RESERVED_BYTES, sync=False)
        write_file(beside / "lock", b"", sync=False)
        write_file(beside / "progress.jsonl", b"", sync=False)
        os.mkfifo(beside / "control", 0o600)
        crash_point("made")
        beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return folder


def _plan(folder: Path, order: Order, settings: ShimSettings) -> bytes:
    launch = order.launch
    head: dict[str, str] = {
        "cwd": launch.cwd if launch.cwd is not None else order.checkpoint_dir,
        "progress": str(folder / "progress.jsonl"),
        "cgroup": order.cgroup,
        "note": settings.note,
        "stop_signal": str(launch.stop_signal_number()),
        "log_bytes": str(launch.log_bytes_max),
        "progress_bytes": str(settings.progress_bytes),
        "leftover_s": str(settings.leftover_s),
        "grace_s": str(launch.kill_grace_s),
        "cpus": ",".join(str(cpu) for cpu in settings.cpus),
    }
    env = {
        **settings.env,
        **launch.env,
        "CUDA_VISIBLE_DEVICES": ",".join(order.gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "EACO_JOB_ID": order.job_id,
        "EACO_ATTEMPT": str(order.attempt),
        "EACO_RESUME_EPOCH": str(order.resume_epoch),
        "EACO_PROGRESS_FILE": str(folder / "progress.jsonl"),
        "EACO_STOP_FILE": str(folder / "stop"),
        "EACO_CHECKPOINT_DIR": order.checkpoint_dir,
        "EACO_GPUS": json.dumps(list(order.gpus)),
        "EACO_MARK": order.mark,
    }
    argv = launch.argv(order.gpus)
    fields = [str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    top = b"\0".join(os.fsencode(f"{name}={value}") for name, value in head.items())
    return top + b"\0\0" + b"\0".join(os.fsencode(field) for field in fields) + b"\0"


def lock_is_free(folder: Path) -> bool:
    """Tell whether nobody holds the attempt's lock. It is held only for the moment of asking."""
    fd = _take_lock(folder)
    if fd is None:
        return False
    os.close(fd)
    return True


def _take_lock(folder: Path) -> int | None:
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o640)
    except FileNotFoundError:  # the folder itself is gone
        return os.open(os.devnull, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def spawn_shim(folder: Path, notify: Path) -> int | None:
    """Start the shim; gives its process number, or None when one is there already.

    The lock is taken before the shim is there and handed to it: at no moment could two of them run.
    """
    lock = _take_lock(folder)
    if lock is None:
        return None
    crash_point("locked")
    errors = null = -1
    try:
        lock = _high(lock)
        errors = _high(os.open(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640))
        null = _high(os.open(os.devnull, os.O_RDWR))
        env = {name: os.environ[name] for name in (SHIM_CRASH_VARIABLE,) if name in os.environ}
        if (folder / "pid.json").exists():
            return None  # it has begun before, and is over
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", shim.__file__, str(folder), str(notify)],
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, errors, 2),
                (os.POSIX_SPAWN_DUP2, lock, 3),
            ],
            setsid=True,
        )
    finally:
        for fd in (lock, errors, null):
            if fd >= 0:
                os.close(fd)
    crash_point("spawned")
    return pid


def _high(fd: int) -> int:
    """Move a descriptor above those that the shim gets, so that none is overwritten on the way."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(fd)


def tell_shim(folder: Path, line: str) -> bool:
    """Hand a line to the shim; False when there is none that listens."""
    try:
        fd = os.open(folder / "control", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(fd, f"{line}\n".encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
