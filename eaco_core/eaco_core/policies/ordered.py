"""A pass over the queue in order of R1 that looks at a class of jobs as at one."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from eaco_core.policies.base import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eaco_core._records import JobClass, JobRecord, QueueKey
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
                self._streams.append(entries)

    def __iter__(self) -> Iterator[tuple[JobClass, JobRecord, int]]:
        """Give the jobs to look at, in order of R1; then remember how far each class was seen.

        Jobs leave the lists while they are walked through, so each step looks for the
        first key after the last one.
        """
        fresh = [{key for key, _ in cls.fresh} for cls in self._classes]
        heads = [(stream[0][0], number) for number, stream in enumerate(self._streams)]
        heapq.heapify(heads)
        while heads:
            key, number = heads[0]
            cls, stream = self._classes[number], self._streams[number]
            is_fresh = key in fresh[number]
            place = bisect_left(stream, key, key=_key_of)
            if not self._skips(number, is_fresh=is_fresh) and place < len(stream):
                yield cls, stream[place][1], 0 if is_fresh else cls.looked_seq
            if number in self._old_dropped:
                stream = cls.fresh
            place = bisect_right(stream, key, key=_key_of)
            if number in self._dropped or place == len(stream):
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (stream[place][0], number))
        for cls in self._classes:
            cls.fresh.clear()
            cls.looked_seq = self._view.ledger.changed_seq

    def _skips(self, number: int, *, is_fresh: bool) -> bool:
        return number in self._dropped or (number in self._old_dropped and not is_fresh)

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


def _key_of(entry: tuple[QueueKey, JobRecord]) -> QueueKey:
    return entry[0]
