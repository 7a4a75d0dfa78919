"""A runner that is killed at any point: nothing runs twice, nothing is lost or freed early."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.node import proc
from eaco_adapters.node.attempt import Attempt
from eaco_adapters.node.folder import Order, ShimSettings, lock_is_free, make_folder, spawn_shim
from eaco_adapters.testing.node_kit import bench, processes_with
from eaco_adapters.testing.runner_process import HostDied, RunnerProcess
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev
from eaco_core.jobs import FailureReason

if TYPE_CHECKING:
    from pathlib import Path

STEPS_OF_A_START = ("term-written", "made", "prepared", "locked", "spawned", "reported")


def _begins(witness: Path) -> list[str]:
    """List the attempts that began, in order."""
    if not witness.exists():
        return []
    return [line.split()[1] for line in witness.read_text().splitlines() if "begin" in line]


@pytest.mark.parametrize("step", STEPS_OF_A_START)
def test_a_start_that_died_at_a_step_is_done_once_when_it_is_repeated(
    tmp_path: Path, step: str
) -> None:
    root, witness = tmp_path / "root", tmp_path / "witness"
    launch = LaunchSpec(toy_command(epochs=3, epoch_s=0.1, witness=str(witness)))

    async def main() -> None:
        async with RunnerProcess(root, crash=step) as dying:
            with pytest.raises(HostDied):
                await dying.start("job", 1, launch)
            assert await dying.died() == -9
        async with RunnerProcess(root) as next_one:
            await next_one.start("job", 1, launch)
            kinds = await next_one.wait_over("job")
            assert kinds == [
                "JobStarted",
                *["EpochCompleted"] * 3,
                "JobFinished",
                "GpusReleased",
            ]

    asyncio.run(main())
    assert _begins(witness) == ["1"]


@pytest.mark.parametrize("step", STEPS_OF_A_START)
def test_a_start_that_died_at_a_step_can_be_killed_for_good(tmp_path: Path, step: str) -> None:
    root = tmp_path / "root"
    launch = LaunchSpec(toy_command(epochs=1000))

    async def main() -> None:
        async with RunnerProcess(root, crash=step) as dying:
            with pytest.raises(HostDied):
                await dying.start("job", 1, launch)
        async with RunnerProcess(root) as next_one:
            await next_one.ask("kill", job_id="job", attempt=1)
            assert processes_with(str(root)) == []
            assert await next_one.ask("list") == []
            await next_one.ask("forget", job_id="job", attempt=1)
            with pytest.raises(RuntimeError, match="CommandRefused"):
                await next_one.start("job", 1, launch)
            assert processes_with(str(root)) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("step", "do"),
    [
        ("stop-written", "stop"),
        ("kill-written", "kill"),
        ("end-remembered", "forget"),
        ("forget-renamed", "forget"),
    ],
)
def test_a_command_that_died_half_way_can_be_repeated(tmp_path: Path, step: str, do: str) -> None:
    root, witness = tmp_path / "root", tmp_path / "witness"
    epochs = 1 if do == "forget" else 1000
    launch = LaunchSpec(toy_command(epochs=epochs, epoch_s=0.1, witness=str(witness)))

    async def main() -> None:
        async with RunnerProcess(root) as first:
            await first.start("job", 1, launch)
            await first.wait("job", "GpusReleased" if do == "forget" else "EpochCompleted")
        async with RunnerProcess(root, crash=step) as dying:
            with pytest.raises(HostDied):
                await dying.ask(do, job_id="job", attempt=1)
        async with RunnerProcess(root) as last:
            if do != "forget":
                # What was asked for is in the folder: it happens without being asked again.
                kinds = await last.wait_over("job")
                assert ("JobStopped" in kinds) == (do == "stop")
            with contextlib.suppress(RuntimeError):
                await last.ask(do, job_id="job", attempt=1)
            await last.ask("forget", job_id="job", attempt=1)
            with pytest.raises(RuntimeError, match="CommandRefused"):
                await last.start("job", 1, launch)

    asyncio.run(main())
    assert _begins(witness) == ["1"]
    assert list((root / "attempts").iterdir()) == []


@pytest.mark.parametrize(
    ("step", "answer"), [("begun", "ended at once"), ("pid-written", "StartFailed")]
)
def test_a_shim_that_dies_before_the_job_begins_has_started_nothing(
    tmp_path: Path, step: str, answer: str
) -> None:
    root, witness = tmp_path / "root", tmp_path / "witness"
    launch = LaunchSpec(toy_command(epochs=1, witness=str(witness)))

    async def main() -> None:
        async with RunnerProcess(root, shim_crash=step) as host:
            if step == "begun":
                with pytest.raises(RuntimeError, match=answer):
                    await host.start("job", 1, launch)
            else:
                await host.start("job", 1, launch)
                assert await host.wait_over("job") == ["StartFailed"]
            assert await host.ask("list") == []

    asyncio.run(main())
    assert _begins(witness) == []
    assert processes_with(str(root)) == []


def test_jobs_go_on_and_what_happened_meanwhile_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"

    async def main() -> None:
        async with RunnerProcess(root) as first:
            await first.start("runs", 1, LaunchSpec(toy_command(epochs=40, epoch_s=0.1)))
            await first.start("fails", 1, LaunchSpec(("sh", "-c", "sleep 1; exit 7")))
            await first.start("stops", 1, LaunchSpec(toy_command(epochs=1000, epoch_s=0.1)))
            await first.start("over", 1, LaunchSpec(toy_command(epochs=1)))
            await first.wait_over("over")
            await first.wait("stops", "EpochCompleted")
            await first.ask("stop", job_id="stops", attempt=1)
            before = {job: first.events(job) for job in ("runs", "over")}
            first.kill()
            await first.died()
        await asyncio.sleep(1.5)
        async with RunnerProcess(root) as second:
            await second.wait_over("fails")
            await second.wait_over("stops")
            assert "exit_code=7" in second.detail("fails", "JobFailed")
            told = {t["event"]: t for t in second.told if t["job_id"] == "fails"}
            assert told["JobStarted"]["age_s"] > told["JobFailed"]["age_s"] > 0.2
            assert second.events("stops")[-2:] == ["JobStopped", "GpusReleased"]
            assert await second.wait_over("over") == before["over"]
            assert second.events("runs")[: len(before["runs"])] == before["runs"]
            kinds = await second.wait_over("runs")
            assert kinds.count("EpochCompleted") == 40
            assert all("clean=True" in t["detail"] for t in second.told if "Epoch" in t["event"])

    asyncio.run(main())


@pytest.mark.slow
def test_twenty_kills_at_random_times_run_no_job_twice(tmp_path: Path) -> None:
    """A scheduler that repeats what was not answered, over a runner that keeps dying."""
    root = tmp_path / "root"
    rng = random.Random(7)
    jobs = {f"job {number}": tmp_path / f"witness {number}" for number in range(12)}
    over: dict[str, list[str]] = {}

    async def life(*, is_last: bool) -> None:
        async with RunnerProcess(root) as host:

            async def see_through(job_id: str, witness: Path) -> None:
                launch = LaunchSpec(toy_command(epochs=5, epoch_s=0.4, witness=str(witness)))
                with contextlib.suppress(HostDied):
                    await host.start(job_id, 1, launch)
                    over[job_id] = await host.wait_over(job_id)

            tasks = [
                asyncio.create_task(see_through(job_id, witness))
                for job_id, witness in jobs.items()
                if job_id not in over
            ]
            if not is_last:
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                host.kill()
            await asyncio.gather(*tasks)

    async def main() -> None:
        for _ in range(20):
            await life(is_last=False)
        await life(is_last=True)

    asyncio.run(main())
    assert {job_id: _begins(witness) for job_id, witness in jobs.items()} == {
        job_id: ["1"] for job_id in jobs
    }
    ends = ["JobStarted", *["EpochCompleted"] * 5, "JobFinished", "GpusReleased"]
    assert over == dict.fromkeys(jobs, ends)
    assert processes_with(str(root)) == []


def _order(tmp_path: Path) -> Order:
    launch = LaunchSpec(("true",))
    return Order("job", 1, ("GPU-a",), 3, launch, (), "mark", str(tmp_path / "checkpoints"))


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "attempts").mkdir()
    settings = ShimSettings({}, (), "", 1000, 1.0)
    return make_folder(tmp_path / "attempts", _order(tmp_path), settings)


def _pid_file(folder: Path, boot: str) -> None:
    data = {"pid": 1, "start_ticks": 1, "shim_pid": 1, "shim_start_ticks": 1}
    (folder / "pid.json").write_text(json.dumps({**data, "boot_id": boot, "boot_s": 1.0}))
    (folder / "started.json").write_text('{"boot_s": 1.0}')


def test_after_a_reboot_what_ran_is_lost_and_free(tmp_path: Path) -> None:
    _pid_file(_folder(tmp_path), "another boot")

    async def main() -> None:
        async with bench(tmp_path) as one:
            assert await one.wait_over("job") == ["JobStarted", "JobFailed", "GpusReleased"]
            assert (await one.wait("job", ev.JobFailed)).reason is FailureReason.NODE_LOST

    asyncio.run(main())


def test_after_a_reboot_an_exit_code_that_was_written_counts(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    _pid_file(folder, "another boot")
    (folder / "exit.json").write_text('{"code": 85, "killed": false, "oom": false, "boot_s": 9.0}')

    async def main() -> None:
        async with bench(tmp_path) as one:
            assert await one.wait_over("job") == ["JobStarted", "JobStopped", "GpusReleased"]
            assert (await one.wait("job", ev.JobStopped)).checkpoint_epoch == 3

    asyncio.run(main())


def test_a_torn_line_of_the_reports_was_never_told(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    _pid_file(folder, proc.boot_id())
    one = Attempt.load(folder, proc.boot_id(), 1000)
    assert one is not None
    one.reports.add(ev.JobStarted(0.0, "job", 1, ("GPU-a",)), at_s=1.0)
    with (folder / "reports.jsonl").open("ab") as file:
        file.write(b'{"seq": 2, "event": {"type": "JobUnk')
    again = Attempt.load(folder, proc.boot_id(), 1000)
    assert again is not None
    assert [kept.seq for kept in again.reports.kept] == [1]
    again.reports.add(ev.JobUnknown(0.0, "job", 1), at_s=2.0)
    third = Attempt.load(folder, proc.boot_id(), 1000)
    assert third is not None
    assert [type(kept.event) for kept in third.reports.kept] == [ev.JobStarted, ev.JobUnknown]


def test_epochs_that_waited_for_a_runner_without_a_stamp_are_not_clean(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    _pid_file(folder, "another boot")
    (folder / "progress.jsonl").write_text('{"ev": "epoch", "epoch": 4}\n')

    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.wait_over("job")
            assert not (await one.wait("job", ev.EpochCompleted)).clean

    asyncio.run(main())


def test_a_jump_of_the_wall_clock_changes_no_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            real = time.time
            for jump_s in (-1e6, 1e6):
                monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
                await one.start(f"job {jump_s}", epochs=2)
                await one.wait_over(f"job {jump_s}")
            assert all(0 <= report.age_s < 20 for report in one.reports)

    asyncio.run(main())


def test_a_folder_that_is_no_attempt_is_left_alone(tmp_path: Path) -> None:
    for name in ("stray", ".new-half", ".gone-half", "torn@1"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    (tmp_path / "attempts" / "stray" / "launch.json").write_text("{")

    async def main() -> None:
        async with bench(tmp_path) as one:
            assert await one.runner.list_running() == ()
            assert one.folders() == ["stray"]

    asyncio.run(main())


def test_the_lock_tells_whether_someone_holds_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    assert lock_is_free(folder)
    assert lock_is_free(folder)


def test_an_attempt_that_has_begun_gets_no_second_shim(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    _pid_file(folder, proc.boot_id())
    assert spawn_shim(folder, tmp_path / "notify") is None
    assert lock_is_free(folder)
