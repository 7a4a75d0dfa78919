from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry import broker as broker_module
from eaco_telemetry.broker import LOOPBACK, PortTaken, mosquitto_program, running_broker
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.transport import MqttOptions, Will

KINDS = [
    pytest.param(
        "mosquitto",
        marks=pytest.mark.skipif(mosquitto_program() is None, reason="mosquitto is not installed"),
    ),
    pytest.param(
        "embedded",
        marks=pytest.mark.skipif(find_spec("iotcore") is None, reason="iotcore is not installed"),
    ),
]


def _listens_on(port: int) -> set[str]:
    """Give the addresses (hexadecimal, as the kernel writes them) that listen on a port."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, number = local.rsplit(":", 1)
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_carries_messages_retains_and_wills_on_the_loopback_only(kind: str) -> None:
    async def run() -> int:
        async with asyncio.timeout(60), running_broker(kind) as address:
            assert address.kind == kind
            assert _listens_on(address.port) == {"0100007F"}  # 127.0.0.1 and nothing else
            connect = mqtt_connector(MqttOptions(port=address.port))
            large = b"x" * 200_000  # a node with many GPUs sends more than the usual 20 kB
            async with connect() as receiver:
                with contextlib.suppress(RuntimeError):
                    async with connect(will=Will("will", b"gone")) as sender:
                        await sender.publish("a/kept", large, qos=1, retain=True)
                        await receiver.subscribe([("a/+", 1), ("will", 1)])
                        raise RuntimeError
                messages = receiver.messages()
                first, second = await anext(messages), await anext(messages)
                assert (first.payload, first.retain) == (large, True)
                assert (second.topic, second.payload) == ("will", b"gone")
            return address.port

    assert not _answers(asyncio.run(run()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_is_gone_when_its_parent_is_killed(kind: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from eaco_telemetry.broker import running_broker\n"
        "async def main():\n"
        f"    async with running_broker({kind!r}) as address:\n"
        "        print(address.port, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert _answers(port)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    until_s = time.monotonic() + 10
    while _answers(port):
        assert time.monotonic() < until_s, "the broker goes on without its parent"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_that_is_taken_is_one_sentence(kind: str) -> None:
    async def run(port: int) -> None:
        async with running_broker(kind, port):
            pass

    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            asyncio.run(run(port))


def test_without_any_broker_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(kind: str) -> None:
        async with running_broker(kind):
            pass

    monkeypatch.setattr(broker_module, "mosquitto_program", lambda: None)
    with pytest.raises(EnvironmentFault, match="install it"):
        asyncio.run(run("mosquitto"))

    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(EnvironmentFault, match=r"pip install 'eaco\[broker\]'"):
        asyncio.run(run("auto"))
    with pytest.raises(InputError, match="not known"):
        asyncio.run(run("kafka"))


def test_a_broker_that_ends_while_starting_tells_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "mosquitto"
    program.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr(broker_module, "mosquitto_program", lambda: str(program))

    async def run() -> None:
        async with running_broker("mosquitto"):
            pass

    with pytest.raises(EnvironmentFault, match="status 3: out of order"):
        asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_leaves_no_folder_behind(kind: str, tmp_path: Path) -> None:
    old, young = tmp_path / "eaco-broker-old", tmp_path / "eaco-broker-young"
    old.mkdir()
    (old / "stderr").write_bytes(b"")
    young.mkdir()
    os.utime(old, (1.0, 1.0))
    program = (
        "import asyncio\n"
        "from eaco_telemetry.broker import running_broker\n"
        "async def main():\n"
        f"    async with running_broker({kind!r}) as address:\n"
        "        print(address.port, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        parent.kill()
        parent.wait()
    assert list(tmp_path.iterdir()) == [young]
