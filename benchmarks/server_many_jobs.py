"""A server with many jobs that have ended: what a start, a question and standing still cost.

    python benchmarks/server_many_jobs.py --jobs 10000

The jobs are made by writing the journal and the job book; no process runs but the server's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eaco_adapters.journal.opening import open_journal
from eaco_adapters.server.api import SubmitRequest
from eaco_adapters.server.config import read_config
from eaco_adapters.server.job_book import JobBook, JobEntry
from eaco_adapters.testing.server_process import ServerProcess
from eaco_core import events as ev
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.history import encode_step
from eaco_core.jobs import JobSpec
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.events import Event

_GPUS: Final = ("SIM-toy-0", "SIM-toy-1")
_GIB: Final = 1 << 30


def make_past(server: ServerProcess, jobs: int) -> None:
    """Write a journal and a job book in which so many jobs have ended."""
    config = read_config(server.config_file)
    server.state_dir.mkdir()
    opened = open_journal(
        server.state_dir / "journal",
        lambda: SchedulerMachine(policy_named(config.policy), rules=config.rules),
    )
    machine, writer = opened.machine, opened.writer

    def take(event: Event) -> None:
        effects = machine.step(event)
        line = encode_step(machine.seq, event.t_s, machine.term, event, effects, machine.records)
        writer.append(line)

    gpus = tuple(GpuSpec(gpu, "simulated", _GIB) for gpu in _GPUS)
    take(ev.NodeJoined(0.0, NodeSpec("toy", gpus)))
    book = JobBook(server.state_dir / "jobs")
    entries = server.state_dir / "jobs"
    text = ""
    for number in range(jobs):
        job_id, t_s = f"old-{number}", float(number)
        take(ev.JobSubmitted(t_s, JobSpec(job_id, gpus=1, submit_s=t_s)))
        take(ev.Tick(t_s))
        held = machine.job(job_id).gpus
        take(ev.JobStarted(t_s + 0.1, job_id, 1, held))
        take(ev.JobFinished(t_s + 0.5, job_id, 1))
        take(ev.GpusReleased(t_s + 0.6, job_id, 1, held))
        if number == 0:
            entry = JobEntry(job_id, SubmitRequest(command=["true"]), "ada", 1.9e9)
            entry.started_wall_s, entry.ended_wall_s, entry.exit_code = 1.9e9, 1.9e9, 0
            book.write(entry)
            text = (entries / "old-0.json").read_text()
        else:
            (entries / f"{job_id}.json").write_text(text.replace("old-0", job_id))
    writer.commit()
    writer.close()


def best_of(times: int, call: Callable[[], object]) -> float:
    """Give the shortest of some times in milliseconds."""
    found: list[float] = []
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - began_s)
    return 1000 * min(found)


def cpu_s(pid: int) -> float:
    """Give the CPU seconds that a process used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--idle-s", type=float, default=20.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        ServerProcess(Path(name), telemetry={"period_s": 5.0}) as server,
    ):
        if options.jobs:
            make_past(server, options.jobs)
        book_ms = best_of(2, lambda: JobBook(server.state_dir / "jobs"))
        print(f"{options.jobs} ended jobs; reading the job book: {book_ms:.0f} ms")
        began_s = time.perf_counter()
        server.start()
        print(f"first start: {time.perf_counter() - began_s:.1f} s")
        client = server.client
        for what, call in (
            ("status", client.status),
            ("nodes", client.nodes),
            ("all jobs (10,000 at most)", lambda: client.jobs(limit=10_000)),
            ("last 20 ended jobs", lambda: client.jobs(state="ended", offset=9980, limit=20)),
            ("open jobs", lambda: client.jobs(state="open")),
            ("story", lambda: client.story("old-7")),
        ):
            if options.jobs or what != "story":
                print(f"{what}: {best_of(5, call):.1f} ms")
        client.drain("toy")
        print(f"submit: {best_of(20, lambda: client.submit({'command': ['true']})):.1f} ms")
        for job in client.jobs(state="open")["jobs"]:
            client.cancel(job["job_id"])
        used_s, began_s = cpu_s(server.pid), time.monotonic()
        time.sleep(options.idle_s)
        passed_s = time.monotonic() - began_s
        print(f"idle: {100 * (cpu_s(server.pid) - used_s) / passed_s:.2f} % of a core")
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
        print(f"resident: {pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f} MiB")
        server.stop()


if __name__ == "__main__":
    main()
