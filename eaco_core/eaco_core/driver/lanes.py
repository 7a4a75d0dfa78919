"""Lanes: commands to the outside, in order for one job or node, side by side otherwise.

Every call has a time limit. A call that fails or takes too long leaves open what happened, so it
is given again (commands are idempotent), until it is answered, a later command for the same job
takes its place, or what happened to the job has answered it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field, frozen
from attrs.validators import ge, gt

from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.errors import EnvironmentFault
from eaco_core.ports import CommandRefused, StaleTerm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from eaco_core.effects import Effect, Observation
    from eaco_core.events import Event
    from eaco_core.ports import Executor, HistoryStore, PowerController

    JobCommand = fx.StartJob | fx.StopAtEpochBoundary | fx.KillJob


@frozen
class DriverOptions:
    """Limits of the driver. All times in seconds.

    - `inbox_size`: events that wait to be taken in; whoever brings more waits. `batch_size`: events
      taken in between two commits of the journal.
    - `max_commands`: calls to the executor at one time.
    - `start_timeout_s`, `stop_timeout_s`, `kill_timeout_s` (on top of `kill_grace_s`),
      `power_timeout_s`: how long one call may take before it is given again.
    - `supersede_s`: how long a call may still take when a later command for the same job waits.
    - `retry_first_s`, `retry_cap_s`: pause before a command is given again, doubled each time.
    - `release_grace_s`: after a kill that returned, how long to wait for the executor's own report.
    - `unknown_after_s`: after a start of the scheduler, how long a job that the executor does not
      list may stay without a report before it counts as unknown.
    - `commit_in_thread`: whether the journal may block; False for a journal that does not.
    """

    inbox_size: int = field(default=10_000, validator=ge(1))
    batch_size: int = field(default=256, validator=ge(1))
    max_commands: int = field(default=64, validator=ge(1))
    start_timeout_s: float = field(default=60.0, validator=gt(0))
    stop_timeout_s: float = field(default=30.0, validator=gt(0))
    kill_grace_s: float = field(default=10.0, validator=ge(0))
    kill_timeout_s: float = field(default=60.0, validator=gt(0))
    power_timeout_s: float = field(default=60.0, validator=gt(0))
    supersede_s: float = field(default=5.0, validator=ge(0))
    retry_first_s: float = field(default=0.5, validator=gt(0))
    retry_cap_s: float = field(default=30.0, validator=gt(0))
    release_grace_s: float = field(default=2.0, validator=ge(0))
    unknown_after_s: float = field(default=10.0, validator=ge(0))
    commit_in_thread: bool = True


@frozen
class Fault:
    """Something outside did not do what it should; the driver goes on.

    `what` names the call, `job_id` the job if there is one.
    """

    what: str
    error: str
    job_id: str | None = None


@define(eq=False)
class _Lane:
    """The commands of one job or node. `task` works through `waiting`."""

    waiting: deque[Effect] = field(factory=deque["Effect"])
    task: asyncio.Task[None] | None = None
    nudge: asyncio.Event = field(factory=asyncio.Event)
    limit: asyncio.Timeout | None = None


class Lanes:
    """Carries out effects. Tasks live in the group of the driver."""

    def __init__(
        self,
        executor: Executor,
        *,
        power: PowerController | None,
        history: HistoryStore | None,
        options: DriverOptions,
        post: Callable[[Event], Awaitable[None]],
        fault: Callable[[Fault], None],
        group: asyncio.TaskGroup,
    ) -> None:
        self._executor = executor
        self._power = power
        self._history = history
        self._options = options
        self._post = post
        self._fault = fault
        self._group = group
        self._slots = asyncio.Semaphore(options.max_commands)
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._orphans: set[tuple[str, int]] = set()
        # What has answered a command: the last attempt of each lane that started, or was freed.
        self._started: dict[str, int] = {}
        self._freed: dict[str, int] = {}

    def give(self, effect: Effect) -> None:
        """Carry out one effect, after the earlier ones of the same job or node."""
        key = _key(effect)
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting.append(effect)
        lane.nudge.set()
        if lane.task is None:
            lane.task = self._begin(self._work(key, lane))
        elif lane.limit is not None and not lane.limit.expired():
            soon_s = asyncio.get_running_loop().time() + self._options.supersede_s
            when_s = lane.limit.when()
            lane.limit.reschedule(soon_s if when_s is None else min(soon_s, when_s))

    def seen(self, event: Event) -> None:
        """Take note of what happened to a job: it may answer a command that is being repeated."""
        if isinstance(event, ev.JobStarted):
            self._answer(self._started, event.job_id, event.attempt)
        elif isinstance(event, ev.GpusReleased | ev.StartFailed):
            self._answer(self._started, event.job_id, event.attempt)
            self._answer(self._freed, event.job_id, event.attempt)

    def forget(self, job_id: str, attempt: int) -> None:
        """Let the executor drop what it keeps of an attempt whose end is on record."""
        self._begin(self._forget(job_id, attempt))

    def kill_orphan(self, job_id: str, attempt: int, term: int) -> None:
        """End an attempt that runs and is not ours; behind whatever the job waits for."""
        self._orphans.add((job_id, attempt))
        self.give(fx.KillJob(job_id, attempt, term, "the scheduler does not know this attempt"))

    def end(self) -> None:
        """Give up what is under way; a new scheduler gives these commands again."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer(self, answers: dict[str, int], job_id: str, attempt: int) -> None:
        lane = self._lanes.get(f"job {job_id}")
        if lane is not None:
            answers[job_id] = max(attempt, answers.get(job_id, 0))
            lane.nudge.set()

    async def _work(self, key: str, lane: _Lane) -> None:
        while lane.waiting:
            effect = lane.waiting.popleft()
            lane.nudge.clear()
            await self._carry_out(effect, lane)
        # No await between the last look and this: a new effect starts a new task.
        lane.task = None
        del self._lanes[key]
        name = key.removeprefix("job ")
        self._started.pop(name, None)
        self._freed.pop(name, None)

    async def _carry_out(self, effect: Effect, lane: _Lane) -> None:
        if isinstance(effect, fx.StartJob):
            await self._start(effect, lane)
        elif isinstance(effect, fx.StopAtEpochBoundary):
            await self._stop(effect, lane)
        elif isinstance(effect, fx.KillJob):
            await self._kill(effect, lane)
        elif isinstance(effect, fx.RecordObservation):
            await self._record(effect.observation)
        else:
            await self._switch(effect)

    async def _start(self, effect: fx.StartJob, lane: _Lane) -> None:
        job_id, attempt = effect.job_id, effect.attempt

        async def call() -> None:
            await self._executor.start(
                job_id,
                attempt,
                effect.term,
                gpus=dict(effect.gpus),
                resume_epoch=effect.resume_epoch,
            )

        def is_answered() -> bool:
            return self._started.get(job_id, 0) >= attempt

        try:
            await self._until_done(effect, call, self._options.start_timeout_s, lane, is_answered)
        except StaleTerm:
            raise
        except CommandRefused as refusal:
            await self._post(ev.StartFailed(0.0, job_id, attempt, str(refusal)))

    async def _stop(self, effect: fx.StopAtEpochBoundary, lane: _Lane) -> None:
        async def call() -> None:
            await self._executor.request_stop(effect.job_id, effect.attempt, effect.term)

        def is_answered() -> bool:
            return self._freed.get(effect.job_id, 0) >= effect.attempt

        try:
            await self._until_done(effect, call, self._options.stop_timeout_s, lane, is_answered)
        except StaleTerm:
            raise
        except CommandRefused as refusal:
            # Nothing of the attempt is there; a kill proves that its GPUs are free.
            kill = fx.KillJob(effect.job_id, effect.attempt, effect.term, str(refusal))
            await self._kill(kill, lane)

    async def _kill(self, effect: fx.KillJob, lane: _Lane) -> None:
        options = self._options

        async def call() -> None:
            await self._executor.kill(
                effect.job_id, effect.attempt, effect.term, grace_s=options.kill_grace_s
            )

        def is_answered() -> bool:
            return self._freed.get(effect.job_id, 0) >= effect.attempt

        timeout_s = options.kill_grace_s + options.kill_timeout_s
        try:
            await self._until_done(effect, call, timeout_s, lane, is_answered)
        except StaleTerm:
            raise
        except CommandRefused:
            pass  # nothing of it exists, so nothing of it holds a GPU
        if (effect.job_id, effect.attempt) in self._orphans:
            self._orphans.discard((effect.job_id, effect.attempt))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.release_grace_s):
                while not is_answered():
                    lane.nudge.clear()
                    await lane.nudge.wait()
        if not is_answered():
            # That the call returned is the proof; the machine knows which GPUs they are.
            await self._post(ev.GpusReleased(0.0, effect.job_id, effect.attempt, ()))

    async def _until_done(
        self,
        effect: JobCommand,
        call: Callable[[], Awaitable[None]],
        timeout_s: float,
        lane: _Lane,
        is_answered: Callable[[], bool],
    ) -> None:
        """Give a command again and again, until it is done, answered or out of date."""
        pause_s = self._options.retry_first_s
        while not is_answered():
            try:
                async with self._slots, asyncio.timeout(timeout_s) as lane.limit:
                    await call()
            except CommandRefused:
                raise
            except TimeoutError:
                self._tell(effect, f"no answer within {timeout_s:g} s")
            except Exception as error:  # noqa: BLE001 - whatever an adapter raises, the job is ours
                self._tell(effect, str(error) or type(error).__name__)
            else:
                return
            finally:
                lane.limit = None
            if lane.waiting and not isinstance(effect, fx.KillJob):
                return  # a later command takes its place
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await lane.nudge.wait()
            lane.nudge.clear()
            pause_s = min(2 * pause_s, self._options.retry_cap_s)

    async def _switch(self, effect: fx.WakeNode | fx.SleepNode) -> None:
        wake = isinstance(effect, fx.WakeNode)
        try:
            async with self._slots, asyncio.timeout(self._options.power_timeout_s):
                await self._call_power(effect)
        except StaleTerm:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises
            name = "wake" if wake else "sleep"
            reason = str(error) or "no answer in time"
            self._fault(Fault(f"{name} of node {effect.node_id}", reason))
            if wake:
                await self._post(ev.WakeFailed(0.0, effect.node_id))
            else:
                await self._post(ev.NodeAwake(0.0, effect.node_id))

    async def _call_power(self, effect: fx.WakeNode | fx.SleepNode) -> None:
        if self._power is None:
            raise EnvironmentFault("nothing here can wake nodes or let them sleep")
        if isinstance(effect, fx.WakeNode):
            await self._power.wake(effect.node_id, effect.term)
        else:
            await self._power.sleep(effect.node_id, effect.term)

    async def _record(self, observation: Observation) -> None:
        if self._history is None:
            return
        try:
            await asyncio.to_thread(self._history.append, observation)
        except Exception as error:  # noqa: BLE001 - the journal has it, so nothing is lost
            self._fault(Fault("keeping an observation", str(error), observation.job_id))

    async def _forget(self, job_id: str, attempt: int) -> None:
        try:
            async with self._slots, asyncio.timeout(self._options.stop_timeout_s):
                await self._executor.forget(job_id, attempt)
        except Exception as error:  # noqa: BLE001 - it is told again after a restart, no more
            self._fault(Fault("forget", str(error) or "no answer in time", job_id))

    def _tell(self, effect: JobCommand, error: str) -> None:
        what = f"{type(effect).__name__} of attempt {effect.attempt}"
        self._fault(Fault(what, error, effect.job_id))


def _key(effect: Effect) -> str:
    if isinstance(effect, fx.RecordObservation):
        return "observations"
    if isinstance(effect, fx.WakeNode | fx.SleepNode):
        return f"node {effect.node_id}"
    return f"job {effect.job_id}"
