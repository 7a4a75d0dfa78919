"""The process in which `isolated.IsolatedReader` lets a reader work. Started by it only.

Lines of JSON come in on standard input and go out on what was standard output; whatever the
reader or a library prints goes to standard error. The process ends when its input does.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from eaco_core.errors import EnvironmentFault
from eaco_telemetry.readers._reading_json import dump_line, plain_reading
from eaco_telemetry.samples import Moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_telemetry.readers.base import Reader


def _make(factory: str, arguments: dict[str, Any]) -> Reader:
    module, _, name = factory.partition(":")
    reader: Reader = getattr(importlib.import_module(module), name)(**arguments)
    return reader


def _open(reader: Reader) -> dict[str, Any]:
    reader.open()
    return {"open": True, **_facts(reader)}


def _read(reader: Reader, request: dict[str, Any]) -> dict[str, Any]:
    now = Moment(wall_ns=request["wall_ns"], monotonic_ns=request["monotonic_ns"])
    return {"reading": plain_reading(reader.read(now)), **_facts(reader)}


def _told(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return call()
    except EnvironmentFault as fault:
        return {"fault": str(fault)}
    except Exception as error:  # noqa: BLE001 - it is told where the reader is used
        return {"error": f"{type(error).__name__}: {error}"}


def _facts(reader: Reader) -> dict[str, Any]:
    return {
        "capabilities": {key: list(names) for key, names in reader.capabilities.items()},
        "pci_addresses": sorted(getattr(reader, "pci_addresses", ())),
        "must_restart": bool(getattr(reader, "must_restart", False)),
    }


def _take_requests(lines: IO[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    for line in lines:
        requests.put(line)
    # The parent is gone. The main thread may hang in a driver, so it is not asked.
    os._exit(0)


def main() -> None:
    """Serve one reader until the input ends."""
    with open(os.dup(1), "wb", buffering=0) as out:  # noqa: PTH123 - a number, not a path
        os.dup2(2, 1)
        requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(
            target=_take_requests, args=(sys.stdin.buffer, requests), daemon=True
        ).start()
        first = json.loads(requests.get())
        made: list[Reader] = []

        def begin() -> dict[str, Any]:
            made.append(_make(first["factory"], first["arguments"]))
            return _open(made[0])

        out.write(dump_line(_told(begin)))
        while True:
            request = json.loads(requests.get())
            out.write(dump_line(_told(partial(_read, made[0], request))))


if __name__ == "__main__":
    main()
