"""What happened in a history at all: an invariant that saw nothing has not passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.decisions import Verdict
from eaco_core.events import (
    EpochCompleted,
    GpuLost,
    JobCancelled,
    JobFinished,
    NodeLost,
    WakeFailed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_core.history import Step
    from eaco_core.invariants._replay import Placement, World

_PLACED = "no job was given GPUs"
_SHARED = "no job was placed beside another"
_VERDICT = "no trial came to a verdict"
_UNDONE = "no trial was undone"
_LOST = "no node and no GPU was lost"
_CANCELLED = "no job was cancelled"
_NEEDS: Mapping[str, str] = {
    **dict.fromkeys(("I01", "I03", "I04", "I06"), _PLACED),
    **dict.fromkeys(("I02", "I05", "I07", "I08"), _SHARED),
    "I09": _VERDICT,
    **dict.fromkeys(("I10", "I11", "I12", "I13"), _UNDONE),
    "I28": _LOST,
    "I29": _CANCELLED,
}
_NO_STEPS = "the history has no steps"
_OF_LINES = "I30"


class Happened:
    """Counts what one history holds, for whoever asks whether an invariant was at stake."""

    def __init__(self) -> None:
        self.steps = 0
        self._kinds: set[str] = set()
        self._jumps = 0
        self._early = 0

    def note_step(self, step: Step, world: World) -> None:
        """Note what happens in a step, before it is folded in."""
        self.steps += 1
        event = step.event
        if world.ignored:
            return
        if isinstance(event, (NodeLost, GpuLost, WakeFailed)):
            self._kinds.add(_LOST)
        elif isinstance(event, JobCancelled):
            self._kinds.add(_CANCELLED)
        for record in step.records:
            if isinstance(record, Verdict):
                self._kinds.update({_VERDICT} if record.keep else {_VERDICT, _UNDONE})
        if isinstance(event, EpochCompleted):
            job = world.jobs.get(event.job_id)
            self._jumps += job is not None and event.epoch > job.epochs_done + 1
        elif isinstance(event, JobFinished):
            job = world.jobs.get(event.job_id)
            left = None if job is None else job.epochs_left()
            # Who counts no epochs at all may finish whenever it likes.
            self._early += bool(job is not None and left and job.epochs_done)

    def note_placement(self, placement: Placement) -> None:
        """Note that a job is given GPUs."""
        self._kinds.update({_PLACED, _SHARED} if placement.shared else {_PLACED})

    def nothing_for(self, invariant: str) -> str | None:
        """Say why an invariant was never at stake; None = it was."""
        if not self.steps and invariant != _OF_LINES:
            return f"nothing of the kind happened: {_NO_STEPS}"
        needed = _NEEDS.get(invariant)
        if needed is None or needed in self._kinds:
            return None
        return f"nothing of the kind happened: {needed}"

    def notes(self, world: World) -> tuple[str, ...]:
        """Say what breaks no invariant, and still is worth a look."""
        found: list[str] = []
        unended = len(world.jobs)
        if unended:
            found.append(f"{unended} {_jobs(unended)} had not ended when the history did")
        if self._early:
            found.append(f"{self._early} {_jobs(self._early)} finished before the last epoch")
        if self._jumps:
            times = "once" if self._jumps == 1 else f"{self._jumps} times"
            found.append(f"the epochs of a job went up by more than one at once, {times}")
        return tuple(found)


def _jobs(count: int) -> str:
    return "job" if count == 1 else "jobs"
