"""Windows: one epoch of proof for every shared placement, then keep or undo (R9, R10).

A window is open from the moment that a newcomer is placed beside others until it is
settled or gone. While it is open, every GPU of every affected job is locked against
further newcomers, so a job is in one window at most. An epoch counts as evidence if
it began and ended inside the window, while the same jobs computed on all GPUs of
that job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from eaco_core._forms import WindowForm
from eaco_core._records import Window
from eaco_core.admission import highest_bound, predict_jct, signature
from eaco_core.decisions import Evidence as EvidenceRecord
from eaco_core.decisions import Verdict, WindowRestarted
from eaco_core.errors import InputError
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from eaco_core._context import Context
    from eaco_core._forms import GpuRef
    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core.rules import Rules


@frozen
class Judgement:
    """Keep, undo, or (None) not decided yet; why; and whose deadline would be missed."""

    keep: bool | None
    reason: str
    job_id: str | None = None


def verify(now_s: float, evidence: Sequence[EvidenceRecord], rules: Rules) -> Judgement:
    """Judge a shared placement by what was observed (rule R10).

    Keeping needs, for every affected job with a deadline that is not late,
    ``now_s + epochs_left * epoch_s * 1.05 <= deadline_s``, and that all together do
    at least as much as one job alone: sum of 1/ratio >= 1.
    """
    for seen in evidence:
        if seen.epoch_s is None or seen.deadline_s is None or seen.late:
            continue
        end_s = now_s + seen.epochs_left * seen.epoch_s * rules.observed_margin
        # Not "end > deadline": what is not a number proves nothing, and must not be kept.
        if not end_s <= seen.deadline_s:
            return Judgement(
                keep=False, reason=f"job {seen.job_id} would miss its deadline", job_id=seen.job_id
            )
    if any(seen.epoch_s is None for seen in evidence):
        return Judgement(keep=None, reason="not every affected job has completed a clean epoch")
    total = throughput_sum(evidence)
    if total is not None and not total >= rules.keep_throughput_sum:
        reason = f"together they do {total:.3g} jobs' work, less than one alone"
        return Judgement(keep=False, reason=reason)
    return Judgement(keep=True, reason="every deadline holds")


def throughput_sum(evidence: Sequence[EvidenceRecord]) -> float | None:
    """Give the sum of 1/ratio, None if a ratio is missing."""
    ratios = [seen.ratio for seen in evidence if seen.ratio is not None]
    return sum(1 / ratio for ratio in ratios) if len(ratios) == len(evidence) else None


class Windows:
    """All open windows."""

    def __init__(self, context: Context) -> None:
        self._c = context
        self._locking: dict[str, Window] = {}

    def __iter__(self) -> Iterator[Window]:
        """Give the windows that are open, in order of opening."""
        return (window for window in self._locking.values() if not window.closed)

    def open(self, newcomer: JobRecord, affected: list[JobRecord]) -> None:
        """Lock the GPUs of everyone affected by a shared placement."""
        locked: dict[str, GpuRecord] = {}
        for job in affected:
            for gpu in job.gpus:
                locked[gpu.spec.gpu_id] = gpu
        window = Window(newcomer, affected, list(locked.values()))
        for gpu in window.locked:
            self._c.ledger.lock(gpu, newcomer.spec.job_id)
        for job in affected:
            job.window = window
        self._locking[newcomer.spec.job_id] = window
        self._c.view.open_windows += 1

    def newcomer_started(self, window: Window) -> None:
        """Begin to count evidence."""
        window.opened = True
        self._arm_early_verdict(window)

    def resident_started(self, job: JobRecord) -> None:
        """A job begins to compute: what its co-residents showed before was without it."""
        for gpu in job.gpus:
            for resident in gpu.residents:
                if resident is not job and resident.window is not None:
                    resident.window.epoch_s.pop(resident.spec.job_id, None)
                    resident.window.best_epoch_s.pop(resident.spec.job_id, None)

    def epoch_seen(self, job: JobRecord, epoch_s: float | None) -> None:
        """Take note that an affected job ended an epoch; `epoch_s` if it counts as evidence."""
        window = job.window
        if window is None or not window.opened:
            return
        job_id = job.spec.job_id
        if epoch_s is not None:
            window.epoch_s[job_id] = epoch_s
            best = window.best_epoch_s.get(job_id, epoch_s)
            window.best_epoch_s[job_id] = min(best, epoch_s)
        self._judge(window)

    def time_is_up(self, newcomer: JobRecord) -> None:
        """An epoch has lasted so long that it already proves a miss (R9, early verdict)."""
        window = newcomer.window
        if window is None or not window.opened or window.newcomer is not newcomer:
            return
        for job in window.affected:
            limit_s = self._proof_s(job)
            if limit_s is not None and self._c.now_s >= limit_s:
                evidence = self._evidence(window, window.epoch_s)
                reason = f"the running epoch of job {job.spec.job_id} already proves a miss"
                self._undo(window, evidence, reason, own=job is newcomer)
                return
        self._arm_early_verdict(window)

    def resident_gone(self, job: JobRecord, reason: str) -> None:
        """An affected job has ended, was lost or stops: void the evidence, or settle (R9)."""
        window = job.window
        if window is None:
            return
        job.window = None
        if job is window.newcomer:
            self._close(window)
            return
        window.affected.remove(job)
        if len(window.affected) == 1:
            self._settle(window, self._evidence(window, window.epoch_s), "no co-resident is left")
            return
        if not window.opened:
            return
        if window.restarts >= self._c.rules.window_max_restarts:
            self._decide_by_best(window)
            return
        window.restarts += 1
        window.epoch_s.clear()
        for affected in window.affected:
            # An epoch that runs now began in the window as it was before.
            affected.clean_since_s = self._c.now_s
            affected.acc_s, affected.acc_epochs = 0.0, 0
        newcomer_id = window.newcomer.spec.job_id
        record = WindowRestarted(self._c.now_s, newcomer_id, window.restarts, reason)
        self._c.records.append(record)
        self._arm_early_verdict(window)

    def _decide_by_best(self, window: Window) -> None:
        evidence = self._evidence(window, window.best_epoch_s)
        found = verify(self._c.now_s, evidence, self._c.rules)
        if found.keep:
            self._settle(window, evidence, f"{found.reason}, by the best epochs seen")
        else:
            reason = f"after {window.restarts} restarts: {found.reason}"
            self._undo(window, evidence, reason, own=self._is_own(window, found))

    def _judge(self, window: Window) -> None:
        evidence = self._evidence(window, window.epoch_s)
        found = verify(self._c.now_s, evidence, self._c.rules)
        if found.keep is None:
            self._arm_early_verdict(window)
        elif found.keep:
            self._settle(window, evidence, found.reason)
        else:
            self._undo(window, evidence, found.reason, own=self._is_own(window, found))

    @staticmethod
    def _is_own(window: Window, found: Judgement) -> bool:
        return found.job_id == window.newcomer.spec.job_id

    def _evidence(self, window: Window, epoch_s: dict[str, float]) -> tuple[EvidenceRecord, ...]:
        found: list[EvidenceRecord] = []
        for job in window.affected:
            gpu_type = job.gpus[0].spec.gpu_type
            solo_s = job.solo_epoch_s(gpu_type)
            seen_s = epoch_s.get(job.spec.job_id)
            ratio = None if seen_s is None or solo_s is None else seen_s / solo_s
            left = job.epochs_left
            late = job.late(self._c.now_s, gpu_type)
            found.append(
                EvidenceRecord(job.spec.job_id, seen_s, ratio, left or 0, job.spec.deadline_s, late)
            )
        return tuple(found)

    def _proof_s(self, job: JobRecord) -> float | None:
        """Give when the running epoch will have lasted too long for the deadline.

        If it ends after lasting e seconds, R10 asks for start + e + left * e * 1.05 <= D
        with the epochs left after it, so e may be (D - start) / (1 + 1.05 * left) at most.
        """
        deadline_s, started_s, left = job.spec.deadline_s, job.epoch_started_s, job.epochs_left
        if deadline_s is None or started_s is None or left is None or not job.computing:
            return None
        if left < 1 or job.late(self._c.now_s, job.gpus[0].spec.gpu_type):
            return None
        longest_s = (deadline_s - started_s) / (1 + self._c.rules.observed_margin * (left - 1))
        # A hair more, so that an epoch that ends just in time is seen first.
        return started_s + longest_s * (1 + 1e-9) + 1e-6

    def _arm_early_verdict(self, window: Window) -> None:
        key = ("early", window.newcomer.spec.job_id)
        limits = [limit for job in window.affected if (limit := self._proof_s(job)) is not None]
        if limits:
            self._c.timers.set(key, max(min(limits), self._c.now_s))
        else:
            self._c.timers.cancel(key)

    def _settle(self, window: Window, evidence: tuple[EvidenceRecord, ...], reason: str) -> None:
        self._record(window, evidence, reason, keep=True)
        newcomer = window.newcomer
        self._close(window)
        if newcomer.state is JobState.OBSERVING:
            self._c.move(newcomer, JobState.SETTLED)
        self.unlock(newcomer)

    def _undo(
        self, window: Window, evidence: tuple[EvidenceRecord, ...], reason: str, *, own: bool
    ) -> None:
        c, job = self._c, window.newcomer
        self._record(window, evidence, reason, keep=False)
        gpus = tuple(job.gpus)
        self._note_undo(window)
        job.undos += 1
        job.tried.add(tuple(gpu.spec.gpu_id for gpu in gpus))
        if c.policy.bounded_undo:
            job.exclusive_only = job.exclusive_only or own or job.undos >= c.rules.max_undos
            job.reservation_wanted = job.reservation_wanted or own
        # The locks stay until the newcomer's GPUs are released.
        self._close(window)
        c.move(job, JobState.STOPPING)
        job.then, job.then_reason = JobState.QUEUED, f"undone: {reason}"
        c.stop_at_boundary(job, reason)

    def _note_undo(self, window: Window) -> None:
        """Remember the signature with the bound that it has now, evidence included."""
        c, job = self._c, window.newcomer
        gpus = tuple(job.gpus)
        gone = {r for gpu in gpus for r in gpu.residents if r not in window.affected}
        effects = predict_jct(job, gpus, c.view, without=frozenset({job, *gone}))
        gpu_type, residents = signature(effects)
        if residents:
            c.evidence.note_undo(gpu_type, job.kind.workload, residents, highest_bound(effects))

    def _record(
        self, window: Window, evidence: tuple[EvidenceRecord, ...], reason: str, *, keep: bool
    ) -> None:
        job = window.newcomer
        total = throughput_sum(evidence)
        self._c.records.append(
            Verdict(
                self._c.now_s,
                job.spec.job_id,
                job.attempt,
                keep,
                reason,
                evidence,
                total,
                window.restarts,
            )
        )

    def _close(self, window: Window) -> None:
        window.closed = True
        for job in window.affected:
            job.window = None
        self._c.view.open_windows -= 1
        self._c.timers.cancel(("early", window.newcomer.spec.job_id))

    def unlock(self, newcomer: JobRecord) -> None:
        """Open the GPUs again that the window of `newcomer` locked, if it had one."""
        window = self._locking.pop(newcomer.spec.job_id, None)
        if window is None:
            return
        for gpu in window.locked:
            self._c.ledger.unlock(gpu, newcomer.spec.job_id)
        self._c.pass_due = True

    def dump(self, refer: Callable[[GpuRecord], GpuRef]) -> tuple[WindowForm, ...]:
        """Give all windows as plain data; `refer` names a GPU."""
        return tuple(
            WindowForm(
                newcomer=newcomer_id,
                affected=tuple(job.spec.job_id for job in window.affected),
                locked=tuple(map(refer, window.locked)),
                opened=window.opened,
                closed=window.closed,
                restarts=window.restarts,
                epoch_s=tuple(sorted(window.epoch_s.items())),
                best_epoch_s=tuple(sorted(window.best_epoch_s.items())),
            )
            for newcomer_id, window in self._locking.items()
        )

    def load(self, forms: Iterable[WindowForm], find: Callable[[GpuRef], GpuRecord]) -> None:
        """Take in what `dump` gave; `find` gives a GPU by its name. Raises InputError."""
        jobs = self._c.jobs
        for form in forms:
            newcomer = jobs[form.newcomer]
            affected = [jobs[name] for name in form.affected]
            if form.newcomer in self._locking or not newcomer.holds:
                raise InputError(f"job {form.newcomer} cannot have this window")
            window = Window(newcomer, affected, [find(ref) for ref in form.locked])
            window.opened, window.closed = form.opened, form.closed
            window.restarts = form.restarts
            window.epoch_s.update(form.epoch_s)
            window.best_epoch_s.update(form.best_epoch_s)
            self._locking[form.newcomer] = window
            for gpu in window.locked:
                self._c.ledger.lock(gpu, form.newcomer)
            if not window.closed:
                self._join(window)

    def _join(self, window: Window) -> None:
        if window.newcomer not in window.affected:
            raise InputError(f"job {window.newcomer.spec.job_id} is not in its own window")
        for job in window.affected:
            if job.window is not None or not job.holds:
                raise InputError(f"job {job.spec.job_id} cannot be in this window")
            job.window = window
        self._c.view.open_windows += 1
