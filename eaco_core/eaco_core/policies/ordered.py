"""A pass over the queue in order of R1 that looks at a class of jobs as at one."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from eaco_core.jobs import JobState
from eaco_core.policies.base import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eaco_core._queue import JobClass
    from eaco_core._records import JobRecord, QueueKey
    from eaco_core.view import View


class QueuePass:
    """Iterates over (class, job, since_seq): what changed after `since_seq` is news to the job.

    `has_news(seq)` tells whether anything that a job could use has changed since `seq`;
    if not, only the fresh members of a class (never looked at) are given.
    """

    def __init__(self, view: View, has_news: Callable[[int], bool]) -> None:
        self._view = view
        self._dropped: set[int] = set()
        self._old_dropped: set[int] = set()
        self._classes: list[JobClass] = []
        self._streams: list[list[tuple[QueueKey, JobRecord]]] = []
        for cls in view.queue.classes:
            entries = cls.members if has_news(cls.looked_seq) else cls.fresh
            if entries:
                self._classes.append(cls)
                self._streams.append(list(entries))

    def __iter__(self) -> Iterator[tuple[JobClass, JobRecord, int]]:
        """Give the jobs to look at, in order of R1; then remember how far each class was seen."""
        fresh = [{key for key, _ in cls.fresh} for cls in self._classes]
        heads = [(stream[0][0], number, 0) for number, stream in enumerate(self._streams)]
        heapq.heapify(heads)
        while heads:
            key, number, place = heapq.heappop(heads)
            cls, stream = self._classes[number], self._streams[number]
            if number in self._dropped:
                continue
            job = stream[place][1]
            if place + 1 < len(stream):
                heapq.heappush(heads, (stream[place + 1][0], number, place + 1))
            is_fresh = key in fresh[number]
            if number in self._old_dropped and not is_fresh:
                continue
            if job.state is JobState.QUEUED:
                yield cls, job, 0 if is_fresh else cls.looked_seq
        for cls in self._classes:
            cls.fresh.clear()
            cls.looked_seq = self._view.ledger.changed_seq

    def drop(self, cls: JobClass, reason: str, *, old_only: bool = False) -> Iterator[Wait]:
        """Give up on a class in this pass: no place suits any of its jobs.

        `old_only`: none of the changes suits those that were looked at before, but
        fresh ones have more to look at. Else yields a Wait for every fresh member,
        so that each has its reason (R18).
        """
        if old_only:
            self._old_dropped.add(self._classes.index(cls))
            return
        self._dropped.add(self._classes.index(cls))
        for _, job in list(cls.fresh):
            yield Wait(job, reason)
