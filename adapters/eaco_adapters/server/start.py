"""Start everything of a server, run it, and take it down in order.

The order matters: the journal first (one scheduler for each), then the job book; runners before the
driver, which reads their reports; and only when the driver runs do nodes join and clients find a
socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from eaco_adapters.executors.local import LocalExecutor
from eaco_adapters.journal.opening import open_journal
from eaco_adapters.journal.reader import JournalReader
from eaco_adapters.journal.snapshots import read_snapshot, write_snapshot
from eaco_adapters.server.catching_up import TYPES, complete, set_aside_unknown
from eaco_adapters.server.clock import SystemClock, read_anchor
from eaco_adapters.server.feed import Feed, broker_options
from eaco_adapters.server.http import make_app
from eaco_adapters.server.job_book import JobBook
from eaco_adapters.server.listen import (
    is_loopback,
    listen_on_path,
    listen_on_port,
    read_token,
    serve_http,
)
from eaco_adapters.server.nodes import check_left_nodes, open_node
from eaco_adapters.server.service import SchedulerService
from eaco_adapters.server.submission import Cluster
from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.driver import Driver, DriverOptions
from eaco_core.errors import EnvironmentFault
from eaco_core.history import decode_line
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.ports import StaleTerm
from eaco_predictors.own_profiles import read_profiles
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.power import DefaultNodePower

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from eaco_adapters.journal.opening import Opened
    from eaco_adapters.journal.writer import JournalWriter
    from eaco_adapters.launch import LaunchSpec
    from eaco_adapters.server.config import ServerConfig
    from eaco_adapters.server.nodes import LocalNode
    from eaco_core.driver import Fault
    from eaco_core.history import Line, Step
    from eaco_core.ports import Executor, Journal
    from eaco_core.snapshot import GpuSnapshot
    from eaco_predictors.profile_table import ProfileTable

_LOG: Final = logging.getLogger("eaco.server")
_SNAPSHOT_EVERY: Final = 5000
_NAMED: Final = 5


@define
class Server:
    """One server. `on_ready` is called when clients may come, `on_step` with each durable step.

    `notes` are sentences for the operator. `wrap_journal` and `wrap_executor` stand between the
    driver and these, for tests.
    """

    config: ServerConfig
    version: str
    options: DriverOptions = field(factory=DriverOptions)
    on_ready: Callable[[Server], None] | None = None
    on_step: Callable[[Step], None] | None = None
    wrap_journal: Callable[[JournalWriter], Journal] | None = None
    wrap_executor: Callable[[Executor], Executor] | None = None
    notes: list[str] = field(factory=list[str])
    service: SchedulerService | None = None
    driver: Driver | None = None
    nodes: list[LocalNode] = field(factory=list["LocalNode"])
    _snapshot_seq: int = 0
    _snapshot_every: int = _SNAPSHOT_EVERY
    _snapshots: set[asyncio.Task[Path]] = field(factory=set["asyncio.Task[Path]"])

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`. Jobs go on after that, and the next server finds them.

        Raises InputError and EnvironmentFault with one sentence for whatever stands against it,
        JournalLocked where another server runs.
        """
        state_dir = self.config.state_dir
        if self.config.telemetry.broker is not None:
            mqtt_connector(broker_options(self.config.telemetry))  # what is wrong is told now
        _make_private(state_dir)
        opened = await asyncio.to_thread(open_journal, state_dir / "journal", self._machine)
        self.notes += opened.notes
        try:
            await self._run(opened, stop)
        except StaleTerm as error:
            raise EnvironmentFault(str(error)) from error
        finally:
            opened.writer.close()

    async def _run(self, opened: Opened, stop: asyncio.Event) -> None:
        state_dir = self.config.state_dir
        machine = opened.machine
        book = await asyncio.to_thread(JobBook, state_dir / "jobs")
        unknown = set_aside_unknown(book, machine)
        if unknown:  # their submission was never answered, or the journal is another one
            self.notes.append(
                f"the journal knows nothing of {_some(unknown)}: set aside in {state_dir / 'jobs'}"
            )
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.to_thread(self._open_nodes, state_dir / "nodes")
            for node in self.nodes:
                if node.sampler is not None:
                    stack.push_async_callback(node.sampler.close)
            profiles = await asyncio.to_thread(self._profiles)
            executor = LocalExecutor([node.runner for node in self.nodes], self._launch)
            await stack.enter_async_context(executor)
            # Runners that outlived an older journal know later terms than a new one begins with.
            term = max(node.runner.term for node in self.nodes)
            if term >= machine.term:
                machine.begin_term(term + 1)
            clock = SystemClock(machine.now_s, read_anchor(state_dir / "clock.json"))
            await asyncio.to_thread(
                complete, book, machine, lambda: _endings(opened), clock.wall_of
            )
            self.driver = driver = Driver(
                machine,
                executor if self.wrap_executor is None else self.wrap_executor(executor),
                clock,
                journal=opened.writer
                if self.wrap_journal is None
                else self.wrap_journal(opened.writer),
                options=self.options,
                on_fault=self._on_fault,
                on_step=lambda step: self._on_step(step, opened.writer),
            )
            self.service = SchedulerService(
                self.config,
                driver=driver,
                book=book,
                clock=clock,
                cluster=lambda: _cluster(machine.gpus(), profiles),
                read_journal=lambda text: _lines(state_dir / "journal", text),
                log_of=self._log_of,
                version=self.version,
            )
            stack.callback(self.service.close)
            listeners = self._listen(stack)
            await self._serve(driver, self.service, clock, listeners, stop)

    async def _serve(
        self,
        driver: Driver,
        service: SchedulerService,
        clock: SystemClock,
        listeners: list[tuple[socket.socket, str | None]],
        stop: asyncio.Event,
    ) -> None:
        running = asyncio.get_running_loop().create_task(driver.run())
        background: list[asyncio.Task[None]] = []
        faces: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        try:
            await _first_of(running, self._join_nodes(driver))
            background = [loop.create_task(service.write_entries())]
            feed = Feed(self.config.telemetry, self.nodes, driver, clock, self._on_fault)
            background += [loop.create_task(work) for work in feed.work()]
            for listener, token in listeners:
                app = make_app(service, version=self.version, token=token)
                faces.append(loop.create_task(serve_http(app, listener, stop)))
            if self.on_ready is not None:
                self.on_ready(self)
            await _first_of(running, stop.wait())
        finally:
            stop.set()
            service.end_streams()
            await asyncio.gather(*faces, return_exceptions=True)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            driver.stop()
            await asyncio.wait([running, *self._snapshots])
            service.flush()
        await running

    def _on_fault(self, fault: Fault) -> None:
        if self.service is not None:
            self.service.on_fault(fault)

    def _on_step(self, step: Step, journal: JournalWriter) -> None:
        if self.service is None or self.driver is None:
            return
        self.service.on_step(step)
        if self.on_step is not None:
            self.on_step(step)
        machine = self.driver.machine
        # At the last step of a batch the machine is just where the journal is.
        if step.seq == machine.seq and step.seq - self._snapshot_seq >= self._snapshot_every:
            self._snapshot_seq = step.seq
            # Its cost goes with the number of jobs: the more there are, the less often it is made.
            self._snapshot_every = max(_SNAPSHOT_EVERY, 2 * len(machine.states()))
            place, state = journal.place, machine.dump_text()
            work = asyncio.to_thread(write_snapshot, journal, place, state)
            task = asyncio.get_running_loop().create_task(work)
            self._snapshots.add(task)
            task.add_done_callback(self._snapshot_done)

    def _snapshot_done(self, task: asyncio.Task[Path]) -> None:
        self._snapshots.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("%s", error)

    def _machine(self) -> SchedulerMachine:
        config = self.config
        return SchedulerMachine(
            policy_named(config.policy),
            rules=config.rules,
            power=DefaultNodePower() if config.power_model else None,
        )

    def _launch(self, job_id: str) -> LaunchSpec:
        if self.service is None:
            raise KeyError(job_id)
        return self.service.launch(job_id)

    def _log_of(self, job_id: str, attempt: int) -> Sequence[Path]:
        for node in self.nodes:
            paths = node.runner.log_paths(job_id, attempt)
            if paths:
                return paths
        return ()

    def _open_nodes(self, root: Path) -> None:
        check_left_nodes(root, [config.node_id for config in self.config.nodes])
        cpus = sorted(os.sched_getaffinity(0))
        session_id = secrets.token_hex(6)
        first = 0
        for config in self.config.nodes:
            turned = cpus[first % len(cpus) :] + cpus[: first % len(cpus)]
            node = open_node(
                config,
                root,
                session_id=session_id,
                cpus=turned,
                with_sensors=self.config.telemetry.local,
            )
            self.nodes.append(node)
            if config.simulated:
                first += len(node.spec.gpus)

    def _profiles(self) -> Mapping[str, ProfileTable]:
        if self.config.profiles is None:
            return {}
        types = {gpu.gpu_type for node in self.nodes for gpu in node.spec.gpus}
        return {gpu_type: read_profiles(self.config.profiles, gpu_type) for gpu_type in types}

    def _listen(self, stack: contextlib.AsyncExitStack) -> list[tuple[socket.socket, str | None]]:
        listen = self.config.listen
        listeners: list[tuple[socket.socket, str | None]] = []
        if listen.http is not None and listen.token_file is not None:
            token = read_token(listen.token_file)
            if not is_loopback(listen.http[0]):
                self.notes.append(
                    f"others can reach {listen.http[0]}, and what they send is not encrypted: put "
                    "a proxy with TLS before it"
                )
            listener = listen_on_port(*listen.http)
            stack.callback(listener.close)
            listeners.append((listener, token))
        listen.socket.parent.mkdir(parents=True, exist_ok=True)
        listener = listen_on_path(listen.socket)
        stack.callback(lambda: listen.socket.unlink(missing_ok=True))
        stack.callback(listener.close)
        listeners.append((listener, None))
        return listeners

    async def _join_nodes(self, driver: Driver) -> None:
        """Let the scheduler know what nodes there are now."""
        before = driver.machine.nodes()
        for node_id in before.keys() - {node.spec.node_id for node in self.nodes}:
            await driver.ask(ev.NodeLost(0.0, node_id))
        for node in self.nodes:
            known = before.get(node.spec.node_id)
            if known is None or known[0] != node.spec or known[1] is NodeState.OUT:
                if known is not None and known[1] is not NodeState.OUT:
                    await self._end_all(node, driver.machine.term)
                    await driver.ask(ev.NodeLost(0.0, node.spec.node_id))
                await driver.ask(ev.NodeJoined(0.0, node.spec))

    async def _end_all(self, node: LocalNode, term: int) -> None:
        """End what runs on a node that has changed: its jobs will be placed anew."""
        for job_id, attempt, _ in await node.runner.list_running():
            self.notes.append(
                f"node {node.spec.node_id} has changed: job {job_id} goes on from its checkpoint"
            )
            await node.runner.kill(job_id, attempt, term, grace_s=self.options.kill_grace_s)


def _cluster(gpus: Mapping[str, GpuSnapshot], profiles: Mapping[str, ProfileTable]) -> Cluster:
    counts: dict[str, int] = {}
    for gpu in gpus.values():
        counts[gpu.gpu.gpu_type] = counts.get(gpu.gpu.gpu_type, 0) + 1
    return Cluster(counts, profiles)


def _lines(path: Path, job_id: str) -> Iterator[Line]:
    """Give the steps of a journal that speak of a job, and the header."""
    named = json.dumps(job_id)
    for number, text in enumerate(JournalReader(path)):
        if number == 0 or named in text:
            yield decode_line(text, f"{path}, record {number + 1}")


def _endings(opened: Opened) -> Iterator[Line]:
    """Give the steps since the snapshot of the journal that tell how jobs ended."""
    path = opened.writer.path
    place = None if opened.snapshot is None else read_snapshot(opened.snapshot).place
    for text in JournalReader(path, place):
        if any(name in text for name in TYPES):
            yield decode_line(text, str(path))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{len(names)} job(s): {shown}" + (f" and {more} more" if more > 0 else "")


async def _first_of(running: asyncio.Task[None], work: Coroutine[Any, Any, object]) -> None:
    """Wait for `work`, unless the driver ends before; then raise what ended it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([running, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        else:
            running.result()
            raise EnvironmentFault("the scheduler ended by itself")
    finally:
        task.cancel()
        await asyncio.wait([task])


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EnvironmentFault(
            f"the state folder {folder} cannot be made: {error.strerror}; choose another"
        ) from error
