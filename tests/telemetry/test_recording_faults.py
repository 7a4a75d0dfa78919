"""Recordings under faults: killed at any time, a full or hanging disk, two writers at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from eaco_core.errors import EnvironmentFault, InputError, InternalError
from eaco_telemetry.recording import Recorder, parts, read_frame, read_samples
from eaco_telemetry.recording import recorder as recorder_module
from eaco_telemetry.samples import GpuSample, NodeSample

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples(count: int, first: int = 0) -> list[NodeSample]:
    gpu = GpuSample("GPU-a", "nvidia", power_w=100.0)
    return [NodeSample("n1", "s1", seq, seq, seq, (gpu,)) for seq in range(first, first + count)]


def _do_nothing(_parts: object) -> None:
    pass


def _seqs(path: Path) -> list[int]:
    return [sample.seq for sample in read_samples(path)]


def _left_over(path: Path, count: int, *, first: int = 0) -> None:
    """Leave `count` parts of one sample each, as a killed recorder does."""
    recorder = Recorder(path, flush_rows=1)
    for sample in _samples(count, first):
        recorder.take(sample)
    assert recorder.flush()
    folder = Path(f"{path}.parts")
    kept = path.with_name("kept")
    shutil.copytree(folder, kept)
    before = path.read_bytes() if path.exists() else None
    recorder.close()
    path.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    if before is not None:
        path.write_bytes(before)
    kept.rename(folder)


_CHILD = """
import sys, time
from eaco_telemetry.recording import Recorder
from eaco_telemetry.samples import GpuSample, NodeSample
recorder = Recorder(sys.argv[1], flush_s=0.3)
seq = 0
while True:
    gpu = GpuSample("GPU-a", "nvidia", power_w=100.0)
    recorder.take(NodeSample("n1", "s1", seq, seq, seq, (gpu,)))
    print(seq, flush=True)
    seq += 1
    time.sleep(0.02)
"""


def test_a_kill_loses_no_more_than_the_flush_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    got: list[int] = []
    for turn in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            last = 0
            while last < 60:
                last = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            child.wait(10)
        got = _seqs(path)
        starts = [place for place, seq in enumerate(got) if seq == 0]
        assert len(starts) == turn + 1
        mine = got[starts[-1] :]
        assert mine == list(range(len(mine)))
        assert mine[-1] >= last - 45  # 0.3 s are 15 samples; the rest is for a slow machine
    assert not path.exists()
    Recorder(path).close()
    assert _seqs(path) == got
    assert list(tmp_path.iterdir()) == [path]


def test_parts_of_a_killed_recorder_are_joined_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    _left_over(path, 3)
    assert _seqs(path) == [0, 1, 2]
    recorder = Recorder(path)
    recorder.take(_samples(1, first=3)[0])
    recorder.close()
    assert _seqs(path) == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == [path]


def test_killed_between_the_join_and_the_clearing_up_no_row_counts_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    _left_over(path, 3)
    kept = shutil.copytree(f"{path}.parts", tmp_path / "kept")
    Recorder(path).close()
    Path(kept).rename(f"{path}.parts")
    assert path.exists()
    assert _seqs(path) == [0, 1, 2]
    recorder = Recorder(path)
    recorder.take(_samples(1, first=3)[0])
    recorder.close()
    assert _seqs(path) == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == [path]


def test_killed_while_small_parts_are_merged_no_row_counts_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.parquet"
    monkeypatch.setattr(recorder_module, "MERGE_EVERY", 3)
    monkeypatch.setattr(parts, "remove", _do_nothing)
    _left_over(path, 3)
    monkeypatch.undo()
    assert len(list(Path(f"{path}.parts").glob("*.parquet"))) == 4
    assert _seqs(path) == [0, 1, 2]
    Recorder(path).close()
    assert _seqs(path) == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_unfinished_files_of_a_killed_recorder_are_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    _left_over(path, 1)
    Path(f"{path}.parts", "0000000002-0000000002.parquet.tmp").write_bytes(b"PAR1")
    Path(f"{path}.tmp").write_bytes(b"PAR1")
    other = tmp_path / "other.tmp"
    other.write_bytes(b"not ours")
    assert _seqs(path) == [0]
    Recorder(path).close()
    assert sorted(tmp_path.iterdir()) == [other, path]


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    _left_over(path, 2)
    part = Path(f"{path}.parts", "0000000002-0000000002.parquet")
    part.write_bytes(part.read_bytes()[:-7])
    for use in (Recorder, read_frame):
        with pytest.raises(InputError, match=r"0000000002.parquet: is no Parquet file"):
            use(path)


def test_two_recorders_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    first = Recorder(path)
    with pytest.raises(InputError, match="another process is recording to this file"):
        Recorder(path)
    first.take(_samples(1)[0])
    first.close()
    Recorder(path).close()
    assert _seqs(path) == [0]


@pytest.mark.parametrize("name", ["no/such/run.parquet", "a_folder", "/dev/full"])
def test_a_place_that_cannot_hold_a_recording_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a_folder").mkdir()
    with pytest.raises(InputError, match=r"there is no such folder|is not a file"):
        Recorder(tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["a_folder"]
    assert not Path("/dev/full.parts").exists()


# ------------------------------------------------------------------------- the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a folder on a disk of 256 KiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("a small disk can only be mounted by root")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def _take_until_told(recorder: Recorder) -> tuple[str, int]:
    """Record until there is a fault; give what it says and how many samples were taken."""
    for count, sample in enumerate(_samples(3000)):
        try:
            recorder.take(sample)
        except EnvironmentFault as fault:
            return str(fault), count
        recorder.flush()
    pytest.fail("no fault")


def test_a_full_disk_is_told_once_and_what_was_written_stays(small_disk: Path) -> None:
    path = small_disk / "run.parquet"
    recorder = Recorder(path, flush_rows=1)
    said, taken = _take_until_told(recorder)
    assert said.startswith(f"{path}: recording stopped: ")
    assert "No space left on device" in said
    assert "stays readable" in said
    recorder.take(_samples(1)[0])  # told once: from now on only counted
    recorder.close()
    assert recorder.recorded > 3
    assert recorder.recorded + recorder.dropped == taken + 2
    assert _seqs(path) == list(range(recorder.recorded))


_LIMITED = """
import resource, sys
from eaco_telemetry.recording import Recorder, read_samples
from eaco_telemetry.samples import GpuSample, NodeSample
from eaco_core.errors import EnvironmentFault
recorder = Recorder(sys.argv[1], flush_rows=1)
gpu = GpuSample("GPU-a", "nvidia")
def take(seq):
    recorder.take(NodeSample("n1", "s1", seq, seq, seq, (gpu,)))
take(0); take(1)
assert recorder.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
take(2)
recorder.flush()
try:
    take(3)
except EnvironmentFault as fault:
    message = str(fault)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
take(4)
recorder.close()
print(message)
print([sample.seq for sample in read_samples(sys.argv[1])], recorder.dropped)
"""


def test_a_file_that_may_not_grow_stops_the_recording_only(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    ran = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    said, left = ran.stdout.splitlines()
    assert "recording stopped: File too large" in said
    assert left == "[0, 1] 3"
    assert sorted(one.name for one in Path(f"{path}.parts").iterdir()) == [
        "0000000001-0000000001.parquet",
        "0000000002-0000000002.parquet",
        "lock",
    ]


def test_a_join_that_fails_leaves_the_parts_to_be_read_and_joined_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.parquet"
    recorder = Recorder(path, flush_rows=1)
    for sample in _samples(3):
        recorder.take(sample)

    assert recorder.flush()

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", full)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        recorder.close()
    recorder.close()
    monkeypatch.undo()
    assert not path.exists()
    assert _seqs(path) == [0, 1, 2]
    Recorder(path).close()
    assert _seqs(path) == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_stands_still_stops_nobody_and_drops_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    started = threading.Event()
    write = parts.write_part

    def slow(recording: Path, number: int, frame: pl.DataFrame) -> parts.Part:
        started.set()
        assert go_on.wait(30)
        return write(recording, number, frame)

    monkeypatch.setattr(parts, "write_part", slow)
    monkeypatch.setattr(recorder_module, "MAX_WAITING", 100)
    path = tmp_path / "run.parquet"
    recorder = Recorder(path, flush_rows=1)
    samples = _samples(201)
    recorder.take(samples[0])
    assert started.wait(30)
    for sample in samples[1:]:
        recorder.take(sample)  # returns, though nothing is written
    assert recorder.dropped == 100
    go_on.set()
    recorder.close()
    assert recorder.recorded == 101
    assert _seqs(path) == list(range(101))


def test_a_disk_that_never_answers_does_not_hold_the_end_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = parts.write_part

    def hang(recording: Path, number: int, frame: pl.DataFrame) -> parts.Part:
        assert go_on.wait(30)
        return write(recording, number, frame)

    monkeypatch.setattr(parts, "write_part", hang)
    monkeypatch.setattr(recorder_module, "END_LIMIT_S", 0.2)
    recorder = Recorder(tmp_path / "run.parquet")
    recorder.take(_samples(1)[0])
    with pytest.raises(EnvironmentFault, match="the disk does not answer"):
        recorder.close()
    go_on.set()
    recorder._thread.join(30)
    recorder._lock.release()
    assert _seqs(tmp_path / "run.parquet") == [0]


def test_our_own_mistake_is_told_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_arguments: Any) -> None:  # noqa: ANN401 - whatever it is called with
        raise KeyError("power")

    monkeypatch.setattr(recorder_module, "sample_rows", wrong)
    recorder = Recorder(tmp_path / "run.parquet")
    recorder.take(_samples(1)[0])
    with pytest.raises(InternalError, match="KeyError"):
        recorder.close()


def test_rows_are_on_the_disk_after_the_flush_time(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    recorder = Recorder(path, flush_s=0.1)
    recorder.take(_samples(1)[0])
    until_s = time.monotonic() + 30
    while recorder.recorded < 1:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert _seqs(path) == [0]
    recorder.close()


def test_after_the_end_samples_are_only_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.parquet")
    recorder.close()
    recorder.take(_samples(1)[0])
    assert (recorder.recorded, recorder.dropped) == (0, 1)
    assert not recorder.flush()
