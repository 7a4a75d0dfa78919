"""A recorder: takes samples and writes them to a Parquet file, on a thread of its own."""

from __future__ import annotations

import contextlib
import errno
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from attrs import frozen

from eaco_core.errors import EnvironmentFault, InputError, InternalError
from eaco_telemetry.recording import parts as _parts
from eaco_telemetry.recording import reading
from eaco_telemetry.recording.columns import frame_of, sample_rows

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eaco_core.errors import EacoError
    from eaco_telemetry.meta import NodeEvent
    from eaco_telemetry.samples import NodeSample

MAX_WAITING: Final = 1_000
"""Samples that may wait for the disk. When it stands still for longer, samples are dropped."""

END_LIMIT_S: Final = 60.0
"""How long `close` waits for a disk that does not answer."""

MERGE_EVERY: Final = 60
"""Small parts are merged into a larger one when there are this many."""


@frozen
class _Taken:
    sample: NodeSample
    events: tuple[NodeEvent, ...]


@frozen
class _Flush:
    done: threading.Event


class Recorder:
    """Writes samples to `path`, a Parquet file. A sink of the agent.

    Rows go to the disk at the latest `flush_s` after they were taken, or when `flush_rows`
    are there: whatever kills the process, no more than that is lost. `close` joins the parts
    into the file; its memory does not grow with the recording. A file that is there already
    is continued, and so are the parts of a recorder that was killed. A link stays a link: what
    it points to is written.

    Raises `InputError` if `path` is something else than a recording, or is being recorded
    by another process, or may not be written, and `EnvironmentFault` if the disk fails.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush_s: float = 60.0,
        flush_rows: int = 50_000,
    ) -> None:
        if not 0 < flush_s < threading.TIMEOUT_MAX:
            raise InputError(f"flush_s must be above 0 seconds, not {flush_s!r}")
        if flush_rows < 1:
            raise InputError(f"flush_rows must be at least 1, not {flush_rows!r}")
        self._path = _parts.recording_at(path)
        self._flush_s, self._flush_rows = flush_s, flush_rows
        self._rows: list[list[Any]] = []
        self._first_s = 0.0
        self._waiting = 0  # samples in `_rows`
        self._recorded = 0
        self._refused = 0  # by the caller's thread
        self._lost = 0  # by ours
        self._fault: EacoError | None = None
        self._told = False
        self._closed = False
        self._queue: queue.Queue[_Taken | _Flush | None] = queue.Queue(MAX_WAITING)
        self._lock = _locked(self._path)
        try:
            self._live = self._pick_up()
        except BaseException:
            self._lock.release()
            raise
        self._small = 0
        self._thread = threading.Thread(target=self._run, name="eaco-recorder", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The name of this sink."""
        return "recording"

    @property
    def recorded(self) -> int:
        """Samples on the disk so far."""
        return self._recorded

    @property
    def dropped(self) -> int:
        """Samples that were not recorded, because the disk was too slow or failed."""
        return self._refused + self._lost

    def take(self, sample: NodeSample, events: Sequence[NodeEvent] = ()) -> None:
        """Record a sample and the events that came with it. Does not wait for the disk.

        Raises `EnvironmentFault` once if writing failed; after that samples are only counted
        as dropped, and what was written before stays readable.
        """
        if self._fault is None and not self._closed:
            try:
                self._queue.put_nowait(_Taken(sample, tuple(events)))
            except queue.Full:
                self._refused += 1
            return
        self._refused += 1
        self._tell()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until what was taken so far is on the disk; False if it is not in time."""
        mark = _Flush(threading.Event())
        if self._fault is not None or self._closed:
            return False
        with contextlib.suppress(queue.Full):
            self._queue.put(mark, timeout=timeout_s)
            return mark.done.wait(timeout_s) and self._fault is None
        return False

    def close(self) -> None:
        """Write the rest and join the parts into the file. May be called twice.

        Raises `EnvironmentFault` if that failed and was not told before. Then the parts stay,
        `read_frame` reads them, and the next recorder to the same file continues them.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=END_LIMIT_S)
        self._thread.join(END_LIMIT_S)
        if self._thread.is_alive():
            # The lock stays with the thread, which may yet write.
            raise EnvironmentFault(
                f"{self._path}: the disk does not answer; the end is not recorded"
            )
        self._guarded(self._join)
        self._lock.release()
        self._tell()

    def _tell(self) -> None:
        if self._fault is not None and not self._told:
            self._told = True
            raise self._fault

    def _pick_up(self) -> list[_parts.Part]:
        through = 0
        if self._path.exists():
            if not self._path.is_file():
                raise InputError(
                    "is not a file, so nothing is recorded to it", where=str(self._path)
                )
            reading.source(self._path)
            through = _parts.joined_through(self._path)
        live = _parts.live_parts(self._path, through)
        for part in live:
            reading.part_source(part)
        _parts.remove_leftovers(self._path, live)
        self._last = live[-1].last if live else through
        return live

    # ---- on the thread ----

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._wait_s())
            except queue.Empty:
                self._guarded(self._write)
                continue
            if item is None:
                self._guarded(self._write)
                return
            self._handle(item)

    def _wait_s(self) -> float | None:
        if not self._rows:
            return None
        return max(0.0, self._first_s + self._flush_s - time.monotonic())

    def _handle(self, item: _Taken | _Flush) -> None:
        if isinstance(item, _Flush):
            self._guarded(self._write)
            item.done.set()
        elif self._fault is not None:
            self._lost += 1
        else:
            self._guarded(lambda: self._add(item))

    def _add(self, item: _Taken) -> None:
        if not self._rows:
            self._first_s = time.monotonic()
        self._rows += sample_rows(item.sample, item.events)
        self._waiting += 1
        if len(self._rows) >= self._flush_rows or self._wait_s() == 0:
            self._write()

    def _write(self) -> None:
        if not self._rows:
            return
        rows, count = self._rows, self._waiting
        self._rows, self._waiting = [], 0
        try:
            part = _parts.write_part(self._path, self._last + 1, frame_of(rows))
        except BaseException:
            self._lost += count
            raise
        self._last = part.last
        self._live.append(part)
        self._recorded += count
        self._small += 1
        if self._small >= MERGE_EVERY:
            self._merge()

    def _merge(self) -> None:
        small = self._live[-self._small :]
        rows = pl.concat([reading.source(part.path, keep_unknown=True).rows for part in small])
        self._live[-self._small :] = [_parts.merge_parts(self._path, small, rows)]
        self._small = 0

    def _join(self) -> None:
        if not self._live:
            return
        paths = [part.path for part in self._live]
        if self._path.exists():
            paths.insert(0, self._path)
        rows = [reading.source(path, keep_unknown=True).rows for path in paths]
        _parts.join_parts(self._path, self._live, pl.concat(rows, how="diagonal"))

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._fault is not None:
            return
        try:
            work()
        except (OSError, *reading.POLARS_ERRORS) as error:
            self._fault = EnvironmentFault(
                f"{self._path}: recording stopped: {reading.one_line(error)};"
                " what was recorded before stays readable"
            )
        except Exception as error:  # noqa: BLE001 - told by `take` or `close`
            self._fault = InternalError(f"{self._path}: recording stopped: {error!r}")


_NOT_ALLOWED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def _locked(path: Path) -> _parts.Lock:
    try:
        return _parts.Lock(path)
    except FileNotFoundError:
        raise InputError("there is no such folder", where=str(path.parent)) from None
    except NotADirectoryError:
        raise InputError(
            "is a file, but the parts of the recording go to a folder of that name; move it away,"
            " or record to another name",
            where=str(_parts.parts_folder(path)),
        ) from None
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            raise InputError(
                f"the folder may not be written ({error.strerror}); choose another",
                where=str(path.parent),
            ) from None
        raise EnvironmentFault(f"{path}: cannot record here: {error.strerror}") from error
