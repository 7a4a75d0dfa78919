"""What docs/telemetry.md says is there, is there."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import fields

from eaco_telemetry.readers.auto import NAMES
from eaco_telemetry.samples import GpuSample

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))
READERS = "\n".join(
    path.read_text(encoding="utf-8")
    for path in (ROOT / "telemetry/eaco_telemetry/readers").glob("*.py")
)


def test_every_test_of_the_table_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", DOC))
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in TESTS} == set()


def test_every_pitfall_has_a_row_with_a_test() -> None:
    rows = re.findall(r"^\| (\d+) \| .+ \| .*`test_\w+`", DOC, re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 46))


def test_every_reader_that_can_be_chosen_is_in_the_table() -> None:
    table = DOC.partition("## The readers")[2].partition("\n\nEach is a class")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {*NAMES, "plug"}


def test_every_field_and_flag_of_the_doc_exists() -> None:
    table = DOC.partition("| field of a GPU |")[2].partition("\n\n")[0]
    names = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row[: row.find("|", 2)])
    }
    assert len(names) > 12
    assert names <= {one.name for one in fields(GpuSample)}
    flags = re.findall(r"`(\w+)`", DOC.partition("Flags: ")[2].partition("\n\n")[0])
    assert len(flags) >= 10
    assert [flag for flag in flags if f'"{flag}"' not in READERS and flag != "energy_j"] == []
