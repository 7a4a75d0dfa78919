"""Running the agent of a plan: signals, a broker of its own, a clean end."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from attrs import asdict, evolve

from eaco_adapters.cli._agent_log import logging_to_stderr
from eaco_adapters.cli._agent_plan import Parts, Plan, announcer, extras_named, prepare
from eaco_telemetry.agent import Agent, AgentOptions
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.transport import MQTT_PORT, MqttOptions

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncGenerator, Coroutine, Generator

    from eaco_telemetry.transport import Connect

T = TypeVar("T")

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COUNT_EVERY_S: Final = 60.0
_FIRST_STEP_S: Final = 1.0


async def run(plan: Plan) -> None:
    """Do what the plan says until a signal comes or a recording is at its end."""
    stop = asyncio.Event()
    with (
        logging_to_stderr(as_json=plan.as_json, verbose=plan.verbose) as log,
        _stopped_by_signals(stop),
    ):
        # On a thread: a driver may take its time, and a signal is to be heard meanwhile.
        parts = await asyncio.to_thread(prepare, plan)
        if plan.once:
            await _print_one(plan, parts, stop)
            return
        await _run_agent(plan, parts, stop, log)


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Generator[None, None, None]:
    loop = asyncio.get_running_loop()
    taken = [one for one in _STOPS if signal.getsignal(one) is not signal.SIG_IGN]  # as nohup asks
    before = {one: signal.getsignal(one) for one in taken}
    for one in taken:
        loop.add_signal_handler(one, stop.set)
    try:
        yield
    finally:
        for one in taken:
            loop.remove_signal_handler(one)
            signal.signal(one, before[one] or signal.SIG_DFL)


async def _print_one(plan: Plan, parts: Parts, stop: asyncio.Event) -> None:
    """Print the second sample: load and power are often told as a change since the first."""
    with extras_named():
        from eaco_telemetry.wire import encode_sample  # noqa: PLC0415 - an extra

    try:
        await parts.source.open()
        sampled = await parts.source.sample()
        if plan.replay is None and not stop.is_set():
            await asyncio.wait(
                [asyncio.ensure_future(stop.wait())], timeout=min(plan.period_s, _FIRST_STEP_S)
            )
            sampled = await parts.source.sample()
    finally:
        await parts.source.close()
    for sentence in parts.says:
        click.echo(f"eaco agent: {sentence}", err=True)
    click.echo(json.dumps(json.loads(encode_sample(sampled.sample)), indent=2))


async def _run_agent(plan: Plan, parts: Parts, stop: asyncio.Event, log: logging.Logger) -> None:
    async with AsyncExitStack() as stack:
        # The agent closes both; this is for when it does not come to run.
        stack.callback(parts.close_sinks)
        stack.push_async_callback(parts.source.close)
        found = await _unless_stopped(_broker(plan, parts, stack, log), stop)
        if found is None:
            log.info("stopped before the broker was up")
            return
        connect, where = found
        options = AgentOptions(
            node_id=parts.node_id,
            site=plan.site,
            period_s=parts.period_s,
            self_paced=parts.self_paced,
            agent=f"eaco {version('eaco')}",
            backoff_cap_s=plan.backoff_cap_s,
            slow_retry_s=plan.slow_retry_s,
            last_every_s=plan.last_every_s,
            exit_when_stuck=plan.exit_when_stuck,
            announce=announcer(plan),
        )
        agent = Agent(parts.source, connect, options, sinks=parts.sinks, plugs=parts.plugs, log=log)
        log.info(
            "node %s of the site %s, a sample every %g s", parts.node_id, plan.site, parts.period_s
        )
        for sentence in (*parts.says, where):
            log.info("%s", sentence)
        counting = asyncio.create_task(_count(agent, log))
        try:
            await agent.run(stop)
        finally:
            counting.cancel()
            await asyncio.wait({counting})
            facts = asdict(agent.stats)
            log.info("stopped: %s", _counted(facts), extra={"facts": facts})


async def _unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """Do work that may take long; give it up, and give None, when a signal comes first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        return None if working.cancelled() else working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.wait({working, stopping})


async def _broker(
    plan: Plan, parts: Parts, stack: AsyncExitStack, log: logging.Logger
) -> tuple[Connect | None, str]:
    if plan.broker == "none":
        return None, "publishes nothing (--broker none)"
    mqtt = plan.mqtt
    if mqtt is None:
        mqtt = await stack.enter_async_context(_own_broker(plan.site, parts.node_id, log))
    elif parts.node_id != plan.node_id:  # a recording names its node itself
        mqtt = evolve(mqtt, client_id=_client_id(plan.site, parts.node_id))
    scheme = "mqtts" if mqtt.tls is not None else "mqtt"
    where = f"publishes to {scheme}://{mqtt.address} under eaco/v1/{plan.site}/{parts.node_id}"
    return mqtt_connector(mqtt), where


def _client_id(site: str, node_id: str) -> str:
    return f"eaco-{site}-{node_id}-agent"


@asynccontextmanager
async def _own_broker(
    site: str, node_id: str, log: logging.Logger
) -> AsyncGenerator[MqttOptions, None]:
    """Run a broker beside the agent, on the usual port if that is free."""
    from eaco_telemetry.broker import PortTaken, running_broker  # noqa: PLC0415 - rarely used

    log.info("starts a broker for this machine only")
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(running_broker(port=MQTT_PORT))
        except PortTaken:
            address = await stack.enter_async_context(running_broker())
            log.info("the port %d is in use, so the broker takes another", MQTT_PORT)
        log.info(
            "runs a broker (%s); see it with: eaco top --broker %s",
            address.kind,
            address,
        )
        yield MqttOptions(host=address.host, port=address.port, client_id=_client_id(site, node_id))


async def _count(agent: Agent, log: logging.Logger) -> None:
    while True:
        await asyncio.sleep(_COUNT_EVERY_S)
        facts = asdict(agent.stats)
        log.debug("%s", _counted(facts), extra={"facts": facts})


def _counted(facts: dict[str, object]) -> str:
    sinks = facts["sinks_dropped"]
    return (
        f"{facts['samples']} samples taken, {facts['samples_published']} published,"
        f" {facts['samples_dropped']} dropped for a newer one;"
        f" {facts['events']} events, {facts['events_dropped']} lost before they were sent;"
        f" {facts['connections']} connections" + (f"; ended early: {sinks}" if sinks else "")
    )
