"""The loop between the scheduler's machine and the simulated world.

At each time: first everything that happens, one event after another, each answered
by the machine at once; then Ticks for as long as the machine wants one now. Then
time moves on to the next happening or to the machine's next wakeup.

After the last job has ended the loop goes on until every node that can sleep does,
so that the energy of runs of unlike length can be compared over one time.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from eaco_adapters.simulator.meter import Meter
from eaco_adapters.simulator.result import EnergyRecord, JobOutcome, SimResult
from eaco_adapters.simulator.settings import SimSettings
from eaco_adapters.simulator.world import World
from eaco_core.decisions import Placed, Verdict
from eaco_core.errors import EventRefused, InputError, InternalError
from eaco_core.events import GpusReleased, JobFailed, JobFinished, Tick
from eaco_core.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eaco_adapters.simulator.truth import Truth
    from eaco_core.cluster import NodeSpec
    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.jobs import FailureReason, JobSpec, JobState
    from eaco_core.ports import PowerModel
    from eaco_telemetry.accounting import EnergyParts, NodeInterval, PowerParts

_MAX_IDLE_TICKS = 1_000
_MAX_TAIL_S = 86_400.0
_NAMED = 5


class JobView(Protocol):
    """What the loop reads of a job in the machine."""

    @property
    def state(self) -> JobState:
        """Where the job is in its life."""
        ...


class Machine(Protocol):
    """What the loop needs of the scheduler: `eaco_core.machine.SchedulerMachine` has it."""

    def step(self, event: Event, /) -> Sequence[Effect]:
        """Take in one event; give what is to be done."""
        ...

    def job(self, job_id: str, /) -> JobView:
        """Look at one job."""
        ...

    @property
    def records(self) -> Sequence[Record]:
        """What was decided in the last step."""
        ...

    @property
    def seq(self) -> int:
        """The number of the last step."""
        ...

    @property
    def next_wakeup_s(self) -> float | None:
        """When it wants a Tick."""
        ...


def simulate(
    *,
    jobs: Iterable[JobSpec],
    nodes: Sequence[NodeSpec],
    machine: Machine,
    truth: Truth,
    power: PowerModel | None,
    settings: SimSettings | None = None,
    on_step: Callable[[Event, Sequence[Effect], Sequence[Record], int], None] | None = None,
    on_energy: Callable[[NodeInterval], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimResult:
    """Run all jobs to their end under a fresh `machine`, and say how it went.

    Energy is None without `power`, and where a job has no solo utilisation on some GPU
    type that it may use. `on_step` gets (event, effects, records, seq) of every step,
    `on_energy` every booked interval, `progress` (ended, total) as jobs end. Raises
    InputError for jobs that cannot be simulated, InternalError when machine and world
    contradict each other or a job never ends.
    """
    began_s = time.process_time()
    chosen = SimSettings() if settings is None else settings
    listed = list(jobs)
    _check(listed, nodes)
    meter = None
    if power is not None and _utilisation_known(listed, nodes):
        meter = Meter(power, on_energy)
    world = World(jobs=listed, nodes=nodes, truth=truth, settings=chosen, meter=meter)
    loop = _Loop(world, machine, on_step, progress)
    end_s, active_node_s, parts = loop.run_jobs(meter)
    job_energy = {job.job_id: meter.ledger.job_j(job.job_id) for job in listed} if meter else {}
    tail = loop.run_tail(meter)
    return SimResult(
        policy=chosen.policy,
        seed=chosen.seed,
        in_sample=chosen.in_sample,
        jobs=tuple(_outcome(world, job, job_energy.get(job.job_id)) for job in listed),
        end_s=end_s,
        active_node_s=active_node_s,
        energy=None if parts is None else EnergyRecord(end_s, parts, tuple(tail)),
        placements=loop.placements,
        shared_placements=loop.shared_placements,
        observations_kept=loop.kept,
        undos=loop.undos,
        steps=loop.steps,
        cpu_s=time.process_time() - began_s,
        peak_rss_bytes=_peak_rss_bytes(),
    )


class _Loop:
    """Drives machine and world through time, and counts what was decided."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        on_step: Callable[[Event, Sequence[Effect], Sequence[Record], int], None] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._world = world
        self._machine = machine
        self._on_step = on_step
        self._progress = progress
        self._failed: dict[str, FailureReason] = {}
        self.placements = 0
        self.shared_placements = 0
        self.kept = 0
        self.undos = 0
        self.steps = 0

    def run_jobs(self, meter: Meter | None) -> tuple[float, float, EnergyParts | None]:
        """Run until no job is left; give the end, the active time of nodes, and the energy."""
        world = self._world
        end_s = 0.0
        while world.unfinished:
            self._run_instant()
            end_s = world.now_s
            if not world.unfinished:
                break
            next_s = self._next_s()
            if next_s is None:
                raise InternalError(self._stuck())
            world.advance(next_s)
        world.settle()
        if meter is None:
            return end_s, world.active_node_s(), None
        meter.ledger.advance_all(end_s)
        return end_s, world.active_node_s(), meter.ledger.parts()

    def run_tail(self, meter: Meter | None) -> list[tuple[float, PowerParts]]:
        """Run until all nodes sleep; give the power from each time on at which it changes."""
        world = self._world
        limit_s = world.now_s + _MAX_TAIL_S
        tail: list[tuple[float, PowerParts]] = []
        while True:
            self._run_instant()
            world.settle()
            if meter is not None:
                tail.append((world.now_s, meter.ledger.power()))
            next_s = self._next_s()
            if next_s is None or next_s > limit_s or world.all_asleep():
                break
            world.advance(next_s)
        if meter is not None:
            meter.ledger.advance_all(world.now_s)
        return tail

    def _next_s(self) -> float | None:
        next_s = self._world.next_s()
        wakeup_s = self._machine.next_wakeup_s
        if next_s is None or (wakeup_s is not None and wakeup_s < next_s):
            return wakeup_s
        return next_s

    def _run_instant(self) -> None:
        """Do everything that is due at the present time."""
        world, machine = self._world, self._machine
        idle_ticks = 0
        while True:
            events = world.pop()
            if events is not None:
                for event in events:
                    self._step(event)
                continue
            wakeup_s = machine.next_wakeup_s
            if wakeup_s is None or wakeup_s > world.now_s:
                return
            idle_ticks = 0 if self._step(Tick(world.now_s)) else idle_ticks + 1
            if idle_ticks > _MAX_IDLE_TICKS:
                raise InternalError(
                    f"at {world.now_s!r} s the scheduler wants Tick after Tick and does nothing"
                )

    def _step(self, event: Event) -> Sequence[Effect]:
        machine = self._machine
        try:
            effects = machine.step(event)
        except EventRefused as refused:
            raise InternalError(
                f"the scheduler refused what happened in the simulated cluster: {refused}"
            ) from refused
        self.steps += 1
        records = machine.records
        for record in records:
            if isinstance(record, Placed):
                self.placements += 1
                self.shared_placements += record.shared
            elif isinstance(record, Verdict):
                self.kept += record.keep
                self.undos += not record.keep
        if self._on_step is not None:
            self._on_step(event, effects, records, machine.seq)
        if effects:
            self._world.perform(effects)
        self._note_end(event)
        return effects

    def _note_end(self, event: Event) -> None:
        if isinstance(event, JobFailed):
            self._failed[event.job_id] = event.reason
        elif isinstance(event, GpusReleased):
            reason = self._failed.pop(event.job_id, None)
            if reason is None or self._machine.job(event.job_id).state not in TERMINAL:
                return
            self._world.fail_for_good(event.job_id, reason)
        elif not isinstance(event, JobFinished):
            return
        if self._progress is not None:
            total = len(self._world.jobs)
            self._progress(total - self._world.unfinished, total)

    def _stuck(self) -> str:
        left = [job for job in self._world.jobs.values() if job.end_s is None]
        states = [
            f"{job.spec.job_id} ({self._machine.job(job.spec.job_id).state.value},"
            f" {job.spec.gpus} GPUs, {job.epochs_done} of {job.epochs} epochs)"
            for job in left[:_NAMED]
        ]
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        return (
            f"at {self._world.now_s!r} s nothing will ever happen again, but jobs are left:"
            f" {', '.join(states)}{more}"
        )


def _check(jobs: Sequence[JobSpec], nodes: Sequence[NodeSpec]) -> None:
    ids = {job.job_id for job in jobs}
    if len(ids) < len(jobs):
        raise InputError("two jobs of the trace have the same id")
    if len({node.node_id for node in nodes}) < len(nodes):
        raise InputError("two nodes of the cluster have the same id")
    gpus = [gpu.gpu_id for node in nodes for gpu in node.gpus]
    if len(set(gpus)) < len(gpus):
        raise InputError("two GPUs of the cluster have the same id")
    for job in jobs:
        if job.gpus > len(gpus):
            raise InputError(
                f"job {job.job_id} asks for {job.gpus} GPUs, but there are {len(gpus)}"
            )


def _utilisation_known(jobs: Iterable[JobSpec], nodes: Iterable[NodeSpec]) -> bool:
    types = {gpu.gpu_type for node in nodes for gpu in node.gpus}
    for job in jobs:
        for profile in job.profiles:
            usable = job.gpu_types is None or profile.gpu_type in job.gpu_types
            if usable and profile.gpu_type in types and profile.util_ratio is None:
                return False
    return True


def _outcome(world: World, spec: JobSpec, energy_j: float | None) -> JobOutcome:
    job = world.jobs[spec.job_id]
    if job.end_s is None:
        raise InternalError(f"job {spec.job_id} has no end")
    return JobOutcome(
        job_id=spec.job_id,
        submit_s=spec.submit_s,
        start_s=job.first_start_s,
        end_s=job.end_s,
        runtime_s=job.run_s,
        deadline_s=spec.deadline_s,
        attempts=job.attempts,
        energy_j=energy_j,
        failure=job.failure,
    )


def _peak_rss_bytes() -> int | None:
    """Give the highest memory of this process so far; None where the system does not say."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
