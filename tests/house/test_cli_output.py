"""Files appear whole or not at all; JSON and tables go where they should."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli import _output
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from pathlib import Path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    with _output.new_file(target) as stream:
        stream.write("one\n")
        stream.flush()
        assert not target.exists()
    assert target.read_text() == "one\n"
    assert _names(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("error", [InputError("no"), KeyboardInterrupt(), ZeroDivisionError()])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")

    def fail_half_way() -> None:
        with _output.new_file(target) as stream:
            stream.write("new" * 100_000)
            raise error

    with pytest.raises(type(error)):
        fail_half_way()
    assert target.read_text() == "old"
    assert _names(tmp_path) == ["a.json"]


def test_a_failing_disk_is_a_fault_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match=r"cannot write .*a\.json: No space left"):
        _output.write_file(tmp_path / "a.json", "{}")
    assert _names(tmp_path) == []


def test_permissions_are_those_of_the_old_file_or_of_the_user(tmp_path: Path) -> None:
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    kept.write_text("")
    kept.chmod(0o640)
    before = os.umask(0o027)
    try:
        _output.write_file(fresh, "x")
        _output.write_file(kept, "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    _output.write_file(tmp_path / "open", "x")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o666 & ~before


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    _output.write_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _output.write_file(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "is a folder"), ("nowhere/a.json", "there is no folder .*nowhere; make it first")],
)
def test_an_impossible_target_is_refused_early(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _output.check_writable(tmp_path / name)
    with pytest.raises(InputError, match=message):
        _output.write_file(tmp_path / name, "x")


def test_json_stands_alone_and_refuses_what_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    _output.note("this is for people")
    _output.print_json({"energy_j": 1.5, "name": "Zürich"})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"energy_j": 1.5, "name": "Zürich"}
    assert out.endswith("}\n")
    assert err == "this is for people\n"
    with pytest.raises(ValueError, match="not JSON compliant"):
        _output.print_json({"energy_j": float("nan")})


_COLUMNS = ("policy", "energy")
_ROWS = (("fifo", "12.5"), ("eaco[x]", "8"))


def test_a_table_is_plain_and_aligned_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    _output.print_table(_COLUMNS, _ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["policy   energy", "fifo       12.5", "eaco[x]       8"]
    _output.print_table(("name", "note"), [("x" * 60, "y" * 60)])
    assert capsys.readouterr().out.splitlines()[1] == "x" * 60 + "  " + "y" * 60, "never cut"


def test_a_table_on_a_terminal_has_style_and_the_same_cells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _output.print_table(_COLUMNS, _ROWS)
    shown = capsys.readouterr().out
    assert "\x1b[" in shown
    assert "eaco[x]" in shown, "square brackets are text, not markup"


def test_a_table_with_a_short_row_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="1 cells, the table 2 columns"):
        _output.print_table(_COLUMNS, [("fifo",)])


def test_no_bar_when_piped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [100.0]
    monkeypatch.setattr("eaco_adapters.cli._output.time.monotonic", lambda: clock_s[0])
    with _output.progress("simulating") as update:
        clock_s[0] = 103.0
        update(50, 100)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_waits_for_slow_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    clock_s = [100.0]
    monkeypatch.setattr("eaco_adapters.cli._output.time.monotonic", lambda: clock_s[0])
    with _output.progress("simulating") as update:
        clock_s[0] = 101.0
        update(20, 100)
        assert capsys.readouterr().err == ""
        clock_s[0] = 103.0
        update(50, 100)
    out, err = capsys.readouterr()
    assert out == ""
    assert "simulating" in err
    assert "50%" in err
