"""A server that kills itself at a chosen point, for tests of what comes after.

    python -m eaco_adapters.testing.killed_server STATE_DIR --gpus 2 --kill commit:7

Points, each counted from 1: `append` (before the n-th commit that holds a command reaches the
disk), `commit` (after it, before its commands are given), `event` (after the n-th command was
carried out, before what follows from it is known). SIGKILL to itself is as sudden as any other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaco_adapters.server.config import parse_config
from eaco_adapters.server.start import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from eaco_core.ports import Executor, Journal, Report

POINTS = ("append", "commit", "event")
_COMMANDS = ('"type":"StartJob"', '"type":"KillJob"', '"type":"StopAtEpochBoundary"')


class _Fuse:
    """Burns down by one each time; kills at the end."""

    def __init__(self, point: str, count: int) -> None:
        self.point = point
        self._left = count

    def burn(self, point: str) -> None:
        if point == self.point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class KillingJournal:
    """A journal whose writer dies around a commit."""

    def __init__(self, journal: Journal, fuse: _Fuse) -> None:
        self._journal = journal
        self._fuse = fuse
        self._commands = False

    def append(self, line: str, /) -> None:
        """Take one line."""
        self._commands = self._commands or any(word in line for word in _COMMANDS)
        self._journal.append(line)

    def commit(self) -> object:
        """Commit, and die before or after if there is a command in it."""
        commands, self._commands = self._commands, False
        if commands:
            self._fuse.burn("append")
        done = self._journal.commit()
        if commands:
            self._fuse.burn("commit")
        return done


class KillingExecutor:
    """An executor whose caller dies right after a command was carried out."""

    def __init__(self, executor: Executor, fuse: _Fuse) -> None:
        self._executor = executor
        self._fuse = fuse

    async def start(
        self,
        job_id: str,
        attempt: int,
        term: int,
        *,
        gpus: Mapping[str, tuple[str, ...]],
        resume_epoch: int,
    ) -> None:
        """Start, then die."""
        await self._executor.start(job_id, attempt, term, gpus=gpus, resume_epoch=resume_epoch)
        self._fuse.burn("event")

    async def request_stop(self, job_id: str, attempt: int, term: int) -> None:
        """Ask for a stop, then die."""
        await self._executor.request_stop(job_id, attempt, term)
        self._fuse.burn("event")

    async def kill(self, job_id: str, attempt: int, term: int, *, grace_s: float) -> None:
        """Kill, then die."""
        await self._executor.kill(job_id, attempt, term, grace_s=grace_s)
        self._fuse.burn("event")

    def reports(self) -> AsyncIterator[Report]:
        """Give the reports."""
        return self._executor.reports()

    async def list_running(self) -> Sequence[tuple[str, int, tuple[str, ...]]]:
        """List what runs."""
        return await self._executor.list_running()

    async def forget(self, job_id: str, attempt: int) -> None:
        """Forget an attempt."""
        await self._executor.forget(job_id, attempt)


def toy_config(state_dir: Path, gpus: int) -> dict[str, Any]:
    """Give a configuration for short toy jobs on virtual GPUs."""
    return {
        "name": "toy",
        "state_dir": str(state_dir),
        "listen": {"socket": str(state_dir / "s")},
        "rules": {
            "window_min_s": 0.2,
            "headroom_bytes": 1 << 20,
            "max_restarts": 1000,
            "max_start_failures": 1000,
            "lost_after_s": 5.0,
        },
        "nodes": {"toy": {"simulated_gpus": gpus}},
        "telemetry": {"period_s": 1.0},
    }


def main() -> None:
    """Serve until killed, or until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--kill", default="never:1", help="POINT:N")
    options = parser.parse_args()
    point, _, count = options.kill.partition(":")
    fuse = _Fuse(point, int(count))
    config = parse_config(toy_config(options.state_dir.absolute(), options.gpus))
    server = Server(
        config,
        "test",
        wrap_journal=lambda journal: KillingJournal(journal, fuse),
        wrap_executor=lambda executor: KillingExecutor(executor, fuse),
    )
    asyncio.run(_run(server))


async def _run(server: Server) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await server.run(stop)


if __name__ == "__main__":
    main()
