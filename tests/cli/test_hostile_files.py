"""Files and names that nobody would write on purpose: one sentence, exit status 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli import _app

if TYPE_CHECKING:
    from pathlib import Path

HEADER = '{"schema":"eaco.history/1","kind":"header"}\n'
DEEP = "[" * 100_000


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "deep.jsonl"],
        ["explain", "deep.jsonl", "a"],
        ["simulate", "--history", "deep.jsonl"],
    ],
)
def test_deeply_nested_json_is_named_with_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    end: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    # The name of the job is in it, because `explain` passes over lines without it.
    (tmp_path / "deep.jsonl").write_text(f'{HEADER}{{"a":{DEEP}{end}', encoding="utf-8")
    assert _app.run(arguments) == 2
    err = capsys.readouterr().err
    assert "deep.jsonl, line 2: this line of the history is nested too deeply" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--history", "--profiles", "--trace"])
def test_a_first_line_that_is_nested_deeply_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = tmp_path / "deep.json"
    path.write_text(f'{{"a":{DEEP}', encoding="utf-8")
    assert _app.run(["simulate", option, str(path)]) == 2
    err = capsys.readouterr().err
    assert "deep.json" in err
    assert err.count("\n") == 1
