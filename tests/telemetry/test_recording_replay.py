"""Replay: a recording in place of sensors, at its pace, and never taken for live data."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from eaco_core.errors import InputError
from eaco_telemetry.meta import NodeEvent, node_meta
from eaco_telemetry.readers.base import DeviceEvent
from eaco_telemetry.recording import Recorder, ReplayReader, read_samples, replay
from eaco_telemetry.samples import GpuSample, HostSample, NodeSample

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from eaco_telemetry.sampler import Sampled

_S = 10**9


def _sample(
    seq: int, *, at_s: float | None = None, session_id: str = "old", node_id: str = "n1"
) -> NodeSample:
    at_ns = int((seq if at_s is None else at_s) * _S)
    gpu = GpuSample("GPU-a", "nvidia", power_w=10.0, energy_j=10.0 * seq, integrated_j=1.0 * seq)
    host = HostSample(package_energy_j=5.0 * seq)
    return NodeSample(node_id, session_id, seq, 1000 * _S + at_ns, at_ns, (gpu,), host)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.parquet"


def _record(path: Path, samples: Iterable[NodeSample]) -> None:
    recorder = Recorder(path)
    for sample in samples:
        recorder.take(sample)
    recorder.close()


def _play(path: Path, speed: float = 0.0, *, rename: str | None = None) -> list[Sampled]:
    async def run() -> list[Sampled]:
        async with asyncio.timeout(60):
            return [sampled async for sampled in replay(path, speed, rename=rename)]

    return asyncio.run(run())


class _Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 500.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(round(seconds, 6))
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(sys.modules["eaco_telemetry.recording.replay"], "time", made)
    return made


def test_the_numbers_are_those_of_the_recording(path: Path) -> None:
    recorded = [_sample(seq) for seq in range(100)]
    _record(path, recorded)
    played = [sampled.sample for sampled in _play(path)]
    session_id = played[0].session_id
    note = {"replay": "a recording is played: nothing of this is measured now"}
    assert played == [evolve(sample, session_id=session_id, problems=note) for sample in recorded]


def test_a_replay_cannot_be_taken_for_live_data(path: Path) -> None:
    _record(path, [_sample(0)])
    reader = ReplayReader(path, session_id="of-the-agent")
    reader.open_blocking()
    sample = reader.sample_blocking().sample
    assert reader.readers == ("replay",)
    assert sample.session_id == reader.session_id == "replay-of-the-agent"
    assert "replay" in sample.problems
    assert sample.wall_ns == 1000 * _S
    meta = node_meta(sample, period_s=1, agent="eaco 0", readers=reader.readers, wall_ns=1)
    assert meta.readers == ("replay",)
    assert {ReplayReader(path).session_id for _ in range(3)} != {ReplayReader(path).session_id}


@pytest.mark.parametrize(("speed", "pause_s"), [(1.0, 1.0), (4.0, 0.25), (0.5, 2.0)])
def test_samples_come_at_the_recorded_pace_times_the_speed(
    path: Path, clock: _Clock, speed: float, pause_s: float
) -> None:
    _record(path, [_sample(0), _sample(1), _sample(2), _sample(5)])
    reader = ReplayReader(path, speed)
    reader.open_blocking()
    for _ in range(4):
        reader.sample_blocking()
    assert clock.slept_s == [0.0, pause_s, pause_s, 3 * pause_s]
    assert reader.period_s == pause_s


def test_who_asks_too_rarely_gets_every_sample_and_does_not_wait(path: Path, clock: _Clock) -> None:
    _record(path, [_sample(seq) for seq in range(4)])
    reader = ReplayReader(path)
    reader.open_blocking()
    seqs: list[int] = []
    for _ in range(4):
        clock.now_s += 10
        seqs.append(reader.sample_blocking().sample.seq)
    assert seqs == [0, 1, 2, 3]
    assert clock.slept_s == [0.0] * 4


@pytest.mark.parametrize("speed", [0.0, math.inf])
def test_without_a_speed_nothing_waits(path: Path, clock: _Clock, speed: float) -> None:
    _record(path, [_sample(seq, at_s=1000.0 * seq) for seq in range(5)])
    reader = ReplayReader(path, speed)
    reader.open_blocking()
    for _ in range(5):
        reader.sample_blocking()
    assert clock.slept_s == [0.0] * 5
    assert reader.period_s == 1000.0


@pytest.mark.parametrize("speed", [-1.0, math.nan])
def test_a_speed_that_makes_no_sense_is_refused(path: Path, speed: float) -> None:
    with pytest.raises(InputError, match="speed"):
        ReplayReader(path, speed)


def test_the_sessions_of_a_recording_become_one_that_never_falls(path: Path) -> None:
    first = [_sample(seq) for seq in (3, 4, 6)]
    second = [evolve(_sample(seq, session_id="newer"), wall_ns=5000 * _S) for seq in (0, 1)]
    _record(path, first + second)
    played = [sampled.sample for sampled in _play(path)]
    assert len({sample.session_id for sample in played}) == 1
    assert [sample.seq for sample in played] == [0, 1, 3, 4, 5]
    assert [sample.monotonic_ns / _S for sample in played] == [3, 4, 6, 16, 17]
    assert [sample.wall_ns for sample in played] == [s.wall_ns for s in first + second]
    assert [s.gpus[0].energy_j for s in played] == [30.0, 40.0, 60.0, 60.0, 70.0]
    assert [s.gpus[0].integrated_j for s in played] == [3.0, 4.0, 6.0, 6.0, 7.0]
    assert [s.host.package_energy_j for s in played if s.host] == [15.0, 20.0, 30.0, 30.0, 35.0]


def test_a_pause_between_two_sessions_is_short(path: Path, clock: _Clock) -> None:
    later = evolve(_sample(0, session_id="newer"), wall_ns=10**6 * _S)
    before = evolve(_sample(0, session_id="newest"), wall_ns=0)
    _record(path, [_sample(0), later, before])
    reader = ReplayReader(path)
    reader.open_blocking()
    for _ in range(3):
        reader.sample_blocking()
    assert clock.slept_s == [0.0, 10.0, 0.0]


def test_events_come_with_their_sample(path: Path) -> None:
    recorder = Recorder(path)
    recorder.take(_sample(0))
    recorder.take(_sample(1), [NodeEvent("n1", "old", 7, 1, 2, "xid", "GPU-a", 79, "off the bus")])
    recorder.close()
    assert [sampled.events for sampled in _play(path)] == [
        (),
        (DeviceEvent("xid", "GPU-a", 79, "off the bus"),),
    ]


def test_of_several_nodes_one_is_chosen_and_may_have_another_name(path: Path) -> None:
    _record(path, [_sample(0), _sample(0, node_id="n2"), _sample(1)])
    with pytest.raises(InputError, match=r"run.parquet: has 2 nodes; choose one of: n1, n2"):
        _play(path)
    with pytest.raises(InputError, match=r"run.parquet: has no node 'n3'; it has n1, n2"):
        ReplayReader(path, node_id="n3").open_blocking()
    reader = ReplayReader(path, 0, node_id="n1", rename="stage")
    reader.open_blocking()
    played = [reader.sample_blocking().sample for _ in range(2)]
    assert [(sample.node_id, sample.seq) for sample in played] == [("stage", 0), ("stage", 1)]
    assert reader.node_id == "stage"


def test_it_stands_in_for_a_sampler_and_says_when_it_ends(path: Path) -> None:
    _record(path, [_sample(seq) for seq in range(200)])

    async def run() -> list[int]:
        reader = ReplayReader(path, 0)
        await reader.open()
        seqs = [(await reader.sample()).sample.seq for _ in range(200)]
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await reader.sample()
            await reader.close()
        return seqs

    assert asyncio.run(run()) == list(range(200))


def test_it_begins_anew_when_it_is_opened_again(path: Path) -> None:
    _record(path, [_sample(seq) for seq in range(3)])
    reader = ReplayReader(path, 0)
    for _ in range(2):
        reader.open_blocking()
        assert [reader.sample_blocking().sample.seq for _ in range(3)] == [0, 1, 2]


def test_parts_of_a_killed_agent_are_played(path: Path) -> None:
    recorder = Recorder(path)
    recorder.take(_sample(0))
    assert recorder.flush()
    assert [sampled.sample.seq for sampled in _play(path)] == [0]
    recorder.close()


def test_a_replay_that_is_recorded_is_the_same_recording(path: Path, tmp_path: Path) -> None:
    _record(path, [_sample(seq) for seq in range(5)])
    again = tmp_path / "again.parquet"
    _record(again, [sampled.sample for sampled in _play(path)])
    for old, new in zip(read_samples(path), read_samples(again), strict=True):
        assert (old.gpus, old.host, old.wall_ns) == (new.gpus, new.host, new.wall_ns)


def test_a_file_that_is_not_there_is_said_at_the_opening(path: Path) -> None:
    with pytest.raises(InputError, match="there is no such recording"):
        _play(path)
