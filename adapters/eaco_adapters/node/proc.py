"""What the kernel says of processes: alive or not, whose, and how to end them without a mix-up.

A process is named by its number and its start time: numbers are used again. Signals go through a
pidfd, so that they cannot reach who came after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from attrs import frozen

PROC = Path("/proc")
_ENVIRON_MAX = 1 << 20
_GONE_STATES = {b"Z", b"X"}


@frozen
class ProcessId:
    """One process, for good: `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int


def boot_id() -> str:
    """Give what is different after each boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def boot_s() -> float:
    """Give seconds since boot, sleep included. No clock change moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def stat_fields(pid: int) -> list[bytes] | None:
    """Give /proc/PID/stat from the state on: state, parent, group, session, ...; None if gone."""
    try:
        raw = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    return raw[raw.rindex(b")") + 2 :].split()


def identify(pid: int) -> ProcessId | None:
    """Name a process that is there now; None when it is gone (a zombie is)."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in _GONE_STATES:
        return None
    return ProcessId(pid, int(fields[19]))


def is_alive(process: ProcessId) -> bool:
    """Tell whether this very process still runs. A zombie does not."""
    return identify(process.pid) == process


def reap(process: ProcessId) -> bool:
    """Take a dead child of ours off the process table; nothing happens to any other process.

    Tells whether it need not be tried again.
    """
    fields = stat_fields(process.pid)
    if fields is None or int(fields[19]) != process.start_ticks or int(fields[1]) != os.getpid():
        return True
    if fields[0] not in _GONE_STATES:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return True


def send(process: ProcessId, number: int) -> None:
    """Send a signal to this very process, if it is still there."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


def find_left(mark: str, session: ProcessId | None, lock: Path) -> list[ProcessId]:
    """Find what is left of an attempt without its shim.

    Three traces: the mark in the environment, the session that its first process led, and the
    lock among the open files. None of them alone is in every process; see docs/node.md.
    """
    wanted = f"EACO_MARK={mark}".encode()
    lock_id = _file_id(lock)
    found: list[ProcessId] = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        fields = stat_fields(pid)
        if fields is None or fields[0] in _GONE_STATES:
            continue
        if (
            (session is not None and _is_in_session(fields, session))
            or _has_mark(pid, wanted)
            or (int(fields[1]) != os.getpid() and _holds(pid, lock_id))
        ):
            found.append(ProcessId(pid, int(fields[19])))
    return found


def _is_in_session(fields: list[bytes], session: ProcessId) -> bool:
    """While anyone is in a session, the kernel gives its number to no new process."""
    if int(fields[3]) != session.pid:
        return False
    leader = identify(session.pid)
    return leader is None or leader == session


def _has_mark(pid: int, wanted: bytes) -> bool:
    try:
        with (PROC / str(pid) / "environ").open("rb") as file:
            return wanted in file.read(_ENVIRON_MAX).split(b"\0")
    except OSError:
        return False


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _holds(pid: int, wanted: tuple[int, int] | None) -> bool:
    if wanted is None:
        return False
    place = PROC / str(pid) / "fd"
    try:
        files = list(place.iterdir())
    except OSError:
        return False
    return any(_file_id(file) == wanted for file in files)
