"""Files that say who held which GPU: CSV, or a history of any scheduler (docs/energy.md)."""

from __future__ import annotations

import csv
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from attrs import define, field

from eaco_core.effects import StartJob
from eaco_core.errors import InputError
from eaco_core.events import (
    ClockAnchored,
    GpusReleased,
    JobStarted,
    JobSubmitted,
    StartFailed,
)
from eaco_core.history import Step, read_history
from eaco_telemetry.booking.holds import JobHold
from eaco_telemetry.booking.steps import Steps
from eaco_telemetry.booking.times import parse_time

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Mapping

_NEEDED: Final = ("job", "gpu_ids", "start", "end")
_KNOWN: Final = (*_NEEDED, "user", "node", "workload", "pids")
_SEPARATORS: Final = re.compile(r"[;\s]+")
_NS: Final = 1e9
_LONGEST_PID: Final = 11
_LOOKED_AT: Final = 64


def read_jobs(
    path: str | os.PathLike[str], *, history_start_ns: int | None = None
) -> list[JobHold]:
    """Read who held which GPU from a CSV file or a history.

    `history_start_ns`: Unix time of second 0 of a history that does not say it. Raises
    InputError with file and line, and for `history_start_ns` with a CSV file.
    """
    if _is_history(Path(path)):
        return _read_history(Path(path), history_start_ns)
    if history_start_ns is not None:
        raise InputError(
            "this is no history but a CSV file, whose times say themselves when they are;"
            " leave out --history-start",
            where=str(path),
        )
    return _read_csv(Path(path))


def read_steps(path: str | os.PathLike[str], what: str) -> Steps:
    """Read a price or an intensity over time from CSV: ``start,value``. Raises InputError.

    Each value holds from its start until the next one. Lines may be in any order.
    """
    name = str(path)
    steps: dict[int, float] = {}
    for line, row in _rows(Path(path), ("start", "value"), ("start", "value"), what):
        where = f"{name}, line {line}"
        start = _time(row, "start", where)
        if start is None:
            raise InputError("there is no start", where=where)
        try:
            value = float(row["value"])
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            raise InputError(f"{row['value']!r} is no number", where=where)
        if start in steps:
            raise InputError("a line before has the same start", where=where)
        steps[start] = value
    if not steps:
        raise InputError(f"there is no line with a {what}", where=name)
    return Steps(tuple(sorted(steps.items())))


def _is_history(path: Path) -> bool:
    with _reading(path) as file:
        try:
            return file.read(_LOOKED_AT).lstrip().startswith("{")
        except UnicodeDecodeError:
            return False  # then it is no CSV either, which is said there


# ------------------------------------------------------------------------ CSV


def _read_csv(path: Path) -> list[JobHold]:
    holds: list[JobHold] = []
    users: dict[str, str] = {}
    for line, row in _rows(path, _NEEDED, _KNOWN, "jobs"):
        where = f"{path}, line {line}"
        hold = _hold(row, where)
        if users.setdefault(hold.job_id, hold.user) != hold.user:
            raise InputError(
                f"job {hold.job_id} is of user {users[hold.job_id]!r} in a line before,"
                f" and of {hold.user!r} here",
                where=where,
            )
        holds.append(hold)
    return holds


def _hold(row: Mapping[str, str], where: str) -> JobHold:
    if not row["job"]:
        raise InputError("the job has no name", where=where)
    gpu_ids = tuple(part for part in _SEPARATORS.split(row["gpu_ids"]) if part)
    if not gpu_ids:
        raise InputError(f"job {row['job']} has no GPU; name them by their id", where=where)
    start = _time(row, "start", where)
    if start is None:
        raise InputError(f"job {row['job']} has no start", where=where)
    end = _time(row, "end", where)
    if end is not None and end < start:
        raise InputError(f"job {row['job']} ends before it starts", where=where)
    return JobHold(
        job_id=row["job"],
        gpu_ids=gpu_ids,
        start_ns=start,
        end_ns=end,
        user=row.get("user", ""),
        node_id=row.get("node") or None,
        workload=row.get("workload") or None,
        pids=_pids(row.get("pids", ""), where),
    )


def _pids(text: str, where: str) -> frozenset[int] | None:
    parts = [part for part in _SEPARATORS.split(text) if part]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) <= _LONGEST_PID):
            raise InputError(f"{part!r} is no process id", where=where)
    return frozenset(int(part) for part in parts) or None


def _time(row: Mapping[str, str], name: str, where: str) -> int | None:
    if not row[name]:
        return None
    try:
        return parse_time(row[name])
    except InputError as error:
        raise InputError(f"{name}: {error}", where=where) from None


def _rows(
    path: Path, needed: tuple[str, ...], known: tuple[str, ...], what: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Give the lines of a CSV file by the names in its first line, with their numbers."""
    header: list[str] | None = None
    with _reading(path) as file:
        for line, cells in _records(file, path):
            where = f"{path}, line {line}"
            if not any(cells):
                continue
            if header is None:
                header = _header(cells, needed, known, what, where)
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"it has {len(cells)} cells, and the first line names {len(header)}",
                    where=where,
                )
            yield line, dict(zip(header, cells, strict=True))
    if header is None:
        raise InputError(
            f"the file is empty; its first line must name the columns: {','.join(needed)}",
            where=str(path),
        )


def _records(file: IO[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Give each record and its line; what is no CSV is told with the line it begins in."""
    reader = csv.reader(file, strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            said = str(error)
            if said == "unexpected end of data":
                said = "a quotation mark is opened in it and never closed"
            raise InputError(
                f"this is no CSV file: {said}", where=f"{path}, line {begin}"
            ) from None
        yield reader.line_num, [cell.strip() for cell in cells]


def _line_of_no_text(path: Path) -> str:
    """Name the first line that is not UTF-8, if the file can be read once more."""
    with suppress(OSError), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f"{path}, line {number}"
    return str(path)


@contextmanager
def _reading(path: Path) -> Generator[IO[str]]:
    """Open a text file; whatever cannot be read in it is an InputError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("this is a folder; name a file", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError(
            "this is no CSV file: it is not UTF-8", where=_line_of_no_text(path)
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _header(
    found: list[str], needed: tuple[str, ...], known: tuple[str, ...], what: str, where: str
) -> list[str]:
    for column in needed:
        if column not in found:
            raise InputError(
                f"the first line of a CSV file of {what} must name its columns, and {column!r}"
                f" is missing; columns are {', '.join(known)}",
                where=where,
            )
    twice = [column for column in known if found.count(column) > 1]
    if twice:
        raise InputError(f"the column {twice[0]!r} is there twice", where=where)
    return found


# -------------------------------------------------------------------- history


@define
class _Attempt:
    """What one attempt of a job holds still: GPU to (node, since)."""

    gpus: dict[str, tuple[str | None, float]] = field(factory=dict[str, tuple[str | None, float]])


@define
class _Past:
    """Holds in scheduler seconds, as the history tells them."""

    users: dict[str, str] = field(factory=dict[str, str])
    workloads: dict[str, str | None] = field(factory=dict[str, "str | None"])
    attempts: dict[tuple[str, int], _Attempt] = field(factory=dict[tuple[str, int], _Attempt])
    holds: list[tuple[str, str, str | None, float, float | None]] = field(
        factory=list[tuple[str, str, "str | None", float, "float | None"]]
    )
    anchors: list[tuple[float, float]] = field(factory=list[tuple[float, float]])

    def take(self, step: Step) -> None:
        event = step.event
        if isinstance(event, JobSubmitted):
            self.users[event.job.job_id] = event.job.user
            self.workloads[event.job.job_id] = event.job.workload
        elif isinstance(event, ClockAnchored):
            self.anchors.append((event.t_s, event.wall_s))
        elif isinstance(event, GpusReleased):
            self._release(event.job_id, event.attempt, step.t_s, event.gpus)
        elif isinstance(event, StartFailed):
            self._release(event.job_id, event.attempt, step.t_s, None)
        elif isinstance(event, JobStarted) and event.gpus:
            self._start(event.job_id, event.attempt, dict.fromkeys(event.gpus), step.t_s)
        for effect in step.effects:
            if isinstance(effect, StartJob):
                gpus = {gpu_id: node_id for node_id, ids in effect.gpus for gpu_id in ids}
                self._start(effect.job_id, effect.attempt, gpus, step.t_s)

    def close(self) -> None:
        """End: what is still held stays held."""
        for (job_id, _), attempt in self.attempts.items():
            for gpu_id, (node_id, since) in attempt.gpus.items():
                self.holds.append((job_id, gpu_id, node_id, since, None))

    def _start(self, job_id: str, number: int, gpus: Mapping[str, str | None], t_s: float) -> None:
        attempt = self.attempts.setdefault((job_id, number), _Attempt())
        for gpu_id, node_id in gpus.items():
            attempt.gpus.setdefault(gpu_id, (node_id, t_s))

    def _release(
        self, job_id: str, number: int, t_s: float, gpu_ids: tuple[str, ...] | None
    ) -> None:
        attempt = self.attempts.get((job_id, number), _Attempt())
        for gpu_id in tuple(attempt.gpus) if gpu_ids is None else gpu_ids:
            held = attempt.gpus.pop(gpu_id, None)
            if held is not None:
                self.holds.append((job_id, gpu_id, held[0], held[1], t_s))


def _read_history(path: Path, start_ns: int | None) -> list[JobHold]:
    past = _Past()
    for line in read_history(path):
        if isinstance(line, Step):
            past.take(line)
    past.close()
    if not past.anchors and start_ns is None:
        raise InputError(
            "this history does not say when it took place (it has no ClockAnchored event); say"
            " when its second 0 was, with --history-start 2026-12-01T08:00:00Z",
            where=str(path),
        )

    def wall_ns(t_s: float) -> int:
        if start_ns is not None:
            return start_ns + round(t_s * _NS)
        before = [anchor for anchor in past.anchors if anchor[0] <= t_s]
        anchor_s, wall_s = before[-1] if before else past.anchors[0]
        return round(wall_s * _NS) + round((t_s - anchor_s) * _NS)

    return [
        JobHold(
            job_id=job_id,
            gpu_ids=(gpu_id,),
            start_ns=wall_ns(since),
            end_ns=None if until is None else max(wall_ns(since), wall_ns(until)),
            user=past.users.get(job_id, ""),
            node_id=node_id,
            workload=past.workloads.get(job_id),
        )
        for job_id, gpu_id, node_id, since, until in past.holds
    ]
