"""What a process owes its surroundings: open standard streams, and a clean stop.

Only `main` uses this; whoever calls the commands from Python keeps their own
signal handlers and streams. It imports nothing that takes time, so that a stop is
clean from the first moment on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_STOP_S = 1.0


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end; `status` is the exit status that says so."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


def open_missing_streams() -> None:
    """Point standard streams that were closed at nothing, so that work goes on.

    It also keeps the next file that is opened from taking the place of stdout.
    """
    for handle in range(3):
        try:
            os.fstat(handle)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nothing())


def exit_at_once_when_stopped() -> None:
    """End without a word of Python's on a stop; for the time before any file is written."""
    _handle(_exit_now)


def raise_when_stopped() -> None:
    """Raise `Stopped` in the main thread on a stop, so that files are put in order."""
    _handle(_Raise())


def ignore_stops() -> None:
    """Let the last steps of the interpreter pass undisturbed; the exit status is known."""
    _handle(signal.SIG_IGN)


class _Raise:
    """Raises once for signals in quick succession: clean-up is not to be stopped itself.

    Later ones raise again, because Python drops an exception in some places.
    """

    def __init__(self) -> None:
        self._raised_s = -_ONE_STOP_S

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if now_s - self._raised_s < _ONE_STOP_S:
            return
        self._raised_s = now_s
        raise Stopped(number)


def _exit_now(number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"eaco: stopped before it began.\n")
    os._exit(128 + number)  # an exception could be swallowed by whatever is being imported


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
            signal.signal(number, handler)


def _nothing() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lives as long as the process
