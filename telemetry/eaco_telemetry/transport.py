"""A connection to a broker as the rest of eaco sees it, whatever library is behind it.

`Connect` makes one connection; when it breaks, everything on it raises `ConnectionLost`,
and whoever wants to go on makes a new one after the pause that `Backoff` names.
Nothing here needs an extra; `mqtt_connector` loads the MQTT client when it is called.
"""

from __future__ import annotations

import os
import random
import re
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from attrs import field, frozen

from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from attrs import Attribute

PASSWORD_VARIABLE: Final = "EACO_MQTT_PASSWORD"  # noqa: S105 - the name of a variable
"""The environment variable that may hold the password of the broker."""

MQTT_PORT: Final = 1883
MQTTS_PORT: Final = 8883

_MAX_PORT: Final = 65_535
_MAX_SECRET_BYTES: Final = 65_535  # the longest password that MQTT can carry
_SCHEMES: Final = {"mqtt": False, "tcp": False, "mqtts": True, "ssl": True, "tls": True}
_SECRET_IN_URL: Final = re.compile(r"[^/]*@")


class ConnectionLost(EnvironmentFault):
    """The connection to the broker broke, or could not be made; the message says why."""

    retry_slowly: bool = False


class ConnectionRefused(ConnectionLost):
    """The broker answered, and does not want us.

    `retry_slowly`: trying again soon is pointless (wrong password, not authorised).
    """

    def __init__(self, message: str, *, retry_slowly: bool = True) -> None:
        super().__init__(message)
        self.retry_slowly = retry_slowly


@frozen
class TlsOptions:
    """What a TLS connection needs. Without `ca_file`, the authorities of the system are used.

    `cert_file` and `key_file`: certificate of this client and its key (PEM, not encrypted;
    the key may also be in `cert_file`).
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __attrs_post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise InputError("a client key was given without its certificate; give both")


def _positive(instance: object, attribute: Attribute[Any], value: float) -> None:
    if not value > 0:
        raise InputError(f"{type(instance).__name__}.{attribute.name} must be above 0, not {value}")


def _port(_instance: object, _attribute: Attribute[int], value: int) -> None:
    if not 1 <= value <= _MAX_PORT:
        raise InputError(f"the port of the broker must be from 1 to {_MAX_PORT}, not {value}")


@frozen
class MqttOptions:
    """How to reach a broker. The password never shows in the text form of this.

    `client_id`: empty means one by chance. `keepalive_s`: a whole number above 0; the broker
    publishes the last will after 1.5 times this. `connect_timeout_s` is for each call, too.
    `max_incoming`, `max_incoming_bytes`: how
    much may wait to be taken; what comes beyond that is dropped and counted.
    """

    host: str = "127.0.0.1"
    port: int = field(default=MQTT_PORT, validator=_port)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    client_id: str = ""
    keepalive_s: int = field(default=10, validator=_positive)
    connect_timeout_s: float = field(default=10.0, validator=_positive)
    max_incoming: int = field(default=20_000, validator=_positive)
    max_incoming_bytes: int = field(default=128 << 20, validator=_positive)

    def __attrs_post_init__(self) -> None:
        if self.password is not None and self.username is None:
            raise InputError("a password was given without a user name; give the name too")

    @property
    def address(self) -> str:
        """Where the broker is, for people: ``host:port``, without any secret."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@frozen
class Will:
    """What the broker publishes for us when our connection breaks."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


@frozen
class Incoming:
    """One message. `retain`: the broker had kept it. `received_s`: monotonic, of this machine."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    received_s: float


class Transport(Protocol):
    """One connection to a broker, as long as it holds. Every call has a time limit."""

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Send one message. With QoS 1 this returns when the broker has it.

        Raises `ConnectionLost`; the message may then have arrived or not.
        """
        ...

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        """Ask for the messages of these (filter, QoS). Raises `ConnectionLost`."""
        ...

    def messages(self) -> AsyncIterator[Incoming]:
        """Give what arrives, in order. Raises `ConnectionLost` when the connection ends.

        What had arrived before that is given first. Only one iterator at a time.
        """
        ...

    @property
    def discarded(self) -> int:
        """How many arrived messages were dropped because too many waited to be taken."""
        ...


class Connect(Protocol):
    """Makes a connection: ``async with connect(will=...) as transport``.

    Entering raises `ConnectionLost` if there is no connection to be had now.
    Leaving ends the connection in an orderly way, so that the will is not published.
    """

    def __call__(self, *, will: Will | None = None) -> AbstractAsyncContextManager[Transport]:
        """Prepare one connection; it is made when the context is entered."""
        ...


class Backoff:
    """The pauses between attempts: twice as long each time up to a cap, by half with chance.

    With chance, so that a thousand agents do not come back to a broker at the same moment.
    `slow_s`: the shortest pause after a refusal that will not change soon.
    """

    def __init__(
        self,
        first_s: float = 0.5,
        cap_s: float = 30.0,
        *,
        slow_s: float = 30.0,
        chance: random.Random | None = None,
    ) -> None:
        if not 0 < first_s < float("inf") or not 0 < cap_s < float("inf") or not slow_s > 0:
            raise InputError(
                "the pauses between attempts to connect must be above 0 seconds,"
                f" not {first_s}, {cap_s} and {slow_s}"
            )
        self._first_s = min(first_s, cap_s)
        self._cap_s = cap_s
        self._slow_s = slow_s
        self._chance = chance or random.Random()  # noqa: S311 - spreads attempts, hides nothing
        self._span_s = self._first_s

    def next_s(self, lost: ConnectionLost | None = None) -> float:
        """Give the seconds to wait now. `lost`: why the last attempt failed, if known."""
        span_s = self._span_s
        self._span_s = min(2 * span_s, self._cap_s)
        if lost is not None and lost.retry_slowly:
            return max(self._slow_s, span_s) * self._chance.uniform(1.0, 1.5)
        return span_s * self._chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the first pause. Call it when a connection has proved good."""
        self._span_s = self._first_s


# ------------------------------------------------------------------- addresses, secrets


def parse_broker_url(text: str) -> MqttOptions:
    """Read ``mqtt://user@host:1883``, ``mqtts://host`` or ``host[:port]``.

    ``mqtts`` is TLS, on port 8883 if none is named. Raises `InputError`; also for a password
    in the address, because addresses end up in lists of processes and in logs.
    """
    shown = _SECRET_IN_URL.sub("...@", text)
    try:
        url = urlsplit(text if "://" in text else f"mqtt://{text}")
        port = url.port
    except ValueError:
        raise InputError(f"{shown!r} is no address of a broker: {_FORM}") from None
    if url.password is not None:
        raise InputError(
            "a password must not be part of the address of a broker, where others can see it;"
            f" put it in a file (--password-file) or in the variable {PASSWORD_VARIABLE}"
        )
    if url.scheme not in _SCHEMES:
        raise InputError(f"{shown!r} has the scheme {url.scheme!r}: {_FORM}")
    if not url.hostname or _has_rest(url) or any(c.isspace() or not c.isprintable() for c in text):
        raise InputError(f"{shown!r} is no address of a broker: {_FORM}")
    secure = _SCHEMES[url.scheme]
    if port == 0:
        raise InputError(f"{shown!r} names the port 0; a port is from 1 to {_MAX_PORT}")
    return MqttOptions(
        host=url.hostname,
        port=port or (MQTTS_PORT if secure else MQTT_PORT),
        username=unquote(url.username) if url.username else None,
        tls=TlsOptions() if secure else None,
    )


_FORM: Final = "write HOST, HOST:PORT, mqtt://USER@HOST:PORT or, for TLS, mqtts://HOST"


def _has_rest(url: SplitResult) -> bool:
    return url.path not in {"", "/"} or bool(url.query) or bool(url.fragment)


def read_password(file: Path | None, env: str = PASSWORD_VARIABLE) -> str | None:
    """Give the password from the first line of a file, or else from the environment.

    None: neither is there. Raises `InputError`, without the secret, if the file is unusable.
    """
    if file is None:
        return os.environ.get(env) or None
    try:
        with file.open("rb") as stream:
            line = stream.readline(_MAX_SECRET_BYTES + 1)
        secret = line.rstrip(b"\r\n").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"the password file {file} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"the password file {file} cannot be read: {error.strerror}") from None
    if not secret:
        raise InputError(f"the first line of the password file {file} is empty")
    if len(line) > _MAX_SECRET_BYTES:
        raise InputError(f"the first line of {file} is too long for a password")
    return secret


# -------------------------------------------------------------------------- connecting


def matches(topic_filter: str, topic: str) -> bool:
    """Tell whether a topic is one of a filter with ``+`` and ``#``, as MQTT defines it."""
    if topic.startswith("$") and topic_filter[:1] in {"+", "#"}:
        return False  # the topics of the broker itself are only given by name
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index == len(levels) or level not in {"+", levels[index]}:
            return False
    return len(wanted) == len(levels)
