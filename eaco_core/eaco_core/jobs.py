"""What a job is: its description, its state, and what it does alone on its GPUs."""

from __future__ import annotations

import enum

from attrs import field, frozen
from attrs.validators import optional

from eaco_core import _validate as check


class JobState(enum.Enum):
    """Where a job is in its life. The legal moves are `eaco_core.states.MOVES`."""

    QUEUED = "queued"
    STARTING = "starting"
    OBSERVING = "observing"
    SETTLED = "settled"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ShareWith(enum.Enum):
    """With whose jobs a job accepts to share a GPU (rule R2)."""

    ANY = "any"
    SAME_GROUP = "same_group"
    SAME_USER = "same_user"
    NONE = "none"


class CheckpointScope(enum.Enum):
    """From where the last checkpoint of a job can be read back (rules R2, R14)."""

    SHARED = "shared"
    NODE = "node"
    NONE = "none"


class FailureReason(enum.Enum):
    """Why a job ended without finishing (rules R13, R14)."""

    EXIT = "exit"
    OUT_OF_MEMORY = "out_of_memory"
    CO_TENANT = "co_tenant"
    NODE_LOST = "node_lost"


@frozen
class SoloProfile:
    """What one workload does alone on GPUs of one type. `None` = not measured.

    `epoch_s`: seconds for one epoch. `util_ratio`: mean share of time in which a
    kernel is active on each GPU. `mem_busy_ratio`: the same for its memory
    interface. `peak_mem_bytes`: highest memory on each GPU.
    """

    gpu_type: str = field(validator=check.name)
    epoch_s: float | None = field(default=None, validator=optional(check.positive))
    util_ratio: float | None = field(default=None, validator=optional(check.ratio))
    mem_busy_ratio: float | None = field(default=None, validator=optional(check.ratio))
    peak_mem_bytes: int | None = field(default=None, validator=optional(check.not_negative))


@frozen
class JobSpec:
    """A job as its user describes it. It never changes after submission.

    `epochs` is None when the job does not know; it then always runs alone.
    `deadline_s` and `submit_s` are scheduler seconds; None = no deadline.
    `workload` names what the job trains (model, data, batch size): jobs of one
    workload are alike for prediction; None = unlike any other.
    `priority` of 100 or more means exclusive GPUs, and first (rule R1).
    """

    job_id: str = field(validator=check.name)
    gpus: int = field(validator=check.count)
    submit_s: float = field(validator=check.not_negative)
    epochs: int | None = field(default=None, validator=optional(check.count))
    workload: str | None = field(default=None, validator=optional(check.name))
    profiles: tuple[SoloProfile, ...] = field(default=(), validator=check.tuple_of(SoloProfile))
    deadline_s: float | None = field(default=None, validator=optional(check.finite))
    priority: int = field(default=0, validator=check.whole)
    exclusive: bool = field(default=False, validator=check.flag)
    user: str = field(default="", validator=check.text)
    group: str = field(default="", validator=check.text)
    share_with: ShareWith = field(
        default=ShareWith.SAME_USER, validator=check.instance_of(ShareWith)
    )
    gpu_types: tuple[str, ...] | None = field(
        default=None, validator=optional(check.tuple_of(str, empty=False))
    )
    node_selector: tuple[tuple[str, str], ...] = ()
    checkpoint_scope: CheckpointScope = field(
        default=CheckpointScope.SHARED, validator=check.instance_of(CheckpointScope)
    )
    max_slowdown_ratio: float | None = field(default=None, validator=optional(check.slowdown))
    max_restarts: int | None = field(default=None, validator=optional(check.not_negative))

    def profile_on(self, gpu_type: str) -> SoloProfile | None:
        """Give the solo profile on `gpu_type`, or None when there is none."""
        for profile in self.profiles:
            if profile.gpu_type == gpu_type:
                return profile
        return None
