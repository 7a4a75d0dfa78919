"""The checker of energy: I30."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from eaco_core.invariants._checker import Checker

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.history import EnergyLine, Header
    from eaco_core.invariants._replay import World

_TOLERANCE = 1e-6
_SLACK_S = 1e-3


class Energy(Checker):
    """I30, for every energy line of the history."""

    invariant = "I30"

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        super().__init__(header, world, tell)
        self._lines = 0
        self._told_until_s: dict[str, float] = {}

    def on_energy(self, line: EnergyLine) -> None:
        """Add up where the joules of a node went."""
        self._lines += 1
        parts = [*line.jobs_j.values(), line.idle_j, line.unattributed_j, line.sleep_j, line.wake_j]
        place = f"node {line.node_id} from {line.t0_s:g} s to {line.t1_s:g} s"
        self._check_place(line, place)
        if line.t1_s < line.t0_s:
            self.broken(f"the interval of {place} ends before it begins")
        if min(parts) < 0 or line.node_j < 0:
            self.broken(f"a part of the energy of {place} is negative")
        elif not abs(sum(parts) - line.node_j) <= _TOLERANCE * max(1.0, line.node_j):
            self.broken(
                f"the parts of {place} make {sum(parts):.6f} J, but the node used "
                f"{line.node_j:.6f} J"
            )

    def _check_place(self, line: EnergyLine, place: str) -> None:
        until_s = self._told_until_s.get(line.node_id)
        if until_s is not None and line.t0_s < until_s - _SLACK_S:
            self.broken(f"the energy of {place} is told twice: it was told until {until_s:g} s")
        elif until_s is not None and line.t0_s > until_s + _SLACK_S:
            self.broken(f"the energy of node {line.node_id} is not told from {until_s:g} s on")
        self._told_until_s[line.node_id] = max(line.t1_s, until_s or line.t1_s)
        if not self.world.nodes_seen and not self.world.ours:
            return  # nobody says which nodes there are, so nobody says who is on them
        if line.node_id not in self.world.nodes:
            self.broken(f"node {line.node_id} never joined, and has energy")
            return
        self._check_jobs(line, place)

    def _check_jobs(self, line: EnergyLine, place: str) -> None:
        stays_s = self.world.stays_s.get(line.node_id, {})
        for job_id in line.jobs_j:
            if job_id not in self.world.jobs and job_id not in self.world.ended:
                self.broken(f"energy of {place} goes to job {job_id}, never submitted")
                continue
            from_s, until_s = stays_s.get(job_id, (math.inf, -math.inf))
            if from_s > line.t1_s + _SLACK_S or until_s < line.t0_s - _SLACK_S:
                self.broken(f"energy of {place} goes to job {job_id}, which held no GPU there")
        for job_id in [i for i, (_, until_s) in stays_s.items() if until_s < line.t1_s]:
            del stays_s[job_id]

    def missing(self) -> str | None:
        """Say what the history lacks."""
        return None if self._lines else "the history has no energy lines"
