"""The live screen of `eaco top`: drawn once a second, left with q, the terminal as before."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from eaco_adapters.cli import _top_cells as cells
from eaco_adapters.cli._process import Stopped
from eaco_adapters.cli._top_pages import Pager

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from eaco_adapters.cli._top_snapshot import Snapshot
    from eaco_adapters.cli._top_source import Source

REDRAW_S: Final = 1.0
_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_KEYS: Final = 64

# What keys send, read as a whole: an arrow or page key is an escape and some letters.
_FORWARD: Final = frozenset({" ", "n", "f", "\x1b[6~", "\x1b[B", "\x1b[C"})
_BACK: Final = frozenset({"b", "p", "\x1b[5~", "\x1b[A", "\x1b[D"})
_LEAVE: Final = frozenset({"q", "Q", "\x04"})


@define
class _Screen:
    """What is on the screen, and what the user wants."""

    live: Live
    pager: Pager
    stopped_by: int | None = None
    snapshot: Snapshot | None = None
    over: asyncio.Event = field(factory=asyncio.Event)

    def draw(self) -> None:
        """Draw what is known, as large as the terminal is now."""
        if self.snapshot is None or self.over.is_set():
            return
        size = self.live.console.size
        lines = self.pager.screen(self.snapshot, size.width, size.height)
        encoding = self.live.console.encoding
        shown = [_writable(line, encoding) for line in lines]
        self.live.update(Group(*shown), refresh=True)

    def on_key(self, key: str) -> None:
        """Do what a key asks for."""
        if key in _LEAVE:
            self.over.set()
        elif key in _FORWARD:
            self.pager.turn(1)
        elif key in _BACK:
            self.pager.turn(-1)
        elif key == "d":
            self.pager.next_detail()
        self.draw()

    def on_stop(self, number: int) -> None:
        """Leave. Ctrl-C is a way to leave, the other signals are a stop from outside."""
        self.stopped_by = None if number == signal.SIGINT else number
        self.over.set()


async def run_live(source: Source, period_s: float) -> None:
    """Show a source until the user leaves. Raises `Stopped` if a signal stops the process."""
    console = Console(highlight=False, markup=False, emoji=False)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False)
    screen = _Screen(live, Pager())
    with ExitStack() as stack:
        keys = stack.enter_context(_keys(screen.on_key))
        stack.enter_context(_signals(screen, keys))
        stack.enter_context(live)
        await _until_over(screen, source, period_s)
    if screen.stopped_by is not None:
        raise Stopped(screen.stopped_by)


async def _until_over(screen: _Screen, source: Source, period_s: float) -> None:
    next_s = time.monotonic()
    while not screen.over.is_set():
        screen.snapshot = await source.now()
        screen.draw()
        next_s = max(next_s + period_s, time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, next_s - time.monotonic())):
                await screen.over.wait()


def _writable(line: Text, encoding: str) -> Text:
    plain = cells.for_encoding(line.plain, encoding)
    return line if plain == line.plain else Text(plain, no_wrap=True)


class _Keyboard:
    """The terminal that keys come from; while it is on, each key comes at once and unseen."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._before = termios.tcgetattr(handle)

    def on(self) -> None:
        tty.setcbreak(self._handle, termios.TCSANOW)

    def off(self) -> None:
        with suppress(termios.error, OSError):  # the terminal may be gone
            termios.tcsetattr(self._handle, termios.TCSANOW, self._before)


@contextmanager
def _keys(on_key: Callable[[str], None]) -> Generator[_Keyboard | None]:
    """Call `on_key` for what is typed, if keys come from a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    loop, handle = asyncio.get_running_loop(), sys.stdin.fileno()
    keyboard = _Keyboard(handle)

    def read() -> None:
        try:
            typed = os.read(handle, _MOST_KEYS).decode("utf-8", "replace")
        except OSError:
            typed = ""
        if not typed:  # the terminal is gone
            loop.remove_reader(handle)
            return
        for key in [typed] if typed.startswith("\x1b") else typed:
            on_key(key)

    keyboard.on()
    loop.add_reader(handle, read)
    try:
        yield keyboard
    finally:
        loop.remove_reader(handle)
        keyboard.off()


@contextmanager
def _signals(screen: _Screen, keyboard: _Keyboard | None) -> Generator[None]:
    """Let signals end the screen in good order, and put their handlers back."""
    loop = asyncio.get_running_loop()

    def suspend() -> None:
        """Ctrl-Z: give the terminal back, sleep, and take it again."""
        screen.live.stop()
        if keyboard is not None:
            keyboard.off()
        os.kill(os.getpid(), signal.SIGSTOP)
        if keyboard is not None:
            keyboard.on()
        screen.live.start()
        screen.draw()

    actions: dict[int, Callable[[], None]] = {
        number: partial(screen.on_stop, number)
        for number in _STOPS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    actions[signal.SIGTSTP] = suspend
    actions[signal.SIGWINCH] = screen.draw
    before = {number: signal.getsignal(number) for number in actions}
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
