"""Damage a journal in every way, and see that what is read is the state of a whole-record prefix.

Records a small run, with the state after each record. Then cuts the file at every byte, and flips
random bits; each time the journal is folded, and the machine that comes out must be in the state
after the whole records before the damage. Prints the counts; ends with an error at the first
machine that is in another.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from eaco_adapters.journal.frame import MAGIC, first_place
from eaco_adapters.journal.reader import JournalReader
from eaco_adapters.journal.writer import JournalWriter
from eaco_core.errors import InputError
from eaco_core.history import encode_header, encode_step
from eaco_core.machine import SchedulerMachine
from eaco_core.replay import replay
from eaco_core.testing import Habits, PlainPower, Recorder, World, a_job, a_node

if TYPE_CHECKING:
    from eaco_core.effects import Effect
    from eaco_core.events import Event


class JournalRecorder(Recorder):
    """Appends each step, and keeps the state and the offset after it."""

    def __init__(self, machine: SchedulerMachine, journal: JournalWriter) -> None:
        super().__init__(machine, watch=False)
        self.journal = journal
        journal.append(encode_header(policy=machine.policy.name, rules=machine.rules))
        first = machine.dump_text()
        self.states = [first, first]
        self.ends = [first_place(1).place_bytes, journal.place.place_bytes]

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Take one step."""
        effects = super().feed(event)
        machine = self.machine
        self.journal.append(
            encode_step(machine.seq, event.t_s, machine.term, event, effects, machine.records)
        )
        self.states.append(machine.dump_text())
        self.ends.append(self.journal.place.place_bytes)
        return effects


def a_machine() -> SchedulerMachine:
    """Make the machine that writes, and the one that reads."""
    return SchedulerMachine(power=PlainPower())


def record(path: Path, jobs: int) -> JournalRecorder:
    """Record a run of some jobs in a rough world."""
    with JournalWriter(path) as journal:
        recorder = JournalRecorder(a_machine(), journal)
        world = World(recorder, Habits(factors=(1.0, 1.4, 1.7, 1.1), start_s=(1.0, None)))
        world.join(a_node("n1", 2))
        world.join(a_node("n2", 2, can_sleep=True))
        world.submit(*(a_job(f"j{i}", 1 + i % 2, epochs=2, workload=f"w{i}") for i in range(jobs)))
        world.run_to_end(400)
        journal.commit()
    return recorder


def check(recorder: JournalRecorder, path: Path, data: bytes) -> str:
    """Fold a damaged journal. Gives what came of it."""
    path.write_bytes(data)
    reader, machine = JournalReader(path), a_machine()
    try:
        replay(reader, machine)
    except InputError:
        return "refused: no journal"
    if reader.end is None or machine.dump_text() != recorder.states[reader.end.records]:
        raise SystemExit("the state is not that after the whole records")
    damage = reader.end.damage
    if damage is None:
        return "whole"
    if damage.torn:
        return "torn end"
    return "damage with records after it" if damage.whole_after else "a bad last record"


def main() -> None:
    """Damage it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)  # noqa: S311 - seeded, no secrets
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        recorder = record(path, asked.jobs)
        data = path.read_bytes()
        print(f"a journal of {len(recorder.ends) - 1} records, {len(data):,} bytes")
        began_s = time.monotonic()
        told: Counter[str] = Counter()
        for size in range(len(data) + 1):
            told[check(recorder, path, data[:size])] += 1
        print(f"cut at each of {len(data) + 1:,} bytes: {dict(told)}")
        told.clear()
        for _ in range(asked.flips):
            place = chance.randrange(len(data))
            flipped = bytearray(data)
            flipped[place] ^= 1 << chance.randrange(8)
            told[check(recorder, path, bytes(flipped))] += 1
        print(f"{asked.flips:,} flipped bits: {dict(told)}")
        print(f"in {time.monotonic() - began_s:.0f} s; the first line is {len(MAGIC)} bytes")


if __name__ == "__main__":
    main()
