"""`eaco agent` as a process: what it says, what it publishes, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli import _app
from eaco_telemetry.broker import mosquitto_program
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.recording import Recorder, read_samples
from eaco_telemetry.samples import NodeSample
from eaco_telemetry.testing.broker_kills import KillableBroker, free_port
from eaco_telemetry.testing.certificates import has_openssl, make_certificates
from eaco_telemetry.topics import filters
from eaco_telemetry.transport import MqttOptions, TlsOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eaco_telemetry.transport import Incoming

needs_mosquitto = pytest.mark.skipif(
    mosquitto_program() is None, reason="mosquitto is not installed"
)
needs_a_broker = pytest.mark.skipif(
    mosquitto_program() is None and find_spec("iotcore") is None, reason="there is no broker"
)

SECRET = "hunter2"  # noqa: S105 - of a broker that lives for one test
LIMIT_S = 60.0


class Command:
    """One run of `eaco agent`; its stderr is read while it runs."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", "from eaco_adapters.cli import main; main()",
             "agent", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        until_s = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.said)) is None:
            assert time.monotonic() < until_s, f"not said: {pattern}\n{self.said}"
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        return found

    def end(self, number: int | None = signal.SIGTERM) -> int:
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(LIMIT_S)
        self.close()
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    begun: list[Command] = []

    def begin(*arguments: str, env: dict[str, str] | None = None) -> Command:
        begun.append(Command(*arguments, env=env))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KillableBroker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    one = KillableBroker(free_port(), folder)
    one.start()
    yield one
    one.kill()


def _once(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from eaco_adapters.cli import main; main()", "agent", *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _listen(options: MqttOptions, enough: Callable[[list[Incoming]], bool]) -> list[Incoming]:
    """Collect what comes until it is enough."""

    async def run() -> list[Incoming]:
        got: list[Incoming] = []
        async with asyncio.timeout(LIMIT_S), mqtt_connector(options)() as transport:
            await transport.subscribe([*filters(), ("homeassistant/#", 1)])
            async for incoming in transport.messages():
                got.append(incoming)
                if enough(got):
                    break
        return got

    return asyncio.run(run())


def _samples(got: list[Incoming]) -> list[Incoming]:
    return [one for one in got if one.topic.endswith("/sample")]


def _condition(options: MqttOptions, wanted: str) -> dict[str, object]:
    """Wait until the retained state is as wanted, and give it."""
    got = _listen(
        options,
        lambda got: (
            got[-1].topic.endswith("/state") and json.loads(got[-1].payload)["condition"] == wanted
        ),
    )
    state: dict[str, object] = json.loads(got[-1].payload)
    return state


# ------------------------------------------------------------------------ own broker


@needs_a_broker
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_broker_is_named_publishes_and_ends_with_the_agent(
    start: Callable[..., Command], number: int
) -> None:
    agent = start("--simulate", "8", "--broker", "embedded", "--node", "box", "--period-s", "0.2")
    port = int(agent.wait_for(r"eaco top --broker mqtt://127\.0\.0\.1:(\d+)")[1])
    options = MqttOptions(port=port)
    got = _listen(options, lambda got: len(_samples(got)) >= 2)
    document = json.loads(_samples(got)[-1].payload)
    assert len(document["gpus"]) == 8
    assert document["simulated"] is True
    assert agent.end(number) == 0
    assert "SIMULATED" in agent.said
    assert "stopped:" in agent.said
    assert "Traceback" not in agent.said
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=2)


@needs_a_broker
def test_the_embedded_broker_takes_another_port_if_the_usual_one_is_in_use(
    start: Callable[..., Command],
) -> None:
    try:
        taken: socket.socket | None = socket.create_server(("127.0.0.1", 1883))
    except OSError:
        taken = None  # somebody else has it, which is just as good
    try:
        agent = start("--simulate", "1", "--broker", "embedded")
        agent.wait_for(r"the port 1883 is in use, so the broker takes another")
        port = int(agent.wait_for(r"eaco top --broker mqtt://127\.0\.0\.1:(\d+)")[1])
        assert port != 1883
        assert agent.end() == 0
    finally:
        if taken is not None:
            taken.close()


@needs_a_broker
def test_an_agent_that_is_killed_leaves_no_broker_behind(start: Callable[..., Command]) -> None:
    agent = start("--simulate", "1", "--broker", "embedded")
    port = int(agent.wait_for(r"eaco top --broker mqtt://127\.0\.0\.1:(\d+)")[1])
    agent.end(signal.SIGKILL)
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the broker goes on")


# ----------------------------------------------------------------------- real broker


@needs_mosquitto
def test_a_kill_is_told_by_the_will_and_a_stop_by_the_agent(
    start: Callable[..., Command], broker: KillableBroker
) -> None:
    where = ("--broker", f"127.0.0.1:{broker.port}", "--node", "box", "--site", "attic")
    options = MqttOptions(port=broker.port)
    first = start("--simulate", "1", *where)
    born = _condition(options, "ready")
    first.end(signal.SIGKILL)
    lost = _condition(options, "lost")
    assert lost["session_id"] == born["session_id"]
    second = start("--simulate", "1", *where)
    again = _condition(options, "ready")
    assert again["session_id"] != born["session_id"]
    assert second.end(signal.SIGTERM) == 0
    assert _condition(options, "disconnected")["session_id"] == again["session_id"]


@needs_mosquitto
def test_a_broker_that_appears_later_is_found(
    start: Callable[..., Command], broker: KillableBroker
) -> None:
    broker.kill()
    agent = start(
        "--simulate", "1", "--broker", f"mqtt://127.0.0.1:{broker.port}", "--backoff-cap-s", "0.5"
    )
    agent.wait_for(r"cannot connect to the broker at 127\.0\.0\.1:\d+: Connection refused")
    broker.start()
    agent.wait_for("connected to the broker")
    broker.kill()
    agent.wait_for("broke: (the broker closed it|it is no longer connected)")
    broker.start()
    agent.wait_for("connected to the broker again")
    assert agent.end() == 0


@needs_mosquitto
def test_password_and_tls_with_a_client_certificate(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    if not has_openssl():
        pytest.skip("there is no program openssl to make certificates with")
    made = make_certificates(tmp_path)
    passwords, secret = tmp_path / "passwords", tmp_path / "secret"
    program = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
    subprocess.run([program, "-b", "-c", str(passwords), "ann", SECRET], check=True)
    secret.write_text(f"{SECRET}\n", encoding="utf-8")
    broker = KillableBroker(
        free_port(),
        tmp_path,
        [f"cafile {made.ca}", f"certfile {made.server}", f"keyfile {made.server_key}",
         "require_certificate true", "allow_anonymous false", f"password_file {passwords}"],
    )  # fmt: skip
    broker.start()
    try:
        login = [
            *("--simulate", "2", "--broker", f"mqtts://127.0.0.1:{broker.port}"),
            *("--username", "ann", "--ca-file", str(made.ca)),
            *("--cert-file", str(made.client), "--key-file", str(made.client_key)),
        ]
        options = MqttOptions(
            port=broker.port,
            username="ann",
            password=SECRET,
            tls=TlsOptions(made.ca, made.client, made.client_key),
        )
        agent = start(*login, "--password-file", str(secret), "--verbose", "--json")
        assert len(_samples(_listen(options, lambda got: bool(_samples(got))))) == 1
        assert agent.end() == 0
        assert all(json.loads(line)["message"] for line in agent.lines)
        by_variable = start(*login, env={"EACO_MQTT_PASSWORD": SECRET})
        by_variable.wait_for("connected to the broker")
        assert by_variable.end() == 0
        wrong = start(*login, env={"EACO_MQTT_PASSWORD": SECRET + "!"})
        found = wrong.wait_for(r"wrong user name or password.*next try in (\d+)")
        assert int(found[1]) >= 30
        assert wrong.end() == 0
        for one in (agent, by_variable, wrong):
            assert SECRET not in one.said
            assert "Traceback" not in one.said
    finally:
        broker.kill()


@needs_mosquitto
def test_a_plug_on_the_same_broker_measures_the_node(
    start: Callable[..., Command], broker: KillableBroker
) -> None:
    agent = start(
        *("--reader", "host", "--plug", "tasmota:desk", "--period-s", "0.2"),
        *("--broker", f"127.0.0.1:{broker.port}"),
    )
    agent.wait_for("connected to the broker")
    payload = json.dumps({"ENERGY": {"Power": 321, "Total": 1.5}}).encode()

    async def run() -> float:
        connect = mqtt_connector(MqttOptions(port=broker.port))
        async with asyncio.timeout(LIMIT_S), connect() as transport:
            await transport.subscribe(filters())
            async for incoming in transport.messages():
                await transport.publish("tele/desk/SENSOR", payload)
                if incoming.topic.endswith("/sample"):
                    host = json.loads(incoming.payload)["host"]
                    if host.get("node_power_w") is not None:
                        return float(host["node_power_w"])
        return -1.0

    assert asyncio.run(run()) == 321
    assert agent.end() == 0


# ----------------------------------------------------------- recording, replay, metrics


def test_recording_and_replay(start: Callable[..., Command], tmp_path: Path) -> None:
    recording, again = tmp_path / "day.parquet", tmp_path / "again.parquet"
    agent = start(
        *("--simulate", "2", "--broker", "none", "--node", "box", "--period-s", "0.1"),
        *("--record", str(recording)),
    )
    agent.wait_for(r"records to ")
    time.sleep(1.5)
    assert agent.end() == 0
    samples = list(read_samples(recording))
    assert len(samples) >= 3
    assert samples[0].node_id == "box"
    assert samples[0].simulated
    played = _once(
        *("--replay", str(recording), "--speed", "inf", "--broker", "none"),
        *("--record", str(again)),
    )
    assert played.returncode == 0, played.stderr
    assert "plays the recording" in played.stderr
    assert len(list(read_samples(again))) == len(samples)


def test_a_recording_under_a_name_like_a_pattern_ends_in_order(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    folder = tmp_path / "d[x]"
    folder.mkdir()
    path = folder / "r*.parquet"
    agent = start(
        *("--simulate", "1", "--broker", "none", "--period-s", "0.1", "--record", str(path))
    )
    agent.wait_for(r"publishes nothing")
    time.sleep(0.5)
    assert agent.end() == 0
    assert "Traceback" not in agent.said
    assert list(folder.iterdir()) == [path]
    assert list(read_samples(path))


def test_the_parts_of_a_killed_agent_are_played(tmp_path: Path) -> None:
    recording = tmp_path / "day.parquet"
    recorder = Recorder(recording)
    recorder.take(NodeSample("box", "s1", 0, 0, 0, ()))
    assert recorder.flush()
    try:
        assert not recording.exists()
        played = _once("--replay", str(recording), "--speed", "inf", "--broker", "none")
    finally:
        recorder.close()
    assert played.returncode == 0, played.stderr
    assert "plays the recording" in played.stderr


@pytest.mark.parametrize("option", ["--record", "--replay"])
def test_a_file_name_that_is_no_text_is_one_sentence(tmp_path: Path, option: str) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/r\xff.parquet")
    sensors = ["--simulate", "1"] if option == "--record" else []
    done = _once(option, name, "--broker", "none", *sensors)
    assert done.returncode == 2, done.stderr
    assert "is not UTF-8 text" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_stop_is_heard_while_the_own_broker_starts(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    slow = tmp_path / "mosquitto"
    slow.write_text("#!/bin/sh\nexec sleep 600\n", encoding="ascii")
    slow.chmod(0o755)
    agent = start(
        *("--simulate", "1", "--broker", "embedded"),
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
    )
    agent.wait_for("starts a broker")
    assert agent.end() == 0
    assert "stopped before the broker was up" in agent.said
    assert "Traceback" not in agent.said
    assert list(tmp_path.iterdir()) == [slow]


@needs_mosquitto
def test_metrics_and_home_assistant(start: Callable[..., Command], broker: KillableBroker) -> None:
    port = free_port()
    agent = start(
        *("--simulate", "2", "--broker", f"127.0.0.1:{broker.port}", "--home-assistant"),
        *("--prometheus", str(port)),
    )
    agent.wait_for("connected to the broker")
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    with page:
        assert b"hw_power_watts" in page.read()
    got = _listen(
        MqttOptions(port=broker.port),
        lambda got: any(one.topic.startswith("homeassistant/") for one in got),
    )
    assert got[-1].retain
    assert agent.end() == 0


def test_once_prints_one_sample_and_nothing_else() -> None:
    done = _once("--once", "--simulate", "2", "--node", "box")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["node_id"], len(document["gpus"])) == ("box", 2)
    assert "SIMULATED" in done.stderr


def test_this_machine_is_read_without_root_and_without_a_gpu() -> None:
    done = _once("--once")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["host"]["mem_total_bytes"] > 0
    assert "reads: " in done.stderr
    assert "does not read " in done.stderr


@pytest.mark.parametrize(("host", "times"), [("broker.invalid", 1), ("127.0.0.1:1", 0)])
def test_a_password_over_a_network_in_the_clear_is_told_once(
    start: Callable[..., Command], host: str, times: int
) -> None:
    agent = start(
        *("--simulate", "1", "--broker", f"mqtt://{host}", "--username", "ann"),
        env={"EACO_MQTT_PASSWORD": SECRET},
    )
    agent.wait_for("publishes to")
    assert agent.end() == 0
    assert agent.said.count("unencrypted") == times
    assert SECRET not in agent.said


# ------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--broker", "mqtt://ann:hunter2@b"], "must not be part of the address"),
        (["--broker", "http://b"], "scheme"),
        (["--broker", "none", "--plug", "tasmota:x"], "--plug"),
        (["--broker", "none", "--username", "ann"], "--username"),
        (["--broker", "embedded", "--username", "ann"], "--username"),
        (["--broker", "none", "--home-assistant"], "--home-assistant"),
        (["--broker", "b", "--once"], "--once"),
        (["--once", "--record", "x.parquet"], "--record"),
        (["--simulate", "2", "--reader", "host"], "--reader"),
        (["--simulate", "0"], "0"),
        (["--seed", "1"], "--seed"),
        (["--speed", "2"], "--speed"),
        (["--replay", "x.parquet", "--period-s", "2"], "--period-s"),
        (["--replay", "missing.parquet", "--broker", "none"], "no such recording"),
        (["--replay", "x.parquet", "--record", "x.parquet"], "--record"),
        (["--node", "a/b"], "the node"),
        (["--site", ""], "--site is empty"),
        (["--node", ""], "--node is empty"),
        (["--broker", ""], "--broker is empty"),
        (["--once", "--broker", ""], "--broker is empty"),
        (["--once", "--reader", ""], "--reader is empty"),
        (["--username", ""], "--username is empty"),
        (["--plug", ""], "--plug is empty"),
        (["--period-s", "0"], "0"),
        (["--backoff-cap-s", "-1"], "-1"),
        (["--broker", "none", "--reader", "abacus"], "abacus"),
        (["--broker", "none", "--simulate", "1", "--prometheus", "x:y"], "x:y"),
        (["--plug", "kettle:x"], "kettle"),
        (["--username", "ann", "--password-file", "none.txt"], "none.txt"),
        (["--broker", "mqtts://b", "--ca-file", "none.pem"], "none.pem"),
        (["--broker", "none", "--simulate", "1", "--record", "no/such/x.parquet"], "no/such"),
    ],
)
def test_wrong_use_is_one_sentence_and_status_2(arguments: list[str], words: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = _app.run(["agent", *arguments])
    assert status == 2, said.getvalue()
    assert words in said.getvalue()
    assert "hunter2" not in said.getvalue()
    assert said.getvalue().count("\n") == 1


def test_a_port_for_metrics_that_is_taken_is_a_fault_of_the_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _once("--broker", "none", "--simulate", "1", "--prometheus", str(port))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_an_agent_that_does_not_record_loads_nothing_large() -> None:
    program = (
        "import sys\n"
        "from eaco_adapters.cli import _app\n"
        "_app.run(['agent', '--simulate', '8', '--once'])\n"
        "print([n for n in ('polars', 'numpy', 'rich.table', 'prometheus_client', 'hypothesis')"
        " if n in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_documentation_names_every_option_and_no_other() -> None:
    from pathlib import Path  # noqa: PLC0415 - a type only, elsewhere in this file

    from eaco_adapters.cli.agent import command  # noqa: PLC0415 - used here only

    text = (Path(__file__).parents[2] / "docs" / "agent.md").read_text(encoding="utf-8")
    options = {name for one in command.params for name in one.opts}
    assert set(re.findall(r"--[a-z][a-z-]*", text)) == options
