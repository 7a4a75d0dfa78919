"""The service: one scheduler, its jobs, and everything that can be asked of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from eaco_adapters.server import api
from eaco_adapters.server.catching_up import note_event
from eaco_adapters.server.clock import Anchor, write_anchor
from eaco_adapters.server.deadline import format_wall, parse_deadline
from eaco_adapters.server.http import NotFound
from eaco_adapters.server.job_book import JobEntry
from eaco_adapters.server.output import read_output
from eaco_adapters.server.streams import Streams
from eaco_adapters.server.submission import check_program, job_of, launch_of
from eaco_adapters.server.views import (
    GROUPS,
    durable_state,
    job_view,
    metrics_text,
    node_list,
    stem,
)
from eaco_core import events as ev
from eaco_core.decisions import Waits
from eaco_core.effects import StartJob
from eaco_core.errors import EacoError, EnvironmentFault, EventRefused, InputError
from eaco_core.explain import explain_job
from eaco_core.jobs import JobState
from eaco_core.states import HOLDING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from eaco_adapters.launch import LaunchSpec
    from eaco_adapters.server.clock import SystemClock
    from eaco_adapters.server.config import ServerConfig
    from eaco_adapters.server.job_book import JobBook
    from eaco_adapters.server.output import OutputPart
    from eaco_adapters.server.submission import Cluster
    from eaco_core.cluster import NodeReading
    from eaco_core.driver import Driver, Fault
    from eaco_core.history import Line, Step
    from eaco_core.snapshot import JobSnapshot

_LOG: Final = logging.getLogger("eaco.server")
_READERS: Final = 2
_WRITERS: Final = 4
_VIEWS_AT_ONCE: Final = 500
_TRIES: Final = 3

T = TypeVar("T")


class SchedulerService:
    """Answers for one driver. See `eaco_adapters.server.http.Service`.

    `read_journal` gives the lines of the journal for stories; `log_of` gives the files with what an
    attempt printed, oldest first. Every method runs in the driver's loop; what blocks runs in
    threads of its own, so that the journal, and with it every decision, never waits for them.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        driver: Driver,
        book: JobBook,
        clock: SystemClock,
        cluster: Callable[[], Cluster],
        read_journal: Callable[[str], Iterable[Line]],
        log_of: Callable[[str, int], Sequence[Path]],
        version: str,
    ) -> None:
        self._config = config
        self._driver = driver
        self._book = book
        self._clock = clock
        self._cluster = cluster
        self._read_journal = read_journal
        self._log_of = log_of
        self._version = version
        self._arriving: dict[str, asyncio.Future[None]] = {}
        self._streams = Streams()
        self._readings: dict[str, NodeReading] = {}
        self._begun = {
            job_id for job_id, state in driver.machine.states().items() if state in HOLDING
        }
        self._readers = ThreadPoolExecutor(_READERS, "eaco-reader")
        self._writers = ThreadPoolExecutor(_WRITERS, "eaco-writer")
        self._unwritten: set[str] = set()
        self._write_now = asyncio.Event()
        self._last_fault: str | None = None

    # ---- what the driver tells ---------------------------------------------------------

    def on_fault(self, fault: Fault) -> None:
        """Take note of something outside that went wrong."""
        about = "" if fault.job_id is None else f" of job {fault.job_id}"
        self._last_fault = f"{fault.what}{about}: {fault.error}"
        _LOG.warning("%s", self._last_fault)

    def on_step(self, step: Step) -> None:
        """Take note of a durable step: what it says of jobs, and for whoever follows."""
        event = step.event
        for record in step.records:
            if isinstance(record, Waits):
                entry = self._book.get(record.job_id)
                if entry is not None:
                    entry.why = record.reason
        self._begun.update(one.job_id for one in step.effects if isinstance(one, StartJob))
        if isinstance(event, ev.NodeSampled):
            self._readings.update({reading.gpu_id: reading for reading in event.readings})
        elif isinstance(event, ev.JobEvent | ev.JobCancelled):
            self._note(event, event.job_id)
        elif isinstance(event, ev.ClockAnchored):
            anchor = Anchor(event.t_s, event.wall_s)
            write_anchor(self._config.state_dir / "clock.json", anchor)
        else:  # a lost node or a timer may end jobs that it does not name
            for job_id in tuple(self._begun):
                self._look_at_end(job_id)
        self._streams.give(step)

    def _note(self, event: ev.JobEvent | ev.JobCancelled, job_id: str) -> None:
        entry = self._book.get(job_id)
        if entry is None:
            return
        if isinstance(event, ev.JobStarted) and entry.started_wall_s is None:
            entry.started_wall_s = time.time()
            self._write_later(job_id)
        note_event(entry, event)
        self._look_at_end(job_id)

    def _look_at_end(self, job_id: str) -> None:
        entry = self._book.get(job_id)
        if self._driver.machine.job(job_id).state in TERMINAL:
            self._begun.discard(job_id)
            if entry is not None and entry.ended_wall_s is None:
                entry.ended_wall_s = time.time()
                self._write_later(job_id)

    async def write_entries(self) -> None:
        """Bring what changed in the job book to the disk, for ever."""
        while True:
            await self._write_now.wait()
            self._write_now.clear()
            while self._unwritten:
                entry = self._book.get(self._unwritten.pop())
                if entry is not None:
                    try:
                        await self._write(entry)
                    except EacoError as error:
                        self._last_fault = str(error)
                        _LOG.warning("%s", error)

    def flush(self) -> None:
        """Bring to the disk what is not there yet; for the end. Blocks."""
        for job_id in self._unwritten:
            entry = self._book.get(job_id)
            if entry is not None:
                try:
                    self._book.write(entry)
                except EacoError as error:
                    _LOG.warning("%s", error)
        self._unwritten.clear()

    def end_streams(self) -> None:
        """Let go of everyone who follows the steps."""
        self._streams.close()

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._writers.shutdown(wait=True)

    async def _write(self, entry: JobEntry) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writers, self._book.write, entry)

    async def _read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def _write_later(self, job_id: str) -> None:
        self._unwritten.add(job_id)
        self._write_now.set()

    # ---- jobs ------------------------------------------------------------------------------

    def launch(self, job_id: str) -> LaunchSpec:
        """Give how a job is started, for the executor. Raises InputError for an unknown one."""
        entry = self._book.get(job_id)
        if entry is None:
            raise InputError(f"there is no command on record for job {job_id}")
        return launch_of(entry.request)

    async def submit(self, request: api.SubmitRequest) -> tuple[api.JobView, bool]:
        """Submit a job; True if it is new."""
        if request.job_id is not None:
            while (arriving := self._arriving.get(request.job_id)) is not None:
                await asyncio.shield(arriving)
            known = self._book.get(request.job_id)
            if known is not None:
                return self._again(known, request), False
        launch_of(request)
        check_program(request)
        wall_s = time.time()
        job_id = request.job_id or self._book.free_id(request.name or stem(request.command[0]))
        user = request.user or ""
        job = job_of(
            request,
            job_id,
            user=user,
            now_s=self._clock.now_s(),
            wall_s=wall_s,
            cluster=self._cluster(),
        )
        deadline_wall_s = None
        if request.deadline is not None:
            deadline_wall_s = wall_s + parse_deadline(request.deadline, wall_s)
        entry = JobEntry(job_id, request, user, wall_s, deadline_wall_s)
        self._book.reserve(entry)
        arrived = self._arriving[job_id] = asyncio.get_running_loop().create_future()
        try:
            await self._write(entry)
            await self._driver.submit(job)
        except asyncio.CancelledError:
            raise  # whether the scheduler has it is not known: the next start sees
        except BaseException:
            if self._state(job_id) is None:
                self._book.drop(job_id)
            raise
        finally:
            del self._arriving[job_id]
            arrived.set_result(None)
        return self.job(job_id), True

    def _again(self, known: JobEntry, request: api.SubmitRequest) -> api.JobView:
        """Answer for a job id that is taken: the same request is the same job."""
        if known.request != request:
            raise EventRefused(
                f"the job id {known.job_id} is taken by another job",
                event=None,
                job_id=known.job_id,
            )
        return self.job(known.job_id)

    async def jobs(self, state: str | None, offset: int, limit: int) -> api.JobList:
        """List jobs, in the order in which they were submitted."""
        wanted = None if state is None else GROUPS.get(state)
        if state is not None and wanted is None:
            raise InputError(f"there is no state {state!r}; known are {', '.join(GROUPS)}")
        machine = self._driver.machine
        found = [
            entry
            for job_id, now in machine.states().items()
            if job_id not in self._arriving
            and (entry := self._book.get(job_id)) is not None
            and (wanted is None or durable_state(entry, now) in wanted)
        ]
        residents = self._residents()
        shown = found[offset : offset + limit]
        views: list[api.JobView] = []
        for entry in shown:
            views.append(job_view(entry, machine.job(entry.job_id), residents))
            if len(views) % _VIEWS_AT_ONCE == 0:
                await asyncio.sleep(0)  # decisions do not wait for a long list
        return api.JobList(jobs=views, total=len(found))

    def job(self, job_id: str) -> api.JobView:
        """Give one job. Raises NotFound."""
        entry, job = self._find(job_id)
        return job_view(entry, job, self._residents() if job.gpus else {})

    async def cancel(self, job_id: str) -> api.JobView:
        """Cancel a job; one that has ended stays as it is. Raises NotFound."""
        self._find(job_id)
        await self._driver.cancel(job_id)
        return self.job(job_id)

    async def story(self, job_id: str) -> api.Story:
        """Tell why a job is where it is, from the journal. Raises NotFound."""
        self._find(job_id)
        told = await self._read(lambda: explain_job(self._read_journal(job_id), job_id))
        return api.Story(
            job_id=job_id,
            sentences=[
                api.Sentence(
                    t_s=one.t_s, time=format_wall(self._clock.wall_of(one.t_s)), text=one.text
                )
                for one in told
            ],
        )

    async def log(self, job_id: str, offset: int, limit: int) -> api.LogPart:
        """Give what the newest attempt of a job printed. Raises NotFound."""
        entry, job = self._find(job_id)
        ended = durable_state(entry, job.state) in TERMINAL
        part = await self._output(job_id, job.attempt, offset, limit, ended=ended)
        return api.LogPart(
            job_id=job_id,
            attempt=job.attempt,
            text=part.text,
            offset=part.offset,
            next_offset=part.next_offset,
            ended=ended and part.is_last,
        )

    async def _output(
        self, job_id: str, attempt: int, offset: int, limit: int, *, ended: bool
    ) -> OutputPart:
        for _ in range(_TRIES):
            paths = self._log_of(job_id, attempt) if attempt else ()
            try:
                return await self._read(partial(read_output, paths, offset, limit, ended=ended))
            except FileNotFoundError:
                continue  # it was moved between these two lines
            except OSError as error:
                raise EnvironmentFault(
                    f"the output of job {job_id} cannot be read: {error.strerror}"
                ) from error
        raise EnvironmentFault(f"the output of job {job_id} is being moved; ask again")

    def _residents(self) -> dict[str, tuple[str, ...]]:
        return {gpu_id: gpu.residents for gpu_id, gpu in self._driver.machine.gpus().items()}

    def _state(self, job_id: str) -> JobState | None:
        try:
            return self._driver.machine.job(job_id).state
        except KeyError:
            return None

    def _find(self, job_id: str) -> tuple[JobEntry, JobSnapshot]:
        entry = self._book.get(job_id)
        if entry is not None and job_id not in self._arriving:
            try:
                return entry, self._driver.machine.job(job_id)
            except KeyError:
                pass
        raise NotFound(f"there is no job {job_id!r}")

    # ---- the rest ------------------------------------------------------------------------

    def nodes(self) -> api.NodeList:
        """List nodes with their GPUs."""
        simulated = {node.node_id for node in self._config.nodes if node.simulated}
        return node_list(self._driver.machine, self._readings, simulated)

    async def drain(self, node_id: str, *, drained: bool) -> api.NodeList:
        """Keep new jobs off a node, or let them again. Raises NotFound."""
        if node_id not in self._driver.machine.nodes():
            raise NotFound(f"there is no node {node_id!r}")
        await self._driver.ask(ev.NodeDrained(0.0, node_id, drained))
        return self.nodes()

    def status(self) -> api.Status:
        """Tell how the server is."""
        machine = self._driver.machine
        states = Counter(machine.states().values())
        return api.Status(
            name=self._config.name,
            version=self._version,
            policy=self._config.policy,
            term=machine.term,
            now_s=self._clock.now_s(),
            steps=machine.seq,
            queued=states[JobState.QUEUED],
            running=sum(states[state] for state in HOLDING),
            ended=sum(states[state] for state in TERMINAL),
            faults=self._driver.faults,
            last_fault=self._last_fault,
            journal=str(self._config.state_dir / "journal"),
        )

    def metrics(self) -> str:
        """Give figures in the text format of Prometheus."""
        return metrics_text(self._driver.machine, self._driver.faults, len(self._streams))

    def steps(self) -> AsyncIterator[bytes]:
        """Give every step from now on, as lines of history.

        A reader that falls behind by many steps is cut off with a line that says so.
        """
        return self._streams.follow()
