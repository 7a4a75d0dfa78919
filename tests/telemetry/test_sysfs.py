"""Values from files: a number, or the reason why there is none."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_telemetry.readers import sysfs
from eaco_telemetry.readers.sysfs import (
    Value,
    absent,
    can_fall_asleep,
    first_known,
    forbidden,
    is_asleep,
    known,
    list_names,
    names_in,
    parse_int,
    pci_address,
    read_count,
    read_int,
    read_scaled,
    read_text,
)
from eaco_telemetry.testing.trees import Tree, failing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"42\n", 42), (b"  -7 ", -7), (b"+3", 3), (b"0", 0), (b"99\0\0", 99), (b"007", 7)],
)
def test_a_number_is_read(tmp_path: Path, content: bytes, value: int) -> None:
    (tmp_path / "n").write_bytes(content)
    assert read_int(tmp_path / "n") == known(value)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"N/A", b"1e3", b"0x10", b"4 2", b"1_000", b"\xff", b"9" * 9999]
)
def test_what_is_no_number_has_a_reason(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "n").write_bytes(content)
    read = read_int(tmp_path / "n")
    assert read.value is None
    assert read.reason is not None
    assert read.reason.startswith(("n is empty", "n holds no number"))
    assert len(read.reason) < 60, "a reason does not repeat a flood"


def test_digits_of_other_scripts_are_no_number() -> None:
    assert parse_int("\u0664\u0662", "n").value is None


@given(st.text(max_size=30))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    read = parse_int(text, "n")
    assert (read.value is None) == (read.reason is not None)


@pytest.mark.parametrize(
    ("code", "reason", "flags"),
    [
        (errno.EACCES, "no permission to read n; root rights would add it", (True, False)),
        (errno.EPERM, "no permission to read n; root rights would add it", (True, False)),
        (errno.ENODEV, "n: the device is gone", (False, True)),
        (errno.ENXIO, "n: the device is gone", (False, True)),
        (errno.ENOENT, "no n", (False, False)),
        (errno.EIO, "n cannot be read: Input/output error", (False, False)),
        (errno.EINVAL, "n cannot be read: Invalid argument", (False, False)),
    ],
)
def test_an_error_is_a_reason(
    tmp_path: Path, code: int, reason: str, flags: tuple[bool, bool]
) -> None:
    (tmp_path / "n").write_bytes(b"1")
    with failing(tmp_path / "n", code=code):
        read = read_int(tmp_path / "n")
    assert (read.value, read.reason) == (None, reason)
    assert (read.forbidden, read.gone) == flags


def test_an_error_that_comes_only_with_the_read_is_a_reason_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sysfs lets a file be opened and fails at the read."""
    (tmp_path / "n").write_bytes(b"1")

    def fail(handle: int, size: int) -> bytes:
        del handle, size
        raise OSError(errno.ENODATA, "none")

    monkeypatch.setattr(os, "read", fail)
    assert read_text(tmp_path / "n").reason == "n cannot be read: No data available"


def test_folders_pipes_and_odd_names_are_survived(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path).value is None
    assert read_text(tmp_path / "pipe") == known("")
    assert read_text(tmp_path / "a\0b").value is None
    assert read_text(tmp_path / ("x" * 5000)).value is None
    assert read_text(tmp_path / "pipe" / "below").reason == "no below"


def test_a_flood_is_cut(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"a" * (sysfs.MAX_BYTES + 5000))
    assert len(read_text(tmp_path / "big").value or "") == sysfs.MAX_BYTES


def test_thousandths_are_round_numbers(tmp_path: Path) -> None:
    (tmp_path / "n").write_bytes(b"412")
    assert read_scaled(tmp_path / "n", per=1000).value == 0.412


def test_a_number_out_of_its_range_is_impossible(tmp_path: Path) -> None:
    (tmp_path / "n").write_bytes(b"101")
    read = read_scaled(tmp_path / "n", per=100, most=1.0)
    assert read == Value(None, "n is out of range: 1.01", impossible=True)
    (tmp_path / "n").write_bytes(b"-1")
    assert read_count(tmp_path / "n").impossible


def test_the_first_known_value_wins_and_a_forbidden_one_explains() -> None:
    assert first_known(absent("a"), known(2), known(3)) == known(2)
    assert first_known(absent("a"), forbidden("b")).reason == "b"
    assert first_known(absent("a"), absent("b")).reason == "a"


def test_names_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("card10", "card2", "card1", "renderD128", "card2-DP-1"):
        (tmp_path / name).touch()
    assert names_in(tmp_path) == ("card1", "card2", "card2-DP-1", "card10", "renderD128")
    assert names_in(tmp_path / "none") == ()
    assert list_names(tmp_path / "none").reason == "no none"


def test_a_pci_address_is_found_through_the_links(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.card(3, "0000:c1:00.0", "amdgpu", {})
    assert pci_address(tmp_path / "sys/class/drm/card3/device") == "0000:c1:00.0"
    assert pci_address(tmp_path / "sys") is None
    (tmp_path / "loop").symlink_to("loop")
    assert pci_address(tmp_path / "loop") is None


@pytest.mark.parametrize(
    ("status", "control", "asleep", "sleepy"),
    [
        ("suspended", "auto", True, False),
        ("suspending", "auto", True, False),
        ("active", "auto", False, True),
        ("active", "on", False, False),
        ("unsupported", "on", False, False),
        ("error", "auto", False, False),
    ],
)
def test_sleep_is_told_from_the_power_files(
    tmp_path: Path, *, status: str, control: str, asleep: bool, sleepy: bool
) -> None:
    tree = Tree(tmp_path)
    tree.write("/d/power/runtime_status", status)
    tree.write("/d/power/control", control)
    assert (is_asleep(tmp_path / "d"), can_fall_asleep(tmp_path / "d")) == (asleep, sleepy)
