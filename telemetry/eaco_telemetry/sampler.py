"""Reads all readers of a node at each tick and puts what they saw into one sample.

Each reader has a thread of its own, because a driver or the files of a dying device may
stand still for seconds, or for ever. A tick waits for the slowest reader for a moment only;
what comes later is in the next sample. A reader that hangs costs the others nothing: its
devices stay in the sample without values, with the reason, and it is asked again once it
has answered. The threads are daemons, so nothing that hangs keeps the process alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field, frozen

from eaco_core.errors import EacoError, EnvironmentFault, InputError
from eaco_telemetry.readers._worker import Worker
from eaco_telemetry.readers.base import (
    DeviceEvent,
    Reader,
    Reading,
    host_without_values,
    node_sample,
    without_values,
)
from eaco_telemetry.readers.plug import PlugReader
from eaco_telemetry.samples import Moment, NodeSample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

PATIENCE_S: Final = 1.0
"""How long a sample waits for the slowest reader."""

RETRY_OPEN_S: Final = 60.0
"""How long a reader that could not be opened is left alone."""

_CLOSE_S: Final = 2.0

_log = logging.getLogger(__name__)


@frozen
class Sampled:
    """One sample of the node, and what happened since the one before."""

    sample: NodeSample
    events: tuple[DeviceEvent, ...] = ()


@define(eq=False)
class _Slot:
    """One reader, its thread, and the call that runs on it, if any."""

    key: str
    reader: Reader
    worker: Worker
    is_open: bool = False
    retry_open_s: float = 0.0
    open_problem: str | None = None
    pending: Future[Reading] | None = None
    started_s: float = 0.0
    late: Reading | None = None
    seen: Reading = field(factory=Reading)
    failure: str | None = None

    def start(self, call: Callable[[], Reading], now_s: float) -> None:
        self.pending, self.started_s = self.worker.submit(call), now_s

    def open(self) -> Reading:
        """Open the reader. Runs on the thread."""
        self.reader.open()
        self.is_open = True
        return Reading()

    def close(self) -> Reading:
        """Close the reader. Runs on the thread."""
        with contextlib.suppress(EacoError):  # it is given up either way
            self.reader.close()
        return Reading()

    def blank(self, problem: str, events: tuple[DeviceEvent, ...] = ()) -> Reading:
        """Give the devices that were seen last, without values."""
        host = self.seen.host
        return evolve(
            self.seen,
            gpus=tuple(without_values(gpu, problem) for gpu in self.seen.gpus),
            host=None if host is None else host_without_values(host, problem),
            events=events,
            problem=problem,
        )


class Sampler:
    """Takes samples of a node from its readers.

    `read_timeout_s`: a reader that needs longer hangs, and is not waited for at all until
    it has answered. `patience_s`: a sample waits no longer than this for any reader.

    From an event loop use `open`, `sample` and `close`; without one the three methods
    with ``_blocking`` at the end. Neither may be called while another call runs.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        *,
        node_id: str,
        session_id: str,
        read_timeout_s: float = 5.0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if not (read_timeout_s > 0 and patience_s > 0):
            raise InputError("the time limits of a sampler must be above 0 seconds")
        self._node_id = node_id
        self._session_id = session_id
        self._read_timeout_s = read_timeout_s
        self._patience_s = min(patience_s, read_timeout_s)
        self._seq = 0
        self._slots: list[_Slot] = []
        # A meter of the node that somebody named counts more than one that was found.
        for reader in sorted(readers, key=lambda reader: not isinstance(reader, PlugReader)):
            key = _free_key(reader.name, {slot.key for slot in self._slots})
            self._slots.append(_Slot(key, reader, Worker(f"eaco-{key}")))
        self._names = tuple(slot.key for slot in self._slots)

    @property
    def readers(self) -> tuple[str, ...]:
        """The names of the readers; the keys in `NodeSample.problems`."""
        return self._names

    @property
    def must_restart(self) -> bool:
        """Whether a reader can only be helped by a new process; let a supervisor start one."""
        return any(getattr(slot.reader, "must_restart", False) for slot in self._slots)

    async def open(self) -> None:
        """Open the readers that are not open yet. A reader that cannot be opened is a problem.

        Waits for at most `read_timeout_s`; what takes longer goes on while samples are taken.
        """
        await _until_done(self._start_opening(), self._read_timeout_s)
        self._end_opening()

    def open_blocking(self) -> None:
        """As `open`, without an event loop."""
        concurrent.futures.wait(self._start_opening(), self._read_timeout_s)
        self._end_opening()

    async def sample(self, now: Moment | None = None) -> Sampled:
        """Take one sample; never raises for what a reader does. `now`: its time stamp."""
        now = now or Moment.now()
        await _until_done(self._start(now), self._patience_s)
        return self._gather(now)

    def sample_blocking(self, now: Moment | None = None) -> Sampled:
        """As `sample`, without an event loop."""
        now = now or Moment.now()
        concurrent.futures.wait(self._start(now), self._patience_s)
        return self._gather(now)

    async def close(self) -> None:
        """Close the readers. One that hangs is left behind; its thread is a daemon."""
        await _until_done(self._start_closing(), _CLOSE_S)
        self._stop()

    def close_blocking(self) -> None:
        """As `close`, without an event loop."""
        concurrent.futures.wait(self._start_closing(), _CLOSE_S)
        self._stop()

    # ------------------------------------------------------------------------ opening

    def _start_opening(self) -> list[Future[Reading]]:
        now_s = time.monotonic()
        for slot in self._slots:
            if slot.pending is None and not slot.is_open:
                slot.start(slot.open, now_s)
        return [slot.pending for slot in self._slots if slot.pending is not None]

    def _end_opening(self) -> None:
        for slot in self._slots:
            if slot.pending is not None and slot.pending.done():
                self._finished(slot)

    # ----------------------------------------------------------------------- sampling

    def _start(self, now: Moment) -> list[Future[Reading]]:
        """Start a read on every reader that is free; give the calls that are worth a wait."""
        now_s = time.monotonic()
        waited: list[Future[Reading]] = []
        for slot in self._slots:
            if slot.pending is not None and slot.pending.done():
                slot.late = self._finished(slot)
            if slot.pending is None:
                self._start_reader(slot, now, now_s)
            if slot.pending is not None and now_s - slot.started_s < self._read_timeout_s:
                waited.append(slot.pending)
        return waited

    @staticmethod
    def _start_reader(slot: _Slot, now: Moment, now_s: float) -> None:
        if slot.is_open:
            slot.start(lambda: slot.reader.read(now), now_s)
        elif now_s >= slot.retry_open_s:
            slot.start(slot.open, now_s)

    def _gather(self, now: Moment) -> Sampled:
        readings = {slot.key: self._reading(slot) for slot in self._slots}
        sample = node_sample(
            readings, node_id=self._node_id, session_id=self._session_id, seq=self._seq, now=now
        )
        self._seq += 1
        events = [event for reading in readings.values() for event in reading.events]
        return Sampled(sample, tuple(events))

    def _reading(self, slot: _Slot) -> Reading:
        late, slot.late = slot.late, None
        events = () if late is None else late.events
        if slot.pending is None:
            return slot.blank(slot.open_problem or "the reader is not open", events)
        if slot.pending.done():
            reading = self._finished(slot)
            return evolve(reading, events=(*events, *reading.events)) if events else reading
        waited_s = time.monotonic() - slot.started_s
        if late is not None and waited_s < self._read_timeout_s:
            return late
        return slot.blank(f"{slot.key} has not answered for {waited_s:.1f} s", events)

    def _finished(self, slot: _Slot) -> Reading:
        """Take the result of a call that has ended."""
        pending, slot.pending = slot.pending, None
        if pending is None:
            return Reading()
        try:
            reading = pending.result()
        except EnvironmentFault as fault:
            return self._failed(slot, str(fault))
        except BaseException as error:  # noqa: BLE001 - a fault in one reader is not the end of all
            return self._failed(slot, self._unexpected(slot, error))
        slot.failure = slot.open_problem = None
        if reading.gpus or reading.host is not None:
            slot.seen = evolve(reading, events=(), problem=None)
        return reading

    @staticmethod
    def _failed(slot: _Slot, problem: str) -> Reading:
        if not slot.is_open:
            slot.open_problem = problem
            slot.retry_open_s = time.monotonic() + RETRY_OPEN_S
        return slot.blank(problem)

    @staticmethod
    def _unexpected(slot: _Slot, error: BaseException) -> str:
        kind = type(error).__name__
        what = f"{kind}: {error}" if str(error) else kind
        if slot.failure != what:  # once, not at every tick
            slot.failure = what
            level = logging.WARNING if isinstance(error, EacoError) else logging.ERROR
            _log.log(level, "the reader %s failed: %s", slot.key, what, exc_info=error)
        return f"the reader {slot.key} failed ({what}); please report it"

    # ------------------------------------------------------------------------ closing

    def _start_closing(self) -> list[Future[Reading]]:
        closing: list[Future[Reading]] = []
        for slot in self._slots:
            if slot.worker.busy:
                continue
            slot.pending = None
            slot.start(slot.close, time.monotonic())
            if slot.pending is not None:
                closing.append(slot.pending)
        return closing

    def _stop(self) -> None:
        for slot in self._slots:
            slot.worker.stop()
        self._slots = []


def _free_key(name: str, taken: set[str]) -> str:
    key, number = name, 2
    while key in taken:
        key, number = f"{name}#{number}", number + 1
    return key


async def _until_done(futures: Sequence[Future[Reading]], timeout_s: float) -> None:
    """Wait until all have ended or the time is over. Cancels nothing, raises nothing of theirs."""
    loop = asyncio.get_running_loop()
    waiting = {future for future in futures if not future.done()}
    if not waiting:
        return
    all_done = asyncio.Event()

    def note(future: Future[Reading]) -> None:
        waiting.discard(future)
        if not waiting:
            all_done.set()

    def ended(future: Future[Reading]) -> None:  # on the thread of the reader
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(note, future)

    for future in tuple(waiting):
        future.add_done_callback(ended)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await all_done.wait()
