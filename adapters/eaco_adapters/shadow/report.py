"""What eaco would have done, saved and risked: both schedules compared, with an interval."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import attrs
from attrs import field, frozen
from attrs.validators import ge

from eaco_adapters.shadow.as_was import energy_as_was
from eaco_adapters.shadow.stories import Story, risks_of, savings_of
from eaco_adapters.shadow.work import MOST_EPOCHS, work_of
from eaco_adapters.shadow.would_be import run_eaco, settings_of, truth_of
from eaco_adapters.words import counted
from eaco_core.errors import InputError
from eaco_core.policies import policy_named
from eaco_telemetry.power import DefaultNodePower

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eaco_adapters.shadow.as_was import AsWas
    from eaco_adapters.shadow.past import Past
    from eaco_adapters.shadow.work import Workload
    from eaco_adapters.shadow.would_be import WouldBe
    from eaco_core.cluster import NodeSpec
    from eaco_core.rules import Rules

SCHEMA = "eaco.shadow/1"

_CHANCE_RATIOS = (0.01, 0.015)
_CHANCE_OF_ONE_JOB = 0.2

_OFF_RATIO = 0.02
_WIDEST_RATIO = 0.15
_COVERED_RATIO = 0.95  # of the time of all nodes: else energy lines are told, not compared


@frozen
class ShadowOptions:
    """What is assumed, and what is said.

    `interference_ratios`: lowest, likely and highest factor on the slowdown law, for sets that
    nobody measured. Of the published sets (arXiv 2412.08294) pairs lose 3 to 4% against the law
    and triples 8.4%. `stress_ratio` is a factor beyond the interval, told apart. `util_ratios`:
    lowest and highest utilisation of jobs of which none was measured. `can_sleep`: whether nodes
    can sleep, in both schedules; None = as each node says. `top`: how many savings and risks are
    told.
    """

    interference_ratios: tuple[float, float, float] = (1.0, 1.035, 1.085)
    stress_ratio: float = 1.25
    util_ratios: tuple[float, float] = (0.1, 1.0)
    can_sleep: bool | None = None
    idle_w: float | None = None
    sleep_w: float = 15.0
    explore: bool = False
    top: int = field(default=5, validator=ge(0))


@frozen
class Scenario:
    """One set of assumptions, and the saving under it as a share of the energy as it was."""

    interference_ratio: float
    assumed_util_ratio: float | None
    saving_ratio: float
    late: int
    undone: int


@frozen
class Side:
    """One of the two schedules, under the likely assumptions. `wait_s`: mean; None = no job."""

    energy_j: float
    late: int
    wait_s: float | None
    jct_s: float | None


@frozen
class ShadowReport:
    """Both schedules of the same jobs.

    `saving_ratio` lies between `low_ratio` and `high_ratio`; all None = nothing to compare.
    `alone`: why jobs run alone under eaco, and how many. `left_out`: jobs that are in neither.
    `stress`: what a slowdown beyond the interval would do; `late_worst` counts it too.
    `measured_j`: energy in the energy lines of the history, None = it has none.
    """

    origin: str
    policy: str
    steps: int
    span_s: float
    jobs: int
    left_out: Mapping[str, int]
    alone: Mapping[str, int]
    measured_j: float | None
    as_was: Side | None = None
    would_be: Side | None = None
    saving_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    late_worst: int | None = None
    stress: Scenario | None = None
    placements: int = 0
    shared: int = 0
    kept: int = 0
    undone: int = 0
    scenarios: tuple[Scenario, ...] = ()
    savings: tuple[Story, ...] = ()
    risks: tuple[Story, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Give the document `eaco.shadow/1` (docs/shadow.md)."""
        document: dict[str, object] = {"schema": SCHEMA}
        document.update(attrs.asdict(self))
        return document


def shadow_report(
    past: Past,
    options: ShadowOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShadowReport:
    """Compare the schedule as it was until now with what eaco would have done.

    `progress` gets (simulations done, in all). Raises InputError for what cannot be simulated.
    """
    chosen = ShadowOptions() if options is None else options
    return _Comparison(past, chosen, progress or (lambda _done, _total: None)).report()


class _Comparison:
    def __init__(
        self, past: Past, options: ShadowOptions, progress: Callable[[int, int], None]
    ) -> None:
        self._past = past
        self._options = options
        self._progress = progress
        self._rules: Rules = attrs.evolve(policy_named("eaco").rules, explore=options.explore)
        self._power = DefaultNodePower(idle_w=options.idle_w, asleep_w=options.sleep_w)
        self._nodes = self._cluster()

    def _cluster(self) -> tuple[NodeSpec, ...]:
        can_sleep = self._options.can_sleep
        nodes = tuple(self._past.nodes.values())
        if can_sleep is not None:
            nodes = tuple(attrs.evolve(node, can_sleep=can_sleep) for node in nodes)
        for node in nodes:
            self._power.node_idle_w(node)  # refuses an idle power below that of the GPUs
        return nodes

    def report(self) -> ShadowReport:
        past, options = self._past, self._options
        low_util, high_util = options.util_ratios
        utils = (low_util, math.sqrt(low_util * high_util), high_util)
        likely = work_of(past, assumed_util_ratio=utils[1])
        report = self._frame(likely)
        if not likely.jobs:
            return report
        self._check(likely)
        open_utils = any(work.util_assumed for work in likely.jobs)
        low, middle, high = options.interference_ratios
        plan: list[tuple[float, float]] = [(middle, utils[1])]
        for ratio in (low, high):
            plan.extend((ratio, util) for util in (utils[::2] if open_utils else utils[1:2]))
        plan.append((options.stress_ratio, utils[1]))
        scenarios: list[Scenario] = []
        first: tuple[AsWas, WouldBe] | None = None
        for number, (ratio, util) in enumerate(plan):
            workload = likely if number == 0 else work_of(past, assumed_util_ratio=util)
            was, would = self._run(workload, ratio)
            first = first or (was, would)
            known = util if open_utils else None
            scenarios.append(_scenario(was, would, likely, ratio, known))
            self._progress(number + 1, len(plan))
        return report if first is None else self._compared(report, likely, first, scenarios)

    def _check(self, workload: Workload) -> None:
        epochs = sum(work.truth.epochs or 0 for work in workload.jobs)
        if epochs > MOST_EPOCHS:
            raise InputError(
                f"the jobs have {epochs:,} epochs together, and at most {MOST_EPOCHS:,} can be "
                "simulated; give the shadow a shorter part of the history"
            )

    def _run(self, workload: Workload, ratio: float) -> tuple[AsWas, WouldBe]:
        past = self._past
        was = energy_as_was(workload.jobs, self._nodes, power=self._power, rules=self._rules)
        would = run_eaco(
            workload.jobs,
            self._nodes,
            truth=truth_of(past, workload.jobs, ratio),
            power=self._power,
            rules=self._rules,
            settings=settings_of(past),
        )
        return was, would

    def _frame(self, workload: Workload) -> ShadowReport:
        past = self._past
        header = past.header
        return ShadowReport(
            origin="" if header is None else header.origin,
            policy="" if header is None else header.policy,
            steps=past.steps,
            span_s=past.now_s,
            jobs=len(workload.jobs),
            left_out=workload.left_out,
            alone=dict(Counter(work.alone for work in workload.jobs if work.alone)),
            measured_j=past.measured.node_j if past.measured.lines else None,
            notes=tuple(self._notes(workload)),
        )

    def _compared(
        self,
        report: ShadowReport,
        workload: Workload,
        runs: tuple[AsWas, WouldBe],
        tried: Sequence[Scenario],
    ) -> ShadowReport:
        was, would = runs
        horizon_s = max(was.energy.end_s, would.result.end_s)
        was_j = was.energy.until_s(horizon_s).total_j
        parts = would.result.energy_until_s(horizon_s)
        would_j = 0.0 if parts is None else parts.total_j
        *scenarios, stress = tried
        savings = [one.saving_ratio for one in scenarios]
        chance = chance_ratio(report.jobs)
        low, high = min(savings) - chance, max(savings) + chance
        notes = list(report.notes)
        scale, off = self._scale(was)
        if off > _OFF_RATIO:
            widen = off * max(abs(low), abs(high))
            low, high = low - widen, high + widen
            notes.append(
                f"the energy lines book {100 * (scale - 1):+.0f}% on jobs against the power model; "
                "joules are scaled to the lines, and the interval is wider by that share"
            )
        if high - low > _WIDEST_RATIO:
            notes.append(
                f"the interval is {100 * (high - low):.0f} points wide: measure more before you "
                "trust the saving (utilisation of jobs, epochs beside others)"
            )
        finished = {work.job_id for work in workload.jobs if work.finished}
        outcomes = [job for job in would.result.jobs if job.job_id in finished]
        done = [work for work in workload.jobs if work.finished]
        top = self._options.top
        return attrs.evolve(
            report,
            as_was=Side(
                was_j * scale,
                sum(work.late for work in done),
                _mean([work.wait_s for work in done]),
                _mean([work.end_s - work.truth.submit_s for work in done]),
            ),
            would_be=Side(
                would_j * scale,
                sum(job.missed for job in outcomes),
                _mean([job.wait_s for job in outcomes]),
                _mean([job.jct_s for job in outcomes]),
            ),
            saving_ratio=scenarios[0].saving_ratio,
            low_ratio=low,
            high_ratio=high,
            late_worst=max(one.late for one in tried),
            stress=stress,
            placements=would.result.placements,
            shared=would.result.shared_placements,
            kept=would.result.observations_kept,
            undone=would.result.undos,
            scenarios=tuple(scenarios),
            savings=tuple(savings_of(would, top)),
            risks=tuple(risks_of(would, workload.jobs, top)),
            notes=tuple(notes),
        )

    def _scale(self, was: AsWas) -> tuple[float, float]:
        """Give measured / modelled energy of the jobs, and how far that is from 1."""
        measured_j, modelled_j = self._past.measured.jobs_j, was.energy.until_end.jobs_j
        ended = all(job.finished_s is not None for job in self._past.jobs.values())
        whole_s = len(self._nodes) * self._past.now_s
        covered = self._past.measured.node_s >= _COVERED_RATIO * whole_s
        if measured_j <= 0 or modelled_j <= 0 or not ended or not covered:
            return 1.0, 0.0
        scale = measured_j / modelled_j
        return scale, abs(scale - 1.0)

    def _notes(self, workload: Workload) -> list[str]:
        past, options = self._past, self._options
        low, middle, high = options.interference_ratios
        published = options.interference_ratios == ShadowOptions().interference_ratios
        source = ", as published for pairs and triples" if published else ""
        slowdown = (
            "the slowdown of sets that nobody measured is max(1, sum of solo utilisations) x"
            f" {low:g} to {high:g} (likely {middle:g}){source}: an assumption, and most of the"
            " interval"
        )
        watts = (
            "watts are a model, fitted to a server with 8 V100; both schedules are given the same"
        )
        notes = [slowdown, watts]
        sleepers = sum(node.can_sleep for node in self._nodes)
        if sleepers:
            notes.append(
                f"{counted(sleepers, 'node')} can sleep, and {'does' if sleepers == 1 else 'do'} "
                "so by the same rule (idle for 300 s) in both schedules"
            )
        elif self._nodes:
            notes.append("no node can sleep, in either schedule (--sleep assumes that all can)")
        notes.extend(self._node_notes())
        assumed = sum(work.util_assumed for work in workload.jobs)
        if assumed:
            least, most = options.util_ratios
            notes.append(
                f"the GPU utilisation of {counted(assumed, 'job')} was never measured: taken as "
                f"{least:g} to {most:g}, alike in both schedules"
            )
        if past.observations or past.known.shared():
            notes.append("sets that shared a GPU in the history slow down as they did there")
        return notes

    def _node_notes(self) -> list[str]:
        past = self._past
        notes: list[str] = []
        if not past.named_nodes:
            notes.append(
                "no NodeJoined event describes the nodes: they are the GPUs that jobs were given"
            )
        away = past.lost | past.joined_late
        if away:
            notes.append(
                f"{counted(len(away), 'node')} came later, or failed, or lost a GPU: both "
                "schedules are compared as if they had been there all the time"
            )
        return notes


def chance_ratio(jobs: int) -> float:
    """Give what is added to both ends of the interval for the order in which things happen.

    A second here or there changes who is placed beside whom; that averages out with many jobs.
    """
    least, most = _CHANCE_RATIOS
    return min(most, max(least, _CHANCE_OF_ONE_JOB / math.sqrt(jobs)))


def _scenario(
    was: AsWas, would: WouldBe, workload: Workload, ratio: float, util: float | None
) -> Scenario:
    result = would.result
    finished = {work.job_id for work in workload.jobs if work.finished}
    late = sum(job.missed for job in result.jobs if job.job_id in finished)
    horizon_s = max(was.energy.end_s, result.end_s)
    was_j = was.energy.until_s(horizon_s).total_j
    parts = result.energy_until_s(horizon_s)
    if parts is None:
        raise InputError("the energy of the jobs is not known: a job has no utilisation")
    saving = 1.0 - parts.total_j / was_j if was_j > 0 else 0.0
    return Scenario(ratio, util, saving, late, result.undos)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
