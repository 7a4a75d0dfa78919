"""The story of one job, in plain sentences, from a history (R18)."""

from __future__ import annotations

import difflib
import json
import os
from typing import TYPE_CHECKING, Any

from attrs import frozen

from eaco_core import decisions as de
from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.errors import InputError
from eaco_core.history import Step, read_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from eaco_core.history import Line
    from eaco_core.jobs import JobSpec

_J_PER_KWH = 3.6e6
_NAMED = 4
_LONGEST_LINE_BYTES = 2**24


@frozen
class Sentence:
    """One thing that happened to the job: when (scheduler seconds), at which step, what."""

    t_s: float
    seq: int
    text: str


def explain_job(
    source: str | Path | Iterable[Line], job_id: str, *, where: str | None = None
) -> list[Sentence]:
    """Tell the story of one job from a history file, or from its lines, which come from `where`.

    A last line that was cut off while it was written is left out: see `is_cut_off`.
    Raises InputError for a job that the history does not know, with ids alike.
    """
    story = _Story(job_id)
    if isinstance(source, (str, os.PathLike)):
        lines: Iterable[Line] = _whole_lines(source, containing=json.dumps(job_id))
        where, from_file = str(source), True
    else:
        lines, from_file = list(source), False
    for line in lines:
        if isinstance(line, Step):
            story.take(line)
    if not story.sentences:
        if where is not None and from_file:
            lines = _whole_lines(where, containing='"JobSubmitted"')
        raise InputError(_unknown(job_id, lines), where=where)
    return story.sentences


def is_cut_off(path: str | Path) -> bool:
    """Tell whether a history file ends in the middle of a line: the story may go on."""
    with open(path, "rb") as file:  # noqa: PTH123 - str or Path
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _LONGEST_LINE_BYTES))
        last = file.read().rpartition(b"\n")[2]
    try:
        return bool(last.strip()) and json.loads(last) is None
    except ValueError:
        return True


def _whole_lines(path: str | Path, *, containing: str) -> Iterator[Line]:
    lines = read_history(path, containing=containing)
    try:
        yield from lines
    except InputError as error:
        if "was cut off" not in str(error):
            raise


def _unknown(job_id: str, lines: Iterable[Line]) -> str:
    known = [
        line.event.job.job_id
        for line in lines
        if isinstance(line, Step) and isinstance(line.event, ev.JobSubmitted)
    ]
    near = difflib.get_close_matches(job_id, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(known)} jobs."
    return f"there is no job {job_id!r} in this history; {hint}"


class _Story:
    """Follows one job through the steps."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.sentences: list[Sentence] = []
        self._spec: JobSpec | None = None
        self._submitted_s = 0.0
        self._started_s: float | None = None
        self._epochs = 0

    def take(self, step: Step) -> None:
        """Add what one step has to say about the job."""
        event: Any = step.event
        texts: list[str] = []
        ignored = any(isinstance(record, de.Ignored) for record in step.records)
        concerned = getattr(event, "job_id", None) == self.job_id
        if isinstance(event, ev.JobSubmitted):
            concerned = event.job.job_id == self.job_id
        if concerned and not ignored:
            tell = _EVENTS.get(event.__class__)
            texts += tell(self, event) if tell is not None else []
        for record in step.records:
            tell = _RECORDS.get(type(record))
            texts += tell(self, record) if tell is not None else []
        for effect in step.effects:
            tell = _EFFECTS.get(type(effect))
            if tell is not None and getattr(effect, "job_id", None) == self.job_id:
                texts += tell(self, effect)
        self.sentences += [Sentence(step.t_s, step.seq, text) for text in texts]

    # ---- events ----------------------------------------------------------------

    def submitted(self, event: ev.JobSubmitted) -> Iterator[str]:
        """Tell that it came."""
        spec = self._spec = event.job
        self._submitted_s = spec.submit_s
        work = f"{spec.epochs} epochs" if spec.epochs is not None else "unknown length"
        text = f"submitted: {_count(spec.gpus, 'GPU')}, {work} of {spec.workload or 'its own kind'}"
        if spec.deadline_s is not None:
            left = span(spec.deadline_s - event.t_s)
            text += f", to be done by {moment(spec.deadline_s)}, {left} from now"
        else:
            text += ", no deadline"
        yield f"{text}."

    def started(self, event: ev.JobStarted) -> Iterator[str]:
        """Tell that it computes."""
        self._started_s = event.t_s
        yield "runs."

    def epoch(self, event: ev.EpochCompleted) -> Iterator[str]:
        """Count an epoch, without a word."""
        self._epochs = event.epoch
        yield from ()

    def stopped(self, event: ev.JobStopped) -> Iterator[str]:
        """Tell that it stopped."""
        self._epochs = event.checkpoint_epoch
        yield f"stopped with a checkpoint after {_count(event.checkpoint_epoch, 'epoch')}."

    def finished(self, event: ev.JobFinished) -> Iterator[str]:
        """Tell that it is done, and whether in time."""
        text = f"finished, {span(event.t_s - self._submitted_s)} after it was submitted"
        deadline_s = None if self._spec is None else self._spec.deadline_s
        if deadline_s is None:
            yield f"{text}."
        elif event.t_s <= deadline_s:
            yield f"{text}; its deadline was met with {span(deadline_s - event.t_s)} to spare."
        else:
            yield f"{text}; its deadline was missed by {span(event.t_s - deadline_s)}."

    def failed(self, event: ev.JobFailed) -> Iterator[str]:
        """Tell that it ended without finishing."""
        reason = event.reason.value.replace("_", " ")
        code = "" if event.exit_code is None else f" (exit code {event.exit_code})"
        yield f"failed: {reason}{code}, after {_count(self._epochs, 'epoch')}."

    def unknown(self, event: ev.JobUnknown) -> Iterator[str]:  # noqa: ARG002 - one signature for all
        """Tell that nobody sees it."""
        yield "is out of sight: nobody knows whether it runs."

    def cancelled(self, event: ev.JobCancelled) -> Iterator[str]:  # noqa: ARG002 - one signature for all
        """Tell that its user took it back."""
        yield "cancelled by its user."

    def start_failed(self, event: ev.StartFailed) -> Iterator[str]:
        """Tell that it could not be started."""
        yield f"could not be started{': ' + event.reason if event.reason else ''}."

    # ---- decisions -------------------------------------------------------------

    def waits(self, record: de.Waits) -> Iterator[str]:
        """Tell why it is not placed."""
        if record.job_id == self.job_id:
            yield f"waits: {record.reason}.{_refused(record.refusals)}"

    def placed(self, record: de.Placed) -> Iterator[str]:
        """Tell where it was placed, or who beside it."""
        if record.job_id != self.job_id:
            for bound in record.affected:
                if bound.job_id == self.job_id:
                    yield f"job {record.job_id} was placed beside it. {_bound(bound, record)}"
            return
        beside = sorted({i for gate in record.gates for i in gate.residents})
        others = [bound.job_id for bound in record.affected if bound.job_id != self.job_id]
        beside = beside or sorted(others)
        company = f"beside {_jobs(beside)}" if record.shared and beside else "alone"
        text = f"placed on {_gpus(record.gpus)}, {company}"
        if record.attempt > 1:
            text += f" (attempt {record.attempt})"
        if record.start_s > record.t_s:
            text += f"; it can start at {moment(record.start_s)}, when its node has woken up"
        yield f"{text}.{_refused(record.refusals)}"
        if record.explored:
            yield "this set has no bound: it is tried out, with no deadline at stake."
        for bound in record.affected:
            yield _bound(bound, record)
        if record.extra_energy_j is not None and record.alternative_energy_j is not None:
            yield (
                f"sharing is predicted to cost {_kwh(record.extra_energy_j)}, "
                f"against {_kwh(record.alternative_energy_j)} otherwise."
            )

    def verdict(self, record: de.Verdict) -> Iterator[str]:
        """Tell whether a newcomer is kept, on which evidence."""
        seen = [e.job_id for e in record.evidence]
        if record.job_id == self.job_id:
            yield f"{'kept' if record.keep else 'undone'} after its trial: {record.reason}."
            for evidence in record.evidence:
                yield _evidence(evidence)
        elif self.job_id in seen:
            end = "kept beside it" if record.keep else "told to leave again"
            yield f"job {record.job_id} is {end}: {record.reason}."
            yield from (_evidence(e) for e in record.evidence if e.job_id == self.job_id)

    def restarted(self, record: de.WindowRestarted) -> Iterator[str]:
        """Tell that its trial began again."""
        if record.job_id == self.job_id:
            yield f"its trial begins again ({record.restarts}): {record.reason}."

    def evicted(self, record: de.Evicted) -> Iterator[str]:
        """Tell who has to go, and for whom."""
        late = f"would end at {moment(record.predicted_end_s)}, after {moment(record.deadline_s)}"
        if record.victim_id == self.job_id:
            yield f"has to leave its GPUs: beside it job {record.job_id} {late}."
        elif record.job_id == self.job_id:
            yield f"{late}, so job {record.victim_id} has to leave its GPUs."

    def at_risk(self, record: de.AtRisk) -> Iterator[str]:
        """Tell that it will be late."""
        if record.job_id == self.job_id:
            yield (
                f"will probably be late: it would end at {moment(record.predicted_end_s)}, "
                f"after {moment(record.deadline_s)}, and stopping another job would not help."
            )

    def reserved(self, record: de.Reserved) -> Iterator[str]:
        """Tell which GPUs are held for it."""
        if record.job_id == self.job_id:
            when = "" if record.start_s is None else f", free by {moment(record.start_s)}"
            are = "is" if len(record.gpus) == 1 else "are"
            yield f"{_gpus(record.gpus)} {are} held for it{when}."

    def requeued(self, record: de.Requeued) -> Iterator[str]:
        """Tell that it waits again."""
        if record.job_id == self.job_id:
            self._epochs = record.epoch
            done = _count(record.epoch, "epoch")
            yield f"is back in the queue, to go on after {done}: {record.reason}."

    # ---- commands --------------------------------------------------------------

    def start(self, effect: fx.StartJob) -> Iterator[str]:
        """Tell where it is started."""
        nodes = ", ".join(node_id for node_id, _ in effect.gpus)
        after = f", to go on after epoch {effect.resume_epoch}" if effect.resume_epoch else ""
        yield f"is started on {nodes}{after}."

    def stop(self, effect: fx.StopAtEpochBoundary) -> Iterator[str]:
        """Tell that it has to stop."""
        yield f"is told to stop at the end of its epoch: {effect.reason}."

    def kill(self, effect: fx.KillJob) -> Iterator[str]:
        """Tell that it has to end."""
        yield f"is told to end at once: {effect.reason}."


_EVENTS: dict[type[Any], Callable[[_Story, Any], Iterator[str]]] = {
    ev.JobSubmitted: _Story.submitted,
    ev.JobStarted: _Story.started,
    ev.EpochCompleted: _Story.epoch,
    ev.JobStopped: _Story.stopped,
    ev.JobFinished: _Story.finished,
    ev.JobFailed: _Story.failed,
    ev.JobUnknown: _Story.unknown,
    ev.JobCancelled: _Story.cancelled,
    ev.StartFailed: _Story.start_failed,
}
_RECORDS: dict[type[Any], Callable[[_Story, Any], Iterator[str]]] = {
    de.Waits: _Story.waits,
    de.Placed: _Story.placed,
    de.Verdict: _Story.verdict,
    de.WindowRestarted: _Story.restarted,
    de.Evicted: _Story.evicted,
    de.AtRisk: _Story.at_risk,
    de.Reserved: _Story.reserved,
    de.Requeued: _Story.requeued,
}
_EFFECTS: dict[type[Any], Callable[[_Story, Any], Iterator[str]]] = {
    fx.StartJob: _Story.start,
    fx.StopAtEpochBoundary: _Story.stop,
    fx.KillJob: _Story.kill,
}

_SOURCES = {
    de.BoundSource.OBSERVED: "by what was observed of this set",
    de.BoundSource.LEARNED: "by the learned model",
    de.BoundSource.LAW: "by the sum of the utilisations",
    de.BoundSource.SOLO: "as it is alone",
    de.BoundSource.NONE: "without a bound",
}


def span(seconds: float) -> str:
    """Write a time span for people, in its two largest units."""
    seconds = max(0.0, seconds)
    if seconds < 59.95:  # noqa: PLR2004 - a minute, as it is shown
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def moment(t_s: float) -> str:
    """Write a point in scheduler time for people."""
    return f"t = {t_s:.0f} s"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _kwh(energy_j: float) -> str:
    return f"{energy_j / _J_PER_KWH:.2f} kWh"


def _gpus(gpu_ids: tuple[str, ...]) -> str:
    if len(gpu_ids) <= _NAMED:
        return f"{'GPU' if len(gpu_ids) == 1 else 'GPUs'} {', '.join(gpu_ids)}"
    return f"{len(gpu_ids)} GPUs, {gpu_ids[0]} to {gpu_ids[-1]}"


def _jobs(job_ids: list[str]) -> str:
    return f"{'job' if len(job_ids) == 1 else 'jobs'} {', '.join(job_ids)}"


def _refused(refusals: tuple[de.Refusal, ...]) -> str:
    if not refusals:
        return ""
    told = "; ".join(f"{_count(r.count, 'set')} by {r.rule}, {r.reason}" for r in refusals)
    return f" Refused: {told}."


def _bound(bound: de.AffectedBound, record: de.Placed) -> str:
    company = ", ".join(bound.co_workloads) or "nobody"
    text = f"job {bound.job_id} ({bound.workload or 'of its own kind'}) beside {company}"
    if bound.source is de.BoundSource.NONE:
        return f"{text}: nobody knows how much slower it gets."
    model = "" if bound.calibration_id is None else f", calibration {bound.calibration_id}"
    end_s = max(record.t_s, record.start_s) + bound.upper_ratio * bound.remaining_s
    text += (
        f": at most {bound.upper_ratio:.2f} times its time alone, "
        f"{_SOURCES[bound.source]}{model}; done by {moment(end_s)}"
    )
    if bound.deadline_s is None:
        return f"{text}, it has no deadline."
    if bound.late:
        return f"{text}, it is late already for {moment(bound.deadline_s)}."
    return f"{text}, its deadline is {moment(bound.deadline_s)}."


def _evidence(seen: de.Evidence) -> str:
    if seen.epoch_s is None:
        return f"job {seen.job_id} had completed no clean epoch in the window."
    ratio = "" if seen.ratio is None else f", {seen.ratio:.2f} times its time alone"
    return (
        f"job {seen.job_id}: one epoch took {span(seen.epoch_s)}{ratio}; "
        f"{_count(seen.epochs_left, 'epoch')} to go."
    )
