"""Choose readers and take two samples without root rights: `no_root_child.py ROOT`.

Started as root it gives its rights up first. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from eaco_telemetry.readers.auto import choose_readers
from eaco_telemetry.sampler import Sampler

NOBODY = 65_534


def main() -> None:
    root = Path(sys.argv[1])
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    choice = choose_readers("n", root=root, want=["amd", "host"])
    sampler = Sampler(choice.readers, node_id="n", session_id="s")
    sampler.open_blocking()
    sampler.sample_blocking()
    sample = sampler.sample_blocking().sample
    sampler.close_blocking()
    host = sample.host
    told = {
        "uid": os.getuid(),
        "readers": list(sampler.readers),
        "hints": list(choice.hints),
        "problems": dict(sample.problems),
        "gpus": [[gpu.power_w, gpu.util_ratio, gpu.missing["processes"]] for gpu in sample.gpus],
        "memory": None if host is None else host.mem_total_bytes,
        "package": None if host is None else host.missing["package_energy_j"],
    }
    print(json.dumps(told))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
