"""The life of a job: started, epoch by epoch, stopped, ended, put back into the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.decisions import Requeued
from eaco_core.errors import EventRefused
from eaco_core.jobs import CheckpointScope, FailureReason, JobState
from eaco_core.states import RUNNING, TERMINAL

if TYPE_CHECKING:
    from eaco_core._context import Context
    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core._watch import Watch
    from eaco_core._windows import Windows

_S = JobState
_ENDS = frozenset({_S.FINISHED, _S.FAILED, _S.CANCELLED})


class Lifecycle:
    """Handles the events of jobs. Each handler gives why it ignored the event, or None."""

    def __init__(self, context: Context, windows: Windows, watch: Watch) -> None:
        self._c = context
        self._windows = windows
        self._watch = watch

    def started(self, job: JobRecord, event: ev.JobStarted) -> str | None:
        """The job's process runs."""
        if job.state is not _S.STARTING or not job.start_sent:
            return f"the job is {job.state.value}"
        c = self._c
        job.computing = True
        job.started_s = job.epoch_started_s = c.now_s
        job.epochs_this_attempt = 0
        job.start_failures = 0
        job.recent_epochs_s.clear()
        self._computing_changed(job)
        self._windows.resident_started(job)
        asked = {gpu.spec.gpu_id for gpu in job.gpus}
        if event.gpus and set(event.gpus) != asked:
            reason = "it was started on other GPUs than it was given"
            self._windows.resident_gone(job, reason)
            self._stop_now(job, _S.QUEUED, reason)
            return None
        if job.window is not None and job.window.newcomer is job:
            c.move(job, _S.OBSERVING)
            self._windows.newcomer_started(job.window)
        else:
            c.move(job, _S.SETTLED)
        for gpu in job.gpus:
            c.ledger.refresh(gpu)
        c.pass_due = True
        return None

    def start_failed(self, job: JobRecord, event: ev.StartFailed) -> str | None:
        """No process exists: free the GPUs at once."""
        has_run = job.started_s is not None
        if not job.start_sent or has_run or job.state not in {_S.STARTING, _S.STOPPING}:
            return f"the job is {job.state.value}"
        if job.state is _S.STOPPING:
            self._free(job, list(job.gpus))
            return None
        job.start_failures += 1
        job.then = _S.QUEUED
        job.then_reason = f"start failed: {event.reason or 'no reason given'}"
        if job.start_failures >= self._c.rules.max_start_failures:
            job.then = _S.FAILED
        self._windows.resident_gone(job, job.then_reason)
        self._free(job, list(job.gpus))
        return None

    def epoch_completed(self, job: JobRecord, event: ev.EpochCompleted) -> str | None:
        """Count an epoch; then look at the window (R10) or at the deadline (R12)."""
        if event.epoch <= job.epochs_done:
            return "this epoch was counted before"
        if not job.computing:
            return f"the job is {job.state.value} and does not compute"
        total = job.spec.epochs
        if total is not None and event.epoch > total:
            raise EventRefused(
                f"job {job.spec.job_id} reports epoch {event.epoch} of {total}",
                event=event,
                job_id=job.spec.job_id,
            )
        self.seen_alive(job)
        step = event.epoch - job.epochs_done
        began_s = job.epoch_started_s if job.epoch_started_s is not None else self._c.now_s
        job.epochs_done = event.epoch
        job.epoch_started_s = self._c.now_s
        job.epochs_this_attempt += step
        self._note_memory(job, event.peak_mem_bytes)
        epoch_s = self._c.now_s - began_s
        clean = event.clean and step == 1 and began_s >= job.clean_since_s and epoch_s > 0
        observed_s = None
        if clean:
            observed_s = self._observe(job, epoch_s)
            job.recent_epochs_s.append(epoch_s)
        else:
            job.acc_s = 0.0
            job.acc_epochs = 0
        if job.window is not None:
            self._windows.epoch_seen(job, observed_s)
        elif job.state is _S.SETTLED:
            self._watch.look(job, event.epoch)
        return None

    def stopped(self, job: JobRecord, event: ev.JobStopped) -> str | None:
        """The job stopped with a checkpoint; its GPUs follow by GpusReleased."""
        if not job.computing:
            return f"the job is {job.state.value} and does not compute"
        if event.checkpoint_epoch > (job.spec.epochs or event.checkpoint_epoch):
            raise EventRefused(
                f"job {job.spec.job_id} has a checkpoint after its last epoch",
                event=event,
                job_id=job.spec.job_id,
            )
        self._process_ended(job, "it stopped")
        job.epochs_done = event.checkpoint_epoch
        if job.state is not _S.STOPPING:
            self._c.move(job, _S.STOPPING)
            job.then, job.then_reason = _S.QUEUED, "it stopped by itself with a checkpoint"
        return None

    def finished(self, job: JobRecord, _: ev.JobFinished) -> str | None:
        """The job has done its work."""
        if not job.computing:
            return f"the job is {job.state.value} and does not compute"
        self._process_ended(job, "it finished")
        if job.then is not _S.CANCELLED:
            job.then, job.then_reason = _S.FINISHED, "finished"
        if job.state is not _S.STOPPING:
            self._c.move(job, _S.STOPPING)
        return None

    def failed(self, job: JobRecord, event: ev.JobFailed) -> str | None:
        """The job ended without finishing (R13, R14)."""
        if not job.computing:
            return f"the job is {job.state.value} and does not compute"
        shared = any(len(gpu.residents) > 1 for gpu in job.gpus)
        self._note_memory(job, event.peak_mem_bytes)
        self._process_ended(job, f"it failed: {event.reason.value}")
        if job.state is not _S.STOPPING:
            self._c.move(job, _S.STOPPING)
        if job.then in _ENDS:
            return None
        job.then, job.then_reason = _S.QUEUED, f"failed: {event.reason.value}"
        if event.reason is FailureReason.OUT_OF_MEMORY and shared:
            job.exclusive_next = True
        elif event.reason in {FailureReason.EXIT, FailureReason.OUT_OF_MEMORY}:
            limit = job.spec.max_restarts
            limit = self._c.rules.max_restarts if limit is None else limit
            job.failures += 1
            if job.failures > limit:
                job.then = _S.FAILED
        self._roll_back(job, node_lost=False)
        return None

    def unknown(self, job: JobRecord, _: ev.JobUnknown) -> str | None:
        """Nobody knows whether the job runs: wait a while, then take it as lost (R14)."""
        if not job.computing or job.unknown:
            return f"the job is {job.state.value}{', unknown' if job.unknown else ''}"
        job.unknown = True
        lost_s = self._c.now_s + self._c.rules.lost_after_s
        self._c.timers.set(("lost", job.spec.job_id), lost_s)
        for gpu in job.gpus:
            self._c.ledger.refresh(gpu)
        return None

    def released(self, job: JobRecord, event: ev.GpusReleased) -> str | None:
        """GPUs are proven free."""
        held = [gpu for gpu in job.gpus if gpu.spec.gpu_id in event.gpus]
        if not held:
            return "the job holds none of these GPUs"
        if job.state is not _S.STOPPING:
            raise EventRefused(
                f"job {job.spec.job_id} is {job.state.value}: its GPUs cannot be free before "
                "JobFinished, JobFailed or JobStopped, or a KillJob",
                event=event,
                job_id=job.spec.job_id,
            )
        if job.computing:
            self._process_ended(job, "it was killed")
            if job.then is _S.QUEUED:
                self._roll_back(job, node_lost=False)
        self._free(job, held)
        return None

    def cancelled(self, job: JobRecord) -> str | None:
        """Its user takes the job back (I29)."""
        if job.state in TERMINAL or job.then in _ENDS:
            return f"the job is {job.state.value}"
        if job.state is _S.QUEUED:
            self._c.queue.remove(job, self._c.now_s)
            self._c.move(job, _S.CANCELLED)
            self._drop_reservation(job)
            # Whoever waited behind it may be able to start.
            self._c.pass_due = True
            return None
        job.then_reason = "cancelled by its user"
        if job.state is _S.STARTING and not job.start_sent:
            job.then = _S.CANCELLED
            self._windows.resident_gone(job, job.then_reason)
            self._free(job, list(job.gpus))
            return None
        if job.state is not _S.STOPPING:
            self._windows.resident_gone(job, job.then_reason)
        self._stop_now(job, _S.CANCELLED, job.then_reason)
        return None

    def lost(self, job: JobRecord, gpus: list[GpuRecord], reason: str, *, may_live: bool) -> None:
        """Some of a job's GPUs are gone, and with them the job (I28).

        `may_live`: its process may still be there, although the GPU is not.
        """
        node_lost = any(gpu.node.state is NodeState.OUT for gpu in gpus)
        sent = job.start_sent
        if job.state is not _S.STOPPING:
            self._windows.resident_gone(job, reason)
        self._process_ended(job, reason)
        if job.then not in _ENDS:
            job.then, job.then_reason = _S.QUEUED, reason
            self._roll_back(job, node_lost=node_lost)
        elsewhere = [gpu for gpu in job.gpus if gpu not in gpus]
        if elsewhere and job.state is _S.STARTING and not job.start_sent:
            self._free(job, list(job.gpus))
            return
        if elsewhere and job.state is not _S.STOPPING:
            self._c.move(job, _S.STOPPING)
        if sent and (elsewhere or may_live):
            self._c.kill(job, reason)
        self._free(job, gpus)

    def checkpoints_lost(self, node_id: str, reason: str) -> None:
        """A node took the checkpoints with it of jobs that wait to go on there (I17)."""
        c = self._c
        pinned = [job for job in c.queue if job.pinned_nodes and node_id in job.pinned_nodes]
        for job in pinned:
            c.queue.remove(job, c.now_s)
            self._roll_back(job, node_lost=True)
            job.pinned_nodes = None
            c.queue.add(job, c.now_s)
            c.records.append(Requeued(c.now_s, job.spec.job_id, job.epochs_done, reason))

    def seen_alive(self, job: JobRecord) -> None:
        """A sign of life: the job is not unknown."""
        if job.unknown:
            job.unknown = False
            self._c.timers.cancel(("lost", job.spec.job_id))
            for gpu in job.gpus:
                self._c.ledger.refresh(gpu)

    def give_up_unknown(self, job: JobRecord) -> None:
        """An unknown job did not come back: kill it, and requeue it once that is proven."""
        reason = "nobody knows whether it runs"
        if job.state in RUNNING:
            self._windows.resident_gone(job, reason)
            self._stop_now(job, _S.QUEUED, reason)

    # ---- steps that several events share -------------------------------------------

    def _stop_now(self, job: JobRecord, then: JobState, reason: str) -> None:
        if job.state is not _S.STOPPING:
            self._c.move(job, _S.STOPPING)
        job.then, job.then_reason = then, reason
        self._c.kill(job, reason)

    def _process_ended(self, job: JobRecord, reason: str) -> None:
        if job.computing:
            job.computing = False
            self._computing_changed(job)
        job.unknown = False
        self._c.timers.cancel(("lost", job.spec.job_id))
        self._c.timers.cancel(("kill", job.spec.job_id))
        self._windows.resident_gone(job, reason)

    def _computing_changed(self, job: JobRecord) -> None:
        """Epochs that run now on these GPUs are not comparable any more."""
        for gpu in job.gpus:
            for resident in gpu.residents:
                resident.clean_since_s = self._c.now_s
                resident.acc_s = 0.0
                resident.acc_epochs = 0
                resident.recent_epochs_s.clear()

    def _free(self, job: JobRecord, gpus: list[GpuRecord]) -> None:
        c = self._c
        for gpu in gpus:
            c.ledger.release(job, gpu, c.now_s)
        c.refresh_bounds(gpus)
        c.pass_due = True
        self._watch.room_came_up(gpus)
        if not job.gpus:
            self._left(job)

    def _left(self, job: JobRecord) -> None:
        """The job holds nothing any more: it is where `then` says."""
        c = self._c
        then = job.then or _S.QUEUED
        c.move(job, then)
        self._windows.unlock(job)
        c.timers.cancel(("kill", job.spec.job_id))
        job.started_s = job.epoch_started_s = None
        job.start_sent = False
        job.computing = False
        job.then = None
        job.upper_ratio = 1.0
        self._drop_reservation(job)
        if then is _S.QUEUED:
            job.pinned_nodes = job.checkpoint_nodes if job.epochs_done else None
            c.queue.add(job, c.now_s)
            c.records.append(Requeued(c.now_s, job.spec.job_id, job.epochs_done, job.then_reason))

    def _drop_reservation(self, job: JobRecord) -> None:
        held = self._c.view.reservation
        if held is not None and held.job is job:
            for gpu in held.gpus:
                gpu.reserved_for = None
            self._c.view.reservation = None
            self._c.ledger.note_reservation_moved()
            self._c.pass_due = True

    def _roll_back(self, job: JobRecord, *, node_lost: bool) -> None:
        """Fall back to the last checkpoint that can still be read (I17)."""
        scope = job.spec.checkpoint_scope
        if scope is CheckpointScope.NONE or (scope is CheckpointScope.NODE and node_lost):
            job.epochs_done = 0

    def _note_memory(self, job: JobRecord, peak_bytes: int | None) -> None:
        if not job.gpus:
            return
        if peak_bytes is not None and job.spec.workload is not None:
            gpu_type = job.gpus[0].spec.gpu_type
            self._c.evidence.note_peak_mem(gpu_type, job.spec.workload, peak_bytes)
        if job.epochs_this_attempt == 1:
            # A job of unknown memory is open to newcomers after its first epoch (R13).
            for gpu in job.gpus:
                self._c.ledger.refresh(gpu)
            self._c.pass_due = True

    def _observe(self, job: JobRecord, epoch_s: float) -> float | None:
        """Add up clean epochs until they make 30 s; give their mean then (R9)."""
        job.acc_s += epoch_s
        job.acc_epochs += 1
        if job.acc_s < self._c.rules.window_min_s:
            return None
        observed_s = job.acc_s / job.acc_epochs
        job.acc_s = 0.0
        job.acc_epochs = 0
        self._record(job, observed_s)
        return observed_s

    def _record(self, job: JobRecord, observed_s: float) -> None:
        gpu_type = job.gpus[0].spec.gpu_type
        solo_s = job.solo_epoch_s(gpu_type)
        co = self._co_workloads(job)
        if not co or solo_s is None or job.spec.workload is None or "" in co:
            return
        seen = fx.Observation(
            t_s=self._c.now_s,
            job_id=job.spec.job_id,
            workload=job.spec.workload,
            co_workloads=co,
            gpu_type=gpu_type,
            epoch_s=observed_s,
            solo_epoch_s=solo_s,
            ratio=observed_s / solo_s,
        )
        version = self._c.evidence.version
        fell = self._c.evidence.add(seen)
        self._c.effects.append(fx.RecordObservation(seen))
        if self._c.evidence.version != version:
            for gpu in job.gpus:
                self._c.refresh_bounds([gpu])
        if fell:
            self._c.ledger.touch_all()
            self._c.pass_due = True

    def _co_workloads(self, job: JobRecord) -> tuple[str, ...]:
        """Give those that compute beside the job on its worst GPU."""
        worst: tuple[float, int, tuple[str, ...]] = (0.0, 0, ())
        for gpu in job.gpus:
            co = [other.kind for other in gpu.residents if other is not job and other.computing]
            if co:
                upper = self._c.evidence.bound(gpu.spec.gpu_type, job.kind, co).upper_ratio
                names = tuple(sorted(kind.workload for kind in co))
                worst = max(worst, (upper, len(names), names))
        return worst[2]
