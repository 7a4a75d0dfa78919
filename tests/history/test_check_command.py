"""`eaco check` and `eaco explain` as a user runs them: output and exit status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli._app import run
from eaco_core import history
from eaco_core.effects import KillJob
from eaco_core.events import JobSubmitted, Tick
from eaco_core.jobs import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

HEADER = history.encode_header(policy="fifo", seed=1)
SUBMIT = history.encode_step(1, 0.0, 1, JobSubmitted(0.0, JobSpec("job-1", 1, 0.0)))
TICK = history.encode_step(2, 0.0, 1, Tick(0.0))
KILL = history.encode_step(2, 0.0, 1, Tick(0.0), (KillJob("ghost", 1, 1, "because"),))


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_a_good_history_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", write(tmp_path / "run.jsonl", HEADER, SUBMIT, TICK)]) == 0
    out = capsys.readouterr().out
    assert "policy fifo, 2 steps, 1 job." in out
    assert "Passed: I15, I16, I17, I18, I20." in out
    assert "Not checked: I30 (" in out
    assert "VIOLATED" not in out


def test_a_violation_is_told_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "run.jsonl", HEADER, SUBMIT, KILL)
    assert run(["check", file]) == 1
    out = capsys.readouterr().out
    assert "VIOLATED I15 (conservation: every job is in exactly one state), once:" in out
    assert "  step 2: KillJob speaks of job ghost, never submitted, at t=0 s." in out
    assert run(["check", file, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "eaco.check/1"
    assert document["ok"] is False
    assert [(f["invariant"], f["count"]) for f in document["failed"]] == [("I15", 1)]
    assert "I15" not in document["passed"]
    assert document["not_checked"]["I30"] == "the history has no energy lines"
    assert document["jobs_not_ended"] == 1
    assert document["notes"] == ["1 job had not ended when the history did"]


def test_a_header_alone_passes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", write(tmp_path / "run.jsonl", HEADER)]) == 0
    out = capsys.readouterr().out
    assert "Passed: none." in out
    assert "nothing of the kind happened: the history has no steps." in out


def test_a_byte_order_mark_is_read_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "run.jsonl", f"\ufeff{HEADER}", SUBMIT, TICK)
    assert run(["check", file]) == 0
    assert run(["check", file, "--same-as", file]) == 0
    assert run(["explain", file, "job-1"]) == 0
    assert "submitted" in capsys.readouterr().out


def test_two_runs_of_the_same_input_must_be_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "1.jsonl", HEADER, SUBMIT, TICK)
    second = write(tmp_path / "2.jsonl", HEADER, SUBMIT)
    assert run(["check", first, "--same-as", first, "--json"]) == 0
    assert "I23" in json.loads(capsys.readouterr().out)["passed"]
    assert run(["check", first, "--same-as", second]) == 1
    assert "VIOLATED I23" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["check"], ["explain", "job-1"]])
def test_what_is_no_history_exits_2(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = command
    broken = write(tmp_path / "run.jsonl", HEADER, '{"kind":"step","seq":"job-1"}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file, complaint in (
        (broken, "run.jsonl, line 2: this line of the history is wrong: seq must be"),
        (str(tmp_path / "none"), "there is no such file"),
        (str(tmp_path), "a folder"),
        ("", "the name of a file is empty"),
        (str(tmp_path / "binary"), "not UTF-8"),
    ):
        assert run([name, file, *more]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert complaint in captured.err
        assert captured.err.count("\n") == 1


def test_explain_says_when_the_history_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    for text in (f"{HEADER}\n{SUBMIT}\n{TICK[:30]}", f"{HEADER}\n{SUBMIT}\n{SUBMIT[:-5]}"):
        file.write_text(text, encoding="utf-8")
        assert run(["explain", str(file), "job-1"]) == 0
        out = capsys.readouterr().out
        assert "submitted" in out
        assert "was cut off in its last line" in out
        assert run(["explain", str(file), "job-1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cut_off"] is True
    for text in (f"{HEADER}\n{SUBMIT}", f"{HEADER}\n{SUBMIT}\n"):
        file.write_text(text, encoding="utf-8")
        assert run(["explain", str(file), "job-1"]) == 0
        assert "cut off" not in capsys.readouterr().out


def test_explain_tells_a_story_and_knows_no_other_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "run.jsonl", HEADER, SUBMIT, TICK)
    assert run(["explain", file, "job-1"]) == 0
    assert "submitted: 1 GPU, unknown length of its own kind" in capsys.readouterr().out
    assert run(["explain", file, "job-1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "eaco.explain/1"
    assert document["story"][0]["seq"] == 1
    assert run(["explain", file, "job-2"]) == 2
    assert "did you mean job-1?" in capsys.readouterr().err
