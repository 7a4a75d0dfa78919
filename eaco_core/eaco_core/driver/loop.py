"""The loop: events in, one commit of the journal, then the effects.

Only one task steps the machine, and it steps without waiting in between; so no other code ever
sees a half-made decision. What the machine asked for is given to the lanes only when the journal
holds it (I22).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, ClassVar, cast

from attrs import evolve, field, frozen

from eaco_core import events as ev
from eaco_core.driver.lanes import DriverOptions, Fault, Lanes
from eaco_core.errors import EacoError, EnvironmentFault, EventRefused, InternalError
from eaco_core.history import Step, encode_step
from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.jobs import JobSpec
    from eaco_core.machine import SchedulerMachine
    from eaco_core.ports import Clock, Executor, HistoryStore, Journal, PowerController
    from eaco_core.snapshot import SchedulerState

_LATE_S = 1.0
"""An epoch that is told later than this after its end has no time that can be compared."""

_MOST_TICKS = 100


@frozen(eq=False)
class _Item:
    """One event on its way in. `answer` gets its step once that is durable."""

    event: Event
    age_s: float = 0.0
    answer: asyncio.Future[Step] | None = field(default=None)


class Driver:
    """Runs one scheduler. Await `run`; talk to it by the other methods, from the same loop.

    `journal` None: nothing is kept (tests, shadow). `on_fault` gets what went wrong outside;
    `on_step` gets every step, durable and in order; both must return at once.
    """

    lanes_type: ClassVar[type[Lanes]] = Lanes

    def __init__(
        self,
        machine: SchedulerMachine,
        executor: Executor,
        clock: Clock,
        *,
        journal: Journal | None = None,
        power: PowerController | None = None,
        history: HistoryStore | None = None,
        options: DriverOptions | None = None,
        on_fault: Callable[[Fault], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self.options = DriverOptions() if options is None else options
        self._machine = machine
        self._executor = executor
        self._clock = clock
        self._journal = journal
        self._power = power
        self._history = history
        self._on_fault = on_fault
        self._on_step = on_step
        self._inbox: deque[_Item] = deque()
        self._alarm = asyncio.Event()
        self._room = asyncio.Semaphore(self.options.inbox_size)
        self._stopping = False
        self._running = False
        self._ended: str | None = None
        self._reported: set[str] = set()
        self.faults = 0
        self.refused = 0

    @property
    def machine(self) -> SchedulerMachine:
        """Give the machine, to look at. Only the driver may step it."""
        return self._machine

    def snapshot(self) -> SchedulerState:
        """Give the present state; what it shows may not be durable yet."""
        return self._machine.snapshot()

    async def submit(self, job: JobSpec) -> Step:
        """Hand in a job; returns when that is durable. Raises EventRefused."""
        return await self.ask(ev.JobSubmitted(0.0, job))

    async def cancel(self, job_id: str) -> Step:
        """Take a job back; returns when that is durable. Raises EventRefused."""
        return await self.ask(ev.JobCancelled(0.0, job_id))

    async def ask(self, event: Event) -> Step:
        """Bring an event and wait for its step to be durable.

        Raises EventRefused if it cannot be, EnvironmentFault if the scheduler stops before. Its
        time is set here. If the wait is cancelled the event may still be taken in.
        """
        answer: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        await self._bring(_Item(event, answer=answer))
        return await answer

    async def post(self, event: Event, age_s: float = 0.0) -> None:
        """Bring an event; returns when it is in the queue. Its time is set here."""
        await self._bring(_Item(event, age_s))

    def stop(self) -> None:
        """Let `run` return after what is in the queue now is durable. Jobs go on running."""
        self._stopping = True
        self._alarm.set()

    async def run(self) -> None:
        """Run until `stop`. Raises what makes it impossible to go on.

        EnvironmentFault: the journal cannot be written. StaleTerm: another scheduler has taken
        over. When it raises or is cancelled, whoever waits for an answer gets EnvironmentFault.
        """
        if self._running:
            raise InternalError("this driver runs already")
        self._running = True
        reason = "the scheduler was stopped"
        try:
            await self._run()
        except BaseExceptionGroup as group:
            error = _single(group)
            reason = f"the scheduler ended: {error}"
            raise error from None
        finally:
            self._ended = reason
            while self._inbox:
                _fail(self._inbox.popleft(), reason)
                self._room.release()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            lanes = self.lanes_type(
                self._executor,
                power=self._power,
                history=self._history,
                options=self.options,
                post=self.post,
                fault=self._fault,
                group=group,
            )
            anchor = self._step_at(ev.ClockAnchored(0.0, self._clock.wall_s()))
            await self._commit([(anchor, None)])
            self._tell_step(anchor)
            for effect in self._machine.outstanding():
                lanes.give(effect)
            others = [
                group.create_task(self._read_reports()),
                group.create_task(self._attach(lanes)),
            ]
            await self._decide(lanes)
            for task in others:
                task.cancel()
            lanes.end()

    # ---- the only task that steps the machine -----------------------------------------

    async def _decide(self, lanes: Lanes) -> None:
        while True:
            await self._until_something_is_due()
            items = [self._inbox.popleft() for _ in range(self._batch())]
            for _ in items:
                self._room.release()
            if items or self._is_due():
                await self._take_in(lanes, items)
            elif self._stopping:
                return

    def _batch(self) -> int:
        return min(len(self._inbox), self.options.batch_size)

    def _is_due(self) -> bool:
        wakeup_s = self._machine.next_wakeup_s
        return wakeup_s is not None and wakeup_s <= self._now_s()

    def _now_s(self) -> float:
        return max(self._clock.now_s(), self._machine.now_s)

    async def _until_something_is_due(self) -> None:
        self._alarm.clear()
        if self._inbox or self._stopping or self._is_due():
            await asyncio.sleep(0)  # whoever waits for the loop gets a turn
            return
        wakeup_s = self._machine.next_wakeup_s
        timeout_s = None if wakeup_s is None else max(0.0, wakeup_s - self._clock.now_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._alarm.wait()

    async def _take_in(self, lanes: Lanes, items: list[_Item]) -> None:
        steps: list[tuple[Step, _Item | None]] = []
        try:
            for item in items:
                self._step_item(item, steps)
            for _ in range(_MOST_TICKS):
                if not self._is_due():
                    break
                steps.append((self._step_at(ev.Tick(0.0)), None))
            await self._commit(steps)
        except BaseException:
            for item in items:
                _fail(item, "the scheduler ended before this was durable")
            raise
        for step, asked in steps:
            if asked is not None and asked.answer is not None and not asked.answer.done():
                asked.answer.set_result(step)
            self._tell_step(step)
            self._after(lanes, step)
        for step, _ in steps:
            for effect in step.effects:
                lanes.give(effect)

    def _step_item(self, item: _Item, steps: list[tuple[Step, _Item | None]]) -> None:
        now_s = self._now_s()
        t_s = max(self._machine.now_s, now_s - item.age_s)
        event = evolve(item.event, t_s=t_s)
        late = item.age_s - (now_s - t_s) > _LATE_S or item.age_s > _LATE_S
        if isinstance(event, ev.EpochCompleted) and late:
            event = evolve(event, clean=False)
        if isinstance(event, ev.GpusReleased) and not event.gpus:
            event = self._with_gpus(event)
        try:
            steps.append((self._step(event), item))
        except EventRefused as refusal:
            self.refused += 1
            if item.answer is None:
                self._fault(Fault("an event was refused", str(refusal), refusal.job_id))
            elif not item.answer.done():
                item.answer.set_exception(refusal)

    def _with_gpus(self, event: ev.GpusReleased) -> ev.GpusReleased:
        """Name the GPUs of an attempt of which a kill proved that nothing is left."""
        try:
            job = self._machine.job(event.job_id)
        except KeyError:
            return event
        return evolve(event, gpus=job.gpus if job.attempt == event.attempt else ())

    def _tell_step(self, step: Step) -> None:
        if self._on_step is not None:
            self._on_step(step)

    def _step_at(self, event: Event) -> Step:
        return self._step(evolve(event, t_s=self._now_s()))

    def _step(self, event: Event) -> Step:
        machine = self._machine
        effects: tuple[Effect, ...] = machine.step(event)
        return Step(machine.seq, event.t_s, machine.term, event, effects, machine.records)

    async def _commit(self, steps: list[tuple[Step, _Item | None]]) -> None:
        if self._journal is None or not steps:
            return
        for step, _ in steps:
            self._journal.append(
                encode_step(step.seq, step.t_s, step.term, step.event, step.effects, step.records)
            )
        if not self.options.commit_in_thread:
            self._journal.commit()
            return
        # If this task is cancelled the thread still writes: wait for it, so that nobody closes
        # the file under it.
        commit = asyncio.ensure_future(asyncio.to_thread(self._journal.commit))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait([commit])
            raise

    def _after(self, lanes: Lanes, step: Step) -> None:
        event = step.event
        lanes.seen(event)
        if isinstance(event, ev.JobEvent):
            self._reported.add(event.job_id)
        if isinstance(event, ev.GpusReleased):
            job = self._machine.job(event.job_id)
            if job.attempt > event.attempt or not job.gpus:
                lanes.forget(event.job_id, event.attempt)

    # ---- what comes from the executor -----------------------------------------------

    async def _read_reports(self) -> None:
        """Bring in reports for ever; a source that ends or fails is asked again."""
        pause_s = self.options.retry_first_s
        while True:
            try:
                async for report in self._executor.reports():
                    await self._bring(_Item(report.event, report.age_s))
                    pause_s = self.options.retry_first_s
                error = "the reports ended"
            except EacoError as failure:
                error = str(failure)
            except Exception as failure:  # noqa: BLE001 - whatever an adapter raises
                error = f"{type(failure).__name__}: {failure}"
            self._fault(Fault("reading the executor's reports", error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self.options.retry_cap_s)

    async def _attach(self, lanes: Lanes) -> None:
        """Compare what runs with what should: end strangers, doubt what nobody has seen."""
        running = await self._list_running()
        listed = {(job_id, attempt) for job_id, attempt, _ in running}
        known = self._machine.snapshot().jobs
        for job_id, attempt, _ in running:
            job = known.get(job_id)
            if job is None or job.attempt != attempt or not job.gpus:
                lanes.kill_orphan(job_id, attempt, self._machine.term)
        await asyncio.sleep(self.options.unknown_after_s)
        for job_id, job in known.items():
            unseen = (job_id, job.attempt) not in listed and job_id not in self._reported
            if job.state in _RUNS and unseen:
                await self.post(ev.JobUnknown(0.0, job_id, job.attempt))

    async def _list_running(self) -> list[tuple[str, int, tuple[str, ...]]]:
        pause_s = self.options.retry_first_s
        while True:
            try:
                async with asyncio.timeout(self.options.start_timeout_s):
                    return list(await self._executor.list_running())
            except Exception as error:  # noqa: BLE001 - whatever an adapter raises
                self._fault(Fault("listing what runs", str(error) or "no answer in time"))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self.options.retry_cap_s)

    async def _bring(self, item: _Item) -> None:
        if self._ended is not None:
            raise EnvironmentFault(self._ended)
        await self._room.acquire()
        if self._ended is not None:
            self._room.release()
            raise EnvironmentFault(self._ended)
        self._inbox.append(item)
        self._alarm.set()

    def _fault(self, fault: Fault) -> None:
        self.faults += 1
        if self._on_fault is not None:
            self._on_fault(fault)


_RUNS = frozenset({JobState.OBSERVING, JobState.SETTLED})


def _fail(item: _Item, reason: str) -> None:
    if item.answer is not None and not item.answer.done():
        item.answer.set_exception(EnvironmentFault(reason))


def _single(error: BaseException) -> BaseException:
    """Give the one error inside of groups that hold just one; else the innermost such group."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return _single(group.exceptions[0]) if len(group.exceptions) == 1 else group
    return error
