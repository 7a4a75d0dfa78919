"""`eaco profile` with real child processes on a core that stands for a GPU."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from eaco_adapters.cli import profile
from eaco_adapters.testing.node_kit import processes_with
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core.errors import InputError
from eaco_predictors.own_profiles import read_profiles
from eaco_telemetry.readers.auto import Choice

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of a test may have a GPU; these tests are about the core in its place."""

    def none(node_id: str) -> Choice:
        del node_id
        return Choice()

    monkeypatch.setattr(profile, "choose_readers", none)


def _run(*words: str) -> str:
    result = CliRunner().invoke(profile.command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


TOY = toy_command(epochs=1000, epoch_s=0.05, burn=True)


def test_it_measures_alone_and_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "ours.jsonl"
    out = _run("--name", "toy", "--epochs", "4", "--output", str(file), "--", *TOY)
    assert "toy" in out
    assert "no GPU here" in out
    table = read_profiles(file)
    epoch_s = table.profile("toy").epoch_s
    assert table.gpu_type == "virtual"
    assert epoch_s is not None
    assert 0.05 <= epoch_s < 1
    assert table.profile("toy").util_ratio is None
    _run("--name", "other", "--epochs", "1", "--output", str(file), "--", *TOY)
    assert set(read_profiles(file).profiles) == {"toy", "other"}
    assert processes_with("eaco-profile-") == []


def test_a_pair_gives_slowdowns_of_both(tmp_path: Path) -> None:
    work = "for i in range(2_000_000): pass\n"
    script = (
        "from eaco_adapters.progress import Progress\n"
        f"p = Progress.from_env()\nfor n in range(1, 1000):\n    {work}    p.epoch_done(n)\n"
    )
    words = (sys.executable, "-c", script)
    pair = f"{sys.executable} -c '{script}'"
    file = str(tmp_path / "ours.jsonl")
    out = _run(
        *("--name", "a", "--pair-name", "b", "--json", "--output", file),
        *("--pair", pair, "--", *words),
    )
    data = json.loads(out)
    assert [row["workload"] for row in data["alone"]] == ["a", "b"]
    assert [row["workload"] for row in data["together"]] == ["a", "b"]
    assert data["alone"][0]["power_w"] is None
    assert "no GPU here" in data["alone"][0]["missing"]["power_w"]
    ratio = data["together"][0]["epoch_s"] / data["alone"][0]["epoch_s"]
    measured = read_profiles(file).measured
    assert measured["a", ("b",)] == pytest.approx(ratio)
    assert set(measured) == {("a", ("b",)), ("b", ("a",))}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("no-such-program-here",), "could not be started"),
        (("sh", "-c", "echo oh no; exit 3"), "exit code 3; it wrote last: oh no"),
        (("true",), "reported 0 epochs"),
        (toy_command(epochs=1), "reported 1 epochs"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence_and_no_file(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    file = tmp_path / "ours.jsonl"
    with pytest.raises(InputError, match=sentence):
        _run("--output", str(file), "--", *words)
    assert not file.exists()


def test_a_file_of_another_gpu_is_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "ours.jsonl"
    file.write_text('{"kind": "solo", "workload": "w", "gpu_type": "v100", "epoch_s": 5}\n')
    before = file.read_text()
    with pytest.raises(InputError, match="v100"):
        _run("--output", str(file), "--epochs", "1", "--", *TOY)
    assert file.read_text() == before


def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="this machine has 0"):
        _run("--gpus", "2", "--", *TOY)
