"""Children with bad habits: they do not listen, leave others behind, hide, flood, kill."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import cgroup
from eaco_adapters.testing.node_kit import Bench, bench, processes_with, zombies
from eaco_core import events as ev
from eaco_core.errors import InputError
from eaco_core.jobs import FailureReason
from eaco_core.ports import CommandRefused

HABITS = [("", True), ("fork", False), ("setsid", True), ("daemon", True)]


def _shim_pid(one: Bench, job_id: str) -> int:
    attempt = one.runner._attempts[job_id, 1]
    assert attempt.shim is not None
    return attempt.shim.pid


@pytest.mark.parametrize(("leave", "ignore_term"), HABITS)
@pytest.mark.parametrize("use_cgroups", [False, True])
def test_a_kill_gets_all_of_it_and_only_then_are_gpus_free(
    tmp_path: Path, leave: str, ignore_term: bool, use_cgroups: bool
) -> None:
    async def main() -> None:
        async with bench(tmp_path, use_cgroups=use_cgroups) as one:
            if use_cgroups and one.runner.capabilities["cgroup"] != "yes":
                pytest.skip(f"no cgroups here: {one.runner.capabilities['cgroup']}")
            await one.start("job", epochs=1000, leave=leave, ignore_term=ignore_term)
            await one.wait("job", ev.EpochCompleted)
            began_s = time.monotonic()
            await one.runner.kill("job", 1, 1, grace_s=0.4)
            assert time.monotonic() - began_s >= (0.4 if ignore_term else 0)
            assert processes_with(str(tmp_path)) == []
            kinds = await one.wait_over("job")
            place = one.runner._attempts["job", 1].order.cgroup
            assert bool(place) == use_cgroups
            assert not place or not os.path.exists(place)  # noqa: ASYNC240, PTH110 - the kernel answers at once
            assert kinds.count("GpusReleased") == 1
            assert "JobFailed" not in kinds

    asyncio.run(main())


@pytest.mark.parametrize("leave", ["fork", "setsid", "daemon"])
def test_gpus_are_not_free_while_something_is_left_behind(tmp_path: Path, leave: str) -> None:
    async def main() -> None:
        async with bench(tmp_path, ends_leftovers=False) as one:
            await one.start("job", epochs=1, leave=leave)
            await one.wait("job", ev.JobFinished)
            await asyncio.sleep(0.5)
            assert "GpusReleased" not in one.kinds("job")
            assert [item[0] for item in await one.runner.list_running()] == ["job"]
            await one.runner.kill("job", 1, 1, grace_s=0.2)
            assert processes_with(str(tmp_path)) == []
            assert (await one.wait_over("job"))[-2:] == ["JobFinished", "GpusReleased"]

    asyncio.run(main())


def test_what_is_left_behind_is_ended_after_its_grace(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            command = ("sh", "-c", "setsid sh -c 'sleep 60' & exit 0")
            await one.start("job", launch=LaunchSpec(command, kill_grace_s=0.5))
            assert (await one.wait_over("job"))[-2:] == ["JobFinished", "GpusReleased"]
            assert processes_with(str(tmp_path)) == []

    asyncio.run(main())


@pytest.mark.parametrize("leave", ["", "fork", "setsid"])
def test_if_the_shim_is_killed_the_job_is_lost_once_its_processes_are_gone(
    tmp_path: Path, leave: str
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=1000, ignore_term=True, leave=leave)
            await one.wait("job", ev.EpochCompleted)
            os.kill(_shim_pid(one, "job"), signal.SIGKILL)
            failed = await one.wait("job", ev.JobFailed)
            assert processes_with(str(tmp_path)) == []
            assert (failed.reason, failed.exit_code) == (FailureReason.NODE_LOST, None)
            assert (await one.wait_over("job"))[-2:] == ["JobFailed", "GpusReleased"]

    asyncio.run(main())


def test_a_daemon_without_descriptors_is_found_by_its_mark_when_the_shim_is_gone(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=1000, leave="daemon")
            await one.wait("job", ev.EpochCompleted)
            assert len(processes_with(str(tmp_path))) == 2  # trainer and daemon
            os.kill(_shim_pid(one, "job"), signal.SIGKILL)
            await one.wait_over("job")
            assert processes_with(str(tmp_path)) == []

    asyncio.run(main())


def test_a_child_without_environment_is_found_by_session_or_lock(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "env = {'WHO': os.environ['WHO']}\n"
        "if os.fork() == 0:\n"
        "    os.execvpe('sleep', ['sleep', '60'], env)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.execvpe('sleep', ['sleep', '61'], env)\n"
        "time.sleep(60)\n"
    )

    async def main() -> None:
        async with bench(tmp_path / "root") as one:
            launch = LaunchSpec((sys.executable, "-c", script), env={"WHO": str(tmp_path)})
            await one.start("job", launch=launch)
            await asyncio.sleep(0.4)
            os.kill(_shim_pid(one, "job"), signal.SIGKILL)
            await one.wait_over("job")
            assert processes_with(str(tmp_path)) == []

    asyncio.run(main())


def test_a_job_that_kills_its_own_shim_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", kill_parent=True)
            assert (await one.wait_over("job"))[-2:] == ["JobFailed", "GpusReleased"]
            assert processes_with(str(tmp_path)) == []

    asyncio.run(main())


def test_signals_meant_for_a_job_do_not_end_its_shim(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=1000)
            await one.wait("job", ev.EpochCompleted)
            shim = _shim_pid(one, "job")
            numbers = set(signal.valid_signals()) - {
                signal.SIGKILL,
                signal.SIGSTOP,
                *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP),
                *(signal.SIGABRT, signal.SIGSYS),
            }
            for number in numbers:
                os.kill(shim, number)
            epochs = len(one.events("job"))
            await one.wait_epoch("job", epochs + 3)
            assert await one.runner.list_running()
            await one.runner.kill("job", 1, 1, grace_s=1)

    asyncio.run(main())


def test_a_shim_that_hangs_does_not_hold_up_a_kill(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=1000, ignore_term=True)
            await one.wait("job", ev.EpochCompleted)
            os.kill(_shim_pid(one, "job"), signal.SIGSTOP)
            await one.runner.kill("job", 1, 1, grace_s=0.1)
            assert processes_with(str(tmp_path)) == []
            assert (await one.wait_over("job"))[-1] == "GpusReleased"

    asyncio.run(main())


def test_a_job_that_is_paused_can_be_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=1000)
            await one.wait("job", ev.EpochCompleted)
            for pid in processes_with(str(tmp_path)):
                os.kill(pid, signal.SIGSTOP)
            await one.runner.kill("job", 1, 1, grace_s=5)
            assert processes_with(str(tmp_path)) == []

    asyncio.run(main())


def test_a_silent_job_is_unknown_and_keeps_its_gpus(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            launch = LaunchSpec(("sleep", "60"), first_event_timeout_s=0.3)
            await one.start("job", launch=launch)
            await one.wait("job", ev.JobUnknown)
            await asyncio.sleep(0.3)
            assert one.kinds("job") == ["JobStarted", "JobUnknown"]
            await one.runner.kill("job", 1, 1, grace_s=0.5)
            assert await one.wait_over("job") == ["JobStarted", "JobUnknown", "GpusReleased"]

    asyncio.run(main())


def test_a_job_that_speaks_in_time_is_not_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            script = "import os, time; os.write(int(os.environ['EACO_PROGRESS_FD']),"
            script += ' b\'{"ev": "note"}\\n\'); time.sleep(1)'
            launch = LaunchSpec((sys.executable, "-c", script), first_event_timeout_s=0.8)
            await one.start("job", launch=launch)
            assert await one.wait_over("job") == ["JobStarted", "JobFinished", "GpusReleased"]

    asyncio.run(main())


@pytest.mark.slow
def test_a_gigabyte_of_output_neither_fills_the_disk_nor_blocks(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            flood = f"{1 << 30}"
            script = f"yes eaco | head -c {flood}; echo the end"
            launch = LaunchSpec(("sh", "-c", script), log_bytes_max=1 << 20)
            await one.start("job", launch=launch)
            await one.wait_over("job", within_s=60)
            sizes = [path.stat().st_size for path in one.runner.log_paths("job", 1)]
            assert 1 << 19 < sum(sizes) <= 1 << 20
            output = one.output("job")
            assert output.endswith("the end\n")
            assert "bytes of earlier output are left out" in output

    asyncio.run(main())


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_a_small_or_no_log_holds_nothing_up(tmp_path: Path, limit: int) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            launch = LaunchSpec(("seq", "100000"), log_bytes_max=limit)
            await one.start("job", launch=launch)
            assert (await one.wait_over("job"))[-2:] == ["JobFinished", "GpusReleased"]
            assert len(one.output("job")) <= limit

    asyncio.run(main())


def test_bad_lines_of_progress_are_counted_and_left_out(tmp_path: Path) -> None:
    lines = [
        b"not json",
        b'{"ev": "epoch", "epoch": -1}',
        b'{"ev": "epoch", "epoch": true}',
        b'{"ev": "epoch", "epoch": 1e99}',
        b'{"ev": "epoch"}',
        b'["ev", "epoch"]',
        b"\xff\xfe\x00",
        b"[" * 4000,
        b"x" * 100_000,
        b'{"ev": "epoch", "epoch": 1, "boot_s": "now"}',
        b'{"ev": "epoch", "epoch": 1}',
        b'{"ev": "epoch", "epoch": 2, "boot_s": 1e300}',
        b'{"ev": "epoch", "epoch": 4, "clean": false, "peak_mem_bytes": 5}',
        b'{"ev": "epoch", "epoch": 3}',
    ]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines) + b"\n" + b'{"ev": "epo')

    async def main() -> None:
        async with bench(tmp_path / "root") as one:
            launch = LaunchSpec(("sh", "-c", f"cat '{path}' >&$EACO_PROGRESS_FD"))
            await one.start("job", launch=launch)
            await one.wait_over("job")
            epochs = [e for e in one.events("job") if isinstance(e, ev.EpochCompleted)]
            assert [epoch.epoch for epoch in epochs] == [1, 2, 4]
            assert (epochs[2].clean, epochs[2].peak_mem_bytes) == (False, 5)
            assert one.runner._attempts["job", 1].reports.marks.bad_lines == 10
            assert all(0 <= report.age_s < 10 for report in one.reports)

    asyncio.run(main())


def test_a_flood_of_progress_is_cut(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, progress_bytes_max=100_000) as one:
            await one.start("job", epochs=3, epoch_s=0.3, flood_lines=20_000)
            await one.wait("job", ev.EpochCompleted)
            size = (one.runner._attempts["job", 1].folder / "progress.jsonl").stat().st_size
            assert size < 1_000_000
            await one.wait_over("job")
            assert one.kinds("job").count("EpochCompleted") == 3

    asyncio.run(main())


def test_the_shim_is_light_and_leaves_no_zombie(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=1000, epoch_s=0.01)
            await one.wait_epoch("job", 20)
            status = Path(f"/proc/{_shim_pid(one, 'job')}/status").read_text()  # noqa: ASYNC240 - the kernel answers at once
            kib = int(status.split("VmRSS:")[1].split()[0])
            assert kib < 12 * 1024
            await one.runner.kill("job", 1, 1, grace_s=0)
            await asyncio.sleep(0.3)
            assert zombies() == []

    asyncio.run(main())


def test_a_full_disk_starts_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with bench(tmp_path) as one:
            with monkeypatch.context() as patch:
                patch.setattr("eaco_adapters.node.folder.write_file", full)
                with pytest.raises(CommandRefused, match="No space left"):
                    await one.start("job")
            assert one.folders() == []
            await one.start("job", epochs=1)  # with room again it starts: nothing was left
            await one.wait_over("job")

    asyncio.run(main())


def test_on_a_disk_that_becomes_full_the_exit_code_is_still_known(tmp_path: Path) -> None:
    """The limit of file size stands in for the full disk: no file of the shim can grow."""

    async def main() -> None:
        async with bench(tmp_path) as one:
            command = ("sh", "-c", "sleep 0.5; seq 100000; exit 9")
            await one.start("job", launch=LaunchSpec(command))
            shim = _shim_pid(one, "job")
            resource.prlimit(shim, resource.RLIMIT_FSIZE, (4096, 4096))
            await one.wait_over("job")
            assert (await one.wait("job", ev.JobFailed)).exit_code == 9
            assert len(one.output("job")) <= 4096

    asyncio.run(main())


def test_a_memory_limit_that_the_node_cannot_set_is_told_in_the_output(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            assert one.runner.capabilities["memory_limit"] == "switched off"
            launch = LaunchSpec(("true",), memory_bytes_max=1 << 30)
            await one.start("job", launch=launch)
            await one.wait_over("job")
            assert "no limit of memory on this node: switched off" in one.output("job")

    asyncio.run(main())


def test_why_there_are_no_cgroups_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_mount", lambda: None)
    assert "no cgroup version 2" in str(cgroup.find_cgroups())
    monkeypatch.setattr(cgroup, "_mount", lambda: tmp_path / "none")
    assert "no cgroup can be made" in str(cgroup.find_cgroups())


@pytest.mark.parametrize(
    ("env", "word"),
    [({"A=B": "c"}, "A=B"), ({"": "c"}, "name"), ({"A": "x\0y"}, "NUL"), ({"EACO_X": "1"}, "EACO")],
)
def test_a_bad_environment_is_refused_before_anything_starts(
    env: dict[str, str], word: str
) -> None:
    with pytest.raises(InputError, match=word):
        LaunchSpec(("true",), env=env)
