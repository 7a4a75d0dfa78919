"""Snapshots and opening: what comes out is the machine that was live after a whole record (I21)."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_adapters.journal import frame, snapshots
from eaco_adapters.journal.frame import MAGIC, Place, encode_record, first_place
from eaco_adapters.journal.opening import Opened, migrate_journal, open_journal
from eaco_adapters.journal.reader import JournalReader, holds, is_journal
from eaco_adapters.journal.snapshots import read_snapshot, snapshots_of, write_snapshot
from eaco_adapters.journal.writer import JournalDamaged, JournalLocked, JournalWriter
from eaco_core.errors import InputError, InternalError
from eaco_core.events import ClockAnchored, JobSubmitted
from eaco_core.history import encode_step
from eaco_core.machine import SchedulerMachine
from eaco_core.replay import replay
from eaco_core.rules import Rules
from eaco_core.testing import (
    Habits,
    PlainPower,
    Recorder,
    World,
    a_job,
    a_node,
    an_observation,
)

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_core.effects import Effect
    from eaco_core.events import Event

HABITS = Habits(factors=(1.0, 1.4, 1.7, 1.1), late_s=(0.0, 2.0), start_s=(1.0, None))
JOBS = 12


def a_machine() -> SchedulerMachine:
    return SchedulerMachine(power=PlainPower(), history=[an_observation("w0", ("w1",), 1.1)])


@frozen
class Kept:
    """A recorded journal: its bytes, and place and state after each record (0 = none)."""

    data: bytes
    places: tuple[Place, ...]
    states: tuple[str, ...]

    def whole(self, size: int) -> int:
        return sum(place.place_bytes <= size for place in self.places[1:])

    def write(self, path: Path, *at: int) -> Path:
        """Write the journal to a file, and a snapshot after each of these records."""
        path.write_bytes(self.data)
        with JournalWriter(path) as writer:
            for k in at:
                write_snapshot(writer, self.places[k], self.states[k])
        return path


class _Recorder(Recorder):
    """Writes each step to a journal, and remembers places and states."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened.machine, watch=False)
        self.writer = opened.writer
        state = opened.machine.dump_text()
        self.places = [first_place(1), self.writer.place]
        self.states = [state, state]

    def feed(self, event: Event) -> tuple[Effect, ...]:
        effects = super().feed(event)
        machine = self.machine
        self.writer.append(
            encode_step(machine.seq, event.t_s, machine.term, event, effects, machine.records)
        )
        self.writer.commit()
        self.places.append(self.writer.place)
        self.states.append(machine.dump_text())
        return effects


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    path = tmp_path_factory.mktemp("recorded") / "j"
    opened = open_journal(path, a_machine)
    with opened.writer:
        recorder = _Recorder(opened)
        world = World(recorder, HABITS)
        world.join(a_node("n1", 2))
        world.join(a_node("n2", 2, can_sleep=True))
        world.submit(
            *(
                a_job(f"j{i}", 1 + i % 2, epochs=2 + i % 3, workload=f"w{i % 3}", util=0.3)
                for i in range(JOBS)
            )
        )
        world.sample("n1", 0.4, foreign=False)
        world.run_to_end(400)
    assert recorder.places[-1].records > 100
    return Kept(path.read_bytes(), tuple(recorder.places), tuple(recorder.states))


def opened_state(path: Path) -> tuple[str, Opened]:
    """Open a journal, and give the state as it was before the new term."""
    opened = open_journal(path, a_machine)
    opened.writer.close()
    return as_of_term(opened.machine, 1), opened


def as_of_term(machine: SchedulerMachine, term: int) -> str:
    state: dict[str, Any] = machine.dump()
    assert state["term"] in {term, term + 1}
    return json.dumps({**state, "term": term}, separators=(",", ":"))


def test_a_snapshot_and_the_rest_are_the_full_fold_at_every_record(
    kept: Kept, tmp_path: Path
) -> None:
    path = kept.write(tmp_path / "j")
    machine = SchedulerMachine.restore(json.loads(kept.states[0]), power=PlainPower())
    for k, line in enumerate(JournalReader(path), start=1):
        replay([line], machine)
        assert machine.dump_text() == kept.states[k], f"the full fold, record {k}"
        again = SchedulerMachine.restore(json.loads(kept.states[k]), power=PlainPower())
        assert holds(path, kept.places[k])
        tail = JournalReader(path, kept.places[k])
        if k % 5 == 0 or k > len(kept.states) - 10:
            replay(tail, again)
            assert again.dump_text() == kept.states[-1], f"snapshot and tail, record {k}"
            assert tail.end is not None
            assert tail.end.place == kept.places[-1]


def test_the_newest_good_snapshot_is_taken_and_the_term_goes_up(kept: Kept, tmp_path: Path) -> None:
    path = kept.write(tmp_path / "j", 20, 90)
    state, opened = opened_state(path)
    assert state == kept.states[-1]
    assert opened.snapshot == snapshots_of(path)[0]
    assert opened.replayed.steps == len(kept.states) - 1 - 90
    assert opened.machine.term == 2
    assert opened.notes == ()
    without = kept.write(tmp_path / "k")
    state, opened = opened_state(without)
    assert state == kept.states[-1]
    assert (opened.snapshot, opened.replayed.steps) == (None, len(kept.states) - 2)


def test_terms_go_up_with_every_scheduler_that_says_something(tmp_path: Path) -> None:
    for turn in range(1, 5):
        opened = open_journal(tmp_path / "j", a_machine)
        with opened.writer as writer:
            machine = opened.machine
            assert machine.term == turn
            machine.step(ClockAnchored(float(turn), 1e9))
            writer.append(encode_step(machine.seq, machine.now_s, turn, ClockAnchored(turn, 1e9)))
            writer.commit()
            if turn % 2:
                write_snapshot(writer, writer.place, machine.dump_text())
            with pytest.raises(JournalLocked):
                open_journal(tmp_path / "j", a_machine)


def test_only_the_last_two_snapshots_are_kept(kept: Kept, tmp_path: Path) -> None:
    path = kept.write(tmp_path / "j", 5, 9, 30, 31)
    other = kept.write(tmp_path / "j2", 7)
    assert [read_snapshot(name).place.records for name in snapshots_of(path)] == [31, 30]
    assert [read_snapshot(name).place.records for name in snapshots_of(other)] == [7]
    assert sorted(p.name for p in tmp_path.iterdir() if "part" in p.name) == []
    assert all(name.stat().st_mode & 0o777 == 0o600 for name in snapshots_of(path))


def test_a_snapshot_of_what_is_not_durable_is_refused(kept: Kept, tmp_path: Path) -> None:
    path = kept.write(tmp_path / "j")
    with JournalWriter(path) as writer:
        writer.append("more")
        with pytest.raises(InternalError, match="would come before the record"):
            write_snapshot(writer, writer.place, kept.states[-1])
    assert snapshots_of(path) == []


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "empty":
        data = b""
    elif how == "cut":
        data = data[:-200]
    elif how == "a flipped bit":
        place = len(data) // 2
        data = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
    elif how == "later version":
        data = data.replace(b"eaco.snapshot/1", b"eaco.snapshot/2", 1)
    else:
        content = json.loads(data.partition(b"\n")[2])
        if how == "of another journal":
            content["chain"] = "00" * 16
        elif how == "of a later state":
            content["state"]["schema"] = "eaco.state/7"
        elif how == "an impossible state":
            content["state"]["jobs"] = []
        elif how == "of other rules":
            content["state"]["rules"] = {"max_undos": 9}
        else:
            assert how == "without a place"
            del content["place_bytes"]
        body = (json.dumps(content) + "\n").encode()
        data = f"{snapshots.SCHEMA} {snapshots._digest(body)}\n".encode() + body
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("empty", "is no snapshot"),
        ("cut", "checksum"),
        ("a flipped bit", "checksum"),
        ("later version", "of a later version"),
        ("of another journal", "belongs to another journal"),
        ("of a later state", "later version"),
        ("an impossible state", "does not have"),
        ("of other rules", "other rules"),
        ("without a place", "is wrong"),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_passed_over_with_a_note(
    kept: Kept, tmp_path: Path, how: str, sentence: str
) -> None:
    path = kept.write(tmp_path / "j", 40, 80)
    newest, older = snapshots_of(path)
    spoil(newest, how)
    state, opened = opened_state(path)
    assert state == kept.states[-1]
    assert opened.snapshot == older
    assert len(opened.notes) == 1
    assert str(newest) in opened.notes[0]
    assert sentence in opened.notes[0]
    spoil(older, how)
    state, opened = opened_state(path)
    assert (state, opened.snapshot, len(opened.notes)) == (kept.states[-1], None, 2)


def test_a_later_snapshot_than_the_journal_is_passed_over(kept: Kept, tmp_path: Path) -> None:
    path = kept.write(tmp_path / "j", 40, 80)
    path.write_bytes(kept.data[: kept.places[60].place_bytes])
    state, opened = opened_state(path)
    assert state == kept.states[60]
    assert opened.replayed.steps == 20
    assert "end of this one was lost" in opened.notes[0]


def check_truncations(kept: Kept, folder: Path, sizes: range) -> None:
    """Fold each truncation; those that end in the same record are folded once."""
    path, folded = folder / "cut", -1
    for size in sizes:
        path.write_bytes(kept.data[:size])
        whole = kept.whole(size)
        reader = JournalReader(path)
        lines = list(reader)
        assert len(lines) == whole
        if whole != folded:
            folded = whole
            opened = open_journal(path, a_machine)
            opened.writer.close()
            assert as_of_term(opened.machine, 1) == kept.states[whole]
            assert (whole == 0) == (opened.replayed.steps == 0 and opened.machine.term == 1)
        else:
            assert reader.end is not None
            assert reader.end.place == kept.places[whole] or size < len(MAGIC)


def test_truncations_fold_to_a_whole_record_prefix(kept: Kept, tmp_path: Path) -> None:
    check_truncations(kept, tmp_path, range(0, len(kept.data) + 1, 487))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_flipped_bits_fold_to_a_whole_record_prefix_or_are_refused(
    kept: Kept, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("flips") / "j"
    path.write_bytes(kept.data[: kept.places[50].place_bytes])
    with JournalWriter(path) as writer:
        write_snapshot(writer, kept.places[30], kept.states[30])
    target = data.draw(st.sampled_from([path, snapshots_of(path)[0]]), "file")
    seed = data.draw(st.integers(0, 2**32), "seed")
    content = bytearray(target.read_bytes())
    place = random.Random(seed).randrange(len(content))
    content[place] ^= 1 << (seed % 8)
    target.write_bytes(content)
    try:
        state, opened = opened_state(path)
    except JournalDamaged:
        assert target == path
    except InputError:
        assert target == path
        assert place < len(MAGIC)
    else:
        whole = opened.replayed.last_seq + 1
        assert state == kept.states[whole]
        assert whole == 50 or target == path
        assert (whole >= 49) or opened.snapshot is None


def test_a_journal_of_other_rules_or_policy_is_refused_and_let_go(
    kept: Kept, tmp_path: Path
) -> None:
    path = kept.write(tmp_path / "j", 40)
    for _ in range(2):
        with pytest.raises(InputError, match="other rules"):
            open_journal(path, lambda: SchedulerMachine(rules=Rules(max_undos=5)))
    assert opened_state(path)[0] == kept.states[-1]


def test_a_journal_without_header_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j") as writer:
        event = ClockAnchored(0.0, 1e9)
        writer.append(encode_step(1, 0.0, 1, event))
        writer.commit()
    with pytest.raises(InputError, match="must be a header"):
        open_journal(tmp_path / "j", a_machine)


def test_what_was_known_before_is_that_of_the_first_start(tmp_path: Path) -> None:
    """The history store grows; a journal is repeated with what there was when it began."""
    path = tmp_path / "j"
    opened = open_journal(path, a_machine)
    with opened.writer as writer:
        recorder = _Recorder(opened)
        world = World(recorder, HABITS)
        world.join(a_node("n1", 2))
        world.submit(*(a_job(f"j{i}", workload=f"w{i}", util=0.3) for i in range(2)))
        world.pass_time(900.0)
        assert writer.records > 10
    more = [an_observation("w0", ("w1",), 2.9), an_observation("w1", ("w0",), 2.9)]
    again = open_journal(path, lambda: SchedulerMachine(power=PlainPower(), history=more))
    again.writer.close()
    assert as_of_term(again.machine, 1) == recorder.states[-1]


def test_a_torn_end_is_cut_and_noted(kept: Kept, tmp_path: Path) -> None:
    path = kept.write(tmp_path / "j", 40)
    path.write_bytes(kept.data[:-7])
    state, opened = opened_state(path)
    assert state == kept.states[-2]
    assert "was not written to its end" in opened.notes[0]
    assert "torn-1" in opened.notes[0]


# ---- versions --------------------------------------------------------------------


def test_a_journal_of_a_later_version_is_refused(kept: Kept, tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(kept.data.replace(b"eaco.journal/1", b"eaco.journal/2", 1))
    assert is_journal(path)
    for act in (lambda: list(JournalReader(path)), lambda: open_journal(path, a_machine)):
        with pytest.raises(InputError, match=r"later version \(eaco.journal/2\).*newer eaco"):
            act()


def as_version_0(kept: Kept) -> bytes:
    """A version that never was: it called `kind` `what`."""
    data, chain = b"eaco.journal/0\n", first_place(0).chain
    reader_lines = kept.data[len(MAGIC) :].splitlines()
    for text in reader_lines:
        line = text[frame.HEAD_BYTES :].decode().replace('"kind":', '"what":', 1)
        record, chain = encode_record(line, chain)
        data += record
    return data


def test_a_journal_of_an_older_version_is_read_and_migrated(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    path.write_bytes(as_version_0(kept))
    with pytest.raises(InputError, match="no longer reads"):
        list(JournalReader(path))
    monkeypatch.setitem(
        frame.LINE_MIGRATIONS, 0, lambda line: line.replace('"what":', '"kind":', 1)
    )
    shutil.copy(path, tmp_path / "k")
    machine = SchedulerMachine.restore(json.loads(kept.states[0]), power=PlainPower())
    replay(JournalReader(path), machine)
    assert machine.dump_text() == kept.states[-1]
    with pytest.raises(InputError, match="migrate_journal"):
        open_journal(path, a_machine)
    old = migrate_journal(path)
    assert old.read_bytes() == (tmp_path / "k").read_bytes()
    assert path.read_bytes() == kept.data
    assert opened_state(path)[0] == kept.states[-1]
    with pytest.raises(InputError, match="no journal of an older version"):
        migrate_journal(path)


def test_a_snapshot_of_an_older_version_is_migrated(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.write(tmp_path / "j", 40)
    (name,) = snapshots_of(path)
    body = name.read_bytes().partition(b"\n")[2].replace(b'"records":', b'"count":', 1)
    name.write_bytes(f"eaco.snapshot/0 {snapshots._digest(body)}\n".encode() + body)
    assert "no longer read" in opened_state(path)[1].notes[0]
    monkeypatch.setitem(snapshots.MIGRATIONS, 0, lambda found: {**found, "records": found["count"]})
    state, opened = opened_state(path)
    assert (state, opened.snapshot) == (kept.states[-1], name)


def test_the_rest_of_a_job_that_came_later_goes_on_after_a_restart(
    kept: Kept, tmp_path: Path
) -> None:
    path = kept.write(tmp_path / "j", 60)
    opened = open_journal(path, a_machine)
    with opened.writer as writer:
        machine = opened.machine
        event = JobSubmitted(machine.now_s, a_job("new", submit_s=machine.now_s))
        effects = machine.step(event)
        writer.append(
            encode_step(machine.seq, event.t_s, machine.term, event, effects, machine.records)
        )
        writer.commit()
        live = machine.dump()
    again = open_journal(path, a_machine)
    again.writer.close()
    assert again.machine.term == live["term"] + 1
    assert {**again.machine.dump(), "term": live["term"]} == live
