"""The queue: jobs in order of R1, grouped into classes that fit the same places.

Jobs of one class ask for the same GPUs and are of one kind, so that a place that
suits one of them suits all, but for deadlines and energy. A pass over the queue
looks at a class of thousands of jobs as at one, when no place suits the class.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from eaco_core._forms import ClassForm, QueueForm
from eaco_core._records import JobClass, JobKind
from eaco_core.errors import InputError
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from eaco_core._records import JobRecord, QueueKey
    from eaco_core.jobs import JobSpec

# GPUs, number of the kind, alone, timed, GPU types, node selector, nodes of the checkpoint.
_ClassKey = tuple[
    int,
    int,
    bool,
    bool,
    tuple[str, ...] | None,
    tuple[tuple[str, str], ...],
    frozenset[str] | None,
]


class JobQueue:
    """All queued jobs."""

    def __init__(self, exclusive_priority: int, starvation_s: float) -> None:
        self._exclusive_priority = exclusive_priority
        self._starvation_s = starvation_s
        self._kinds: dict[tuple[object, ...], JobKind] = {}
        self._by_number: list[JobKind] = []
        self._classes: dict[_ClassKey, JobClass] = {}
        self._order: list[tuple[QueueKey, JobRecord]] = []
        self._starving_at: list[tuple[float, QueueKey, JobRecord]] = []
        self._starved: list[tuple[QueueKey, JobRecord]] = []

    def __len__(self) -> int:
        """Give the number of queued jobs."""
        return len(self._order)

    def __iter__(self) -> Iterator[JobRecord]:
        """Give all queued jobs in order of R1."""
        return (job for _, job in self._order)

    @property
    def classes(self) -> list[JobClass]:
        """Give the classes that have members."""
        return [cls for cls in self._classes.values() if cls.members]

    def head(self) -> JobRecord | None:
        """Give the first job in order."""
        return self._order[0][1] if self._order else None

    def kind_of(self, spec: JobSpec) -> JobKind:
        """Give the one object that stands for all jobs of this kind."""
        key = JobKind.key(spec)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = JobKind(len(self._kinds), spec)
            self._by_number.append(kind)
        return kind

    def kinds(self) -> list[JobKind]:
        """Give all kinds, by their number."""
        return self._by_number

    def class_of(self, job: JobRecord) -> JobClass:
        """Give the class that a job belongs to as it is now."""
        key = self._class_key(job)
        cls = self._classes.get(key)
        if cls is None:
            cls = self._classes[key] = JobClass(job.kind, exclusive=key[2])
        return cls

    def _class_key(self, job: JobRecord) -> _ClassKey:
        exclusive = job.exclusive(self._exclusive_priority)
        spec = job.spec
        timed = all(p.epoch_s is not None for p in spec.profiles)
        return (
            spec.gpus,
            job.kind.number,
            exclusive,
            timed,
            spec.gpu_types,
            spec.node_selector,
            job.pinned_nodes,
        )

    def add(self, job: JobRecord, now_s: float) -> None:
        """Let a job wait, from now on."""
        job.queued_since_s = now_s
        job.wait_reason = ""
        entry = (job.key, job)
        insort(self._order, entry)
        cls = job.queue_class = self.class_of(job)
        insort(cls.members, entry)
        insort(cls.fresh, entry)
        crossing_s = self._crossing_s(job)
        if crossing_s < float("inf"):
            heapq.heappush(self._starving_at, (crossing_s, job.key, job))

    def remove(self, job: JobRecord, now_s: float) -> None:
        """Take a job out of the queue."""
        _take_out(self._order, job)
        if job.queue_class is not None:
            _take_out(job.queue_class.members, job)
            _take_out(job.queue_class.fresh, job)
            job.queue_class = None
        _take_out(self._starved, job)
        job.waited_s += now_s - job.queued_since_s

    def starving(self, now_s: float) -> list[JobRecord]:
        """Give the jobs that have waited too long, first in order first (R11)."""
        while self._starving_at and self._starving_at[0][0] <= now_s:
            crossing_s, key, job = heapq.heappop(self._starving_at)
            # A job that was placed and came back has a newer entry of its own.
            if job.state is JobState.QUEUED and self._crossing_s(job) == crossing_s:
                _take_out(self._starved, job)
                insort(self._starved, (key, job))
        return [job for _, job in self._starved]

    def _crossing_s(self, job: JobRecord) -> float:
        """Give when the job will have queued for W in all; a lost deadline needs no wait (R10)."""
        if job.reservation_wanted:
            return job.queued_since_s
        return job.queued_since_s + self._starvation_s - job.waited_s

    @property
    def next_starving_s(self) -> float | None:
        """Give when the next job will have waited too long."""
        return self._starving_at[0][0] if self._starving_at else None

    def dump(self) -> QueueForm:
        """Give what does not follow from the jobs, as plain data."""
        return QueueForm(
            classes=tuple(_class_form(key, cls) for key, cls in self._classes.items()),
            starving_at=tuple((t_s, job.spec.job_id) for t_s, _, job in sorted(self._starving_at)),
            starved=tuple(job.spec.job_id for _, job in self._starved),
        )

    def load(self, form: QueueForm, jobs: Mapping[str, JobRecord]) -> None:
        """Take in what `dump` gave; `jobs` are all jobs, as they were. Raises InputError."""
        for stored in form.classes:
            key = self._key_in(stored)
            if key in self._classes:
                raise InputError("a class of queued jobs is there twice")
            cls = self._classes[key] = JobClass(self._by_number[stored.kind], exclusive=key[2])
            cls.looked_seq, cls.timely = stored.looked_seq, stored.timely
        for job in jobs.values():
            if job.state is JobState.QUEUED:
                known = self._classes.get(self._class_key(job))
                if known is None:
                    raise InputError(
                        f"job {job.spec.job_id} is queued in a class that is not there"
                    )
                job.queue_class = known
                self._order.append((job.key, job))
                known.members.append((job.key, job))
        for entries in (self._order, *(cls.members for cls in self._classes.values())):
            entries.sort(key=_key_of)
        for stored, cls in zip(form.classes, self._classes.values(), strict=True):
            cls.fresh = _entries(stored.fresh, jobs)
            if any(job.queue_class is not cls for _, job in cls.fresh):
                raise InputError("a job is new in a class of queued jobs that is not its own")
        self._starved = _entries(form.starved, jobs)
        if any(job.queue_class is None for _, job in self._starved):
            raise InputError("a job has waited too long, and yet it is not queued")
        self._starving_at = [(t_s, jobs[name].key, jobs[name]) for t_s, name in form.starving_at]
        heapq.heapify(self._starving_at)

    def _key_in(self, form: ClassForm) -> _ClassKey:
        if form.kind >= len(self._by_number):
            raise InputError(f"there is no kind of job with the number {form.kind}")
        pinned = None if form.pinned_nodes is None else frozenset(form.pinned_nodes)
        return (
            form.gpus,
            form.kind,
            form.exclusive,
            form.timed,
            form.gpu_types,
            form.node_selector,
            pinned,
        )


def _class_form(key: _ClassKey, cls: JobClass) -> ClassForm:
    gpus, kind, exclusive, timed, gpu_types, node_selector, pinned = key
    return ClassForm(
        gpus=gpus,
        kind=kind,
        exclusive=exclusive,
        timed=timed,
        looked_seq=cls.looked_seq,
        timely=cls.timely,
        gpu_types=gpu_types,
        node_selector=node_selector,
        pinned_nodes=None if pinned is None else tuple(sorted(pinned)),
        fresh=tuple(job.spec.job_id for _, job in cls.fresh),
    )


def _entries(
    names: Iterable[str], jobs: Mapping[str, JobRecord]
) -> list[tuple[QueueKey, JobRecord]]:
    entries = [(jobs[name].key, jobs[name]) for name in dict.fromkeys(names)]
    return sorted(entries, key=_key_of)


def _take_out(entries: list[tuple[QueueKey, JobRecord]], job: JobRecord) -> None:
    position = bisect_left(entries, job.key, key=_key_of)
    if position < len(entries) and entries[position][0] == job.key:
        del entries[position]


def _key_of(entry: tuple[QueueKey, JobRecord]) -> QueueKey:
    return entry[0]
