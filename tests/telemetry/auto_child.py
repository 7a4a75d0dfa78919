"""What the tests of the choice do in a process of its own: `auto_child.py ROOT WORD...`.

Its driver is the library that LD_LIBRARY_PATH leads to. Words: ``isolate``, ``dcgm=URL``,
``wait`` (the driver works from the second look on). Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

from eaco_telemetry import sampler as sampler_module
from eaco_telemetry.readers.auto import choose_readers
from eaco_telemetry.sampler import Sampler


def main() -> None:
    root, words = Path(sys.argv[1]), sys.argv[2:]
    url = next((word.removeprefix("dcgm=") for word in words if word.startswith("dcgm=")), None)
    choice = choose_readers("n", root=root, isolate="isolate" in words, dcgm_url=url)
    sampler = Sampler(choice.readers, node_id="n", session_id="s")
    sampler_module.RETRY_OPEN_S = 0.0  # type: ignore[misc]  # not to wait for a minute
    sampler.open_blocking()
    sample = sampler.sample_blocking().sample
    problems = dict(sample.problems)
    if "wait" in words:
        # The table is read from the file at each start of the driver.
        (root / "script").write_text("error.nvmlInitWithFlags 0\n")
        ctypes.CDLL("libnvidia-ml.so.1")
        sampler.sample_blocking()
        time.sleep(0.1)
        sample = sampler.sample_blocking().sample
    sampler.close_blocking()
    told = {
        "readers": list(sampler.readers),
        "problems": problems,
        "gpus": [[gpu.gpu_id, gpu.pci_bdf, gpu.util_ratio] for gpu in sample.gpus],
        "clocks": [gpu.clock_sm_hz for gpu in sample.gpus],
        "sm_active": [gpu.sm_active_ratio for gpu in sample.gpus],
    }
    print(json.dumps(told))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
