"""Every mistake of a user: one sentence, exit status 2, and no file touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli import _app

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "job_id,submit_s,gpus,epochs,workload\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "fifo,lifo"], "there is no policy 'lifo'; known are fifo, fifo-skip"),
        (["--policy", "fifo,,eaco"], "empty name"),
        (["--policy", "eaco,eaco"], "named twice"),
        (["--no-sleep", "eacoo"], "no sleep was asked for policy 'eacoo'"),
        (["--gpu-type", "v1000"], "unknown GPU type 'v1000'; the paper's profiles know: v100"),
        (["--trace", "none.csv"], "none.csv: there is no such file"),
        (["--trace", "{here}"], "this is a directory"),
        (["--profiles", "none.csv"], "none.csv: there is no such file"),
        (["--history", "none.csv"], "none.csv: there is no such file"),
        (["--deadlines", "24h"], "deadlines are written none, or a base"),
        (["--deadlines", "24h:nan"], "deadlines are written none, or a base"),
        (["--nodes", "0"], "'--nodes'"),
        (["--nodes", "-3"], "'--nodes'"),
        (["--nodes", "nan"], "'--nodes'"),
        (["--gpus-per-node", "1.5"], "'--gpus-per-node'"),
        (["--seed", "-1"], "'--seed'"),
        (["--alpha", "nan"], "'nan' is no number of at least 0 and at most 1"),
        (["--alpha", "1.5"], "'1.5' is no number of at least 0 and at most 1"),
        (["--util-threshold", "-0.1"], "is no number of at least 0"),
        (["--max-degree", "0"], "'--max-degree'"),
        (["--max-wait-s", "nan"], "is no number of at least 0, or inf"),
        (["--wake-s", "inf"], "'inf' is no number of at least 0"),
        (["--sleep-w", "-15"], "'-15' is no number of at least 0"),
        (["--idle-w", "10"], "an idle node cannot draw 10 W"),
        (["--interference", "0.9"], "'0.9' is no number of at least 1"),
        (["--noise", "-1"], "is no number of at least 0"),
        (["--node-mtbf-s", "0"], "'0' is no number above 0"),
        (["--gpu-mtbf-s", "0"], "'0' is no number above 0"),
        (["--load", "0"], "'0' is no number above 0"),
        (["--epochs", "9..1"], "must go up"),
        (["--epochs", "many"], "like 10..90"),
        (["--assume-gpu-util", "2"], "is no number of at least 0 and at most 1"),
        (["--gpu-mem-gib", "0"], "is no number"),
        (["--late-jobs", "never"], "'never' is not one of"),
        (["--nodes", "1", "--gpus-per-node", "4"], "asks for 8 GPUs, but the cluster has 4"),
        (["--trace", "t.csv", "--jobs", "3"], "--jobs is for the generated workload"),
        (["--output", "{here}"], "is a folder"),
        (["--events", "{here}"], "is a folder"),
        (["--output", "{here}/no/r.json"], "there is no folder"),
        (["--events", "{here}/no/r.jsonl"], "there is no folder"),
        (["--policy", "eaco", "--output", "same", "--events", "same"], "name two files"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    given = [part.format(here=here) for part in arguments]
    _refused([*given], sentence, here, capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "t.csv: the file is empty"),
        ("who knows\n1\n", "t.csv: this is no known job trace; known formats: Gavel"),
        (f"{HEAD}a,0,8,10,vgg16\nb,5,8\n", "t.csv, line 3: 5 columns were expected"),
        (f"{HEAD}a,0,8,10,vgg17\n", "t.csv, line 2: unknown workload 'vgg17' on v100"),
        (f"{HEAD}a,-1,8,10,vgg16\n", "t.csv, line 2: submit_s must not be negative"),
        (f"{HEAD}a,nan,8,10,vgg16\n", "t.csv, line 2: submit_s must be a finite number"),
        (f"{HEAD}a,0,0,10,vgg16\n", "t.csv, line 2: gpus must be at least 1"),
        (f"{HEAD}a,0,8,10,vgg16\na,9,8,10,vgg16\n", "t.csv, line 3: job id 'a' was given before"),
        (f"{HEAD}a,0,8,10,vgg16\n\nb,9,500,10,vgg16\n", "t.csv, line 4: job 'b' asks for 500"),
        (
            "submit_s,gpus,epochs,workload,gpu_types\n0,8,10,vgg16,a100\n",
            "t.csv, line 2: the job runs on GPU types a100 only; known here: v100",
        ),
        (
            "submit_s,gpus,epochs,workload,node_selector\n0,8,10,vgg16,zone=a\n",
            "t.csv, line 2: job '2' needs nodes with the label zone=a",
        ),
        (
            "submit_s,gpus,epochs,workload,peak_mem_bytes\n0,8,10,vgg16,17179869185\n",
            "t.csv, line 2: job '2' needs 17179869185 bytes on each GPU, but a v100 here has",
        ),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    _refused(["--trace", "t.csv"], sentence, tmp_path, capsys)


def test_a_broken_history_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = '{"schema":"eaco.history/1","kind":"header"}\n{"kind":"stop"}\n'
    (tmp_path / "h.jsonl").write_text(text, encoding="utf-8")
    _refused(["--history", "h.jsonl"], "h.jsonl, line 2: ", tmp_path, capsys)


def test_an_input_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(f"{HEAD}a,0,8,10,vgg16\n", encoding="utf-8")
    arguments = ["simulate", "--trace", "t.csv", "--output", "t.csv"]
    assert _app.run(arguments) == 2
    assert "t.csv is an input of this run" in capsys.readouterr().err
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").startswith("job_id")


def test_what_can_be_mended_is_mended_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Out of order, blank lines, no ids."""
    monkeypatch.chdir(tmp_path)
    text = "submit_s,gpus,epochs,workload\n\n900,8,3,vgg16\n0,8,3,vgg16\n"
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert _app.run(["simulate", "--trace", "t.csv", "--policy", "eaco"]) == 0
    assert "- arrivals are out of order in 1 place of" in capsys.readouterr().out


def _refused(
    arguments: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    result = folder / "old.json"
    more = []
    if "--output" not in arguments and "--events" not in arguments:
        result.write_text("old", encoding="utf-8")
        more = ["--output", str(result), "--events", str(folder / "new.jsonl")]
        before = sorted([*before, result])
    assert _app.run(["simulate", *arguments, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("eaco: ")
    assert err.endswith(".\n"), "a whole sentence"
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    if more:
        assert result.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("option", ["--trace", "--profiles", "--history", "--output", "--events"])
def test_an_empty_name_of_a_file_is_named_with_its_option(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = f"Invalid value for '{option}': the name of a file is empty"
    _refused([option, ""], sentence, tmp_path, capsys)


@pytest.mark.parametrize(
    "rows", ["a,0,8,3,vgg16\nb,0,8,1000000000,vgg16\n", "a,0,8,1,vgg16\nb,9,8,10000000,vgg16\n"]
)
def test_more_epochs_than_can_be_simulated_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(HEAD + rows, encoding="utf-8")
    _refused(["--trace", "t.csv"], "t.csv, line 3: the jobs have 1", tmp_path, capsys)
    assert _app.run(["simulate", "--trace", "t.csv"]) == 2
    wanted = "at most 10,000,000 can be simulated; write long jobs as fewer, longer epochs"
    assert wanted in capsys.readouterr().err


def test_a_generated_workload_has_the_same_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _refused(["--jobs", "2", "--epochs", "9000000..9000000"], "18,000,000", tmp_path, capsys)
