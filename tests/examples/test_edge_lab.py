"""The files of examples/edge_lab, run: a real mosquitto, real certificates, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from attrs import evolve, frozen

from eaco_adapters.cli.agent import command as agent_command
from eaco_adapters.cli.energy import command as energy_command
from eaco_adapters.cli.top import command as top_command
from eaco_telemetry.broker import mosquitto_program
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.transport import ConnectionLost, ConnectionRefused, MqttOptions, TlsOptions

if TYPE_CHECKING:
    from collections.abc import Generator

    import click

    from eaco_telemetry.transport import Incoming

FILES: Final = Path(__file__).resolve().parents[2] / "examples" / "edge_lab"
USERS: Final = ("box-1", "box-2", "viewer", "scheduler", "homeassistant")
LIMIT_S: Final = 30.0
QUIET_S: Final = 0.5
SPARE: Final = "eaco/v1/lab/box-2/event"


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*arguments: str | Path) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def password_of(user: str) -> str:
    return f"secret of {user}"


@frozen
class Lab:
    """A broker that runs with the files of the example."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"mqtts://localhost:{self.port}"

    def options(self, user: str, **changes: Any) -> MqttOptions:  # noqa: ANN401 - of the options
        tls = TlsOptions(self.folder / "ca.crt")
        password = password_of(user)
        usual = MqttOptions("localhost", self.port, user, password, tls)
        return evolve(usual, **changes)

    def login(self, user: str) -> list[str]:
        file = self.folder / f"{user}.password"
        file.write_text(f"{password_of(user)}\n", encoding="utf-8")
        return [
            "--broker", self.url, "--username", user,
            "--password-file", str(file), "--ca-file", str(self.folder / "ca.crt"),
        ]  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Generator[Lab]:
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    program("openssl")
    folder = tmp_path_factory.mktemp("lab") / "eaco"
    run("bash", FILES / "certs.sh", folder, "localhost", "127.0.0.1")
    passwords = folder / "passwords"
    passwords.write_text("".join(f"{user}:{password_of(user)}\n" for user in USERS))
    run(program("mosquitto_passwd"), "-U", passwords)
    shutil.copy(FILES / "mosquitto.acl", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (FILES / "mosquitto.conf").read_text(encoding="utf-8")
    text, listeners = re.subn(
        r"^listener 8883$", f"listener {port} 127.0.0.1", text, flags=re.MULTILINE
    )
    assert listeners == 1
    text = text.replace("/etc/mosquitto/eaco", str(folder))
    if os.geteuid() == 0:
        text += "user root\n"  # else it gives up its rights, and cannot read this folder
    (folder / "mosquitto.conf").write_text(text, encoding="utf-8")
    with mosquitto(folder, port):
        yield Lab(folder, port)


@contextmanager
def mosquitto(folder: Path, port: int) -> Generator[None]:
    command = [str(mosquitto_program()), "-c", str(folder / "mosquitto.conf")]
    log = folder / "log"
    with log.open("w") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as broker:
        try:
            until_s = time.monotonic() + LIMIT_S
            while True:
                assert broker.poll() is None, log.read_text()
                assert time.monotonic() < until_s, log.read_text()
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield
        finally:
            broker.terminate()


def delivered(lab: Lab, writer: str, topic: str, *, reader: str = "viewer") -> bool:
    """Tell whether what `writer` publishes on `topic` comes to `reader`.

    The broker acknowledges what it drops, so a message that is allowed follows, to wait for.
    """

    async def publish_both() -> bool:
        connect = mqtt_connector(lab.options(reader))
        async with asyncio.timeout(LIMIT_S), connect() as receiving:
            await receiving.subscribe([("eaco/#", 1), ("homeassistant/#", 1)])
            async with mqtt_connector(lab.options(writer))() as sending:
                await sending.publish(topic, b"probe", qos=1)
            async with mqtt_connector(lab.options("box-2"))() as sending:
                await sending.publish(SPARE, b"end", qos=1)
            seen: list[Incoming] = []
            async for incoming in receiving.messages():
                if incoming.topic == SPARE and incoming.payload == b"end":
                    break
                seen.append(incoming)
            return any(one.topic == topic and one.payload == b"probe" for one in seen)

    return asyncio.run(publish_both())


def test_a_node_writes_its_own_topics(lab: Lab) -> None:
    for kind in ("sample", "meta", "state", "event"):
        assert delivered(lab, "box-1", f"eaco/v1/lab/box-1/{kind}"), kind


@pytest.mark.parametrize(
    "topic",
    [
        "eaco/v1/lab/box-2/sample",
        "eaco/v1/lab/box-2/state",
        "eaco/v1/elsewhere/box-1/sample",
        "eaco/v1/lab/box-1/sample/more",
        "eaco/v1/lab/box-1",
        "homeassistant/device/box-2/config",
        "homeassistant/status",
    ],
)
def test_a_node_writes_nothing_else(lab: Lab, topic: str) -> None:
    assert not delivered(lab, "box-1", topic, reader="homeassistant")


@pytest.mark.parametrize("user", ["viewer", "scheduler", "homeassistant"])
def test_readers_write_nothing_not_even_as_a_node_of_their_name(lab: Lab, user: str) -> None:
    for topic in ("eaco/v1/lab/box-1/state", f"eaco/v1/lab/{user}/state"):
        assert not delivered(lab, user, topic), topic


def test_a_scheduler_and_home_assistant_read_and_a_node_does_not(lab: Lab) -> None:
    topic = "eaco/v1/lab/box-1/sample"
    assert delivered(lab, "box-1", topic, reader="scheduler")
    assert delivered(lab, "box-1", topic, reader="homeassistant")

    async def listen_as_a_node() -> None:
        async with mqtt_connector(lab.options("box-2"))() as receiving:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(LIMIT_S):
                    await listen(receiving)

    async def listen(receiving: Any) -> None:  # noqa: ANN401 - a transport
        await receiving.subscribe([("eaco/v1/#", 1)])
        async with mqtt_connector(lab.options("box-1"))() as sending:
            await sending.publish(topic, b"probe", qos=1)
        async with asyncio.timeout(QUIET_S):
            async for incoming in receiving.messages():
                raise AssertionError(incoming)

    asyncio.run(listen_as_a_node())


@pytest.mark.parametrize(
    ("who", "changes"),
    [
        ("nobody", {"username": None, "password": None}),
        ("a wrong password", {"password": "guess"}),
        ("an unknown name", {"username": "box-9"}),
    ],
)
def test_whoever_has_no_login_is_refused(lab: Lab, who: str, changes: dict[str, Any]) -> None:
    async def come_in() -> None:
        async with mqtt_connector(lab.options("box-1", **changes))():
            raise AssertionError(who)

    with pytest.raises(ConnectionRefused) as refused:
        asyncio.run(come_in())
    assert refused.value.retry_slowly
    assert "secret" not in str(refused.value)


def test_a_connection_in_the_clear_and_a_foreign_certificate_are_no_connections(
    lab: Lab, tmp_path: Path
) -> None:
    run("bash", FILES / "certs.sh", tmp_path / "other", "localhost")
    for tls in (None, TlsOptions(tmp_path / "other" / "ca.crt"), TlsOptions()):

        async def come_in(tls: TlsOptions | None = tls) -> None:
            options = lab.options("box-1", tls=tls, connect_timeout_s=5.0)
            async with mqtt_connector(options)():
                raise AssertionError(tls)

        with pytest.raises(ConnectionLost):
            asyncio.run(come_in())


# ------------------------------------------------------------------- agent, then eaco top


def eaco(module: str, *arguments: str) -> list[str]:
    code = f"from eaco_adapters.cli.{module} import command; command()"
    return [sys.executable, "-c", code, *arguments]


def top(lab: Lab, *more: str) -> subprocess.CompletedProcess[str]:
    command = eaco("top", *lab.login("viewer"), "--once", *more)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_an_agent_is_seen_in_top_with_password_and_tls(lab: Lab) -> None:
    arguments = [*lab.login("box-1"), "--node", "box-1", "--simulate", "2", "--period-s", "0.2"]
    with subprocess.Popen(eaco("agent", *arguments), stderr=subprocess.PIPE, text=True) as agent:
        try:
            until_s = time.monotonic() + LIMIT_S
            while True:
                done = top(lab, "--json", "--wait-s", "5", "--node", "box-1")
                document: dict[str, Any] = json.loads(done.stdout or "{}")
                nodes: list[dict[str, Any]] = document.get("nodes", [])
                if nodes and nodes[0]["current"]:
                    break
                assert time.monotonic() < until_s, (done, agent.poll())
        finally:
            agent.terminate()
        _, told = agent.communicate(timeout=LIMIT_S)
    assert agent.returncode == 0, told
    assert [len(nodes[0]["gpus"]), nodes[0]["state"], nodes[0]["simulated"]] == [2, "ready", True]
    assert document["broker"] == lab.url
    assert password_of("box-1") not in told + done.stdout + done.stderr
    after = top(lab, "--wait-s", "1", "--node", "box-1")
    assert "lab/box-1  disconnected: its agent was ended" in after.stdout, after


def test_top_says_at_once_that_a_password_is_wrong(lab: Lab) -> None:
    login = lab.login("viewer")
    (lab.folder / "viewer.password").write_text("guess\n", encoding="utf-8")
    command = [sys.executable, "-c", "from eaco_adapters.cli import main; main()", "top", *login]
    began_s = time.monotonic()
    done = subprocess.run(
        [*command, "--once", "--json", "--wait-s", "600"],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert time.monotonic() - began_s < LIMIT_S
    assert (done.returncode, done.stdout) == (1, "")
    assert "wrong user name or password" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "guess" not in done.stderr


# --------------------------------------------------------------------------- other files


def test_systemd_takes_the_unit_and_finds_it_locked_in(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (FILES / "eaco-agent.service").read_text(encoding="utf-8")
    unit = tmp_path / "eaco-agent.service"
    unit.write_text(text.replace("/opt/eaco/bin/eaco", sys.executable), encoding="utf-8")
    done = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=30", str(unit)],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("name", ["README.md", "eaco-agent.service"])
def test_every_option_that_is_written_here_exists(name: str) -> None:
    text = (FILES / name).read_text(encoding="utf-8").replace("\\\n", " ")
    known = {
        "agent": options_of(agent_command),
        "top": options_of(top_command),
        "energy": options_of(energy_command),
    }
    found = 0
    for kind, rest in re.findall(r"eaco (agent|top|energy)((?: [^\n`#]*)?)", text):
        options = set(re.findall(r"--[a-z-]+", rest))
        found += len(options)
        assert options <= known[kind], kind
    extra = set(re.findall(r"(?:EACO_OPTIONS=|`)(--[a-z-]+)", text))
    assert extra <= known["agent"]
    assert found >= 5
