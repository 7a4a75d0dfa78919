"""The job book: what the server knows of a job beside the scheduler's decisions.

One file for each job: the request as it came, who sent it and when, and how it ended. It is on
disk before the scheduler hears of the job, so that no job is ever known without its command.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import define, field

from eaco_adapters.durable import replace_file
from eaco_adapters.server.api import SubmitRequest  # noqa: TC001 - msgspec reads the annotation
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA: Final = "eaco.job/1"


class _OnDisk(msgspec.Struct, kw_only=True):
    schema: str
    job_id: str
    request: SubmitRequest
    user: str
    submitted_wall_s: float
    deadline_wall_s: float | None = None
    started_wall_s: float | None = None
    ended_wall_s: float | None = None
    exit_code: int | None = None


@define
class JobEntry:
    """One job. Wall times are Unix seconds, for people; the scheduler has its own time."""

    job_id: str
    request: SubmitRequest
    user: str
    submitted_wall_s: float
    deadline_wall_s: float | None = None
    started_wall_s: float | None = None
    ended_wall_s: float | None = None
    exit_code: int | None = None
    why: str | None = field(default=None, eq=False)


class JobBook:
    """All jobs, in memory and in a folder. Methods that write may block."""

    def __init__(self, folder: Path) -> None:
        """Read the folder, or make it. Raises EnvironmentFault, or InputError for a file in it."""
        self._folder = folder
        self._entries: dict[str, JobEntry] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            paths = sorted(folder.glob("*.json"))
        except OSError as error:
            raise EnvironmentFault(f"the folder {folder} cannot be used: {error}") from error
        for path in paths:
            entry = _read(path)
            self._entries[entry.job_id] = entry

    def __iter__(self) -> Iterator[JobEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, job_id: str) -> JobEntry | None:
        """Give one job, or None."""
        return self._entries.get(job_id)

    def free_id(self, base: str) -> str:
        """Give an id that no job has, made of a name."""
        kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in base)
        kept = kept.strip(".-_")[:80] or "job"
        number = len(self._entries) + 1
        while f"{kept}-{number}" in self._entries:
            number += 1
        return f"{kept}-{number}"

    def reserve(self, entry: JobEntry) -> None:
        """Take the id of a job in memory, before it is written. Raises InputError."""
        if entry.job_id in self._entries:
            raise InputError(f"the job id {entry.job_id} is taken")
        self._entries[entry.job_id] = entry

    def write(self, entry: JobEntry) -> None:
        """Bring one job to the disk. Raises EnvironmentFault; what was there then stays."""
        text = msgspec.json.encode(
            _OnDisk(
                schema=SCHEMA,
                job_id=entry.job_id,
                request=entry.request,
                user=entry.user,
                submitted_wall_s=entry.submitted_wall_s,
                deadline_wall_s=entry.deadline_wall_s,
                started_wall_s=entry.started_wall_s,
                ended_wall_s=entry.ended_wall_s,
                exit_code=entry.exit_code,
            )
        )
        path = self._path(entry.job_id)
        try:
            replace_file(path, text, mode=0o600)
        except OSError as error:
            raise EnvironmentFault(
                f"job {entry.job_id} cannot be written to {path}: {error.strerror}"
            ) from error

    def drop(self, job_id: str) -> None:
        """Forget a job that the scheduler refused."""
        self._entries.pop(job_id, None)
        with suppress(OSError):  # the next start sets it aside
            self._path(job_id).unlink(missing_ok=True)

    def set_aside(self, job_id: str) -> None:
        """Forget a job of which the journal knows nothing; its file stays under another name.

        Raises EnvironmentFault.
        """
        self._entries.pop(job_id, None)
        path = self._path(job_id)
        try:
            path.replace(self._folder / f"{job_id}.unknown")
        except OSError as error:
            raise EnvironmentFault(f"{path} cannot be renamed: {error.strerror}") from error

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"


def _read(path: Path) -> JobEntry:
    try:
        disk = msgspec.json.decode(path.read_bytes(), type=_OnDisk)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"this file of a job cannot be read ({error}); restore it, or move it away to give "
            "the job up",
            where=str(path),
        ) from None
    if disk.schema != SCHEMA:
        raise InputError(f"the schema must be {SCHEMA}, not {disk.schema}", where=str(path))
    if path.stem != disk.job_id:
        raise InputError(f"this file is about another job, {disk.job_id}", where=str(path))
    return JobEntry(
        disk.job_id,
        disk.request,
        disk.user,
        disk.submitted_wall_s,
        disk.deadline_wall_s,
        disk.started_wall_s,
        disk.ended_wall_s,
        disk.exit_code,
    )
