"""The result of an accounting: joules by job, user and node, and whether they add up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from attrs import evolve, field, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eaco_telemetry.booking.holds import Span
    from eaco_telemetry.booking.idle import IdlePower
    from eaco_telemetry.booking.rules import Rule
    from eaco_telemetry.booking.server import ServerSource

J_PER_KWH: Final = 3.6e6


@frozen
class Amount:
    """Energy in joules, and where a price or an intensity is known what follows from it.

    `cost`: in the currency of the tariff. `co2_g`: grams of CO2 equivalent. None = not asked.
    """

    energy_j: float = 0.0
    cost: float | None = None
    co2_g: float | None = None

    @property
    def energy_kwh(self) -> float:
        """The same energy in kilowatt-hours."""
        return self.energy_j / J_PER_KWH

    def plus(self, other: Amount) -> Amount:
        """Add two amounts; cost and CO2 only where both have them."""
        return Amount(
            self.energy_j + other.energy_j,
            None if self.cost is None or other.cost is None else self.cost + other.cost,
            None if self.co2_g is None or other.co2_g is None else self.co2_g + other.co2_g,
        )


@frozen
class JobEnergy:
    """What one job used in the window.

    `held_s`: time in which it held any GPU; `gpu_s`: GPU-seconds that it held, both also
    outside of the recording; `covered_ratio`: the part of these that was measured (None: it
    held none). Of what was not measured there is no energy in `amount`.
    """

    job_id: str
    user: str
    amount: Amount
    held_s: float
    gpu_s: float
    covered_ratio: float | None

    @property
    def is_measured(self) -> bool:
        """Whether anything of it was measured; if not, its energy is not 0 but not known."""
        return bool(self.covered_ratio) or self.amount.energy_j > 0.0

    @property
    def mean_w(self) -> float | None:
        """Mean power while it was measured; None if it never was."""
        measured_s = self.held_s * (self.covered_ratio or 0.0)
        return self.amount.energy_j / measured_s if measured_s else None


@frozen
class UserEnergy:
    """What the jobs of one user used. `covered_gpu_s`: GPU-seconds of these that were measured."""

    user: str
    jobs: int
    amount: Amount
    gpu_s: float
    covered_gpu_s: float
    is_measured: bool

    @property
    def covered_ratio(self) -> float | None:
        """The part of its GPU-seconds that was measured; None: there are none."""
        return self.covered_gpu_s / self.gpu_s if self.gpu_s else None


@frozen
class NodeGrounds:
    """One node, and what its figures stand on.

    `gpu_j`, `server_j`: energy of the GPUs and of the rest of the node (None: not
    measured). `gpu_covered_ratio`, `server_covered_ratio`: the part of the time from the
    first to the last sample (in the window) in which they were measured.
    """

    node_id: str
    from_ns: int
    to_ns: int
    gpus: int
    energy_j: float
    gpu_j: float
    server_j: float | None
    gpu_covered_ratio: float
    server_covered_ratio: float | None
    server_source: ServerSource
    gpu_idle: Mapping[str, IdlePower]
    server_idle: IdlePower | None
    bridged_s: float
    rebases: int
    simulated: bool

    @property
    def is_measured(self) -> bool:
        """Whether any energy of it was measured."""
        covered = self.gpu_covered_ratio or self.server_covered_ratio
        return bool(covered) or self.energy_j > 0.0


@frozen
class EnergyReport:
    """Everything that was accounted for.

    `difference_j`: jobs + idle + unattributed minus the total, which is summed apart; what
    it is beside 0 is rounding. `active_j`: active energy of the GPUs by what it was split
    by. `notes`: what a reader should know, in sentences.
    """

    rule: Rule
    window: Span
    jobs: tuple[JobEnergy, ...]
    nodes: tuple[NodeGrounds, ...]
    of_jobs: Amount
    idle: Amount
    unattributed: Amount
    total: Amount
    active_j: Mapping[str, float]
    simulated: bool
    notes: tuple[str, ...] = field(default=())

    @property
    def difference_j(self) -> float:
        """By how much the parts and the total differ."""
        parts = (self.of_jobs, self.idle, self.unattributed)
        return math.fsum([*(part.energy_j for part in parts), -self.total.energy_j])

    @property
    def is_measured(self) -> bool:
        """Whether anything was measured; if not, no energy is known, also not 0."""
        return any(node.is_measured for node in self.nodes)

    @property
    def has_measured_jobs(self) -> bool:
        """Whether what jobs used is known: some of it was measured, or there is no job."""
        return self.is_measured and (not self.jobs or any(job.is_measured for job in self.jobs))

    @property
    def users(self) -> tuple[UserEnergy, ...]:
        """The jobs by user, most energy first."""
        found: dict[str, UserEnergy] = {}
        for job in self.jobs:
            old = found.get(job.user)
            covered_gpu_s = job.gpu_s * (job.covered_ratio or 0.0)
            if old is None:
                found[job.user] = UserEnergy(
                    job.user, 1, job.amount, job.gpu_s, covered_gpu_s, job.is_measured
                )
                continue
            found[job.user] = evolve(
                old,
                jobs=old.jobs + 1,
                amount=old.amount.plus(job.amount),
                gpu_s=old.gpu_s + job.gpu_s,
                covered_gpu_s=old.covered_gpu_s + covered_gpu_s,
                is_measured=old.is_measured or job.is_measured,
            )
        return tuple(sorted(found.values(), key=lambda one: (-one.amount.energy_j, one.user)))


def total_of(amounts: Iterable[Amount]) -> Amount:
    """Add up amounts; without any it is 0 J."""
    found = list(amounts)
    costs = [one.cost for one in found]
    grams = [one.co2_g for one in found]
    return Amount(
        math.fsum(one.energy_j for one in found),
        math.fsum(known)
        if len(known := [c for c in costs if c is not None]) == len(costs)
        else None,
        math.fsum(seen) if len(seen := [g for g in grams if g is not None]) == len(grams) else None,
    )
