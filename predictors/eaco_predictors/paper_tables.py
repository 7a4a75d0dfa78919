"""Tables 1-4 of the EaCO paper as data: four CNNs alone and in six co-located sets.

Source: Haghshenas and Hashemi, "EaCO", arXiv 2412.08294v1 (11 December 2024),
section 3, Tables 1-4. Node: 8 x V100, 2 x Xeon Gold 6240; every job on all 8 GPUs;
ImageNet; PyTorch's `examples/imagenet`. Repetitions and variance are not stated.

The published numbers contradict themselves in places (calculated from the tables):
- the text's overheads of "3 to 7.8 %" and "19 %" are relative to the *shared* time;
  against solo time, as here, they are 3.0-8.4 % and 24.5 %;
- the energy of the four-job set is power x makespan (48.2 h), those of the other
  sets power x mean JCT;
- section 6.2 gives ResNet-18 the solo run time (36.13 h) that Table 1 gives VGG-16;
- Table 1's epoch column is rounded to 0.01 h; JCT / 90 epochs is more precise, and
  90 epochs, the default of the PyTorch example, fits all four rows.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from attrs import frozen

from eaco_core.errors import InputError
from eaco_core.jobs import SoloProfile
from eaco_core.rules import GIB
from eaco_predictors.profile_table import ProfileTable, SharedKey

if TYPE_CHECKING:
    from collections.abc import Mapping

PAPER_GPU_TYPE = "v100"
PAPER_EPOCHS = 90
PAPER_GPU_MEM_BYTES = 16 * GIB
"""The paper does not state the memory of its V100s: 16 GiB is an assumption."""


@frozen
class SoloEnergyRow:
    """One row of Table 1: a job alone on the node."""

    label: str
    workload: str
    avg_power_w: float
    energy_kwh: float
    jct_h: float
    epoch_h: float


@frozen
class UtilisationRow:
    """One row of Table 2 or 4, in percent; "mem" is memory-interface busy time."""

    workloads: tuple[str, ...]
    avg_mem_percent: float
    max_mem_percent: float
    avg_gpu_percent: float
    max_gpu_percent: float


@frozen
class SetEnergyRow:
    """One row of Table 3: a co-located set. The epoch of the four-job set is not given."""

    workloads: tuple[str, ...]
    avg_power_w: float
    energy_kwh: float
    avg_jct_h: float
    avg_epoch_h: float | None


_J1, _J2, _J3, _J4 = "alexnet", "resnet18", "resnet50", "vgg16"

TABLE_1: tuple[SoloEnergyRow, ...] = (
    SoloEnergyRow("J1", _J1, 712, 24.73, 34.76, 0.39),
    SoloEnergyRow("J2", _J2, 959, 33.69, 35.13, 0.39),
    SoloEnergyRow("J3", _J3, 1330, 47.87, 36.01, 0.40),
    SoloEnergyRow("J4", _J4, 1533, 55.38, 36.13, 0.40),
)

TABLE_2: tuple[UtilisationRow, ...] = (
    UtilisationRow((_J1,), 1.73, 4.21, 4.72, 11),
    UtilisationRow((_J2,), 6.07, 14.63, 11.17, 27.29),
    UtilisationRow((_J3,), 22.29, 43.92, 36.61, 72.04),
    UtilisationRow((_J4,), 30.03, 51.29, 48.01, 81.5),
)

TABLE_3: tuple[SetEnergyRow, ...] = (
    SetEnergyRow((_J1, _J3), 1390, 50.93, 36.63, 0.407),
    SetEnergyRow((_J1, _J4), 1506, 54.97, 36.51, 0.406),
    SetEnergyRow((_J2, _J4), 1644, 60.84, 37.01, 0.411),
    SetEnergyRow((_J1, _J2, _J3), 1541, 59.01, 38.28, 0.425),
    SetEnergyRow((_J1, _J2, _J4), 1713, 65.55, 38.26, 0.425),
    SetEnergyRow((_J1, _J2, _J3, _J4), 1944, 93.66, 44.21, None),
)

TABLE_4: tuple[UtilisationRow, ...] = (
    UtilisationRow((_J1, _J3), 22.66, 46.25, 40.25, 76.67),
    UtilisationRow((_J1, _J4), 31.26, 52.96, 55.16, 87.75),
    UtilisationRow((_J2, _J4), 34.85, 52.54, 61.06, 93.46),
    UtilisationRow((_J1, _J2, _J3), 27.77, 55.88, 52.24, 91.88),
    UtilisationRow((_J1, _J2, _J4), 35.83, 52.75, 66.99, 93.96),
    UtilisationRow((_J1, _J2, _J3, _J4), 43.46, 52.54, 96.64, 100),
)

PAPER_NOTES: tuple[str, ...] = (
    "profiles: EaCO paper, arXiv 2412.08294, Tables 1-4 (four CNNs on 8 x V100)",
    "epoch times are Table 1's JCT / 90 epochs, more precise than its rounded epoch column",
    "peak memory is Table 2's Max mem x 16 GiB: an assumption, the paper states no memory size",
    "Avg mem is taken as memory-busy time",
    (
        "slowdowns of the six published sets are average JCT / mean solo JCT, the same for every"
        " member, because only averages are published; relative to solo time (the paper's own"
        " percentages divide by the shared time)"
    ),
)


def published_node_powers_w() -> Mapping[tuple[str, ...], float]:
    """Give the ten published average node powers (W) by sorted workloads (Tables 1 and 3)."""
    powers: dict[tuple[str, ...], float] = {
        (row.workload,): float(row.avg_power_w) for row in TABLE_1
    }
    powers |= {row.workloads: float(row.avg_power_w) for row in TABLE_3}
    return MappingProxyType(powers)


def published_set_ratios() -> Mapping[tuple[str, ...], float]:
    """Give shared / solo time of the six published sets: average JCT / mean solo JCT."""
    solo_h = {row.workload: row.jct_h for row in TABLE_1}
    return MappingProxyType(
        {
            row.workloads: row.avg_jct_h
            / (sum(solo_h[name] for name in row.workloads) / len(row.workloads))
            for row in TABLE_3
        }
    )


def paper_profiles(gpu_type: str = PAPER_GPU_TYPE) -> ProfileTable:
    """Give the paper's tables as a profile table; only V100s were measured."""
    if gpu_type != PAPER_GPU_TYPE:
        raise InputError(
            f"unknown GPU type {gpu_type!r}; the paper's profiles know: {PAPER_GPU_TYPE}"
        )
    utilisation = {row.workloads[0]: row for row in TABLE_2}
    profiles = {
        row.workload: SoloProfile(
            gpu_type=gpu_type,
            epoch_s=row.jct_h * 3600 / PAPER_EPOCHS,
            util_ratio=utilisation[row.workload].avg_gpu_percent / 100,
            mem_busy_ratio=utilisation[row.workload].avg_mem_percent / 100,
            peak_mem_bytes=round(
                utilisation[row.workload].max_mem_percent / 100 * PAPER_GPU_MEM_BYTES
            ),
        )
        for row in TABLE_1
    }
    measured: dict[SharedKey, float] = {}
    for workloads, ratio in published_set_ratios().items():
        for index, workload in enumerate(workloads):
            measured[workload, workloads[:index] + workloads[index + 1 :]] = ratio
    return ProfileTable("paper", gpu_type, profiles, measured, PAPER_NOTES)
