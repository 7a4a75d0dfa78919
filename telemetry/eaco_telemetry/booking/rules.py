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

from attrs import frozen

from eaco_telemetry.booking.holds import merged_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eaco_telemetry.booking.holds import GpuHolds, HoldTable
    from eaco_telemetry.booking.rows import Process, Processes

Rule: TypeAlias = Literal["default", "sm", "time", "equal"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)

Source: TypeAlias = Literal["alone", "sm", "solo", "equal", "time", "mig"]
"""What the active part was split by. `alone`: there was one job only."""


@frozen
class GpuLayout:
    """One GPU that is measured, and its MIG instances with their part of it, if it has any."""

    gpu_id: str
    instances: tuple[tuple[str, float], ...] = ()

    @property
    def hold_ids(self) -> tuple[str, ...]:
        """The ids under which a part of it may be held."""
        return (self.gpu_id, *(instance_id for instance_id, _ in self.instances))


Weights: TypeAlias = tuple[float, ...]
"""What each job of a plan pays, and last what is left. Together they are 1."""


@frozen
class Plan:
    """How one GPU is split while its residents stay the same.

    `jobs`: who pays; with the rule `time` also jobs that are not there now. `base`: what is
    left of it is idle. `active`: what is left of it is unattributed. Both stand where the
    processes say nothing. `pids`: those of each resident, if all are known. `by_sm`: whether
    SM shares count; `sm_base`: for the base too.
    """

    residents: tuple[str, ...]
    jobs: tuple[str, ...]
    base: Weights
    active: Weights
    source: Source
    pids: tuple[frozenset[int], ...] | None = None
    by_sm: bool = True
    sm_base: bool = False

    @property
    def looks_at_processes(self) -> bool:
        """Whether the split may differ from time to time."""
        return self.pids is not None

    @property
    def held(self) -> tuple[tuple[str, float], ...]:
        """How much of this GPU each job holds, where nothing else tells jobs apart."""
        if self.source == "time":
            return tuple(zip(self.jobs, self.base, strict=False))
        return tuple([(job_id, 1.0) for job_id in self.residents])

    def at_each(self, processes: Iterable[Processes]) -> tuple[list[Weights], list[Source]]:
        """Give for each step the active split with these processes, and what it stands on."""
        weights: list[Weights] = []
        sources: list[Source] = []
        put_weights, put_source = weights.append, sources.append
        last: Processes = None
        mine, source = self.active, self.source
        for some in processes:
            if some is not last:  # they are read more rarely than the rest
                last = some
                mine, source = self._at(some)
            put_weights(mine)
            put_source(source)
        return weights, sources

    def _at(self, processes: Processes) -> tuple[Weights, Source]:
        if self.pids is None or processes is None:
            return self.active, self.source
        return self._measure(processes, self.pids)

    def _measure(
        self, processes: tuple[Process, ...], pids: tuple[frozenset[int], ...]
    ) -> tuple[Weights, Source]:
        ratios = [0.0] * (len(pids) + 1)
        measured, others = self.by_sm, False
        for pid, sm_ratio in processes:
            owner = len(pids)
            for i, own in enumerate(pids):
                if pid in own:
                    owner = i
                    break
            else:
                others |= sm_ratio != 0.0
            if sm_ratio is None:
                measured = False
            else:
                ratios[owner] += sm_ratio
        total = sum(ratios)
        if measured and total > 0.0:
            alone = len(pids) == 1 and not others
            return tuple([ratio / total for ratio in ratios]), "alone" if alone else "sm"
        if others:
            return (1.0 / len(ratios),) * len(ratios), "equal"
        return self.active, self.source


def _nobody() -> Plan:
    return Plan((), (), (1.0,), (1.0,), "alone")


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
            return _nobody()
        if self.rule == "time":
            by_time = _by_time(holds, at_ns)
            weights = (*by_time.values(), 0.0)
            return Plan(residents, tuple(by_time), weights, weights, "time")
        equal = (*_equally(residents).values(), 0.0)
        pids = [self.holds.pids(gpu.gpu_id, job_id) for job_id in residents]
        known = tuple([own for own in pids if own is not None])
        active, source = self._unmeasured(residents, equal)
        return Plan(
            residents,
            residents,
            equal,
            active,
            source,
            pids=known if len(known) == len(pids) else None,
            by_sm=self.rule in {"default", "sm"},
            sm_base=self.rule == "sm",
        )

    def _unmeasured(self, residents: tuple[str, ...], equal: Weights) -> tuple[Weights, Source]:
        if len(residents) == 1:
            return equal, "alone"
        if self.rule == "default":
            utils = [self.solo_util_ratio.get(self.workload_of[job_id]) for job_id in residents]
            known = [util for util in utils if util is not None]
            total = sum(known)
            if len(known) == len(utils) and total > 0.0:
                return (*[util / total for util in known], 0.0), "solo"
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
            for job_id, share in split.items():
                base[job_id] = base.get(job_id, 0.0) + part * share
        if not residents:
            return _nobody()
        return Plan(
            tuple(sorted(residents)),
            tuple(base),
            (*base.values(), max(0.0, 1.0 - used)),
            (*[part / used for part in base.values()], 0.0),
            "time" if self.rule == "time" else "alone" if len(residents) == 1 else "mig",
        )


def _equally(jobs: Sequence[str]) -> dict[str, float]:
    return dict.fromkeys(jobs, 1.0 / len(jobs))


def _by_time(holds: GpuHolds, at_ns: int) -> dict[str, float]:
    """Split by the time that each job held in the stretch of time around this one."""
    stretch = holds.stretch(at_ns)
    if stretch is None:
        return {}
    held = {job_id: merged_length(spans, stretch) for job_id, spans in holds.spans.items()}
    total = sum(held.values())
    return {job_id: own / total for job_id, own in held.items() if own}
