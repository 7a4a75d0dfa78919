"""Files that are whole or not there, also after a power cut: one way of writing them for all."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data`, in as many writes as it takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, raw: bytes, *, sync: bool = True, mode: int = 0o640) -> None:
    """Write a file and, if asked, wait until the disk has its content. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(handle, raw)
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, raw: bytes, *, mode: int = 0o640) -> None:
    """Write a file in one step: readers see the old or the new content, never half of it.

    Raises OSError; what was there before is then still there.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        write_file(beside, raw, mode=mode)
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
