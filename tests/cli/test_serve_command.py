"""`eaco serve` as a process: how it starts, what it refuses, and what outlives it."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.cli import _app
from eaco_adapters.journal.reader import JournalReader
from eaco_adapters.testing.server_process import ServerProcess
from eaco_core.errors import EnvironmentFault
from eaco_core.history import decode_line
from eaco_core.invariants import check_history

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path) as process:
        yield process


def last_sentence(server: ServerProcess) -> str:
    """Give the last line, of which there must be no more than one about the end."""
    lines = server.words().splitlines()
    assert not any(line.startswith("Traceback") for line in lines), server.words()
    return lines[-1]


def test_every_mistake_of_the_configuration_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "eaco.toml"
    path.write_text(
        'polcy = "eaco"\npolicy = "best"\n[listen]\nhttp = "127.0.0.1:99999"\n'
        '[nodes.a]\nsimulated_gpus = -1\n[nodes."b c"]\n[telemetry]\nperiod_s = -1\n'
    )
    for words in (("--check",), ()):
        assert _app.run(["serve", f"--config={path}", *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1
        for said in ("polcy", "do you mean `policy`", "`policy` must be one of", "`listen.http`"):
            assert said in err
        for said in ("nodes.a.simulated_gpus", "nodes.b c", "telemetry.period_s"):
            assert said in err
    assert _app.run(["serve", f"--config={tmp_path / 'none'}"]) == 2
    assert "no such configuration file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_server_is_refused_and_the_first_goes_on(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.start()
    second = ServerProcess(tmp_path)
    second.log = tmp_path / "second.log"
    second.start(wait=False)
    assert second.wait() == 1
    assert "one scheduler" in last_sentence(second)
    other = tmp_path / "other"
    other.mkdir()
    third = ServerProcess(other, listen={"socket": str(server.socket)})
    third.start(wait=False)
    assert third.wait() == 1
    assert "another server answers" in last_sentence(third)
    assert server.client.status()["term"] == 1


def _limit_files(to_bytes: int) -> Callable[[], None]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (to_bytes, to_bytes))

    return limit


def test_a_full_disk_ends_the_server_with_one_sentence_and_nothing_is_lost(
    server: ServerProcess,
) -> None:
    server.start(before=_limit_files(20_000))
    accepted: list[str] = []
    with suppress(EnvironmentFault):
        while True:
            accepted += [server.submit("true", job_id=f"job-{len(accepted)}")]
    assert accepted
    assert server.wait() == 1
    assert "File too large" in last_sentence(server)
    assert "start the scheduler again" in last_sentence(server)
    server.start()
    for job_id in accepted:
        assert server.wait_for(job_id)["state"] == "finished"
    server.stop()
    journal = JournalReader(server.state_dir / "journal")
    assert check_history([decode_line(text) for text in journal]).failed == ()


def test_a_folder_that_may_not_be_written_is_one_sentence(server: ServerProcess) -> None:
    if os.geteuid() == 0:
        server.state_dir.parent.joinpath("state").write_text("a file, for root may write anywhere")
    else:
        server.state_dir.mkdir(mode=0o500)
    server.start(wait=False)
    assert server.wait() == 1
    assert str(server.state_dir) in last_sentence(server)
