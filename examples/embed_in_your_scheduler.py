"""Put eaco into a scheduler that exists already, in three steps. Stop after any of them.

1. The in-house loop keeps its queue, its executor and its decisions. It only asks, before a job
   would have to wait, and once more when it has seen an epoch (`find_candidates`, `predict_jct`,
   `refusal`, `verify`).
2. The in-house loop keeps its executor, and lets a `SchedulerMachine` decide: events in, effects
   out, no thread, no clock.
3. The in-house asyncio program keeps its functions that start and stop jobs, and lets
   `eaco_core.driver.Driver` run the loop: order, time limits, retries.

The cluster is a toy of one node with two GPUs. Its clock jumps, so that the example takes no
time. All times are seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from eaco_adapters.testing.seeded_loop import run_seeded
from eaco_core import (
    Board,
    GpuSpec,
    JobSpec,
    NodeSpec,
    Rules,
    Running,
    SchedulerMachine,
    SoloProfile,
    find_candidates,
    predict_jct,
    refusal,
    verify,
)
from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.decisions import Evidence, Placed, Verdict
from eaco_core.driver import Driver
from eaco_core.ports import CommandRefused, Report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from eaco_core.decisions import Record
    from eaco_core.events import Event
    from eaco_core.history import Step

GIB = 1024**3
NODE = NodeSpec("box", (GpuSpec("gpu-0", "a100", 40 * GIB), GpuSpec("gpu-1", "a100", 40 * GIB)))


def training(job_id: str, epochs: int, epoch_s: float, util_ratio: float) -> JobSpec:
    """Describe a job: what it trains, how long that takes alone, how busy it keeps a GPU."""
    profile = SoloProfile("a100", epoch_s, util_ratio, util_ratio / 2, 8 * GIB)
    workload = job_id.partition("-")[0]
    return JobSpec(job_id, 1, 0.0, epochs=epochs, workload=workload, profiles=(profile,))


QUEUE = (
    training("bert-1", 6, 600.0, 0.55),
    training("gpt-2", 5, 700.0, 0.90),
    training("gan-3", 4, 300.0, 0.25),
    training("resnet-4", 8, 300.0, 0.30),
)

# What really happens when these two meet; nobody knows it before it was tried.
BAD_PAIR = {"bert", "gan"}


# ------------------------------------------------- what is there already: a cluster


@define(eq=False)
class Process:
    """A job that trains on one GPU."""

    job: JobSpec
    gpu: str
    epoch: int
    began_s: float
    left_s: float
    stop_asked: bool = False

    @property
    def solo_s(self) -> float:
        """The time of an epoch alone."""
        return self.job.profiles[0].epoch_s or 0.0


@frozen
class Happening:
    """The end of an epoch: how long it took, and whether the process ended with it."""

    process: Process
    epoch_s: float
    ended: bool


@define(eq=False)
class ToyCluster:
    """Two GPUs on which jobs slow each other down."""

    now_s: float = 0.0
    running: dict[str, Process] = field(factory=dict[str, Process])

    def start(self, job: JobSpec, gpu: str, epoch: int) -> None:
        """Start a job, or go on with it after `epoch` epochs."""
        process = Process(job, gpu, epoch, self.now_s, 0.0)
        process.left_s = process.solo_s
        self.running[job.job_id] = process

    def beside(self, process: Process) -> list[Process]:
        """Give the others on the same GPU."""
        return [p for p in self.running.values() if p.gpu == process.gpu and p is not process]

    def slowdown(self, process: Process) -> float:
        """Give how many times longer everything takes now."""
        others = self.beside(process)
        if not others:
            return 1.0
        together = [process, *others]
        if {p.job.workload for p in together} >= BAD_PAIR:
            return 2.2
        return 1.04 * max(1.0, sum(p.job.profiles[0].util_ratio or 0.0 for p in together))

    def next_s(self) -> float | None:
        """Give when the next epoch ends."""
        ends = [self.now_s + p.left_s * self.slowdown(p) for p in self.running.values()]
        return min(ends, default=None)

    def run_until(self, t_s: float) -> list[Happening]:
        """Let everybody train until then; give the epochs that ended just then."""
        speeds = {job_id: 1 / self.slowdown(p) for job_id, p in self.running.items()}
        for job_id, process in self.running.items():
            process.left_s -= (t_s - self.now_s) * speeds[job_id]
        self.now_s = t_s
        happenings: list[Happening] = []
        for process in list(self.running.values()):
            if process.left_s > 1e-6:  # noqa: PLR2004 - less is rounding of times
                continue
            process.epoch += 1
            ended = process.stop_asked or process.epoch == process.job.epochs
            happenings.append(Happening(process, t_s - process.began_s, ended))
            process.began_s, process.left_s = t_s, process.solo_s
            if ended:
                del self.running[process.job.job_id]
        return happenings


# ----------------------------------------------- 1. ask, and keep the last word


@define
class Watched:
    """A newcomer beside others: since when, and what was seen of each job there since then."""

    since_s: float
    seen: dict[str, Evidence] = field(factory=dict[str, Evidence])


class Asking:
    """The in-house scheduler: first come, first served, one job per GPU, and a question."""

    def __init__(self) -> None:
        self.cluster = ToyCluster()
        self.queue = deque((job, 0) for job in QUEUE)
        self.watched: dict[str, Watched] = {}
        self.alone: set[str] = set()

    def run(self) -> None:
        """Place what can be placed, then wait for the next epoch to end."""
        self.place()
        while (next_s := self.cluster.next_s()) is not None:
            for happening in self.cluster.run_until(next_s):
                self.look(happening)
            self.place()
        print(f"  all done at {self.cluster.now_s:.0f} s")

    def place(self) -> None:
        """Start jobs on free GPUs; where there is none, ask eaco about one that is in use."""
        while self.queue:
            job, epoch = self.queue[0]
            used = {process.gpu for process in self.cluster.running.values()}
            free = [gpu.gpu_id for gpu in NODE.gpus if gpu.gpu_id not in used]
            shared = None if free or job.job_id in self.alone else self.ask(job, epoch)
            if not free and shared is None:
                return
            gpu = free[0] if free else shared or ""
            self.queue.popleft()
            self.cluster.start(job, gpu, epoch)
            print(f"  {self.cluster.now_s:5.0f} s  {job.job_id} starts on {gpu}")
            if not free:
                self.watched[job.job_id] = Watched(self.cluster.now_s)

    def ask(self, job: JobSpec, epoch: int) -> str | None:
        """Ask on which GPU that is in use the job may start; None = on none."""
        processes = self.cluster.running.values()
        if self.watched or any(process.stop_asked for process in processes):
            return None  # one new neighbour at a time: else nobody knows who slows down whom
        board = Board(
            now_s=self.cluster.now_s,
            nodes=[NODE],
            running=[Running(p.job, (p.gpu,), p.epoch) for p in processes],
        )
        newcomer = board.newcomer(job, epochs_done=epoch)
        for candidate in find_candidates(newcomer, board.view):
            effects = predict_jct(newcomer, candidate.gpus, board.view)
            gpu = candidate.gpus[0].spec.gpu_id
            told = ", ".join(
                f"{effect.job.spec.job_id} at most {effect.estimate.upper_ratio:.2f}x"
                for effect in effects
            )
            refused = refusal(effects, board.view)
            answer = "yes" if refused is None else f"no, {refused[1]}"
            print(f"         {job.job_id} on {gpu}? {told}: {answer}")
            if refused is None:
                return gpu
        return None

    def look(self, happening: Happening) -> None:
        """See an epoch end; judge a shared placement when everybody there has had one."""
        process = happening.process
        job, job_id = process.job, process.job.job_id
        now_s = self.cluster.now_s
        for newcomer, watched in list(self.watched.items()):
            there = self.cluster.running.get(newcomer, process)
            began_s = now_s - happening.epoch_s
            if there.gpu != process.gpu or began_s < watched.since_s:
                continue  # elsewhere, or an epoch that began without the newcomer
            left = (job.epochs or 0) - process.epoch
            ratio = happening.epoch_s / process.solo_s
            watched.seen[job_id] = Evidence(
                job_id, happening.epoch_s, ratio, left, None, late=False
            )
            wanted = {p.job.job_id for p in (there, *self.cluster.beside(there))}
            if not wanted <= set(watched.seen):
                continue
            del self.watched[newcomer]
            judgement = verify(now_s, list(watched.seen.values()), Rules())
            answer = "keep" if judgement.keep else "undo"
            print(f"  {now_s:5.0f} s  {newcomer}: {answer}, {judgement.reason}")
            if not judgement.keep and newcomer in self.cluster.running:
                self.alone.add(newcomer)
                there.stop_asked = True
        if happening.ended and process.epoch < (job.epochs or 0):
            self.queue.appendleft((job, process.epoch))


# --------------------------------- 2. the whole machine, through the loop that is there


def told(records: Sequence[Record]) -> list[str]:
    """Say what was decided."""
    lines: list[str] = []
    for record in records:
        if isinstance(record, Placed):
            beside = sorted({job for gate in record.gates for job in gate.residents})
            company = f" beside {', '.join(beside)}" if beside else ""
            lines.append(f"  {record.t_s:5.0f} s  {record.job_id} on {record.gpus[0]}{company}")
        elif isinstance(record, Verdict):
            word = "keep" if record.keep else "undo"
            lines.append(f"  {record.t_s:5.0f} s  {record.job_id}: {word}, {record.reason}")
    return lines


def events_of(happening: Happening, attempt: int, t_s: float) -> list[Event]:
    """Say in eaco's words what happened to a process."""
    process = happening.process
    job_id = process.job.job_id
    events: list[Event] = [ev.EpochCompleted(t_s, job_id, attempt, process.epoch)]
    if happening.ended:
        if process.epoch == process.job.epochs:
            events.append(ev.JobFinished(t_s, job_id, attempt))
        else:
            events.append(ev.JobStopped(t_s, job_id, attempt, process.epoch))
        events.append(ev.GpusReleased(t_s, job_id, attempt, (process.gpu,)))
    return events


class Feeding:
    """The in-house loop, with a machine that decides."""

    def __init__(self) -> None:
        self.cluster = ToyCluster()
        self.machine = SchedulerMachine()
        self.attempts: dict[str, int] = {}

    def run(self) -> None:
        """Hand in the queue; then bring what happens, and a Tick whenever one is wanted."""
        self.feed(ev.NodeJoined(0.0, NODE))
        for job in QUEUE:
            self.feed(ev.JobSubmitted(0.0, job))
        self.tick()
        while (next_s := self.cluster.next_s()) is not None:
            wakeup_s = self.machine.next_wakeup_s
            t_s = next_s if wakeup_s is None else min(next_s, wakeup_s)
            for happening in self.cluster.run_until(t_s):
                attempt = self.attempts[happening.process.job.job_id]
                for event in events_of(happening, attempt, t_s):
                    self.feed(event)
            self.tick()
        print(f"  all done at {self.cluster.now_s:.0f} s")

    def tick(self) -> None:
        """Let the machine decide, when everything of this moment is in."""
        now_s = self.cluster.now_s
        while (wakeup_s := self.machine.next_wakeup_s) is not None and wakeup_s <= now_s:
            self.feed(ev.Tick(now_s))

    def feed(self, event: Event) -> None:
        """Take one step, and carry out what is asked for."""
        effects = self.machine.step(event)
        for line in told(self.machine.records):
            print(line)
        for effect in effects:
            if isinstance(effect, fx.StartJob):
                ((_, (gpu,)),) = effect.gpus
                job = self.machine.job(effect.job_id).job
                self.attempts[effect.job_id] = effect.attempt
                self.cluster.start(job, gpu, effect.resume_epoch)
                self.feed(ev.JobStarted(self.cluster.now_s, effect.job_id, effect.attempt))
            elif isinstance(effect, fx.StopAtEpochBoundary):
                self.cluster.running[effect.job_id].stop_asked = True


# ------------------------------------------ 3. the driver, in the asyncio loop that is there


class CallbackExecutor:
    """Makes an executor of two functions that exist: one starts a job, one asks it to stop.

    Whoever watches the processes calls `tell`. A real one also remembers, across its own
    restarts, which attempts it started: see `eaco_adapters.executors`.
    """

    def __init__(
        self, start: Callable[[str, int, str, int], None], stop: Callable[[str], bool]
    ) -> None:
        self._start = start
        self._stop = stop
        self._told: asyncio.Queue[Event] = asyncio.Queue()
        self._started: dict[tuple[str, int], tuple[str, ...]] = {}

    def tell(self, event: Event) -> None:
        """Take in what happened to a job. Its time is set by the driver."""
        self._told.put_nowait(event)

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,  # noqa: ARG002 - there is no second scheduler here
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        """Start the attempt once, however often this is asked."""
        if (job_id, attempt) in self._started:
            return
        ((gpu,),) = gpus.values()
        self._started[job_id, attempt] = (gpu,)
        self._start(job_id, attempt, gpu, resume_epoch)
        self.tell(ev.JobStarted(0.0, job_id, attempt, (gpu,)))

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:  # noqa: ARG002 - as above
        """Ask the process to stop after its epoch."""
        if not self._stop(job_id):
            raise CommandRefused(f"job {job_id} does not run")

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:  # noqa: ARG002 - as above
        """Refuse: the toy cannot kill."""
        raise CommandRefused("there is no way to kill a process here")

    async def reports(self) -> AsyncIterator[Report]:
        """Hand on what was told."""
        while True:
            yield Report(await self._told.get())

    async def list_running(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Name what may run."""
        return [(*key, gpus) for key, gpus in self._started.items()]

    async def forget(self, job_id: str, attempt: int) -> None:
        """Forget an attempt whose end is on record."""
        self._started.pop((job_id, attempt), None)


class LoopClock:
    """Scheduler time is the time of the event loop."""

    def now_s(self) -> float:
        """Give the present time."""
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        """Give the time on the wall; only for people."""
        return 1.7e9 + self.now_s()


class Driven:
    """The in-house asyncio program: it starts jobs, watches them, and no longer decides."""

    def __init__(self) -> None:
        self.cluster = ToyCluster()
        self.attempts: dict[str, int] = {}
        self.changed = asyncio.Event()
        self.ended = 0
        self.executor = CallbackExecutor(self.start, self.stop)
        self.driver = Driver(SchedulerMachine(), self.executor, LoopClock(), on_step=self.show)

    def start(self, job_id: str, attempt: int, gpu: str, epoch: int) -> None:
        """Start a process: the function that was there before eaco."""
        job = next(job for job in QUEUE if job.job_id == job_id)
        self.catch_up()
        self.attempts[job_id] = attempt
        self.cluster.start(job, gpu, epoch)
        self.changed.set()

    def stop(self, job_id: str) -> bool:
        """Ask a process to stop: the other function."""
        process = self.cluster.running.get(job_id)
        if process is not None:
            process.stop_asked = True
        return process is not None

    def show(self, step: Step) -> None:
        """Print what was decided."""
        for line in told(step.records):
            print(line)

    def catch_up(self) -> None:
        """Look at the processes, and tell what happened to them."""
        now_s = asyncio.get_running_loop().time()
        for happening in self.cluster.run_until(now_s):
            attempt = self.attempts[happening.process.job.job_id]
            for event in events_of(happening, attempt, 0.0):
                self.executor.tell(event)
                self.ended += isinstance(event, ev.JobFinished)

    async def watch(self) -> None:
        """Watch the processes until all jobs are done."""
        while self.ended < len(QUEUE):
            self.changed.clear()
            next_s = self.cluster.next_s()
            pause_s = None if next_s is None else next_s - asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.changed.wait()
            self.catch_up()

    async def run(self) -> None:
        """Run the driver beside what the program does anyway."""
        running = asyncio.create_task(self.driver.run())
        await self.driver.ask(ev.NodeJoined(0.0, NODE))
        for job in QUEUE:
            await self.driver.submit(job)
        await self.watch()
        print(f"  all done at {self.cluster.now_s:.0f} s, {self.driver.faults} faults")
        self.driver.stop()
        await running


async def drive() -> None:
    """Make the program inside of its event loop."""
    await Driven().run()


def main() -> None:
    """Run the same queue three times."""
    print("1. eaco is asked")
    Asking().run()
    print("2. eaco decides, the in-house loop feeds it")
    Feeding().run()
    print("3. eaco runs the loop")
    run_seeded(drive(), 0, late_ratio=0.0)  # asyncio.run(drive()) where time is real


if __name__ == "__main__":
    main()
