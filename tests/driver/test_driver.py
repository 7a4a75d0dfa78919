"""The driver, behaviour by behaviour, with executors that do one thing wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from eaco_adapters.testing.driver_world import MemoryJournal, VirtualClock
from eaco_adapters.testing.fake_executor import CALM, FakeExecutor
from eaco_adapters.testing.seeded_loop import run_seeded
from eaco_core import events as ev
from eaco_core.driver import Driver, DriverOptions, Fault
from eaco_core.errors import EnvironmentFault, EventRefused, InternalError
from eaco_core.history import Step, decode_line
from eaco_core.jobs import JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.ports import CommandRefused, StaleTerm
from eaco_core.testing.builders import a_job, a_node

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from eaco_core.ports import Executor

OPTIONS = DriverOptions(commit_in_thread=False, unknown_after_s=10, release_grace_s=2)


async def eventually(true: Callable[[], bool]) -> None:
    """Wait in virtual time until something holds."""
    while not true():  # noqa: ASYNC110 - virtual time: a look costs nothing
        await asyncio.sleep(1)


class Bench:
    """A driver with one node of two GPUs, in calm, seeded time."""

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        journal: MemoryJournal | None = None,
        machine: SchedulerMachine | None = None,
        options: DriverOptions = OPTIONS,
    ) -> None:
        self.faults: list[Fault] = []
        self.steps: list[Step] = []
        self.fake = FakeExecutor(lambda _: 3, habits=evolve(CALM, delay_s=0.1))
        self.journal = MemoryJournal() if journal is None else journal
        self.driver = Driver(
            SchedulerMachine() if machine is None else machine,
            self.fake if executor is None else executor,
            VirtualClock(),
            journal=self.journal,
            options=options,
            on_fault=self.faults.append,
            on_step=self.steps.append,
        )

    def play(self, story: Callable[[Bench], Awaitable[None]]) -> None:
        """Run the driver beside a story; end it after the story."""

        async def main() -> None:
            task = asyncio.get_running_loop().create_task(self.driver.run())
            try:
                async with asyncio.timeout(100_000):
                    await self.driver.ask(ev.NodeJoined(0.0, a_node("n1", 2)))
                    await story(self)
            finally:
                self.driver.stop()
                await asyncio.wait([task])
                await self.fake.close()
            await task

        run_seeded(main(), 0, late_ratio=0.0)

    async def until(self, job_id: str, state: JobState) -> None:
        await eventually(lambda: self.driver.machine.job(job_id).state is state)

    def told(self, kind: type[Any]) -> list[Any]:
        return [step.event for step in self.steps if isinstance(step.event, kind)]


def test_a_job_goes_through_its_life() -> None:
    async def story(bench: Bench) -> None:
        step = await bench.driver.submit(a_job("a"))
        assert any('"JobSubmitted"' in line for line in bench.journal.durable)
        assert isinstance(step.event, ev.JobSubmitted)
        await bench.until("a", JobState.FINISHED)
        assert len(bench.told(ev.EpochCompleted)) == 3

    bench = Bench()
    bench.play(story)
    assert [step.seq for step in bench.steps] == list(range(1, len(bench.steps) + 1))
    assert [decode_line(line) for line in bench.journal.durable] == bench.steps
    assert bench.faults == []


def test_a_request_that_cannot_be_is_refused_to_the_one_who_asked() -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(EventRefused, match="never submitted"):
            await bench.driver.cancel("nobody")
        await bench.driver.submit(a_job("a"))
        with pytest.raises(EventRefused, match="taken by another job"):
            await bench.driver.submit(a_job("a", 2))

    bench = Bench()
    bench.play(story)
    assert bench.driver.refused == 2
    assert bench.faults == []


def test_events_that_cannot_be_are_told_and_change_nothing() -> None:
    async def story(bench: Bench) -> None:
        await bench.driver.post(ev.JobFinished(0.0, "nobody", 1))
        await asyncio.sleep(1)

    bench = Bench()
    bench.play(story)
    (fault,) = bench.faults
    assert fault.job_id == "nobody"


class _Wrapped(FakeExecutor):
    """An executor whose calls go wrong as the test says."""

    def __init__(self) -> None:
        super().__init__(lambda _: 3, habits=evolve(CALM, delay_s=0.1))
        self.calls: list[str] = []

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        self.calls.append("start")
        await self.before_start()
        await super().start(job_id, attempt, term, gpus=gpus, resume_epoch=resume_epoch)

    async def before_start(self) -> None:
        """Do nothing wrong."""

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        self.calls.append("kill")
        await super().kill(job_id, attempt, term, grace_s=grace_s)


def _with(executor: FakeExecutor) -> Bench:
    bench = Bench(executor)
    bench.fake = executor
    return bench


def test_a_start_that_fails_is_given_again() -> None:
    class Flaky(_Wrapped):
        async def before_start(self) -> None:
            if len(self.calls) < 4:
                raise OSError("no route to the node")

    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await bench.until("a", JobState.FINISHED)

    bench = _with(Flaky())
    bench.play(story)
    assert [fault.error for fault in bench.faults] == ["no route to the node"] * 3
    assert bench.faults[0].what == "StartJob of attempt 1"


def test_a_start_that_is_refused_for_good_frees_the_gpus_at_once() -> None:
    class No(_Wrapped):
        async def before_start(self) -> None:
            raise CommandRefused("there is no program trian.py")

    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await bench.until("a", JobState.FAILED)

    bench = _with(No())
    bench.play(story)
    reasons = {event.reason for event in bench.told(ev.StartFailed)}
    assert reasons == {"there is no program trian.py"}


def test_a_start_that_hangs_does_not_hold_up_a_cancel() -> None:
    class Hangs(_Wrapped):
        async def before_start(self) -> None:
            await asyncio.sleep(1e6)

    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await asyncio.sleep(3)
        before_s = asyncio.get_running_loop().time()
        await bench.driver.cancel("a")
        await bench.until("a", JobState.CANCELLED)
        assert asyncio.get_running_loop().time() - before_s < 25, "5 s, the kill, its grace"

    bench = _with(Hangs())
    bench.play(story)
    assert bench.fake.running == []


def test_a_hanging_call_does_not_hold_up_other_jobs() -> None:
    class HangsOnce(_Wrapped):
        async def before_start(self) -> None:
            if len(self.calls) == 1:
                await asyncio.sleep(1e6)

    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await bench.driver.submit(a_job("b", submit_s=0.0))
        await bench.until("b", JobState.FINISHED)

    _with(HangsOnce()).play(story)


def test_a_kill_that_returned_is_proof_even_without_a_report() -> None:
    class Silent(FakeExecutor):
        async def _end(self, one: Any) -> None:  # noqa: ANN401 - private to the fake
            if one.task is not None:
                one.task.cancel()
            one.ended = True

    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await bench.until("a", JobState.SETTLED)
        await bench.driver.cancel("a")
        await bench.until("a", JobState.CANCELLED)
        (released,) = bench.told(ev.GpusReleased)
        assert len(released.gpus) == 1

    _with(Silent(lambda _: 3)).play(story)


def test_a_newer_scheduler_ends_this_one() -> None:
    class Taken(_Wrapped):
        async def before_start(self) -> None:
            raise StaleTerm("term 1 is over; now is term 2")

    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await asyncio.sleep(5)
        with pytest.raises(EnvironmentFault, match="term 1 is over"):
            await bench.driver.submit(a_job("b"))

    with pytest.raises(StaleTerm):
        _with(Taken()).play(story)


def test_after_a_journal_that_fails_nothing_is_carried_out_and_nobody_is_told_yes() -> None:
    async def story(bench: Bench) -> None:
        bench.journal.deadly, bench.journal.fuse = "append", 1
        with pytest.raises(EnvironmentFault, match="before this was durable"):
            await bench.driver.submit(a_job("a"))
        with pytest.raises(EnvironmentFault, match="the scheduler ended: before the journal"):
            await bench.driver.submit(a_job("b"))

    bench = Bench()
    with pytest.raises(EnvironmentFault, match="before the journal"):
        bench.play(story)
    assert bench.fake.starts == {}


def test_the_inbox_is_bounded_and_whoever_brings_more_waits() -> None:
    async def story(bench: Bench) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(bench.driver.submit(a_job(f"j{number}", epochs=1)))
            await asyncio.sleep(0)
            assert len(bench.driver._inbox) <= 4
        assert bench.driver.snapshot().submitted == 100

    Bench(options=evolve(OPTIONS, inbox_size=4)).play(story)


def _next(bench: Bench, executor: FakeExecutor) -> Bench:
    """Start the next scheduler on the journal and the executor of one that is gone."""
    machine = SchedulerMachine(term=2)
    for line in bench.journal.durable:
        step = decode_line(line)
        assert isinstance(step, Step)
        machine.step(step.event)
    again = Bench(executor, journal=bench.journal, machine=machine)
    again.fake = executor
    return again


def test_the_next_scheduler_goes_on_in_a_new_term_and_ends_strangers() -> None:
    executor = FakeExecutor(lambda _: 3)

    async def main() -> None:
        first = Bench(executor)
        run = asyncio.get_running_loop().create_task(first.driver.run())
        await first.driver.ask(ev.NodeJoined(0.0, a_node("n1", 2)))
        await first.driver.submit(a_job("a"))
        await first.until("a", JobState.SETTLED)
        run.cancel()
        await asyncio.wait([run])
        await executor.start("stranger", 1, 1, gpus={"n1": ("n1-1",)}, resume_epoch=0)

        second = _next(first, executor)
        run = asyncio.get_running_loop().create_task(second.driver.run())
        await second.until("a", JobState.FINISHED)
        assert executor.starts["a", 1] == 1
        await eventually(lambda: not executor.running)
        assert second.driver.snapshot().term == 2
        second.driver.stop()
        await run
        await executor.close()

    run_seeded(main(), 0, late_ratio=0.0)


def test_a_job_that_nobody_has_seen_since_a_restart_is_unknown() -> None:
    executor = FakeExecutor(lambda _: 3)

    async def main() -> None:
        first = Bench(executor)
        run = asyncio.get_running_loop().create_task(first.driver.run())
        await first.driver.ask(ev.NodeJoined(0.0, a_node("n1", 2)))
        await first.driver.submit(a_job("a"))
        await first.until("a", JobState.SETTLED)
        run.cancel()
        await asyncio.wait([run])
        await executor.close()

        second = _next(first, FakeExecutor(lambda _: 3))
        run = asyncio.get_running_loop().create_task(second.driver.run())
        await eventually(lambda: bool(second.told(ev.JobUnknown)))
        await second.until("a", JobState.FINISHED)
        assert second.driver.machine.job("a").attempt == 2
        second.driver.stop()
        await run
        await second.fake.close()

    run_seeded(main(), 0, late_ratio=0.0)


def test_an_epoch_told_late_is_progress_and_no_evidence() -> None:
    async def story(bench: Bench) -> None:
        await bench.driver.submit(a_job("a"))
        await bench.until("a", JobState.SETTLED)
        await bench.driver.post(ev.EpochCompleted(0.0, "a", 1, 2), age_s=30.0)
        await bench.until("a", JobState.FINISHED)
        late = next(event for event in bench.told(ev.EpochCompleted) if event.epoch == 2)
        assert late.clean is False

    Bench().play(story)


def test_two_schedulers_live_in_one_loop() -> None:
    async def main() -> None:
        benches = [Bench() for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            for bench in benches:
                group.create_task(bench.driver.run())
            for number, bench in enumerate(benches):
                await bench.driver.ask(ev.NodeJoined(0.0, a_node("n1", 2)))
                await bench.driver.submit(a_job(f"job{number}"))
            for number, bench in enumerate(benches):
                await bench.until(f"job{number}", JobState.FINISHED)
                bench.driver.stop()
        assert [len(bench.driver.snapshot().jobs) for bench in benches] == [1, 1]
        for bench in benches:
            await bench.fake.close()

    run_seeded(main(), 0, late_ratio=0.0)


def test_one_driver_runs_once() -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(InternalError, match="runs already"):
            await bench.driver.run()

    Bench().play(story)
