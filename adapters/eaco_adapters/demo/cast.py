"""Which jobs the demo has: three workloads, of which one is not what its profile says."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH_S: Final = 1.0


@frozen
class Workload:
    """One workload: how busy it was when it was measured alone, and how busy its jobs are."""

    name: str
    measured_ratio: float
    real_ratio: float

    @property
    def as_it_is(self) -> str:
        """Name the measurement that is true of its jobs."""
        return CHANGED_NOW.name if self.measured_ratio != self.real_ratio else self.name

    def command(self, epochs: int, *, measured: bool, seed: int = 0) -> list[str]:
        """Give the command of a job, or of the measurement."""
        busy_ratio = self.measured_ratio if measured else self.real_ratio
        return [
            sys.executable,
            "-m",
            "eaco_adapters.demo.workload",
            f"--epochs={epochs}",
            f"--epoch-s={EPOCH_S}",
            f"--busy-ratio={busy_ratio}",
            f"--seed={seed}",
        ]


@frozen
class Role:
    """One job of the demo. `slack`: its deadline as a multiple of its time alone; None = none."""

    job_id: str
    workload: Workload
    epochs: int
    slack: float | None = None


WORKLOADS: Final = (
    Workload("steady", 0.50, 0.50),
    Workload("calm", 0.25, 0.25),
    # It was profiled with small batches and trains with large ones: its profile is out of date.
    Workload("changed", 0.25, 0.95),
)
# The same with large batches: measured for the comparison, and not told to the scheduler.
CHANGED_NOW: Final = Workload("changed now", 0.95, 0.95)


def cast(seed: int) -> tuple[Role, ...]:
    """Give the jobs in the order of their submission. The seed changes lengths and partners."""
    chance = random.Random(seed)  # noqa: S311 - which jobs a demo shows
    steady, calm, changed = WORKLOADS
    partners: Sequence[Workload] = chance.choice(((steady, calm), (calm, steady), (calm, calm)))
    return (
        Role(f"{partners[0].name}-a", partners[0], chance.randint(5, 7)),
        Role(f"{partners[1].name}-b", partners[1], chance.randint(5, 6)),
        Role(f"{steady.name}-c", steady, chance.randint(11, 13)),
        # Beside others it would take at most a quarter longer, says its profile, and this deadline
        # allows that. It will turn out to take nearly twice as long.
        Role(f"{changed.name}-d", changed, chance.randint(9, 10), slack=1.6),
    )
