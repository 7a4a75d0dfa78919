"""`eaco top` as a user runs it: on a pipe, on a terminal, and with a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from eaco_adapters.cli import _app
from eaco_telemetry.broker import mosquitto_program, running_broker
from eaco_telemetry.meta import NodeCondition, NodeState
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.testing.hostile import simulated_meta, simulated_sample
from eaco_telemetry.topics import NodeTopics
from eaco_telemetry.transport import parse_broker_url
from eaco_telemetry.wire import encode_meta, encode_sample, encode_state

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from eaco_telemetry.samples import NodeSample
    from eaco_telemetry.transport import Transport

LIMIT_S = 60.0
EACO = [sys.executable, "-c", "from eaco_adapters.cli import main; main()"]


def started(*arguments: str, **more: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - of Popen
    """Start `eaco top`; what is written in capitals is for its environment."""
    usual = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    given = {name: more.pop(name) for name in list(more) if name.isupper()}
    environment = {**os.environ, **usual, **given}
    return subprocess.Popen(
        [*EACO, "top", *arguments], env=environment, text=True, encoding="utf-8", **more
    )


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert _app.run(["top", "--once", "--json", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    return found


# ------------------------------------------------------------------- without a terminal


def test_once_prints_every_gpu_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert _app.run(["top", "--once", "--simulate", "3", "--period-s", "0.1"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("eaco top  SIMULATED  1 node  3 GPUs ")
    assert sum("Simulated V100" in line for line in out.splitlines()) == 3
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_holds_everything_and_calls_it_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--simulate", "2", "--period-s", "0.1")
    assert found["schema"] == "eaco.top/1"
    assert found["simulated"] is True
    (node,) = found["nodes"]
    assert [len(node["gpus"]), node["state"], node["current"]] == [2, "ready", True]
    assert node["gpus"][0]["jobs"] is None
    assert "no scheduler" in node["gpus"][0]["missing"]["jobs"]


def test_this_machine_is_read_with_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--period-s", "0.1")
    assert found["source"] == "local"
    assert found["simulated"] is False
    assert found["nodes"][0]["host"]["mem_total_bytes"] > 0


def test_a_pipe_gets_a_table_for_each_look_until_nobody_reads() -> None:
    with started("--simulate", "1", "--period-s", "0.1", stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        titles = 0
        for line in top.stdout:
            titles += line.startswith("eaco top")
            assert "\x1b" not in line
            if titles == 3:
                break
        top.stdout.close()
        assert top.wait(LIMIT_S) == 128 + signal.SIGPIPE


def test_a_terminal_that_cannot_be_drawn_on_gets_a_table_for_each_look() -> None:
    with terminal("--simulate", "1", "--period-s", "0.1", TERM="dumb") as found:
        found.read_until("eaco top.*Simulated V100.*eaco top.*Simulated V100")
        assert "1049" not in found.output


def test_a_pipe_that_takes_only_ascii_gets_it_in_the_same_columns() -> None:
    tables = [
        started("--simulate", "2", "--once", stdout=subprocess.PIPE, PYTHONIOENCODING=encoding)
        for encoding in ("ascii", "utf-8")
    ]
    plain, full = (table.communicate(timeout=LIMIT_S)[0].splitlines() for table in tables)
    assert all(line.isascii() for line in plain)
    assert not all(line.isascii() for line in full)
    assert [line.find("V100") for line in plain] == [line.find("V100") for line in full]


def test_json_for_each_look_is_a_line() -> None:
    arguments = ["--simulate", "1", "--period-s", "0.1", "--json"]
    with started(*arguments, stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        lines = [json.loads(top.stdout.readline()) for _ in range(3)]
        top.send_signal(signal.SIGTERM)
        assert top.wait(LIMIT_S) == 128 + signal.SIGTERM
    numbers = [line["nodes"][0]["seq"] for line in lines]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--simulate", "0"], "'--simulate'"),
        (["--simulate", "4", "--broker", "localhost"], "--simulate is for this machine"),
        (["--username", "ann"], "--username needs --broker"),
        (["--site", "lab"], "--site needs --broker"),
        (["--wait-s", "1"], "--wait-s needs --broker"),
        (["--period-s", "0"], "is no number of at least 0.1"),
        (["--node", "elsewhere-*"], "which --node does not name"),
        (["--broker", "ftp://x"], "ftp"),
        (["--broker", "mqtt://ann:secret@x"], "a password must not be part of the address"),
        (["--broker", "x", "--ca-file", "ca.pem"], "write --broker mqtts://x"),
        (["--broker", "mqtts://x", "--ca-file", "no.pem"], "there is no such file"),
        (["--broker", "mqtts://x", "--key-file", "k.pem"], "--key-file needs --cert-file"),
        (["--broker", "x", "--password-file", "p"], "--password-file needs --username"),
        (["--broker", "x", "--username", "a", "--password-file", "no"], "cannot be read"),
        (["--broker", "x", "--site", "a/b", "--once"], "the site is named 'a/b'"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _app.run(["top", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert "secret" not in captured.err.replace("--password-file", "")


# ----------------------------------------------------------------------- on a terminal


class Terminal:
    """A terminal of its own with `eaco top` on it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        streams = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process = started(*arguments, **streams, **environment, start_new_session=True)
        self.output = ""

    def read_until(self, pattern: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.output, re.DOTALL):
            assert time.monotonic() < until_s, self.output
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += os.read(self.master, 65_536).decode("utf-8", "replace")

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextmanager
def terminal(*arguments: str, **environment: str) -> Generator[Terminal]:
    found = Terminal(*arguments, **environment)
    try:
        yield found
    finally:
        found.close()


def put_back(found: Terminal) -> bool:
    """Tell whether the screen, the cursor and the keys are as they were before."""
    found.read_until(r"\x1b\[\?1049l")
    found.read_until(r"\x1b\[\?25h")
    return termios.tcgetattr(found.slave) == found.before


def test_a_key_leaves_the_screen_and_the_terminal_is_as_before() -> None:
    with terminal("--simulate", "2") as found:
        found.read_until("Simulated V100.*leave")
        found.press("q")
        assert found.process.wait(LIMIT_S) == 0
        assert put_back(found)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 143)],
)
def test_a_signal_leaves_the_screen_and_the_terminal_is_as_before(
    number: signal.Signals, status: int
) -> None:
    with terminal("--simulate", "2") as found:
        found.read_until("Simulated V100.*leave")
        found.process.send_signal(number)
        assert found.process.wait(LIMIT_S) == status
        assert put_back(found)


def test_keys_change_the_detail_and_turn_pages() -> None:
    with terminal("--simulate", "30") as found:
        found.read_until(r"nodes \(what fits\)")
        found.press("d")
        found.read_until("page 1 of .* processes")
        found.press(" ")
        found.read_until("page 2 of")
        found.press("\x1b[5~")
        found.read_until("page 2 of.*page 1 of")
        found.press("q")
        assert found.process.wait(LIMIT_S) == 0


# ----------------------------------------------------------------------- with a broker


class Lab:
    """A broker with nodes on it: some send, some only said once what they are."""

    def __init__(self, sending: Sequence[str], silent: Sequence[str]) -> None:
        self._sending, self._silent = sending, silent
        self._over = threading.Event()
        self.ready = threading.Event()
        self.address = ""
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def stop(self) -> None:
        self._over.set()
        self.thread.join(LIMIT_S)

    async def _run(self) -> None:
        async with running_broker("mosquitto") as address:
            self.address = str(address)
            async with mqtt_connector(parse_broker_url(self.address))() as transport:
                await self._send(transport)

    async def _send(self, transport: Transport) -> None:
        samples = {name: simulated_sample(name, gpus=2) for name in self._sending}
        for name in (*self._sending, *self._silent):
            await birth(transport, samples.get(name) or simulated_sample(name, gpus=2))
        self.ready.set()
        number = 0
        while not self._over.is_set():
            number += 1
            for name, sample in samples.items():
                payload = encode_sample(evolve(sample, seq=number))
                await transport.publish(NodeTopics("lab", name).sample, payload)
            await asyncio.sleep(0.1)


async def birth(transport: Transport, sample: NodeSample) -> None:
    topics = NodeTopics("lab", sample.node_id)
    meta = encode_meta(simulated_meta(sample))
    state = encode_state(NodeState(sample.node_id, sample.session_id, NodeCondition.READY))
    await transport.publish(topics.meta, meta, qos=1, retain=True)
    await transport.publish(topics.state, state, qos=1, retain=True)


@contextmanager
def lab(sending: Sequence[str], silent: Sequence[str] = ()) -> Generator[str]:
    """Run a broker with nodes on it; give its address."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    found = Lab(sending, silent)
    found.thread.start()
    try:
        assert found.ready.wait(LIMIT_S)
        yield found.address
    finally:
        found.stop()


def test_the_nodes_of_a_broker_and_who_did_not_send(capsys: pytest.CaptureFixture[str]) -> None:
    with lab(["box-1", "box-2"], silent=["box-3"]) as address:
        found = document(capsys, "--broker", address, "--wait-s", "1")
        sent = {node["node_id"]: (node["current"], len(node["gpus"])) for node in found["nodes"]}
        assert sent == {"box-1": (True, 2), "box-2": (True, 2), "box-3": (False, 0)}
        assert found["nodes"][2]["state_text"] == "no sample yet"
        assert [(one["node_id"], one["reason"]) for one in found["silent"]] == [
            ("box-3", "no sample within 1 s")
        ]
        assert found["broker"] == address
        assert found["gpus_known"] == 6
        assert _app.run(["top", "--once", "--broker", address, "--wait-s", "1"]) == 0
        out = capsys.readouterr().out
        assert "- lab/box-3: no sample within 1 s" in out
        assert "3 nodes (2 current)" in out


def test_it_does_not_wait_longer_than_needed_and_shows_whom_it_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with lab(["box-1", "box-2"], silent=["other"]) as address:
        began_s = time.monotonic()
        for pattern in ("box-*", "box-2"):
            arguments = ["--broker", address, "--wait-s", "50", "--site", "lab"]
            found = document(capsys, *arguments, "--node", pattern)
            names = [node["node_id"] for node in found["nodes"]]
            assert names == (["box-2"] if pattern == "box-2" else ["box-1", "box-2"])
        assert time.monotonic() - began_s < 50
        assert (
            _app.run(["top", "--once", "--broker", address, "--node", "no", "--wait-s", "1"]) == 1
        )
        assert "no node that no names was seen" in capsys.readouterr().err


def test_a_broker_that_is_away_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began_s = time.monotonic()
    assert _app.run(["top", "--once", "--broker", f"127.0.0.1:{port}", "--wait-s", "0.5"]) == 1
    assert time.monotonic() - began_s < LIMIT_S
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"mqtt://127.0.0.1:{port}" in captured.err
    assert captured.err.count("\n") == 1


def test_the_live_screen_shows_a_broker_that_goes_away() -> None:
    with lab(["box-1"]) as address:
        found = Terminal("--broker", address)
        try:
            found.read_until("lab/box-1.*Simulated V100")
        except BaseException:
            found.close()
            raise
    try:
        found.read_until("no connection to the broker")
        found.press("q")
        assert found.process.wait(LIMIT_S) == 0
    finally:
        found.close()
