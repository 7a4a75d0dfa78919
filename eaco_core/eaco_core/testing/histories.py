"""Writes small histories by hand, for tests of whatever reads them.

The world is two nodes, n1 with GPUs g0, g1 and n2 with g2, g3, of 16 GiB each. Jobs
take 100 s for an epoch alone and use a GPU to 30 %; whatever should be different is
given by name. `kept` and `undone` are whole stories of a job b that is placed beside
a job a and is kept, or has to leave again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.decisions import (
    AffectedBound,
    BoundSource,
    Evidence,
    GateReading,
    Placed,
    Requeued,
    Verdict,
)
from eaco_core.effects import StartJob, StopAtEpochBoundary
from eaco_core.events import (
    EpochCompleted,
    GpusReleased,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    Tick,
)
from eaco_core.history import EFFECT_TYPES, Header, Step
from eaco_core.invariants import check_history
from eaco_core.jobs import JobSpec, SoloProfile
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.events import Event
    from eaco_core.history import Line

GIB = 2**30

Fields: TypeAlias = Any
"""Fields by name, of whatever type they have."""

Change: TypeAlias = "Callable[[HistoryWriter], dict[str, Any]]"
"""Gives the fields of the placement of b that should be different."""


class HistoryWriter:
    """Writes a history step by step."""

    def __init__(self, *, policy: str = "eaco", origin: str = "eaco", **rules: Fields) -> None:
        rules = {"starvation_s": float("inf"), **rules}
        self.lines: list[Line] = [Header(policy=policy, rules=Rules(**rules), origin=origin)]
        self.specs: dict[str, JobSpec] = {}
        self.t_s = 0.0
        for node_id, gpu_ids in (("n1", ("g0", "g1")), ("n2", ("g2", "g3"))):
            gpus = tuple(GpuSpec(gpu_id, "v100", 16 * GIB) for gpu_id in gpu_ids)
            self.add(NodeJoined(0.0, NodeSpec(node_id, gpus)))

    def add(
        self, event: Event, *then: Fields, term: int = 1, seq: int | None = None
    ) -> HistoryWriter:
        """Add one step; what is no effect is a record."""
        effects = tuple(x for x in then if isinstance(x, EFFECT_TYPES))
        records = tuple(x for x in then if not isinstance(x, EFFECT_TYPES))
        number = seq if seq is not None else len(self.lines)
        self.t_s = event.t_s
        self.lines.append(Step(number, event.t_s, term, event, effects, records))
        return self

    def submit(self, job_id: str, t_s: float, **fields: Fields) -> HistoryWriter:
        """Let a job come; fields of its solo profile may be among `fields`."""
        solo: dict[str, Any] = {"epoch_s": 100.0, "util_ratio": 0.3, "mem_busy_ratio": 0.2}
        given = {key: fields.pop(key) for key in [*solo, "peak_mem_bytes"] if key in fields}
        profile = SoloProfile("v100", **{**solo, "peak_mem_bytes": 4 * GIB, **given})
        known: dict[str, Any] = {"gpus": 1, "epochs": 20, "workload": f"w-{job_id}", **fields}
        self.specs[job_id] = JobSpec(job_id=job_id, submit_s=t_s, profiles=(profile,), **known)
        return self.add(JobSubmitted(t_s, self.specs[job_id]))

    def start(self, job_id: str, t_s: float, *gpu_ids: str, **fields: Fields) -> HistoryWriter:
        """Place a job alone, and see it running 10 s later."""
        attempt, resume = fields.get("attempt", 1), fields.get("resume", 0)
        self.add(
            Tick(t_s),
            alone(t_s, job_id, *gpu_ids, attempt=attempt),
            go(job_id, *gpu_ids, attempt=attempt, resume=resume),
        )
        return self.add(JobStarted(t_s + 10, job_id, attempt))

    def epochs(
        self, job_id: str, first: int, last: int, t_s: float, each_s: float
    ) -> HistoryWriter:
        """Complete the epochs `first` to `last`, one every `each_s` seconds."""
        for epoch in range(first, last + 1):
            self.add(EpochCompleted(t_s + (epoch - first) * each_s, job_id, 1, epoch))
        return self

    def broken(self) -> set[str]:
        """Give the ids of the invariants that the history breaks."""
        return set(check_history(self.lines).counts)

    def step(self, of: type[Any], number: int = 0) -> int:
        """Find the line of the n-th event or record of a class."""
        found = [
            i
            for i, line in enumerate(self.lines)
            if isinstance(line, Step)
            and any(isinstance(x, of) for x in (line.event, *line.records))
        ]
        return found[number]

    def change(self, at: int, of: type[Any], **fields: Fields) -> HistoryWriter:
        """Change the records or effects of one class in one step."""
        line = self.lines[at]
        assert isinstance(line, Step)

        def changed(items: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(attrs.evolve(x, **fields) if isinstance(x, of) else x for x in items)

        self.lines[at] = attrs.evolve(
            line, records=changed(line.records), effects=changed(line.effects)
        )
        return self

    def drop(self, at: int, of: type[Any]) -> HistoryWriter:
        """Leave the records and effects of one class out of one step."""
        line = self.lines[at]
        assert isinstance(line, Step)
        records = tuple(x for x in line.records if not isinstance(x, of))
        effects = tuple(x for x in line.effects if not isinstance(x, of))
        self.lines[at] = attrs.evolve(line, records=records, effects=effects)
        return self


def alone(t_s: float, job_id: str, *gpu_ids: str, attempt: int = 1) -> Placed:
    """Give the record of a placement on idle GPUs."""
    return Placed(
        t_s,
        job_id,
        attempt,
        gpu_ids,
        shared=False,
        start_s=t_s,
        affected=(),
        gates=(),
        extra_energy_j=None,
        alternative_energy_j=None,
        explored=False,
        refusals=(),
    )


def go(job_id: str, *gpu_ids: str, attempt: int = 1, resume: int = 0) -> StartJob:
    """Give the command to start a job."""
    nodes = {gpu: "n1" if gpu in {"g0", "g1"} else "n2" for gpu in gpu_ids}
    where = tuple(
        (node_id, tuple(gpu for gpu in gpu_ids if nodes[gpu] == node_id))
        for node_id in sorted(set(nodes.values()))
    )
    return StartJob(job_id, attempt, 1, where, resume)


def bound(
    run: HistoryWriter, job_id: str, *beside: str, left: int, **fields: Fields
) -> AffectedBound:
    """Give what job_id is predicted to suffer beside others, by the law."""
    spec = run.specs[job_id]
    known = AffectedBound(
        job_id=job_id,
        workload=spec.workload,
        co_workloads=tuple(sorted(f"w-{other}" for other in beside)),
        gpu_type="v100",
        point_ratio=1.0,
        upper_ratio=1.25,
        source=BoundSource.LAW,
        calibration_id=None,
        remaining_s=left * 100.0,
        deadline_s=spec.deadline_s,
        late=False,
    )
    return attrs.evolve(known, **fields)


def gate(*residents: str, gpu_id: str = "g0", **fields: Fields) -> GateReading:
    """Give what the gates saw on a GPU with these residents."""
    util = 0.3 * len(residents)
    return attrs.evolve(
        GateReading(gpu_id, util, 0.2, 8 * GIB, 15 * GIB, residents, by_evidence=False), **fields
    )


def beside_a(run: HistoryWriter, t_s: float = 120.0, **fields: Fields) -> Placed:
    """Place b beside a on g0."""
    affected = (bound(run, "b", "a", left=10), bound(run, "a", "b", left=19))
    attempt = fields.get("attempt", 1)
    placed = Placed(
        t_s,
        "b",
        attempt,
        ("g0",),
        shared=True,
        start_s=t_s,
        affected=affected,
        gates=(gate("a"),),
        extra_energy_j=1.0,
        alternative_energy_j=2.0,
        explored=False,
        refusals=(),
    )
    return attrs.evolve(placed, **fields)


def seen(run: HistoryWriter, job_id: str, epoch_s: float | None, left: int) -> Evidence:
    """Give what the window saw of a job."""
    ratio = None if epoch_s is None else epoch_s / 100.0
    return Evidence(job_id, epoch_s, ratio, left, run.specs[job_id].deadline_s, late=False)


def verdict(t_s: float, *evidence: Evidence, keep: bool = True, **fields: Fields) -> Verdict:
    """Give the verdict on b."""
    known = Verdict(t_s, "b", 1, keep, "because", evidence, None, 0)
    return attrs.evolve(known, **fields)


def until_trial(
    b: dict[str, Any] | None = None, a: dict[str, Any] | None = None, **rules: Fields
) -> HistoryWriter:
    """Job a runs on g0; b has come and waits to be placed at 120 s."""
    run = HistoryWriter(**rules).submit("a", 0.0, **{"deadline_s": 10_000.0, **(a or {})})
    run.start("a", 0.0, "g0").epochs("a", 1, 1, 110.0, 0.0)
    return run.submit("b", 120.0, **{"epochs": 10, "deadline_s": 5_000.0, **(b or {})})


def on_trial(change: Change | None = None, **given: Fields) -> HistoryWriter:
    """Run b beside a, up to where only an epoch of a is missing in the window."""
    run = until_trial(**given)
    fields = {} if change is None else change(run)
    run.add(Tick(120.0), beside_a(run, **fields), go("b", "g0"))
    run.add(JobStarted(130.0, "b", 1)).epochs("a", 2, 2, 230.0, 0.0)
    return run.epochs("b", 1, 1, 240.0, 0.0)


def kept(change: Change | None = None, **given: Fields) -> HistoryWriter:
    """Keep b beside a, and let both run to their end."""
    run = on_trial(change, **given)
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 115.0, 17))
    run.add(EpochCompleted(345.0, "a", 1, 3), verdict(345.0, *evidence))
    run.epochs("b", 2, 10, 350.0, 110.0).add(JobFinished(1230.0, "b", 1))
    run.add(GpusReleased(1230.0, "b", 1, ("g0",))).epochs("a", 4, 20, 1240.0, 100.0)
    return run.add(JobFinished(2840.0, "a", 1)).add(GpusReleased(2840.0, "a", 1, ("g0",)))


def undone(change: Change | None = None, **given: Fields) -> HistoryWriter:
    """Undo b, as a would miss its deadline of 2600 s, and put b back into the queue."""
    run = on_trial(change, **{"a": {"deadline_s": 2_600.0}, **given})
    evidence = (seen(run, "b", 110.0, 9), seen(run, "a", 140.0, 17))
    stop = StopAtEpochBoundary("b", 1, 1, "undone")
    run.add(EpochCompleted(370.0, "a", 1, 3), verdict(370.0, *evidence, keep=False), stop)
    run.add(EpochCompleted(380.0, "b", 1, 2)).add(JobStopped(385.0, "b", 1, 2))
    return run.add(GpusReleased(385.0, "b", 1, ("g0",)), Requeued(385.0, "b", 2, "undone"))


def again(run: HistoryWriter, **fields: Fields) -> HistoryWriter:
    """Place b beside a once more, at 400 s."""
    t_s = 400.0
    upper = fields.pop("upper_ratio", 1.25)
    source = BoundSource.OBSERVED
    affected = (
        bound(run, "b", "a", left=8, upper_ratio=upper, source=source),
        bound(run, "a", "b", left=17, upper_ratio=upper, source=source),
    )
    placed = beside_a(run, t_s, affected=affected, attempt=2)
    return run.add(Tick(t_s), placed, go("b", "g0", attempt=2, resume=2))
