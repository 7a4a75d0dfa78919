"""A power model that remembers its answers, for predictions by the thousand (R7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaco_core._records import NodeRecord
    from eaco_core.ports import PowerModel
    from eaco_core.rules import Rules


class PowerTable:
    """A power model that remembers its answers: the same few loads are asked for again."""

    def __init__(self, model: PowerModel, rules: Rules) -> None:
        self._model = model
        self._sleeps = rules.sleep
        self._server_w: dict[tuple[str, int], float] = {}
        self._gpu_w: dict[tuple[str, float], float] = {}
        self._empty_w: dict[str, float] = {}

    def server_w(self, node: NodeRecord, bookings: int) -> float:
        """Give the server's power while jobs hold so many GPUs of it, each job counted."""
        key = (node.spec.node_id, bookings)
        known = self._server_w.get(key)
        if known is None:
            known = self._model.server_w(node.spec, bookings / len(node.spec.gpus))
            self._server_w[key] = known
        return known

    def gpu_w(self, gpu_type: str, util: float) -> float:
        """Give the power of a GPU; utilisation above 1 counts as 1."""
        util = min(util, 1.0)
        known = self._gpu_w.get((gpu_type, util))
        if known is None:
            known = self._gpu_w[gpu_type, util] = self._model.gpu_w(gpu_type, util)
        return known

    def base_w(self, node: NodeRecord) -> float:
        """Give what an idle node draws more than an empty one, which sleeps if it can."""
        known = self._empty_w.get(node.spec.node_id)
        if known is None:
            known = 0.0
            if self._sleeps and node.spec.can_sleep:
                gpus = sum(self.gpu_w(gpu.gpu_type, 0.0) for gpu in node.spec.gpus)
                known = self.server_w(node, 0) + gpus - self._model.sleep_w(node.spec)
            self._empty_w[node.spec.node_id] = known
        return known

    def wake_j(self, node: NodeRecord) -> float:
        """Give the energy of waking the node."""
        return self._model.wake_j(node.spec)
