"""A profile table: what workloads do alone and together on one type of GPU."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from attrs import field, frozen

from eaco_core.effects import Observation
from eaco_core.errors import InputError
from eaco_predictors.reading import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_core.jobs import SoloProfile

NOMINAL_EPOCH_S = 1404.0
"""Length of an epoch where a source has none: 0.39 h, the paper's AlexNet and ResNet-18
(arXiv 2412.08294, Table 1)."""

SharedKey: TypeAlias = tuple[str, tuple[str, ...]]
"""A workload and the sorted workloads beside it."""


def _fixed_profiles(profiles: Mapping[str, SoloProfile]) -> Mapping[str, SoloProfile]:
    return MappingProxyType(dict(profiles))


def _fixed_ratios(ratios: Mapping[SharedKey, float]) -> Mapping[SharedKey, float]:
    return MappingProxyType(dict(ratios))


def _fixed_rates(rates: Mapping[str, float]) -> Mapping[str, float]:
    return MappingProxyType(dict(rates))


def _fixed_counts(counts: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(counts))


def _no_rates() -> Mapping[str, float]:
    return {}


def _no_counts() -> Mapping[str, int]:
    return {}


@frozen(hash=False)
class ProfileTable:
    """Solo profiles by workload, and slowdowns measured when workloads shared GPUs.

    `measured[(workload, sorted co-workloads)]` = shared / solo epoch time, as
    measured (a value below 1 is noise, and is kept). `iteration_rates_hz`: solo
    iterations per second, where the source gives these in place of epochs.
    `measured_gpus`: for how many GPUs a workload was measured, where the source
    distinguishes that; a workload that is not in it stands for any number.
    `notes` are the assumptions and doubts that a reader of results must know.
    """

    name: str
    gpu_type: str
    profiles: Mapping[str, SoloProfile] = field(converter=_fixed_profiles)
    measured: Mapping[SharedKey, float] = field(converter=_fixed_ratios)
    notes: tuple[str, ...] = ()
    iteration_rates_hz: Mapping[str, float] = field(factory=_no_rates, converter=_fixed_rates)
    measured_gpus: Mapping[str, int] = field(factory=_no_counts, converter=_fixed_counts)

    def __attrs_post_init__(self) -> None:
        for workload, profile in self.profiles.items():
            if profile.gpu_type != self.gpu_type:
                raise InputError(
                    f"the profile of {workload!r} is for {profile.gpu_type!r},"
                    f" not {self.gpu_type!r}",
                    where=self.name,
                )
        for (workload, others), ratio in self.measured.items():
            if tuple(sorted(others)) != others or not others:
                raise InputError(f"co-workloads must be sorted: {others!r}", where=self.name)
            for member in (workload, *others):
                self.profile(member)
            if not (math.isfinite(ratio) and ratio > 0):
                raise InputError(f"a ratio must be above 0, not {ratio!r}", where=self.name)

    @property
    def workloads(self) -> tuple[str, ...]:
        """The names of all workloads, sorted."""
        return tuple(sorted(self.profiles))

    def profile(self, workload: str) -> SoloProfile:
        """Give a workload's solo profile; an unknown one is an InputError with the known."""
        found = self.profiles.get(workload)
        if found is None:
            raise InputError(
                f"unknown workload {workload!r} on {self.gpu_type};"
                f" known: {listed(self.profiles, wanted=workload)}"
            )
        return found

    def workloads_for(self, gpus: int) -> tuple[str, ...]:
        """Give the workloads that stand for a job of so many GPUs, sorted.

        Where the source measured per number of GPUs: those measured on `gpus`,
        else those measured on most.
        """
        counts = {self.measured_gpus.get(workload, gpus) for workload in self.profiles}
        wanted = gpus if gpus in counts else max(counts, default=gpus)
        return tuple(w for w in self.workloads if self.measured_gpus.get(w, gpus) == wanted)

    def observations(self) -> tuple[Observation, ...]:
        """Give every measured slowdown as evidence from before the start (t = 0).

        The job is named after the table. Where no epoch time is known the epoch
        is nominal (1,404 s); the ratio, which is what counts, is as measured.
        """
        found: list[Observation] = []
        for (workload, others), ratio in sorted(self.measured.items()):
            solo_s = self.profiles[workload].epoch_s or NOMINAL_EPOCH_S
            found.append(
                Observation(
                    t_s=0.0,
                    job_id=f"table:{self.name}",
                    workload=workload,
                    co_workloads=others,
                    gpu_type=self.gpu_type,
                    epoch_s=solo_s * ratio,
                    solo_epoch_s=solo_s,
                    ratio=ratio,
                )
            )
        return tuple(found)
