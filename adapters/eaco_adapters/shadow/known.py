"""What can be known of workloads from a history: alone on their GPUs, and beside each other."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

import attrs
from attrs import define, field

from eaco_core.jobs import SoloProfile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eaco_core.cluster import NodeReading
    from eaco_core.jobs import JobSpec

_LAST = 50


@define
class Mean:
    """The mean of what was added so far; None = nothing was."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        """Count one value; None was not measured."""
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        """The mean."""
        return self.total / self.count if self.count else None


@define
class Seen:
    """What one workload was seen to do alone on one type of GPU, up to now."""

    epochs_s: list[float] = field(factory=list[float])
    util: Mean = field(factory=Mean)
    mem_busy: Mean = field(factory=Mean)
    peak_mem_bytes: int | None = None

    @property
    def epoch_s(self) -> float | None:
        """The median of its last epochs; None = none was seen."""
        return median(self.epochs_s) if self.epochs_s else None


class Known:
    """Observations by workload and type of GPU. It grows; what it said before stays said."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Seen]] = {}
        self._shared: dict[tuple[str, tuple[str, ...], str], list[float]] = {}

    def seen(self, workload: str | None, gpu_type: str) -> Seen | None:
        """Give what is known of a workload; None = nothing."""
        return None if workload is None else self._seen.get(workload, {}).get(gpu_type)

    def add_epoch(self, workload: str | None, gpu_type: str, epoch_s: float) -> None:
        """An epoch alone took so long."""
        if workload is not None:
            epochs_s = self._of(workload, gpu_type).epochs_s
            epochs_s.append(epoch_s)
            del epochs_s[:-_LAST]

    def add_reading(self, workload: str | None, gpu_type: str, reading: NodeReading) -> None:
        """A GPU was so busy while the workload was alone on it."""
        if workload is not None:
            seen = self._of(workload, gpu_type)
            seen.util.add(reading.util_ratio)
            seen.mem_busy.add(reading.mem_busy_ratio)
            if reading.mem_used_bytes is not None:
                self.add_mem(workload, gpu_type, reading.mem_used_bytes)

    def add_mem(self, workload: str | None, gpu_type: str, peak_bytes: int) -> None:
        """The workload used so much memory on a GPU."""
        if workload is not None:
            seen = self._of(workload, gpu_type)
            seen.peak_mem_bytes = max(peak_bytes, seen.peak_mem_bytes or 0)

    def add_shared(
        self, workload: str | None, beside: Sequence[str | None], gpu_type: str, epoch_s: float
    ) -> None:
        """An epoch beside these took so long."""
        names = [name for name in beside if name is not None]
        if workload is not None and len(names) == len(beside):
            key = (workload, tuple(sorted(names)), gpu_type)
            epochs_s = self._shared.setdefault(key, [])
            epochs_s.append(epoch_s)
            del epochs_s[:-_LAST]

    def shared(self) -> dict[tuple[str, tuple[str, ...], str], float]:
        """Give the mean epoch time of each (workload, co-workloads, GPU type) that was seen."""
        return {key: fmean(epochs_s) for key, epochs_s in self._shared.items()}

    def believed(self, spec: JobSpec) -> JobSpec:
        """Give the job as eaco would see it now: its profiles, filled from what was observed."""
        if spec.workload is None:
            return spec
        profiles = {one.gpu_type: one for one in spec.profiles}
        for gpu_type, seen in self._seen.get(spec.workload, {}).items():
            given = profiles.get(gpu_type, SoloProfile(gpu_type))
            profiles[gpu_type] = filled(given, seen)
        return attrs.evolve(spec, profiles=tuple(profiles.values()))

    def _of(self, workload: str, gpu_type: str) -> Seen:
        return self._seen.setdefault(workload, {}).setdefault(gpu_type, Seen())


def filled(given: SoloProfile, seen: Seen | None) -> SoloProfile:
    """Fill what a profile leaves open from observations; what it says stands."""
    if seen is None:
        return given
    return attrs.evolve(
        given,
        epoch_s=given.epoch_s if given.epoch_s is not None else seen.epoch_s,
        util_ratio=given.util_ratio if given.util_ratio is not None else seen.util.value,
        mem_busy_ratio=(
            given.mem_busy_ratio if given.mem_busy_ratio is not None else seen.mem_busy.value
        ),
        peak_mem_bytes=(
            given.peak_mem_bytes if given.peak_mem_bytes is not None else seen.peak_mem_bytes
        ),
    )
