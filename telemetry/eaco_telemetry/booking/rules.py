"""The rules: who pays for one GPU while the jobs that hold it stay the same.

The energy of a GPU has a **base** (up to its idle power) and an **active** part above it.

| rule | base | active part |
|---|---|---|
| `default` | equally | SM shares; else utilisation alone; else equally |
| `sm` | SM shares; else equally | as the base |
| `time` | by time held | as the base |
| `equal` | equally | equally |

*SM shares*: the share of the SMs of each job's processes, where it is measured for all of
them at that time. *Utilisation alone*: what jobs of the same workload (or the job itself)
had while they held a GPU alone. *By time held*: over a stretch of time in which the GPU is
held without a break, by the time that each job held it in that stretch.

Strangers (processes that are of no job that holds the GPU) take the active part that they
caused, which is unattributed: by their SM share, or as one more equal part where that is
not measured. Only with `sm` they take a part of the base, and with `time` none at all.

A GPU that is split into MIG instances is measured as a whole. Its base goes to the
instances by their memory, and the active part to those that are held, by their memory;
within an instance equally. An instance that nobody holds is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from attrs import define, field, frozen

from eaco_telemetry.booking.holds import merged_length

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eaco_telemetry.booking.holds import GpuHolds, HoldTable
    from eaco_telemetry.booking.rows import Process, Processes

Rule: TypeAlias = Literal["default", "sm", "time", "equal"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)

Source: TypeAlias = Literal["alone", "sm", "solo", "equal", "time", "mig"]
"""What the active part was split by. `alone`: there was one job only."""


@frozen
class Split:
    """Parts of one: what each job pays, and what is left (idle or unattributed)."""

    jobs: tuple[tuple[str, float], ...]
    rest: float = 0.0


NOTHING: Final = Split((), 1.0)


@frozen
class GpuLayout:
    """One GPU that is measured, and its MIG instances with their part of it, if it has any."""

    gpu_id: str
    instances: tuple[tuple[str, float], ...] = ()

    @property
    def hold_ids(self) -> tuple[str, ...]:
        """The ids under which a part of it may be held."""
        return (self.gpu_id, *(instance_id for instance_id, _ in self.instances))


def _no_splits() -> dict[Processes, tuple[Split, Split, Source]]:
    return {}


@define
class Plan:
    """How one GPU is split while its residents stay the same.

    `base`: its rest is idle. `active`: its rest is unattributed. Both stand where the
    processes say nothing. `pids`: those of each resident, if all are known. `by_sm`: whether
    SM shares count; `sm_base`: for the base too.
    """

    residents: tuple[str, ...]
    base: Split
    active: Split
    source: Source
    pids: tuple[frozenset[int], ...] | None = None
    by_sm: bool = True
    sm_base: bool = False
    _known: dict[Processes, tuple[Split, Split, Source]] = field(init=False, factory=_no_splits)

    @property
    def looks_at_processes(self) -> bool:
        """Whether the split may differ from time to time."""
        return self.pids is not None

    @property
    def strangers_take_base(self) -> bool:
        """Whether what is left of the base is that of strangers, and not idle."""
        return self.sm_base

    @property
    def held(self) -> tuple[tuple[str, float], ...]:
        """How much of this GPU each job holds, where nothing else tells jobs apart."""
        if self.source == "time":
            return self.base.jobs
        return tuple([(job_id, 1.0) for job_id in self.residents])

    def at(self, processes: Processes) -> tuple[Split, Split, Source]:
        """Give base, active and what active is split by, with these processes on the GPU."""
        if self.pids is None or processes is None:
            return self.base, self.active, self.source
        known = self._known.get(processes)
        if known is None:
            known = self._known[processes] = self._measure(processes, self.pids)
        return known

    def _measure(
        self, processes: tuple[Process, ...], pids: tuple[frozenset[int], ...]
    ) -> tuple[Split, Split, Source]:
        own_ratio = [0.0] * len(pids)
        others_ratio = 0.0
        measured, others = True, False
        for pid, sm_ratio in processes:
            owner = next((i for i, own in enumerate(pids) if pid in own), None)
            others |= owner is None and sm_ratio != 0.0
            if sm_ratio is None:
                measured = False
            elif owner is None:
                others_ratio += sm_ratio
            else:
                own_ratio[owner] += sm_ratio
        total = sum(own_ratio) + others_ratio
        if self.by_sm and measured and total > 0.0:
            parts = zip(self.residents, own_ratio, strict=True)
            split = Split(
                tuple([(job_id, own / total) for job_id, own in parts]), others_ratio / total
            )
            alone = len(pids) == 1 and not others
            return split if self.sm_base else self.base, split, "alone" if alone else "sm"
        if others:
            part = 1.0 / (len(pids) + 1)
            split = Split(tuple([(job_id, part) for job_id in self.residents]), part)
            return split if self.sm_base else self.base, split, "equal"
        return self.base, self.active, self.source


@frozen
class Planner:
    """Makes the plans of one node. `solo_util_ratio`: by workload, as `workload_of` names it."""

    rule: Rule
    holds: HoldTable
    workload_of: Mapping[str, str]
    solo_util_ratio: Mapping[str, float]

    def plan(self, gpu: GpuLayout, at_ns: int) -> Plan:
        """Say how a GPU is split from a time on, until its holds change."""
        if gpu.instances:
            return self._plan_instances(gpu, at_ns)
        holds = self.holds.of(gpu.gpu_id)
        residents = holds.residents(at_ns)
        if not residents:
            return Plan((), NOTHING, NOTHING, "alone")
        if self.rule == "time":
            split = _by_time(holds, at_ns)
            return Plan(residents, split, split, "time")
        equal = _equally(residents)
        pids = [self.holds.pids(gpu.gpu_id, job_id) for job_id in residents]
        known = tuple([own for own in pids if own is not None])
        active, source = self._unmeasured(residents, equal)
        return Plan(
            residents,
            equal,
            active,
            source,
            pids=known if len(known) == len(pids) else None,
            by_sm=self.rule in {"default", "sm"},
            sm_base=self.rule == "sm",
        )

    def _unmeasured(self, residents: tuple[str, ...], equal: Split) -> tuple[Split, Source]:
        if len(residents) == 1:
            return equal, "alone"
        if self.rule == "default":
            utils = [self.solo_util_ratio.get(self.workload_of[job_id]) for job_id in residents]
            known = [util for util in utils if util is not None]
            total = sum(known)
            if len(known) == len(utils) and total > 0.0:
                parts = zip(residents, known, strict=True)
                return Split(tuple([(job_id, util / total) for job_id, util in parts])), "solo"
        return equal, "equal"

    def _plan_instances(self, gpu: GpuLayout, at_ns: int) -> Plan:
        base: dict[str, float] = {}
        residents: set[str] = set()
        used = 0.0
        for instance_id, part in gpu.instances:
            holds = self.holds.of(gpu.gpu_id, instance_id)
            here = holds.residents(at_ns)
            if not here:
                continue
            residents.update(here)
            used += part
            split = _by_time(holds, at_ns) if self.rule == "time" else _equally(here)
            for job_id, share in split.jobs:
                base[job_id] = base.get(job_id, 0.0) + part * share
        if not residents:
            return Plan((), NOTHING, NOTHING, "alone")
        return Plan(
            tuple(sorted(residents)),
            Split(tuple(base.items()), max(0.0, 1.0 - used)),
            Split(tuple([(job_id, part / used) for job_id, part in base.items()])),
            "alone" if len(residents) == 1 else "mig",
        )


def _equally(jobs: Sequence[str]) -> Split:
    return Split(tuple([(job_id, 1.0 / len(jobs)) for job_id in jobs]))


def _by_time(holds: GpuHolds, at_ns: int) -> Split:
    """Split by the time that each job held in the stretch of time around this one."""
    stretch = holds.stretch(at_ns)
    if stretch is None:
        return NOTHING
    held = {job_id: merged_length(spans, stretch) for job_id, spans in holds.spans.items()}
    total = sum(held.values())
    return Split(tuple([(job_id, own / total) for job_id, own in held.items() if own]))
