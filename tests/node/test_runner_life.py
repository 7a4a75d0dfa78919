"""Attempts that begin, train, stop, end: with real processes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.testing.node_kit import bench, open_files, processes_with, zombies
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev
from eaco_core.errors import EnvironmentFault
from eaco_core.jobs import FailureReason
from eaco_core.ports import CommandRefused, StaleTerm

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_starts_trains_finishes_and_its_gpu_is_free(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=3)
            kinds = await one.wait_over("job")
            assert kinds == [
                "JobStarted",
                *["EpochCompleted"] * 3,
                "JobFinished",
                "GpusReleased",
            ]
            assert [r.seq for r in one.reports] == list(range(1, 7))
            assert all(0 <= r.age_s < 5 for r in one.reports)
            assert one.output("job") == "epoch 1\nepoch 2\nepoch 3\n"
            assert await one.runner.list_running() == ()

    asyncio.run(main())


def test_the_job_sees_its_environment_and_nothing_of_the_shim(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            launch = LaunchSpec(("env",), env={"MINE": "a b;$(c)"})
            await one.start("job", launch=launch, gpus=("GPU-b", "GPU-a"), resume_epoch=4)
            await one.wait_over("job")
            env = dict(line.split("=", 1) for line in one.output("job").splitlines())
            assert env["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
            assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
            assert (env["EACO_JOB_ID"], env["EACO_ATTEMPT"]) == ("job", "1")
            assert (env["EACO_RESUME_EPOCH"], env["MINE"]) == ("4", "a b;$(c)")
            assert env["EACO_GPUS"] == '["GPU-b", "GPU-a"]'
            assert os.environ["PATH"] == env["PATH"]

    asyncio.run(main())


def test_a_stop_comes_at_the_epoch_end_and_the_next_attempt_goes_on_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=6, epoch_s=0.3)
            await one.wait("job", ev.EpochCompleted)
            await one.runner.request_stop("job", 1, 1)
            kinds = await one.wait_over("job")
            assert kinds[-2:] == ["JobStopped", "GpusReleased"]
            stopped = await one.wait("job", ev.JobStopped)
            assert 1 <= stopped.checkpoint_epoch < 6
            await one.start("job", 2, resume_epoch=stopped.checkpoint_epoch, epochs=6, epoch_s=0.01)
            await one.wait_over("job", 2)
            epochs = [e.epoch for e in one.events("job", 2) if isinstance(e, ev.EpochCompleted)]
            assert epochs == list(range(stopped.checkpoint_epoch + 1, 7))

    asyncio.run(main())


def test_a_stop_before_the_script_listens_does_not_kill_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=50, epoch_s=0.2)
            await one.runner.request_stop("job", 1, 1)  # its interpreter is still starting
            kinds = await one.wait_over("job")
            assert kinds == ["JobStarted", "EpochCompleted", "JobStopped", "GpusReleased"]

    asyncio.run(main())


def test_a_stopped_job_goes_on_from_its_last_checkpoint_not_from_its_last_epoch(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=9, epoch_s=0.1, checkpoint_every=3)
            await one.wait("job", ev.EpochCompleted)
            await one.wait_epoch("job", 4)
            await one.runner.request_stop("job", 1, 1)
            await one.wait_over("job")
            assert (await one.wait("job", ev.JobStopped)).checkpoint_epoch in {3, 6}

    asyncio.run(main())


def test_a_job_that_ends_well_in_spite_of_a_stop_has_finished(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("told", epochs=3, epoch_s=0.1, ignore_stop=True)
            await one.start("mute", epochs=3, epoch_s=0.1, ignore_stop=True, silent=True)
            await one.start("bare", launch=LaunchSpec(("sleep", "0.3")))
            for job in ("told", "mute", "bare"):
                await one.runner.request_stop(job, 1, 1)
            for job in ("told", "mute", "bare"):
                assert (await one.wait_over(job))[-2:] == ["JobFinished", "GpusReleased"], job

    asyncio.run(main())


def test_exit_codes_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("crash", crash_at=1)
            await one.start("oom", oom_at=1)
            await one.start("again", launch=LaunchSpec(("sh", "-c", "exit 75")), resume_epoch=7)
            await one.start("signal", launch=LaunchSpec(("sh", "-c", "kill -SEGV $$")))
            for job in ("crash", "oom", "again", "signal"):
                await one.wait_over(job)
            crash = await one.wait("crash", ev.JobFailed)
            assert (crash.reason, crash.exit_code) == (FailureReason.EXIT, 3)
            assert (await one.wait("oom", ev.JobFailed)).reason is FailureReason.OUT_OF_MEMORY
            assert (await one.wait("again", ev.JobStopped)).checkpoint_epoch == 7
            assert (await one.wait("signal", ev.JobFailed)).exit_code == -11

    asyncio.run(main())


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (LaunchSpec(("no-such-program-here",)), "no-such-program-here"),
        (LaunchSpec(("/etc/passwd",)), "Permission denied"),
        (LaunchSpec(("true",), cwd="/no/such/folder"), "/no/such/folder"),
        (LaunchSpec(("true",), pin_cpus=(60000,)), "CPU cores"),
    ],
)
def test_what_cannot_start_fails_with_a_sentence(
    tmp_path: Path, launch: LaunchSpec, words: str
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", launch=launch)
            assert await one.wait_over("job") == ["StartFailed"]
            assert words in (await one.wait("job", ev.StartFailed)).reason
            assert await one.runner.list_running() == ()

    asyncio.run(main())


@pytest.mark.parametrize("gpus", [("GPU-x",), (), ("GPU-a", "GPU-a"), ("GPU-a", "../b")])
def test_gpus_that_the_node_does_not_have_are_refused(
    tmp_path: Path, gpus: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            with pytest.raises(CommandRefused, match="GPU"):
                await one.start("job", gpus=gpus)
            assert one.folders() == []

    asyncio.run(main())


NASTY = (
    "a; touch INERT",
    "$(touch INERT)",
    "../../escape",
    "/etc/passwd",
    "..",
    ".new-x",
    "new\nline",
    "ünïcode-\N{PARTY POPPER}",
    "x" * 300,
    "é" * 300,
    "x" * 299 + "y",
    "a@1",
    "-rf",
    " ",
)


def test_job_ids_of_any_kind_are_inert(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path / "root") as one:
            for job_id in NASTY:
                await one.start(job_id, launch=LaunchSpec(("printenv", "EACO_JOB_ID")))
            for job_id in NASTY:
                assert (await one.wait_over(job_id))[-1] == "GpusReleased"
                assert one.output(job_id) == job_id + "\n"
            for job_id in NASTY:
                await one.runner.forget(job_id, 1)
                assert one.output(job_id) == job_id + "\n"
            assert one.folders() == []
            with pytest.raises(CommandRefused, match="NUL"):
                await one.start("a\0b")
            with pytest.raises(CommandRefused, match="character"):
                await one.start("\udead" * 3 + "\ud800")

    asyncio.run(main())
    assert {path.name for path in tmp_path.iterdir()} == {"root"}
    assert not list(tmp_path.rglob("INERT"))


def test_a_start_that_is_repeated_starts_nothing_twice(tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    async def main() -> None:
        async with bench(tmp_path / "root") as one:
            calls = [one.start("job", epochs=2, witness=str(witness)) for _ in range(5)]
            await asyncio.gather(*calls)
            await one.wait_over("job")
            await one.start("job", epochs=2, witness=str(witness))
            await one.runner.forget("job", 1)
            with pytest.raises(CommandRefused, match="is over"):
                await one.start("job", epochs=2, witness=str(witness))

    asyncio.run(main())
    assert witness.read_text().count("begin") == 1


def test_an_older_term_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", epochs=100, term=7)
            with pytest.raises(StaleTerm, match="term 7"):
                await one.start("other", term=6)
            with pytest.raises(StaleTerm):
                await one.runner.request_stop("job", 1, 6)
            with pytest.raises(StaleTerm):
                await one.runner.kill("job", 1, 6, grace_s=0)
        async with bench(tmp_path) as one:
            with pytest.raises(StaleTerm):
                await one.runner.kill("job", 1, 6, grace_s=0)
            await one.runner.kill("job", 1, 8, grace_s=0)
            with pytest.raises(StaleTerm):
                await one.start("other", term=7)

    asyncio.run(main())


def test_another_attempt_than_the_running_one_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("job", 2, epochs=100)
            for attempt in (1, 3):
                with pytest.raises(CommandRefused, match="attempt 2"):
                    await one.start("job", attempt)
                with pytest.raises(CommandRefused, match="no attempt"):
                    await one.runner.request_stop("job", attempt, 1)
            await one.runner.kill("job", 1, 1, grace_s=0)  # of an older one nothing is here
            assert [item[:2] for item in await one.runner.list_running()] == [("job", 2)]
            await one.runner.kill("job", 2, 1, grace_s=0)

    asyncio.run(main())


def test_a_killed_attempt_that_never_came_cannot_come_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.runner.kill("job", 1, 1, grace_s=0)
            with pytest.raises(CommandRefused, match="is over"):
                await one.start("job")
            await one.start("job", 2, epochs=1)
            await one.wait_over("job", 2)

    asyncio.run(main())


def test_a_second_runner_on_one_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaco_adapters.node.runner._LOCK_WAIT_S", 0.1)

    async def main() -> None:
        async with bench(tmp_path):
            with pytest.raises(EnvironmentFault, match="another runner"):
                async with bench(tmp_path):
                    pass

    asyncio.run(main())


def test_virtual_gpus_pin_their_jobs_to_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    script = "import os; print(sorted(os.sched_getaffinity(0)))"

    async def main() -> None:
        gpu_cpus = {"GPU-a": (cores[0],), "GPU-b": (cores[-1],)}
        async with bench(tmp_path, gpu_cpus=gpu_cpus) as one:
            launch = LaunchSpec((*toy_command()[:1], "-c", script))
            await one.start("a", launch=launch, gpus=("GPU-a",))
            await one.start("b", launch=launch, gpus=("GPU-b",))
            for job in ("a", "b"):
                await one.wait_over(job)
            assert one.output("a") == f"[{cores[0]}]\n"
            assert one.output("b") == f"[{cores[-1]}]\n"

    asyncio.run(main())


def test_a_container_template_goes_around_the_command(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            launch = LaunchSpec(
                ("echo", "a b", "$HOME"), container=("env", "G={gpus}", "{command}")
            )
            await one.start("job", launch=launch)
            await one.wait_over("job")
            assert one.output("job") == "a b $HOME\n"

    asyncio.run(main())


def test_nothing_leaks_over_many_jobs(tmp_path: Path) -> None:
    async def main() -> set[str]:
        async with bench(tmp_path) as one:
            before = open_files()
            for number in range(12):
                await one.start(f"job {number}", launch=LaunchSpec(("true",)))
            for number in range(12):
                await one.wait_over(f"job {number}")
                await one.runner.forget(f"job {number}", 1)
            await asyncio.sleep(0.3)
            assert zombies() == []
            return open_files() - before

    assert asyncio.run(main()) == set()
    assert zombies() == []
    assert processes_with(str(tmp_path)) == []
