"""A real `eaco serve` as a child process, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self, cast

from eaco_adapters.server.client import Client, ServerAddress
from eaco_adapters.testing.killed_server import toy_config
from eaco_adapters.testing.node_kit import processes_with
from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

ENDED = frozenset({"finished", "failed", "cancelled"})
_PATIENCE_S = 40.0
_MAIN = "from eaco_adapters.cli import main; main()"


class ServerProcess:
    """One server on a folder of its own; starts and ends as often as the test wants.

    Use as a context manager: at the end no server and no job of it is left.
    """

    def __init__(self, folder: Path, *, gpus: int = 2, **changes: Any) -> None:  # noqa: ANN401 - tables of the file
        self.state_dir = folder / "state"
        self.socket = self.state_dir / "s"
        self.config_file = folder / "eaco.toml"
        self.log = folder / "server.log"
        config: dict[str, Any] = toy_config(self.state_dir, gpus)
        for name, value in changes.items():
            config[name] = {**config[name], **value} if isinstance(value, dict) else value
        self.config_file.write_text(toml_text(config))
        self.port = 0  # where the test wants one
        self.client = Client(ServerAddress(socket=self.socket), timeout_s=_PATIENCE_S)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()
        self.end_jobs()

    @property
    def pid(self) -> int:
        """The process of the server."""
        if self._process is None:
            raise RuntimeError("no server was started")
        return self._process.pid

    def start(self, *, before: Callable[[], None] | None = None, wait: bool = True) -> None:
        """Start a server; `before` runs in its process first."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-c", _MAIN, "serve", f"--config={self.config_file}"],
                stdout=log,
                stderr=log,
                preexec_fn=before,  # noqa: PLW1509 - one thread at this moment, and only limits are set
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it answers. Raises EnvironmentFault with its words if it ends before."""
        quick = Client(self.client.address, timeout_s=5)
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            if self._process is not None and self._process.poll() is not None:
                raise EnvironmentFault(f"the server ended: {self.words()}")
            with contextlib.suppress(EnvironmentFault):
                quick.status()
                return
            time.sleep(0.05)
        raise EnvironmentFault(f"the server is not there: {self.words()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; give the exit status."""
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; give the exit status."""
        if self._process is None:
            raise RuntimeError("no server was started")
        return self._process.wait(_PATIENCE_S)

    def words(self) -> str:
        """Give what all servers so far wrote to their standard error."""
        return self.log.read_text("utf-8", "replace")

    def submit(self, *command: str, **request: Any) -> str:  # noqa: ANN401 - fields of the form
        """Submit a job; give its id."""
        return str(self.client.submit({"command": list(command), **request})["job_id"])

    def wait_for(
        self, job_id: str, *states: str, within_s: float = _PATIENCE_S
    ) -> Mapping[str, Any]:
        """Wait until a job is in one of these states; none: until it has ended."""
        wanted = set(states) or ENDED
        until_s = time.monotonic() + within_s
        job = self.client.job(job_id)
        while job["state"] not in wanted:
            if time.monotonic() > until_s or (job["state"] in ENDED and not wanted & ENDED):
                raise AssertionError(f"{job_id} is not {' or '.join(wanted)}: {job}")
            time.sleep(0.05)
            job = self.client.job(job_id)
        return job

    def job_processes(self) -> list[int]:
        """List the processes of jobs of this server."""
        return processes_with(f"EACO_CHECKPOINT_DIR={self.state_dir}")

    def end_jobs(self) -> None:
        """End whatever jobs left behind, the hard way; the shims then end by themselves."""
        until_s = time.monotonic() + _PATIENCE_S
        while (left := self.job_processes()) and time.monotonic() < until_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def toml_text(tables: Mapping[str, Any]) -> str:
    """Write a configuration as TOML: values, lists of them, tables in tables."""
    lines: list[str] = []

    def write(table: Mapping[str, Any], place: tuple[str, ...]) -> None:
        if place:
            lines.append(f"[{'.'.join(json.dumps(name) for name in place)}]")
        for name, value in table.items():
            if not isinstance(value, dict):
                lines.append(f"{json.dumps(name)} = {json.dumps(value)}")
        for name, value in table.items():
            if isinstance(value, dict):
                write(cast("Mapping[str, Any]", value), (*place, name))

    write(tables, ())
    return "\n".join(lines) + "\n"
