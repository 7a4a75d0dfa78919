"""`eaco check` and `eaco explain` on the journal of a scheduler, also while it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli import _app
from eaco_adapters.journal.opening import open_journal
from eaco_adapters.journal.writer import JournalWriter
from eaco_core.history import encode
from eaco_core.machine import SchedulerMachine
from eaco_core.testing import PlainPower, Recorder, World, a_job, a_node

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def texts() -> list[str]:
    world = World(Recorder(SchedulerMachine(power=PlainPower()), watch=False))
    world.join(a_node("n1", 2))
    world.submit(*(a_job(f"job-{i}", epochs=3) for i in range(4)))
    world.run_to_end()
    return [encode(line) for line in world.recorder.lines]


@pytest.fixture
def journal(tmp_path: Path, texts: list[str]) -> Path:
    with JournalWriter(tmp_path / "eaco.journal") as writer:
        for text in texts:
            writer.append(text)
        writer.commit()
    return tmp_path / "eaco.journal"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = _app.run(arguments)
    found = capsys.readouterr()
    return status, found.out, found.err


def test_a_journal_is_checked_as_the_history_that_it_holds(
    journal: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text("\n".join(texts) + "\n", encoding="utf-8")
    reports: list[object] = []
    for file in (journal, plain):
        status, out, _ = run(capsys, "check", str(file), "--json")
        assert status == 0
        report = json.loads(out)
        assert report.pop("file") == str(file)
        reports.append(report)
    assert reports[0] == reports[1]
    status, out, _ = run(capsys, "check", str(journal), "--same-as", str(plain))
    assert status == 0
    assert "I23" in out.partition("Passed:")[2].partition("\n")[0]


def test_a_torn_end_is_a_note(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal.write_bytes(journal.read_bytes()[:-9])
    status, out, _ = run(capsys, "check", str(journal))
    assert status == 0
    assert "Note: record" in out
    assert "was not written to its end" in out
    status, out, _ = run(capsys, "explain", str(journal), "job-0")
    assert status == 0
    assert "was cut off in its last line" in out


def test_damage_in_the_middle_is_an_error(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    for command in (["check", str(journal)], ["explain", str(journal), "job-0"]):
        status, _, err = run(capsys, *command)
        assert status == 2
        assert "is damaged" in err
        assert len(err.splitlines()) == 1


def test_a_journal_is_checked_while_it_is_written(
    tmp_path: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "live"
    opened = open_journal(path, lambda: SchedulerMachine(power=PlainPower()))
    with opened.writer as writer:
        for k, text in enumerate(texts[1:], start=1):
            writer.append(text)
            if k % 20 == 0:
                writer.commit()
                status, out, _ = run(capsys, "check", str(path))
                assert status == 0
                assert f"{k} steps" in out


def test_a_job_is_explained_from_a_journal(
    journal: Path, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text("\n".join(texts) + "\n", encoding="utf-8")
    told = [run(capsys, "explain", str(file), "job-2") for file in (journal, plain)]
    assert told[0] == told[1]
    assert told[0][0] == 0
    status, _, err = run(capsys, "explain", str(journal), "job-7")
    assert status == 2
    assert "there is no job 'job-7'" in err
    assert "did you mean job-" in err
    assert str(journal) in err


def test_a_journal_of_a_later_version_is_refused(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.write_bytes(journal.read_bytes().replace(b"eaco.journal/1", b"eaco.journal/8", 1))
    status, _, err = run(capsys, "check", str(journal))
    assert status == 2
    assert "later version (eaco.journal/8)" in err
