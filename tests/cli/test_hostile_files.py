"""Files and names that nobody would write on purpose: one sentence, exit status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaco_adapters.cli import _app

HEADER = '{"schema":"eaco.history/1","kind":"header"}\n'
DEEP = "[" * 100_000


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "deep.jsonl"],
        ["explain", "deep.jsonl", "a"],
        ["simulate", "--history", "deep.jsonl"],
    ],
)
def test_deeply_nested_json_is_named_with_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    end: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    # The name of the job is in it, because `explain` passes over lines without it.
    (tmp_path / "deep.jsonl").write_text(f'{HEADER}{{"a":{DEEP}{end}', encoding="utf-8")
    assert _app.run(arguments) == 2
    err = capsys.readouterr().err
    assert "deep.jsonl, line 2: this line of the history is nested too deeply" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--history", "--profiles", "--trace"])
def test_a_first_line_that_is_nested_deeply_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = tmp_path / "deep.json"
    path.write_text(f'{{"a":{DEEP}', encoding="utf-8")
    assert _app.run(["simulate", option, str(path)]) == 2
    err = capsys.readouterr().err
    assert "deep.json" in err
    assert err.count("\n") == 1


FAST = ["--jobs", "3", "--nodes", "3", "--epochs", "2..3", "--policy", "fifo"]
TRACE = "submit_s,gpus,epochs,workload\n0,8,2,vgg16\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    before = sorted(here.iterdir())
    assert _app.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("eaco: ")
    assert err.endswith(".\n")
    assert err.count("\n") == 1
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        *(["simulate", option, "a"] for option in ("--trace", "--profiles", "--history")),
        *(["simulate", option, "a"] for option in ("--output", "--events")),
        ["simulate", "--output", "a/r.json"],
        ["simulate", "--policy", "fifo", "--events", "a"],
        ["check", "a"],
        ["explain", "a", "job"],
    ],
)
@pytest.mark.parametrize("kind", ["loop", "long"])
def test_a_name_that_leads_nowhere_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], kind: str
) -> None:
    (here / "a").symlink_to(here / "b")
    (here / "b").symlink_to(here / "a")
    if kind == "long":
        arguments = [part.replace("a", "a" * 300) if part[0] == "a" else part for part in arguments]
    elif "--events" in arguments and "--policy" not in arguments:
        return  # a.fifo and so on are no loops
    _refused(here, capsys, arguments, "a")


def test_the_longest_name_can_be_written(here: Path) -> None:
    name = "é" * 125 + ".json"
    assert _app.run(["simulate", *FAST, "--output", name]) == 0
    assert [path.name for path in here.iterdir()] == [name]


@pytest.mark.parametrize("option", ["--trace", "--profiles", "--history"])
def test_a_pipe_as_input_is_refused_and_not_waited_for(
    here: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    os.mkfifo(here / "pipe")
    _refused(here, capsys, ["simulate", option, "pipe"], "pipe: this is not a regular file")


def test_a_device_cannot_hold_several_histories(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(here / "pipe")
    for name in ("pipe", os.devnull):
        _refused(
            here, capsys, ["simulate", "--policy", "fifo,eaco", "--events", name],
            f"{name} is not a regular file, but each of the 2 policies",
        )  # fmt: skip
    assert not Path(f"{os.devnull}.fifo").exists()
    assert _app.run(["simulate", *FAST, "--events", os.devnull]) == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("option", ["--output", "--events"])
def test_a_protected_file_is_not_replaced(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """The superuser may write everything, so the answer of the system is played."""
    (here / "r.json").write_text("old", encoding="utf-8")
    access = os.access

    def protected(path: str | Path, mode: int) -> bool:
        return Path(path).name != "r.json" and access(path, mode)

    monkeypatch.setattr(os, "access", protected)
    _refused(here, capsys, ["simulate", *FAST, option, "r.json"], "r.json is write-protected")
    assert (here / "r.json").read_text(encoding="utf-8") == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("option", ["--output", "--events"])
def test_a_full_device_is_named(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert _app.run(["simulate", *FAST, option, "/dev/full"]) == 1
    assert capsys.readouterr().err == "eaco: cannot write /dev/full: No space left on device.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_of_several_files_the_full_one_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--jobs", "40", "--policy", "fifo", "--events", "/dev/full", "--output", "r.json"]
    assert _app.run(["simulate", *more]) == 1
    assert capsys.readouterr().err == "eaco: cannot write /dev/full: No space left on device.\n"
    assert list(here.iterdir()) == []


def test_a_name_that_is_no_text_is_written_with_escapes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"\xfe.csv")
    (here / name).write_text(TRACE, encoding="utf-8")
    arguments = ["simulate", "--trace", name, "--policy", "fifo"]
    assert _app.run([*arguments, "--output", "r.json", "--events", "r.jsonl", "--json"]) == 0
    text = (here / "r.json").read_text(encoding="utf-8")
    assert json.loads(text)["config"]["options"]["trace"] == name
    assert text == capsys.readouterr().out
    assert _app.run(["check", "r.jsonl"]) == 0
    (here / "r.jsonl").rename(here / name)
    for more in (["check"], ["check", "--json"]):
        assert _app.run([*more, name]) == 0
    assert "\\udcfe.csv" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_every_name_can_be_shown_in_every_encoding(
    here: Path, encoding: str, more: list[str]
) -> None:
    name = os.fsdecode(b"\xfe") + "€é.csv"
    (here / name).write_text(TRACE, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-c", "from eaco_adapters.cli import main; main()",
            "simulate", "--trace", name, "--policy", "fifo", *more,
        ],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    if more:
        assert json.loads(done.stdout)["config"]["options"]["trace"] == name
    else:
        assert b"\\udcfe" in done.stdout or b"?" in done.stdout
