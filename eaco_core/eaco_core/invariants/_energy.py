"""The checker of energy: I30."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.invariants._checker import Checker

if TYPE_CHECKING:
    from eaco_core.history import EnergyLine

_TOLERANCE = 1e-6


class Energy(Checker):
    """I30, for every energy line of the history."""

    invariant = "I30"
    _lines = 0

    def on_energy(self, line: EnergyLine) -> None:
        """Add up where the joules of a node went."""
        self._lines += 1
        parts = [*line.jobs_j.values(), line.idle_j, line.unattributed_j, line.sleep_j, line.wake_j]
        place = f"node {line.node_id} from {line.t0_s:g} s to {line.t1_s:g} s"
        if line.t1_s < line.t0_s:
            self.broken(f"the interval of {place} ends before it begins")
        if min(parts) < 0 or line.node_j < 0:
            self.broken(f"a part of the energy of {place} is negative")
        elif not abs(sum(parts) - line.node_j) <= _TOLERANCE * max(1.0, line.node_j):
            self.broken(
                f"the parts of {place} make {sum(parts):.6f} J, but the node used "
                f"{line.node_j:.6f} J"
            )

    def missing(self) -> str | None:
        """Say what the history lacks."""
        return None if self._lines else "the history has no energy lines"
