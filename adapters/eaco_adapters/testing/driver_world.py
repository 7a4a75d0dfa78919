"""A small cluster, a driver and whoever uses it, in seeded time: one seed, one whole run.

The executor has faults, users submit and cancel, and the scheduler dies at the worst points: before
the journal holds a step, between that and its effects, and at any other time. A run raises if a
state or the history breaks an invariant, if an attempt runs twice, or if a job never ends.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

from eaco_adapters.testing.fake_executor import ROUGH, FakeExecutor, Habits
from eaco_adapters.testing.seeded_loop import run_seeded
from eaco_core.driver import Driver, DriverOptions
from eaco_core.effects import StartJob
from eaco_core.errors import EnvironmentFault, EventRefused
from eaco_core.events import JobCancelled, JobSubmitted, NodeJoined
from eaco_core.history import Header, Step, decode_line
from eaco_core.invariants import check_history, check_state
from eaco_core.machine import SchedulerMachine
from eaco_core.states import TERMINAL
from eaco_core.testing.builders import a_job, a_node

if TYPE_CHECKING:
    from eaco_core.driver import Fault
    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.jobs import JobSpec
    from eaco_core.ports import Clock

_LONGEST_S: Final = 40_000.0
_OPTIONS: Final = DriverOptions(
    inbox_size=8,
    batch_size=4,
    start_timeout_s=30,
    stop_timeout_s=30,
    kill_grace_s=5,
    kill_timeout_s=30,
    unknown_after_s=10,
    commit_in_thread=False,
)


class Death(EnvironmentFault):
    """The scheduler dies here."""


class VirtualClock:
    """The time of the loop, as scheduler seconds."""

    def now_s(self) -> float:
        """Give the present time."""
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        """Give a wall clock that has nothing to do with it."""
        return 1.7e9 + self.now_s()


class MemoryJournal:
    """A journal that forgets what was not committed, and can be the death of its writer.

    `deadly`: "append" dies before anything is durable, "commit" after that and before anyone
    knows; it happens at the `fuse`-th commit from now.
    """

    def __init__(self) -> None:
        self.durable: list[str] = []
        self._taken: list[str] = []
        self.deadly: str | None = None
        self.fuse = 0

    def append(self, line: str, /) -> None:
        """Take one line."""
        self._taken.append(line)

    def commit(self) -> None:
        """Keep what was taken, unless this is the end."""
        self.fuse -= 1
        dies = self.deadly if self.deadly is not None and self.fuse <= 0 else None
        if dies == "append":
            self.deadly = None
            raise Death("before the journal")
        self.durable += self._taken
        self._taken.clear()
        if dies == "commit":
            self.deadly = None
            raise Death("after the journal")

    def reopen(self) -> None:
        """Forget what was not durable."""
        self._taken.clear()


class WatchedMachine(SchedulerMachine):
    """A machine of which every state is checked."""

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Take a step, then look at the whole state."""
        effects = super().step(event)
        violations = check_state(self.snapshot())
        if violations:
            raise AssertionError("\n".join(str(violation) for violation in violations))
        return effects


@define
class World:
    """What one run is made of. `deaths`: how often the scheduler dies on the way."""

    seed: int
    jobs: int = 8
    deaths: int = 0
    habits: Habits = ROUGH
    driver: type[Driver] = Driver
    faults: list[Fault] = field(factory=list["Fault"])


def run_world(world: World) -> list[str]:
    """Run one world to its end; give the lines of its history. Raises on any violation."""
    return run_seeded(_Run(world).run(), world.seed)


class _Run:
    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"world {world.seed}")  # noqa: S311 - a seed
        self._journal = MemoryJournal()
        self._epochs = {f"j{n}": self._chance.randint(1, 6) for n in range(world.jobs)}
        self._executor = FakeExecutor(
            self._epochs.__getitem__,
            habits=world.habits,
            seed=world.seed,
            on_start=self._check_written_first,
        )
        self._driver: Driver | None = None
        self._term = 0
        self._clock: Clock = VirtualClock()

    async def run(self) -> list[str]:
        async with asyncio.TaskGroup() as group:
            scheduler = group.create_task(self._keep_running())
            async with asyncio.timeout(_LONGEST_S), asyncio.TaskGroup() as users:
                users.create_task(self._join_nodes())
                for job_id in self._epochs:
                    users.create_task(self._user(job_id))
            await self._until_all_ended()
            scheduler.cancel()
        await self._executor.close()
        self._check_history()
        return self._journal.durable

    async def _keep_running(self) -> None:
        """Start one scheduler after the other, until this task is cancelled."""
        deaths = self._world.deaths
        this = asyncio.current_task()
        while this is not None and not this.cancelling():
            self._driver = driver = self._new_driver()
            task = asyncio.get_running_loop().create_task(driver.run())
            try:
                if deaths:
                    deaths -= 1
                    await self._wait_for_death(task)
                await asyncio.wait([task])
            finally:
                self._driver = None
                task.cancel()
                await asyncio.wait([task])
                self._journal.reopen()
                error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, Death):
                raise error

    async def _wait_for_death(self, task: asyncio.Task[None]) -> None:
        kind = self._chance.choice(("append", "commit", "any time"))
        if kind == "any time":
            await asyncio.wait([task], timeout=self._chance.uniform(0, 200))
            task.cancel()
        else:
            self._journal.deadly, self._journal.fuse = kind, self._chance.randint(1, 12)

    def _new_driver(self) -> Driver:
        self._term += 1
        machine = WatchedMachine(term=self._term)
        for line in self._journal.durable:
            step = decode_line(line)
            if isinstance(step, Step):
                machine.step(step.event)
        return self._world.driver(
            machine,
            self._executor,
            self._clock,
            journal=self._journal,
            options=_OPTIONS,
            on_fault=self._world.faults.append,
        )

    async def _join_nodes(self) -> None:
        for node_id in ("n1", "n2"):
            await self._insist(NodeJoined(0.0, a_node(node_id, 2)))

    async def _user(self, job_id: str) -> None:
        await asyncio.sleep(self._chance.uniform(0, 300))
        cancels_after_s = self._chance.choice((None, None, None, self._chance.uniform(0, 150)))
        job = self._job(job_id)
        await self._insist(JobSubmitted(0.0, job))
        if cancels_after_s is not None:
            await asyncio.sleep(cancels_after_s)
            await self._insist(JobCancelled(0.0, job_id))

    def _job(self, job_id: str) -> JobSpec:
        chance = self._chance
        deadline_s = chance.choice((None, None, 300.0, 900.0))
        return evolve(
            a_job(
                job_id,
                chance.choice((1, 1, 1, 2)),
                epochs=self._epochs[job_id],
                epoch_s=20.0,
                workload=chance.choice(("w1", "w2")),
            ),
            deadline_s=deadline_s,
            max_restarts=100,
        )

    async def _insist(self, event: Event) -> None:
        """Ask until a scheduler answers. A request may so be given twice."""
        answered = False
        while not answered:
            if self._driver is not None:
                try:
                    await self._driver.ask(event)
                except EventRefused as refusal:
                    raise AssertionError(f"a user's request was refused: {refusal}") from refusal
                except EnvironmentFault:
                    pass  # it ended before the answer; the next one is asked
                else:
                    answered = True
            await asyncio.sleep(1)

    async def _until_all_ended(self) -> None:
        async with asyncio.timeout(_LONGEST_S):
            while True:
                if self._driver is not None and not self._executor.running:
                    jobs = self._driver.snapshot().jobs
                    ended = [job for job in jobs.values() if job.state in TERMINAL]
                    if len(ended) == len(self._epochs):
                        return
                await asyncio.sleep(5)

    def _check_written_first(self, job_id: str, attempt: int) -> None:
        """I22: what starts has its StartJob in the journal."""
        for line in reversed(self._journal.durable):
            step = decode_line(line)
            if isinstance(step, Step):
                for effect in step.effects:
                    if (
                        isinstance(effect, StartJob)
                        and effect.job_id == job_id
                        and effect.attempt == attempt
                    ):
                        return
        raise AssertionError(f"attempt {attempt} of {job_id} starts and is not in the journal")

    def _check_history(self) -> None:
        steps = [decode_line(line) for line in self._journal.durable]
        report = check_history([Header(policy="eaco"), *steps])
        if report.failed:
            raise AssertionError("\n".join(str(one) for one in report.failed[:5]))
        twice = [key for key, count in self._executor.starts.items() if count > 1]
        if twice:
            raise AssertionError(f"started twice: {twice}")
