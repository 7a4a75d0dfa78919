"""The queue: jobs in order of R1, grouped into classes that fit the same places.

Jobs of one class ask for the same GPUs and are of one kind, so that a place that
suits one of them suits all, but for deadlines and energy. A pass over the queue
looks at a class of thousands of jobs as at one, when no place suits the class.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from eaco_core._records import JobClass, JobKind
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core._records import JobRecord, QueueKey
    from eaco_core.jobs import JobSpec


class JobQueue:
    """All queued jobs."""

    def __init__(self, exclusive_priority: int, starvation_s: float) -> None:
        self._exclusive_priority = exclusive_priority
        self._starvation_s = starvation_s
        self._kinds: dict[tuple[object, ...], JobKind] = {}
        self._by_number: list[JobKind] = []
        self._classes: dict[tuple[object, ...], JobClass] = {}
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
        exclusive = job.exclusive(self._exclusive_priority)
        spec = job.spec
        timed = all(p.epoch_s is not None for p in spec.profiles)
        key = (
            spec.gpus,
            job.kind.number,
            exclusive,
            timed,
            spec.gpu_types,
            spec.node_selector,
            job.pinned_nodes,
        )
        cls = self._classes.get(key)
        if cls is None:
            cls = self._classes[key] = JobClass(job.kind, exclusive=exclusive)
        return cls

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


def _take_out(entries: list[tuple[QueueKey, JobRecord]], job: JobRecord) -> None:
    position = bisect_left(entries, job.key, key=_key_of)
    if position < len(entries) and entries[position][0] == job.key:
        del entries[position]


def _key_of(entry: tuple[QueueKey, JobRecord]) -> QueueKey:
    return entry[0]
