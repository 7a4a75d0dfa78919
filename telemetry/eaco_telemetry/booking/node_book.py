"""The book of one node: takes its steps, books every joule once.

Between two changes of holds, prices or the window lies a **segment**: one interval of the
ledger, checked against I30. Within it a split may differ from step to step (SM shares, the
server's dynamic part), so sums are made step by step and never from means.
"""

from __future__ import annotations

from itertools import pairwise
from math import fsum
from operator import mul, sub
from typing import TYPE_CHECKING, Final

from attrs import Factory, define, field, frozen

from eaco_telemetry.accounting import NodeInterval
from eaco_telemetry.booking.aligned import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eaco_telemetry.booking.aligned import Part
    from eaco_telemetry.booking.holds import Span
    from eaco_telemetry.booking.rows import Processes
    from eaco_telemetry.booking.rules import GpuLayout, Plan, Planner, Source, Weights
    from eaco_telemetry.booking.server import NodeSteps

_LEAST_W: Final = 1e-6
"""Below this, the active power of the jobs of a node is rounding and no ground for a split."""


@frozen
class Segment:
    """An interval of the ledger, with its true begin (Unix time in nanoseconds)."""

    t0_ns: int
    t1_ns: int
    interval: NodeInterval


@define
class Grounds:
    """What a report tells about one node beside joules.

    `active_j`: active energy of GPUs by what it was split by. `covered_ns`: by job, GPU
    time that was held and measured. `gpu_ns`: by GPU, time measured; `server_ns`: of the
    server part. `gpus_j` and `server_j`: what they used.
    """

    active_j: dict[Source, float] = Factory(dict["Source", float])
    covered_ns: dict[str, int] = Factory(dict[str, int])
    gpu_ns: dict[str, int] = Factory(dict[str, int])
    server_ns: int = 0
    gpus_j: float = 0.0
    server_j: float = 0.0


@define
class NodeBook:
    """Books one node, in the order of time. `cuts_ns`: where segments end, sorted."""

    node_id: str
    layout: Sequence[GpuLayout]
    planner: Planner
    idle_w: Mapping[str, float]
    server_idle_w: float
    window: Span
    origin_ns: int
    cuts_ns: Sequence[int]
    book: Callable[[Segment], None]
    grounds: Grounds = field(factory=Grounds)

    def take(self, node: NodeSteps) -> None:
        """Book steps that follow those taken before."""
        edges = node.edges_ns
        for part in parts_of(edges, self.cuts_ns):
            if self.window[0] <= edges[part.start] and edges[part.stop] <= self.window[1]:
                self.book(_SegmentBook(self, node, part).close())


@frozen
class _GpuPart:
    """One GPU in a segment, with its active energy by step.

    `weights`: by step, a column for each job of the plan and one for what is left; None
    where they are the same in all steps. `sources`: what they stand on, likewise.
    """

    plan: Plan
    active: list[float]
    weights: list[tuple[float, ...]] | None
    sources: Sequence[Source]

    @property
    def of_jobs(self) -> list[float]:
        """What of the active part the jobs pay, by step."""
        if self.weights is None:
            return self.active
        left = map(mul, self.active, self.weights[-1])
        return list(map(sub, self.active, left))


def _gpu_part(plan: Plan, active: list[float], processes: list[Processes]) -> _GpuPart:
    if not plan.looks_at_processes:
        return _GpuPart(plan, active, None, (plan.source,))
    weights, sources = plan.at_each(processes)
    return _GpuPart(plan, active, list(zip(*weights, strict=True)), sources)


def _parted(
    joules: list[float], most_w: float, lengths_s: list[float]
) -> tuple[list[float], list[float]]:
    """Part the energy of each step in what is up to a power and what is above it."""
    if not most_w:
        return [0.0] * len(joules), joules
    most_j = [most_w * length_s for length_s in lengths_s]
    base = list(map(min, joules, most_j))
    return base, list(map(sub, joules, base))


class _SegmentBook:
    def __init__(self, book: NodeBook, node: NodeSteps, part: Part) -> None:
        self._book = book
        self._node = node
        self._steps = part.steps
        self._edges = node.edges_ns[part.edges]
        self._t0, self._t1 = node.edges_ns[part.start], node.edges_ns[part.stop]
        self._lengths_s = node.lengths_s[part.steps]
        self._jobs: dict[str, float] = {}
        self._idle: list[float] = []
        self._unattributed: list[float] = []
        self._gpus: list[_GpuPart] = []

    def close(self) -> Segment:
        node, grounds = self._node, self._book.grounds
        for number, gpu in enumerate(self._book.layout):
            plan = self._book.planner.plan(gpu, self._t0)
            self._book_gpu(number, gpu, plan)
        if node.server_j is not None:
            self._book_server(node.server_j[self._steps])
        if node.rest_j is not None:
            self._unattributed.append(fsum(node.rest_j[self._steps]))
        grounds.server_ns += self._measured_ns(node.server_seen)
        interval = NodeInterval(
            t0_s=(self._t0 - self._book.origin_ns) / 1e9,
            t1_s=(self._t1 - self._book.origin_ns) / 1e9,
            node_id=self._book.node_id,
            node_j=fsum(node.node_j[self._steps]),
            jobs_j=self._jobs,
            idle_j=fsum(self._idle),
            unattributed_j=fsum(self._unattributed),
            sleep_j=0.0,
            wake_j=0.0,
        )
        return Segment(self._t0, self._t1, interval)

    def _book_gpu(self, number: int, gpu: GpuLayout, plan: Plan) -> None:
        column = self._node.gpus[number]
        joules = column.joules[self._steps]
        processes = column.processes[self._steps]
        base, active = _parted(joules, self._book.idle_w[gpu.gpu_id], self._lengths_s)
        self._note_measured(gpu, column.seen)
        self._book.grounds.gpus_j += fsum(joules)
        part = _gpu_part(plan, active, processes)
        self._gpus.append(part)
        if not plan.residents:
            self._idle.append(fsum(base))
            # Where it is known that nobody was there, nothing can be attributed.
            empty = [energy for energy, some in zip(active, processes, strict=True) if some == ()]
            others = [energy for energy, some in zip(active, processes, strict=True) if some != ()]
            self._idle.append(fsum(empty))
            self._unattributed.append(fsum(others))
            return
        self._book_base(part, base)
        self._unattributed.append(self._spread(active, plan.active, part))
        self._note_active(part)

    def _book_base(self, part: _GpuPart, base: list[float]) -> None:
        """Book base power of a GPU, or the part of the server's that goes with it."""
        if part.plan.sm_base:
            # What is left is that of strangers.
            self._unattributed.append(self._spread(base, part.plan.base, part))
        else:
            self._idle.append(self._spread_alike(fsum(base), part.plan.base, part.plan))

    def _spread(self, values: list[float], weights: Weights, part: _GpuPart) -> float:
        """Give the jobs their part of each step; return what is left."""
        if part.weights is None:
            return self._spread_alike(fsum(values), weights, part.plan)
        for job_id, column in zip(part.plan.jobs, part.weights, strict=False):
            mine = fsum(map(mul, values, column))
            self._jobs[job_id] = self._jobs.get(job_id, 0.0) + mine
        return fsum(map(mul, values, part.weights[-1]))

    def _spread_alike(self, total: float, weights: Weights, plan: Plan) -> float:
        for job_id, weight in zip(plan.jobs, weights, strict=False):
            self._jobs[job_id] = self._jobs.get(job_id, 0.0) + total * weight
        return total * weights[-1]

    def _note_active(self, part: _GpuPart) -> None:
        by = self._book.grounds.active_j
        kinds = set(part.sources)
        for kind in kinds:
            if len(kinds) == 1:
                mine = fsum(part.active)
            else:
                steps = zip(part.active, part.sources, strict=True)
                mine = fsum([energy for energy, source in steps if source == kind])
            by[kind] = by.get(kind, 0.0) + mine

    def _book_server(self, server_j: list[float]) -> None:
        base, dynamic = _parted(server_j, self._book.server_idle_w, self._lengths_s)
        self._book.grounds.server_j += fsum(server_j)
        if not self._gpus:
            self._idle.append(fsum(base))
        for part in self._gpus:
            mine = [energy / len(self._gpus) for energy in base]
            if part.plan.residents:
                self._book_base(part, mine)
            else:
                self._idle.append(fsum(mine))
        self._book_dynamic(dynamic)

    def _book_dynamic(self, dynamic: list[float]) -> None:
        """Book the dynamic part of the server like the active parts of the jobs' GPUs."""
        held: dict[str, float] = {}
        for part in self._gpus:
            for job_id, weight in part.plan.held:
                held[job_id] = held.get(job_id, 0.0) + weight
        whole = fsum(held.values())
        if not whole:
            self._unattributed.append(fsum(dynamic))
            return
        busy = [part for part in self._gpus if part.plan.residents]
        totals = [sum(at) for at in zip(*[part.of_jobs for part in busy], strict=True)]
        ratios = [
            energy / total if total > _LEAST_W * length_s else 0.0
            for energy, total, length_s in zip(dynamic, totals, self._lengths_s, strict=True)
        ]
        for part in busy:
            self._spread(list(map(mul, part.active, ratios)), part.plan.active, part)
        quiet_j = fsum(
            energy
            for energy, total, length_s in zip(dynamic, totals, self._lengths_s, strict=True)
            if total <= _LEAST_W * length_s
        )
        for job_id, weight in held.items():
            self._jobs[job_id] = self._jobs.get(job_id, 0.0) + quiet_j * (weight / whole)

    def _note_measured(self, gpu: GpuLayout, seen: bytearray) -> None:
        measured_ns = self._measured_ns(seen)
        if not measured_ns:
            return
        grounds, holds = self._book.grounds, self._book.planner.holds
        grounds.gpu_ns[gpu.gpu_id] = grounds.gpu_ns.get(gpu.gpu_id, 0) + measured_ns
        for hold_id in gpu.hold_ids:
            for job_id in holds.of(hold_id).residents(self._t0):
                grounds.covered_ns[job_id] = grounds.covered_ns.get(job_id, 0) + measured_ns

    def _measured_ns(self, seen: bytearray) -> int:
        here = seen[self._steps]
        count = here.count(1)
        if count == len(here):
            return self._t1 - self._t0
        if not count:
            return 0
        return sum(b - a for (a, b), one in zip(pairwise(self._edges), here, strict=True) if one)
