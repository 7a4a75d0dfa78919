"""`eaco simulate` as a person and as a program meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eaco_adapters.cli import _app
from eaco_adapters.cli.simulate import command
from eaco_core.history import Header, read_history

SMALL = ["--jobs", "12", "--nodes", "3", "--epochs", "5..20"]
ROOT = Path(__file__).resolve().parents[2]

_NUMBER = {"type": "number", "minimum": 0}
_KNOWN_OR_NULL = {"type": ["number", "null"], "minimum": 0}
_WHOLE = {"type": "integer", "minimum": 0}
_PARTS = dict.fromkeys(("jobs", "idle", "unattributed", "sleep", "wake"), _NUMBER)
_RESULT: dict[str, Any] = {
    "policy": {"type": "string"},
    "seed": _WHOLE,
    "in_sample": {"type": "boolean"},
    "submitted": _WHOLE,
    "finished": _WHOLE,
    "failed": _WHOLE,
    "energy_j": _KNOWN_OR_NULL,
    "energy_parts_j": {
        "type": ["object", "null"],
        "properties": _PARTS,
        "required": list(_PARTS),
        "additionalProperties": False,
    },
    "avg_jct_s": _KNOWN_OR_NULL,
    "p99_jct_s": _KNOWN_OR_NULL,
    "avg_runtime_s": _KNOWN_OR_NULL,
    "avg_wait_s": _KNOWN_OR_NULL,
    "makespan_s": _KNOWN_OR_NULL,
    "avg_active_nodes": _KNOWN_OR_NULL,
    "deadline_misses": _WHOLE,
    "placements": _WHOLE,
    "shared_placements": _WHOLE,
    "observations_kept": _WHOLE,
    "undos": _WHOLE,
    "cpu_s": _NUMBER,
    "peak_rss_bytes": {"type": ["integer", "null"]},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema": {"const": "eaco.simulate/1"},
        "config": {"type": "object", "required": ["versions", "options", "rules", "notes"]},
        "results": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": _RESULT,
                "required": list(_RESULT),
                "additionalProperties": False,
            },
        },
    },
    "required": ["schema", "config", "results"],
    "additionalProperties": False,
}


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert _app.run(["simulate", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document: dict[str, Any] = json.loads(out)
    return document


def _eaco(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from eaco_adapters.cli import main; main()", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )


def test_the_document_is_of_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, *SMALL, "--policy", "fifo,eaco")
    jsonschema.validate(document, SCHEMA)
    assert list(document["results"][0]) == list(_RESULT), "the order of keys is stable"
    assert [entry["policy"] for entry in document["results"]] == ["fifo", "eaco"]
    for entry in document["results"]:
        assert entry["finished"] == entry["submitted"] == 12
        assert sum(entry["energy_parts_j"].values()) == pytest.approx(entry["energy_j"])
        assert entry["avg_runtime_s"] + entry["avg_wait_s"] == pytest.approx(entry["avg_jct_s"])


def test_unknown_energy_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, *SMALL, "--policy", "eaco", "--power-model", "none")
    jsonschema.validate(document, SCHEMA)
    assert document["results"][0]["energy_j"] is None
    assert document["results"][0]["energy_parts_j"] is None


def test_the_document_is_enough_to_repeat_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(
        capsys, *SMALL, "--seed", "7", "--alpha", "0.25", "--policy", "eaco,eaco-paper",
        "--max-wait-s", "inf",
    )  # fmt: skip
    config = document["config"]
    assert config["options"]["seed"] == 7
    assert config["options"]["rules"] == {"alpha": 0.25, "starvation_s": "inf"}
    assert config["rules"]["eaco"]["max_degree"] == 3
    assert config["rules"]["eaco-paper"]["max_degree"] == 4
    assert {rules["alpha"] for rules in config["rules"].values()} == {0.25}
    assert any("16 GiB" in note for note in config["notes"])
    assert config["energy_until_s"] > 0


def test_every_rule_option_reaches_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    config = _json(
        capsys, *SMALL, "--policy", "eaco", "--explore", "--order", "objective", "--alpha", "0",
        "--util-threshold", "0.5", "--mem-threshold", "0.4", "--max-degree", "2",
        "--max-wait-s", "60", "--late-jobs", "refuse",
    )["config"]  # fmt: skip
    wanted = {
        "explore": True,
        "order": "objective",
        "alpha": 0,
        "util_threshold_ratio": 0.5,
        "mem_busy_threshold_ratio": 0.4,
        "max_degree": 2,
        "starvation_s": 60,
        "late_jobs": "refuse",
    }
    assert {name: config["rules"]["eaco"][name] for name in wanted} == wanted


def test_a_degree_of_one_shares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        _json(capsys, *SMALL, "--policy", "eaco", *more)["results"][0]
        for more in (["--max-degree", "1"], [])
    ]
    assert entries[0]["shared_placements"] == 0
    assert entries[1]["shared_placements"] > 0


def test_output_holds_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "result.json"
    document = _json(capsys, *SMALL, "--policy", "eaco", "--output", str(target))
    assert json.loads(target.read_text(encoding="utf-8")) == document


def test_people_get_tables_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert _app.run(["simulate", *SMALL, "--policy", "fifo,eaco"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert sum(line.startswith("eaco ") for line in lines) == 3, "one row in each table"
    assert "vs fifo" in out
    assert "- every v100 has 16 GiB of memory: an assumption" in lines
    assert "in_sample: false" in lines
    assert max(len(line) for line in lines if not line.startswith("- ")) <= 80


def test_one_is_written_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    one = ["--jobs", "1", "--nodes", "1", "--epochs", "2", "--policy", "fifo"]
    assert _app.run(["simulate", *one]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("1 job (")
    assert " on 1 node x 8 " in first


def test_people_see_a_dash_where_the_energy_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _app.run(["simulate", *SMALL, "--policy", "eaco", "--power-model", "none"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("eaco "))
    assert row.split()[1:] == ["-"] * 7


def test_one_policy_writes_the_file_as_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert _app.run(["simulate", *SMALL, "--policy", "eaco", "--events", str(path)]) == 0
    head = next(iter(read_history(path)))
    assert isinstance(head, Header)
    assert head.policy == "eaco"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.jsonl"]


def test_several_policies_write_a_file_each(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert _app.run(["simulate", *SMALL, "--policy", "fifo,eaco", "--events", str(path)]) == 0
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["run.eaco.jsonl", "run.fifo.jsonl"]
    for name in ("fifo", "eaco"):
        head = next(iter(read_history(tmp_path / f"run.{name}.jsonl")))
        assert isinstance(head, Header)
        assert head.policy == name


HARD = [
    "--jobs", "40", "--nodes", "4", "--interference", "1.4", "--deadlines", "1h:1.3,2,10",
    "--noise", "0.1", "--node-mtbf-s", "400000",
    "--policy", "fifo,fifo-skip,eaco-paper,eaco",
]  # fmt: skip


def test_the_same_seed_gives_the_same_in_every_process_and_passes_the_check(
    tmp_path: Path,
) -> None:
    documents: list[dict[str, Any]] = []
    for hash_seed in (1, 2):
        folder = tmp_path / str(hash_seed)
        folder.mkdir()
        events = folder / "run.jsonl"
        done = _eaco("simulate", *HARD, "--json", "--events", str(events), hash_seed=hash_seed)
        assert (done.returncode, done.stderr) == (0, "")
        document = json.loads(done.stdout)
        for entry in document["results"]:
            del entry["cpu_s"], entry["peak_rss_bytes"]
        documents.append(document)
    assert documents[0] == documents[1]
    assert documents[0]["results"][3]["shared_placements"] > 0
    names = sorted(entry.name for entry in (tmp_path / "1").iterdir())
    assert len(names) == 4
    for name in names:
        first = tmp_path / "1" / name
        assert first.read_bytes() == (tmp_path / "2" / name).read_bytes()
        assert _app.run(["check", str(first)]) == 0


def test_another_seed_gives_another_result(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        _json(capsys, *SMALL, "--policy", "eaco", "--seed", seed)["results"][0]["energy_j"]
        for seed in ("0", "1")
    ]
    assert results[0] != results[1]


def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    old = tmp_path / "result.json"
    old.write_text("old", encoding="utf-8")
    running = subprocess.Popen(
        [
            sys.executable, "-c", "from eaco_adapters.cli import main; main()",
            "simulate", "--jobs", "100000", "--policy", "fifo,eaco",
            "--events", str(tmp_path / "run.jsonl"), "--output", str(old),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    give_up_s = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 4 and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert running.poll() is None, "it must still be at work"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err == "eaco: stopped by the user; no file was left half-written.\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    assert old.read_text(encoding="utf-8") == "old"


def test_the_manual_names_every_option() -> None:
    manual = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    missing = [
        option
        for parameter in command.params
        for option in (*parameter.opts[:1], *parameter.secondary_opts)
        if f"`{option}" not in manual
    ]
    assert missing == []


def test_the_manual_names_every_field_of_a_result() -> None:
    manual = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert [name for name in _RESULT if f"`{name}`" not in manual] == []


@pytest.mark.slow
def test_without_arguments_it_saves_energy_within_a_minute() -> None:
    began_s = time.monotonic()
    done = _eaco("simulate", "--json")
    assert time.monotonic() - began_s < 60
    results = {entry["policy"]: entry for entry in json.loads(done.stdout)["results"]}
    assert list(results) == ["fifo", "eaco-paper", "eaco"]
    fifo, eaco = results["fifo"], results["eaco"]
    assert eaco["energy_j"] < 0.7 * fifo["energy_j"]
    assert eaco["shared_placements"] >= 0.6 * eaco["placements"]
    assert eaco["deadline_misses"] <= fifo["deadline_misses"]
    assert eaco["finished"] == fifo["finished"] == 400


def test_gpus_fail_and_come_back_when_asked_for(tmp_path: Path) -> None:
    events = tmp_path / "run.jsonl"
    arguments = ["--jobs", "10", "--nodes", "2", "--policy", "eaco", "--gpu-mtbf", "2e6"]
    done = _eaco("simulate", *arguments, "--json", "--events", str(events))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["config"]["options"]["gpu_mtbf_s"] == 2e6
    assert any("a GPU fails every 2e+06 s" in note for note in document["config"]["notes"])
    lost = [line for line in read_history(events) if "GpuLost" in str(line)]
    assert lost
    assert _app.run(["check", str(events)]) == 0


def test_one_of_a_thing_is_not_told_as_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert _app.run(["simulate", "--jobs", "1", "--nodes", "1", "--policy", "eaco"]) == 0
    out = capsys.readouterr().out
    assert "1 job, 10-90 epochs" in out
    assert "1 jobs" not in out
    assert "1 nodes" not in out
