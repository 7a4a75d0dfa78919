"""`eaco shadow` as a person and as a program meet it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from eaco_adapters.cli import _app
from eaco_adapters.cli.shadow import command
from eaco_adapters.journal.writer import JournalWriter
from eaco_adapters.shadow import Past, ShadowReport
from eaco_adapters.shadow.report import Side
from eaco_adapters.shadow.source import Intake, file_lines, stream_lines
from eaco_adapters.shadow.stories import Story
from eaco_adapters.testing.history_by_hand import HistoryByHand
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import eaco_adapters.cli; eaco_adapters.cli.main()"
PROFILE = {
    "gpu_type": "a100",
    "epoch_s": 100,
    "util_ratio": 0.3,
    "mem_busy_ratio": 0.2,
    "peak_mem_bytes": 2**30,
}


def a_history() -> HistoryByHand:
    history = HistoryByHand(nodes=2)
    for job_id in ("a", "b"):
        history.submit(0, job_id, epochs=10, workload="bert", profiles=[PROFILE], deadline_s=2000)
    history.start(0, "a", ["n0-g0"])
    history.start(0, "b", ["n1-g0"])
    for epoch in range(1, 11):
        history.epoch(100 * epoch, "a", epoch)
        history.epoch(100 * epoch, "b", epoch)
    history.end(1000, "a", ["n0-g0"])
    history.end(1000, "b", ["n1-g0"])
    return history


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text(a_history().text(), encoding="utf-8")
    return path


def run(*arguments: str) -> int:
    return _app.run(["shadow", *arguments])


def test_the_report_says_what_was_saved_and_risked(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--events", str(events)) == 0
    text = capsys.readouterr().out
    assert "in-house 1, policy backfill: 32 steps over 0.3 h, 2 jobs compared" in text
    assert "% less energy (saving between " in text
    assert "2 placements, 1 of them shared: 1 kept after a look, 0 undone" in text
    assert "Largest savings:\n- job b beside job a at 0 min: at most 1.25 times slower" in text
    assert "Largest risks:\n- job b beside job a" in text
    assert "Assumptions:" in text


def test_json_is_one_document(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--events", str(events), "--json", "--top", "1") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["schema"] == "eaco.shadow/1"
    assert document["low_ratio"] < document["saving_ratio"] < document["high_ratio"]
    assert document["savings"][0]["beside"] == ["a"]
    assert {"as_was", "would_be", "alone", "left_out", "scenarios", "notes"} <= set(document)


def test_standard_input_is_read_and_half_a_line_at_its_end_does_not_count(events: Path) -> None:
    text = events.read_text(encoding="utf-8") + '{"kind":"step","seq":99,"t_'
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "shadow", "--events", "-", "--json"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 32


def test_a_journal_is_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    journal = JournalWriter(path)
    for line in a_history().lines:
        journal.append(line)
    journal.commit()
    journal.close()
    assert run("--events", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "events.jsonl: this history is empty"),
        ("\n\n", "events.jsonl: this history is empty"),
        ("hello\n", "events.jsonl, line 1: this line of the history is not JSON"),
        ("[" * 100_000, "events.jsonl, line 1: this line of the history is nested too deeply"),
        ('{"kind":"step","seq":1,"t_s":0,"event":{"type":"Tick","t_s":0}}', "must be the header"),
        ("{HEADER}\n{HEADER}\n", "line 2: a second header"),
        ('{HEADER}\n{"kind":"step","seq":1,"t_s":NaN}\n', "line 2: .*NaN"),
        ('{HEADER}\n{"kind":"st', "line 2: this line of the history is not JSON"),
        ("{HEADER}\n\udcff\n", "line 2: this is not a history: it is not UTF-8"),
    ],
)
def test_a_broken_history_is_refused_with_its_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    text = text.replace("{HEADER}", HistoryByHand().lines[0])
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert run("--events", str(path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    before, _, after = complaint.partition(".*")
    assert before in captured.err
    assert after in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Missing option '--events'"),
        (("--events", "no-such-file"), "no-such-file: there is no such file"),
        (("--events", "."), "this is a folder"),
        (("--events", "x", "--every", "0"), "number above 0"),
        (("--events", "x", "--interference", "2,1,3"), "must be 3 numbers from 1 to 100"),
        (("--events", "x", "--assume-gpu-util", "nan,1"), "must be 2 numbers"),
        (("--events", "x", "--top", "-1"), "Invalid value for '--top'"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert complaint in capsys.readouterr().err


def test_an_idle_power_below_that_of_the_gpus_is_refused(
    events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--events", str(events), "--idle-w", "10") == 2
    assert "an idle node cannot draw 10 W" in capsys.readouterr().err


def test_a_header_alone_has_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(HistoryByHand(nodes=0).text(), encoding="utf-8")
    assert run("--events", str(path)) == 0
    assert "Nothing to compare yet" in capsys.readouterr().out
    assert run("--events", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["saving_ratio"] is None


def test_a_file_that_grows_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    text = a_history().text()
    half = text.index("\n", len(text) // 2) - 20  # in the middle of a line
    path.write_text(text[:half], encoding="utf-8")
    command = [sys.executable, "-c", MAIN, "shadow", "--events", str(path)]
    command += ["--follow", "--every", "0.3", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text[half:])
        for line in process.stdout:
            document = json.loads(line)
            if document["steps"] == 32:
                break
        else:
            pytest.fail("it ended before it had read everything")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert first["steps"] < 32
    assert document["jobs"] == 2
    assert json.loads(out.splitlines()[-1])["steps"] == 32
    assert err == "eaco: stopped; the last report follows\n"


def taken(lines: Iterator[str | None], intake: Intake, steps: int) -> None:
    """Take lines in until there were so many steps, or for 5 s."""
    until_s = time.monotonic() + 5
    for text in lines:
        if text is not None:
            intake.take(text)
        if intake.past.steps >= steps or time.monotonic() > until_s:
            return


def test_a_followed_file_that_becomes_shorter_is_refused(events: Path) -> None:
    lines = file_lines(events, follow=True)
    intake = Intake(Past(), "events")
    taken(lines, intake, 32)
    events.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"events\.jsonl.*became shorter"):
        taken(lines, intake, 33)


def test_a_journal_is_followed_from_record_to_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    history = a_history().lines
    journal = JournalWriter(path)
    for line in history[:10]:
        journal.append(line)
    journal.commit()
    intake = Intake(Past(), "journal")
    lines = file_lines(path, follow=True)
    taken(lines, intake, 9)
    assert intake.past.steps == 9
    for line in history[10:]:
        journal.append(line)
    journal.commit()
    journal.close()
    taken(lines, intake, 32)
    assert [job.finished_s for job in intake.past.jobs.values()] == [1000, 1000]


def test_a_pipe_that_is_slow_gives_pauses_and_then_ends() -> None:
    read, write = os.pipe()
    history = a_history().text().encode()

    def later() -> None:
        with io.FileIO(write, "w") as stream:
            stream.write(history[:500])
            time.sleep(0.7)
            stream.write(history[500:])

    writer = threading.Thread(target=later)
    writer.start()
    with io.FileIO(read) as stream, io.BufferedReader(stream) as buffered:
        lines = list(stream_lines(buffered, "pipe", follow=False))
    writer.join()
    assert None in lines
    assert [line for line in lines if line is not None] == a_history().lines


def test_the_document_names_every_field() -> None:
    text = (ROOT / "docs" / "shadow.md").read_text(encoding="utf-8")
    table = text[text.index("## The JSON document") :]
    named = set(re.findall(r"`(\w+)`", table))
    fields = {one.name for one in attrs.fields(ShadowReport)}
    fields |= {one.name for kind in (Side, Story) for one in attrs.fields(kind)}
    assert fields <= named
    options = {
        name
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name != "--help"
    }
    assert options <= set(re.findall(r"--[a-z-]+", text))
