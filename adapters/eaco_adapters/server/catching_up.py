"""What the job book missed: jobs that ended while the server was killed before it could note that.

The journal has it, so their times and exit codes are taken from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eaco_core import events as ev
from eaco_core.history import Step
from eaco_core.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eaco_adapters.server.job_book import JobBook, JobEntry
    from eaco_core.history import Line
    from eaco_core.machine import SchedulerMachine

TYPES: Final = tuple(
    f'"{kind.__name__}"'
    for kind in (
        ev.JobStarted,
        ev.JobFinished,
        ev.JobFailed,
        ev.JobCancelled,
        ev.StartFailed,
        ev.GpusReleased,
    )
)
"""A record that holds none of these says nothing of how a job ended."""


def set_aside_unknown(book: JobBook, machine: SchedulerMachine) -> tuple[str, ...]:
    """Take out of the book what the scheduler never took; give these ids.

    Raises EnvironmentFault.
    """
    known = machine.states()
    unknown = tuple(entry.job_id for entry in book if entry.job_id not in known)
    for job_id in unknown:
        book.set_aside(job_id)
    return unknown


def complete(
    book: JobBook,
    machine: SchedulerMachine,
    lines: Callable[[], Iterable[Line]],
    wall_of: Callable[[float], float],
) -> int:
    """Fill in how jobs ended that the book holds as not ended; give how many. Blocks.

    `lines`: steps of the journal, at least the newest; `wall_of`: wall time of a scheduler time.
    """
    states = machine.states()
    missing = {
        entry.job_id: entry
        for entry in book
        if entry.ended_wall_s is None and states[entry.job_id] in TERMINAL
    }
    if not missing:
        return 0
    for line in lines():
        if isinstance(line, Step):
            entry = missing.get(getattr(line.event, "job_id", ""))
            if entry is not None:
                _take(entry, line.event, wall_of(line.t_s))
    for entry in missing.values():
        if entry.ended_wall_s is None:  # before what was read: not later than the last step
            entry.ended_wall_s = wall_of(machine.now_s)
        book.write(entry)
    return len(missing)


def note_event(entry: JobEntry, event: ev.Event) -> None:
    """Note the exit code that an event tells."""
    if isinstance(event, ev.JobFailed):
        entry.exit_code = event.exit_code
    elif isinstance(event, ev.JobFinished):
        entry.exit_code = 0


def _take(entry: JobEntry, event: ev.Event, wall_s: float) -> None:
    if isinstance(event, ev.JobStarted) and entry.started_wall_s is None:
        entry.started_wall_s = wall_s
    note_event(entry, event)
    entry.ended_wall_s = wall_s  # the last one counts
