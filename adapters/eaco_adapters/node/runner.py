"""`NodeRunner`: what a scheduler talks to on a node. In process, it is the local executor.

Everything that must outlive it is in folders (`folder.py`) and in the shims. A new runner on the
same root tells again what is not forgotten, and goes on with what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from eaco_adapters.durable import replace_file
from eaco_adapters.node import cgroup, proc
from eaco_adapters.node.attempt import Attempt
from eaco_adapters.node.cgroup import Cgroups, find_cgroups
from eaco_adapters.node.folder import Order, ShimSettings, lock_is_free, make_folder, new_mark
from eaco_adapters.node.names import quoted
from eaco_adapters.node.options import RunnerOptions
from eaco_adapters.node.reports import RunnerReport
from eaco_adapters.node.small_files import crash_point, read_number
from eaco_core.errors import EnvironmentFault, InternalError
from eaco_core.ports import CommandRefused, StaleTerm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from types import TracebackType

    from eaco_adapters.launch import LaunchSpec

__all__ = ["NodeRunner", "RunnerOptions", "RunnerReport"]

T = TypeVar("T")
Key = tuple[str, int]

_IDLE_S = 5.0
_LOCK_WAIT_S = 5.0
_SPAWN_TRIES = 3


class NodeRunner:
    """Runs attempts on one node. Use as `async with`; jobs go on when it closes.

    Raises EnvironmentFault on entry if another runner works on this root.
    """

    def __init__(
        self,
        root: Path,
        *,
        node_id: str,
        gpu_ids: Sequence[str],
        options: RunnerOptions | None = None,
    ) -> None:
        self.node_id = node_id
        self.gpu_ids = tuple(gpu_ids)
        self.root = Path(root).absolute()
        self._options = options or RunnerOptions()
        self._attempts: dict[Key, Attempt] = {}
        self._problems: dict[Key, str] = {}
        self._unreaped: set[proc.ProcessId] = set()
        self._cgroups: Cgroups | str = "not looked for"
        self._boot = proc.boot_id()
        self._term = 0
        self._lock_fd = -1
        self._notify_fd = -1
        self._worker: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._poke: asyncio.Event = asyncio.Event()
        self._news: asyncio.Future[None] | None = None
        self._fault: Exception | None = None

    # ---- life ------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._worker = ThreadPoolExecutor(1, f"eaco-runner-{self.node_id}")
        try:
            await self._do(self._open)
        except BaseException:
            self._worker.shutdown(wait=True)
            self._close_fds()
            raise
        loop = asyncio.get_running_loop()
        loop.add_reader(self._notify_fd, self._notified)
        self._task = loop.create_task(self._watch(), name=f"runner {self.node_id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._notify_fd)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._worker is not None:
            await self._do(self._last_reap)
            # On a thread, so that a slow disk does not hold up the whole loop.
            await asyncio.to_thread(self._worker.shutdown)
        self._close_fds()
        self._tell_news()

    def _close_fds(self) -> None:
        for fd in (self._notify_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._notify_fd = self._lock_fd = -1

    def _open(self) -> None:
        try:
            for name in ("attempts", "jobs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self.root / "runner.lock", os.O_RDWR | os.O_CREAT, 0o640)
            self._take_root()
            notify = self.root / "notify"
            if not notify.exists():
                os.mkfifo(notify, 0o600)
            self._notify_fd = os.open(notify, os.O_RDWR | os.O_NONBLOCK)
            self._term = read_number(self.root / "term") or 0
            self._cgroups = find_cgroups() if self._options.use_cgroups else "switched off"
            self._load()
        except OSError as error:
            raise EnvironmentFault(
                f"node {self.node_id}: the runner cannot use {self.root}: {error.strerror};"
                " give it a folder that it may write to"
            ) from error

    def _last_reap(self) -> None:
        """Wait a moment for shims that are about to end: nobody else collects them."""
        until_s = time.monotonic() + 1.0
        while self._unreaped and time.monotonic() < until_s:
            self._unreaped = {shim for shim in self._unreaped if not proc.reap(shim)}
            time.sleep(0.01)

    def _take_root(self) -> None:
        until_s = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A child that was being started when an old runner died holds it for a moment.
                if time.monotonic() > until_s:
                    raise EnvironmentFault(
                        f"node {self.node_id}: another runner works on {self.root}; end it first"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _load(self) -> None:
        for folder in sorted((self.root / "attempts").iterdir()):
            if folder.name.startswith((".new-", ".gone-")):
                shutil.rmtree(folder, ignore_errors=True)
                continue
            attempt = Attempt.load(folder, self._boot, self._options.progress_bytes_max)
            if attempt is not None:
                key = (attempt.order.job_id, attempt.order.attempt)
                self._attempts[key] = attempt
            elif "@" in folder.name and lock_is_free(folder):
                # Its files did not reach the disk before a power failure: nothing of it runs.
                shutil.rmtree(folder, ignore_errors=True)

    # ---- commands --------------------------------------------------------------

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: tuple[str, ...],
        resume_epoch: int,
        launch: LaunchSpec,
        gang: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start an attempt; returns when it runs, or when it is known that it cannot.

        Idempotent. `gang` names the nodes of the whole attempt, `env` adds variables of eaco's own.
        JobStarted or StartFailed follows as a report. Raises CommandRefused when nothing was
        started and nothing will be; EnvironmentFault when the outcome is open.
        """
        self._check_up()

        def begin() -> Attempt:
            self._check_term(term)
            return self._begin(
                (job_id, attempt),
                gpus=gpus,
                resume_epoch=resume_epoch,
                launch=launch,
                gang=gang,
                env=env or {},
            )

        one = await self._do(begin)
        self._poke.set()
        tries = 1

        def again() -> bool:
            """Look after a start that has no outcome yet. False: it cannot be done."""
            nonlocal tries
            if not one.is_answered and not one.is_begun_or_begins():
                if tries >= _SPAWN_TRIES:
                    return False
                tries += 1
                one.spawn(self.root / "notify")
            return True

        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                while not one.is_answered:
                    await self._next_news()
                    if not await self._do(again):
                        raise await self._do(lambda: self._give_up(one))
        except TimeoutError:
            raise EnvironmentFault(
                f"node {self.node_id}: job {job_id!r}, attempt {attempt} did not begin within"
                f" {self._options.start_timeout_s:g} s; it may still"
            ) from None

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:
        """Ask for a checkpoint and a stop at the next epoch end; returns when that is kept.

        Raises CommandRefused if nothing of the attempt is here.
        """
        self._check_up()

        def ask() -> None:
            self._check_term(term)
            one = self._attempts.get((job_id, attempt))
            if one is None or not (one.is_over or one.is_begun_or_begins()):
                raise CommandRefused(
                    f"node {self.node_id} runs no attempt {attempt} of job {job_id!r}"
                )
            if not one.is_over:
                one.ask_to_stop()

        await self._do(ask)

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        """End an attempt: TERM, after `grace_s` KILL, for every process of it.

        Returns when it is proven that nothing is left, also if nothing was there; a later start of
        the attempt is then refused. Raises EnvironmentFault when that takes too long.
        """
        self._check_up()

        def end() -> Attempt | None:
            self._check_term(term)
            one = self._attempts.get((job_id, attempt))
            if one is None:
                self._remember_end(job_id, attempt)
            else:
                one.kill(grace_s)
            return one

        one = await self._do(end)
        self._poke.set()
        if one is None:
            return
        try:
            async with asyncio.timeout(grace_s + self._options.kill_limit_s):
                while not one.is_over:
                    await self._next_news()
        except TimeoutError:
            problem = self._problems.get((job_id, attempt))
            raise EnvironmentFault(
                f"node {self.node_id}: job {job_id!r}, attempt {attempt} is not gone"
                f" {self._options.kill_limit_s:g} s after it was killed: "
                + (problem or "look for processes that cannot end (state D in ps)")
            ) from None

    async def list_running(self) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
        """Give (job, attempt, GPUs) of every attempt that may still hold GPUs."""
        self._check_up()

        def look() -> tuple[tuple[str, int, tuple[str, ...]], ...]:
            return tuple(
                (one.order.job_id, one.order.attempt, one.order.gpus)
                for one in self._attempts.values()
                if not one.is_over and one.is_begun_or_begins()
            )

        return await self._do(look)

    async def forget(self, job_id: str, attempt: int) -> None:
        """Drop what is kept of an attempt that is over. Its output and checkpoints stay.

        Nothing happens while its GPUs are not proven free.
        """
        self._check_up()

        def drop() -> None:
            one = self._attempts.get((job_id, attempt))
            if one is None or not one.is_over:
                return
            self._remember_end(job_id, attempt)
            crash_point("end-remembered")
            self._drop(one)

        await self._do(drop)

    async def reports(self) -> AsyncGenerator[RunnerReport, None]:
        """Give every report of attempts that are not forgotten, from seq 1, and then as they come.

        For one reader at a time; ends when the runner closes.
        """
        next_seq: dict[Key, int] = {}
        while self._lock_fd >= 0:
            self._check_up()
            for key in next_seq.keys() - self._attempts.keys():
                del next_seq[key]
            fresh = [
                (kept, key, one.order.gang)
                for key, one in list(self._attempts.items())
                for kept in one.reports.kept[next_seq.get(key, 0) :]
            ]
            fresh.sort(key=lambda item: -item[0].age_s(self._boot))
            for kept, (job_id, attempt), gang in fresh:
                next_seq[job_id, attempt] = kept.seq
                age_s = kept.age_s(self._boot)
                yield RunnerReport(job_id, attempt, kept.seq, age_s, kept.event, gang)
            if not fresh:
                await self._next_news()

    # ---- what one may ask ------------------------------------------------------

    @property
    def capabilities(self) -> dict[str, str]:
        """What this node can do: `yes`, or why not."""
        cgroups = self._cgroups
        has_memory = isinstance(cgroups, Cgroups) and cgroups.has_memory
        no_memory = cgroups if isinstance(cgroups, str) else "its memory controller is not ours"
        return {
            "shared_gpu": "yes",
            "named_gpu": "yes",
            "signal": "yes",
            "reattach": "yes",
            "cgroup": cgroups if isinstance(cgroups, str) else "yes",
            "memory_limit": "yes" if has_memory else no_memory,
            "mps": "yes" if self._options.mps_pipe_dir else "no mps_pipe_dir is configured",
        }

    @property
    def term(self) -> int:
        """The highest term that was seen here."""
        return self._term

    def log_paths(self, job_id: str, attempt: int) -> tuple[Path, ...]:
        """Give the files with the attempt's output, oldest first; also after it was forgotten."""
        one = self._attempts.get((job_id, attempt))
        kept = self._job_folder(job_id) / "logs"
        places = [kept / f"{attempt}.1.log", kept / f"{attempt}.log"]
        if one is not None:
            places = [one.folder / "output.log.1", one.folder / "output.log"]
        return tuple(place for place in places if place.exists())

    def checkpoint_dir(self, job_id: str) -> Path:
        """Give the folder for a job's checkpoints: one for all its attempts."""
        if self._options.checkpoint_root is not None:
            return Path(self._options.checkpoint_root).absolute() / quoted(job_id)
        return self._job_folder(job_id) / "checkpoints"

    # ---- on the worker thread --------------------------------------------------

    def _check_term(self, term: int) -> None:
        if term < self._term:
            raise StaleTerm(
                f"node {self.node_id} serves term {self._term}; this command is of term {term}:"
                " another scheduler has taken over"
            )
        if term > self._term:
            replace_file(self.root / "term", b"%d" % term)
            self._term = term
            crash_point("term-written")

    def _begin(
        self,
        key: Key,
        *,
        gpus: tuple[str, ...],
        resume_epoch: int,
        launch: LaunchSpec,
        gang: tuple[str, ...],
        env: Mapping[str, str],
    ) -> Attempt:
        job_id, attempt = key
        one = self._attempts.get(key)
        if one is None:
            self._check_start(job_id, attempt, gpus, launch)
            order = Order(
                job_id,
                attempt,
                gpus,
                resume_epoch,
                launch,
                gang,
                mark := new_mark(),
                str(self.checkpoint_dir(job_id)),
                self._make_cgroup(mark, launch),
            )
            try:
                self.checkpoint_dir(job_id).mkdir(parents=True, exist_ok=True)
                folder = make_folder(self.root / "attempts", order, self._settings(order, env))
            except OSError as error:
                if order.cgroup:
                    cgroup.remove(Path(order.cgroup))
                raise CommandRefused(
                    f"node {self.node_id}: nothing of job {job_id!r} was started:"
                    f" its folder in {self.root} cannot be made: {error.strerror}"
                ) from error
            crash_point("prepared")
            one = Attempt(folder, order, self._boot, self._options.progress_bytes_max)
            self._attempts[key] = one
        if not one.is_begun_or_begins():
            one.spawn(self.root / "notify")
        return one

    def _check_start(
        self, job_id: str, attempt: int, gpus: tuple[str, ...], launch: LaunchSpec
    ) -> None:
        where = f"node {self.node_id}, job {job_id!r}, attempt {attempt}"
        unknown = [gpu for gpu in gpus if gpu not in self.gpu_ids]
        if unknown or not gpus or len(set(gpus)) != len(gpus):
            what = f"no GPU {unknown[0]!r}" if unknown else f"no such set of GPUs: {gpus!r}"
            raise CommandRefused(f"{where}: the node has {what}; it has {', '.join(self.gpu_ids)}")
        if not job_id or "\0" in job_id:
            raise CommandRefused(f"{where}: a job id must have a character and no NUL byte")
        try:
            os.fsencode(job_id)
        except UnicodeEncodeError:
            raise CommandRefused(f"{where}: the job id has half a character") from None
        if launch.mps and not self._options.mps_pipe_dir:
            raise CommandRefused(f"{where}: it wants MPS, and the node has no mps_pipe_dir")
        self._check_other_attempts(job_id, attempt, where)

    def _check_other_attempts(self, job_id: str, attempt: int, where: str) -> None:
        last = read_number(self._job_folder(job_id) / "last_attempt") or 0
        if attempt <= last:
            raise CommandRefused(f"{where}: attempt {last} of this job is over; this one is older")
        for (other_id, number), other in list(self._attempts.items()):
            if other_id != job_id:
                continue
            if not other.is_over and other.is_begun_or_begins():
                raise CommandRefused(f"{where}: attempt {number} of the job still runs here")
            if number > attempt:
                raise CommandRefused(f"{where}: attempt {number} of the job has been here")
            if not other.is_over:
                self._drop(other)  # prepared, but nothing of it ever ran

    def _settings(self, order: Order, env: Mapping[str, str]) -> ShimSettings:
        base = {name: value for name, value in os.environ.items() if not name.startswith("EACO_")}
        if order.launch.mps and self._options.mps_pipe_dir:
            base["CUDA_MPS_PIPE_DIRECTORY"] = self._options.mps_pipe_dir
        cpus = order.launch.pin_cpus or tuple(
            sorted({cpu for gpu in order.gpus for cpu in self._options.gpu_cpus.get(gpu, ())})
        )
        note = ""
        if order.launch.memory_bytes_max is not None and self.capabilities["memory_limit"] != "yes":
            note = f"[eaco: no limit of memory on this node: {self.capabilities['memory_limit']}]"
        leftover_s = order.launch.kill_grace_s if self._options.ends_leftovers else -1.0
        return ShimSettings(
            {**base, **env}, cpus, note, self._options.progress_bytes_max, leftover_s
        )

    def _make_cgroup(self, mark: str, launch: LaunchSpec) -> str:
        if isinstance(self._cgroups, str):
            return ""
        try:
            return str(self._cgroups.make(f"eaco-{mark}", launch.memory_bytes_max))
        except OSError:
            return ""

    def _give_up(self, one: Attempt) -> CommandRefused:
        with contextlib.suppress(OSError):
            errors = (one.folder / "shim.err").read_text("utf-8", "replace").strip()
            why = errors.splitlines()[-1] if errors else "it left no word"
            self._drop(one)
            return CommandRefused(
                f"node {self.node_id}: job {one.order.job_id!r} was not started:"
                f" the process that watches over it ended at once: {why[-300:]}"
            )
        return CommandRefused(f"node {self.node_id}: job {one.order.job_id!r} was not started")

    def _drop(self, one: Attempt) -> None:
        key = (one.order.job_id, one.order.attempt)
        del self._attempts[key]
        self._problems.pop(key, None)
        one.remove(self._job_folder(one.order.job_id) / "logs")

    def _remember_end(self, job_id: str, attempt: int) -> None:
        """Keep for good that this attempt is over: no start may bring it back."""
        folder = self._job_folder(job_id)
        if attempt > (read_number(folder / "last_attempt") or 0):
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / "last_attempt", b"%d" % attempt)

    def _job_folder(self, job_id: str) -> Path:
        return self.root / "jobs" / quoted(job_id)

    def _poll_all(self) -> tuple[bool, bool]:
        """Look at every attempt; tells whether there is news, and whether any is not over."""
        news = busy = False
        for one in list(self._attempts.values()):
            before = len(one.reports.kept)
            if not one.is_over:
                self._poll_one(one)
                busy = busy or not one.is_over
                if one.is_over and one.shim is not None:
                    self._unreaped.add(one.shim)
            news = news or len(one.reports.kept) > before
        self._unreaped = {shim for shim in self._unreaped if not proc.reap(shim)}
        return news, busy or bool(self._unreaped)

    def _poll_one(self, one: Attempt) -> None:
        """Look at one attempt. Whatever is wrong with its folder, the others go on."""
        key = (one.order.job_id, one.order.attempt)
        try:
            one.poll()
        except Exception as error:  # noqa: BLE001 - a job can write anything into its folder
            self._problems[key] = f"{type(error).__name__}: {error}"
        else:
            self._problems.pop(key, None)

    # ---- on the loop -----------------------------------------------------------

    async def _watch(self) -> None:
        try:
            while True:
                self._poke.clear()
                _, busy = await self._do(self._poll_all)
                self._tell_news()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.poll_s if busy else _IDLE_S):
                        await self._poke.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits for news must hear of it
            self._fault = error
            self._tell_news()

    def _notified(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._notify_fd, 4096)
        self._poke.set()

    def _tell_news(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    async def _next_news(self) -> None:
        """Wait for the next look at the attempts."""
        self._check_up()
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)
        self._check_up(may_be_closed=True)

    def _check_up(self, *, may_be_closed: bool = False) -> None:
        if self._fault is not None:
            raise InternalError(f"the runner of node {self.node_id} failed: {self._fault}") from (
                self._fault
            )
        if self._lock_fd < 0 and not may_be_closed:
            raise InternalError(f"the runner of node {self.node_id} is not open: use `async with`")

    async def _do(self, work: Callable[[], T]) -> T:
        if self._worker is None:
            raise InternalError(f"the runner of node {self.node_id} is not open: use `async with`")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except OSError as error:
            raise EnvironmentFault(
                f"node {self.node_id}: {error.filename or self.root}: {error.strerror or error}"
            ) from error
