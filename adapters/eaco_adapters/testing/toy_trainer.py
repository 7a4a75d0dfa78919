"""A training script without training, for tests: epochs that take time, and every bad habit.

Run as `python -m eaco_adapters.testing.toy_trainer --epochs 5 --epoch-s 0.1 ...`; `toy_command`
builds that command. Standard library only, so that it starts fast.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from eaco_adapters.progress import Progress

_FLOOD_BYTES = 1 << 16


def toy_command(*words: str, **knobs: float | str | bool) -> tuple[str, ...]:
    """Give the command for a toy trainer: `toy_command(epochs=3, ignore_term=True)`."""
    parts = [sys.executable, "-m", "eaco_adapters.testing.toy_trainer"]
    for name, value in knobs.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            parts.append(option)
        elif value is not False and value != "":
            parts += [option, str(value)]
    return (*parts, *words)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--epoch-s", type=float, default=0.05)
    parser.add_argument("--burn", action="store_true", help="compute instead of sleeping")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--ignore-stop", action="store_true")
    parser.add_argument("--silent", action="store_true", help="report nothing")
    parser.add_argument("--crash-at", type=int, default=0, help="exit 3 after this epoch")
    parser.add_argument("--oom-at", type=int, default=0, help="fail for memory after this epoch")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--leave", choices=("fork", "setsid", "daemon"), help="leave a child")
    parser.add_argument("--leave-s", type=float, default=60.0)
    parser.add_argument("--flood-bytes", type=int, default=0, help="write so much output")
    parser.add_argument("--flood-lines", type=int, default=0, help="write so many bad lines")
    parser.add_argument("--kill-parent", action="store_true", help="SIGKILL the shim")
    parser.add_argument("--witness", type=Path, help="append a line at begin and end")
    parser.add_argument("--alone", type=Path, help="a file to hold; `twice` goes to the witness")
    parser.add_argument("--checkpoint-every", type=int, default=1)
    return parser.parse_args()


def _leave(how: str, seconds_s: float) -> None:
    """Leave a process behind, in one of three ways."""
    if how == "daemon":  # closes everything, changes its session, and falls to someone else
        script = (
            "import os, sys, time\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "if os.fork(): os._exit(0)\n"
            "os.closerange(0, 1024)\n"
            "time.sleep(float(sys.argv[1]))\n"
        )
        subprocess.run([sys.executable, "-c", script, str(seconds_s)], check=True)  # noqa: S603 - our own script
        return
    if os.fork() == 0:
        if how == "setsid":
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(seconds_s)
        os._exit(0)


def _compute(seconds_s: float, *, burn: bool) -> None:
    until_s = time.monotonic() + seconds_s
    while burn and time.monotonic() < until_s:
        sum(i * i for i in range(2000))
    time.sleep(max(0.0, until_s - time.monotonic()))


def _resume(folder: Path) -> int:
    try:
        return int((folder / "epoch").read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _save(folder: Path, epoch: int) -> None:
    beside = folder / f"epoch.{os.getpid()}"
    beside.write_text(str(epoch), encoding="ascii")
    beside.replace(folder / "epoch")


def _witness(path: Path | None, word: str) -> None:
    if path is not None:
        with path.open("a", encoding="ascii") as file:
            file.write(f"{word} {os.environ.get('EACO_ATTEMPT', '0')} {os.getpid()}\n")


def _hold(path: Path | None, witness: Path | None) -> IO[str] | None:
    """Hold a file for as long as this process lives, and tell if another one holds it."""
    if path is None:
        return None
    file = path.open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _witness(witness, "twice")
    return file


def _bad_habits(options: argparse.Namespace, progress: Progress) -> None:
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.leave:
        _leave(options.leave, options.leave_s)
    left = options.flood_bytes
    while left > 0:
        left -= os.write(1, b"x" * min(left, _FLOOD_BYTES))
    for number in range(options.flood_lines):
        progress.note(f"line {number} " + "y" * 200)
    if options.kill_parent:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


def main() -> int:
    """Train nothing, as asked."""
    options = _arguments()
    progress = Progress.from_env(reports=not options.silent)
    held = _hold(options.alone, options.witness)
    _witness(options.witness, "begin")
    _bad_habits(options, progress)
    folder = Path(progress.checkpoint_dir or ".")
    for epoch in range(_resume(folder) + 1, options.epochs + 1):
        _compute(options.epoch_s, burn=options.burn)
        if epoch % options.checkpoint_every == 0:
            _save(folder, epoch)
            if options.checkpoint_every > 1:
                progress.checkpoint_done(epoch)
        progress.epoch_done(epoch)
        print(f"epoch {epoch}", flush=True)  # noqa: T201 - the output of a training script
        if epoch == options.crash_at:
            _witness(options.witness, "end")
            return 3
        if epoch == options.oom_at:
            raise MemoryError("no memory for the next batch")
        if progress.should_stop() and not options.ignore_stop and epoch < options.epochs:
            _witness(options.witness, "end")
            progress.exit_stopped()
    progress.finished()
    _witness(options.witness, "end")
    if held is not None:
        held.close()
    return int(options.exit_code)


if __name__ == "__main__":
    sys.exit(main())
