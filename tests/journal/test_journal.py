"""The journal: what is read is always a whole-record prefix, and one process writes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_adapters.journal.frame import FIRST_CHAIN, MAGIC, encode_record
from eaco_adapters.journal.reader import JournalReader, is_journal
from eaco_adapters.journal.writer import JournalDamaged, JournalLocked, JournalWriter
from eaco_core.errors import EnvironmentFault, InputError, InternalError

if TYPE_CHECKING:
    from pathlib import Path

LINES = ('{"schema":"eaco.history/1"}', '{"seq":1}', "", '{"name":"Überlänge 漢字"}', "x" * 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eaco.journal"


def _written(path: Path, lines: tuple[str, ...] = LINES) -> bytes:
    with JournalWriter(path) as journal:
        for line in lines:
            journal.append(line)
        assert journal.commit() == len(lines)
    return path.read_bytes()


def _read(path: Path) -> tuple[list[str], JournalReader]:
    reader = JournalReader(path)
    return list(reader), reader


def _kept(path: Path) -> list[str]:
    lines: list[str] = []
    with JournalWriter(path, replay=lines.append):
        return lines


def test_what_was_committed_is_read_again_and_continued(path: Path) -> None:
    _written(path)
    assert is_journal(path)
    with JournalWriter(path) as journal:
        assert journal.kept.records == len(LINES)
        assert journal.kept.cut is None
        journal.append("more")
        assert journal.commit() == len(LINES) + 1
    lines, reader = _read(path)
    assert lines == [*LINES, "more"]
    assert reader.end is not None
    assert reader.end.damage is None
    assert reader.end.place_bytes == path.stat().st_size


def test_what_was_not_committed_is_not_there(path: Path) -> None:
    with JournalWriter(path) as journal:
        journal.append("one")
        journal.commit()
        journal.append("two")
    assert _read(path)[0] == ["one"]


def test_every_truncation_gives_a_whole_record_prefix_and_can_be_continued(path: Path) -> None:
    data = _written(path)
    ends = [len(MAGIC)]
    chain = FIRST_CHAIN
    for line in LINES:
        record, chain = encode_record(line, chain)
        ends.append(ends[-1] + len(record))
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends[1:])
        lines, reader = _read(path)
        assert lines == list(LINES[:whole])
        assert reader.end is not None
        damage = reader.end.damage
        assert (damage is None) == (size in ends), f"cut at {size}"
        assert damage is None or damage.torn
        if size % 7 == 0:
            with JournalWriter(path) as journal:
                assert journal.kept.records == whole
                beside = journal.kept.cut_file
                place = max([0, *(end for end in ends if end <= size)])
                if beside is not None:
                    assert beside.read_bytes() == data[place:size]
                    beside.unlink()
                journal.append("after the crash")
                journal.commit()
            assert _read(path)[0] == [*LINES[:whole], "after the crash"]


@given(data=st.data())
def test_flipped_bits_give_a_whole_record_prefix(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flips") / "j"
    good = bytearray(_written(path))
    place = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    good[place] ^= 1 << bit
    path.write_bytes(good)
    if place < len(MAGIC):
        with pytest.raises(InputError, match=r"this is no journal|version"):
            _read(path)
        return
    lines, reader = _read(path)
    assert lines == list(LINES[: len(lines)])
    assert len(lines) < len(LINES), "a flipped bit was not noticed"
    assert reader.end is not None
    assert reader.end.damage is not None


def test_damage_in_the_middle_is_not_repaired_by_guessing(path: Path) -> None:
    data = bytearray(_written(path))
    place = data.index(b'{"seq":1}')
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match=r"record 2 at byte .* damaged: its CRC"):
        JournalWriter(path)
    assert path.read_bytes() == data, "nothing was changed"


@pytest.mark.parametrize("change", ["swapped", "left out", "doubled"])
def test_a_record_in_the_wrong_place_breaks_the_chain(path: Path, change: str) -> None:
    chain, records = FIRST_CHAIN, list[bytes]()
    for line in LINES:
        record, chain = encode_record(line, chain)
        records.append(record)
    changed = {
        "swapped": [records[0], records[2], records[1], *records[3:]],
        "left out": [records[0], *records[2:]],
        "doubled": [*records[:2], records[1], *records[2:]],
    }[change]
    path.write_bytes(MAGIC + b"".join(changed))
    lines, reader = _read(path)
    assert lines == list(LINES[: len(lines)])
    assert len(lines) == (2 if change == "doubled" else 1)
    assert reader.end is not None
    assert reader.end.damage is not None
    assert "hash chain" in reader.end.damage.reason


def test_zeros_at_the_end_are_a_torn_record(path: Path) -> None:
    data = _written(path)
    path.write_bytes(data + bytes(5000))
    assert _kept(path) == list(LINES)
    assert path.read_bytes() == data


@given(st.binary(max_size=400))
def test_rubbish_after_the_records_never_adds_one(
    tmp_path_factory: pytest.TempPathFactory, rubbish: bytes
) -> None:
    path = tmp_path_factory.mktemp("rubbish") / "j"
    path.write_bytes(_written(path) + rubbish)
    assert _read(path)[0] == list(LINES)


def test_records_longer_than_what_is_read_at_once(path: Path) -> None:
    lines = tuple("y" * size for size in (3 << 20, 1, (1 << 20) - 51, 1 << 20, 0))
    _written(path, lines)
    assert _read(path)[0] == list(lines)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{}\n", "this is no journal"),
        (b"eaco.journal/x\n", "its first line is not eaco.journal/1"),
    ],
)
def test_a_file_that_is_no_journal_is_left_alone(path: Path, content: bytes, sentence: str) -> None:
    path.write_bytes(content)
    assert not is_journal(path)
    with pytest.raises(InputError, match=sentence):
        JournalWriter(path)
    assert path.read_bytes() == content


def test_a_line_break_in_a_record_is_refused_and_nothing_is_collected(path: Path) -> None:
    with JournalWriter(path) as journal:
        with pytest.raises(InputError, match="line break"):
            journal.append("a\nb")
        journal.append("good")
        journal.commit()
    assert _read(path)[0] == ["good"]


def test_a_journal_that_cannot_be_made_or_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        JournalWriter(tmp_path / "nowhere" / "j")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        JournalWriter(tmp_path)
    with pytest.raises(InputError, match="no such journal"):
        _read(tmp_path / "missing")
    with pytest.raises(InputError, match="folder"):
        _read(tmp_path)
    assert not is_journal(tmp_path / "missing")


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    journal = JournalWriter(path)
    journal.close()
    journal.close()
    with pytest.raises(InternalError, match="is closed"):
        journal.append("late")


def test_an_error_while_replaying_lets_the_lock_go(path: Path) -> None:
    _written(path)

    def refuse(line: str) -> None:
        raise InputError(f"cannot take {line!r}")

    with pytest.raises(InputError, match="cannot take"):
        JournalWriter(path, replay=refuse)
    assert _kept(path) == list(LINES)


HOLD = """
import sys
from eaco_adapters.journal.writer import JournalWriter
journal = JournalWriter(sys.argv[1])
number = 0
print("open", flush=True)
while True:
    journal.append(str(number))
    journal.commit()
    print(number, flush=True)
    number += 1
"""


def test_one_process_writes_and_what_it_said_is_durable_survives_sigkill(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(20)]
        with pytest.raises(JournalLocked, match="by another process"):
            JournalWriter(path)
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
    numbers = [int(text) for text in said[1:] if text.endswith("\n")]
    lines = _kept(path)
    assert [int(line) for line in lines] == list(range(len(lines)))
    assert len(lines) > numbers[-1], "a record that was durable is gone"


LIMITED = """
import resource, signal, sys
from eaco_adapters.journal.writer import JournalWriter
from eaco_core.errors import EnvironmentFault
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with JournalWriter(sys.argv[1]) as journal:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    for number in range(1000):
        journal.append(f"{number:06d}" * 10)
        try:
            journal.commit()
        except EnvironmentFault as fault:
            print(number, fault)
            break
    try:
        journal.append("again")
    except EnvironmentFault as fault:
        print("refused")
"""


def test_a_full_disk_ends_the_writing_and_keeps_what_was_durable(path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True
    )
    first, second = ran.stdout.splitlines()
    number = int(first.split()[0])
    assert 10 < number < 100
    assert "nothing may be started after that" in first
    assert second == "refused"
    lines, reader = _read(path)
    assert len(lines) == number
    assert reader.end is not None
    assert reader.end.damage is None, "the half-written record was taken back"


def test_a_failed_fdatasync_is_never_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fail(handle: int) -> None:
        calls.append(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with JournalWriter(path) as journal:
        journal.append("one")
        monkeypatch.setattr(os, "fdatasync", fail)
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match="Input/output error"):
                journal.commit()
    assert len(calls) == 1


def test_the_file_is_for_its_owner_only_and_not_inherited(path: Path) -> None:
    mask = os.umask(0)
    try:
        with JournalWriter(path):
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def test_readers_may_look_while_it_is_written(path: Path) -> None:
    with JournalWriter(path) as journal:
        seen: list[int] = []
        for number in range(5):
            journal.append(str(number))
            journal.commit()
            seen.append(len(_read(path)[0]))
    assert all(a < b for a, b in pairwise(seen))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
