"""Ports: what the core needs from the outside, as Protocols.

An adapter implements one of them without importing anything but these types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import frozen

from eaco_core.errors import EacoError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from eaco_core.cluster import NodeReading, NodeSpec
    from eaco_core.decisions import BoundSource
    from eaco_core.effects import Observation
    from eaco_core.events import Event
    from eaco_core.jobs import SoloProfile


@frozen
class Resident:
    """One workload on a GPU, as a predictor sees it: a name and its solo profile."""

    workload: str
    profile: SoloProfile


@frozen
class Query:
    """How much slower does `affected` run beside `co_residents` on its worst GPU?

    `co_residents` are sorted by workload; empty = alone.
    """

    affected: Resident
    co_residents: tuple[Resident, ...]
    gpu_type: str


@frozen
class Estimate:
    """Slowdown as shared / solo epoch time: 1 = no slowdown, 2 = half the speed.

    `upper_ratio` is the bound used for admission, never below `point_ratio` or 1.
    A source of `none` admits nothing; its ratios are then infinite.
    """

    point_ratio: float
    upper_ratio: float
    source: BoundSource
    calibration_id: str | None = None


@runtime_checkable
class JctPredictor(Protocol):
    """PredictJCT's model: sources (b) and (c) of rule R5. Synchronous and batched.

    The core adds observed evidence, source (a), by itself. The answer must not
    depend on the order of co-residents, and must be finite or of source `none`.
    """

    def predict(self, queries: Sequence[Query], /) -> Sequence[Estimate]:
        """Answer every query, in order."""
        ...


@runtime_checkable
class PowerModel(Protocol):
    """Node power = server part + sum over its GPUs, for predictions (rule R7). Watts."""

    def server_w(self, node: NodeSpec, job_load: float, /) -> float:
        """Server part while jobs hold `job_load` x all GPUs of the node (k in DESIGN 5)."""
        ...

    def gpu_w(self, gpu_type: str, util_ratio: float, /) -> float:
        """Power of one GPU at a utilisation."""
        ...

    def sleep_w(self, node: NodeSpec, /) -> float:
        """Power of the node asleep."""
        ...

    def wake_j(self, node: NodeSpec, /) -> float:
        """Energy of waking the node once."""
        ...


class Clock(Protocol):
    """Scheduler seconds: monotonic within a run, continued after a restart (R16)."""

    def now_s(self) -> float:
        """Give the present time."""
        ...

    def wall_s(self) -> float:
        """Give what a clock on the wall shows now (Unix seconds, UTC); only for people."""
        ...


class CommandRefused(EacoError):
    """The executor will not carry out a command, and nothing of the attempt exists.

    The reason is final (no such command, a GPU that the node does not have, an older term):
    the same command would be refused again.
    """


class StaleTerm(CommandRefused):
    """A scheduler with a newer term has taken over; the one that gave this command must end."""


@frozen
class Report:
    """One event as an executor tells it. `age_s`: how long ago it happened.

    The time of the event itself is set by whoever drives the machine.
    """

    event: Event
    age_s: float = 0.0


class Executor(Protocol):
    """Runs jobs. Every command is idempotent on (job, attempt) and fenced by `term`.

    A command raises `CommandRefused` when it is final that nothing was done. Any other error,
    and a time limit that passes, leaves open what happened; the command may be given again.
    """

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        """Start the attempt on the named GPUs of each node; JobStarted follows as a report."""
        ...

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:
        """Ask for a checkpoint and a stop at the next epoch boundary; returns when accepted."""
        ...

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        """End the attempt: ask, wait for `grace_s`, then by force.

        Returns when its GPUs are proven free, also if nothing of it was there; GpusReleased
        follows as a report.
        """
        ...

    def reports(self) -> AsyncIterator[Report]:
        """Give what happens to jobs, as it happens.

        After a restart of either side, what is not forgotten is told again; repeats do no harm.
        """
        ...

    async def list_running(self) -> Sequence[tuple[str, int, tuple[str, ...]]]:
        """Give (job, attempt, GPUs) of everything that may still run, for re-attachment."""
        ...

    async def forget(self, job_id: str, attempt: int) -> None:
        """The end of this attempt is on record: what is kept for telling it again may go."""
        ...


class TelemetrySource(Protocol):
    """Gives readings of the GPUs of a cluster."""

    def readings(self) -> AsyncIterator[tuple[str, tuple[NodeReading, ...]]]:
        """Give (node id, readings) as they arrive."""
        ...


class HistoryStore(Protocol):
    """Keeps observations across runs."""

    def append(self, observation: Observation, /) -> None:
        """Keep one observation."""
        ...

    def observations(self) -> Sequence[Observation]:
        """Give all that is kept, oldest first."""
        ...


class PowerController(Protocol):
    """Puts nodes to sleep and wakes them."""

    async def wake(self, node_id: str, term: int) -> None:
        """Start to wake the node; NodeAwake or WakeFailed follows as an event."""
        ...

    async def sleep(self, node_id: str, term: int) -> None:
        """Start to put the node to sleep; NodeAsleep follows as an event."""
        ...


class Journal(Protocol):
    """Keeps every step before its effects are carried out (invariant I22).

    Both methods may block. After an error of either, nothing more is written.
    """

    def append(self, line: str, /) -> None:
        """Take one line of history."""
        ...

    def commit(self) -> object:
        """Make durable what was taken."""
        ...
