from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.testing.memory_broker import MemoryBroker
from eaco_telemetry.transport import (
    Backoff,
    ConnectionLost,
    ConnectionRefused,
    MqttOptions,
    TlsOptions,
    Will,
    matches,
    parse_broker_url,
    read_password,
)

SECRET = "hunter2"  # noqa: S105 - not one

# ----------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("text", "host", "port", "user", "tls"),
    [
        ("broker.lab", "broker.lab", 1883, None, False),
        ("broker.lab:1884", "broker.lab", 1884, None, False),
        ("mqtt://ann@broker.lab", "broker.lab", 1883, "ann", False),
        ("mqtt://a%40b@broker.lab/", "broker.lab", 1883, "a@b", False),
        ("mqtts://broker.lab", "broker.lab", 8883, None, True),
        ("mqtts://broker.lab:1", "broker.lab", 1, None, True),
        ("mqtt://[::1]:1883", "::1", 1883, None, False),
        ("10.0.0.7", "10.0.0.7", 1883, None, False),
    ],
)
def test_an_address_is_read(text: str, host: str, port: int, user: str | None, tls: bool) -> None:
    options = parse_broker_url(text)
    assert (options.host, options.port, options.username) == (host, port, user)
    assert (options.tls is not None) is tls


@pytest.mark.parametrize(
    "text",
    ["", "mqtt://", "http://broker", "mqtt://broker:0", "mqtt://broker:99999", "broker:x",
     "mqtt://broker/topic", "mqtt://broker?x=1", "a b", "mqtt://[::1", "mqtt://broker\n"],
)  # fmt: skip
def test_what_is_no_address_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError):
        parse_broker_url(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    for text in ("mqtt://ann:hunter2@broker", "http://ann:hunter2@broker", "ann:hunter2@broker:x"):
        with pytest.raises(InputError) as refused:
            parse_broker_url(text)
        assert "hunter2" not in str(refused.value)


def test_options_never_show_the_password() -> None:
    options = MqttOptions(username="ann", password=SECRET)
    assert "hunter2" not in repr(options)
    assert "hunter2" not in str(options)


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError):
        MqttOptions(password=SECRET)
    with pytest.raises(InputError):
        MqttOptions(port=0)
    with pytest.raises(InputError):
        MqttOptions(keepalive_s=0)
    with pytest.raises(InputError):
        MqttOptions(max_incoming=0)
    with pytest.raises(InputError):
        TlsOptions(key_file=Path("key.pem"))


# ----------------------------------------------------------------------------- passwords


def test_a_password_comes_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes("höchst geheim \r\nrest\n".encode())
    assert read_password(file) == "höchst geheim "
    file.write_bytes(b"\xef\xbb\xbfwritten by an editor\r\n")
    assert read_password(file) == "written by an editor"


def test_a_password_comes_from_the_environment_without_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EACO_MQTT_PASSWORD", "hunter2")
    assert read_password(None) == "hunter2"
    monkeypatch.delenv("EACO_MQTT_PASSWORD")
    assert read_password(None) is None


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\n", b"x" * 70_000])
def test_a_password_file_that_is_none_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_password(file)
    assert "xxxx" not in str(refused.value)


def test_a_password_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_password(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        read_password(tmp_path)


# -------------------------------------------------------------------------------- pauses


@given(
    first_s=st.floats(0.01, 10),
    cap_s=st.floats(0.01, 100),
    steps=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_pauses_stay_between_half_the_first_and_the_cap(
    first_s: float, cap_s: float, steps: int, seed: int
) -> None:
    backoff = Backoff(first_s, cap_s, chance=random.Random(seed))
    for _ in range(steps):
        assert min(first_s, cap_s) / 2 <= backoff.next_s() <= cap_s
    backoff.reset()
    assert backoff.next_s() <= first_s


def test_pauses_grow_to_the_cap() -> None:
    backoff = Backoff(0.5, 30.0, chance=random.Random(1))
    pauses = [backoff.next_s() for _ in range(12)]
    assert pauses[0] <= 0.5
    assert all(15 <= pause <= 30 for pause in pauses[7:])


def test_a_refusal_that_lasts_is_retried_slowly() -> None:
    backoff = Backoff(0.5, 1.0, slow_s=30.0)
    assert backoff.next_s(ConnectionLost("away")) <= 0.5
    assert 30 <= backoff.next_s(ConnectionRefused("wrong password")) <= 45
    assert backoff.next_s(ConnectionRefused("too busy", retry_slowly=False)) <= 1.0


@pytest.mark.parametrize(("first_s", "cap_s"), [(0, 1), (1, 0), (float("nan"), 1), (1, -1)])
def test_pauses_that_cannot_be_are_refused(first_s: float, cap_s: float) -> None:
    with pytest.raises(InputError):
        Backoff(first_s, cap_s)


# ------------------------------------------------------------------------------- filters

_LEVEL = st.text("ab$", max_size=2)


@given(levels=st.lists(_LEVEL, min_size=1, max_size=5), wild=st.lists(st.booleans(), min_size=5))
def test_a_filter_with_plus_signs_matches_its_topic(levels: list[str], wild: list[bool]) -> None:
    topic = "/".join(levels)
    filter_levels = ["+" if w else level for level, w in zip(levels, wild, strict=False)]
    hidden = topic.startswith("$") and filter_levels[0] == "+"
    assert matches("/".join(filter_levels), topic) is not hidden
    assert matches("/".join([*filter_levels, "#"]), topic) is not hidden
    assert not matches("/".join([*filter_levels, "+"]), topic)
    assert matches("#", topic) is not topic.startswith("$")


# ---------------------------------------------------------------------- broker in memory


def test_the_broker_in_memory_keeps_and_gives_messages() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with broker.connect() as one, broker.connect() as other:
            await one.publish("a/b", b"kept", qos=1, retain=True)
            await other.subscribe([("a/#", 1)])
            await one.publish("a/c", b"new")
            await one.publish("b", b"not wanted")
            messages = other.messages()
            first, second = await anext(messages), await anext(messages)
            assert (first.payload, first.retain) == (b"kept", True)
            assert (second.payload, second.retain, second.qos) == (b"new", False, 0)
        assert [one.topic for one in broker.published] == ["a/b", "a/c", "b"]

    asyncio.run(run())


def test_the_broker_in_memory_publishes_wills_of_broken_connections_only() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        async with broker.connect(will=Will("will/1", b"gone")):
            pass
        assert broker.payloads("will/1") == []
        async with broker.connect(will=Will("will/2", b"gone")) as transport:
            assert broker.drop_all() == 1
            with pytest.raises(ConnectionLost):
                await transport.publish("x", b"")
        assert broker.retained["will/2"] == b"gone"

    asyncio.run(run())


def test_the_broker_in_memory_refuses_stalls_and_drops() -> None:
    async def run() -> None:
        broker = MemoryBroker(max_incoming=2)
        broker.refuse("go away", slowly=True, times=1)
        with pytest.raises(ConnectionRefused, match="go away"):
            async with broker.connect():
                pass
        async with broker.connect() as transport:
            await transport.subscribe([("#", 0)])
            for number in range(5):
                broker.put("a", bytes([number]))
            assert transport.discarded == 3
            broker.stall()
            publishing = asyncio.ensure_future(transport.publish("b", b""))
            await asyncio.sleep(0.01)
            assert not publishing.done()
            broker.go_on()
            await publishing

    asyncio.run(run())


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiomqtt", None)
    monkeypatch.delitem(sys.modules, "eaco_telemetry._aiomqtt", raising=False)
    with pytest.raises(EnvironmentFault, match=r"pip install 'eaco\[mqtt\]'"):
        mqtt_connector(MqttOptions())
