"""Run the demo: broker, agent, server and jobs, all on this machine and all gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import time
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen

from eaco_adapters.demo.alone import measure_alone, profile_table
from eaco_adapters.demo.cast import CHANGED_NOW, WORKLOADS, cast
from eaco_adapters.server.api import SubmitRequest
from eaco_adapters.server.config import parse_config
from eaco_adapters.server.start import Server
from eaco_core import events as ev
from eaco_core.decisions import Placed, Verdict
from eaco_core.effects import StartJob
from eaco_core.errors import EnvironmentFault
from eaco_core.states import TERMINAL
from eaco_predictors.own_profiles import format_profiles
from eaco_telemetry.booking import JobHold, account, recordings_of
from eaco_telemetry.readers.virtual import VirtualGpuReader
from eaco_telemetry.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
    from pathlib import Path

    from eaco_adapters.demo.alone import Alone
    from eaco_adapters.demo.cast import Role
    from eaco_adapters.server.config import ServerConfig
    from eaco_core.decisions import Record
    from eaco_core.history import Step
    from eaco_telemetry.booking import EnergyReport
    from eaco_telemetry.samples import NodeSample

GPUS: Final = 2
_NODE: Final = "demo"
_TYPE: Final = "simulated"
_GIB: Final = 1 << 30
_SUBMIT_EVERY_S: Final = 1.0
_PERIOD_S: Final = 0.5
# Epochs of a second: what takes half a minute of evidence on a real GPU takes two epochs here.
_RULES: Final = {
    "window_min_s": 1.5,
    "headroom_bytes": 64 << 20,
    "kill_slack_s": 10.0,
    "util_window_s": 5.0,
    "util_threshold_ratio": 0.95,
}


@frozen
class JobOutcome:
    """What became of one job. Times in seconds; `energy_j` None where nothing was measured."""

    role: Role
    state: str
    alone_s: float
    runtime_s: float | None
    wait_s: float | None
    undos: int
    late: bool | None
    energy_j: float | None
    alone_j: float


@frozen
class Outcome:
    """What came out of the demo."""

    jobs: tuple[JobOutcome, ...]
    alone: Mapping[str, Alone]
    verdicts: tuple[Verdict, ...]
    placed: tuple[Placed, ...]
    energy: EnergyReport
    alone_j: float
    took_s: float
    through_broker: str | None

    @property
    def kept(self) -> int:
        """How many shared placements were kept after their first epochs."""
        return sum(one.keep for one in self.verdicts if len(one.evidence) > 1)

    @property
    def undone(self) -> int:
        """How many were undone."""
        return sum(not one.keep for one in self.verdicts)


@define
class Stage:
    """One run of the demo in a folder of its own. `say` tells what happens, for people."""

    folder: Path
    seed: int
    say: Callable[[str], None]
    steps: list[Step] = field(factory=list["Step"])
    samples: list[NodeSample] = field(factory=list["NodeSample"])
    # Scheduler seconds and wall clock of one moment.
    anchor: tuple[float, float] = (0.0, 0.0)

    async def run(self) -> Outcome:
        """Do everything; nothing is left running, however it ends.

        Raises EnvironmentFault where a part cannot run.
        """
        began_s = time.monotonic()
        cpus = sorted(os.sched_getaffinity(0))[:GPUS]
        if len(cpus) < GPUS:
            self.say("this machine has one CPU core for us: two virtual GPUs will share it")
        self.say(f"measuring {len(WORKLOADS)} workloads alone ...")
        alone = await measure_alone((*WORKLOADS, CHANGED_NOW), self.folder, cpus)
        for name, one in alone.items():
            self.say(
                f"  {name:11} {one.epoch_s:5.2f} s an epoch, busy {one.util_ratio:4.0%},"
                f" {one.power_w:5.1f} W"
            )
        told = {one.name: alone[one.name] for one in WORKLOADS}
        (self.folder / "profiles.jsonl").write_text(format_profiles(profile_table(told, _TYPE)))
        server = Server(self._config(), "demo")
        stop, ready = asyncio.Event(), asyncio.Event()
        server.on_ready = lambda _: ready.set()
        server.on_step = self._take_step
        running = asyncio.get_running_loop().create_task(server.run(stop))
        roles = cast(self.seed)
        try:
            async with self._telemetry() as broker:
                await _either(running, ready.wait())
                await self._play(server, running, roles, alone)
                await asyncio.sleep(2 * _PERIOD_S)
        finally:
            await self._end(server, running, stop)
        return self._outcome(roles, alone, time.monotonic() - began_s, broker)

    def _config(self) -> ServerConfig:
        return parse_config(
            {
                "name": "demo",
                "state_dir": str(self.folder / "state"),
                "listen": {"socket": str(self.folder / "s")},
                "rules": _RULES,
                "profiles": str(self.folder / "profiles.jsonl"),
                "nodes": {_NODE: {"simulated_gpus": GPUS}},
                "telemetry": {"period_s": _PERIOD_S},
            },
            where="the demo's configuration",
        )

    @contextlib.asynccontextmanager
    async def _telemetry(self) -> AsyncGenerator[str | None]:
        """Collect samples: through a broker where the extra is there, else directly."""
        gpus = {f"SIM-{_NODE}-{number}": _GIB for number in range(GPUS)}
        sampler = Sampler([VirtualGpuReader(gpus)], node_id=_NODE, session_id=f"demo-{os.getpid()}")
        if importlib.util.find_spec("aiomqtt") and importlib.util.find_spec("msgspec"):
            from eaco_adapters.demo.wire import collect_through_broker  # noqa: PLC0415 - needs the extra

            async with collect_through_broker(sampler, _NODE, _PERIOD_S, self.samples) as broker:
                self.say(f"a broker ({broker}), an agent with {GPUS} virtual GPUs, a server")
                yield broker
            return
        self.say(f"a server with {GPUS} virtual GPUs; without the extra mqtt there is no broker")
        await sampler.open()
        task = asyncio.get_running_loop().create_task(self._collect(sampler))
        try:
            yield None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await sampler.close()

    async def _collect(self, sampler: Sampler) -> None:
        while True:
            self.samples.append((await sampler.sample()).sample)
            await asyncio.sleep(_PERIOD_S)

    async def _play(
        self,
        server: Server,
        running: asyncio.Task[None],
        roles: tuple[Role, ...],
        alone: Mapping[str, Alone],
    ) -> None:
        service = server.service
        if service is None:
            raise EnvironmentFault("the demo's server did not start")
        for role in roles:
            deadline = None
            if role.slack is not None:
                seconds = role.slack * role.epochs * alone[role.workload.name].epoch_s
                deadline = f"in {seconds:.1f}s"
            request = SubmitRequest(
                command=role.workload.command(role.epochs, measured=False, seed=self.seed),
                job_id=role.job_id,
                epochs=role.epochs,
                workload=role.workload.name,
                deadline=deadline,
            )
            await service.submit(request)
            told = "" if deadline is None else f", deadline {deadline}"
            self.say(f"submitted {role.job_id}: {role.epochs} epochs{told}")
            await asyncio.sleep(_SUBMIT_EVERY_S)
        while any(
            service.job(role.job_id).state not in {one.value for one in TERMINAL} for role in roles
        ):
            await _either(running, asyncio.sleep(0.2))

    async def _end(self, server: Server, running: asyncio.Task[None], stop: asyncio.Event) -> None:
        """End every job, then the server. Runs to its end also when the demo is cancelled."""

        async def end() -> None:
            service, driver = server.service, server.driver
            if service is not None and driver is not None and not running.done():
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(20):
                        left = [
                            job
                            for job in driver.snapshot().jobs.values()
                            if job.state not in TERMINAL
                        ]
                        for job in left:
                            await driver.cancel(job.job.job_id)
                        while any(  # noqa: ASYNC110 - the driver has no event for this
                            job.gpus for job in driver.snapshot().jobs.values()
                        ):
                            await asyncio.sleep(0.1)
            stop.set()
            await asyncio.wait([running])

        ending = asyncio.ensure_future(end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            raise
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error

    def _take_step(self, step: Step) -> None:
        self.steps.append(step)
        if isinstance(step.event, ev.ClockAnchored):
            self.anchor = (step.event.t_s, step.event.wall_s)
        for record in step.records:
            if isinstance(record, Placed) and record.shared:
                beside = ", ".join(
                    sorted(one.job_id for one in record.affected if one.job_id != record.job_id)
                )
                self.say(f"  {record.job_id} is tried beside {beside}")
            elif isinstance(record, Verdict) and len(record.evidence) > 1:
                seen = ", ".join(
                    f"{one.job_id} x{one.ratio:.2f}" for one in record.evidence if one.ratio
                )
                word = "kept" if record.keep else "UNDONE"
                figures = f" ({seen} of its time alone)" if seen else ""
                self.say(f"  {record.job_id} is {word}: {record.reason}{figures}")

    def _outcome(
        self,
        roles: tuple[Role, ...],
        alone: Mapping[str, Alone],
        took_s: float,
        broker: str | None,
    ) -> Outcome:
        holds = _Holds(self.anchor)
        for step in self.steps:
            holds.take(step)
        energy = account(recordings_of(self.samples), holds.closed())
        joules = {one.job_id: one.amount.energy_j for one in energy.jobs}
        records = [record for step in self.steps for record in step.records]
        jobs: list[JobOutcome] = []
        for role in roles:
            one = alone[role.workload.as_it_is]
            alone_s = role.epochs * one.epoch_s
            runtime_s, wait_s, end_s = holds.times(role.job_id)
            late = None
            if role.slack is not None and end_s is not None:
                late = end_s > role.slack * role.epochs * alone[role.workload.name].epoch_s
            jobs.append(
                JobOutcome(
                    role,
                    holds.state(role.job_id),
                    alone_s,
                    runtime_s,
                    wait_s,
                    holds.undos(role.job_id, records),
                    late,
                    joules.get(role.job_id),
                    alone_s * one.power_w,
                )
            )
        return Outcome(
            tuple(jobs),
            alone,
            tuple(record for record in records if isinstance(record, Verdict)),
            tuple(record for record in records if isinstance(record, Placed)),
            energy,
            sum(job.alone_j for job in jobs),
            took_s,
            broker,
        )


class _Holds:
    """Who held which GPU when, from the steps; in wall time."""

    def __init__(self, anchor: tuple[float, float]) -> None:
        self._anchor = anchor
        self._open: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._done: list[JobHold] = []
        self._submitted: dict[str, float] = {}
        self._run_s: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._state: dict[str, str] = {}
        self._workload: dict[str, str | None] = {}

    def take(self, step: Step) -> None:
        event = step.event
        for effect in step.effects:
            if isinstance(effect, StartJob):
                gpus = tuple(gpu for _, ids in effect.gpus for gpu in ids)
                self._open[effect.job_id] = (self._ns(step.t_s), gpus)
        if isinstance(event, ev.JobSubmitted):
            self._submitted[event.job.job_id] = step.t_s
            self._workload[event.job.job_id] = event.job.workload
        elif isinstance(event, ev.JobStarted):
            self._started.setdefault(event.job_id, step.t_s)
            self._state[event.job_id] = "running"
        elif isinstance(event, ev.JobFinished):
            self._ended[event.job_id] = step.t_s
            self._state[event.job_id] = "finished"
        elif isinstance(event, ev.JobFailed):
            self._state[event.job_id] = "failed"
        elif isinstance(event, ev.GpusReleased) and event.job_id in self._open:
            start_ns, gpus = self._open.pop(event.job_id)
            self._add(event.job_id, gpus, start_ns, self._ns(step.t_s))
            held_s = (self._ns(step.t_s) - start_ns) / 1e9
            self._run_s[event.job_id] = self._run_s.get(event.job_id, 0.0) + held_s

    def closed(self) -> list[JobHold]:
        for job_id, (start_ns, gpus) in self._open.items():
            self._add(job_id, gpus, start_ns, None)
        return self._done

    def state(self, job_id: str) -> str:
        return self._state.get(job_id, "queued")

    def times(self, job_id: str) -> tuple[float | None, float | None, float | None]:
        """Give running time, waiting time, and the time from submission to end; None: no end."""
        if job_id not in self._ended:
            return None, None, None
        end_s = self._ended[job_id] - self._submitted[job_id]
        run_s = min(end_s, self._run_s.get(job_id, 0.0))
        return run_s, end_s - run_s, end_s

    @staticmethod
    def undos(job_id: str, records: list[Record]) -> int:
        return sum(
            isinstance(record, Verdict) and record.job_id == job_id and not record.keep
            for record in records
        )

    def _add(self, job_id: str, gpus: tuple[str, ...], start_ns: int, end_ns: int | None) -> None:
        workload = self._workload.get(job_id)
        self._done.append(JobHold(job_id, gpus, start_ns, end_ns, workload=workload))

    def _ns(self, t_s: float) -> int:
        t0_s, wall_s = self._anchor
        return int((wall_s + t_s - t0_s) * 1e9)


async def _either(running: asyncio.Task[None], work: Coroutine[Any, Any, object]) -> None:
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([running, task], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            raise EnvironmentFault("the demo's server ended by itself")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
