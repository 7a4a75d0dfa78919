"""What eaco would have done: the same jobs on the same machine, in the simulator.

The world knows the truth of each job; the scheduler is handed what was known of it when it was
submitted, and learns the rest as it would have: from epochs that end.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from attrs import field, frozen

from eaco_adapters.experiment.prepare import TruthTable
from eaco_adapters.simulator import GroundTruth, SimSettings, simulate
from eaco_core.decisions import Placed, Verdict
from eaco_core.errors import InputError, InternalError
from eaco_core.events import JobSubmitted
from eaco_core.machine import SchedulerMachine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eaco_adapters.shadow.past import Past
    from eaco_adapters.shadow.work import Work
    from eaco_adapters.simulator import SimResult
    from eaco_adapters.simulator.run import JobView
    from eaco_core.cluster import NodeSpec
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.jobs import JobSpec, SoloProfile
    from eaco_core.ports import PowerModel
    from eaco_core.rules import Rules


@frozen
class WouldBe:
    """One run of eaco: the result, and what it decided about shared placements."""

    result: SimResult
    shared: tuple[Placed, ...] = field(repr=False)
    verdicts: Mapping[tuple[str, int], Verdict] = field(repr=False)


def settings_of(past: Past) -> SimSettings:
    """Give the times of the simulated world: starting takes what it took in the history."""
    times_s = past.start_times_s
    if not times_s:
        return SimSettings(policy="eaco")
    return SimSettings(policy="eaco", start_s=median(times_s))


def truth_of(past: Past, jobs: Sequence[Work], interference_ratio: float) -> GroundTruth:
    """Give how much jobs slow each other down: as seen, else by the law x the assumption."""
    profiles: dict[str, SoloProfile] = {}
    for work in jobs:
        workload, profile = work.truth.workload, work.truth.profiles[0]
        known = profiles.get(workload or "")
        if workload is not None and (
            known is None or (known.util_ratio or 0.0) < (profile.util_ratio or 0.0)
        ):
            profiles[workload] = profile
    return GroundTruth(TruthTable(profiles, measured_ratios(past, profiles)), interference_ratio)


def measured_ratios(
    past: Past, profiles: Mapping[str, SoloProfile]
) -> dict[tuple[str, tuple[str, ...]], float]:
    """Give the slowdowns that the history holds: epochs of jobs that shared, and observations."""
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for one in past.observations:
        found.setdefault((one.workload, one.co_workloads), []).append(one.ratio)
    if not past.observations:
        for (workload, beside, _), epoch_s in past.known.shared().items():
            solo = profiles.get(workload)
            if solo is not None and solo.epoch_s:
                ratio = max(1.0, epoch_s / solo.epoch_s)
                found.setdefault((workload, beside), []).append(ratio)
    return {key: sum(ratios) / len(ratios) for key, ratios in found.items()}


def run_eaco(
    jobs: Sequence[Work],
    nodes: Sequence[NodeSpec],
    *,
    truth: GroundTruth,
    power: PowerModel,
    rules: Rules,
    settings: SimSettings,
) -> WouldBe:
    """Simulate eaco on these jobs. Raises InputError where that is not possible."""
    machine = _Believing(
        SchedulerMachine(rules=rules, power=power), {work.job_id: work.believed for work in jobs}
    )
    shared: list[Placed] = []
    verdicts: dict[tuple[str, int], Verdict] = {}

    def keep(
        _event: Event, _effects: Sequence[Effect], records: Sequence[Record], _seq: int
    ) -> None:
        for record in records:
            if isinstance(record, Placed) and record.shared:
                shared.append(record)
            elif isinstance(record, Verdict):
                verdicts[record.job_id, record.attempt] = record

    try:
        result = simulate(
            jobs=[work.truth for work in jobs],
            nodes=nodes,
            machine=machine,
            truth=truth,
            power=power,
            settings=settings,
            on_step=keep,
        )
    except InternalError as error:
        raise InputError(
            f"what eaco would have done with these jobs cannot be simulated: {error}"
        ) from error
    return WouldBe(result, tuple(shared), verdicts)


class _Believing:
    """A machine that is told of each job only what was known when it was submitted."""

    def __init__(self, machine: SchedulerMachine, believed: Mapping[str, JobSpec]) -> None:
        self._machine = machine
        self._believed = believed

    def step(self, event: Event, /) -> Sequence[Effect]:
        if isinstance(event, JobSubmitted):
            event = JobSubmitted(event.t_s, self._believed[event.job.job_id])
        return self._machine.step(event)

    def job(self, job_id: str, /) -> JobView:
        return self._machine.job(job_id)

    @property
    def records(self) -> Sequence[Record]:
        return self._machine.records

    @property
    def seq(self) -> int:
        return self._machine.seq

    @property
    def next_wakeup_s(self) -> float | None:
        return self._machine.next_wakeup_s
