"""When nodes and GPUs of the simulated cluster fail: a schedule by seed.

The n-th lifetime of a node or GPU depends on the seed, its name and n only, so that
every policy meets the same luck as long as it does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_adapters.simulator import chance

if TYPE_CHECKING:
    from eaco_adapters.simulator.settings import SimSettings


class Faults:
    """Draws lifetimes; None = never fails."""

    def __init__(self, settings: SimSettings) -> None:
        self._seed = settings.seed
        self._node_mtbf_s = settings.node_mtbf_s
        self._gpu_mtbf_s = settings.gpu_mtbf_s
        self.repair_s = settings.repair_s

    def node_life_s(self, node_id: str, number: int) -> float | None:
        """Give the time until the node fails for the `number`-th time since the last."""
        if self._node_mtbf_s is None:
            return None
        return chance.lifetime_s(self._node_mtbf_s, self._seed, "node", node_id, number)

    def gpu_life_s(self, gpu_id: str, number: int) -> float | None:
        """Give the time until the GPU fails for the `number`-th time since the last."""
        if self._gpu_mtbf_s is None:
            return None
        return chance.lifetime_s(self._gpu_mtbf_s, self._seed, "gpu", gpu_id, number)
