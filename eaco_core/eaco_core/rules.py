"""The parameters of the rules R1-R18, each with its default."""

from __future__ import annotations

import math
from typing import Literal

from attrs import field, frozen

from eaco_core import _validate as check
from eaco_core.errors import InputError

GIB = 1024**3


def _not_nan(_instance: object, _attribute: object, value: float) -> None:
    if math.isnan(value) or value < 0:
        raise InputError(f"starvation_s must be at least 0 (or inf), not {value!r}")


@frozen
class Rules:
    """Every number behind the rules; names end in their unit, the rule is beside each."""

    exclusive_priority: int = field(default=100, validator=check.whole)  # R1
    util_threshold_ratio: float = field(default=0.85, validator=check.not_negative)  # R2
    mem_busy_threshold_ratio: float = field(default=0.85, validator=check.not_negative)  # R2
    headroom_bytes: int = field(default=GIB, validator=check.not_negative)  # R2
    headroom_ratio: float = field(default=0.05, validator=check.ratio)  # R2
    max_degree: int = field(default=3, validator=check.count)  # R2
    util_window_s: float = field(default=60.0, validator=check.positive)  # R2
    sample_max_age_s: float = field(default=30.0, validator=check.positive)  # R2
    order: Literal["utilisation", "objective"] = field(  # R4
        default="utilisation", validator=check.one_of("utilisation", "objective")
    )
    alpha: float = field(default=0.5, validator=check.ratio)  # R4, paper Eq 1
    observed_margin: float = field(default=1.05, validator=check.positive)  # R5, R10
    law_margin: float = field(default=1.25, validator=check.positive)  # R5
    min_families: int = field(default=5, validator=check.count)  # R5
    explore: bool = field(default=False, validator=check.flag)  # R5
    max_slowdown_ratio: float = field(default=1.5, validator=check.positive)  # R6
    min_throughput_sum: float = field(default=1.1, validator=check.not_negative)  # R7
    # R8: a late job may share; or runs alone; or no set is shared in which anyone is late.
    late_jobs: Literal["share", "exclusive", "refuse"] = field(
        default="share", validator=check.one_of("share", "exclusive", "refuse")
    )
    window_min_s: float = field(default=30.0, validator=check.not_negative)  # R9
    window_max_restarts: int = field(default=3, validator=check.not_negative)  # R9
    keep_throughput_sum: float = field(default=1.0, validator=check.not_negative)  # R10
    kill_factor: float = field(default=2.0, validator=check.positive)  # R10
    kill_slack_s: float = field(default=60.0, validator=check.not_negative)  # R10
    max_undos: int = field(default=2, validator=check.not_negative)  # R10
    starvation_s: float = field(default=3600.0, validator=_not_nan)  # R11
    max_restarts: int = field(default=0, validator=check.not_negative)  # R14
    max_start_failures: int = field(default=3, validator=check.count)  # R14
    lost_after_s: float = field(default=300.0, validator=check.not_negative)  # R14
    sleep: bool = field(default=True, validator=check.flag)  # R15
    idle_sleep_s: float = field(default=300.0, validator=check.not_negative)  # R15
    min_awake_s: float = field(default=600.0, validator=check.not_negative)  # R15
    wake_timeout_factor: float = field(default=2.0, validator=check.positive)  # R15
    relook_s: float = field(default=900.0, validator=check.positive)
