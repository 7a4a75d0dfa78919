"""One thread for calls that may stand still: into a driver, into files of a dying device.

A call that hangs can not be ended; it can only be left alone. The thread is a daemon, so
that a driver that never answers does not keep the process alive.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Silent(EnvironmentFault):
    """There was no answer in time, or the call before has not ended."""


class Worker:
    """Runs one call at a time. A call that comes while one still runs is refused at once."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: Future[object] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a call has not ended yet."""
        return self._running is not None and not self._running.done()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Start a call; raise `Silent` if the one before has not ended."""
        if self.busy:
            raise Silent("the call before still has no answer")
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                future.set_exception(error)

        self._running = future  # type: ignore[assignment]  # only asked whether it is done
        self._jobs.put(job)
        return future

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Run a call and wait for it. Raise `Silent` after `timeout_s`."""
        future = self.submit(function)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            raise Silent(f"no answer in {timeout_s:g} s") from None

    def stop(self) -> None:
        """Let the thread end after what it does now. Does not wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
