"""Small values from the files of /sys and /proc, with a reason when there is none.

Such a file may be missing, forbidden, empty, cut short, full of nonsense, or vanish
between two reads because its device was unplugged. None of that is an error here: it
is a `Value` without a value, and its reason goes into the sample. Nothing in this file
raises for what a file holds.

All paths hang under a `root`, so that a test (or a container that mounts the files of
its host elsewhere) can point every reader at another tree. Links are followed by the
kernel; those of sysfs are relative, so they stay inside that tree.
"""

from __future__ import annotations

import errno
import math
import os
import re
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
U = TypeVar("U")

# No file that we read is larger; /proc/stat of a machine with 1,000 CPUs is 100 KB.
MAX_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
# Larger than any counter of the kernel (64 bit); keeps a digit flood from costing time.
_MAX_DIGITS = 20

_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ESRCH})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_INTEGER = re.compile(r"[+-]?[0-9]+")
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@frozen
class Value(Generic[T]):
    """A value, or None and the reason in plain words.

    `forbidden`: root would see it. `impossible`: something was there, and it was nonsense.
    `gone`: the kernel says that the device behind it is no more.
    """

    value: T | None
    reason: str | None = None
    forbidden: bool = False
    impossible: bool = False
    gone: bool = False

    def then(self, change: Callable[[T], Value[U]]) -> Value[U]:
        """Give what `change` makes of the value; without one the reason stays."""
        if self.value is None:
            return Value(None, self.reason, self.forbidden, self.impossible, self.gone)
        return change(self.value)


def known(value: T) -> Value[T]:
    """Give a value that is there."""
    return Value(value)


def absent(reason: str) -> Value[Any]:
    """Give the reason for a value that is not there."""
    return Value(None, reason)


def forbidden(reason: str) -> Value[Any]:
    """Give the reason for a value that root would see."""
    return Value(None, reason, forbidden=True)


def impossible(reason: str) -> Value[Any]:
    """Give the reason for dropping what was there, because no device means that."""
    return Value(None, reason, impossible=True)


def first_known(*values: Value[T]) -> Value[T]:
    """Give the first that has a value, else the first that root rights would add.

    Without either: the reason of the first one. At least one value is needed.
    """
    for value in values:
        if value.value is not None:
            return value
    return next((value for value in values if value.forbidden), values[0])


def read_text(path: Path) -> Value[str]:
    """Read a small file. Bytes that are not UTF-8 become U+FFFD; ends are stripped."""
    try:
        raw = _read_bytes(path)
    except OSError as fault:
        return _why(path, fault)
    except ValueError:  # a NUL in the name
        return absent(f"no {path.name!r}")
    return known(raw.decode("utf-8", "replace").strip("\0 \t\r\n"))


def _read_bytes(path: Path) -> bytes:
    # Without O_NONBLOCK a pipe in the place of a file would stop the reader for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        left = MAX_BYTES
        while left > 0 and (part := os.read(handle, min(left, _CHUNK_BYTES))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def _why(path: Path, fault: OSError) -> Value[Any]:
    name = path.name
    if fault.errno in _ABSENT:
        return absent(f"no {name}")
    if fault.errno in _FORBIDDEN:
        return Value(
            None, f"no permission to read {name}; root rights would add it", forbidden=True
        )
    if fault.errno in _GONE:
        return Value(None, f"{name}: the device is gone", gone=True)
    return absent(f"{name} cannot be read: {os.strerror(fault.errno or 0)}")


def parse_int(text: str, name: str) -> Value[int]:
    """Read a whole decimal number; `name` is for the reason."""
    if not text:
        return absent(f"{name} is empty")
    if len(text) > _MAX_DIGITS + 1 or not _INTEGER.fullmatch(text):
        return impossible(f"{name} holds no number: {text[:20]!r}")
    return known(int(text))


def read_int(path: Path) -> Value[int]:
    """Read a file that holds one whole number."""
    return read_text(path).then(lambda text: parse_int(text, path.name))


def read_scaled(
    path: Path, times: float = 1.0, *, per: float = 1.0, least: float = 0.0, most: float = math.inf
) -> Value[float]:
    """Read a whole number times `times` / `per`; outside of least..most it is no measurement.

    Thousandths are divided by 1,000 and not multiplied by 0.001, which is no round number.
    """
    return read_int(path).then(lambda raw: in_range(raw * times / per, path.name, least, most))


def in_range(value: float, name: str, least: float, most: float) -> Value[float]:
    """Keep a value that can be, refuse one that cannot."""
    if least <= value <= most:
        return known(value)
    return impossible(f"{name} is out of range: {value:g}")


def read_count(path: Path, *, most: int = (1 << 63) - 1) -> Value[int]:
    """Read a whole number from 0 to `most`."""

    def check(raw: int) -> Value[int]:
        in_it = 0 <= raw <= most
        return known(raw) if in_it else impossible(f"{path.name} is out of range: {raw}")

    return read_int(path).then(check)


def list_names(path: Path, *, ordered: bool = True) -> Value[tuple[str, ...]]:
    """List a folder, names with numbers in the order of the numbers (card2, card10).

    Without `ordered` in any order; that matters for large folders that are read often.
    """
    try:
        names = os.listdir(path)  # noqa: PTH208 - names only
    except OSError as fault:
        return _why(path, fault)
    return known(tuple(sorted(names, key=_by_number) if ordered else names))


def names_in(path: Path) -> tuple[str, ...]:
    """List a folder; one that cannot be read has no names."""
    return list_names(path).value or ()


def _by_number(name: str) -> tuple[tuple[str, int, str], ...]:
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple(("", int(part), part) if part.isdecimal() else (part, 0, "") for part in parts)


def link_name(path: Path) -> str | None:
    """Give the last part of where a link points, such as the driver of a device."""
    try:
        return os.path.basename(os.readlink(path)) or None  # noqa: PTH115, PTH119 - plain text
    except OSError:
        return None


def device_name(device: Path) -> str:
    """Give the name of a device folder behind all links: a PCI address, or ``ff9a0000.gpu``."""
    return os.path.basename(os.path.realpath(device))  # noqa: PTH119 - plain text


def pci_address(device: Path) -> str | None:
    """Give the PCI address (0000:03:00.0) of a device folder or of a link to it."""
    name = device_name(device).lower()
    return name if is_pci_address(name) else None


def is_pci_address(text: str) -> bool:
    """Say whether a text is a PCI address with its domain, in lower case."""
    return _BDF.fullmatch(text) is not None


def can_fall_asleep(device: Path) -> bool:
    """Say whether the kernel puts a PCI device to sleep by itself when it is not used."""
    return (
        read_text(device / "power" / "control").value == "auto"
        and read_text(device / "power" / "runtime_status").value == "active"
    )


def is_asleep(device: Path) -> bool:
    """Say whether a PCI device sleeps. Looking at its other files could wake it.

    A device without runtime power management is awake. `suspending` and `resuming`
    count as asleep, since a read now would decide the matter.
    """
    status = read_text(device / "power" / "runtime_status").value
    return status in {"suspended", "suspending", "resuming"}
