"""The main memory of the node, from /proc/meminfo."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attrs import frozen

from eaco_telemetry.readers.sysfs import Value, absent, known, read_text

if TYPE_CHECKING:
    from pathlib import Path

_LINE = re.compile(r"(MemTotal|MemAvailable):\s+([0-9]{1,15}) kB")


@frozen
class Meminfo:
    """Total memory, and what a program can have at once.

    Available memory counts the page cache that the kernel would give away. Free memory does
    not, and would show a busy machine as full.
    """

    total_bytes: Value[int]
    available_bytes: Value[int]

    @property
    def used_bytes(self) -> Value[int]:
        """What is in use and cannot be had: total without available."""
        total = self.total_bytes.value
        if total is None:
            return self.total_bytes
        return self.available_bytes.then(lambda available: known(max(0, total - available)))


def read_meminfo(root: Path) -> Meminfo:
    """Read /proc/meminfo under a root."""
    text = read_text(root / "proc" / "meminfo")
    lines = (_LINE.fullmatch(line.strip()) for line in (text.value or "").splitlines())
    found = {match[1]: int(match[2]) << 10 for match in lines if match}

    def of(name: str) -> Value[int]:
        if name in found:
            return known(found[name])
        return absent(text.reason or f"meminfo has no line {name}")

    return Meminfo(of("MemTotal"), of("MemAvailable"))
