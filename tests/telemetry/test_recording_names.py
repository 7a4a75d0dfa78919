"""Recordings under unusual names: patterns, links, bytes that are no text, no permission."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaco_core.errors import InputError
from eaco_telemetry.booking.frames import open_recordings
from eaco_telemetry.recording import Recorder, ReplayReader, parts, read_frame, read_samples
from eaco_telemetry.recording import recorder as recorder_module
from eaco_telemetry.samples import GpuSample, NodeSample

NO_TEXT = os.fsdecode(b"r\xff.parquet")


def _record(path: Path, *, first: int = 0, count: int = 3) -> None:
    recorder = Recorder(path, flush_rows=1)
    gpu = GpuSample("GPU-a", "nvidia", power_w=100.0)
    for seq in range(first, first + count):
        recorder.take(NodeSample("n1", "s1", seq, seq, seq, (gpu,)))
    recorder.close()


def _seqs(path: Path) -> list[int]:
    return [sample.seq for sample in read_samples(path)]


def _play(path: Path) -> None:
    ReplayReader(path).open_blocking()


@pytest.mark.parametrize(
    "folder", ["d[x]", "d*", "d?", "{a,b}", "kind=gpu", "~", "a b", "ä", "%41"]
)
def test_a_name_that_looks_like_a_pattern_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(recorder_module, "MERGE_EVERY", 2)
    monkeypatch.chdir(tmp_path)
    path = Path(folder, "r[1]*?.parquet")
    path.parent.mkdir()
    _record(path)
    _record(path, first=3)
    assert _seqs(path) == list(range(6))
    assert read_frame(path, ["gpu"]).height == 6
    assert len(open_recordings([str(path)])) == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_pattern_does_not_read_another_file(tmp_path: Path) -> None:
    _record(tmp_path / "r1.parquet")
    with pytest.raises(InputError, match="there is no such recording"):
        read_frame(tmp_path / "r[1].parquet")


def test_a_name_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / NO_TEXT
    path.write_bytes(b"")
    for use in (Recorder, read_frame, _seqs, _play):
        with pytest.raises(InputError, match="is not UTF-8 text"):
            use(path)
    link = tmp_path / "link.parquet"
    link.symlink_to(path)
    with pytest.raises(InputError, match="is not UTF-8 text"):
        Recorder(link)


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    link = tmp_path / "run.parquet"
    link.symlink_to(Path("disk", "real.parquet"))
    recorder = Recorder(link)
    recorder.take(NodeSample("n1", "s1", 0, 0, 0, ()))
    assert recorder.flush()
    assert [one.name for one in disk.iterdir()] == ["real.parquet.parts"]
    assert _seqs(link) == _seqs(disk / "real.parquet") == [0]
    with pytest.raises(InputError, match="another process is recording"):
        Recorder(disk / "real.parquet")
    recorder.close()
    _record(link, first=1)
    assert link.is_symlink()
    assert [one.name for one in disk.iterdir()] == ["real.parquet"]
    assert _seqs(link) == [0, 1, 2, 3]


def test_a_link_that_leads_to_itself_is_one_sentence(tmp_path: Path) -> None:
    link = tmp_path / "run.parquet"
    link.symlink_to(link)
    for use in (Recorder, read_frame):
        with pytest.raises(InputError, match="leads back to itself"):
            use(link)


def test_a_file_where_the_parts_would_be_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    folder = parts.parts_folder(path)
    folder.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"run.parquet.parts: is a file.*move it away"):
        Recorder(path)
    assert folder.read_bytes() == b"mine"
    folder.unlink()
    folder.symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="move it away"):
        Recorder(path)


def test_a_recording_without_a_part_yet_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    recorder = Recorder(path)
    with pytest.raises(InputError, match=r"nothing is recorded yet: .* after a minute"):
        read_frame(path)
    recorder.close()
    with pytest.raises(InputError, match="there is no such recording"):
        read_frame(path)


def test_a_part_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    folder = parts.parts_folder(path)
    folder.mkdir()
    part = folder / "0000000001-0000000001.parquet"
    part.write_bytes(b"PAR1 and nothing")
    for use in (Recorder, read_frame, _seqs):
        with pytest.raises(InputError, match=r"0000000001.parquet: .*move it away to go on"):
            use(path)
    part.rename(tmp_path / "away")
    _record(path)
    assert _seqs(path) == [0, 1, 2]


def _errors_of_a_user(use: str, path: Path) -> str:
    """Do it as a user without rights, and give the class of the error and what it says."""
    program = (
        "import os, sys\n"
        "from eaco_core.errors import EacoError\n"
        "from eaco_telemetry.recording import Recorder, read_frame\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        f"    {use}(sys.argv[1])\n"
        "except EacoError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
def test_a_folder_that_may_not_be_used_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "run.parquet"
    said = _errors_of_a_user("Recorder", path)
    assert said.startswith("InputError")
    assert "may not be written" in said
    said = _errors_of_a_user("read_frame", path)
    assert said.startswith("InputError")
    assert "Permission denied" in said


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("eaco_telemetry.recording", "polars", "record"),
        ("eaco_telemetry.recording.reading", "polars", "record"),
        ("eaco_telemetry.exporters.prometheus", "prometheus_client", "prometheus"),
        ("eaco_telemetry.wire", "msgspec", "mqtt"),
    ],
)
def test_without_its_extra_a_module_says_what_to_install(
    module: str, package: str, extra: str
) -> None:
    program = (
        "import importlib, sys\n"
        "sys.modules[sys.argv[2]] = None\n"
        "try:\n"
        "    importlib.import_module(sys.argv[1])\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error.name, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, module, package],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith(package)
    assert f"pip install 'eaco[{extra}]'" in done.stdout
