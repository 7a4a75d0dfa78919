"""Readings for the scheduler: from the sensors of this machine, or from agents over a broker.

A reading that fails is told once and the feed goes on: without readings jobs run all the same, and
what the rules do not know they do not count on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from eaco_adapters.node import proc
from eaco_core import events as ev
from eaco_core.driver import Fault
from eaco_core.errors import InputError
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.samples import node_readings
from eaco_telemetry.subscriber import SampleReceived, Subscriber, SubscriberOptions
from eaco_telemetry.transport import (
    TlsOptions,
    parse_broker_url,
    read_password,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from pathlib import Path

    from eaco_adapters.server.clock import SystemClock
    from eaco_adapters.server.config import TelemetryConfig
    from eaco_adapters.server.nodes import LocalNode
    from eaco_core.driver import Driver
    from eaco_telemetry.sampler import Sampler
    from eaco_telemetry.samples import NodeSample
    from eaco_telemetry.transport import MqttOptions

_MOST_ANCESTORS: Final = 64
_FAILED_PAUSE_S: Final = 5.0


@frozen
class Feed:
    """Brings readings of the configured nodes to one driver. `fault` gets what goes wrong."""

    config: TelemetryConfig
    nodes: Sequence[LocalNode]
    driver: Driver
    clock: SystemClock
    fault: Callable[[Fault], None]

    def work(self) -> list[Coroutine[None, None, None]]:
        """Give what has to run beside the driver, for ever. Raises InputError."""
        if self.config.broker is not None:
            return [self._from_broker(broker_options(self.config))]
        return [
            self._from_sensors(node, node.sampler)
            for node in self.nodes
            if node.sampler is not None
        ]

    async def _from_sensors(self, node: LocalNode, sampler: Sampler) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        told = ""
        while True:
            try:
                sampled = await sampler.sample()
                await self._bring(node, sampled.sample, self.clock.now_s())
                told = ""
            except Exception as error:  # noqa: BLE001 - whatever a sensor does, jobs go on
                told = self._tell(f"reading the sensors of node {node.spec.node_id}", error, told)
            due_s = max(due_s + self.config.period_s, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async def _from_broker(self, options: MqttOptions) -> None:
        nodes = {node.spec.node_id: node for node in self.nodes}
        told = ""
        while True:
            try:
                only = SubscriberOptions(site=self.config.site)
                async with Subscriber(mqtt_connector(options), only) as subscriber:
                    async for update in subscriber:
                        node = nodes.get(getattr(update, "node_id", ""))
                        if isinstance(update, SampleReceived) and node is not None:
                            age_s = time.monotonic() - update.received_s
                            await self._bring(node, update.sample, self.clock.now_s() - age_s)
                            told = ""
            except Exception as error:  # noqa: BLE001 - whatever a broker does, jobs go on
                told = self._tell("readings from the broker", error, told)
            await asyncio.sleep(_FAILED_PAUSE_S)

    async def _bring(self, node: LocalNode, sample: NodeSample, received_s: float) -> None:
        pids = {one.pid for gpu in sample.gpus for one in gpu.processes or ()}
        own = (
            await asyncio.to_thread(own_pids, pids, node.runner.root) if pids else frozenset[int]()
        )
        known = {gpu.gpu_id for gpu in node.spec.gpus}
        readings = node_readings(sample, received_s, own_pids=own)
        ours = tuple(reading for reading in readings if reading.gpu_id in known)
        if ours:
            await self.driver.post(ev.NodeSampled(0.0, node.spec.node_id, ours))

    def _tell(self, what: str, error: Exception, told: str) -> str:
        """Tell of a fault, unless it is the one that was told last; give what was told."""
        words = str(error) or type(error).__name__
        if words != told:
            self.fault(Fault(what, words))
        return words


def broker_options(config: TelemetryConfig) -> MqttOptions:
    """Give how to reach the broker of a configuration. Raises InputError."""
    if config.broker is None:
        raise InputError("no broker is configured")
    options = parse_broker_url(config.broker)
    if config.username is not None:
        options = evolve(options, username=config.username)
    if config.ca_file is not None:
        options = evolve(options, tls=TlsOptions(ca_file=config.ca_file))
    if options.username is not None:
        options = evolve(options, password=read_password(config.password_file))
    return options


def own_pids(pids: Iterable[int], root: Path) -> frozenset[int]:
    """Give those of `pids` that belong to jobs of the runner on `root`, or are gone. Blocks.

    A process is ours if it, or one that it comes from, has the environment of such a job.
    """
    wanted = b"EACO_STOP_FILE=" + os.fsencode(root / "attempts") + b"/"
    return frozenset(pid for pid in pids if _is_ours(pid, wanted))


def _is_ours(pid: int, wanted: bytes) -> bool:
    if proc.stat_fields(pid) is None:
        return True
    for _ in range(_MOST_ANCESTORS):
        with contextlib.suppress(OSError):  # of another user
            environ = (proc.PROC / str(pid) / "environ").read_bytes()
            if any(one.startswith(wanted) for one in environ.split(b"\0")):
                return True
        fields = proc.stat_fields(pid)
        if fields is None or int(fields[1]) <= 1:
            return False
        pid = int(fields[1])
    return False
