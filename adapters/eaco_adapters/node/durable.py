"""Files that are whole or not there, also after a crash; and the places where tests plant one."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pathlib import Path

CRASH_VARIABLE = "EACO_TEST_RUNNER_CRASH"


def crash_point(name: str) -> None:
    """End as by SIGKILL if a test asks for it at this step; no test, no effect."""
    if os.environ.get(CRASH_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Write a new file and, if asked, wait until the disk has it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        view = memoryview(raw)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, raw: bytes) -> None:
    """Write a file in one step: readers see the old or the new content, never half of it."""
    beside = path.with_name(f".{path.name}.new")
    write_file(beside, raw)
    beside.replace(path)
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None when the file is not there or is not one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def read_number(path: Path) -> int | None:
    """Read a file that holds one whole number; None when it is not there or empty."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
