"""`eaco agent`: reads the sensors of this node and publishes them, until it is stopped."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from eaco_adapters.cli._mqtt_options import Login, connection, mqtt_options_with
from eaco_adapters.cli._option_types import file_path, number
from eaco_adapters.cli._output import real_path
from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eaco_telemetry.transport import MqttOptions

    F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"

_EXAMPLES: Final = """\
\b
Examples:
  eaco agent --simulate 8 --broker embedded
  eaco agent --broker mqtts://broker.lab --username node7 --password-file secret
  eaco agent --broker none --record today.parquet
  eaco agent --once
"""
_MIN_PERIOD_S: Final = 0.05
_MAX_PERIOD_S: Final = 3600.0
_MOST_SIMULATED: Final = 1024
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_SENSORS: Final = ("simulate", "reader", "dcgm", "isolate", "plugs", "seed", "period_s")
_BROKER_HELP: Final = (
    "Where to publish: mqtt://HOST[:1883], mqtts://HOST[:8883] for TLS; embedded: start a"
    " broker here, for this machine only (mosquitto if it is installed, else iotcore); none."
    f"  [default: {DEFAULT_BROKER}]"
)


def _grouped(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Put several options on a command, in the order of `--help`."""

    def put(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return put


_node_options = _grouped(
    click.option("--site", default="lab", show_default=True, metavar="NAME",
                 help="Name of the site, a part of the topics."),
    click.option("--node", metavar="NAME", help="Name of this node.  [default: its host name]"),
    click.option("--period-s", type=number(_MIN_PERIOD_S, _MAX_PERIOD_S), default=1.0,
                 show_default=True, metavar="S", help="Seconds between two samples."),
    click.option("--backoff-cap-s", type=number(above=True), default=30.0, show_default=True,
                 metavar="S", help="Longest pause between two attempts to reach the broker."),
    click.option("--slow-retry-s", type=number(above=True), default=30.0, show_default=True,
                 metavar="S", help="Shortest pause after a refusal, such as a wrong password."),
    click.option("--last-every-s", type=number(above=True), metavar="S",
                 help="Let the broker keep one sample in so many seconds, for who comes late."),
)  # fmt: skip

_source_options = _grouped(
    click.option("--reader", multiple=True, metavar="NAME",
                 help="Read only this: nvml, jetson, dcgm, amd, amdsmi, intel, drm or host. Can be"
                 " given again.  [default: all that this node has]"),
    click.option("--dcgm", metavar="URL",
                 help="Where the DCGM exporter of this node is, if not at its usual place"
                 " (http://127.0.0.1:9400/metrics)."),
    click.option("--isolate", is_flag=True,
                 help="Read NVML in a process of its own, which can be ended when a driver"
                 " hangs. Takes more memory."),
    click.option("--plug", "plugs", multiple=True, metavar="KIND:NAME",
                 help="Smart plug on the same broker that measures this node: tasmota:NAME,"
                 " shelly:NAME or shelly1:NAME. Can be given again."),
    click.option("--simulate", type=click.IntRange(1, _MOST_SIMULATED), metavar="N",
                 help="N GPUs that do not exist, instead of sensors. Their samples say so."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
                 help="Seed of the load of --simulate."),
    click.option("--replay", type=file_path, metavar="FILE",
                 help="Play a recording instead of reading sensors."),
    click.option("--speed", type=number(above=True, inf=True), default=1.0, show_default=True,
                 metavar="X", help="With --replay: so many times as fast."),
)  # fmt: skip

_output_options = _grouped(
    click.option("--record", type=file_path, metavar="FILE",
                 help="Record to this Parquet file; one that is there is continued."),
    click.option("--prometheus", metavar="[HOST:]PORT",
                 help="Serve metrics at http://HOST:PORT/metrics; without HOST for this"
                 " machine only."),
    click.option("--home-assistant", is_flag=True,
                 help="Announce the values to Home Assistant (MQTT discovery)."),
    click.option("--once", is_flag=True,
                 help="Take one sample, print it as JSON, and end. Needs no broker."),
    click.option("--exit-when-stuck", is_flag=True,
                 help="End with status 1 when a driver hangs so that only a new process can"
                 " read again; for use under a supervisor such as systemd."),
    click.option("--json", "as_json", is_flag=True, help="Write the log on stderr as JSON lines."),
    click.option("--verbose", is_flag=True, help="Log more: also what is counted, once a minute."),
)  # fmt: skip


@click.command("agent", epilog=_EXAMPLES)
@mqtt_options_with(_BROKER_HELP)
@_node_options
@_source_options
@_output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    broker: str | None,
    username: str | None,
    password_file: Path | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    **options: Any,  # noqa: ANN401 - the options above, typed by click
) -> None:
    """Read the sensors of this node and publish a sample each second over MQTT.

    Runs without root, and says at the start what it reads and what more rights would add.
    While there is no broker it goes on sampling and recording, and tries again. Ctrl-C or
    SIGTERM end it with everything in order. Exit status: 0 after a stop, 1 for a failure of
    something outside, 2 for wrong use.
    """
    login = Login(username, password_file, ca_file, cert_file, key_file)
    broker = _checked(context, broker, login, **options)
    node_id = options["node"] or default_node_id()
    mqtt = None
    if broker not in {"embedded", "none"}:
        mqtt = _connection(broker, login, options["site"], node_id)

    # Loaded late, so that --help and wrong use are answered quickly.
    from eaco_adapters.cli._agent_plan import Plan  # noqa: PLC0415 - as said
    from eaco_adapters.cli._agent_run import run  # noqa: PLC0415 - as said

    plan = Plan(
        broker=broker, mqtt=mqtt, node_id=node_id, named=options.pop("node") is not None, **options
    )
    asyncio.run(run(plan))


def default_node_id() -> str:
    """Give the host name, as far as it can be a level of a topic."""
    return _NO_NAME.sub("-", socket.gethostname())[:64] or "node"


def _connection(broker: str, login: Login, site: str, node_id: str) -> MqttOptions:
    from eaco_telemetry.topics import check_name  # noqa: PLC0415 - loaded late, as below

    check_name(site, "the site")
    check_name(node_id, "the node")
    # Always the same, so that a new connection takes the place of one that is half dead.
    return connection(broker, login, client_id=f"eaco-{site}-{node_id}-agent")


def _checked(context: click.Context, broker: str | None, login: Login, **given: Any) -> str:  # noqa: ANN401 - as above
    """Refuse options that contradict each other or would do nothing; give the broker."""
    _refuse_empty(context, {"broker": broker, "username": login.username, **given})
    if given["once"]:
        if broker not in {None, "none"}:
            raise click.UsageError("--once prints one sample and needs no --broker", context)
        broker = "none"
        _refuse(context, given, "--once only prints", "record", "prometheus", "home_assistant")
    broker = broker or DEFAULT_BROKER
    if login.given and broker in {"embedded", "none"}:
        raise click.UsageError(f"{login.given[0]} needs a --broker to log in at", context)
    if broker == "none":
        _refuse(context, given, "there is no broker", "plugs", "home_assistant")
    if given["simulate"] is not None:
        _refuse(context, given, "--simulate stands alone", "reader", "dcgm", "isolate")
    elif "simulated" not in given["reader"]:
        _refuse(context, given, "nothing is simulated", "seed")
    if given["replay"] is None:
        _refuse(context, given, "no recording is played", "speed")
    else:
        what = "--replay plays a recording"
        _refuse(context, given, what, *_SENSORS)
        if given["record"] is not None and real_path(given["record"]) == real_path(given["replay"]):
            raise InputError("--record would write into the recording that --replay plays")
    return broker


def _refuse_empty(context: click.Context, given: dict[str, Any]) -> None:
    """Refuse an empty text, which is most likely a variable of the shell that was never set."""
    for name, value in given.items():
        if value == "" or (isinstance(value, tuple) and "" in value):
            raise click.UsageError(
                f"{_option(name)} is empty; is a variable of the shell not set?", context
            )


def _option(name: str) -> str:
    return "--plug" if name == "plugs" else f"--{name.replace('_', '-')}"


def _refuse(context: click.Context, given: dict[str, Any], why: str, *names: str) -> None:
    """Refuse options that were given and would do nothing: the user expects something of them."""
    for name in names:
        if name in given and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_option(name)} cannot be here: {why}", context)
