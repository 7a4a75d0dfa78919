"""What a simulation says: about each job, about the cluster, and in joules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import field, frozen

from eaco_core.errors import InputError
from eaco_telemetry.accounting import EnergyParts, PowerParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_core.jobs import FailureReason

# A job that ends this close to its deadline met it: rounding is not lateness.
_DEADLINE_SLACK_S = 1e-6


@frozen
class JobOutcome:
    """How one job fared.

    JCT = `end_s` - `submit_s`; `wait_s` is all its time in the queue and starting, and
    `runtime_s` the rest: the time from JobStarted until it let go of its GPUs, of all
    attempts. `start_s` is its first JobStarted. `energy_j` None = not known.
    `failure` None = it finished.
    """

    job_id: str
    submit_s: float
    start_s: float | None
    end_s: float
    runtime_s: float
    deadline_s: float | None
    attempts: int
    energy_j: float | None
    failure: FailureReason | None = None

    @property
    def jct_s(self) -> float:
        """Completion minus submission."""
        return self.end_s - self.submit_s

    @property
    def wait_s(self) -> float:
        """All queued and starting time."""
        return self.jct_s - self.runtime_s

    @property
    def missed(self) -> bool:
        """Whether it had a deadline and did not finish by then."""
        if self.deadline_s is None:
            return False
        return self.failure is not None or self.end_s > self.deadline_s + _DEADLINE_SLACK_S


@frozen
class EnergyRecord:
    """Energy by part until the last job ended, and the power by part from then on.

    `tail` has what is drawn from each time on; the last entry holds for ever.
    """

    end_s: float
    until_end: EnergyParts
    tail: tuple[tuple[float, PowerParts], ...]

    def until_s(self, horizon_s: float) -> EnergyParts:
        """Give the energy from 0 to `horizon_s`, which is not before `end_s`."""
        if not self.end_s <= horizon_s < math.inf:
            raise InputError(
                f"energy is known until a time from {self.end_s!r} s on, not until {horizon_s!r} s"
            )
        parts = self.until_end
        for number, (since_s, power) in enumerate(self.tail):
            last = number + 1 == len(self.tail)
            until_s = horizon_s if last else min(horizon_s, self.tail[number + 1][0])
            parts = _plus(parts, power, max(0.0, until_s - since_s))
        return parts


@frozen
class SimResult:
    """One policy on one trace. Times in s, energy in J; None = not known or no job."""

    policy: str
    seed: int
    in_sample: bool
    jobs: tuple[JobOutcome, ...] = field(repr=False)
    end_s: float
    active_node_s: float
    energy: EnergyRecord | None = field(repr=False)
    placements: int
    shared_placements: int
    observations_kept: int
    undos: int
    steps: int
    cpu_s: float
    peak_rss_bytes: int | None

    def energy_until_s(self, horizon_s: float) -> EnergyParts | None:
        """Give the energy from 0 to `horizon_s`, the latest end among compared runs."""
        return None if self.energy is None else self.energy.until_s(horizon_s)

    @property
    def deadline_misses(self) -> int:
        """How many jobs with a deadline did not finish by then."""
        return sum(job.missed for job in self.jobs)

    def to_json(self, horizon_s: float | None = None) -> dict[str, object]:
        """Give one entry of `results`; energy runs until `horizon_s` (None = until its end).

        Averages are over the jobs that finished; `p99_jct_s` is the smallest JCT that
        99% of them do not exceed.
        """
        done = [job for job in self.jobs if job.failure is None]
        parts = self.energy_until_s(self.end_s if horizon_s is None else horizon_s)
        first_s = min((job.submit_s for job in self.jobs), default=0.0)
        return {
            "policy": self.policy,
            "seed": self.seed,
            "in_sample": self.in_sample,
            "submitted": len(self.jobs),
            "finished": len(done),
            "failed": len(self.jobs) - len(done),
            "energy_j": None if parts is None else parts.total_j,
            "energy_parts_j": None if parts is None else _parts_json(parts),
            "avg_jct_s": _mean([job.jct_s for job in done]),
            "p99_jct_s": _percentile([job.jct_s for job in done], 99),
            "avg_runtime_s": _mean([job.runtime_s for job in done]),
            "avg_wait_s": _mean([job.wait_s for job in done]),
            "makespan_s": self.end_s - first_s if self.jobs else None,
            "avg_active_nodes": self.active_node_s / self.end_s if self.end_s > 0 else None,
            "deadline_misses": self.deadline_misses,
            "placements": self.placements,
            "shared_placements": self.shared_placements,
            "observations_kept": self.observations_kept,
            "undos": self.undos,
            "cpu_s": self.cpu_s,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def _plus(parts: EnergyParts, power: PowerParts, length_s: float) -> EnergyParts:
    return EnergyParts(
        jobs_j=parts.jobs_j + power.jobs_w * length_s,
        idle_j=parts.idle_j + power.idle_w * length_s,
        unattributed_j=parts.unattributed_j + power.unattributed_w * length_s,
        sleep_j=parts.sleep_j + power.sleep_w * length_s,
        wake_j=parts.wake_j + power.wake_w * length_s,
    )


def _parts_json(parts: EnergyParts) -> dict[str, float]:
    return {
        "jobs": parts.jobs_j,
        "idle": parts.idle_j,
        "unattributed": parts.unattributed_j,
        "sleep": parts.sleep_j,
        "wake": parts.wake_j,
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _percentile(values: Sequence[float], percent: int) -> float | None:
    if not values:
        return None
    return sorted(values)[(len(values) * percent + 99) // 100 - 1]
