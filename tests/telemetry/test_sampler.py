"""The sampler: slow, hanging, failing readers cost the others nothing, and say so."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest
from attrs import define, field

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry import sampler as sampler_module
from eaco_telemetry.readers.base import DeviceEvent, Reader, Reading
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.sampler import Sampler
from eaco_telemetry.samples import GpuSample, HostSample, Moment, NodeSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@define(eq=False)
class Odd:
    """A reader that does what a test wants: wait, hang, raise."""

    name: str
    gpus: tuple[GpuSample, ...] = ()
    host: HostSample | None = None
    opening: Callable[[], object] = lambda: None
    before: Callable[[int], object] = lambda _read: None
    reads: int = 0
    closed: int = 0
    threads: set[int] = field(factory=set[int])

    @property
    def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def open(self) -> None:
        self.opening()

    def read(self, now: Moment) -> Reading:
        self.reads += 1
        self.threads.add(threading.get_ident())
        self.before(self.reads)
        event = DeviceEvent("awake", self.name, self.reads)
        del now
        return Reading(gpus=self.gpus, host=self.host, events=(event,))

    def close(self) -> None:
        self.closed += 1


def gpu(gpu_id: str) -> GpuSample:
    return GpuSample(gpu_id, "nvidia", power_w=50.0, energy_j=7.0, capabilities=("power_w",))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging reader waits for; opened at the end, so that its thread ends."""
    event = threading.Event()
    yield event
    event.set()


def sampler(*readers: Reader, read_timeout_s: float = 5.0, patience_s: float = 1.0) -> Sampler:
    return Sampler(
        readers,
        node_id="n",
        session_id="s",
        read_timeout_s=read_timeout_s,
        patience_s=patience_s,
    )


def test_readings_become_one_sample_with_events_and_a_number() -> None:
    async def main() -> None:
        one = sampler(Odd("a", (gpu("A"),)), Odd("b", (gpu("B"),), HostSample(cpu_util_ratio=0.5)))
        assert one.readers == ("a", "b")
        await one.open()
        now = Moment(5, 6)
        first, second = await one.sample(now), await one.sample()
        await one.close()
        assert [found.gpu_id for found in first.sample.gpus] == ["A", "B"]
        assert first.sample.host == HostSample(cpu_util_ratio=0.5)
        assert (first.sample.node_id, first.sample.session_id) == ("n", "s")
        assert (first.sample.wall_ns, first.sample.monotonic_ns) == (5, 6)
        assert (first.sample.seq, second.sample.seq) == (0, 1)
        assert second.sample.monotonic_ns > 6
        assert [(event.gpu_id, event.code) for event in second.events] == [("a", 2), ("b", 2)]
        assert dict(first.sample.problems) == {}

    asyncio.run(main())


def test_a_sampler_works_without_an_event_loop() -> None:
    reader = SimulatedReader("n", gpus=2)
    one = sampler(reader)
    one.open_blocking()
    taken = one.sample_blocking()
    one.close_blocking()
    assert (len(taken.sample.gpus), taken.sample.simulated) == (2, True)
    assert one.readers == ("simulated",)


def test_every_reader_has_its_own_thread_and_the_loop_goes_on() -> None:
    async def main() -> int:
        slow = [Odd(f"r{number}", before=lambda _: time.sleep(0.2)) for number in range(4)]
        one = sampler(*slow)
        await one.open()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await one.sample()
        ticking.cancel()
        await one.close()
        threads = {thread for reader in slow for thread in reader.threads}
        assert len(threads) == 4
        assert threading.get_ident() not in threads
        return ticks

    assert asyncio.run(main()) >= 5


def test_a_reader_that_hangs_costs_the_others_nothing(gate: threading.Event) -> None:
    async def main() -> None:
        hanging = Odd("stuck", (gpu("A"),), before=lambda read: gate.wait() if read == 2 else None)
        good = Odd("good", (gpu("B"),))
        one = sampler(hanging, good, read_timeout_s=0.3, patience_s=0.1)
        await one.open()
        await one.sample()
        for _ in range(5):
            taken = await one.sample()
            await asyncio.sleep(0.05)
            assert "stuck has not answered for" in taken.sample.problems["stuck"]
            stuck, fine = taken.sample.gpus
            assert (stuck.gpu_id, stuck.power_w, stuck.energy_j) == ("A", None, None)
            assert stuck.missing["power_w"] == taken.sample.problems["stuck"]
            assert (stuck.capabilities, stuck.unexplained) == (("power_w",), ())
            assert fine.power_w == 50
        await asyncio.sleep(0.1)
        # Over its limit it is not waited for any more.
        assert len(one._start(Moment.now())) == 1
        await one.sample()
        assert hanging.reads == 2
        gate.set()
        await asyncio.sleep(0.05)
        back = await one.sample()
        assert dict(back.sample.problems) == {}
        assert back.sample.gpus[0].power_w == 50
        # What happened in the read that hung is told, once.
        assert [event.code for event in back.events if event.gpu_id == "stuck"] == [2, 3]
        await one.close()
        assert (hanging.closed, good.closed) == (1, 1)

    asyncio.run(main())


def test_a_slow_reader_is_late_by_one_sample_and_not_lost() -> None:
    one = sampler(Odd("slow", (gpu("A"),), before=lambda _: time.sleep(0.15)), patience_s=0.05)
    one.open_blocking()
    late: list[NodeSample] = []
    for _ in range(4):
        late.append(one.sample_blocking().sample)
        time.sleep(0.4)
    one.close_blocking()
    assert late[0].problems
    assert late[0].gpus == ()
    assert [dict(sample.problems) for sample in late[1:]] == [{}] * 3
    assert [sample.gpus[0].power_w for sample in late[1:]] == [50.0] * 3


def test_a_reader_that_raises_is_a_problem_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(read: int) -> None:
        if read in {2, 3}:
            raise ZeroDivisionError("who knows")

    one = sampler(Odd("odd", (gpu("A"),), HostSample(cpu_util_ratio=0.1), before=fail))
    one.open_blocking()
    taken = [one.sample_blocking().sample for _ in range(4)]
    one.close_blocking()
    expected = "the reader odd failed (ZeroDivisionError: who knows); please report it"
    assert [dict(sample.problems) for sample in taken] == [
        {},
        {"odd": expected},
        {"odd": expected},
        {},
    ]
    assert (taken[1].gpus[0].gpu_id, taken[1].gpus[0].power_w) == ("A", None)
    assert taken[1].host is not None
    assert (taken[1].host.cpu_util_ratio, taken[1].host.unexplained) == (None, ())
    assert len(caplog.records) == 1  # with its traceback, and not at every tick


def test_a_reader_that_cannot_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def opening() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise EnvironmentFault("there is no driver (yet)")

    monkeypatch.setattr(sampler_module, "RETRY_OPEN_S", 0.05)
    one = sampler(Odd("late", (gpu("A"),), opening=opening), SimulatedReader("n", gpus=1))
    one.open_blocking()
    first = one.sample_blocking().sample
    assert dict(first.problems) == {"late": "there is no driver (yet)"}
    assert len(first.gpus) == 1
    seen: list[int] = []
    for _ in range(6):
        time.sleep(0.06)
        seen.append(len(one.sample_blocking().sample.gpus))
    one.close_blocking()
    assert seen[-1] == 2
    assert tries == 3


def test_a_reader_that_hangs_while_it_opens_holds_nobody(gate: threading.Event) -> None:
    stuck = Odd("stuck", opening=lambda: gate.wait(5))
    one = sampler(stuck, Odd("good", (gpu("B"),)), read_timeout_s=0.1, patience_s=0.1)
    one.open_blocking()
    taken = one.sample_blocking().sample
    assert "stuck" in taken.problems
    assert [found.gpu_id for found in taken.gpus] == ["B"]
    one.close_blocking()


def test_closing_does_not_wait_for_a_reader_that_hangs(gate: threading.Event) -> None:
    async def main() -> float:
        one = sampler(Odd("stuck", before=lambda _: gate.wait(9)), patience_s=0.05)
        await one.open()
        await one.sample()
        started = time.monotonic()
        await one.close()
        return time.monotonic() - started

    assert asyncio.run(main()) < 1


def test_two_readers_of_one_name_are_told_apart() -> None:
    one = sampler(Odd("dcgm"), Odd("dcgm"), Odd("dcgm"))
    one.close_blocking()
    assert one.readers == ("dcgm", "dcgm#2", "dcgm#3")


def test_a_cancelled_sample_leaves_a_sampler_that_works() -> None:
    async def main() -> None:
        one = sampler(Odd("slow", (gpu("A"),), before=lambda _: time.sleep(0.1)))
        await one.open()
        task = asyncio.create_task(one.sample())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len((await one.sample()).sample.gpus) == 1
        await one.close()

    asyncio.run(main())


def test_limits_that_are_none_are_refused() -> None:
    for limits in ({"read_timeout_s": 0.0}, {"patience_s": -1.0}):
        with pytest.raises(InputError):
            sampler(**limits)


def test_ctrl_c_ends_a_program_whose_reader_hangs() -> None:
    program = textwrap.dedent("""
        import threading
        from eaco_telemetry.readers.simulated import SimulatedReader
        from eaco_telemetry.sampler import Sampler

        class Stuck(SimulatedReader):
            def read(self, now):
                print("reading", flush=True)
                threading.Event().wait()

        sampler = Sampler([Stuck("n")], node_id="n", session_id="s", patience_s=5)
        sampler.open_blocking()
        try:
            sampler.sample_blocking()
        except KeyboardInterrupt:
            sampler.close_blocking()
            print("clean")
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "reading\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    assert (out, err, child.returncode) == ("clean\n", "", 0)
