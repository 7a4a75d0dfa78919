"""Checkers of the trial of a newcomer: I09, I10, I11."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from eaco_core.decisions import Evicted, Verdict
from eaco_core.effects import KillJob, StopAtEpochBoundary
from eaco_core.events import Tick
from eaco_core.invariants._checker import TIME_SLACK, Checker, above, alike

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.decisions import Evidence, Record
    from eaco_core.effects import Effect
    from eaco_core.history import Header, Step
    from eaco_core.invariants._replay import Job, Placement, Window, World


class KeepEvidence(Checker):
    """I09: the evidence is what this model saw, complete, and good enough."""

    invariant = "I09"
    needs_records = True

    def on_record(self, record: Record) -> None:
        """Look at a verdict that keeps the newcomer."""
        if not isinstance(record, Verdict) or not record.keep:
            return
        job = self.world.jobs.get(record.job_id)
        window = None if job is None else self.world.window_of(job)
        if job is None or window is None:
            return
        others = [j for j in job.co_residents().values() if not j.ended and not j.stopping]
        if not others:
            return
        evidence = {seen.job_id: seen for seen in record.evidence}
        total = 0.0
        for member in (job, *others):
            seen = evidence.get(member.job_id)
            complaint = (
                f"no epoch of job {member.job_id} was seen"
                if seen is None or seen.epoch_s is None
                else self._not_seen(window, member, seen.epoch_s) or self._too_slow(member, seen)
            )
            if complaint is not None:
                self.broken(f"job {job.job_id} was kept although {complaint}")
                return
            total += 0.0 if seen is None or not seen.ratio else 1 / seen.ratio
        ratios_known = all(evidence[member.job_id].ratio for member in (job, *others))
        if ratios_known and above(self.rules.keep_throughput_sum, total):
            self.broken(
                f"job {job.job_id} was kept although all do {total:.3g} jobs' work together"
            )

    def _not_seen(self, window: Window, member: Job, epoch_s: float) -> str | None:
        by_best = window.restarts >= self.rules.window_max_restarts
        run = member.best if by_best else member.trial
        name = f"job {member.job_id}"
        if run.count == 0:
            return f"no clean epoch of {name} began and ended in the window"
        if above(run.min_s, epoch_s) or above(epoch_s, run.max_s):
            return f"its evidence of {epoch_s:g} s is no epoch time of {name}"
        if not by_best and above(self.rules.window_min_s, run.sum_s):
            return f"{name} was seen for {run.sum_s:g} s only"
        return None

    def _too_slow(self, member: Job, seen: Evidence) -> str | None:
        left, deadline_s = member.epochs_left(), member.spec.deadline_s
        solo_s = member.solo_epoch_s(member.gpus[0].spec.gpu_type) if member.gpus else None
        epoch_s = seen.epoch_s or 0.0
        name = f"job {member.job_id}"
        if left is not None and left != seen.epochs_left:
            return f"{name} has {left} epochs left, not {seen.epochs_left} as recorded"
        if (
            seen.ratio is not None
            and solo_s is not None
            and not alike(seen.ratio, epoch_s / solo_s)
        ):
            return f"the ratio of {name} is {epoch_s / solo_s:g}, not {seen.ratio:g} as recorded"
        if deadline_s is None:
            return None
        alone_s = self.world.now_s + (0.0 if solo_s is None else seen.epochs_left * solo_s)
        if seen.late and solo_s is not None and above(deadline_s, alone_s):
            return f"{name} was taken as late, but it is not"
        end_s = self.world.now_s + seen.epochs_left * epoch_s * self.rules.observed_margin
        if not seen.late and above(end_s, deadline_s):
            return f"{name} will end at {end_s:g} s, after its deadline of {deadline_s:g} s"
        return None


class UndoForced(Checker):
    """I10: an undo stops the newcomer in the same step, and kills it if it does not stop."""

    invariant = "I10"
    needs_records = True

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._due_s: dict[str, tuple[int, float]] = {}
        self._verdicts: list[Verdict] = []

    def on_record(self, record: Record) -> None:
        """Note a verdict that undoes."""
        if isinstance(record, Verdict) and not record.keep:
            self._verdicts.append(record)

    def at_end(self, step: Step) -> None:
        """Look for the command that a verdict asks for, and at those that are overdue."""
        for verdict in self._verdicts:
            stopped = any(
                isinstance(effect, (StopAtEpochBoundary, KillJob))
                and (effect.job_id, effect.attempt) == (verdict.job_id, verdict.attempt)
                for effect in step.effects
            )
            if not stopped:
                self.broken(f"job {verdict.job_id} was undone and not told to stop")
            self._arm(verdict)
        self._verdicts.clear()
        # eaco looks at its timers at a Tick; of others it is not known when they do.
        decides = isinstance(step.event, Tick) or not self.world.ours
        for job_id, (attempt, due_s) in list(self._due_s.items()):
            job = self.world.jobs.get(job_id)
            over = job is None or job.attempt != attempt or job.ended or not job.gpus
            if over or (job is not None and job.kill_sent):
                del self._due_s[job_id]
            elif decides and self.world.now_s > due_s + TIME_SLACK * max(1.0, due_s):
                del self._due_s[job_id]
                self.broken(f"job {job_id} did not stop by {due_s:g} s and was not killed")

    def _arm(self, verdict: Verdict) -> None:
        job = self.world.jobs.get(verdict.job_id)
        if job is None or job.placement is None or job.placement.record is None:
            return
        for bound in job.placement.record.affected:
            solo_s = job.solo_epoch_s(bound.gpu_type)
            if bound.job_id == job.job_id and solo_s is not None:
                # What was seen since the placement may have raised the bound.
                seen = self.world.seen.largest(bound.gpu_type, bound.workload, bound.co_workloads)
                upper_ratio = max(bound.upper_ratio, seen * self.rules.observed_margin)
                limit_s = self.rules.kill_factor * upper_ratio * solo_s
                due_s = self.world.now_s + limit_s + self.rules.kill_slack_s
                self._due_s[job.job_id] = (job.attempt, due_s)


@define
class _Undo:
    """An undone placement; `to_leave` are the GPUs that the newcomer has not left yet."""

    placement: Placement
    attempt: int
    to_leave: set[str]


class UndoExact(Checker):
    """I11: who was there before stays, untouched, and nobody else has come."""

    invariant = "I11"
    needs_records = True

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._undone: dict[str, _Undo] = {}
        self._residents: dict[str, str] = {}
        self._evicted: set[str] = set()

    def on_record(self, record: Record) -> None:
        """Note whom an undo must leave alone."""
        if isinstance(record, Evicted):
            self._evicted.add(record.victim_id)
        if not isinstance(record, Verdict) or record.keep:
            return
        job = self.world.jobs.get(record.job_id)
        if job is None or job.placement is None:
            return
        self._undone[job.job_id] = _Undo(job.placement, job.attempt, set(job.placement.before))
        for other in job.co_residents().values():
            if not other.stopping:
                self._residents[other.job_id] = job.job_id

    def on_effect(self, effect: Effect) -> None:
        """Look for commands to residents in the step of the undo."""
        if isinstance(effect, (StopAtEpochBoundary, KillJob)):
            newcomer = self._residents.get(effect.job_id)
            if newcomer is not None and effect.job_id not in self._evicted:
                self.broken(f"job {effect.job_id} was stopped by the undo of job {newcomer}")

    def at_end(self, step: Step) -> None:  # noqa: ARG002 - one signature for all
        """Compare the residents of whatever GPUs the newcomer has left by now."""
        if self._residents:
            self._residents.clear()
        if self._evicted:
            self._evicted.clear()
        self._look_at_those_left()

    def on_placement(self, placement: Placement) -> None:  # noqa: ARG002 - one signature for all
        """Compare before anybody else comes: GPUs that were left in this step are free now."""
        self._look_at_those_left()

    def _look_at_those_left(self) -> None:
        for job_id, undo in list(self._undone.items()):
            job = self.world.jobs.get(job_id)
            stays = job is not None and job.attempt == undo.attempt
            held = {g.spec.gpu_id for g in job.gpus} if job is not None and stays else set[str]()
            left = undo.to_leave - held
            undo.to_leave &= held
            if not held:
                del self._undone[job_id]
            self._compare(undo, left)

    def _compare(self, undo: _Undo, left: set[str]) -> None:
        for gpu_id in sorted(left):
            gpu = self.world.gpus.get(gpu_id)
            for resident in gpu.residents if gpu is not None else ():
                if resident.job_id not in undo.placement.before[gpu_id]:
                    self.broken(
                        f"job {resident.job_id} came onto GPU {gpu_id} "
                        f"before job {undo.placement.job.job_id} had left it"
                    )
                    return
