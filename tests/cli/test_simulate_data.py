"""`eaco simulate` over real traces; they are read from the folder EACO_DATA_DIR."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eaco_adapters.cli import _app

DATA = os.environ.get("EACO_DATA_DIR")
pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(DATA is None, reason="EACO_DATA_DIR is not set: no external traces"),
]
FOLDER = Path(DATA or ".")
GAVEL = [
    "--trace", str(FOLDER / "gavel" / "g1000_l60_s0.trace"),
    "--profiles", str(FOLDER / "gavel" / "simulation_throughputs.json"),
    "--gpu-type", "v100", "--nodes", "28", "--gpus-per-node", "8", "--json",
]  # fmt: skip


def _results(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert _app.run(["simulate", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    return {entry["policy"]: entry for entry in document["results"]}


def test_without_evidence_eaco_places_gavel_jobs_as_fifo_skip_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    events = tmp_path / "run.jsonl"
    results = _results(
        capsys, *GAVEL, "--policy", "fifo,fifo-skip,eaco", "--history", "none",
        "--max-wait-s", "inf", "--events", str(events),
    )  # fmt: skip
    for entry in results.values():
        assert entry["finished"] == entry["submitted"] == 1000
        assert entry["energy_j"] is None
        assert entry["in_sample"] is False
    eaco, skip = results["eaco"], results["fifo-skip"]
    assert eaco["shared_placements"] == 0
    same = ("avg_jct_s", "p99_jct_s", "avg_wait_s", "makespan_s", "avg_active_nodes")
    assert {name: eaco[name] for name in same} == {name: skip[name] for name in same}
    assert _starts(tmp_path / "run.eaco.jsonl") == _starts(tmp_path / "run.fifo-skip.jsonl")


def _starts(path: Path) -> list[object]:
    """Give time, job and GPUs of every start in a history."""
    return [
        (step["t_s"], effect["job_id"], effect["gpus"])
        for step in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for effect in step.get("effects", [])
        if effect["type"] == "StartJob"
    ]


def test_with_the_measured_pairs_eaco_shares_gavel_jobs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    eaco = _results(capsys, *GAVEL, "--policy", "eaco", "--history", "truth")["eaco"]
    assert eaco["finished"] == eaco["submitted"] == 1000
    assert eaco["shared_placements"] >= 100
    assert eaco["in_sample"] is True


def test_gavel_energy_is_known_when_a_utilisation_is_assumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = _results(capsys, *GAVEL, "--policy", "fifo", "--assume-gpu-util", "0.5")
    assert results["fifo"]["energy_j"] > 0


def test_philly_jobs_of_a_small_part_all_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = (FOLDER / "philly" / "philly_jobs.csv").read_text(encoding="utf-8").splitlines()
    part = tmp_path / "part.csv"
    part.write_text("\n".join([lines[0], *lines[1:40_000:20]]) + "\n", encoding="utf-8")
    arguments = ["--trace", str(part), "--nodes", "40", "--policy", "fifo-skip,eaco", "--json"]
    results = _results(capsys, *arguments)
    for entry in results.values():
        assert entry["finished"] == entry["submitted"] > 1000
    assert results["eaco"]["energy_j"] < results["fifo-skip"]["energy_j"]
