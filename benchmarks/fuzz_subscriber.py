"""Give the subscriber mutated messages: it must not raise, and its memory must stay bounded.

    python benchmarks/fuzz_subscriber.py --count 1000000 --seed 0

Real messages of all four kinds from 50 nodes are changed inside the JSON, cut, mixed with
other bytes, replaced by chance, or sent on hostile topics. Prints how many were taken and
refused, by kind, and the memory of the process. Ends with 1 if eaco itself was at fault or
memory grew without bound.
"""

from __future__ import annotations

import argparse
import gc
import logging
import platform
import sys
import time
from pathlib import Path

from eaco_telemetry.subscriber import Subscriber, SubscriberOptions
from eaco_telemetry.testing.hostile import HostileSender
from eaco_telemetry.testing.memory_broker import MemoryBroker

_STEPS = 10
_BOUND_MIB = 64.0
"""How much memory may grow after the first tenth: nodes, topics and sessions are then there."""


def rss_mib() -> float:
    """Give the memory that this process holds now."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=50)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="log: %(message)s", stream=sys.stdout)
    options = SubscriberOptions(max_nodes=1000, window_values=("power_w",), log_every_s=300.0)
    # Never connected: the messages go straight into `handle`.
    subscriber = Subscriber(MemoryBroker().connect, options, own_pids=lambda _site, _node: (1,))
    sender = HostileSender(nodes=arguments.nodes, seed=arguments.seed)
    updates = refused = 0
    handling_s = 0.0
    memory: list[float] = []
    print(f"{platform.machine()}, Python {platform.python_version()}, seed {arguments.seed}")
    print(f"before: {rss_mib():.1f} MiB")
    for step in range(_STEPS):
        for incoming in sender.messages(arguments.count // _STEPS):
            begin_s = time.perf_counter()
            updates += len(subscriber.handle(incoming))
            handling_s += time.perf_counter() - begin_s
            if subscriber.counters.received % 1000 == 0:
                updates += len(subscriber.check_ages(incoming.received_s))
        gc.collect()
        memory.append(rss_mib())
        print(f"after {(step + 1) * 10:3d} %: {memory[-1]:.1f} MiB, {len(subscriber.nodes)} nodes")
    counters = subscriber.counters
    refused = sum(counters.bad.values())
    received = max(1, counters.received)
    print(f"{counters.received} messages, {refused} refused, {updates} updates, ", end="")
    print(f"{handling_s / received * 1e6:.1f} us each")
    for name, count in sorted(counters.bad.items()):
        print(f"  refused, {name}: {count}")
    for name in (
        "samples", "metas", "states", "events", "duplicates", "duplicate_events", "reordered",
        "old_session", "retained_ignored", "cleared", "gaps", "without_meta", "nodes_forgotten",
    ):  # fmt: skip
        print(f"  {name}: {getattr(counters, name)}")
    faults = counters.bad.get("fault of eaco", 0)
    growth_mib = memory[-1] - memory[0]
    print(f"growth after the first tenth: {growth_mib:.1f} MiB; faults of eaco: {faults}")
    return 1 if faults or growth_mib > _BOUND_MIB else 0


if __name__ == "__main__":
    sys.exit(main())
