"""What `eaco agent` is to do, and the parts that it is made of: readers, sinks, sentences."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, cast

from attrs import define, field, frozen

from eaco_adapters.cli._output import check_writable
from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.agent import Source
from eaco_telemetry.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from pathlib import Path

    from eaco_telemetry.agent import Plug, Sink
    from eaco_telemetry.meta import NodeMeta
    from eaco_telemetry.readers.base import Reader
    from eaco_telemetry.transport import MqttOptions

_NOT_ASKED: Final = "not asked for"
_PACKAGES: Final = {
    "polars": "record",
    "prometheus_client": "prometheus",
    "msgspec": "mqtt",
    "aiomqtt": "mqtt",
    "paho": "mqtt",
}


@frozen
class Plan:
    """The options of the command. `mqtt`: None without a broker, or for one of our own."""

    broker: str
    mqtt: MqttOptions | None
    node_id: str
    named: bool
    site: str
    period_s: float
    backoff_cap_s: float
    slow_retry_s: float
    last_every_s: float | None
    reader: tuple[str, ...]
    dcgm: str | None
    isolate: bool
    plugs: tuple[str, ...]
    simulate: int | None
    seed: int
    replay: Path | None
    speed: float
    record: Path | None
    prometheus: str | None
    home_assistant: bool
    once: bool
    exit_when_stuck: bool
    as_json: bool
    verbose: bool


class Closable(Source, Protocol):
    """A source that can also be closed without an event loop."""

    def close_blocking(self) -> None:
        """Let go."""
        ...


@define
class Parts:
    """What the agent of a plan works with, and what is to be said about it at the start."""

    source: Closable
    node_id: str
    period_s: float
    self_paced: bool = False
    plugs: list[Plug] = field(factory=list["Plug"])
    sinks: list[Sink] = field(factory=list["Sink"])
    says: list[str] = field(factory=list[str])

    def close_sinks(self) -> None:
        """Close the sinks, for when no agent came to do it."""
        for sink in self.sinks:
            sink.close()


@contextmanager
def extras_named() -> Generator[None, None, None]:
    """Turn the lack of an optional package into a sentence that says what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        extra = _PACKAGES.get(package)
        if extra is None:
            raise
        raise EnvironmentFault(
            f"this needs the package {package}, which is not installed;"
            f" install it with: pip install 'eaco[{extra}]'"
        ) from None


def prepare(plan: Plan) -> Parts:
    """Find the readers and make the sinks. Blocks; not for an event loop."""
    with extras_named():
        parts = _replayed(plan, plan.replay) if plan.replay is not None else _sensors(plan)
        try:
            _add_sinks(plan, parts)
        except BaseException:
            parts.close_sinks()
            parts.source.close_blocking()
            raise
    return parts


def announcer(plan: Plan) -> Callable[[NodeMeta], Iterable[tuple[str, bytes]]]:
    """Give what makes further retained messages from the meta of the node."""
    if not plan.home_assistant:
        return lambda _meta: ()
    from eaco_telemetry.exporters.home_assistant import (  # noqa: PLC0415 - rarely used
        discovery_messages,
        removal_messages,
    )

    told: list[tuple[tuple[str, bytes], ...]] = [()]

    def announce(meta: NodeMeta) -> Iterable[tuple[str, bytes]]:
        messages = discovery_messages(meta, site=plan.site, period_s=meta.period_s)
        gone = removal_messages(told[0], messages)
        told[0] = messages
        return (*gone, *messages)

    return announce


# ---------------------------------------------------------------------------- sources


def _replayed(plan: Plan, path: Path) -> Parts:
    from eaco_telemetry.recording import ReplayReader  # noqa: PLC0415 - needs polars

    name = plan.node_id if plan.named else None
    try:  # --node may be one of several nodes of a recording, or a new name for the only one
        source = ReplayReader(path, plan.speed, node_id=name)
        source.open_blocking()
    except InputError:
        if name is None:
            raise
        source = ReplayReader(path, plan.speed, rename=name)
        source.open_blocking()
    parts = Parts(
        cast("Closable", source),  # its `readers` is a constant of the class
        source.node_id or plan.node_id,
        min(max(source.period_s or plan.period_s, 0.001), 86_400.0),
        self_paced=True,
    )
    parts.says.append(f"plays the recording {path}: nothing of this is measured now")
    return parts


def _sensors(plan: Plan) -> Parts:
    from eaco_telemetry.readers.auto import choose_readers  # noqa: PLC0415 - many modules
    from eaco_telemetry.readers.plug import parse_plug  # noqa: PLC0415 - as above

    plugs = [parse_plug(text) for text in plan.plugs]
    choice = choose_readers(
        plan.node_id,
        want=plan.reader or None,
        simulate=plan.simulate,
        seed=plan.seed,
        isolate=plan.isolate,
        dcgm_url=plan.dcgm,
    )
    readers: list[Reader] = [*choice.readers, *plugs]
    sampler = Sampler(readers, node_id=plan.node_id, session_id=secrets.token_hex(8))
    parts = Parts(sampler, plan.node_id, plan.period_s, plugs=[*plugs])
    simulated = any(reader.name == "simulated" for reader in readers)
    parts.says.append(
        "SIMULATED: the GPUs do not exist and their numbers are made up"
        if simulated
        else f"reads: {', '.join(sampler.readers) or 'nothing'}"
    )
    if not simulated:
        parts.says += _skipped(choice.skipped)
    parts.says += [f"more is possible: {hint}" for hint in choice.hints]
    return parts


def _skipped(skipped: Mapping[str, str]) -> list[str]:
    """Say what is not read and why; readers with the same reason share a line."""
    by_reason: dict[str, list[str]] = {}
    for name, why in skipped.items():
        if why != _NOT_ASKED:
            by_reason.setdefault(why, []).append(name)
    return [f"does not read {', '.join(names)}: {why}" for why, names in by_reason.items()]


# ------------------------------------------------------------------------------ sinks


def _add_sinks(plan: Plan, parts: Parts) -> None:
    if plan.record is not None:
        check_writable(plan.record)
        from eaco_telemetry.recording import Recorder  # noqa: PLC0415 - needs polars

        parts.sinks.append(cast("Sink", Recorder(plan.record)))
        parts.says.append(f"records to {plan.record}")
    if plan.prometheus is not None:
        from eaco_telemetry.exporters.prometheus import (  # noqa: PLC0415 - an extra
            PrometheusExporter,
            parse_listen,
        )

        host, port = parse_listen(plan.prometheus)
        exporter = PrometheusExporter(host=host, port=port, period_s=parts.period_s)
        parts.sinks.append(cast("Sink", exporter))
        at, number = exporter.address
        shown = f"[{at}]" if ":" in at else at
        parts.says.append(f"serves metrics at http://{shown}:{number}/metrics")
