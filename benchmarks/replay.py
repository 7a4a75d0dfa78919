"""How long it takes to fold a journal into a machine again: from its start, and from a snapshot.

Makes a journal of `--events` steps (default: a million) of a cluster of 64 nodes with 4 GPUs
each, on which some hundred jobs run at a time, most of them sharing: about half of the events
are epochs, half are readings of a node. Then prints what replaying it takes, in seconds of
one core (CPU time). The time of a fixed loop is printed too: it tells how fast that core was.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from eaco_adapters.journal.opening import open_journal
from eaco_adapters.journal.reader import JournalReader
from eaco_adapters.journal.snapshots import snapshots_of, write_snapshot
from eaco_adapters.journal.writer import JournalWriter
from eaco_core.history import encode_header, encode_step
from eaco_core.jobs import JobSpec, ShareWith, SoloProfile
from eaco_core.machine import SchedulerMachine
from eaco_core.replay import replay
from eaco_core.testing import Habits, PlainPower, Recorder, World, a_node

if TYPE_CHECKING:
    from eaco_core.effects import Effect
    from eaco_core.events import Event

GIB = 2**30
BATCH = 500


class JournalRecorder(Recorder):
    """Feeds a machine, and writes what it does to a journal."""

    def __init__(
        self, machine: SchedulerMachine, journal: JournalWriter, snapshot_every: int
    ) -> None:
        super().__init__(machine, watch=False)
        self.snapshot_every = snapshot_every
        self.journal = journal
        self.kinds: Counter[str] = Counter()
        journal.append(encode_header(policy=machine.policy.name, rules=machine.rules))

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Take one step and append it."""
        machine = self.machine
        effects = machine.step(event)
        self.journal.append(
            encode_step(machine.seq, event.t_s, machine.term, event, effects, machine.records)
        )
        self.kinds[type(event).__name__] += 1
        if machine.seq % BATCH == 0:
            self.journal.commit()
        if machine.seq % self.snapshot_every == 0:
            self.journal.commit()
            write_snapshot(self.journal, self.journal.place, machine.dump_text())
        return effects


def a_job(chance: random.Random, number: int, now_s: float) -> JobSpec:
    """Draw a job: 16 workloads, some hours, every second one with a deadline."""
    workload = chance.randrange(16)
    epochs, epoch_s = chance.randint(40, 200), 60.0 + 15.0 * workload
    slack = chance.uniform(1.6, 6.0)
    return JobSpec(
        job_id=f"job-{number:06d}",
        gpus=chance.choice([1, 1, 1, 1, 2, 4]),
        submit_s=now_s,
        epochs=epochs,
        workload=f"model-{workload}",
        profiles=(
            SoloProfile(
                "a100",
                epoch_s,
                0.15 + 0.02 * workload,
                0.05 + 0.01 * workload,
                (2 + workload) * GIB,
            ),
        ),
        deadline_s=now_s + slack * epochs * epoch_s if chance.random() < 0.5 else None,  # noqa: PLR2004 - every second
        user=f"user-{chance.randrange(8)}",
        share_with=ShareWith.ANY,
    )


def write_journal(path: Path, events: int, alive: int, nodes: int, gpus: int) -> SchedulerMachine:
    """Run a cluster until so many events have happened."""
    chance = random.Random(1)  # noqa: S311 - seeded data, no secrets
    machine = SchedulerMachine(power=PlainPower())
    with JournalWriter(path) as journal:
        recorder = JournalRecorder(machine, journal, max(BATCH, events // 10 - 7))
        world = World(recorder, Habits(factors=(1.0, 1.04, 1.1, 1.02, 1.2), start_s=(4.0, 7.0)))
        for number in range(nodes):
            world.join(a_node(f"node-{number:03d}", gpus, gpu_type="a100", mem_gib=80))
        world.telemetry = True
        for node_id in world.nodes:
            world.now_s += 0.3
            world.sample(node_id, 0.3, foreign=False)
        submitted = 0
        while machine.seq < events:
            running = sum(1 for attempt in world.attempts.values() if attempt.state != "over")
            for _ in range(max(0, min(alive - running, 20))):
                submitted += 1
                world.submit(a_job(chance, submitted, world.now_s), tick=False)
            world.tick_if_due()
            for _ in range(400):
                if machine.seq >= events or not world.advance():
                    break
            for key in [k for k, a in world.attempts.items() if a.state == "over"]:
                del world.attempts[key]
        journal.commit()
    told = ", ".join(f"{count:,} {name}" for name, count in recorder.kinds.most_common(6))
    size_mb = path.stat().st_size / 1e6
    print(f"journal: {machine.seq:,} events, {size_mb:.0f} MB, {submitted:,} jobs: {told}")
    return machine


def a_machine() -> SchedulerMachine:
    """Make the machine that replays."""
    return SchedulerMachine(power=PlainPower())


def timed(what: str, events: int, began_s: float) -> None:
    """Print one figure."""
    taken_s = time.process_time() - began_s
    print(f"{what:<44} {taken_s:8.2f} s  {1e6 * taken_s / max(events, 1):7.2f} us an event")


def main() -> None:
    """Make a journal, then replay it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--alive", type=int, default=400, help="jobs at a time")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=4, help="of each node")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    asked = parser.parse_args()
    began_s = time.process_time()
    sum(range(10_000_000))
    loop_ms = 1e3 * (time.process_time() - began_s)
    print(f"python {sys.version.split()[0]}; adding up ten million numbers: {loop_ms:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eaco.journal"
        began_s = time.process_time()
        live = write_journal(path, asked.events, asked.alive, asked.nodes, asked.gpus)
        timed("running it, with the journal", asked.events, began_s)
        began_s = time.process_time()
        count = sum(1 for _ in JournalReader(path))
        timed("reading the records (CRC, chain)", count, began_s)
        profile = cProfile.Profile()
        machine = a_machine()
        if asked.profile:
            profile.enable()
        began_s = time.process_time()
        done = replay(JournalReader(path), machine)
        timed("replay from the start", done.steps, began_s)
        if asked.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(28)
        state = live.dump()
        print(f"the state is that of the live machine: {machine.dump() == state}")
        began_s = time.process_time()
        text = machine.dump_text()
        timed(f"dump ({len(text) / 1e6:.1f} MB, {len(state['jobs']):,} jobs)", 1, began_s)
        began_s = time.process_time()
        opened = open_journal(path, a_machine)
        opened.writer.close()
        steps = opened.replayed.steps
        timed(f"opening: the last snapshot and {steps:,} steps", steps, began_s)
        same = {**opened.machine.dump(), "term": state["term"]} == state
        print(f"the state is that of the live machine: {same}, from {opened.snapshot is not None}")
        print(f"snapshots: {[file.stat().st_size for file in snapshots_of(path)]} bytes")


if __name__ == "__main__":
    main()
