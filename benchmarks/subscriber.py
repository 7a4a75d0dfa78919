"""How many node messages a second one subscriber takes, from a real mosquitto on this machine.

    python benchmarks/subscriber.py --qos0 6000 --qos1 4000 --seconds 10

Publishers write ready-made messages of nodes with 8 GPUs to raw sockets at a steady rate. At a
rate of 0, the subscriber sleeps until all of them wait at the broker: then it shows its highest
rate, and the publishers do not compete with it for the processor. One process runs a
`Subscriber` and reads its iterator. Printed are the messages it took per second, what was lost
on the way and by whom, and its CPU time per message; its capacity on a core of its own is one
over that. Other work on the machine makes CPU time longer too (caches), so the median and
the best tenth of slices of 100 messages are told beside the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eaco_telemetry.broker import mosquitto_program
from eaco_telemetry.mqtt import mqtt_connector
from eaco_telemetry.subscriber import ConnectionChanged, SampleReceived, Subscriber
from eaco_telemetry.testing.hostile import simulated_meta, simulated_sample
from eaco_telemetry.topics import NodeTopics
from eaco_telemetry.transport import MqttOptions
from eaco_telemetry.wire import encode_meta, encode_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

_GPUS: Final = 8
_FIRST_SEQ: Final = 10_000_000  # of eight digits, so that a number takes the place of another
_TICK_S: Final = 0.005
_START_S: Final = 120.0
_IDLE_S: Final = 10.0
_BURST_HZ: Final = 3000
_WINDOW: Final = 2000
_SLICE: Final = 100
_CONFIG: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_inflight_messages 1000
max_queued_messages 10000000
set_tcp_nodelay true
log_dest none
"""

# ------------------------------------------------------------------------- publisher


def _packet(kind: int, body: bytes) -> bytes:
    length, size = bytearray(), len(body)
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (128 if size else 0))
        if not size:
            return bytes((kind,)) + bytes(length) + body


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


class _Acks:
    """Counts what the broker acknowledges, on a thread; `room` waits for it."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._count = 0
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = 0
        while data := self._stream.recv(65_536):
            rest += len(data)
            with self._more:
                self._count += rest // 4  # a PUBACK has 4 bytes
                rest %= 4
                self._more.notify()

    def room(self, sent: int) -> None:
        with self._more:
            self._more.wait_for(lambda: sent - self._count < _WINDOW, timeout=30)


def _messages(names: list[str], qos: int) -> Iterator[bytes]:
    """Endless samples, node after node, of which only the number changes."""
    parts: list[tuple[bytes, bytes, bytes]] = []
    for name in names:
        sample = simulated_sample(name, gpus=_GPUS)
        meta = simulated_meta(sample)
        payload = encode_sample(sample, meta).replace(b'"seq":0', b'"seq":%d' % _FIRST_SEQ)
        head, tail = payload.split(b"%d" % _FIRST_SEQ, 1)
        parts.append((_text(NodeTopics("lab", name).sample), head, tail))
    number, packet_id = _FIRST_SEQ, 0
    while True:
        for topic, head, tail in parts:
            packet_id = packet_id % 65_535 + 1
            mark = packet_id.to_bytes(2, "big") if qos else b""
            yield _packet(0x30 | qos << 1, b"".join((topic, mark, head, b"%d" % number, tail)))
        number += 1


def publish(port: int, names: list[str], qos: int, rate_hz: float, count: int) -> None:
    """Publish the metas, then `count` samples at a rate."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(_packet(0x10, _text("MQTT") + b"\x04\x02\x00\x3c" + _text(f"p{names[0]}")))
        stream.recv(4)
        for name in names:
            meta = encode_meta(simulated_meta(simulated_sample(name, gpus=_GPUS)))
            stream.sendall(_packet(0x31, _text(NodeTopics("lab", name).meta) + meta))
        time.sleep(1.0)  # the metas are there before the samples
        acks = _Acks(stream) if qos else None
        messages = _messages(names, qos)
        begin_s, sent = time.monotonic(), 0
        while sent < count:
            due = count if not rate_hz else int((time.monotonic() - begin_s) * rate_hz)
            batch = min(due, count, sent + 200) - sent
            if batch <= 0:
                time.sleep(_TICK_S)
                continue
            stream.sendall(b"".join(next(messages) for _ in range(batch)))
            sent += batch
            if acks is not None:
                acks.room(sent)
        if acks is not None:
            acks.room(sent + _WINDOW - 1)  # all of them
        else:
            stream.sendall(b"\xe0\x00")
            time.sleep(0.5)


# ------------------------------------------------------------------------- subscriber


async def _subscribe(port: int, count: int) -> dict[str, Any]:
    taken = 0
    first_s = last_s = first_cpu_s = last_cpu_s = 0.0
    marks: list[float] = []
    async with Subscriber(mqtt_connector(MqttOptions(port=port, keepalive_s=300))) as subscriber:
        with contextlib.suppress(TimeoutError):  # something was lost on the way
            async with asyncio.timeout(_START_S) as limit:
                async for update in subscriber:
                    if isinstance(update, ConnectionChanged):
                        print("ready", flush=True)
                    if not isinstance(update, SampleReceived):
                        continue
                    taken += 1
                    if taken == 1:
                        first_s, first_cpu_s = time.monotonic(), time.process_time()
                    elif taken % _SLICE == 0 or taken == count:
                        last_s, last_cpu_s = time.monotonic(), time.process_time()
                        marks.append(last_cpu_s)
                        limit.reschedule(asyncio.get_running_loop().time() + _IDLE_S)
                        if taken == count:
                            break
        counters = subscriber.counters
        return {
            "taken": taken,
            "wall_s": last_s - first_s,
            "cpu_s": last_cpu_s - first_cpu_s,
            "slices_s": [after - before for before, after in pairwise(marks[:-1])],
            "missing": counters.missing_samples,
            "transport_discards": counters.transport_discards,
            "dropped_updates": counters.dropped_samples + counters.dropped_others,
            "without_meta": counters.without_meta,
            "refused": sum(counters.bad.values()),
            "nodes": len(subscriber.nodes),
        }


# ------------------------------------------------------------------------- the run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _self(*arguments: object, **options: Any) -> subprocess.Popen[str]:  # noqa: ANN401 - of Popen
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, text=True, **options)


def run(qos: int, rate_hz: float, arguments: argparse.Namespace) -> None:
    """Measure one QoS at one rate, and print a line."""
    program = mosquitto_program()
    if program is None:
        sys.exit("this needs mosquitto: apt-get install mosquitto")
    count = int((rate_hz or _BURST_HZ) * arguments.seconds)
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mosquitto.conf"
        config.write_text(_CONFIG.format(port=port), encoding="utf-8")
        broker = subprocess.Popen([program, "-c", str(config)])
        try:
            time.sleep(0.5)
            taker = _self("--role", "subscriber", "--port", port, "--count", count,
                          stdout=subprocess.PIPE)  # fmt: skip
            if taker.stdout is None or taker.stdout.readline() != "ready\n":
                sys.exit("the subscriber did not connect")
            shares = arguments.publishers
            senders = [
                _self(
                    "--role",
                    "publisher",
                    "--port",
                    port,
                    "--count",
                    count // shares,
                    "--nodes",
                    arguments.nodes // shares,
                    "--first",
                    number * 10_000,
                    "--qos",
                    qos,
                    "--rate",
                    rate_hz / shares,
                )
                for number in range(shares)
            ]
            if not rate_hz:
                taker.send_signal(signal.SIGSTOP)
                for sender in senders:
                    sender.wait()
                taker.send_signal(signal.SIGCONT)
            report: dict[str, Any] = json.loads(taker.communicate(timeout=600)[0])
            for sender in senders:
                sender.kill()
                sender.wait()
        finally:
            broker.terminate()
            broker.wait()
    cpu_us = report["cpu_s"] / max(1, report["taken"]) * 1e6
    print(
        f"QoS {qos}, sent at {rate_hz or 'full speed':>10}: {report['taken']} of {count} taken,"
        f" {report['taken'] / report['wall_s']:,.0f} a second"
    )
    slices = sorted(report["slices_s"]) or [report["cpu_s"]]
    figures = (
        ("mean", cpu_us),
        ("median", slices[len(slices) // 2] / _SLICE * 1e6),
        ("best tenth", slices[len(slices) // 10] / _SLICE * 1e6),
    )
    for name, each_us in figures:
        print(f"  CPU each, {name}: {each_us:.0f} us, so {1e6 / each_us:,.0f} a second on one core")
    names = ("missing", "transport_discards", "dropped_updates", "without_meta", "refused", "nodes")
    print("  " + ", ".join(f"{name} {report[name]}" for name in names), flush=True)


def main() -> None:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--qos0", type=float, default=6000, help="samples a second; 0: full speed")
    parser.add_argument("--qos1", type=float, default=4000, help="samples a second; 0: full speed")
    parser.add_argument("--seconds", type=float, default=10, help="at full speed: of 3,000")
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--publishers", type=int, default=2)
    for name in ("--port", "--count", "--first", "--qos"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--role", default="all", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "subscriber":
        print(json.dumps(asyncio.run(_subscribe(arguments.port, arguments.count))))
    elif arguments.role == "publisher":
        first = arguments.first
        names = [f"n{number}" for number in range(first, first + arguments.nodes)]
        publish(arguments.port, names, arguments.qos, arguments.rate, arguments.count)
    else:
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        size = len(encode_sample(simulated_sample(), simulated_meta(simulated_sample())))
        print(f"{platform.machine()}, {os.cpu_count()} cores, load {load};", end=" ")
        print(f"Python {platform.python_version()}; {_GPUS} GPUs in {size} bytes", flush=True)
        run(0, arguments.qos0, arguments)
        run(1, arguments.qos1, arguments)


if __name__ == "__main__":
    main()
