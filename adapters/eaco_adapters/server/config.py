"""The file of `eaco serve` (TOML): read, checked, and every mistake told at once.

`docs/serve.md` lists the keys. A file that is not there is an error; a key that is not there has
its default; a key that is not known is an error with the nearest one that is.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
from attrs import field, frozen

from eaco_adapters.server.places import default_state_dir
from eaco_core.cluster import GpuSpec
from eaco_core.errors import InputError
from eaco_core.policies import POLICIES, policy_named
from eaco_core.rules import Rules
from eaco_telemetry.transport import parse_broker_url

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_GPUS: Final = 1024
_GIB: Final = 1 << 30


@frozen
class ListenConfig:
    """Where the server listens. `http`: host and port, or None for the socket alone.

    Whoever may open the socket is trusted; on `http` every request needs the token of `token_file`.
    """

    socket: Path
    http: tuple[str, int] | None = None
    token_file: Path | None = None


@frozen
class NodeConfig:
    """A node that this server runs jobs on, which is this machine.

    `gpus`: those named; None = what the sensors of this machine find. `simulated`: they are CPU
    cores that play GPUs. `labels` are for node selectors.
    """

    node_id: str
    gpus: tuple[GpuSpec, ...] | None = None
    simulated: bool = False
    labels: tuple[tuple[str, str], ...] = ()


@frozen
class TelemetryConfig:
    """Where readings come from: sensors of this machine, or agents over a broker."""

    local: bool = True
    period_s: float = 5.0
    broker: str | None = None
    site: str = "lab"
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None


@frozen
class ServerConfig:
    """Everything that `eaco serve` is told by its file."""

    name: str
    state_dir: Path
    listen: ListenConfig
    nodes: tuple[NodeConfig, ...]
    policy: str = "eaco"
    rules: Rules = field(factory=Rules)
    profiles: Path | None = None
    telemetry: TelemetryConfig = TelemetryConfig()
    power_model: bool = False


def read_config(path: Path) -> ServerConfig:
    """Read a configuration file. Raises InputError with every mistake in it."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError("there is no such configuration file", where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"it cannot be read: {error}", where=str(path)) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"it is not TOML: {error}", where=str(path)) from None
    return parse_config(data, where=str(path))


def parse_config(data: Mapping[str, Any], *, where: str = "configuration") -> ServerConfig:
    """Check a configuration that was read. Raises InputError with every mistake in it."""
    top = _Table(data, "", [])
    name = top.name("name", "eaco")
    state_dir = top.path("state_dir") or default_state_dir()
    policy = top.choice("policy", tuple(POLICIES), "eaco")
    config = ServerConfig(
        name=name,
        state_dir=state_dir,
        listen=_listen(top.table("listen"), state_dir),
        nodes=_nodes(top.table("nodes")),
        policy=policy,
        rules=_rules(top.table("rules"), policy),
        profiles=top.path("profiles"),
        telemetry=_telemetry(top.table("telemetry")),
        power_model=top.flag("power_model", default=False),
    )
    top.close()
    if top.problems:
        count = len(top.problems)
        raise InputError(
            f"{count} mistake{'' if count == 1 else 's'}: {'; '.join(top.problems)}", where=where
        )
    return config


def _listen(table: _Table, state_dir: Path) -> ListenConfig:
    socket = table.path("socket") or state_dir / "eaco.sock"
    address = table.address("http")
    token_file = table.path("token_file")
    if address is not None and token_file is None:
        table.problem("http", "needs `token_file`, a file with the token that clients must give")
    table.close()
    return ListenConfig(socket, address, token_file)


def _nodes(table: _Table) -> tuple[NodeConfig, ...]:
    found: list[NodeConfig] = []
    for node_id in list(table.data):
        node = table.table(node_id)
        if _NAME.fullmatch(node_id) is None:
            table.problem(node_id, "is no name for a node: letters, digits, `.`, `_` and `-`")
        simulated = node.whole("simulated_gpus", least=0, most=_MOST_GPUS)
        gpus = node.gpus("gpus")
        if simulated and gpus is not None:
            node.problem("simulated_gpus", "and `gpus` exclude each other")
        if simulated:
            gpus = tuple(
                GpuSpec(f"SIM-{node_id}-{number}", "simulated", _GIB) for number in range(simulated)
            )
        found.append(NodeConfig(node_id, gpus, bool(simulated), node.words("labels")))
        node.close()
    _check_gpus(table, found)
    table.close()
    return tuple(found) or (NodeConfig("local"),)


def _check_gpus(table: _Table, nodes: list[NodeConfig]) -> None:
    """A GPU is in one node, once; what the sensors find can be in one node only."""
    owners: dict[str, str] = {}
    for node in nodes:
        for gpu in node.gpus or ():
            if gpu.gpu_id in owners:
                at = owners[gpu.gpu_id]
                table.problem(node.node_id, f"has GPU {gpu.gpu_id}, which node {at} has already")
            owners[gpu.gpu_id] = node.node_id
    found = [node.node_id for node in nodes if node.gpus is None]
    for node_id in found[1:]:
        table.problem(
            node_id, f"needs `gpus`: node {found[0]} already has those that the sensors find"
        )


def _rules(table: _Table, policy: str) -> Rules:
    default = policy_named(policy).rules
    known = {one.name: one for one in attrs.fields(Rules)}
    given: dict[str, Any] = {}
    for key in known:
        if key in table.data:
            value = table.take(key)
            if isinstance(getattr(default, key), float) and type(value) is int:
                value = float(value)
            given[key] = value
    rules = default
    for key, value in given.items():
        try:
            rules = attrs.evolve(rules, **{key: value})
        except (InputError, TypeError) as error:
            table.problem(key, f"is wrong: {error}")
    table.close(known)
    return rules


def _telemetry(table: _Table) -> TelemetryConfig:
    broker = _broker(table)
    local = table.flag("local", default=broker is None)
    if local and broker is not None:
        table.problem("local", "and `broker` exclude each other: readings come from one of them")
    for key in ("site", "username", "password_file", "ca_file"):
        if key in table.data and "broker" not in table.data:
            table.problem(key, "is for readings from a `broker`")
    config = TelemetryConfig(
        local=local,
        period_s=table.positive("period_s", 5.0),
        broker=broker,
        site=table.name("site", "lab"),
        username=table.text("username"),
        password_file=table.path("password_file"),
        ca_file=table.path("ca_file"),
    )
    table.close()
    return config


def _broker(table: _Table) -> str | None:
    text = table.text("broker")
    if text is None:
        return None
    try:
        parse_broker_url(text)
    except InputError as error:
        table.problem("broker", f"is wrong: {error}")
        return None
    return text


def _items(value: Any) -> list[Any]:  # noqa: ANN401 - a list of whatever TOML holds
    return list(value)


class _Table:
    """One table of the file. Mistakes are collected; a wrong value counts as its default."""

    def __init__(self, data: Mapping[str, Any], place: str, problems: list[str]) -> None:
        self.data = dict(data)
        self.problems = problems
        self._place = place
        self._asked: set[str] = set()

    def problem(self, key: str, what: str) -> None:
        self.problems.append(f"`{self._place}{key}` {what}")

    def take(self, key: str) -> Any:  # noqa: ANN401 - whatever TOML holds
        self._asked.add(key)
        return self.data.get(key)

    def close(self, known: Mapping[str, object] | None = None) -> None:
        """Tell of every key that nobody asked for."""
        names = self._asked if known is None else set(known)
        for key in self.data.keys() - self._asked:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; do you mean `{near[0]}`?" if near else ""
            self.problem(key, f"is not known{hint}")

    def table(self, key: str) -> _Table:
        value = self.take(key)
        if value is not None and not isinstance(value, dict):
            self.problem(key, "must be a table")
            value = None
        inner = cast("dict[str, Any]", value or {})
        return _Table(inner, f"{self._place}{key}.", self.problems)

    def text(self, key: str) -> str | None:
        value = self.take(key)
        if value is None or (isinstance(value, str) and value):
            return value
        self.problem(key, f"must be text, not {value!r}")
        return None

    def name(self, key: str, default: str) -> str:
        value = self.text(key)
        if value is not None and _NAME.fullmatch(value) is None:
            self.problem(key, f"must be letters, digits, `.`, `_` and `-`, not {value!r}")
        return value or default

    def path(self, key: str) -> Path | None:
        value = self.text(key)
        return None if value is None else Path(value).expanduser()

    def choice(self, key: str, names: tuple[str, ...], default: str) -> str:
        value = self.text(key)
        if value is not None and value not in names:
            self.problem(key, f"must be one of {', '.join(names)}, not {value!r}")
            return default
        return value or default

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.take(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.problem(key, f"must be true or false, not {value!r}")
        return default

    def positive(self, key: str, default: float) -> float:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.problem(key, f"must be a number above 0, not {value!r}")
            return default
        return float(value)

    def whole(self, key: str, *, least: int, most: int) -> int | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.problem(key, f"must be a whole number from {least} to {most}, not {value!r}")
            return None
        return value

    def words(self, key: str) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        inner = self.table(key)
        for name in inner.data:
            value = inner.text(name)
            if value is not None:
                found.append((name, value))
        return tuple(sorted(found))

    def address(self, key: str) -> tuple[str, int] | None:
        value = self.text(key)
        if value is None:
            return None
        host, colon, port = value.rpartition(":")
        host = host.strip("[]")
        if not colon or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the last port there is
            self.problem(key, f"must be an address and a port like 127.0.0.1:8470, not {value!r}")
            return None
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if host != "localhost":
                self.problem(key, f"must begin with an IP address, not {host!r}")
                return None
        return host, int(port)

    def gpus(self, key: str) -> tuple[GpuSpec, ...] | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value:
            self.problem(key, "must be a list of tables with `id`, `type` and `mem_gib`")
            return None
        found: list[GpuSpec] = []
        for number, item in enumerate(_items(value)):
            if not isinstance(item, dict):
                self.problem(key, f"must hold tables; item {number} is {item!r}")
                continue
            place = f"{self._place}{key}[{number}]."
            inner = _Table(cast("dict[str, Any]", item), place, self.problems)
            gpu_id, gpu_type = inner.text("id"), inner.text("type")
            mem_gib = inner.positive("mem_gib", 0.0)
            if gpu_id is None or gpu_type is None:
                inner.problem("id", "and `type` are needed")
            else:
                found.append(GpuSpec(gpu_id, gpu_type, int(mem_gib * _GIB) or None))
            inner.close()
        return tuple(found)
