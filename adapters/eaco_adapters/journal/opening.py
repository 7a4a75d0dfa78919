"""Opening a journal to go on with it: the newest good snapshot, and what came after it.

The machine that comes out is the one that was live after the last whole record (I21), in a term
of its own. Nothing is carried out by opening: see `SchedulerMachine.outstanding`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from eaco_adapters.journal.frame import VERSION, Place
from eaco_adapters.journal.reader import JournalReader, version_of
from eaco_adapters.journal.snapshots import check_snapshot, read_snapshot, snapshots_of
from eaco_adapters.journal.writer import JournalDamaged, JournalWriter
from eaco_core.errors import InputError
from eaco_core.history import Header, decode_line, encode_header
from eaco_core.machine import SchedulerMachine
from eaco_core.replay import Replay, check_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.replay import Replayed


@frozen
class Opened:
    """A machine in the state of its journal, and the writer that goes on with it.

    `replayed` tells how many steps were folded; `snapshot` from which file the machine came
    before that, None = from the start. `notes` are sentences for the operator: what was passed
    over, and what was cut from the end.
    """

    machine: SchedulerMachine
    writer: JournalWriter
    replayed: Replayed
    snapshot: Path | None
    notes: tuple[str, ...]


def open_journal(path: str | Path, make_machine: Callable[[], SchedulerMachine]) -> Opened:
    """Open a journal, or make one, and give the machine that goes on with it.

    `make_machine` gives a new machine with policy, rules, predictor and power model as they are
    configured; they must be those that the journal was written under. What it knows from earlier
    runs counts for a new journal only: its header keeps that. The term is the last one + 1.

    Raises what JournalWriter raises, and InputError where the journal cannot be repeated.
    """
    opening = _Opening(Path(path), make_machine)
    writer = JournalWriter(path, replay=opening.take, start=opening.start)
    try:
        machine = opening.folding().machine
        if writer.records:
            machine.begin_term(machine.term + 1)
        else:
            writer.append(_header_of(machine))
            writer.commit()
    except BaseException:
        writer.close()
        raise
    notes = list(opening.notes)
    if writer.kept.cut is not None:
        notes.append(f"{writer.kept.cut}. These bytes are now in {writer.kept.cut_file}")
    return Opened(machine, writer, opening.folding().result(), opening.snapshot, tuple(notes))


def migrate_journal(path: str | Path) -> Path:
    """Make a journal of this version of an older one; the old one is kept beside it.

    Gives the name of the old one. Raises InputError where there is nothing to do, and
    JournalDamaged for a journal with damage in the middle.
    """
    path = Path(path)
    version = version_of(path)
    if version is None or version == VERSION:
        raise InputError("this is no journal of an older version", where=str(path))
    part = path.with_name(f"{path.name}.migrated")
    part.unlink(missing_ok=True)
    reader = JournalReader(path)
    with JournalWriter(part) as writer:
        for line in reader:
            writer.append(line)
            if writer.place.records % 1000 == 0:
                writer.commit()
        writer.commit()
    if reader.end is not None and reader.end.damage is not None and reader.end.damage.whole_after:
        raise JournalDamaged(reader.end.damage)
    old = path.with_name(f"{path.name}.version-{version}")
    path.replace(old)
    part.replace(path)
    return old


class _Opening:
    """Builds the machine while the writer reads the journal."""

    def __init__(self, path: Path, make_machine: Callable[[], SchedulerMachine]) -> None:
        self._path = path
        self._make_machine = make_machine
        self._folding: Replay | None = None
        self.snapshot: Path | None = None
        self.notes: list[str] = []

    def start(self) -> Place | None:
        """Take the newest snapshot that is good; give its place, None if there is none."""
        for path in snapshots_of(self._path):
            try:
                snapshot = read_snapshot(path)
                check_snapshot(self._path, snapshot)
                self._folding = Replay(self._restored(snapshot.state))
            except InputError as error:
                self.notes.append(f"the snapshot {path} is passed over: {error}")
                continue
            self.snapshot = path
            return snapshot.place
        return None

    def take(self, line: str) -> None:
        """Take one line of the journal."""
        if self._folding is None:
            first = decode_line(line, f"{self._path}, record 1")
            if not isinstance(first, Header):
                raise InputError("its first record must be a header", where=str(self._path))
            self._folding = Replay(self._begun(first))
        self._folding.take(line)

    def folding(self) -> Replay:
        """Give the replay, of a new machine if the journal is empty."""
        if self._folding is None:
            self._folding = Replay(self._make_machine())
        return self._folding

    def _begun(self, header: Header) -> SchedulerMachine:
        """Give the machine that began this journal, with what it knew from earlier runs."""
        machine = self._make_machine()
        check_header(header, machine)
        state = header.info.get("state")
        return machine if state is None else self._restored(state)

    def _restored(self, state: Any) -> SchedulerMachine:  # noqa: ANN401 - restore looks at it
        made = self._make_machine()
        machine = SchedulerMachine.restore(
            state, policy=made.policy, predictor=made.given_predictor, power=made.power
        )
        if machine.rules != made.rules:
            raise InputError("it is of other rules than the scheduler has now")
        return machine


def _header_of(machine: SchedulerMachine) -> str:
    state = machine.dump()
    info = {"state": state} if state["evidence"]["version"] else None
    return encode_header(policy=machine.policy.name, rules=machine.rules, info=info)
