"""How much jobs really slow each other down, apart from what any predictor believes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_core.jobs import SoloProfile
    from eaco_predictors.profiles import ProfileTable


class Truth(Protocol):
    """How much jobs slow each other down on one GPU."""

    def ratio(self, workload: str, co_workloads: tuple[str, ...], /) -> float | None:
        """Give shared / solo epoch time; None = they cannot run together."""
        ...


class MeasuredTable(Protocol):
    """What the truth needs of a profile table: solo profiles and measured ratios.

    `measured[(workload, sorted co-workloads)]` is shared / solo epoch time.
    """

    @property
    def profiles(self) -> Mapping[str, SoloProfile]:
        """Solo profile of each workload."""
        ...

    @property
    def measured(self) -> Mapping[tuple[str, tuple[str, ...]], float]:
        """Measured shared / solo epoch times."""
        ...


class GroundTruth:
    """The true slowdown of a workload beside others on one GPU: shared / solo epoch time.

    Measured where the table has it. Else max(1, sum of the solo utilisations) x
    `interference_ratio`, which is an assumption (1.035 = what the published pairs of
    arXiv 2412.08294 lose on average). Where a utilisation is not known, or the peaks of
    memory are known to exceed `mem_bytes` (None = do not ask), the set cannot run.
    """

    def __init__(
        self,
        table: MeasuredTable | ProfileTable,
        interference_ratio: float = 1.035,
        *,
        mem_bytes: int | None = None,
    ) -> None:
        if not math.isfinite(interference_ratio) or interference_ratio < 1:
            raise InputError(
                f"the interference must be a number of at least 1, not {interference_ratio!r}"
            )
        self._table = table
        self._interference_ratio = interference_ratio
        self._mem_bytes = mem_bytes
        self._known: dict[tuple[str, tuple[str, ...]], float | None] = {}

    def ratio(self, workload: str, co_workloads: tuple[str, ...], /) -> float | None:
        """Give the slowdown beside `co_workloads` (sorted); None = they cannot run together."""
        key = (workload, co_workloads)
        if key not in self._known:
            self._known[key] = self._ratio(workload, co_workloads)
        return self._known[key]

    def _ratio(self, workload: str, co_workloads: tuple[str, ...]) -> float | None:
        if not co_workloads:
            return 1.0
        measured = self._table.measured.get((workload, co_workloads))
        if measured is not None:
            return measured
        profiles = [self._table.profiles.get(name) for name in (workload, *co_workloads)]
        utils = [None if profile is None else profile.util_ratio for profile in profiles]
        known = [util for util in utils if util is not None]
        if len(known) < len(utils) or self._overflows(profiles):
            return None
        return max(1.0, math.fsum(known)) * self._interference_ratio

    def _overflows(self, profiles: list[SoloProfile | None]) -> bool:
        if self._mem_bytes is None:
            return False
        peaks = [0 if one is None else one.peak_mem_bytes or 0 for one in profiles]
        return sum(peaks) > self._mem_bytes
