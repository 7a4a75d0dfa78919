"""The work of each job: what it was in the schedule as it was, and what eaco is given to do.

Both schedules do the same work. A job that had not ended when the history did counts until its
last epoch, work that was lost and done again counts as often as it was done, and what never ran
counts in neither.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING

import attrs
from attrs import field, frozen

from eaco_core.jobs import JobSpec, ShareWith, SoloProfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_adapters.shadow.past import Attempt, Past, PastJob

MOST_EPOCHS = 10_000_000


@frozen
class Held:
    """GPUs of one attempt in the schedule as it was. It computes from `started_s` to `ended_s`."""

    gpus: tuple[tuple[str, float], ...]  # GPU, time of its release
    commanded_s: float
    started_s: float
    ended_s: float

    @property
    def released_s(self) -> float:
        """When the last GPU was free."""
        return max(at_s for _, at_s in self.gpus)


@frozen
class Work:
    """One job that is compared.

    `truth` says what it really does (for the simulated world), `believed` what eaco knows.
    `util_assumed`: nobody measured its utilisation. `alone`: why it runs alone under eaco, or "".
    """

    job_id: str
    truth: JobSpec
    believed: JobSpec
    held: tuple[Held, ...]
    end_s: float
    finished: bool
    util_assumed: bool
    alone: str

    @property
    def wait_s(self) -> float:
        """All its time in the queue and starting, in the schedule as it was."""
        run_s = sum(one.ended_s - one.started_s for one in self.held)
        return self.end_s - self.truth.submit_s - run_s

    @property
    def late(self) -> bool:
        """Whether it ended after its deadline, in the schedule as it was."""
        deadline_s = self.truth.deadline_s
        return deadline_s is not None and self.end_s > deadline_s + 1e-6


@frozen
class Workload:
    """All jobs that are compared, and how many are not, by reason."""

    jobs: tuple[Work, ...]
    left_out: Mapping[str, int] = field(factory=dict[str, int])
    notes: tuple[str, ...] = ()


def work_of(past: Past, *, assumed_util_ratio: float) -> Workload:
    """Give what both schedules have to do; unknown utilisations are `assumed_util_ratio`."""
    jobs: list[Work] = []
    left_out: Counter[str] = Counter()
    for job in past.jobs.values():
        work = _work(past, job, assumed_util_ratio)
        if isinstance(work, str):
            left_out[work] += 1
        else:
            jobs.append(work)
    return Workload(tuple(jobs), dict(left_out))


def _work(past: Past, job: PastJob, assumed_util_ratio: float) -> Work | str:
    ran = [one for one in job.attempts if one.started_s is not None]
    if not ran:
        if job.cancelled_s is not None:
            return "taken back before they started"
        return "never started in the history"
    unfinished = not ran[-1].end
    whole_epochs = job.spec.epochs is not None or any(one.epochs for one in ran)
    held = tuple(
        one
        for attempt in ran
        for one in (_held(attempt, past.now_s, cut=whole_epochs),)
        if one is not None
    )
    if not held:
        return "still in their first epoch"
    gpu_type = past.gpu_type(next(iter(ran[-1].gpus)))
    solo_s, why = _solo_s(past, job, ran, held, gpu_type)
    compute_s = sum(one.ended_s - one.started_s for one in held)
    shared = any(attempt.shared for attempt in ran)
    clean = not shared and all(attempt.end in {"", "finished"} for attempt in ran)
    epochs = sum(attempt.epochs for attempt in ran)
    if clean or not solo_s:
        epochs = max(1, epochs or (job.spec.epochs or 1 if job.finished_s is not None else 1))
        solo_s = compute_s / epochs
    elif not shared:
        epochs = round(compute_s / solo_s)
    elif not epochs and job.finished_s is not None:
        epochs = job.spec.epochs or 1
    if epochs < 1 or solo_s <= 0:
        return "ended within their first epoch"
    truth = _truth(past, job, ran, gpu_type=gpu_type, epochs=epochs, solo_s=solo_s)
    profile = truth.profile_on(gpu_type)
    assumed = profile is None or profile.util_ratio is None
    if assumed:
        truth = _with_util(truth, assumed_util_ratio)
    believed = _believed(past, job, truth)
    return Work(
        job_id=job.spec.job_id,
        truth=truth,
        believed=attrs.evolve(believed, exclusive=believed.exclusive or bool(why)),
        held=held,
        end_s=max(one.ended_s for one in held),
        finished=not unfinished and job.finished_s is not None,
        util_assumed=assumed,
        alone=why or _alone(believed, gpu_type, past.mem_limits.get(gpu_type)),
    )


def _held(attempt: Attempt, now_s: float, *, cut: bool) -> Held | None:
    """Give the time on GPUs; of what still runs, until its last epoch (None: there is none)."""
    started_s = attempt.started_s
    if started_s is None:
        return None
    ended_s = attempt.ended_s
    if ended_s is None:
        ended_s = now_s
        if cut:
            if not attempt.epochs or attempt.last_epoch_s is None:
                return None
            ended_s = attempt.last_epoch_s
        return Held(
            tuple((gpu_id, ended_s) for gpu_id in attempt.gpus),
            attempt.commanded_s,
            started_s,
            ended_s,
        )
    open_s = ended_s if attempt.end in {"finished", "unknown"} else now_s
    gpus = tuple(
        (gpu_id, open_s if at_s is None else max(at_s, ended_s))
        for gpu_id, at_s in attempt.held.items()
    )
    return Held(gpus, attempt.commanded_s, started_s, ended_s)


def _solo_s(
    past: Past, job: PastJob, ran: list[Attempt], held: tuple[Held, ...], gpu_type: str
) -> tuple[float | None, str]:
    """Give the time of an epoch alone, and why the job cannot be judged beside others ("")."""
    alone_s = [length_s for attempt in ran for length_s in attempt.alone_s]
    if alone_s:
        return fmean(alone_s), ""
    given = job.spec.profile_on(gpu_type)
    if given is not None and given.epoch_s is not None:
        return given.epoch_s, ""
    seen = past.known.seen(job.spec.workload, gpu_type)
    if seen is not None and seen.epoch_s is not None:
        return seen.epoch_s, ""
    if any(attempt.shared for attempt in ran) and held:
        return None, "it was never seen alone"
    return None, ""


def _truth(
    past: Past,
    job: PastJob,
    ran: list[Attempt],
    *,
    gpu_type: str,
    epochs: int,
    solo_s: float,
) -> JobSpec:
    """Describe what the job really does, on every type of GPU on which that is known."""
    spec, known = job.spec, past.known
    given = spec.profile_on(gpu_type) or SoloProfile(gpu_type)
    seen = known.seen(spec.workload, gpu_type)
    count = sum(attempt.util.count for attempt in ran)
    util_ratio = given.util_ratio
    if count:
        util_ratio = sum(attempt.util.total for attempt in ran) / count
    elif seen is not None and util_ratio is None:
        util_ratio = seen.util.value
    mem_bytes = given.peak_mem_bytes
    if mem_bytes is None and seen is not None:
        mem_bytes = seen.peak_mem_bytes
    profiles = [
        attrs.evolve(given, epoch_s=solo_s, util_ratio=util_ratio, peak_mem_bytes=mem_bytes)
    ]
    profiles.extend(
        other
        for other in job.believed.profiles
        if other.gpu_type != gpu_type and other.epoch_s is not None
    )
    deadline_s = spec.deadline_s
    return attrs.evolve(
        spec,
        gpus=len(ran[-1].gpus),
        submit_s=job.submit_s,
        epochs=epochs,
        profiles=tuple(profiles),
        deadline_s=None if deadline_s is None else deadline_s - past.first_s,
    )


def _with_util(spec: JobSpec, util_ratio: float) -> JobSpec:
    profiles = tuple(
        attrs.evolve(one, util_ratio=util_ratio) if one.util_ratio is None else one
        for one in spec.profiles
    )
    return attrs.evolve(spec, profiles=profiles)


def _believed(past: Past, job: PastJob, truth: JobSpec) -> JobSpec:
    """Give the job as eaco sees it: nothing of it was measured after it was submitted."""
    believed = job.believed
    epochs = believed.epochs
    limits = past.mem_limits
    profiles = tuple(
        attrs.evolve(one, peak_mem_bytes=None)
        if (one.peak_mem_bytes or 0) > limits.get(one.gpu_type, one.peak_mem_bytes or 0)
        else one
        for one in believed.profiles
    )
    types = past.gpu_types
    allowed = believed.gpu_types
    if len(types) > 1:  # only where it is known how fast the job is
        allowed = tuple(
            one.gpu_type
            for one in truth.profiles
            if one.gpu_type in types and (allowed is None or one.gpu_type in allowed)
        )
        allowed = allowed or (truth.profiles[0].gpu_type,)
    elif allowed is not None and not types.intersection(allowed):
        allowed = None  # it ran here all the same
    return attrs.evolve(
        believed,
        gpus=truth.gpus,
        submit_s=truth.submit_s,
        deadline_s=truth.deadline_s,
        epochs=None if epochs is None else max(epochs, truth.epochs or 1),
        profiles=profiles,
        gpu_types=allowed,
        node_selector=() if past.ignores_labels(believed) else believed.node_selector,
    )


def _alone(believed: JobSpec, gpu_type: str, mem_bytes: int | None) -> str:
    """Say what is missing for sharing; "" = nothing."""
    then = "was not known when it was submitted"
    profile = believed.profile_on(gpu_type) or SoloProfile(gpu_type)
    missing = {
        "its user does not share": believed.exclusive or believed.share_with is ShareWith.NONE,
        "it names no workload": believed.workload is None,
        "it does not say how many epochs it has": believed.epochs is None,
        f"its epoch time alone {then}": profile.epoch_s is None,
        f"its GPU utilisation {then}": profile.util_ratio is None,
        f"how busy it keeps the GPU memory {then}": profile.mem_busy_ratio is None,
        f"its peak GPU memory {then}": profile.peak_mem_bytes is None,
        "the memory of its GPUs is not known": mem_bytes is None,
    }
    return next((why for why, holds in missing.items() if holds), "")
