"""Kill the scheduler again and again under load of real child processes, and count what is wrong.

    python benchmarks/scheduler_killed.py --kills 200

Each server kills itself by SIGKILL before a commit reaches the disk, after it and before its
commands are given, right after a command was carried out, or is killed at a random time. Jobs are
submitted all the while under ids of their own, so that a request without an answer is given again.
At the end every accepted job must have ended, no job may have run twice at once (each holds a file
while it lives), and the journal must keep the invariants.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from eaco_adapters.journal.reader import JournalReader
from eaco_adapters.server.client import Client, ServerAddress
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev
from eaco_core.errors import EacoError, EnvironmentFault
from eaco_core.history import Step, decode_line
from eaco_core.invariants import check_history

_ENDED = {"finished", "failed", "cancelled"}


class Campaign:
    """Servers that die, a client that insists, and the count at the end."""

    def __init__(self, folder: Path, kills: int, seed: int) -> None:
        self.state_dir = folder / "state"
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.kills = kills
        self.chance = random.Random(seed)  # noqa: S311 - which point is next
        self.client = Client(ServerAddress(socket=self.state_dir / "s"), timeout_s=5)
        self.points: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self.next_job = 0

    def run(self) -> None:
        """Kill, submit, kill; then let everything end."""
        while sum(self.points.values()) < self.kills:
            self._one_life()
        server = self._start("never:1")
        self._wait_for_end()
        server.send_signal(signal.SIGTERM)
        server.wait(30)

    def _one_life(self) -> None:
        point = self.chance.choice(("append", "commit", "event", "any time"))
        kill = "never:1" if point == "any time" else f"{point}:{self.chance.randint(1, 6)}"
        server = self._start(kill)
        until_s = time.monotonic() + self.chance.uniform(0.5, 3.0)
        deadline_s = time.monotonic() + 60
        while server.poll() is None and time.monotonic() < deadline_s:
            if point == "any time" and time.monotonic() > until_s:
                server.kill()
                break
            self._submit_some()
            time.sleep(0.05)
        server.kill()
        status = server.wait(30)
        if status != -signal.SIGKILL:
            raise SystemExit(f"the server ended by itself with status {status}")
        self.points[point] += 1

    def _start(self, kill: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "eaco_adapters.testing.killed_server"]
        return subprocess.Popen([*command, str(self.state_dir), "--kill", kill])

    def _submit_some(self) -> None:
        """Submit the next job, and go on with the one after it only when it was accepted."""
        with suppress(EnvironmentFault):
            alive = sum(job["state"] not in _ENDED for job in self.client.jobs()["jobs"])
            if alive >= 8:  # noqa: PLR2004 - enough for two GPUs
                if self.chance.random() < 0.1:  # noqa: PLR2004 - now and then
                    self.client.cancel(self.chance.choice(sorted(self.accepted)))
                return
            job_id = f"job-{self.next_job}"
            epochs = 1 + self.next_job % 4
            place = self.witness / job_id
            words = toy_command(
                epochs=epochs, epoch_s=0.15, witness=str(place), alone=f"{place}.lock"
            )
            request: dict[str, Any] = {
                "command": list(words),
                "job_id": job_id,
                "epochs": epochs,
                "max_restarts": 1000,
            }
            self.client.submit(request)
            self.accepted.add(job_id)
            self.next_job += 1

    def _wait_for_end(self) -> None:
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            with suppress(EnvironmentFault):
                jobs = self.client.jobs(limit=10_000)["jobs"]
                if jobs and all(job["state"] in _ENDED for job in jobs):
                    return
            time.sleep(0.2)
        raise SystemExit("not every job ended")

    def report(self) -> int:
        """Print the counts; give how many things are wrong."""
        lines = [decode_line(text) for text in JournalReader(self.state_dir / "journal")]
        known: set[str] = set()
        ends: Counter[str] = Counter()
        for line in lines:
            if isinstance(line, Step):
                event = line.event
                if isinstance(event, ev.JobSubmitted):
                    known.add(event.job.job_id)
                if isinstance(event, ev.JobFinished | ev.JobFailed | ev.JobCancelled):
                    ends[type(event).__name__] += 1
        checked = check_history(lines)
        twice = _ran_twice(self.witness)
        lost = self.accepted - known
        print(f"kills: {dict(self.points)}, {sum(self.points.values())} in all")
        print(f"jobs accepted {len(self.accepted)}, on record {len(known)}, lost {len(lost)}")
        print(f"events: {dict(ends)}; steps {sum(isinstance(line, Step) for line in lines)}")
        print(f"ran twice at once: {len(twice)} {twice[:3]}")
        print(f"invariants: {len(checked.passed)} passed, {len(checked.failed)} broken")
        for violation in checked.failed[:5]:
            print(f"  {violation}")
        return len(lost) + len(twice) + len(checked.failed)


def _ran_twice(folder: Path) -> list[str]:
    """Name jobs of which a process found another one alive when it began."""
    return sorted(
        path.name for path in folder.glob("*") if path.suffix == "" and "twice" in path.read_text()
    )


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), options.kills, options.seed)
        began_s = time.monotonic()
        try:
            campaign.run()
        except EacoError as error:
            raise SystemExit(str(error)) from None
        finally:
            wrong = campaign.report()
        print(f"{time.monotonic() - began_s:.0f} s")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
