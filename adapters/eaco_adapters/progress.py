"""Tell eaco how far a training script is, and hear when it should stop. One file, no dependencies.

Use it from the package, or copy this file beside your script::

    progress = Progress.from_env()
    for epoch in range(progress.resume_epoch, epochs):
        train_one_epoch()
        save_checkpoint(progress.checkpoint_dir)
        progress.epoch_done(epoch + 1)
        if progress.should_stop():
            progress.exit_stopped()
    progress.finished()

Without eaco's environment it does nothing: `resume_epoch` is 0 and nobody ever asks to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

EXIT_STOPPED = 85


class Progress:
    """The line between one training script and eaco.

    - `resume_epoch`: epochs that are done already; start after them.
    - `checkpoint_dir`: folder for checkpoints, the same at each attempt; None without eaco.
    - `gpus`: ids of the GPUs that the job was given.

    With several processes in a job only one may report: give `reports=False` to the others
    (`rank != 0`). They may still ask `should_stop`.
    """

    def __init__(
        self,
        *,
        fd: int | None = None,
        file: str | None = None,
        stop_file: str | None = None,
        resume_epoch: int = 0,
        checkpoint_dir: str | None = None,
        gpus: tuple[str, ...] = (),
        reports: bool = True,
    ) -> None:
        self.resume_epoch = resume_epoch
        self.checkpoint_dir = checkpoint_dir
        self.gpus = gpus
        self._fd = fd if reports else None
        self._file = file if reports else None
        self._stop_file = stop_file
        self._stop_heard = False

    @classmethod
    def from_env(
        cls,
        env: Mapping[str, str] | None = None,
        *,
        reports: bool | None = None,
        stop_signal: str | None = "SIGUSR2",
    ) -> Progress:
        """Take what eaco has put into the environment.

        `reports` None: only the process of rank 0 reports (RANK, LOCAL_RANK unset or 0).
        `stop_signal`: the signal that asks for a stop; its handler only sets a flag. It can be
        set on the main thread only; elsewhere, and for None, the stop file asks alone.
        """
        env = os.environ if env is None else env
        if reports is None:
            reports = env.get("RANK", "0") in {"", "0"} and env.get("LOCAL_RANK", "0") in {"", "0"}
        fd = _whole(env.get("EACO_PROGRESS_FD"))
        if fd is not None and not _is_open(fd):
            fd = None  # a program in between has closed it; the file is still there
        gpus = env.get("EACO_GPUS", "[]")
        progress = cls(
            fd=fd,
            file=env.get("EACO_PROGRESS_FILE"),
            stop_file=env.get("EACO_STOP_FILE"),
            resume_epoch=_whole(env.get("EACO_RESUME_EPOCH")) or 0,
            checkpoint_dir=env.get("EACO_CHECKPOINT_DIR"),
            gpus=tuple(str(gpu) for gpu in json.loads(gpus)),
            reports=reports,
        )
        if stop_signal is not None and progress.is_active:
            progress.listen(stop_signal)
        return progress

    @property
    def is_active(self) -> bool:
        """Whether eaco started this script."""
        return self._stop_file is not None

    def listen(self, stop_signal: str) -> None:
        """Let a signal ask for the stop. The handler sets a flag and calls who was there before."""
        if threading.current_thread() is not threading.main_thread():
            return
        number = getattr(signal, stop_signal)
        before = signal.getsignal(number)

        def heard(number: int, frame: FrameType | None) -> None:
            self._stop_heard = True
            if callable(before) and before is not signal.default_int_handler:
                before(number, frame)

        signal.signal(number, heard)

    def epoch_done(
        self, epoch: int, *, clean: bool = True, peak_mem_bytes: int | None = None
    ) -> None:
        """Report that `epoch` epochs are complete in all, counted from the very first attempt.

        Call it when the checkpoint of this epoch is written, if there is one: eaco may end the
        script at any time after it. `clean` False: something odd made this epoch slow or fast.
        """
        line: dict[str, object] = {"ev": "epoch", "epoch": epoch}
        if not clean:
            line["clean"] = False
        if peak_mem_bytes is not None:
            line["peak_mem_bytes"] = peak_mem_bytes
        self._write(line)

    def checkpoint_done(self, epoch: int) -> None:
        """Report a checkpoint after `epoch` epochs. Needed only if not every epoch writes one."""
        self._write({"ev": "checkpoint", "epoch": epoch})

    def note(self, text: str) -> None:
        """Report that the script is alive, with a word for people."""
        self._write({"ev": "note", "text": text[:1000]})

    def finished(self) -> None:
        """Report that all work is done; a stop that was asked for meanwhile came too late."""
        self._write({"ev": "done"})

    def should_stop(self) -> bool:
        """Tell whether eaco wants the script to stop at this epoch end."""
        if not self._stop_heard and self._stop_file is not None:
            self._stop_heard = os.path.exists(self._stop_file)  # noqa: PTH110 - asked often
        return self._stop_heard

    def exit_stopped(self) -> NoReturn:
        """End the script: the checkpoint is written, resume me later."""
        sys.stdout.flush()
        sys.stderr.flush()
        raise SystemExit(EXIT_STOPPED)

    def _write(self, line: dict[str, object]) -> None:
        """Append one whole line; a failure must never end a training."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            line["boot_s"] = round(time.clock_gettime(time.CLOCK_BOOTTIME), 6)
        raw = json.dumps(line).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self._fd is not None:
                os.write(self._fd, raw)
            elif self._file is not None:
                with Path(self._file).open("ab", buffering=0) as file:
                    file.write(raw)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
