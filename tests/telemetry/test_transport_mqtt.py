"""Connections to a real mosquitto: login, TLS, ends of connections, limits."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from eaco_core.errors import InputError
from eaco_telemetry.broker import mosquitto_program
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.testing.broker_kills import KillableBroker, free_port
from eaco_telemetry.testing.certificates import Certificates, has_openssl, make_certificates
from eaco_telemetry.transport import (
    ConnectionLost,
    ConnectionRefused,
    MqttOptions,
    TlsOptions,
    Will,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed")

SECRET = "hunter2"  # noqa: S105 - of a broker that lives for one test


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KillableBroker]:
    one = KillableBroker(free_port(), tmp_path)
    one.start()
    yield one
    one.kill()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[KillableBroker]:
    """A broker with one user, ann, who may not read the topic closed."""
    passwords, rules = tmp_path / "passwords", tmp_path / "rules"
    program = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
    subprocess.run([program, "-b", "-c", str(passwords), "ann", SECRET], check=True)
    rules.write_text("user ann\ntopic readwrite open/#\n", encoding="ascii")
    lines = ["allow_anonymous false", f"password_file {passwords}", f"acl_file {rules}"]
    one = KillableBroker(free_port(), tmp_path, lines)
    one.start()
    yield one
    one.kill()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if not has_openssl():
        pytest.skip("there is no program openssl to make certificates with")
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def encrypted(tmp_path: Path, certificates: Certificates) -> Iterator[KillableBroker]:
    one = KillableBroker(
        free_port(),
        tmp_path,
        [
            f"cafile {certificates.ca}",
            f"certfile {certificates.server}",
            f"keyfile {certificates.server_key}",
            "require_certificate true",
        ],
    )
    # Its listener answers no plain connection; the TCP connection alone is enough to be ready.
    one.start()
    yield one
    one.kill()


async def _round_trip(options: MqttOptions) -> bytes:
    async with asyncio.timeout(20), mqtt_connector(options)() as transport:
        await transport.subscribe([("open/#", 1)])
        await transport.publish("open/a", b"there and back", qos=1)
        return (await anext(transport.messages())).payload


def test_messages_arrive_in_order_with_their_marks(broker: KillableBroker) -> None:
    async def run() -> None:
        connect = mqtt_connector(MqttOptions(port=broker.port))
        async with asyncio.timeout(20), connect() as sender, connect() as receiver:
            await sender.publish("a/kept", b"0", qos=1, retain=True)
            before_s = time.monotonic()
            await receiver.subscribe([("a/#", 1)])
            for number in range(1, 200):
                await sender.publish("a/b", b"%d" % number, qos=number % 2)
            messages = receiver.messages()
            got = [await anext(messages) for _ in range(200)]
            assert [int(one.payload) for one in got] == list(range(200))
            assert got[0].retain
            assert not got[1].retain
            assert (got[1].qos, got[2].qos) == (1, 0)
            assert before_s <= got[0].received_s <= time.monotonic()

    asyncio.run(run())


def test_a_message_larger_than_the_buffers_of_the_system_goes_through(
    broker: KillableBroker,
) -> None:
    async def run() -> None:
        connect = mqtt_connector(MqttOptions(port=broker.port))
        async with asyncio.timeout(20), connect() as sender, connect() as receiver:
            await receiver.subscribe([("a", 1)])
            large = bytes(20 << 20)
            publishing = asyncio.gather(
                sender.publish("a", large, qos=1), sender.publish("a", b"small", qos=1)
            )
            messages = receiver.messages()
            assert (await anext(messages)).payload == large
            assert (await anext(messages)).payload == b"small"
            await publishing

    asyncio.run(run())


def test_the_end_of_the_broker_ends_every_call_at_once(broker: KillableBroker) -> None:
    async def run() -> None:
        connect = mqtt_connector(MqttOptions(port=broker.port))
        async with connect() as transport:
            listening = asyncio.ensure_future(anext(transport.messages()))
            await asyncio.sleep(0.05)
            broker.kill()
            began_s = time.monotonic()
            with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1"):
                await listening
            with pytest.raises(ConnectionLost):
                await transport.publish("a", b"", qos=1)
            with pytest.raises(ConnectionLost):
                await transport.subscribe([("a", 0)])
            assert time.monotonic() - began_s < 5
        with pytest.raises(ConnectionLost, match="cannot connect"):
            async with connect():
                pass
        broker.start()
        async with connect() as transport:
            await transport.publish("a", b"", qos=1)

    asyncio.run(run())


def test_the_will_comes_after_a_fault_and_not_after_an_orderly_end(broker: KillableBroker) -> None:
    async def run() -> None:
        connect = mqtt_connector(MqttOptions(port=broker.port))
        async with asyncio.timeout(20), connect() as watcher:
            await watcher.subscribe([("will/#", 1)])
            async with connect(will=Will("will/orderly", b"")):
                pass
            with pytest.raises(RuntimeError):
                async with connect(will=Will("will/fault", b"gone")):
                    raise RuntimeError
            message = await anext(watcher.messages())
            assert (message.topic, message.payload) == ("will/fault", b"gone")

    asyncio.run(run())


def test_messages_beyond_the_limits_are_dropped_and_counted(broker: KillableBroker) -> None:
    async def run(options: MqttOptions, size: int, kept: int) -> None:
        sender = mqtt_connector(MqttOptions(port=broker.port))
        async with asyncio.timeout(20), sender() as one, mqtt_connector(options)() as other:
            await other.subscribe([("a", 1)])
            for _ in range(50):
                await one.publish("a", bytes(size), qos=1)
            await one.publish("a", b"", qos=1)
            while other.discarded < 50 - kept:  # noqa: ASYNC110 - it has no event to wait for
                await asyncio.sleep(0.01)
            messages = other.messages()
            got = [await anext(messages) for _ in range(kept)]
            assert all(len(message.payload) == size for message in got)
            await one.publish("a", b"there is room again", qos=1)
            while (await anext(messages)).payload != b"there is room again":
                pass

    asyncio.run(run(MqttOptions(port=broker.port, max_incoming=10), 5, 10))
    asyncio.run(run(MqttOptions(port=broker.port, max_incoming_bytes=10_000), 1000, 10))


def test_a_login_lets_in_and_a_wrong_one_is_told_without_the_password(
    guarded: KillableBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    right = MqttOptions(port=guarded.port, username="ann", password=SECRET)
    assert asyncio.run(_round_trip(right)) == b"there and back"
    for wrong in (
        MqttOptions(port=guarded.port, username="ann", password=SECRET + "!"),
        MqttOptions(port=guarded.port, username="bob", password=SECRET),
        MqttOptions(port=guarded.port),
    ):
        with pytest.raises(ConnectionRefused, match="user name") as refused:
            asyncio.run(_round_trip(wrong))
        assert refused.value.retry_slowly
        assert SECRET not in str(refused.value)
    assert SECRET not in caplog.text


def test_a_topic_that_may_not_be_read_is_refused_or_silent(guarded: KillableBroker) -> None:
    async def run() -> None:
        options = MqttOptions(port=guarded.port, username="ann", password=SECRET)
        async with asyncio.timeout(20), mqtt_connector(options)() as transport:
            try:
                await transport.subscribe([("closed/#", 1)])
            except ConnectionRefused as refused:
                assert "closed/#" in str(refused)  # noqa: PT017 - brokers differ
            await transport.publish("closed/a", b"not for me", qos=1)
            await transport.subscribe([("open/#", 1)])
            await transport.publish("open/a", b"for me", qos=1)
            assert (await anext(transport.messages())).payload == b"for me"

    asyncio.run(run())


def test_tls_with_a_client_certificate(
    encrypted: KillableBroker, certificates: Certificates
) -> None:
    tls = TlsOptions(certificates.ca, certificates.client, certificates.client_key)
    options = MqttOptions(port=encrypted.port, tls=tls)
    assert asyncio.run(_round_trip(options)) == b"there and back"


def test_a_broker_that_is_not_trusted_is_refused(
    encrypted: KillableBroker, certificates: Certificates
) -> None:
    strange = TlsOptions(None, certificates.client, certificates.client_key)
    with pytest.raises(ConnectionRefused, match="not trusted"):
        asyncio.run(_round_trip(MqttOptions(port=encrypted.port, tls=strange)))
    unnamed = MqttOptions(port=encrypted.port, tls=TlsOptions(certificates.ca))
    with pytest.raises(ConnectionLost):
        asyncio.run(_round_trip(unnamed))
    plain = MqttOptions(port=encrypted.port, connect_timeout_s=2.0)
    with pytest.raises(ConnectionLost):
        asyncio.run(_round_trip(plain))


def test_files_of_tls_that_are_none_are_one_sentence(
    tmp_path: Path, certificates: Certificates
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing\n", encoding="ascii")
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-in", str(certificates.client_key), "-aes256",  # noqa: S607 - from PATH
         "-passout", "pass:x", "-out", str(locked)],
        check=True, capture_output=True,
    )  # fmt: skip
    for tls, words in (
        (TlsOptions(tmp_path / "none.pem"), "CA file"),
        (TlsOptions(nonsense), "CA file"),
        (TlsOptions(None, nonsense), "client certificate"),
        (TlsOptions(None, certificates.client, certificates.server_key), "client certificate"),
        (TlsOptions(None, certificates.client, locked), "encrypted"),
    ):
        with pytest.raises(InputError, match=words):
            mqtt_connector(MqttOptions(tls=tls))


def test_a_broker_that_never_answers_is_given_up_and_leaves_nothing_open() -> None:
    async def run(port: int) -> None:
        connect = mqtt_connector(MqttOptions(port=port, connect_timeout_s=0.3))
        with pytest.raises(ConnectionLost):
            async with connect():
                pass

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(run(silent.getsockname()[1]))


def test_an_attempt_at_a_broker_that_never_answers_can_be_given_up_soon() -> None:
    async def run(port: int) -> None:
        connect = mqtt_connector(MqttOptions(port=port, connect_timeout_s=300.0))

        async def use() -> None:
            async with connect():
                pass

        task = asyncio.ensure_future(use())
        await asyncio.sleep(0.2)
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait({task})

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(run(silent.getsockname()[1]))


def test_a_connection_that_nobody_waits_for_any_more_is_closed(broker: KillableBroker) -> None:
    async def run() -> None:
        connect = mqtt_connector(MqttOptions(port=broker.port))

        async def use() -> None:
            async with connect() as transport:
                await transport.publish("a", b"", qos=1)

        for pause_s in (0.0, 0.001, 0.005, 0.02):
            task = asyncio.ensure_future(use())
            await asyncio.sleep(pause_s)
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(run())


def test_a_host_that_is_none_is_one_sentence() -> None:
    async def run(host: str) -> None:
        async with mqtt_connector(MqttOptions(host=host))():
            pass

    for host in ("no.such.host.invalid", "a" * 300, "host..name"):
        with pytest.raises(ConnectionLost, match="cannot connect"):
            asyncio.run(run(host))
