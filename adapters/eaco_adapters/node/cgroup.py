"""Cgroups (version 2), where the node lets us: a limit of memory, and an end for all at once.

Optional. Where it is not possible `find_cgroups` gives the reason, which `NodeRunner.capabilities`
shows; the other proofs work without.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from attrs import frozen


@frozen
class Cgroups:
    """A folder in which we may make cgroups. `has_memory`: a limit of memory works there."""

    base: Path
    has_memory: bool

    def make(self, name: str, memory_bytes_max: int | None) -> Path:
        """Make one cgroup; raises OSError when the kernel refuses."""
        place = self.base / name
        place.mkdir(exist_ok=True)
        if memory_bytes_max is not None and self.has_memory:
            (place / "memory.max").write_text(str(memory_bytes_max), encoding="ascii")
        return place


def find_cgroups() -> Cgroups | str:
    """Find where cgroups can be made, by making one; or say why not."""
    mount = _mount()
    if mount is None:
        return "no cgroup version 2 file system is mounted"
    own = _own_path()
    if own is None:
        return "this process is in no cgroup of version 2"
    base = mount / own.lstrip("/")
    trial = base / f"eaco-trial-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError as error:
        return f"no cgroup can be made in {base}: {error.strerror}"
    try:
        if not (trial / "cgroup.kill").exists():
            return "the kernel is older than 5.14 and cannot end a cgroup"
        return Cgroups(base, (trial / "memory.max").exists())
    finally:
        trial.rmdir()


def is_populated(place: Path) -> bool:
    """Tell whether a process is left in a cgroup. One that is gone has none."""
    try:
        return "populated 1" in (place / "cgroup.events").read_text(encoding="ascii")
    except OSError:
        return False


def oom_kills(place: Path) -> int:
    """Give how often the kernel ended a process of this cgroup for want of memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in (place / "memory.events").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def end_all(place: Path) -> None:
    """End every process of a cgroup by force."""
    with contextlib.suppress(OSError):
        (place / "cgroup.kill").write_text("1", encoding="ascii")


def remove(place: Path) -> None:
    """Remove an empty cgroup."""
    with contextlib.suppress(OSError):
        place.rmdir()


def _mount() -> Path | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[2] == "cgroup2":
                return Path(words[1].replace("\\040", " "))
    return None


def _own_path() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                return line[3:]
    return None
