r"""Snapshots beside a journal: the state after some of its records (`eaco.snapshot/1`).

A snapshot saves the time of folding the journal from its start, and nothing else: the journal
alone is the truth, and whatever is wrong with a snapshot only costs that time. The file is

    eaco.snapshot/1 <BLAKE2b, 32 hex digits>\n{"records": ..., "state": {...}}\n

The digest is of the second line. The place in the journal is named by number, offset and chain,
so that a snapshot of another journal, or of records that were lost, is known as such.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from eaco_adapters.durable import sync_folder, write_file
from eaco_adapters.journal.frame import CHAIN_BYTES, Place
from eaco_adapters.journal.reader import holds
from eaco_core.errors import EnvironmentFault, InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_adapters.journal.writer import JournalWriter

VERSION: Final = 1
SCHEMA: Final = f"eaco.snapshot/{VERSION}"
KEPT: Final = 2

MIGRATIONS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}
"""By version: what makes the content of a snapshot of that version one of the next."""

_HEAD: Final = re.compile(rb"eaco\.snapshot/(\d{1,9}) ([0-9a-f]{32})\n")
_HEAD_BYTES: Final = 64
_NAME: Final = re.compile(r"\.snapshot-(\d{1,18})")


@frozen
class Snapshot:
    """The state of the machine (`eaco.state/1`) at a place of the journal."""

    place: Place
    state: dict[str, Any]


def write_snapshot(journal: JournalWriter, place: Place, state: str) -> Path:
    """Keep the state that the machine had at `place`; older ones than the last two go.

    `place` is `journal.place` and `state` is `machine.dump_text()`, both taken between the same
    two steps. May run in a thread, once the journal has been committed up to there. Raises
    EnvironmentFault; the journal is good all the same.
    """
    if journal.records < place.records:
        raise InternalError(
            f"a snapshot of record {place.records} of {journal.path} would come before the record"
        )
    content = (
        f'{{"records":{place.records},"place_bytes":{place.place_bytes},'
        f'"chain":"{place.chain.hex()}","state":{state}}}\n'
    ).encode()
    data = f"{SCHEMA} {_digest(content)}\n".encode() + content
    target = journal.path.with_name(f"{journal.path.name}.snapshot-{place.records:012d}")
    part = journal.path.with_name(f"{journal.path.name}.snapshot.part")
    try:
        write_file(part, data, mode=0o600)
        part.replace(target)
        sync_folder(target.parent)
        for old in snapshots_of(journal.path)[KEPT:]:
            with suppress(FileNotFoundError):
                old.unlink()
    except OSError as error:
        raise EnvironmentFault(
            f"the snapshot {target} cannot be written: {error.strerror}. The journal is not "
            "touched by this; only the next start takes longer"
        ) from error
    return target


def snapshots_of(journal: str | Path) -> list[Path]:
    """Name the snapshots of a journal, newest first."""
    journal = Path(journal)
    found: list[tuple[int, Path]] = []
    with suppress(OSError):
        for path in journal.parent.iterdir():
            if path.name.startswith(journal.name):
                number = _NAME.fullmatch(path.name, len(journal.name))
                if number is not None:
                    found.append((int(number[1]), path))
    return [path for _, path in sorted(found, reverse=True)]


def read_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot. Raises InputError for one that is damaged, no snapshot, or too new."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    head = _HEAD.match(data[:_HEAD_BYTES])
    if head is None:
        raise InputError(f"this is no snapshot: it does not begin as {SCHEMA}", where=str(path))
    if int(head[1]) > VERSION:
        raise InputError(
            f"this snapshot is of a later version (eaco.snapshot/{int(head[1])}), and this eaco "
            f"reads up to {SCHEMA}. Use the newer eaco that wrote it",
            where=str(path),
        )
    content = data[head.end() :]
    if _digest(content) != head[2].decode():
        raise InputError("this snapshot is damaged: its checksum does not fit", where=str(path))
    try:
        return _snapshot_in(json.loads(content), int(head[1]))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"this snapshot is wrong: {error!r}", where=str(path)) from None


def check_snapshot(journal: str | Path, snapshot: Snapshot) -> None:
    """Raise InputError for a snapshot of another journal, or of records that are not there."""
    if not holds(journal, snapshot.place):
        raise InputError(
            f"the journal {journal} has no record {snapshot.place.records} with this chain: the "
            "snapshot belongs to another journal, or the end of this one was lost"
        )


def _snapshot_in(content: dict[str, Any], version: int) -> Snapshot:
    for step in range(version, VERSION):
        if step not in MIGRATIONS:
            raise ValueError(f"version {version} is no longer read")
        content = MIGRATIONS[step](content)
    records, place_bytes = content["records"], content["place_bytes"]
    chain, state = bytes.fromhex(content["chain"]), content["state"]
    if type(records) is not int or type(place_bytes) is not int:
        raise TypeError("records and place_bytes must be whole numbers")
    return Snapshot(Place(records, place_bytes, chain), state)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=CHAIN_BYTES).hexdigest()
