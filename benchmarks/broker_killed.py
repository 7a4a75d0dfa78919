"""A broker killed with SIGKILL 20 times in a minute, under load: who is back when, what is lost.

    python benchmarks/broker_killed.py [--kills 20] [--agents 8] [--port 18931]

Wanted: agents and subscriber back within 2 s each, every event once, every gap told.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from eaco_telemetry.testing.broker_kills import kill_and_watch

WANTED_S = 2.0


def main() -> int:
    """Run it and print the figures; status 1 if something is not as wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every-s", type=float, default=3.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--period-s", type=float, default=0.1)
    parser.add_argument("--port", type=int, default=18931)
    given = parser.parse_args()
    report = asyncio.run(
        kill_and_watch(
            given.port,
            kills=given.kills,
            every_s=given.every_s,
            agents=given.agents,
            period_s=given.period_s,
        )
    )
    print("kill  agents publish again  subscriber has all again   (s from the restart)")
    for number, kill in enumerate(report.kills, 1):
        print(f"{number:4d}  {kill.agents_s:20.2f}  {kill.subscriber_s:24.2f}")
    worst_s = max(max(kill.agents_s, kill.subscriber_s) for kill in report.kills)
    print(f"worst: {worst_s:.2f} s (wanted: {WANTED_S:.0f} s)")
    print(
        f"events: {report.events_made} made, {len(report.events_lost)} lost,"
        f" {len(report.events_twice)} given twice"
    )
    print(
        f"samples: {report.samples_taken} taken, {report.samples_received} received,"
        f" {report.samples_missing} missing in {report.gaps} gaps that were told,"
        f" {len(report.missing_untold)} missing untold"
    )
    wrong = report.events_lost or report.events_twice or report.missing_untold
    return 1 if wrong or worst_s > WANTED_S else 0


if __name__ == "__main__":
    sys.exit(main())
