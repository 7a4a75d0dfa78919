"""A disk that is really full: a small file system of its own, filled to the last byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from eaco_adapters.launch import LaunchSpec
from eaco_adapters.testing.node_kit import bench, processes_with
from eaco_adapters.testing.toy_trainer import toy_command
from eaco_core import events as ev
from eaco_core.errors import EnvironmentFault
from eaco_core.ports import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None, None]:
    """Give a folder on a file system of 1 MiB. Needs the right to mount one."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("a full disk needs a small file system, and only root can mount one")
    place = tmp_path / "disk"
    place.mkdir()
    words = [mount, "-t", "tmpfs", "-o", "size=1m", "eaco-test", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a full disk needs a small file system: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run([umount, "-l", str(place)], check=True)


def _fill(place: Path) -> None:
    with contextlib.suppress(OSError), (place / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_nothing_is_half_started_on_a_full_disk(small_disk: Path) -> None:
    async def main() -> None:
        async with bench(small_disk / "root") as one:
            await one.start("before", epochs=1)
            await one.wait_over("before")
            _fill(small_disk)
            with pytest.raises(CommandRefused, match="No space left"):
                await one.start("job")
            assert one.folders() == ["before@1"]
            with pytest.raises(EnvironmentFault, match="No space left"):
                await one.start("job", term=2)
            (small_disk / "filler").unlink()
            await one.start("job", epochs=1, term=2)
            await one.wait_over("job")

    asyncio.run(main())


def test_what_runs_goes_on_ends_and_is_told_on_a_full_disk(small_disk: Path) -> None:
    fails = LaunchSpec(("sh", "-c", "sleep 1; seq 100000; exit 9"))
    runs = LaunchSpec(toy_command(epochs=1000, ignore_term=True))

    async def main() -> None:
        async with bench(small_disk / "root") as one:
            for job, launch in (("fails", fails), ("killed", runs), ("stopped", runs)):
                await one.start(job, launch=launch)
            await one.wait("killed", ev.EpochCompleted)
            await one.wait("stopped", ev.EpochCompleted)
            _fill(small_disk)
            await one.wait_over("fails")
            assert (await one.wait("fails", ev.JobFailed)).exit_code == 9
            await one.runner.request_stop("stopped", 1, 1)
            await one.runner.kill("killed", 1, 1, grace_s=0.2)
            assert (await one.wait_over("stopped"))[-1] == "GpusReleased"
            assert processes_with(str(small_disk)) == []
            before = {job: one.kinds(job) for job in ("fails", "killed")}
            (small_disk / "filler").unlink()
        async with bench(small_disk / "root") as again:
            for job, kinds in before.items():
                told = await again.wait_over(job)
                assert told[-1] == "GpusReleased"
                assert set(told) == set(kinds)

    asyncio.run(main())


def test_a_job_that_spoils_its_own_folder_harms_no_other(tmp_path: Path) -> None:
    spoil = (
        'cd "$(dirname "$EACO_PROGRESS_FILE")";'
        " for f in pid.json started.json exit.json reports.jsonl;"
        ' do echo "[]" > $f; done; rm -f lock control; mkdir gone.json; sleep 0.5'
    )

    async def main() -> None:
        async with bench(tmp_path, kill_limit_s=5) as one:
            await one.start("good", epochs=20)
            await one.start("bad", launch=LaunchSpec(("sh", "-c", spoil)))
            assert (await one.wait_over("good"))[-2:] == ["JobFinished", "GpusReleased"]
            with contextlib.suppress(EnvironmentFault):
                await one.runner.kill("bad", 1, 1, grace_s=0.1)
            await one.start("after", epochs=1)
            await one.wait_over("after")

    asyncio.run(main())
