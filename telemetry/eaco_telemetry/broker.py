"""A broker of one's own on the loopback, for trying things out, demos and tests.

mosquitto where it is installed, else the one of the package iotcore (extra ``broker``).
It is a child process that listens on 127.0.0.1 only, stores nothing, and ends with this
process, also when this one is killed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncGenerator, Sequence

LOOPBACK: Final = "127.0.0.1"
KINDS: Final = ("auto", "mosquitto", "embedded")
MAX_PAYLOAD_BYTES: Final = 1 << 20

_PLACES: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")  # often not on PATH
_START_S: Final = 15.0
_POLL_S: Final = 0.02
_STOP_S: Final = 3.0
_TOLD: Final = 400
_FOLDER_PREFIX: Final = "eaco-broker-"
_STALE_S: Final = 600.0  # a folder is there only while a broker starts, which ends far sooner
_MOSQUITTO: Final = """\
listener {port} {host}
allow_anonymous true
persistence false
max_inflight_messages 200
max_queued_messages 100000
message_size_limit {most}
set_tcp_nodelay true
log_dest stderr
log_type error
log_type warning
"""
# What each child does first: on Linux, ask the kernel to be killed when its parent ends. Done
# by a start of Python of its own, because code between fork and exec is not safe with threads.
_DIE_WITH_PARENT: Final = """\
import os, sys
parent = int(sys.argv[1])
if sys.platform.startswith("linux"):
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != parent:
    os._exit(1)
"""
_RUN_PROGRAM: Final = _DIE_WITH_PARENT + "os.execv(sys.argv[2], sys.argv[2:])\n"
# As the package starts itself; the folder of the user must not shadow a module.
_RUN_EMBEDDED: Final = (
    "import sys\nsys.path[:] = [p for p in sys.path if p not in ('', '.')]\n"
    + _DIE_WITH_PARENT
    + "del sys.argv[1]\nfrom iotcore._serve import main\nmain()\n"
)


class PortTaken(EnvironmentFault):
    """The port that was asked for is in use."""


@frozen
class BrokerAddress:
    """Where a broker listens. `kind`: ``mosquitto`` or ``embedded`` (iotcore)."""

    host: str
    port: int
    kind: str

    def __str__(self) -> str:
        """Give the address as options of commands take it."""
        return f"mqtt://{self.host}:{self.port}"


@asynccontextmanager
async def running_broker(
    kind: str = "auto", port: int | None = None, log: logging.Logger | None = None
) -> AsyncGenerator[BrokerAddress, None]:
    """Run a broker as long as the block lasts. `port`: None for one that is free.

    `kind`: ``mosquitto``, ``embedded`` (iotcore), or ``auto``: the first that is there.
    Raises `EnvironmentFault` if there is none or it does not come up, `PortTaken` (one too)
    if the port is in use.
    """
    if kind not in KINDS:
        raise InputError(f"a broker of the kind {kind!r} is not known; use {', '.join(KINDS)}")
    chosen = _chosen(kind)
    number = _free_port() if port is None else port
    if port is not None:
        _check_free(port)
    process = await _running(chosen, number)
    try:
        if log is not None:
            log.info("a broker (%s) listens on %s:%d", chosen, LOOPBACK, number)
        yield BrokerAddress(LOOPBACK, number, chosen)
    finally:
        await _stop(process)


async def _running(kind: str, port: int) -> asyncio.subprocess.Process:
    """Start a broker and wait until it takes connections.

    Its folder goes as soon as it has read its configuration, so that a kill of this process
    leaves none behind; one that a kill during the start left goes at a later start.
    """
    _remove_stale()
    with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX) as name:
        folder = Path(name)
        process = await _started(_command(kind, port, folder), folder)
        try:
            await _ready(process, kind, port, folder)
        except BaseException:
            await _stop(process)
            raise
    return process


def _remove_stale() -> None:
    """Remove folders of processes that were killed while a broker started."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):
            found = path.lstat()
            old = time.time() - found.st_mtime > _STALE_S
            if old and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def mosquitto_program() -> str | None:
    """Give the path of mosquitto; also where daemons are that PATH does not name."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_PLACES))


def _chosen(kind: str) -> str:
    if kind != "embedded" and mosquitto_program() is not None:
        return "mosquitto"
    if kind != "mosquitto" and importlib.util.find_spec("iotcore") is not None:
        return "embedded"
    advice = {
        "auto": "install mosquitto, or: pip install 'eaco[broker]'",
        "mosquitto": "mosquitto is not on PATH; install it, or use the embedded broker",
        "embedded": "the package iotcore is not installed; install it with:"
        " pip install 'eaco[broker]'",
    }
    raise EnvironmentFault(f"there is no broker to start here: {advice[kind]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        number: int = probe.getsockname()[1]
    return number


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OverflowError:
            raise InputError(f"a port is from 1 to 65535, not {port}") from None
        except OSError as error:
            raise PortTaken(
                f"the port {port} of {LOOPBACK} cannot be used by a broker ({error.strerror});"
                " if a broker runs there already, use that one, else name another port"
            ) from None


def _command(kind: str, port: int, folder: Path) -> list[str]:
    parent = str(os.getpid())
    if kind == "mosquitto":
        config = folder / "mosquitto.conf"
        text = _MOSQUITTO.format(port=port, host=LOOPBACK, most=MAX_PAYLOAD_BYTES)
        if os.geteuid() == 0:  # mosquitto would change to a user that may not exist
            text += "user root\n"
        config.write_text(text, encoding="utf-8")
        program = [mosquitto_program() or "mosquitto", "-c", str(config)]
        return [sys.executable, "-I", "-S", "-c", _RUN_PROGRAM, parent, *program]
    options = {
        "config_path": None,
        "listen": LOOPBACK,  # its own choice would be every address of this machine
        "port": port,
        "max_payload_size": MAX_PAYLOAD_BYTES,
    }
    return [sys.executable, "-c", _RUN_EMBEDDED, parent, json.dumps(options)]


async def _started(command: Sequence[str], folder: Path) -> asyncio.subprocess.Process:
    with (folder / "stderr").open("wb") as errors:
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,  # iotcore ends when this closes
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                cwd="/",  # the folder of the user must not matter, and ours goes
                start_new_session=True,  # Ctrl-C is for us; we end the broker in order
            )
        except OSError as error:
            raise EnvironmentFault(f"cannot start a broker: {error.strerror}") from None


async def _ready(process: asyncio.subprocess.Process, kind: str, port: int, folder: Path) -> None:
    """Wait until the broker takes connections."""
    try:
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                if await _accepts(port):
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise EnvironmentFault(
            f"the broker ({kind}) did not come up on {LOOPBACK}:{port} within {_START_S:.0f} s"
        ) from None
    told = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip()
    last = " ".join(told.split())[-_TOLD:]
    raise EnvironmentFault(
        f"the broker ({kind}) ended while starting on {LOOPBACK}:{port}"
        f" with status {process.returncode}: {last or 'it gave no reason'}"
    )


async def _accepts(port: int) -> bool:
    try:
        _reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the broker, by force if it must be; also when we are being cancelled."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except (TimeoutError, asyncio.CancelledError):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.stdin is not None:
        process.stdin.close()
        with suppress(OSError):
            await process.stdin.wait_closed()
