"""What a runner tells of an attempt: numbered events, kept in the attempt's folder.

Each report is a line of `reports.jsonl`, written before it is given out, so that a new runner
tells the same again under the same numbers. The line also holds how far the progress file was read.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from eaco_adapters.node import proc
from eaco_core import events as ev
from eaco_core.jobs import FailureReason

if TYPE_CHECKING:
    from pathlib import Path

REPORTS = "reports.jsonl"


@frozen
class RunnerReport:
    """One event of an attempt on one node.

    - `seq`: counts from 1 in each attempt, the same after a restart of the runner.
    - `age_s`: seconds since it happened, by the node's own clock; the event's `t_s` is 0.
    - `gang`: the nodes of the whole attempt, as given at its start.
    """

    job_id: str
    attempt: int
    seq: int
    age_s: float
    event: ev.JobEvent
    gang: tuple[str, ...] = ()


@frozen
class Kept:
    """One report as it is kept: `at_s` since the boot `boot`, `wall_s` for other boots."""

    seq: int
    event: ev.JobEvent
    at_s: float
    boot: str
    wall_s: float

    def age_s(self, boot: str) -> float:
        """Give how long ago it happened. Across a reboot only the wall clock can tell."""
        if boot == self.boot:
            return max(0.0, proc.boot_s() - self.at_s)
        return max(0.0, time.time() - self.wall_s)


@frozen
class Marks:
    """Where the reading of an attempt stands, together with its reports."""

    offset: int = 0
    epoch: int = 0
    checkpoint: int | None = None
    is_aware: bool = False  # a line of progress was seen
    is_done: bool = False  # the job said that all its work is done
    bad_lines: int = 0


class ReportFile:
    """The reports of one attempt, in memory and on disk."""

    def __init__(self, folder: Path, boot: str) -> None:
        self._path = folder / REPORTS
        self._boot = boot
        self._unwritten = b""
        self.kept: list[Kept] = []
        self.marks = Marks()
        self._kinds: set[type[ev.JobEvent]] = set()

    def load(self, job_id: str, attempt: int) -> None:
        """Read what an earlier runner wrote; a torn last line was never given out."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            os.truncate(self._path, len(whole))
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                data = json.loads(line)
                self.marks = Marks(**data["marks"])
                if "seq" in data:
                    event = _event(data["event"], job_id, attempt)
                    self.kept.append(
                        Kept(data["seq"], event, data["at_s"], data["boot"], data["wall_s"])
                    )
                    self._kinds.add(type(event))

    def add(self, event: ev.JobEvent, *, at_s: float, boot: str | None = None) -> None:
        """Keep one event. A full disk does not stop it; the line is written when there is room."""
        boot = boot or self._boot
        age_s = max(0.0, proc.boot_s() - at_s) if boot == self._boot else 0.0
        kept = Kept(len(self.kept) + 1, event, at_s, boot, time.time() - age_s)
        self.kept.append(kept)
        self._kinds.add(type(event))
        self._write(
            {
                "seq": kept.seq,
                "event": _plain(event),
                "at_s": kept.at_s,
                "boot": kept.boot,
                "wall_s": kept.wall_s,
            }
        )

    def move(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Marks
        """Change where the reading stands; it is kept with the next report."""
        self.marks = evolve(self.marks, **changes)

    def keep_marks(self) -> None:
        """Keep where the reading stands without a report."""
        self._write({})

    def has(self, *kinds: type[ev.JobEvent]) -> bool:
        """Tell whether an event of one of these kinds is among the reports."""
        return not self._kinds.isdisjoint(kinds)

    def _write(self, data: dict[str, Any]) -> None:
        line = json.dumps({**data, "marks": asdict(self.marks)}).encode() + b"\n"
        self._unwritten += line
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        except OSError:
            return
        try:
            with contextlib.suppress(OSError):
                done = os.write(fd, self._unwritten)
                self._unwritten = self._unwritten[done:]
        finally:
            os.close(fd)


def _plain(event: ev.JobEvent) -> dict[str, Any]:
    data: dict[str, Any] = {"type": type(event).__name__}
    if isinstance(event, ev.JobStarted | ev.GpusReleased):
        data["gpus"] = list(event.gpus)
    elif isinstance(event, ev.StartFailed):
        data["reason"] = event.reason
    elif isinstance(event, ev.EpochCompleted):
        data |= {"epoch": event.epoch, "clean": event.clean, "mem": event.peak_mem_bytes}
    elif isinstance(event, ev.JobStopped):
        data["epoch"] = event.checkpoint_epoch
    elif isinstance(event, ev.JobFailed):
        data |= {"reason": event.reason.value, "code": event.exit_code, "mem": event.peak_mem_bytes}
    return data


def _event(data: dict[str, Any], job_id: str, attempt: int) -> ev.JobEvent:
    kind = data["type"]
    if kind == "JobStarted":
        return ev.JobStarted(0.0, job_id, attempt, tuple(data["gpus"]))
    if kind == "GpusReleased":
        return ev.GpusReleased(0.0, job_id, attempt, tuple(data["gpus"]))
    if kind == "StartFailed":
        return ev.StartFailed(0.0, job_id, attempt, data["reason"])
    if kind == "EpochCompleted":
        return ev.EpochCompleted(0.0, job_id, attempt, data["epoch"], data["clean"], data["mem"])
    if kind == "JobStopped":
        return ev.JobStopped(0.0, job_id, attempt, data["epoch"])
    if kind == "JobFailed":
        reason = FailureReason(data["reason"])
        return ev.JobFailed(0.0, job_id, attempt, reason, data["code"], data["mem"])
    if kind == "JobUnknown":
        return ev.JobUnknown(0.0, job_id, attempt)
    if kind == "JobFinished":
        return ev.JobFinished(0.0, job_id, attempt)
    raise KeyError(kind)
