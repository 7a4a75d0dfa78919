"""The commands that talk to a server, against a real one: submit, jobs, logs, explain, cancel."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from eaco_adapters.cli import _app
from eaco_adapters.testing.server_process import ServerProcess
from eaco_adapters.testing.toy_trainer import toy_command

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

TOKEN = "0123456789abcdef-secret"  # noqa: S105 - made up


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = {"http": f"127.0.0.1:{port}", "token_file": str(token_file)}
    with ServerProcess(folder, listen=listen) as process:
        process.port = port
        process.start()
        yield process


@pytest.fixture
def eaco(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Eaco:
    monkeypatch.setenv("EACO_SERVER", str(server.socket))
    monkeypatch.delenv("EACO_TOKEN", raising=False)
    return Eaco(capsys)


class Eaco:
    """Runs a command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *words: str, status: int = 0) -> str:
        self._capsys.readouterr()
        got = _app.run(words)
        out, self.err = self._capsys.readouterr()
        assert got == status, self.err
        if status:
            assert len(self.err.splitlines()) == 1, self.err
        return out

    def json(self, *words: str) -> Any:  # noqa: ANN401 - whatever the command says
        return json.loads(self(words[0], "--json", *words[1:]))


def test_a_job_from_submission_to_its_story(server: ServerProcess, eaco: Eaco) -> None:
    command = toy_command(epochs=2, epoch_s=0.05)
    job_id = eaco("submit", "--epochs", "2", "--workload", "toy", "--", *command).strip()
    assert "nobody has measured the workload 'toy'" in eaco.err
    server.wait_for(job_id, "finished")
    job = eaco.json("jobs", job_id)
    assert (job["epochs_done"], job["exit_code"], job["user"] is not None) == (2, 0, True)
    assert job["ended"] >= job["started"] >= job["submitted"]
    assert job_id in eaco("jobs")
    assert shlex.join(command) in eaco("jobs", job_id)
    assert eaco("logs", "--follow", job_id) == "epoch 1\nepoch 2\n"
    story = eaco("explain", job_id)
    assert "submitted" in story
    assert "finished" in story
    told = eaco.json("explain", job_id)
    assert (told["schema"], told["job_id"]) == ("eaco.story/1", job_id)
    assert "submitted" in eaco("explain", str(server.state_dir / "journal"), job_id)


def test_json_alone_is_on_standard_output(server: ServerProcess, eaco: Eaco) -> None:
    job = eaco.json("submit", "--name", "é 日本", "--", "true")
    assert job["job_id"].startswith("-") is False
    assert job["name"] == "é 日本"
    assert eaco.err == ""
    server.wait_for(job["job_id"])
    assert eaco.json("cancel", job["job_id"])["jobs"][0]["state"] == "finished"
    assert eaco.json("drain")["nodes"][0]["simulated"] is True


def test_without_epochs_or_workload_a_hint_says_how_to_gain_sharing(
    server: ServerProcess, eaco: Eaco
) -> None:
    jobs = [eaco("submit", "--", "true").strip()]
    assert "give --epochs" in eaco.err
    jobs.append(eaco("submit", "--epochs", "2", "--", "true").strip())
    assert "give --workload" in eaco.err
    for words in (("--exclusive",), ("--share-with", "none")):
        jobs.append(eaco("submit", *words, "--", "true").strip())
        assert eaco.err == ""
    for job_id in jobs:
        server.wait_for(job_id)


def test_shell_metacharacters_are_inert(server: ServerProcess, eaco: Eaco, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    hostile = [f"$(touch {trap})", f"`touch {trap}`", f"; touch {trap}", "|&><*?~", "a\nb\x1b[31m"]
    script = "import json, sys; print(json.dumps(sys.argv[1:]))"
    job_id = eaco(
        "submit",
        "--name",
        f"; touch {trap} $(touch {trap}) \x1b[31m",
        "--env",
        f"EVIL=$(touch {trap})",
        "--",
        sys.executable,
        "-c",
        script,
        *hostile,
    ).strip()
    server.wait_for(job_id, "finished")
    assert json.loads(eaco("logs", job_id)) == hostile
    assert "\x1b" not in eaco("jobs", job_id)
    assert not trap.exists()


def test_a_job_gets_its_folder_and_its_variables(
    server: ServerProcess, eaco: Eaco, tmp_path: Path
) -> None:
    place = str(tmp_path.resolve())
    big = "x" * 100_000
    script = "import os; print(os.getcwd(), os.environ['MINE'], len(os.environ['BIG']))"
    words = ("--env", "MINE=a=b", "--env", f"BIG={big}", "--cwd", place)
    job_id = eaco("submit", *words, "--", sys.executable, "-c", script).strip()
    server.wait_for(job_id, "finished")
    assert eaco("logs", job_id) == f"{place} a=b 100000\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--deadline", "2020-01-01T00:00:00Z", "--", "true"], "has passed already"),
        (["--deadline", "in 0s", "--", "true"], "has passed already"),
        (["--deadline", "tomorrow", "--", "true"], "cannot be read"),
        (["--", "no-such-program-anywhere"], "there is no program"),
        (["--", "./no-such-script"], "there is no program"),
        (["--", "/"], "there is no program"),
        (["--", ""], "begin with the name of a program"),
        (["--", "/" + "x" * 5000], "there is no program"),
        (["--cwd", "/no/such/folder", "--", "true"], "there is no folder"),
        (["--gpus", "9", "--", "true"], "asks for 9 GPUs"),
        (["--gpu-type", "h100", "--", "true"], "known: simulated"),
        (["--env", "EACO_JOB_ID=x", "--", "true"], "set by eaco itself"),
        (["--env", "PATH=/nowhere", "--", "true"], "there is no program"),
        (["--env", "novalue", "--", "true"], "must be NAME=VALUE"),
        (["--job-id", "../../etc/passwd", "--", "true"], "job_id"),
        (["--job-id", "a/b", "--", "true"], "job_id"),
        (["--priority", "5000", "--", "true"], "priority"),
        (["--epochs", "0", "--", "true"], "epochs"),
        (["--", "true", "\udcff\udcfe"], "no text in UTF-8"),
        (["--", "true", "x" * 200_000], "length <= 131072"),
        (["--", "true", *["x" * 100_000] * 1100], "a server takes 1048576"),
        ([], "COMMAND"),
    ],
)
def test_a_bad_submission_is_one_sentence_and_nothing_starts(
    server: ServerProcess, eaco: Eaco, words: list[str], sentence: str
) -> None:
    before = server.client.jobs()["total"]
    assert eaco("submit", *words, status=2) == ""
    assert sentence in eaco.err
    assert server.client.jobs()["total"] == before


def test_a_job_that_does_not_exist(eaco: Eaco) -> None:
    for words in (("jobs",), ("logs",), ("cancel",), ("explain",)):
        for job_id in ("nobody", "../../etc/passwd", "a/../b", "..", "é\n", "x" * 3000, "%2e%2e"):
            assert eaco(*words, job_id, status=2) == ""
            assert "there is no" in eaco.err or "nothing here" in eaco.err
    eaco("drain", "no-node", status=2)
    assert "no node 'no-node'" in eaco.err


def test_cancel_of_queued_and_running_jobs(server: ServerProcess, eaco: Eaco) -> None:
    words = ("submit", "--gpus", "2", "--", "sleep", "60")
    running, queued = eaco(*words).strip(), eaco(*words).strip()
    server.wait_for(running, "settled", "observing")
    assert "no idle set" in server.wait_for(queued, "queued")["why"]
    out = eaco("cancel", queued, "nobody", running, status=2)
    assert "no job 'nobody'" in eaco.err
    assert out.splitlines()[0] == f"{queued}: cancelled"
    server.wait_for(running, "cancelled")
    assert eaco("cancel", running) == f"{running}: cancelled\n"
    assert eaco("logs", "--follow", running) == ""
    assert server.job_processes() == []
    listed = eaco.json("jobs", "--state", "cancelled")["jobs"]
    assert {running, queued} <= {job["job_id"] for job in listed}
    eaco("jobs", "--state", "sleeping", status=2)
    assert "known are open, ended, queued" in eaco.err


def test_a_drained_node_gets_no_new_job(server: ServerProcess, eaco: Eaco) -> None:
    assert "drained" in eaco("drain", "toy")
    job_id = eaco("submit", "--", "true").strip()
    server.wait_for(job_id, "queued")
    assert eaco("jobs", "--state", "queued").count(job_id) == 1
    assert "drained" not in eaco("drain", "--undo", "toy")
    server.wait_for(job_id, "finished")


def test_the_higher_priority_goes_first(server: ServerProcess, eaco: Eaco) -> None:
    eaco("drain", "toy")
    order = [("low", "-5"), ("mid", "0"), ("high", "7")]
    jobs = {
        name: eaco("submit", "--gpus", "2", "--priority", priority, "--", "true").strip()
        for name, priority in order
    }
    eaco("drain", "--undo", "toy")
    for job_id in jobs.values():
        server.wait_for(job_id, "finished")
    told = {
        name: eaco.json("explain", job_id)["sentences"][-1]["t_s"] for name, job_id in jobs.items()
    }
    assert sorted(told, key=told.__getitem__) == ["high", "mid", "low"]


def test_a_failed_job_tells_its_exit_code(server: ServerProcess, eaco: Eaco) -> None:
    script = "import sys; print('bad luck'); sys.exit(7)"
    words = ("--name", "fails", "--max-restarts", "1")
    job_id = eaco("submit", *words, "--", sys.executable, "-c", script).strip()
    job = server.wait_for(job_id)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("failed", 7, 2)
    assert "bad luck" in eaco("logs", job_id)


def test_the_same_job_id_is_one_job(server: ServerProcess, eaco: Eaco) -> None:
    words = ("submit", "--job-id", "mine", "--", "true")
    assert eaco(*words) == eaco(*words) == "mine\n"
    eaco(*words[:-1], "false", status=2)
    assert "taken by another job" in eaco.err
    server.wait_for("mine", "finished")


def test_a_port_needs_the_right_token(
    server: ServerProcess, eaco: Eaco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--server", f"http://127.0.0.1:{server.port}")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(TOKEN + "\n")
    wrong.write_text("0123456789abcdef-guess")
    assert "job" in eaco("jobs", *at, "--token-file", str(right))
    for words in ((), ("--token-file", str(wrong))):
        eaco("submit", *at, *words, "--", "true", status=2)
        assert "needs the server's token" in eaco.err
    for value in ("line\nbreak-secret", "ünicode-secret", "\x00secret"):
        wrong.write_text(value)
        eaco("jobs", *at, "--token-file", str(wrong), status=2)
        assert "secret" not in eaco.err
    monkeypatch.setenv("EACO_TOKEN", TOKEN)
    assert "job" in eaco("jobs", *at)


def test_without_a_server_each_command_says_so(
    eaco: Eaco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (str(tmp_path / "none"), "http://127.0.0.1:9", str(tmp_path / ("x" * 200))):
        monkeypatch.setenv("EACO_SERVER", where)
        for words in (("jobs",), ("submit", "--", "true"), ("cancel", "a"), ("logs", "a")):
            eaco(*words, status=1)
            assert "eaco: " in eaco.err
    monkeypatch.setenv("EACO_SERVER", "https://example.org")
    eaco("jobs", status=2)
    assert "plain HTTP" in eaco.err


def test_output_of_many_bytes_and_torn_characters_arrives_whole(
    server: ServerProcess, eaco: Eaco
) -> None:
    script = "import sys; sys.stdout.write('é日' * 60000)"
    job_id = eaco("submit", "--", sys.executable, "-c", script).strip()
    assert eaco("logs", "--follow", job_id) == "é日" * 60000
    server.wait_for(job_id, "finished")
    assert os.environ.get("EACO_JOB_ID") is None
