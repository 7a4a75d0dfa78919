"""What the tests of NVML do in a process of their own: `nvml_child.py PART ROOT`.

Its driver is the library that LD_LIBRARY_PATH leads to. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path

from eaco_telemetry.readers.nvml import NvmlOptions, NvmlReader
from eaco_telemetry.samples import GpuSample, Moment

START_NS = time.monotonic_ns()
LIBRARY = ctypes.CDLL("libnvidia-ml.so.1")


def _reader() -> NvmlReader:
    reader = NvmlReader("n1", NvmlOptions(root=Path(sys.argv[2]), process_every=1))
    reader.open()
    return reader


def _one(reader: NvmlReader, seconds: float) -> GpuSample:
    moment = Moment(wall_ns=1, monotonic_ns=START_NS + int(seconds * 1e9))
    (gpu,) = reader.read(moment).gpus
    return gpu


def _set(word: str, value: object) -> None:
    LIBRARY.fake_set(word.encode(), str(value).encode())


def _calls(function: str) -> int:
    return int(LIBRARY.fake_calls(function.encode()))


def read() -> dict[str, object]:
    gpu = _one(_reader(), 1)
    names = ("mem_used_bytes", "mem_reserved_bytes", "power_w", "power_inst_w", "throttle", "flags")
    told: dict[str, object] = {name: getattr(gpu, name) for name in names}
    told["unexplained"] = gpu.unexplained
    return told


def rest() -> dict[str, object]:
    """Read every 10 s; the GPU does not work. Then once more after the rest."""
    reader = _reader()
    reasons = [_one(reader, 1 + 10 * tick).missing.get("util_ratio") for tick in range(9)]
    _set("gpu0.energy_mj", 1_500_000)
    after = _one(reader, 100)
    return {
        "reasons": reasons,
        "after": [after.util_ratio, after.missing.get("util_ratio")],
        "energy_j": after.energy_j,
        "shutdowns": _calls("nvmlShutdown"),
        "inits": _calls("nvmlInitWithFlags"),
    }


def every() -> dict[str, object]:
    """Give state and used memory of all GPUs and instances after one read."""
    moment = Moment(wall_ns=1, monotonic_ns=START_NS + 1)
    gpus = _reader().read(moment).gpus
    told: dict[str, object] = {gpu.gpu_id: [gpu.state.value, gpu.mem_used_bytes] for gpu in gpus}
    told["calls"] = _calls("nvmlDeviceGetUtilizationRates")
    return told


def gap() -> dict[str, object]:
    """Do not read for a minute, at 100 W; then a second GPU appears."""
    reader = _reader()
    _one(reader, 1)
    _set("gpu0.energy_mj", 7_000_000)
    gpu = _one(reader, 61)
    watched = _calls("nvmlDeviceRegisterEvents")
    _set("count", 2)
    reading = reader.read(Moment(wall_ns=1, monotonic_ns=START_NS + 62_000_000_000))
    return {
        "energy_j": gpu.energy_j,
        "flags": gpu.flags,
        "events": [[event.kind, event.gpu_id] for event in reading.events],
        "watched": [watched, _calls("nvmlDeviceRegisterEvents")],
    }


def late() -> dict[str, object]:
    """Lose a GPU in a read that takes too long; tell the events of the reads after it."""
    reader = NvmlReader("n1", NvmlOptions(root=Path(sys.argv[2]), read_timeout_s=0.05))
    reader.open()
    _set("delay_ms.nvmlDeviceGetUtilizationRates", 200)
    _set("gpu0.lost", 1)
    first = reader.read(Moment(wall_ns=1, monotonic_ns=START_NS + 1))
    time.sleep(0.4)
    later = [reader.read(Moment(wall_ns=1, monotonic_ns=START_NS + 2)) for _ in range(2)]
    events = [[event.kind for event in reading.events] for reading in (first, *later)]
    return {"problem": first.problem is not None, "events": events}


def fork() -> dict[str, object]:
    """Read in this process, then in a child that never opened a reader itself."""
    reader = _reader()
    parent_w = _one(reader, 1).power_w
    there, back = os.pipe()
    # The other thread is the reader's, and it waits for work: this is what is tested.
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (1,)).start()
        told = {"child_w": _one(reader, 2).power_w, "child_inits": _calls("nvmlInitWithFlags")}
        os.write(back, json.dumps(told).encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = json.loads(os.read(there, 1000))
    return {"parent_w": parent_w, "parent_inits": _calls("nvmlInitWithFlags"), **told}


if __name__ == "__main__":
    parts = {"read": read, "rest": rest, "fork": fork, "every": every, "late": late, "gap": gap}
    print(json.dumps(parts[sys.argv[1]]()))  # noqa: T201 - what the test reads
