"""Closed standard streams and signals: work goes on, and a stop is clean."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = "from eaco_adapters.cli import main; main()"
SMALL = "--jobs 3 --nodes 3 --epochs 2..3 --policy fifo"


def _shell(arguments: str, redirect: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {arguments} {redirect}', sys.executable, MAIN],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("more", ["", "--json"])
def test_closed_streams_do_not_stop_the_work(tmp_path: Path, redirect: str, more: str) -> None:
    done = _shell(f"simulate {SMALL} {more} --output r.json", redirect, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "r.json").read_text(encoding="utf-8")
    assert json.loads(text)["schema"] == "eaco.simulate/1"


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [("--help", 0), ("", 2), ("simulate --nodes 0", 2), ("check no.jsonl", 2)],
)
def test_closed_streams_do_not_change_the_status(
    tmp_path: Path, redirect: str, arguments: str, status: int
) -> None:
    done = _shell(arguments, redirect, tmp_path)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("arguments", "redirect", "status"),
    [
        (f"simulate {SMALL}", ">/dev/full", 1),
        ("check no.jsonl", "2>/dev/full", 2),
        (f"simulate {SMALL}", ">/dev/full 2>/dev/full", 1),
    ],
)
def test_full_streams_are_one_sentence(
    tmp_path: Path, arguments: str, redirect: str, status: int
) -> None:
    done = _shell(arguments, redirect, tmp_path)
    assert done.returncode == status
    expected = "" if "2>" in redirect else "eaco: standard output: No space left on device.\n"
    assert done.stderr == expected


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_nothing_half_written(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    old = tmp_path / "result.json"
    old.write_text("old", encoding="utf-8")
    arguments = ["simulate", "--jobs", "100000", "--epochs", "10..90", "--policy", "fifo"]
    running = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments, "--output", str(old)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up_s = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < give_up_s:
        time.sleep(0.02)
    assert running.poll() is None, "it must still be at work"
    running.send_signal(number)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == status
    assert out == ""
    assert err.startswith("eaco: stopped by ")
    assert err.endswith("; no file was left half-written.\n")
    assert err.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    assert old.read_text(encoding="utf-8") == "old"


_STOPPED_WHILE_IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{name})
        return None

from eaco_adapters import cli
sys.meta_path.insert(0, Finder())
sys.argv = ["eaco", "simulate"]
cli.main()
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("module", ["click", "eaco_adapters.cli._app", "eaco_core.machine"])
def test_a_stop_while_importing_is_no_traceback(name: str, status: int, module: str) -> None:
    program = _STOPPED_WHILE_IMPORTING.format(name=name, module=module)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("eaco: stopped ")
    assert done.stderr.count("\n") == 1


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from eaco_adapters.cli import _app, main\n"
        "_app.run = lambda arguments: os.kill(os.getpid(), signal.SIGHUP) or 7\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (7, "")
