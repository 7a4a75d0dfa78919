"""Holds: which job had which GPUs, from when to when. Times are Unix time in nanoseconds."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from attrs import field, frozen

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from attrs import Attribute

Span = tuple[int, int]
"""From (included) to (excluded), in nanoseconds."""


def _named(instance: object, attribute: Attribute[str], value: str) -> None:
    if not value:
        raise InputError(f"{type(instance).__name__}.{attribute.name} must not be empty")


def _some(instance: JobHold, attribute: Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if not value or not all(value):
        raise InputError(f"job {instance.job_id}: {attribute.name} must name at least one GPU")


def _in_order(instance: JobHold, _attribute: Attribute[int | None], value: int | None) -> None:
    if value is not None and value < instance.start_ns:
        raise InputError(f"job {instance.job_id}: it ends before it starts")


@frozen
class JobHold:
    """One job had these GPUs from `start_ns` on, until `end_ns` (None: it still has them).

    `node_id`: the GPUs count on this node only; None: wherever they are. `workload`: what
    the job trains, so that its utilisation alone may be learnt from jobs alike. `pids`: the
    processes of the job on these GPUs; None: not known.
    """

    job_id: str = field(validator=_named)
    gpu_ids: tuple[str, ...] = field(validator=_some)
    start_ns: int
    end_ns: int | None = field(default=None, validator=_in_order)
    user: str = ""
    node_id: str | None = None
    workload: str | None = None
    pids: frozenset[int] | None = None


class GpuHolds:
    """Who holds one GPU at each time. A job that holds it twice at once holds it once."""

    def __init__(self, spans: Mapping[str, Sequence[Span]]) -> None:
        self.spans = {job_id: _merged(some) for job_id, some in spans.items()}
        """By job: when it holds the GPU, in order and without overlaps."""
        changes: dict[int, list[tuple[str, bool]]] = {}
        for job_id, own in self.spans.items():
            for start, end in own:
                changes.setdefault(start, []).append((job_id, True))
                changes.setdefault(end, []).append((job_id, False))
        self.times: list[int] = sorted(changes)
        """When the residents change."""
        self._residents: list[tuple[str, ...]] = []
        now: set[str] = set()
        for time in self.times:
            now -= {job_id for job_id, starts in changes[time] if not starts}
            now |= {job_id for job_id, starts in changes[time] if starts}
            self._residents.append(tuple(sorted(now)))

    def residents(self, time: int) -> tuple[str, ...]:
        """The jobs that hold the GPU at a time and right after it, sorted."""
        at = bisect_right(self.times, time)
        return self._residents[at - 1] if at else ()

    def stretch(self, time: int) -> Span | None:
        """When the GPU is held without a break around a time; None if it is free then."""
        at = bisect_right(self.times, time) - 1
        if at < 0 or not self._residents[at]:
            return None
        first = last = at
        while first > 0 and self._residents[first - 1]:
            first -= 1
        while self._residents[last]:
            last += 1
        return self.times[first], self.times[last]


class HoldTable:
    """All holds of one node, by GPU. Open ones end at `end_ns`, the end of the recording."""

    def __init__(self, node_id: str, holds: Iterable[JobHold], end_ns: int) -> None:
        spans: dict[str, dict[str, list[Span]]] = {}
        pids: dict[tuple[str, str], frozenset[int] | None] = {}
        for hold in holds:
            if hold.node_id is not None and hold.node_id != node_id:
                continue
            end = max(hold.start_ns, end_ns) if hold.end_ns is None else hold.end_ns
            if end == hold.start_ns:
                continue
            for gpu_id in hold.gpu_ids:
                own = spans.setdefault(gpu_id, {}).setdefault(hold.job_id, [])
                own.append((hold.start_ns, end))
                key = (gpu_id, hold.job_id)
                known = pids.get(key, frozenset())
                both = None if known is None or hold.pids is None else known | hold.pids
                pids[key] = both
        self._spans = spans
        self._pids = pids
        self._known: dict[tuple[str, ...], GpuHolds] = {}

    @property
    def gpu_ids(self) -> Iterable[str]:
        """The GPUs that are ever held."""
        return self._spans

    def of(self, *gpu_ids: str) -> GpuHolds:
        """Give the holds of a GPU, or of several as if they were one. There may be none."""
        known = self._known.get(gpu_ids)
        if known is None:
            together: dict[str, list[Span]] = {}
            for gpu_id in gpu_ids:
                for job_id, spans in self._spans.get(gpu_id, {}).items():
                    together.setdefault(job_id, []).extend(spans)
            known = self._known[gpu_ids] = GpuHolds(together)
        return known

    def pids(self, gpu_id: str, job_id: str) -> frozenset[int] | None:
        """Give the processes of a job on a GPU; None if one of its holds does not say."""
        return self._pids.get((gpu_id, job_id))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def merged_length(spans: Iterable[Span], window: Span) -> int:
    """Give how many nanoseconds of a window the spans cover, each counted once."""
    low, high = window
    return sum(max(0, min(end, high) - max(start, low)) for start, end in _merged(spans))
