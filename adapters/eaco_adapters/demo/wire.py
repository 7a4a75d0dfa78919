"""Telemetry of the demo over a real broker: an agent publishes, a subscriber collects."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from eaco_telemetry.agent import Agent, AgentOptions
from eaco_telemetry.broker import running_broker
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.subscriber import SampleReceived, Subscriber
from eaco_telemetry.transport import MqttOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eaco_telemetry.sampler import Sampler
    from eaco_telemetry.samples import NodeSample


@contextlib.asynccontextmanager
async def collect_through_broker(
    sampler: Sampler, node_id: str, period_s: float, samples: list[NodeSample]
) -> AsyncGenerator[str]:
    """Publish what the sampler reads and add what arrives to `samples`; give the broker's name."""
    async with running_broker("auto") as address:
        stop = asyncio.Event()
        options = MqttOptions(host=address.host, port=address.port, client_id=f"eaco-{node_id}")
        agent = Agent(
            sampler, mqtt_connector(options), AgentOptions(node_id=node_id, period_s=period_s)
        )
        own = MqttOptions(host=address.host, port=address.port, client_id="eaco-demo-server")
        async with Subscriber(mqtt_connector(own)) as subscriber:
            loop = asyncio.get_running_loop()
            tasks = [
                loop.create_task(agent.run(stop)),
                loop.create_task(_collect(subscriber, samples)),
            ]
            try:
                yield f"{address.kind} on port {address.port}"
            finally:
                stop.set()
                await asyncio.wait([tasks[0]], timeout=10)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _collect(subscriber: Subscriber, samples: list[NodeSample]) -> None:
    async for update in subscriber:
        if isinstance(update, SampleReceived):
            samples.append(update.sample)  # noqa: PERF401 - it has no end, and others read the list
