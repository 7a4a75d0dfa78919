"""What a cluster is: nodes and their GPUs, and readings from them."""

from __future__ import annotations

import enum

from attrs import field, frozen
from attrs.validators import optional

from eaco_core import _validate as check


class NodeState(enum.Enum):
    """Whether a node can run jobs now (rule R15)."""

    AWAKE = "awake"
    ASLEEP = "asleep"
    WAKING = "waking"
    FALLING_ASLEEP = "falling_asleep"
    OUT = "out"


@frozen
class GpuSpec:
    """One GPU (or MIG instance, which is a GPU with its own memory; rule R3).

    `gpu_id` is unique in the cluster: a UUID, never an index.
    """

    gpu_id: str = field(validator=check.name)
    gpu_type: str = field(validator=check.name)
    mem_bytes: int | None = field(default=None, validator=optional(check.not_negative))


@frozen
class NodeSpec:
    """One node. `can_sleep`: a controller exists that can put it to sleep and wake it.

    `wake_s` is the time that waking takes; the wake timeout is twice this (R15).
    """

    node_id: str = field(validator=check.name)
    gpus: tuple[GpuSpec, ...] = field(validator=check.tuple_of(GpuSpec, empty=False))
    labels: tuple[tuple[str, str], ...] = ()
    can_sleep: bool = field(default=False, validator=check.flag)
    wake_s: float = field(default=60.0, validator=check.not_negative)


@frozen
class NodeReading:
    """What was measured on one GPU at one time. `None` = the hardware does not say.

    `foreign`: a process that this scheduler did not start uses the GPU.
    """

    gpu_id: str = field(validator=check.name)
    received_s: float = field(validator=check.finite)
    util_ratio: float | None = field(default=None, validator=optional(check.ratio))
    mem_busy_ratio: float | None = field(default=None, validator=optional(check.ratio))
    mem_used_bytes: int | None = field(default=None, validator=optional(check.not_negative))
    power_w: float | None = field(default=None, validator=optional(check.not_negative))
    foreign: bool | None = None
