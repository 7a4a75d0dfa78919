"""The shim: parent of all processes of one attempt. Outlives runner and scheduler.

Run by its path with `python -I -S shim.py FOLDER NOTIFY` and the lock of the attempt as descriptor
3; imports the standard library only, and little of it. What it does:

1. Becomes the one to whom orphans of the job fall (PR_SET_CHILD_SUBREAPER), so that nothing of
   the job leaves it, whatever it forks, detaches or closes.
2. Forks the job into a session of its own, writes `pid.json`, and only then lets it begin: if the
   shim dies before, the job never ran; once it ran, `pid.json` is there.
3. Copies the job's output to a log of limited size; obeys `control` (lines `stop` and `kill MS`).
4. Writes `exit.json` when the job's first process ended, ends after a grace what that left behind,
   and writes `gone.json` when the kernel says that no process is left (ECHILD).

Signals meant for the job do not reach it: it is in another session and ignores what it can. The
result files overwrite blocks that were reserved before, so that a full disk cannot lose them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOCK_FD = 3
_TICK_S = 0.2
_CHUNK = 1 << 18
_F_SETPIPE_SZ = 1031
_NOTE_ROOM = 1024
_NOT_IGNORED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
}

# Steps of a start; the child tells where it failed as one letter and the errno.
STEPS = {
    "w": "the working folder {cwd!r} cannot be entered",
    "a": "the job cannot be pinned to its CPU cores",
    "g": "the job cannot be put into its cgroup",
    "f": "the progress file cannot be opened",
    "x": "the program {program!r} cannot be run",
}


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        parts: list[bytes] = []
        while part := os.read(fd, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class Plan:
    """What to start, from the file `exec`: texts with a NUL byte behind each."""

    def __init__(self, raw: bytes) -> None:
        head, _, rest = raw.partition(b"\0\0")
        values = dict(item.split(b"=", 1) for item in head.split(b"\0"))
        self.cwd = os.fsdecode(values[b"cwd"])
        self.progress = os.fsdecode(values[b"progress"])
        self.cgroup = os.fsdecode(values[b"cgroup"])
        self.note = values[b"note"]
        self.stop_signal = int(values[b"stop_signal"])
        self.log_bytes = int(values[b"log_bytes"])
        self.progress_bytes = int(values[b"progress_bytes"])
        self.leftover_s = float(values[b"leftover_s"])
        self.grace_s = float(values[b"grace_s"])
        self.cpus = [int(cpu) for cpu in values[b"cpus"].split(b",") if cpu]
        fields = rest.split(b"\0")
        count = int(fields[0])
        self.argv = fields[1 : 1 + count]
        self.env = dict(item.split(b"=", 1) for item in fields[1 + count : -1])


class Log:
    """The job's output: the newest `limit` bytes, in two files; what is cut is told."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._fd = os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = 0
        self._lost = 0

    def write(self, data: bytes) -> None:
        """Take output; never waits, and leaves out what the disk will not take."""
        if len(data) > 2 * self._half:
            self._lost += len(data) - 2 * self._half
            data = data[len(data) - 2 * self._half :]
        while data:
            room = self._half - self._size
            if room <= 0:
                if not self._turn():
                    self._lost += len(data)
                    return
                continue
            self._put(data[:room])
            data = data[room:]

    def _put(self, data: bytes) -> None:
        self._size += len(data)
        try:
            done = os.write(self._fd, data)
        except OSError:  # a full disk: the job must not wait for it
            done = 0
        self._lost += len(data) - done

    def _turn(self) -> bool:
        if self._half == 0:
            return False
        with contextlib.suppress(OSError):
            self._lost += os.stat("output.log.1").st_size  # noqa: PTH116 - no pathlib in the shim
        try:
            os.replace("output.log", "output.log.1")  # noqa: PTH105 - no pathlib in the shim
            fd = os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        except OSError:
            return False
        os.close(self._fd)
        self._fd = fd
        self._size = 0
        if self._lost and self._half >= _NOTE_ROOM:
            self._put(b"[eaco: %d bytes of earlier output are left out]\n" % self._lost)
        return True


def put_result(reserve: str, name: str, text: str) -> None:
    """Write a result file in one step, into blocks that were reserved for it."""
    raw = text.encode()
    with contextlib.suppress(FileNotFoundError):
        size = os.stat(reserve).st_size  # noqa: PTH116 - no pathlib in the shim
        raw = raw[:size].ljust(size, b" ")
    fd = os.open(reserve, os.O_WRONLY | os.O_CREAT, 0o640)
    try:
        os.write(fd, raw)
    finally:
        os.close(fd)
    os.replace(reserve, name)  # noqa: PTH105 - no pathlib in the shim


def stat_fields(pid: int) -> list[bytes] | None:
    """Give the fields of /proc/PID/stat after the name: state, parent, group, session, ..."""
    try:
        raw = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    return raw[raw.rindex(b")") + 2 :].split()


def _oom_kills() -> int:
    with contextlib.suppress(OSError):
        for line in _read("/proc/vmstat").splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _quoted(text: str) -> str:
    """Give a JSON string; the json module would be half of this program's size."""
    parts = [char if " " <= char < "\x7f" and char not in '"\\' else "?" for char in text]
    return '"' + "".join(parts)[:700] + '"'


class Shim:
    """One attempt, from before its first process to after its last."""

    def __init__(self, plan: Plan, notify: str) -> None:
        self._plan = plan
        self._notify_path = notify
        self._log = Log(plan.log_bytes)
        self._leader = 0
        self._leader_over = False
        self._stop_wanted = False
        self._stopped: set[int] = set()
        self._kill_at_s: float | None = None
        self._kill_asked = False
        self._oom_before = _oom_kills()
        self._output = -1
        self._control = -1
        self._wake = -1
        self._progress = -1

    def run(self) -> None:
        """Do everything; returns when nothing of the attempt is left."""
        self._progress = os.open(self._plan.progress, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        if self._plan.note:
            self._log.write(self._plan.note + b"\n")
        self._control = os.open("control", os.O_RDWR | os.O_NONBLOCK)
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_r, False)
        os.set_blocking(wake_w, False)
        signal.signal(signal.SIGCHLD, _heard)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self._wake = wake_r
        if self._begin():
            self._watch()
        self._drain()
        put_result("reserve-gone", "gone.json", f'{{"boot_s": {_boot_s():.6f}}}')
        # The lock goes before the news, so that whoever hears it finds it free.
        os.close(_LOCK_FD)
        self._notify()

    # ---- start -----------------------------------------------------------------

    def _begin(self) -> bool:
        output_r, output_w = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(output_w, _F_SETPIPE_SZ, _CHUNK)
        go_r, go_w = os.pipe()
        error_r, error_w = os.pipe()
        parent = os.getpid()
        self._leader = os.fork()
        if self._leader == 0:
            os.close(go_w)
            self._child(output_w, go_r, error_w, parent)
        for fd in (output_w, go_r, error_w):
            os.close(fd)
        self._output = output_r
        os.set_blocking(output_r, False)
        fields = stat_fields(self._leader)
        started = int(fields[19]) if fields else 0
        own = stat_fields(parent)
        shim_started = int(own[19]) if own else 0
        boot = _read("/proc/sys/kernel/random/boot_id").decode().strip()
        put_result(
            "reserve-pid",
            "pid.json",
            f'{{"pid": {self._leader}, "start_ticks": {started}, "shim_pid": {parent},'
            f' "shim_start_ticks": {shim_started}, "boot_id": "{boot}",'
            f' "boot_s": {_boot_s():.6f}}}',
        )
        crash_point("pid-written")
        os.write(go_w, b"g")
        os.close(go_w)
        told = os.read(error_r, 64)
        os.close(error_r)
        if told:
            self._start_failed(told)
            return False
        put_result("reserve-started", "started.json", f'{{"boot_s": {_boot_s():.6f}}}')
        self._notify()
        return True

    def _start_failed(self, told: bytes) -> None:
        os.waitpid(self._leader, 0)
        step, code = chr(told[0]), int(told[1:])
        program = self._plan.argv[0].decode("ascii", "replace")
        sentence = STEPS[step].format(cwd=self._plan.cwd, program=program)
        text = _quoted(f"{sentence}: {os.strerror(code)}")
        put_result(
            "reserve-exit", "exit.json", f'{{"start_error": {text}, "boot_s": {_boot_s():.6f}}}'
        )

    def _child(self, output_w: int, go_r: int, error_w: int, parent: int) -> None:
        """Become the job. Never returns."""
        step = "x"
        try:
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent or os.read(go_r, 1) != b"g":
                os._exit(127)
            plan = self._plan
            step = "a"
            if plan.cpus:
                os.sched_setaffinity(0, plan.cpus)
            step = "g"
            if plan.cgroup:
                _write_once(f"{plan.cgroup}/cgroup.procs", b"0")
            step = "f"
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output_w, 1)
            os.dup2(output_w, 2)
            os.set_inheritable(_LOCK_FD, True)  # noqa: FBT003 - its only form
            os.set_inheritable(self._progress, True)  # noqa: FBT003 - its only form
            env = {
                **plan.env,
                b"EACO_PROGRESS_FD": b"%d" % self._progress,
            }
            step = "w"
            os.chdir(plan.cwd)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            step = "x"
            os.execvpe(plan.argv[0], plan.argv, env)  # noqa: S606 - without a shell, on purpose
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            number = (error.errno if isinstance(error, OSError) else None) or 0
            os.write(error_w, f"{step}{number}".encode())
        finally:
            os._exit(127)

    # ---- watch -----------------------------------------------------------------

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self._output, self._control, self._wake):
            poll.register(fd, select.POLLIN)
        while self._reap():
            timeout_ms = 1000
            if self._kill_at_s is not None or self._stop_wanted:
                timeout_ms = int(_TICK_S * 1000)
            for fd, _ in poll.poll(timeout_ms):
                if fd == self._output:
                    if not self._copy():
                        poll.unregister(fd)
                elif fd == self._control:
                    self._obey(os.read(fd, 4096))
                else:
                    os.read(fd, 4096)
            self._work()

    def _copy(self) -> bool:
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._log.write(data)
        return bool(data)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):  # more than a pipe holds; who is left may write for ever
                data = os.read(self._output, _CHUNK)
                if not data:
                    return
                self._log.write(data)

    def _work(self) -> None:
        if os.fstat(self._progress).st_size > 4 * self._plan.progress_bytes:
            os.ftruncate(self._progress, 0)
        if self._stop_wanted and not self._leader_over:
            self._ask_to_stop()
        if self._kill_at_s is not None and _boot_s() >= self._kill_at_s:
            self._kill_all()

    def _obey(self, raw: bytes) -> None:
        for line in raw.splitlines():
            words = line.split()
            if words[:1] == [b"stop"]:
                self._stop_wanted = True
            elif words[:1] == [b"kill"] and len(words) > 1:
                self._kill_asked = True
                self._end_all(int(words[1]) / 1000)

    def _end_all(self, grace_s: float) -> None:
        """Ask every process to end, and by force when the time is up."""
        at_s = _boot_s() + grace_s
        if self._kill_at_s is None or at_s < self._kill_at_s:
            self._kill_at_s = at_s
        if grace_s > 0:
            for pid in self._descendants():
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)  # who is stopped cannot hear TERM
        else:
            self._kill_all()

    def _kill_all(self) -> None:
        with contextlib.suppress(OSError):
            if self._plan.cgroup:
                _write_once(f"{self._plan.cgroup}/cgroup.kill", b"1")
        pids = self._descendants()
        for pid in pids:
            _send(pid, signal.SIGSTOP)  # nobody forks while the others are killed
        for pid in {*pids, *self._descendants()}:
            _send(pid, signal.SIGKILL)

    def _ask_to_stop(self) -> None:
        """Send the stop signal to those who catch it: it would kill the others."""
        number = self._plan.stop_signal
        if not number:
            return
        for pid in self._descendants():
            if pid not in self._stopped and _catches(pid, number):
                self._stopped.add(pid)
                _send(pid, number)

    def _descendants(self) -> list[int]:
        """List every process below the shim. None can leave: orphans fall to the shim."""
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - no pathlib in the shim
            if name.isdecimal():
                fields = stat_fields(int(name))
                if fields and fields[0] not in {b"Z", b"X"}:
                    children.setdefault(int(fields[1]), []).append(int(name))
        found: list[int] = []
        level = [os.getpid()]
        while level:
            level = [child for parent in level for child in children.get(parent, [])]
            found += level
        return found

    def _reap(self) -> bool:
        """Collect who ended. False when the kernel says that nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._stopped.discard(pid)
            if pid == self._leader:
                self._leader_ended(status)

    def _leader_ended(self, status: int) -> None:
        self._leader_over = True
        # What the job wrote last says why it ended, and must be in the log before exit.json.
        self._drain()
        code = os.waitstatus_to_exitcode(status)
        oom = _oom_kills() > self._oom_before
        put_result(
            "reserve-exit",
            "exit.json",
            f'{{"code": {code}, "killed": {str(self._kill_asked).lower()},'
            f' "oom": {str(oom).lower()}, "boot_s": {_boot_s():.6f}}}',
        )
        self._notify()
        if self._kill_at_s is None and self._plan.leftover_s >= 0:
            self._kill_at_s = _boot_s() + self._plan.leftover_s

    def _notify(self) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self._notify_path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(fd, b"n")
            finally:
                os.close(fd)


def _heard(number: int, frame: object) -> None:
    """Let the wake-up descriptor do the work."""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _write_once(path: str, raw: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, raw)
    finally:
        os.close(fd)


def crash_point(name: str) -> None:
    """End as by SIGKILL where a test has planted it; the runner never passes the variable on."""
    if os.environ.get("EACO_TEST_SHIM_CRASH") == name:
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, notify: str) -> int:
    """Run one attempt. The exit code tells nothing: the files do."""
    for number in signal.valid_signals() - _NOT_IGNORED:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    os.closerange(_LOCK_FD + 1, 4096)
    os.chdir(folder)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    crash_point("begun")
    Shim(Plan(_read("exec")), notify).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
