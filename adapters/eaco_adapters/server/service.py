"""The service: one scheduler, its jobs, and everything that can be asked of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from eaco_adapters.server import api
from eaco_adapters.server.clock import Anchor, write_anchor
from eaco_adapters.server.deadline import format_wall, parse_deadline
from eaco_adapters.server.http import NotFound
from eaco_adapters.server.job_book import JobEntry
from eaco_adapters.server.submission import check_program, hint_for, job_of, launch_of
from eaco_core import events as ev
from eaco_core.decisions import Waits
from eaco_core.errors import EacoError, EventRefused, InputError
from eaco_core.explain import explain_job
from eaco_core.history import Step, encode
from eaco_core.jobs import JobState
from eaco_core.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from eaco_adapters.launch import LaunchSpec
    from eaco_adapters.server.clock import SystemClock
    from eaco_adapters.server.config import ServerConfig
    from eaco_adapters.server.job_book import JobBook
    from eaco_adapters.server.submission import Cluster
    from eaco_core.driver import Driver, Fault
    from eaco_core.history import Line
    from eaco_core.snapshot import JobSnapshot

_LOG: Final = logging.getLogger("eaco.server")
_STREAM_SIZE: Final = 10_000
_RUNNING: Final = frozenset({JobState.STARTING, JobState.OBSERVING, JobState.SETTLED})


class SchedulerService:
    """Answers for one driver. See `eaco_adapters.server.http.Service`.

    `read_journal` gives the lines of the journal for stories; `log_of` gives the file with what an
    attempt printed. Every method runs in the driver's loop; what blocks runs in a thread.
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
        log_of: Callable[[str, int], Path | None],
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
        self._streams: set[asyncio.Queue[bytes | None]] = set()
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
        job_id = getattr(event, "job_id", None)
        if isinstance(job_id, str):
            self._note(event, job_id)
        if isinstance(event, ev.ClockAnchored):
            write_anchor(self._config.state_dir / "clock.json", Anchor(event.t_s, event.wall_s))
        if self._streams:
            line = encode(step).encode() + b"\n"
            for stream in list(self._streams):
                self._offer(stream, line)

    def _note(self, event: ev.Event, job_id: str) -> None:
        entry = self._book.get(job_id)
        if entry is None:
            return
        if isinstance(event, ev.JobStarted) and entry.started_wall_s is None:
            entry.started_wall_s = time.time()
            self._write_later(job_id)
        if isinstance(event, ev.JobFailed):
            entry.exit_code = event.exit_code
        if entry.ended_wall_s is None and self._driver.machine.job(job_id).state in TERMINAL:
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
                        await asyncio.to_thread(self._book.write, entry)
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
            known = self._book.get(request.job_id)
            if known is not None:
                return await self._again(known, request), False
        check_program(request)
        launch_of(request)
        wall_s = time.time()
        job_id = request.job_id or self._book.free_id(request.name or _stem(request.command[0]))
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
            await asyncio.to_thread(self._book.write, entry)
            await self._driver.submit(job)
        except BaseException:
            # Whether the scheduler has it is not known if this was cancelled: then it stays.
            if job_id not in self._driver.snapshot().jobs:
                self._book.drop(job_id)
            raise
        finally:
            del self._arriving[job_id]
            arrived.set_result(None)
        return self.job(job_id), True

    async def _again(self, known: JobEntry, request: api.SubmitRequest) -> api.JobView:
        """Answer for a job id that is taken: the same request is the same job."""
        arriving = self._arriving.get(known.job_id)
        if arriving is not None:
            await asyncio.shield(arriving)
        if known.request != request:
            raise EventRefused(
                f"the job id {known.job_id} is taken by another job",
                event=None,
                job_id=known.job_id,
            )
        return self.job(known.job_id)

    def jobs(self, state: str | None, offset: int, limit: int) -> api.JobList:
        """List jobs, in the order in which they were submitted."""
        if state is not None and state not in {one.value for one in JobState}:
            known = ", ".join(one.value for one in JobState)
            raise InputError(f"there is no state {state!r}; known are {known}")
        snapshot = self._driver.snapshot()
        found = [
            entry
            for entry in self._book
            if entry.job_id in snapshot.jobs
            and (state is None or snapshot.jobs[entry.job_id].state.value == state)
        ]
        found.sort(key=lambda entry: (entry.submitted_wall_s, entry.job_id))
        residents = {gpu_id: gpu.residents for gpu_id, gpu in snapshot.gpus.items()}
        shown = found[offset : offset + limit]
        views = [self._view(entry, snapshot.jobs[entry.job_id], residents) for entry in shown]
        return api.JobList(jobs=views, total=len(found))

    def job(self, job_id: str) -> api.JobView:
        """Give one job. Raises NotFound."""
        entry, job = self._find(job_id)
        residents: dict[str, tuple[str, ...]] = {}
        if job.gpus:
            gpus = self._driver.snapshot().gpus
            residents = {gpu_id: gpus[gpu_id].residents for gpu_id in job.gpus if gpu_id in gpus}
        return self._view(entry, job, residents)

    async def cancel(self, job_id: str) -> api.JobView:
        """Cancel a job; one that has ended stays as it is. Raises NotFound."""
        self._find(job_id)
        await self._driver.cancel(job_id)
        return self.job(job_id)

    async def story(self, job_id: str) -> api.Story:
        """Tell why a job is where it is, from the journal. Raises NotFound."""
        self._find(job_id)
        told = await asyncio.to_thread(lambda: explain_job(self._read_journal(job_id), job_id))
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
        _, job = self._find(job_id)
        path = self._log_of(job_id, job.attempt) if job.attempt else None
        data = b"" if path is None else await asyncio.to_thread(_read, path, offset, limit)
        text = data.decode("utf-8", errors="replace")
        ended = job.state in TERMINAL and len(data) < limit
        return api.LogPart(
            job_id=job_id,
            attempt=job.attempt,
            text=text,
            offset=offset,
            next_offset=offset + len(data),
            ended=ended,
        )

    def _find(self, job_id: str) -> tuple[JobEntry, JobSnapshot]:
        entry = self._book.get(job_id)
        if entry is not None and job_id not in self._arriving:
            try:
                return entry, self._driver.machine.job(job_id)
            except KeyError:
                pass
        raise NotFound(f"there is no job {job_id!r}")

    def _view(
        self, entry: JobEntry, job: JobSnapshot, residents: dict[str, tuple[str, ...]]
    ) -> api.JobView:
        others = {one for gpu_id in job.gpus for one in residents.get(gpu_id, ())} - {entry.job_id}
        request = entry.request
        end_s = entry.ended_wall_s or time.time()
        deadline_s = entry.deadline_wall_s
        return api.JobView(
            job_id=entry.job_id,
            name=request.name or _stem(request.command[0]),
            state=job.state.value,
            command=request.command,
            gpus=request.gpus,
            submitted=format_wall(entry.submitted_wall_s),
            user=entry.user or None,
            workload=request.workload,
            started=_wall(entry.started_wall_s),
            ended=_wall(entry.ended_wall_s),
            deadline=_wall(deadline_s),
            late=None if deadline_s is None else end_s > deadline_s,
            attempt=job.attempt,
            epochs_done=job.epochs_done,
            epochs=request.epochs,
            gpu_ids=list(job.gpus),
            sharing_with=sorted(others),
            undos=job.undos,
            why=entry.why if job.state is JobState.QUEUED else None,
            hint=None if job.state in TERMINAL else hint_for(job.job),
            exit_code=entry.exit_code,
        )

    # ---- the rest ------------------------------------------------------------------------

    def nodes(self) -> api.NodeList:
        """List nodes with their GPUs."""
        snapshot = self._driver.snapshot()
        simulated = {node.node_id for node in self._config.nodes if node.simulated}
        return api.NodeList(
            nodes=[
                api.NodeView(
                    node_id=node_id,
                    state=state.value,
                    drained=all(snapshot.gpus[gpu.gpu_id].drained for gpu in spec.gpus),
                    simulated=node_id in simulated,
                    gpus=[
                        api.GpuView(
                            gpu_id=gpu.gpu_id,
                            gpu_type=gpu.gpu_type,
                            mem_bytes=gpu.mem_bytes,
                            up=snapshot.gpus[gpu.gpu_id].up,
                            jobs=list(snapshot.gpus[gpu.gpu_id].residents),
                        )
                        for gpu in spec.gpus
                    ],
                )
                for node_id, (spec, state) in snapshot.nodes.items()
            ]
        )

    async def drain(self, node_id: str, *, drained: bool) -> api.NodeList:
        """Keep new jobs off a node, or let them again. Raises NotFound."""
        if node_id not in self._driver.snapshot().nodes:
            raise NotFound(f"there is no node {node_id!r}")
        await self._driver.ask(ev.NodeDrained(0.0, node_id, drained))
        return self.nodes()

    def status(self) -> api.Status:
        """Tell how the server is."""
        snapshot = self._driver.snapshot()
        states = Counter(job.state for job in snapshot.jobs.values())
        return api.Status(
            name=self._config.name,
            version=self._version,
            policy=self._config.policy,
            term=snapshot.term,
            now_s=self._clock.now_s(),
            steps=snapshot.seq,
            queued=states[JobState.QUEUED],
            running=sum(states[state] for state in _RUNNING),
            ended=sum(states[state] for state in TERMINAL),
            faults=self._driver.faults,
            last_fault=self._last_fault,
            journal=str(self._config.state_dir / "journal"),
        )

    def metrics(self) -> str:
        """Give figures in the text format of Prometheus."""
        snapshot = self._driver.snapshot()
        states = Counter(job.state.value for job in snapshot.jobs.values())
        lines = ["# HELP eaco_jobs Jobs by state.", "# TYPE eaco_jobs gauge"]
        lines += [f'eaco_jobs{{state="{one.value}"}} {states[one.value]}' for one in JobState]
        held = sum(bool(gpu.residents) for gpu in snapshot.gpus.values())
        shared = sum(len(gpu.residents) > 1 for gpu in snapshot.gpus.values())
        for name, kind, what, value in (
            ("eaco_gpus", "gauge", "GPUs of the cluster.", len(snapshot.gpus)),
            ("eaco_gpus_held", "gauge", "GPUs that a job holds.", held),
            ("eaco_gpus_shared", "gauge", "GPUs that several jobs hold.", shared),
            ("eaco_steps_total", "counter", "Steps of the scheduler.", snapshot.seq),
            (
                "eaco_faults_total",
                "counter",
                "Calls to the outside that failed.",
                self._driver.faults,
            ),
            ("eaco_term", "gauge", "Term of this scheduler.", snapshot.term),
        ):
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"

    async def steps(self) -> AsyncIterator[bytes]:
        """Give every step from now on, as lines of history.

        A reader that falls behind by many steps is cut off with a line that says so.
        """
        stream: asyncio.Queue[bytes | None] = asyncio.Queue(_STREAM_SIZE)
        self._streams.add(stream)
        try:
            while (line := await stream.get()) is not None:
                yield line
            yield b'{"error":"the reader is too slow, steps were left out; connect again"}\n'
        finally:
            self._streams.discard(stream)

    def _offer(self, stream: asyncio.Queue[bytes | None], line: bytes) -> None:
        if stream.full():
            while not stream.empty():
                stream.get_nowait()
            stream.put_nowait(None)
            self._streams.discard(stream)
            return
        stream.put_nowait(line)


def _wall(wall_s: float | None) -> str | None:
    return None if wall_s is None else format_wall(wall_s)


def _stem(program: str) -> str:
    return program.rstrip("/").rpartition("/")[2] or "job"


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(limit)
    except OSError:
        return b""
