"""The examples in docs/formats.md are read by the readers that they document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eaco_adapters.traces import TRACE_FIELDS, read_trace
from eaco_predictors.own_profiles import PROFILE_FIELDS
from eaco_predictors.profiles import paper_profiles, read_any_profiles

DOC = Path(__file__).parents[2] / "docs" / "formats.md"
BLOCKS: list[tuple[str, str, str]] = re.findall(
    r"^```(\w+) (\w+)\n(.*?)^```$", DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_both_kinds_are_shown_in_both_formats() -> None:
    assert sorted((kind, form) for form, kind, _ in BLOCKS) == [
        ("profiles", "csv"),
        ("profiles", "jsonl"),
        ("trace", "csv"),
        ("trace", "jsonl"),
    ]


@pytest.mark.parametrize(("form", "kind", "text"), BLOCKS)
def test_example_is_read(tmp_path: Path, form: str, kind: str, text: str) -> None:
    path = tmp_path / f"example.{form}"
    path.write_text(text, encoding="utf-8")
    if kind == "trace":
        trace = read_trace(path, table=paper_profiles(), gpu_type="v100")
        assert [job.workload for job in trace.jobs] == ["resnet50", "alexnet", "our-model"]
        assert trace.has_deadlines
        assert [job.deadline_s for job in trace.jobs] == [90000, None, None]
        assert trace.jobs[2].profiles[0].epoch_s == 812.5
    else:
        table = read_any_profiles(path, "v100")
        assert table.workloads == ("detector", "ranker")
        assert table.measured["detector", ("ranker",)] == 1.06


def test_every_field_is_documented() -> None:
    named = set(re.findall(r"`(\w+)`", DOC.read_text(encoding="utf-8")))
    assert set(TRACE_FIELDS) | set(PROFILE_FIELDS) <= named
