"""What a person sees: each kind of error is one sentence and one exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import click
import pytest

from eaco_adapters.cli import _app
from eaco_core.errors import EnvironmentFault, InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Plant = Callable[[Callable[[], None]], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Give a function that makes its argument the body of `eaco planted`."""

    def planted(body: Callable[[], None]) -> None:
        module = ModuleType("planted_command")
        vars(module)["command"] = click.command("planted")(body)
        monkeypatch.setitem(sys.modules, "planted_command", module)
        entry = _app.CommandEntry("planted_command", "Do what the test says.")
        monkeypatch.setitem(_app.COMMANDS, "planted", entry)

    return planted


def test_a_command_that_ends_well_exits_with_zero(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(lambda: click.echo("done"))
    assert _app.run(["planted"]) == 0
    assert capsys.readouterr() == ("done\n", "")


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (InputError("job 7 asks too much", where="a.csv, line 7"), 2, "a.csv, line 7: job 7"),
        (EnvironmentFault("the disk is full"), 1, "the disk is full"),
        (PermissionError(13, "Permission denied", "x.json"), 1, "Permission denied"),
        (InputError("one\ntwo\n\nthree"), 2, "one two three"),
        (KeyboardInterrupt(), 130, "stopped by the user"),
        (click.BadParameter("-1 is too small"), 2, "-1 is too small"),
    ],
)
def test_an_error_is_one_sentence_on_stderr(
    plant: Plant,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    sentence: str,
) -> None:
    def body() -> None:
        raise error

    plant(body)
    assert _app.run(["planted"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1, "one line only"


def test_our_own_mistake_keeps_its_traceback(plant: Plant) -> None:
    def body() -> None:
        raise InternalError("two owners of one GPU")

    plant(body)
    with pytest.raises(InternalError):
        _app.run(["planted"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["simulat"], "there is no command 'simulat'; the commands are simulate"),
        (["--nonsense"], "No such option '--nonsense'"),
        (["planted", "--nonsense"], "see `eaco planted --help`"),
    ],
)
def test_wrong_use_says_what_to_do(
    plant: Plant, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    plant(lambda: None)
    assert _app.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err


def test_bare_eaco_shows_help_and_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert _app.run([]) == 2
    assert "Usage: eaco" in capsys.readouterr().err


def test_help_lists_every_command_without_importing_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = _app.CommandEntry("no_such_module_anywhere", "Never imported.")
    monkeypatch.setitem(_app.COMMANDS, "ghost", nowhere)
    assert _app.run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in _app.COMMANDS:
        assert f"  {name} " in shown


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert _app.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("eaco 0.")


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    for missing in ("click", "rich"):
        code = (
            f"import sys; sys.modules[{missing!r}] = None; import eaco_adapters.cli as c; c.main()"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 2
        assert ran.stdout == ""
        expected = "eaco needs its command-line extra: pip install 'eaco[cli]'\n"
        assert ran.stderr == expected


_PROGRAM = """
import sys, time, types
import click
from pathlib import Path
from eaco_adapters import cli
from eaco_adapters.cli import _app, _output

@click.command("planted")
def planted():
    {body}

module = types.ModuleType("planted_command")
module.command = planted
sys.modules["planted_command"] = module
_app.COMMANDS["planted"] = _app.CommandEntry("planted_command", "")
sys.argv = ["eaco", "planted"]
cli.main()
"""


def _start(body: str) -> subprocess.Popen[bytes]:
    """Start the program with a buffered stdout, as a shell does."""
    program = _PROGRAM.format(body=body)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


@pytest.mark.parametrize("text", ["x", "x" * 1_000_000])
def test_a_reader_that_goes_away_is_no_traceback(text: str) -> None:
    """Short text fails in the last flush, long text while it is written."""
    with _start(f"sys.stdin.readline(); print('{text[0]}' * {len(text)})") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 141


def test_ctrl_c_leaves_no_half_written_file(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")
    body = (
        f"with _output.new_file({str(target)!r}) as f: "
        "f.write('half'); f.flush(); print('ready', flush=True); time.sleep(60)"
    )
    with _start(body) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(list(tmp_path.iterdir())) == 2, "the half is written beside its place"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert b"Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "old"


@pytest.mark.parametrize("name", list(_app.COMMANDS))
def test_every_command_of_the_table_exists_and_helps(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _app.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"eaco {name}" in shown
    assert "Example" in shown, "every command shows an example"
