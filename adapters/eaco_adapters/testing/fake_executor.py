"""An executor without processes, for tests of whatever drives one.

Jobs are tasks that sleep. What can go wrong outside goes wrong by a seed: calls that hang, fail
after they had their effect, or come back late; reports that are told twice; jobs that crash. A
command that must never be given (a second attempt while the first still runs) raises
`ExecutorAbused`.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from eaco_core import events as ev
from eaco_core.ports import CommandRefused, Report, StaleTerm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from eaco_core.events import Event


class ExecutorAbused(AssertionError):
    """A command that must never be given was given."""


@frozen
class Habits:
    """How often what goes wrong (0..1), and how long things take (s).

    `fail_ratio`: a call raises, half of the time after it had its effect. `hang_ratio`: a call
    never answers. `twice_ratio`: a report is told twice. `refuse_ratio`: a start is refused for
    good. `crash_ratio`: an epoch ends in a crash instead.
    """

    fail_ratio: float = 0.0
    hang_ratio: float = 0.0
    twice_ratio: float = 0.0
    refuse_ratio: float = 0.0
    crash_ratio: float = 0.0
    delay_s: float = 1.0
    epoch_s: float = 20.0


CALM = Habits()
ROUGH = Habits(
    fail_ratio=0.2, hang_ratio=0.05, twice_ratio=0.2, refuse_ratio=0.02, crash_ratio=0.01, delay_s=5
)


@define(eq=False)
class _Attempt:
    job_id: str
    attempt: int
    gpus: tuple[str, ...]
    epoch: int
    task: asyncio.Task[None] | None = None
    stop_asked: bool = False
    ended: bool = False
    reports: list[Event] = field(factory=list["Event"])


class FakeExecutor:
    """See `eaco_core.ports.Executor`. `epochs_of` says how many epochs a job has.

    `on_start` is called with job and attempt when a new attempt really begins.

    It outlives a scheduler: give it to the next one, as a node goes on when a scheduler dies.
    """

    def __init__(
        self,
        epochs_of: Callable[[str], int],
        *,
        habits: Habits = CALM,
        seed: int = 0,
        on_start: Callable[[str, int], None] | None = None,
    ) -> None:
        self._epochs_of = epochs_of
        self._on_start = on_start
        self._habits = habits
        self._chance = random.Random(seed)  # noqa: S311 - a seed, so that a run can be repeated
        self._attempts: dict[tuple[str, int], _Attempt] = {}
        self._told: asyncio.Queue[Report] = asyncio.Queue()
        self._term = 0
        self.starts: dict[tuple[str, int], int] = {}

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        """Start a task for the attempt, once."""
        self._check_term(term)
        fails = await self._trouble()
        if fails == "before":
            raise OSError("the connection broke before the start")
        if (job_id, attempt) not in self._attempts:
            if self._chance.random() < self._habits.refuse_ratio:
                raise CommandRefused("there is no such program")
            if self._on_start is not None:
                self._on_start(job_id, attempt)
            held = tuple(gpu_id for ids in gpus.values() for gpu_id in ids)
            self._refuse_two_at_once(job_id, attempt)
            one = _Attempt(job_id, attempt, held, resume_epoch)
            self._attempts[job_id, attempt] = one
            self.starts[job_id, attempt] = self.starts.get((job_id, attempt), 0) + 1
            one.task = asyncio.get_running_loop().create_task(self._run(one))
        if fails == "after":
            raise OSError("the connection broke after the start")

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:
        """Let the attempt stop at the end of its epoch."""
        self._check_term(term)
        if await self._trouble() == "before":
            raise OSError("the connection broke before the stop")
        one = self._attempts.get((job_id, attempt))
        if one is None:
            raise CommandRefused(f"there is no attempt {attempt} of job {job_id}")
        one.stop_asked = True

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        """End the attempt; its GPUs are free when this returns."""
        self._check_term(term)
        fails = await self._trouble()
        if fails == "before":
            raise OSError("the connection broke before the kill")
        await asyncio.sleep(self._chance.uniform(0, grace_s))
        one = self._attempts.get((job_id, attempt))
        if one is not None and not one.ended:
            await self._end(one)
        if fails == "after":
            raise OSError("the connection broke after the kill")

    async def reports(self) -> AsyncIterator[Report]:
        """Tell everything that is not forgotten again, then what happens."""
        while not self._told.empty():
            self._told.get_nowait()
        for one in list(self._attempts.values()):
            for event in one.reports:
                yield Report(event, age_s=60.0)
        while True:
            report = await self._told.get()
            if self._chance.random() < self._habits.fail_ratio / 10:
                await self._told.put(report)
                raise OSError("the connection for reports broke")
            yield report

    async def list_running(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """List what has not ended."""
        if await self._trouble():
            raise OSError("the connection broke")
        return [
            (one.job_id, one.attempt, one.gpus) for one in self._attempts.values() if not one.ended
        ]

    async def forget(self, job_id: str, attempt: int) -> None:
        """Forget an attempt that has ended; one that has not must not be forgotten."""
        one = self._attempts.get((job_id, attempt))
        if one is None:
            return
        if not one.ended:
            raise ExecutorAbused(f"attempt {attempt} of job {job_id} is to be forgotten and runs")
        one.reports.clear()

    @property
    def running(self) -> list[tuple[str, int]]:
        """Name what runs now."""
        return [key for key, one in self._attempts.items() if not one.ended]

    async def close(self) -> None:
        """End all tasks."""
        for one in self._attempts.values():
            if one.task is not None and not one.task.done():
                one.task.cancel()
                await asyncio.wait([one.task])

    async def _run(self, one: _Attempt) -> None:
        await self._delay()
        self._tell(one, ev.JobStarted(0.0, one.job_id, one.attempt, one.gpus))
        last = self._epochs_of(one.job_id)
        while one.epoch < last:
            await asyncio.sleep(self._habits.epoch_s * self._chance.uniform(0.8, 1.2))
            if self._chance.random() < self._habits.crash_ratio:
                self._tell(one, ev.JobFailed(0.0, one.job_id, one.attempt))
                await self._finish(one)
                return
            one.epoch += 1
            self._tell(one, ev.EpochCompleted(0.0, one.job_id, one.attempt, one.epoch))
            if one.stop_asked and one.epoch < last:
                self._tell(one, ev.JobStopped(0.0, one.job_id, one.attempt, one.epoch))
                await self._finish(one)
                return
        self._tell(one, ev.JobFinished(0.0, one.job_id, one.attempt))
        await self._finish(one)

    async def _finish(self, one: _Attempt) -> None:
        await self._delay()
        one.ended = True
        self._tell(one, ev.GpusReleased(0.0, one.job_id, one.attempt, one.gpus))

    async def _end(self, one: _Attempt) -> None:
        if one.task is not None and not one.task.done():
            one.task.cancel()
            await asyncio.wait([one.task])
        if not one.ended:
            one.ended = True
            self._tell(one, ev.GpusReleased(0.0, one.job_id, one.attempt, one.gpus))

    def _tell(self, one: _Attempt, event: Event) -> None:
        one.reports.append(event)
        twice = self._chance.random() < self._habits.twice_ratio
        for _ in range(2 if twice else 1):
            self._told.put_nowait(Report(event))

    def _check_term(self, term: int) -> None:
        if term < self._term:
            raise StaleTerm(f"term {term} is over; now is term {self._term}")
        self._term = term

    def _refuse_two_at_once(self, job_id: str, attempt: int) -> None:
        for other in self._attempts.values():
            if other.job_id == job_id and not other.ended:
                raise ExecutorAbused(
                    f"attempt {attempt} of job {job_id} starts while {other.attempt} still runs"
                )

    async def _delay(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, self._habits.delay_s))

    async def _trouble(self) -> str:
        """Take some time; give "before", "after" or "" for where the call is to fail."""
        await self._delay()
        if self._chance.random() < self._habits.hang_ratio:
            await asyncio.sleep(1e6)
        if self._chance.random() < self._habits.fail_ratio:
            return self._chance.choice(("before", "after"))
        return ""
