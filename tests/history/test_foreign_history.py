"""The example of another scheduler's history in docs/history.md is read and checked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

from eaco_core.history import Step, read_lines
from eaco_core.invariants import check_history
from eaco_core.schemas import history_schema

DOCUMENT = Path(__file__).parents[2] / "docs" / "history.md"


def example() -> list[str]:
    found = re.search(r"```jsonl\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1].splitlines(keepends=True)


def test_the_example_is_valid_by_the_schema() -> None:
    validator: Any = jsonschema.Draft202012Validator(history_schema())
    for line in example():
        validator.validate(json.loads(line))


def test_the_example_of_another_scheduler_passes() -> None:
    report = check_history(read_lines(example()))
    assert report.failed == ()
    assert report.not_checked == {
        "I28": "nothing of the kind happened: no node and no GPU was lost",
        "I29": "nothing of the kind happened: no job was cancelled",
    }
    assert report.unended == 1
    assert set(report.passed) == {
        "I03", "I04", "I06", "I15", "I16", "I17", "I18", "I20", "I30",
    }  # fmt: skip
    assert (report.origin, report.policy, report.jobs) == ("example-cluster 4.2", "backfill", 2)


def test_what_it_does_not_hold_is_not_checked() -> None:
    steps = [line for line in read_lines(example()) if isinstance(line, Step)]
    header = next(iter(read_lines(example())))
    without_energy = check_history([header, *steps])
    assert without_energy.not_checked["I30"] == "the history has no energy lines"
    everything = check_history([header, *steps], frozenset({"I01", "I07", "I09", "I19"}))
    why = "2 placements come without a record of the decision"
    assert everything.not_checked == {"I07": why, "I09": why}
    assert everything.passed == ("I01", "I19")
    without_nodes = check_history([header, *steps[1:]], frozenset({"I04"}))
    assert without_nodes.not_checked == {"I04": "no NodeJoined event tells which GPUs are up"}


def test_a_fault_of_another_scheduler_is_found() -> None:
    lines = example()
    gang = json.loads(lines[2])
    gang["effects"][0]["gpus"] = [["box", ["GPU-1"]]]
    lines[2] = json.dumps(gang)
    assert set(check_history(read_lines(lines)).counts) == {"I03"}

    lines = example()
    del lines[7]  # job 8 never starts
    early = json.loads(lines[4])
    early["effects"] = json.loads(example()[7])["effects"]
    lines[4] = json.dumps(early)
    shared = check_history(read_lines(lines))
    # Jobs that do not say how many epochs they have never share.
    assert set(shared.counts) == {"I06"}
