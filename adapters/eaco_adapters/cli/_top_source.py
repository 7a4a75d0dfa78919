"""Where `eaco top` gets its nodes from: the sensors of this machine, or a broker."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define, field

from eaco_adapters.cli._top_snapshot import Snapshot
from eaco_core.errors import EnvironmentFault
from eaco_telemetry.meta import NodeCondition, node_meta
from eaco_telemetry.sampler import Sampler
from eaco_telemetry.subscriber.updates import ConnectionChanged, NodeView

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eaco_telemetry.readers.auto import Choice
    from eaco_telemetry.subscriber import Subscriber
    from eaco_telemetry.transport import MqttOptions

SETTLE_S: Final = 0.3
"""What a broker has retained comes at once; after this long without a new node, that is all."""

FIRST_STEP_S: Final = 1.0
"""Power and load are often told as a change: the first sample shows none of it."""

_LOOK_S: Final = 0.05
_BACKOFF_CAP_S: Final = 5.0
_NOT_EXPECTED: Final = frozenset({"lost", "disconnected", "sleeping"})


class Source(Protocol):
    """Gives snapshots."""

    async def first(self, wait_s: float) -> Snapshot:
        """Give a snapshot as complete as it gets within `wait_s`."""
        ...

    async def now(self) -> Snapshot:
        """Give what is known now."""
        ...


# ------------------------------------------------------------------------ this machine


@define
class LocalSource:
    """The sensors of this machine."""

    node_id: str
    sampler: Sampler
    choice: Choice
    period_s: float

    async def first(self, wait_s: float) -> Snapshot:  # noqa: ARG002 - one signature for all
        """Take two samples: changes such as joules per second need both."""
        await self.sampler.sample()
        await asyncio.sleep(min(self.period_s, FIRST_STEP_S))
        return await self.now()

    async def now(self) -> Snapshot:
        """Take a sample."""
        sample = (await self.sampler.sample()).sample
        wall_ns = time.time_ns()
        meta = node_meta(
            sample,
            period_s=self.period_s,
            agent=f"eaco {version('eaco')}",
            readers=self.sampler.readers,
            wall_ns=wall_ns,
        )
        now_s = time.monotonic()
        view = NodeView(
            site="",
            node_id=self.node_id,
            session_id=sample.session_id,
            condition=NodeCondition.READY,
            stale=False,
            meta=meta,
            sample=sample,
            received_s=now_s,
            age_s=max(0.0, now_s - sample.monotonic_ns / 1e9),
        )
        notes = [] if sample.gpus else [_no_gpus(self.choice)]
        notes += self.choice.hints
        return Snapshot(wall_ns, "local", nodes=(view,), notes=tuple(notes))


@asynccontextmanager
async def local_source(
    node_id: str, choice: Choice, period_s: float
) -> AsyncGenerator[LocalSource]:
    """Read this machine with readers that are open already; closes them."""
    sampler = Sampler(choice.readers, node_id=node_id, session_id=uuid.uuid4().hex)
    await sampler.open()
    try:
        yield LocalSource(node_id, sampler, choice, period_s)
    finally:
        await sampler.close()


def _no_gpus(choice: Choice) -> str:
    skipped = [item for item in choice.skipped.items() if item[0] != "simulated"]
    why = "; ".join(f"{name}: {reason}" for name, reason in skipped)
    return f"no GPU was found here ({why})" if why else "no GPU was found here"


# -------------------------------------------------------------------------- a broker


@define
class BrokerSource:
    """The nodes of a broker. `patterns`: of the nodes to show; empty is all."""

    subscriber: Subscriber
    address: str
    patterns: tuple[str, ...] = ()
    connected: bool = False
    ever: bool = False
    problem: str | None = None
    refused: bool = False
    fault: BaseException | None = None
    _seen: set[tuple[str, str]] = field(factory=set[tuple[str, str]], init=False)
    _new_s: float = field(default=0.0, init=False)

    async def follow(self) -> None:
        """Take the updates of the subscriber, for ever."""
        try:
            async for update in self.subscriber:
                if isinstance(update, ConnectionChanged):
                    self._note(update)
        except EnvironmentFault as fault:
            self.fault = fault

    def _note(self, change: ConnectionChanged) -> None:
        self.connected = change.connected
        self.ever = self.ever or change.connected
        self.problem = None if change.connected else change.reason
        # So long a pause is made after a refusal that only a person can change.
        self.refused = (change.retry_in_s or 0.0) > _BACKOFF_CAP_S

    async def first(self, wait_s: float) -> Snapshot:
        """Wait until every node that should send has sent, at most `wait_s`.

        Raises EnvironmentFault without a connection (at once after a refusal such as a wrong
        password), and if no node was seen.
        """
        until_s = time.monotonic() + wait_s
        while True:
            now_s = time.monotonic()
            waiting = self._waiting(now_s)
            settled = now_s - self._new_s >= SETTLE_S
            if self.connected and self._seen and not waiting and settled:
                break
            if now_s >= until_s or self.refused or self.fault is not None:
                break
            await asyncio.sleep(min(_LOOK_S, until_s - now_s))
        if self.fault is not None:
            raise self.fault
        if not self.ever:
            why = self.problem or "it did not answer yet"
            raise EnvironmentFault(f"no connection to the broker at {self.address}: {why}")
        if not self._seen:
            shown = f" that {' or '.join(self.patterns)} names" if self.patterns else ""
            raise EnvironmentFault(
                f"no node{shown} was seen at {self.address} in {wait_s:g} s; is an eaco agent"
                " running, for this broker and site, and may this user read its topics?"
            )
        return self._snapshot(waiting, wait_s)

    async def now(self) -> Snapshot:
        """Give what is known now."""
        if self.fault is not None:
            raise self.fault
        return self._snapshot({}, 0.0)

    def _views(self) -> list[NodeView]:
        nodes = self.subscriber.nodes
        return [nodes[key] for key in sorted(nodes) if self._is_wanted(key[1])]

    def _is_wanted(self, node_id: str) -> bool:
        return not self.patterns or any(fnmatchcase(node_id, one) for one in self.patterns)

    def _waiting(self, now_s: float) -> dict[tuple[str, str], NodeView]:
        """Give the nodes that should send and have not yet."""
        waiting: dict[tuple[str, str], NodeView] = {}
        for view in self._views():
            key = (view.site, view.node_id)
            if key not in self._seen:
                self._seen.add(key)
                self._new_s = now_s
            if view.received_s is None and view.word not in _NOT_EXPECTED:
                waiting[key] = view
        return waiting

    def _snapshot(self, waiting: dict[tuple[str, str], NodeView], wait_s: float) -> Snapshot:
        why = self.problem
        return Snapshot(
            time.time_ns(),
            "broker",
            nodes=tuple(self._views()),
            address=self.address,
            silent={key: _silence(view, wait_s) for key, view in waiting.items()},
            notes=self._notes(),
            problem=None if why is None else f"no connection to the broker: {why}",
        )

    def _notes(self) -> tuple[str, ...]:
        counters = self.subscriber.counters
        notes = [] if self.ever or self.problem is not None else ["connecting ..."]
        if counters.bad:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counters.bad.items()))
            notes.append(f"messages that were refused: {kinds}")
        if counters.transport_discards:
            notes.append(f"{counters.transport_discards} messages came too fast and were dropped")
        return tuple(notes)


def _silence(view: NodeView, wait_s: float) -> str:
    text = f"no sample within {wait_s:g} s"
    if view.meta is not None and view.meta.period_s > wait_s:
        text += f"; it sends every {view.meta.period_s:g} s, so wait longer with --wait-s"
    return text


@asynccontextmanager
async def broker_source(
    options: MqttOptions, *, site: str, patterns: Sequence[str]
) -> AsyncGenerator[BrokerSource]:
    """Listen to a broker. Raises EnvironmentFault where the extra for MQTT is missing."""
    from eaco_telemetry.mqtt import mqtt_connector  # noqa: PLC0415 - as above
    from eaco_telemetry.subscriber import (  # noqa: PLC0415 - only with a broker
        Subscriber,
        SubscriberOptions,
    )

    alone = patterns[0] if len(patterns) == 1 and not set(patterns[0]) & set("*?[") else "+"
    chosen = SubscriberOptions(site=site, node_id=alone, backoff_cap_s=_BACKOFF_CAP_S)
    subscriber = Subscriber(mqtt_connector(options), chosen, log=_quiet())
    scheme = "mqtt" if options.tls is None else "mqtts"
    source = BrokerSource(subscriber, f"{scheme}://{options.address}", tuple(patterns))
    async with subscriber:
        task = asyncio.create_task(source.follow(), name="eaco top")
        try:
            yield source
        finally:
            task.cancel()
            await asyncio.wait({task})


def _quiet() -> logging.Logger:
    """Give a log that writes nothing: it would tear the screen, and the screen says it too."""
    log = logging.getLogger("eaco.top")
    log.propagate = False
    log.addHandler(logging.NullHandler())
    return log
