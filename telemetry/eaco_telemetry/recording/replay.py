"""Playing a recording: the agent, or any program, runs on it as on the sensors of a node.

The numbers are those of the recording, and so are both clocks: who takes the difference of
two samples gets what was measured, at any speed. That nothing is measured now is said three
times: the name of the only reader is ``replay``, the session begins with ``replay-``, and
`problems` of each sample says so.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl
from attrs import define, evolve, field, fields

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import DeviceEvent
from eaco_telemetry.recording._polars import keep, select
from eaco_telemetry.recording.columns import EVENT
from eaco_telemetry.recording.reading import collect, scan_recording
from eaco_telemetry.recording.samples import Recorded, read_recorded
from eaco_telemetry.sampler import Sampled
from eaco_telemetry.samples import GpuSample, HostSample, Moment, NodeSample

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Iterator, Mapping

    from eaco_telemetry.meta import NodeEvent

REPLAY: Final = "replay"
SESSION_PREFIX: Final = f"{REPLAY}-"
NOTE: Final = "a recording is played: nothing of this is measured now"

MAX_PAUSE_S: Final = 10.0
"""The longest pause between two sessions of a recording; inside one, time is as recorded."""

_AHEAD: Final = 64  # samples read at a time, off the event loop
_PERIODS: Final = 50  # gaps that tell the period

_Measured = TypeVar("_Measured", GpuSample, HostSample)


class ReplayReader:
    """Gives the samples of a recording at the pace at which they were taken, times `speed`.

    It has the methods of `eaco_telemetry.sampler.Sampler`. `speed` 0 or infinity: as fast as
    samples are asked for. None is left out: who asks too rarely gets them late.

    `node_id`: which node of the recording; needed where it has several. `rename`: the name
    to give to it, so that it can stand beside the real one. `session_id`: begins with
    ``replay-``; a new one if None.

    The sessions of a recording become one: `seq`, the monotonic clock and all energies go on
    from where the session before ended, and what was used in between is not in them.

    Raises `InputError` from `open` if the file is no recording, or the node is not in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        speed: float = 1.0,
        *,
        node_id: str | None = None,
        rename: str | None = None,
        session_id: str | None = None,
    ) -> None:
        if not speed >= 0:
            raise InputError(f"the speed of a replay must be 0 or above, not {speed!r}")
        session_id = session_id or f"{SESSION_PREFIX}{secrets.token_hex(6)}"
        if not session_id.startswith(SESSION_PREFIX):
            session_id = SESSION_PREFIX + session_id
        self._path = Path(path)
        self._speed = speed if math.isfinite(speed) else 0.0
        self._node_id = node_id
        self._rename = rename
        self.session_id: Final = session_id
        self._recorded: Iterator[Recorded] | None = None
        self._ahead: list[Recorded] = []
        self._timeline = _Timeline(rename, session_id)
        self._period_s: float | None = None
        self._start_s: float | None = None

    @property
    def readers(self) -> tuple[str, ...]:
        """The only reader, ``replay``: what tells that nothing is measured now."""
        return (REPLAY,)

    @property
    def must_restart(self) -> bool:
        """Never; as of a `Sampler`."""
        return False

    @property
    def node_id(self) -> str | None:
        """The name of the node in what is given; None before `open` if it was not said."""
        return self._rename or self._node_id

    @property
    def period_s(self) -> float | None:
        """The usual time between two samples, at this speed; None if there is only one."""
        return self._period_s

    def open_blocking(self) -> None:
        """Check the recording and stand at its beginning."""
        nodes = _nodes(self._path)
        if self._node_id is None:
            if len(nodes) != 1:
                raise InputError(
                    f"has {len(nodes)} nodes; choose one of: {', '.join(nodes[:10])}"
                    if nodes
                    else "has no samples to play",
                    where=str(self._path),
                )
            self._node_id = nodes[0]
        elif self._node_id not in nodes:
            raise InputError(
                f"has no node {self._node_id!r}; it has {', '.join(nodes[:10]) or 'none'}",
                where=str(self._path),
            )
        self._recorded = _of_node(read_recorded(self._path), self._node_id)
        self._ahead = list(itertools.islice(self._recorded, _AHEAD))[::-1]
        self._timeline = _Timeline(self._rename, self.session_id)
        self._start_s = None
        self._period_s = _period_s(self._ahead[::-1], self._speed)

    def sample_blocking(self, now: Moment | None = None) -> Sampled:
        """Wait until the next sample is due, and give it. See `sample`."""
        if not self._ahead:
            self._read_ahead()
        sampled, due_s = self._next(now)
        time.sleep(max(0.0, due_s - time.monotonic()))
        return sampled

    def close_blocking(self) -> None:
        """Let the recording go. May be called twice."""
        self._recorded, self._ahead = None, []

    async def open(self) -> None:
        """Check the recording and stand at its beginning."""
        await asyncio.to_thread(self.open_blocking)

    async def sample(self, now: Moment | None = None) -> Sampled:
        """Wait until the next sample is due, and give it. `now` is not looked at.

        Raises `StopAsyncIteration` after the last one.
        """
        if not self._ahead:
            await asyncio.to_thread(self._read_ahead)
        sampled, due_s = self._next(now)
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        return sampled

    async def close(self) -> None:
        """Let the recording go. May be called twice."""
        self.close_blocking()

    def _read_ahead(self) -> None:
        if self._recorded is not None:
            self._ahead = list(itertools.islice(self._recorded, _AHEAD))[::-1]

    def _next(self, _now: Moment | None) -> tuple[Sampled, float]:
        """Give the next sample and when it is due, in monotonic seconds."""
        if not self._ahead:
            raise StopAsyncIteration
        sampled = self._timeline.take(self._ahead.pop())
        if self._start_s is None:
            self._start_s = time.monotonic()
        passed_s = self._timeline.passed_ns / 1e9
        return sampled, self._start_s + (passed_s / self._speed if self._speed else 0.0)


async def replay(
    path: str | os.PathLike[str],
    speed: float = 1.0,
    *,
    node_id: str | None = None,
    rename: str | None = None,
) -> AsyncIterator[Sampled]:
    """Give the samples of a recording at the pace at which they were taken; see `ReplayReader`."""
    reader = ReplayReader(path, speed, node_id=node_id, rename=rename)
    await reader.open()
    try:
        while True:
            try:
                sampled = await reader.sample()
            except StopAsyncIteration:
                return
            yield sampled
    finally:
        await reader.close()


@define
class _Timeline:
    """Makes one session of the sessions of a recording."""

    rename: str | None
    session_id: str
    passed_ns: int = 0
    _recorded_session: str | None = None
    _first_seq: int = 0
    _next_seq: int = 0
    _shift_ns: int = 0
    _last: NodeSample | None = None
    _before_j: dict[str, dict[str, float]] = field(factory=dict[str, dict[str, float]])
    _total_j: dict[str, dict[str, float]] = field(factory=dict[str, dict[str, float]])

    def take(self, recorded: Recorded) -> Sampled:
        """Give a recorded sample as one of the session that is played now."""
        sample = recorded.sample
        if sample is None:
            raise InputError("events without a sample cannot be played")
        if sample.session_id != self._recorded_session:
            self._begin(sample)
        played = evolve(
            sample,
            node_id=self.rename or sample.node_id,
            session_id=self.session_id,
            seq=max(0, self._first_seq + sample.seq),
            monotonic_ns=max(0, sample.monotonic_ns + self._shift_ns),
            gpus=tuple(self._carried(gpu, gpu.gpu_id) for gpu in sample.gpus),
            host=None if sample.host is None else self._carried(sample.host, ""),
            problems={**sample.problems, REPLAY: NOTE},
        )
        if self._last is not None:
            self.passed_ns += max(0, played.monotonic_ns - self._last.monotonic_ns)
        self._next_seq = max(self._next_seq, played.seq + 1)
        self._last = played
        return Sampled(played, tuple(_device_event(event) for event in recorded.events))

    def _begin(self, sample: NodeSample) -> None:
        """Put a new session of the recording behind the one before."""
        self._recorded_session = sample.session_id
        self._before_j = {key: dict(values) for key, values in self._total_j.items()}
        self._first_seq = self._next_seq - sample.seq
        if self._last is not None:
            pause_ns = min(max(0, sample.wall_ns - self._last.wall_ns), int(MAX_PAUSE_S * 1e9))
            self._shift_ns = self._last.monotonic_ns + pause_ns - sample.monotonic_ns

    def _carried(self, measured: _Measured, key: str) -> _Measured:
        """Add the joules of the sessions before."""
        before = self._before_j.get(key, {})
        energies = {
            name: value + before.get(name, 0.0)
            for name in _ENERGIES[type(measured)]
            if (value := getattr(measured, name)) is not None
        }
        self._total_j.setdefault(key, {}).update(energies)
        return evolve(measured, **energies) if before else measured


_ENERGIES: Final[Mapping[type, tuple[str, ...]]] = {
    of: tuple(one.name for one in fields(of) if one.name.endswith("_j"))
    for of in (GpuSample, HostSample)
}


def _device_event(event: NodeEvent) -> DeviceEvent:
    return DeviceEvent(event.kind, event.gpu_id, event.code, event.message)


def _nodes(path: Path) -> list[str]:
    """Name the nodes of which there are samples."""
    rows = keep(scan_recording(path), pl.col("kind") != EVENT)
    return sorted(collect(select(rows, [pl.col("node_id").unique()]), path)["node_id"].to_list())


def _of_node(recorded: Iterator[Recorded], node_id: str) -> Iterator[Recorded]:
    """Give what was recorded of one node; events without a sample go to the next one."""
    waiting: tuple[NodeEvent, ...] = ()
    for one in recorded:
        mine = tuple(event for event in one.events if event.node_id == node_id)
        if one.sample is None:
            waiting += mine
        elif one.sample.node_id == node_id:
            yield Recorded(one.sample, waiting + mine)
            waiting = ()


def _period_s(recorded: list[Recorded], speed: float) -> float | None:
    samples = [one.sample for one in recorded if one.sample is not None]
    gaps_ns = [
        after.monotonic_ns - before.monotonic_ns
        for before, after in itertools.pairwise(samples[: _PERIODS + 1])
        if before.session_id == after.session_id and after.monotonic_ns > before.monotonic_ns
    ]
    return statistics.median(gaps_ns) / 1e9 / (speed or 1.0) if gaps_ns else None
