"""Connections by aiomqtt 2 (MQTT 3.1.1). Loaded by `eaco_telemetry.mqtt`.

What aiomqtt leaves to its user is done here: a bounded queue whose drops are counted, calls
that end when the connection does and not when their time is over, and sockets that are
closed also after a failure.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiomqtt

from eaco_core.errors import InputError
from eaco_telemetry.transport import (
    Connect,
    ConnectionLost,
    ConnectionRefused,
    Incoming,
    MqttOptions,
    TlsOptions,
    Transport,
    Will,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence

    from paho.mqtt.client import Client

T = TypeVar("T")

_TCP_TIMEOUT_S: Final = 5.0
_REFUSAL_S: Final = 0.1
_LEAVE_S: Final = 2.0
_SUBACK_FAILED: Final = 0x80

# The answers of a broker that stay the same until a person has done something.
_LASTING: Final = {
    132: "it does not speak MQTT 3.1.1",
    133: "it does not accept the client id",
    134: "wrong user name or password",
    135: "wrong user name or password, or this user may not connect",
}
# What paho calls an end of a connection that nobody announced, and one after silence.
_ENDS: Final = {
    4: "it is no longer connected",
    7: "the broker closed it",
    16: "the broker did not answer in time",
    128: "the broker closed it",
    141: "the broker did not answer in time",
}
_ERRNO: Final = re.compile(r"^\[Errno -?\d+\] ")
_CERTIFICATE: Final = "CERTIFICATE_VERIFY_FAILED"


def _silent_logger() -> logging.Logger:
    """Give a logger that says nothing: what matters is raised, and packets hold secrets."""
    logger = logging.getLogger("eaco.mqtt.packets")
    logger.setLevel(logging.CRITICAL + 1)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


_SILENT: Final = _silent_logger()


def aiomqtt_connector(options: MqttOptions) -> Connect:
    """Give what makes connections with these options. Raises `InputError` for a file of TLS."""
    context = None if options.tls is None else _tls_context(options.tls)

    @asynccontextmanager
    async def connect(*, will: Will | None = None) -> AsyncGenerator[Transport, None]:
        transport = await _connected(options, context, will)
        try:
            yield transport
        except BaseException:
            await transport.leave(orderly=False)
            raise
        await transport.leave(orderly=True)

    return connect


async def _connected(
    options: MqttOptions, context: ssl.SSLContext | None, will: Will | None
) -> _AiomqttTransport:
    transport = _AiomqttTransport(_client(options, context, will), options)
    # A part of the attempt runs on a thread that cannot be stopped. It is seen to its end even
    # if nobody wants the connection any more, because only then its socket can be closed.
    attempt = asyncio.ensure_future(transport.enter())
    try:
        await asyncio.shield(attempt)
    except asyncio.CancelledError:
        while not attempt.done():
            await asyncio.wait({attempt}, timeout=_REFUSAL_S)
            if transport.has_socket:  # the part on the thread is over
                attempt.cancel()
        if not attempt.cancelled():
            attempt.exception()  # nobody wants to know any more
        await transport.leave(orderly=True)
        raise
    return transport


def _client(
    options: MqttOptions, context: ssl.SSLContext | None, will: Will | None
) -> aiomqtt.Client:
    client = aiomqtt.Client(
        options.host,
        options.port,
        username=options.username,
        password=options.password,
        logger=_SILENT,
        identifier=options.client_id or f"eaco-{secrets.token_hex(6)}",
        queue_type=_Inbox,
        protocol=aiomqtt.ProtocolVersion.V311,
        will=None
        if will is None
        else aiomqtt.Will(will.topic, will.payload, will.qos, will.retain),
        clean_session=True,
        timeout=options.connect_timeout_s,
        keepalive=options.keepalive_s,
        max_queued_incoming_messages=options.max_incoming,
        tls_context=context,
        # Messages are small and each counts: none is to wait for the one before.
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )
    # aiomqtt has no option for this one.
    client._client.connect_timeout = min(_TCP_TIMEOUT_S, options.connect_timeout_s)  # noqa: SLF001 - as said
    return client


class _Inbox(asyncio.Queue[aiomqtt.Message]):
    """Takes the place of aiomqtt's queue, which costs a task for each message.

    Bounded by count and bytes; drops are counted. `get` of the base class never ends,
    so waiting for aiomqtt's next message means to wait for the end of the connection.
    """

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self.most = maxsize
        self.most_bytes = 1 << 62
        self.held_bytes = 0
        self.discarded = 0
        self.items: deque[Incoming] = deque()
        self.changed: asyncio.Future[None] | None = None

    def put_nowait(self, item: aiomqtt.Message) -> None:
        payload = item.payload
        held_bytes = self.held_bytes + len(payload)
        if len(self.items) >= self.most or held_bytes > self.most_bytes:
            self.discarded += 1
            return
        self.held_bytes = held_bytes
        topic = item.topic.value
        self.items.append(Incoming(topic, payload, item.qos, item.retain, time.monotonic()))
        self.wake()

    def wake(self) -> None:
        """Let the iterator look again."""
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)


class _AiomqttTransport:
    """One connection; a `Transport`."""

    def __init__(self, client: aiomqtt.Client, options: MqttOptions) -> None:
        self._client = client
        self._options = options
        inbox = client._queue  # noqa: SLF001 - made by aiomqtt, of our class
        if not isinstance(inbox, _Inbox):
            raise TypeError("this version of aiomqtt makes its queue in another way")
        inbox.most_bytes = options.max_incoming_bytes
        self._inbox = inbox
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watcher: asyncio.Task[None] | None = None
        self._why = "the connection was closed"
        self._thread = threading.get_ident()
        self._early: asyncio.Future[None] = self._lost.get_loop().create_future()
        self._inner = client._client.on_disconnect  # noqa: SLF001 - see _on_disconnect
        client._client.on_disconnect = self._on_disconnect  # noqa: SLF001 - as above
        self._watched_fd: int | None = None
        client._client.on_socket_register_write = self._want_to_write  # noqa: SLF001 - see there
        client._client.on_socket_unregister_write = self._nothing_to_write  # noqa: SLF001 - as above

    @property
    def discarded(self) -> int:
        return self._inbox.discarded

    @property
    def has_socket(self) -> bool:
        """Whether a connection to the machine of the broker is there."""
        return self._client._client.socket() is not None  # noqa: SLF001 - aiomqtt does not tell

    async def enter(self) -> None:
        """Connect, or raise `ConnectionLost` and leave nothing open."""
        entering = asyncio.ensure_future(self._client.__aenter__())
        try:
            waited: set[asyncio.Future[Any]] = {entering, self._early}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():  # a refusal with a reason is noticed a moment later
                await asyncio.wait({entering}, timeout=_REFUSAL_S)
            if not entering.done():
                raise ConnectionLost(_hung_up(self._options))
            await entering
        except aiomqtt.MqttError as error:
            raise _fault(error, self._options) from None
        except (ValueError, OSError) as error:  # a name that is no name, and the like
            raise ConnectionLost(f"cannot connect to {self._options.address}: {error}") from None
        else:
            self._watcher = asyncio.create_task(self._watch(), name="eaco-mqtt-connection")
        finally:
            if self._watcher is None:
                entering.cancel()
                await asyncio.wait({entering})
                self._close_socket()

    async def leave(self, *, orderly: bool) -> None:
        """End the connection. Not orderly: drop it, so that the broker publishes the will."""
        holds = not self._lost.done()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
        try:
            if orderly and holds:
                async with asyncio.timeout(_LEAVE_S):
                    await self._client.__aexit__(None, None, None)
        except (aiomqtt.MqttError, TimeoutError):
            pass  # it is gone either way
        finally:
            self._end()
            self._close_socket()
        await asyncio.sleep(0)  # for aiomqtt's task, which has been cancelled

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False
    ) -> None:
        await self._while_connected(self._client.publish(topic, payload, qos, retain))

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        codes = await self._while_connected(self._client.subscribe(list(filters)))
        for (wanted, _qos), code in zip(filters, codes, strict=True):
            if _number(code) >= _SUBACK_FAILED:
                raise ConnectionRefused(
                    f"the broker at {self._options.address} does not let {_user(self._options)}"
                    f" subscribe to {wanted}; check its access rules"
                )

    async def messages(self) -> AsyncIterator[Incoming]:
        inbox = self._inbox
        items = inbox.items
        loop = asyncio.get_running_loop()
        while True:
            while items:
                incoming = items.popleft()
                inbox.held_bytes -= len(incoming.payload)
                yield incoming
            self._check()
            inbox.changed = loop.create_future()
            await inbox.changed

    # ------------------------------------------------------------------------ the end

    async def _watch(self) -> None:
        """Notice the end of the connection."""
        try:
            async for _message in self._client.messages:
                pass  # never: see _Inbox
        except aiomqtt.MqttError as error:
            self._why = _reason(error.__cause__ or error)
        finally:
            self._end()

    def _end(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        self._inbox.wake()

    def _check(self) -> None:
        if self._lost.done():
            raise self._fault()

    def _fault(self) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to the broker at {self._options.address} broke: {self._why}"
        )

    async def _while_connected(self, call: Coroutine[Any, Any, T]) -> T:
        """Do a call of aiomqtt, which by itself would go on waiting for a broker that is gone."""
        if self._lost.done():
            call.close()
            raise self._fault()
        task = asyncio.ensure_future(call)
        try:
            waited: set[asyncio.Future[Any]] = {task, self._lost}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except aiomqtt.MqttError as error:
            # A call that failed or took too long: this connection is of no more use.
            self._why = _reason(error)
            self._end()
            raise self._fault() from None
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, aiomqtt.MqttError):
                    await task
        raise self._fault()

    def _on_disconnect(self, *facts: Any) -> None:  # noqa: ANN401 - handed on as they are
        """Notice also the end of a connection that was never complete; aiomqtt does not."""
        if not self._early.done():
            self._early.set_result(None)
        if self._inner is not None:
            self._inner(*facts)

    def _want_to_write(self, client: Client, _userdata: object, connection: Any) -> None:  # noqa: ANN401 - paho's own kind of socket
        """Takes the place of what aiomqtt does when there is something to send.

        It nearly always fits into the socket at once, so that is tried before the loop is
        asked to watch the socket; this saves half the work of an acknowledgement. aiomqtt
        also watches in the next turn of the loop, when the socket may be closed already and
        its number belong to another one.
        """
        loop = self._lost.get_loop()
        if threading.get_ident() == self._thread:
            loop.call_soon(self._write, client, connection)
        else:  # while it connects, on aiomqtt's thread
            loop.call_soon_threadsafe(self._write, client, connection)

    def _write(self, client: Client, connection: Any) -> None:  # noqa: ANN401 - as above
        try:
            client.loop_write()
            fd = connection.fileno()  # below 0 when it is closed
            if fd >= 0 and client.want_write() and self._watched_fd is None:
                self._watched_fd = fd
                self._lost.get_loop().add_writer(connection, self._write, client, connection)
        except Exception as error:  # noqa: BLE001 - as aiomqtt: whatever it is, it broke
            if not self._lost.done():
                self._why = _reason(error)
                self._end()

    def _nothing_to_write(self, *_facts: Any) -> None:  # noqa: ANN401 - as above
        fd, self._watched_fd = self._watched_fd, None
        if fd is not None:
            self._lost.get_loop().remove_writer(fd)

    def _close_socket(self) -> None:
        """Close what aiomqtt leaves open after a failure: the socket and its housekeeping task."""
        with suppress(OSError, ValueError):
            self._client._client._sock_close()  # noqa: SLF001 - neither library has another way


# ------------------------------------------------------------------------------- words


def _user(options: MqttOptions) -> str:
    return (
        "a client without a name" if options.username is None else f"the user {options.username!r}"
    )


def _fault(error: aiomqtt.MqttError, options: MqttOptions) -> ConnectionLost:
    where = f"the broker at {options.address}"
    if isinstance(error, aiomqtt.MqttCodeError):
        why = _LASTING.get(_number(error.rc))
        if why is None:
            return ConnectionRefused(f"{where} refuses the connection: {error}", retry_slowly=False)
        advice = "" if options.username else " (no user name was given)"
        return ConnectionRefused(f"{where} refuses {_user(options)}: {why}{advice}")
    if _CERTIFICATE in str(error):
        return ConnectionRefused(f"the certificate of {where} is not trusted: {_reason(error)}")
    return ConnectionLost(f"cannot connect to {where}: {_reason(error)}")


def _hung_up(options: MqttOptions) -> str:
    hint = "does it want TLS (mqtts://)" if options.tls is None else "does it want a certificate"
    return (
        f"cannot connect to the broker at {options.address}: it ended the connection before it"
        f" answered; {hint}?"
    )


def _number(code: object) -> int:
    """Give the number of an answer, which paho wraps into a class of its own."""
    number = code if isinstance(code, int) else getattr(code, "value", 0)
    return number if isinstance(number, int) else 0


def _reason(error: BaseException) -> str:
    """Give the words of an error that a person can do something with."""
    number = _number(error.rc) if isinstance(error, aiomqtt.MqttCodeError) else None
    if number is not None and number in _ENDS:
        return _ENDS[number]
    return _ERRNO.sub("", str(error).strip()) or type(error).__name__


# --------------------------------------------------------------------------------- TLS


class _Context(ssl.SSLContext):
    """Closes a socket whose handshake fails, which paho leaves to the garbage collector."""

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:  # noqa: ANN401 - handed on
        wrapped = super().wrap_socket(*args, **more)
        try:
            wrapped.do_handshake()  # paho's own is then nothing
        except BaseException:
            wrapped.close()
            raise
        return wrapped


def _tls_context(options: TlsOptions) -> ssl.SSLContext:
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
    try:
        if options.ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(options.ca_file)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the CA file {options.ca_file} is unusable: {_tls_reason(error)}"
        ) from None
    if options.cert_file is None:
        return context
    try:
        context.load_cert_chain(options.cert_file, options.key_file, password=_no_passphrase)
    except _EncryptedKeyError:
        raise InputError(
            f"the key in {options.key_file or options.cert_file} is encrypted; an agent starts"
            " without a person, so give it a key without a passphrase that only it can read"
        ) from None
    except (OSError, ValueError) as error:
        files = " and ".join(str(one) for one in (options.cert_file, options.key_file) if one)
        raise InputError(
            f"the client certificate {files} is unusable: {_tls_reason(error)}"
        ) from None
    return context


class _EncryptedKeyError(Exception):
    """OpenSSL asks for a passphrase."""


def _no_passphrase() -> str:
    raise _EncryptedKeyError


def _tls_reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it is not what is expected ({error.reason or 'no PEM text'})"
    return getattr(error, "strerror", None) or str(error)
