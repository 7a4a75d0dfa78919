"""A burst of jobs through HTTP: every one is accepted once, or refused with a reason.

    python benchmarks/server_burst.py --jobs 1000 --clients 20

A real server, its nodes drained so that only the way in is measured; each client submits its share
as fast as it is answered. Then the same requests again: not one new job may come of them. With
`--run` the jobs then run, all of them.
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field

from eaco_adapters.server.client import Client, ServerAddress
from eaco_adapters.testing.server_process import ServerProcess
from eaco_core.errors import EacoError


@define
class Burst:
    """What came of a burst. `latencies_s`: of each answer, in the order in which they came."""

    accepted: list[str] = field(factory=list[str])
    refused: Counter[str] = field(factory=Counter[str])
    latencies_s: list[float] = field(factory=list[float])
    took_s: float = 0.0


def send_burst(address: ServerAddress, jobs: int, clients: int) -> Burst:
    """Submit so many jobs from so many clients at once."""
    burst = Burst()
    gate = threading.Barrier(clients)

    def send(first: int) -> None:
        client = Client(address, timeout_s=120)
        gate.wait()
        for number in range(first, jobs, clients):
            request: dict[str, Any] = {"command": ["true"], "job_id": f"job-{number}"}
            began_s = time.perf_counter()
            try:
                burst.accepted.append(str(client.submit(request)["job_id"]))
            except EacoError as error:
                burst.refused[str(error)] += 1
            burst.latencies_s.append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=send, args=(first,)) for first in range(clients)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    burst.took_s = time.perf_counter() - began_s
    return burst


def report(burst: Burst, what: str) -> None:
    """Print the figures of a burst."""
    times = sorted(burst.latencies_s)
    half_s, most_s = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(
        f"{what}: {len(burst.accepted)} accepted, {sum(burst.refused.values())} refused "
        f"{dict(burst.refused)} in {burst.took_s:.1f} s; answer after {half_s:.3f} s (half), "
        f"{most_s:.3f} s (99 of 100), {times[-1]:.3f} s (all)"
    )


def _time_of(client: Client, path: str) -> float:
    """Give the shortest of three times of one question."""
    times: list[float] = []
    for _ in range(3):
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection(client.address.host, client.address.port)
        headers = {"authorization": f"Bearer {client.address.token}"}
        connection.request("GET", path, headers=headers)
        connection.getresponse().read()
        connection.close()
        times.append(time.perf_counter() - began_s)
    return min(times)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--port", type=int, default=18470)
    parser.add_argument("--run", action="store_true", help="let the jobs run, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        token = folder / "token"
        token.write_text("0123456789abcdef")
        token.chmod(0o600)
        listen = {"http": f"127.0.0.1:{options.port}", "token_file": str(token)}
        with ServerProcess(folder, listen=listen) as server:
            server.start()
            server.client.drain("toy")
            address = ServerAddress(port=options.port, token="0123456789abcdef")  # noqa: S106 - made up
            first = send_burst(address, options.jobs, options.clients)
            report(first, "burst")
            report(send_burst(address, options.jobs, options.clients), "the same again")
            client = Client(address)
            total = client.jobs()["total"]
            print(f"jobs on the server: {total}")
            for path in ("/v1/status", "/v1/jobs/job-0", "/v1/jobs?limit=10000", "/metrics"):
                print(f"GET {path}: {_time_of(client, path) * 1000:.1f} ms")
            server.stop()
            began_s = time.perf_counter()
            server.start()
            print(f"start with {total} jobs on record: {time.perf_counter() - began_s:.1f} s")
            if options.run:
                began_s = time.perf_counter()
                server.client.drain("toy", drained=False)
                while server.client.status()["ended"] < total:
                    time.sleep(0.5)
                took_s = time.perf_counter() - began_s
                states = Counter(job["state"] for job in client.jobs(limit=10_000)["jobs"])
                print(f"all ended after {took_s:.1f} s: {dict(states)}")
            wrong = total - len(set(first.accepted))
    raise SystemExit(
        1 if wrong or first.refused.total() + len(first.accepted) < options.jobs else 0
    )


if __name__ == "__main__":
    main()
