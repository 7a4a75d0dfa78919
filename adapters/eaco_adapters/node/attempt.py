"""One attempt on this node: its folder, what happened to it, and the proof that nothing is left.

All methods block for a moment (files, /proc); the runner calls them on one thread, in turn.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from eaco_adapters.durable import write_file
from eaco_adapters.node import cgroup, proc
from eaco_adapters.node.endings import ending, log_tail
from eaco_adapters.node.folder import lock_is_free, read_order, spawn_shim, tell_shim
from eaco_adapters.node.progress_file import read_lines
from eaco_adapters.node.reports import ReportFile
from eaco_adapters.node.small_files import crash_point, read_json, read_number
from eaco_core import events as ev
from eaco_core.errors import InputError
from eaco_core.jobs import FailureReason

if TYPE_CHECKING:
    from typing import Any

    from eaco_adapters.node.folder import Order
    from eaco_adapters.node.progress_file import Line

# More lines than this at once are told as their last one: a flood is no progress.
_BURST = 64
_ENDS = (ev.JobFinished, ev.JobStopped, ev.JobFailed)
_LAST = (ev.GpusReleased, ev.StartFailed)
# A shim that is there but does nothing (stopped, hung) is ended this long after a kill was due.
_SHIM_LATE_S = 3.0


class Attempt:
    """One attempt. `is_over`: nothing of it is left, and that was told."""

    def __init__(self, folder: Path, order: Order, boot: str, progress_bytes: int) -> None:
        self.folder = folder
        self.order = order
        self.reports = ReportFile(folder, boot)
        self._boot = boot
        self._progress_bytes = progress_bytes
        self._shim: proc.ProcessId | None = None
        self._leader: proc.ProcessId | None = None
        self._begun_boot: str | None = None
        self._is_attached = False  # it began before this runner did
        self._kill_due_s: float | None = None
        self._stop_told = False
        self._kill_told = False
        self._seen_left: set[proc.ProcessId] = set()

    @classmethod
    def load(cls, folder: Path, boot: str, progress_bytes: int) -> Attempt | None:
        """Read a folder that an earlier runner left; None when it is no attempt."""
        try:
            order = read_order(folder)
        except (KeyError, TypeError, InputError):
            order = None
        if order is None:
            return None
        attempt = cls(folder, order, boot, progress_bytes)
        attempt.reports.load(order.job_id, order.attempt)
        attempt._is_attached = True
        return attempt

    @property
    def is_over(self) -> bool:
        """Whether its GPUs are proven free."""
        return self.reports.has(*_LAST)

    @property
    def is_answered(self) -> bool:
        """Whether the start has an outcome."""
        return self.is_over or self.reports.has(ev.JobStarted)

    @property
    def has_begun(self) -> bool:
        """Whether the job may have run. Before that, a start may be given again."""
        return self._read_pid() or self.is_over

    @property
    def shim(self) -> proc.ProcessId | None:
        """The process that watches over it, if one was started."""
        return self._shim

    def is_begun_or_begins(self) -> bool:
        """Tell whether a shim is at work or was; False: nothing ran and nothing will."""
        return self.has_begun or not lock_is_free(self.folder)

    # ---- commands --------------------------------------------------------------

    def spawn(self, notify: Path) -> None:
        """Start the shim, unless one is at work or the attempt is over."""
        if self.has_begun:
            return
        pid = spawn_shim(self.folder, notify)
        if pid is not None:
            self._shim = proc.identify(pid)
            self._is_attached = False

    def ask_to_stop(self) -> None:
        """Leave the wish in the folder, and tell the shim."""
        problem: OSError | None = None
        try:
            write_file(self.folder / "stop", b"", sync=False)
        except OSError as error:  # a full disk: the shim can still be told
            problem = error
        crash_point("stop-written")
        self._stop_told = tell_shim(self.folder, "stop")
        if problem is not None and not self._stop_told:
            raise problem

    def kill(self, grace_s: float) -> None:
        """Begin to end it; `poll` sees it through."""
        if self.is_over:
            return
        grace_ms = max(0, int(grace_s * 1000))
        with contextlib.suppress(OSError):  # on a full disk the shim is told all the same
            write_file(self.folder / "killed", b"%d" % grace_ms, sync=False)
        crash_point("kill-written")
        if not self.is_begun_or_begins():
            self.reports.add(self._released(), at_s=proc.boot_s())
            return
        self._kill_told = tell_shim(self.folder, f"kill {grace_ms}")
        due_s = proc.boot_s() + grace_s + _SHIM_LATE_S
        self._kill_due_s = due_s if self._kill_due_s is None else min(due_s, self._kill_due_s)

    def remove(self, logs: Path) -> None:
        """Drop the folder; the output goes to `logs`."""
        if self.order.cgroup:
            cgroup.remove(Path(self.order.cgroup))
        for name, suffix in (("output.log.1", ".1.log"), ("output.log", ".log")):
            source = self.folder / name
            if source.exists():
                logs.mkdir(parents=True, exist_ok=True)
                source.replace(logs / f"{self.order.attempt}{suffix}")
        gone = self.folder.with_name(f".gone-{self.order.mark}")
        self.folder.rename(gone)
        crash_point("forget-renamed")
        shutil.rmtree(gone, ignore_errors=True)

    # ---- what happened ---------------------------------------------------------

    def poll(self) -> None:
        """Look at the files and processes, and add a report for what is new."""
        if self.is_over:
            return
        if not self._read_pid():
            if (self.folder / "killed").exists() and not self.is_begun_or_begins():
                self.reports.add(self._released(), at_s=proc.boot_s())
            return
        self._tell_again()
        exit_data = read_json(self.folder / "exit.json")
        if exit_data is not None and "start_error" in exit_data:
            self._start_failed(str(exit_data["start_error"]), float(exit_data["boot_s"]))
            return
        if not self.reports.has(ev.JobStarted):
            started = read_json(self.folder / "started.json")
            if started is not None:
                gpus = self.order.gpus
                event = ev.JobStarted(0.0, self.order.job_id, self.order.attempt, gpus)
                self._add(event, float(started["boot_s"]))
        if self.reports.has(ev.JobStarted):
            self._read_progress(final=exit_data is not None)
            self._look_for_silence(exit_data)
        if exit_data is not None and not self.reports.has(*_ENDS):
            self._ended(exit_data)
        self._look_for_the_end(exit_data)
        self._is_attached = False

    def _read_pid(self) -> bool:
        if self._leader is not None:
            return True
        data = read_json(self.folder / "pid.json")
        if data is None:
            return False
        self._leader = proc.ProcessId(data["pid"], data["start_ticks"])
        self._shim = proc.ProcessId(data["shim_pid"], data["shim_start_ticks"])
        self._begun_boot = str(data["boot_id"])
        return True

    def _tell_again(self) -> None:
        """Tell the shim what it may not have heard: it was starting, or a runner died half way."""
        if not self._stop_told and (self.folder / "stop").exists():
            self._stop_told = tell_shim(self.folder, "stop")
        if not self._kill_told and (self.folder / "killed").exists():
            grace_ms = read_number(self.folder / "killed") or 0
            self._kill_told = tell_shim(self.folder, f"kill {grace_ms}")
            if self._kill_due_s is None:
                self._kill_due_s = proc.boot_s() + grace_ms / 1000 + _SHIM_LATE_S

    def _add(self, event: ev.JobEvent, at_s: float) -> None:
        self.reports.add(event, at_s=at_s, boot=self._begun_boot)
        crash_point("reported")
        if isinstance(event, _LAST) and self.order.cgroup:
            cgroup.remove(Path(self.order.cgroup))

    def _start_failed(self, reason: str, at_s: float) -> None:
        gone = (self.folder / "gone.json").exists() or not self._shim_is_there()
        if gone and self._is_free():
            event = ev.StartFailed(0.0, self.order.job_id, self.order.attempt, reason)
            self._add(event, at_s)

    def _read_progress(self, *, final: bool) -> None:
        more = True
        while more:
            marks = self.reports.marks
            read = read_lines(self.folder / "progress.jsonl", marks.offset, final=final)
            more = read.more
            if read.offset == marks.offset and not read.lines and not read.bad:
                break
            self.reports.move(offset=read.offset, bad_lines=marks.bad_lines + read.bad)
            self._take(read.lines)
        path = self.folder / "progress.jsonl"
        offset = self.reports.marks.offset
        if offset > self._progress_bytes and not final:
            os.truncate(path, 0)
            self.reports.move(offset=0)
            self.reports.keep_marks()

    def _take(self, lines: tuple[Line, ...]) -> None:
        if lines:
            self.reports.move(is_aware=True)
        epochs = [line for line in lines if line.kind == "epoch"]
        flood = len(epochs) > _BURST
        for line in lines:
            marks = self.reports.marks
            if line.kind == "done":
                self.reports.move(is_done=True)
            elif line.kind == "checkpoint":
                self.reports.move(checkpoint=line.epoch)
            elif line.kind == "epoch" and line.epoch > marks.epoch:
                if flood and line is not epochs[-1]:
                    continue
                self.reports.move(epoch=line.epoch)
                self._epoch(line, flood=flood)

    def _epoch(self, line: Line, *, flood: bool) -> None:
        now_s = proc.boot_s()
        at_s = line.at_s if line.at_s is not None and 0 <= line.at_s <= now_s else None
        # Without a stamp, the time of a line that waited for a runner is not known.
        clean = line.clean and not flood and not (at_s is None and self._is_attached)
        event = ev.EpochCompleted(
            0.0,
            self.order.job_id,
            self.order.attempt,
            line.epoch,
            clean,
            line.peak_mem_bytes,
        )
        self._add(event, now_s if at_s is None else at_s)

    def _look_for_silence(self, exit_data: dict[str, Any] | None) -> None:
        limit_s = self.order.launch.first_event_timeout_s
        if limit_s is None or exit_data is not None or self.reports.marks.is_aware:
            return
        if self._begun_boot != self._boot or self.reports.has(ev.JobUnknown):
            return
        started = next(k for k in self.reports.kept if isinstance(k.event, ev.JobStarted))
        if proc.boot_s() - started.at_s > limit_s:
            event = ev.JobUnknown(0.0, self.order.job_id, self.order.attempt)
            self._add(event, proc.boot_s())

    def _ended(self, exit_data: dict[str, Any]) -> None:
        place = self.order.cgroup
        event = ending(
            self.order,
            exit_data,
            self.reports.marks,
            stop_asked=(self.folder / "stop").exists(),
            kill_asked=bool(exit_data.get("killed")),
            tail=log_tail(self.folder),
            cgroup_oom=bool(place) and cgroup.oom_kills(Path(place)) > 0,
        )
        if event is not None:
            self._add(event, float(exit_data["boot_s"]))

    # ---- the proof -------------------------------------------------------------

    def _look_for_the_end(self, exit_data: dict[str, Any] | None) -> None:
        gone = read_json(self.folder / "gone.json")
        if gone is None and self._shim_is_there():
            if self._kill_due_s is not None and proc.boot_s() > self._kill_due_s:
                assert self._shim is not None  # noqa: S101 - _shim_is_there has looked
                proc.send(self._shim, signal.SIGKILL)
            return
        if not self._is_free():
            self._kill_left()
            return
        gone = gone or read_json(self.folder / "gone.json")
        if exit_data is None and (self.folder / "exit.json").exists():
            return  # it ended while we looked: first what it wrote, then its end, at the next poll
        at_s = proc.boot_s() if gone is None else float(gone["boot_s"])
        if exit_data is None and not (self.folder / "killed").exists():
            if not self.reports.has(ev.JobStarted):
                why = "the process that watches over the job was killed before it began"
                event = ev.StartFailed(0.0, self.order.job_id, self.order.attempt, why)
                self._add(event, at_s)
                return
            lost = FailureReason.NODE_LOST
            self._add(ev.JobFailed(0.0, self.order.job_id, self.order.attempt, lost), at_s)
        self._add(self._released(), at_s)

    def _released(self) -> ev.GpusReleased:
        return ev.GpusReleased(0.0, self.order.job_id, self.order.attempt, self.order.gpus)

    def _shim_is_there(self) -> bool:
        if self._begun_boot not in {None, self._boot}:
            return False
        if self._shim is None:
            return False
        if proc.is_alive(self._shim):
            return True
        proc.reap(self._shim)
        return False

    def _is_free(self) -> bool:
        """Tell whether it is proven that no process of the attempt is left."""
        if self._begun_boot not in {None, self._boot}:
            return True  # no process outlives its boot
        if self.order.cgroup and cgroup.is_populated(Path(self.order.cgroup)):
            return False
        if not lock_is_free(self.folder):
            return False
        if (self.folder / "gone.json").exists():
            return True  # the shim heard from the kernel that it has no descendant
        return not self._left()

    def _left(self) -> list[proc.ProcessId]:
        return proc.find_left(self.order.mark, self._leader, self.folder / "lock")

    def _kill_left(self) -> None:
        """End what the shim can no longer end."""
        if self.order.cgroup:
            cgroup.end_all(Path(self.order.cgroup))
        left = self._left()
        if self._shim is not None and self._shim in left and (self.folder / "gone.json").exists():
            left.remove(self._shim)  # it is about to end by itself
        # Only who was seen twice: between fork and exec a stranger may look like one of ours.
        certain = [process for process in left if process in self._seen_left]
        self._seen_left = set(left)
        for process in certain:
            proc.send(process, signal.SIGSTOP)
        for process in certain:
            proc.send(process, signal.SIGKILL)
