"""What the simulated world costs and how it is disturbed."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from eaco_core import _validate as check


@frozen
class SimSettings:
    """Times are assumptions; all can be set.

    `start_s`: from the command to a first start until it computes; `restart_s`: the
    same when it resumes from a checkpoint; `checkpoint_s`: from the end of its last
    epoch until a stopped job has written its checkpoint and left its GPUs.

    `noise_sigma`: spread (of the logarithm) of the time of one epoch around its mean,
    drawn per (seed, job, epoch). `node_mtbf_s`, `gpu_mtbf_s`: mean time between
    failures of a node that is awake, and of a GPU; None = they never fail. A lost
    node is back after `repair_s`, with all its GPUs. A node with a broken GPU is taken
    out for repair as soon as it is found empty, which is looked at every `repair_s`, ten
    times at most.

    `policy` and `in_sample` (did the policy know the truth beforehand?) only label
    the result.
    """

    seed: int = 0
    start_s: float = field(default=10.0, validator=check.not_negative)
    restart_s: float = field(default=30.0, validator=check.not_negative)
    checkpoint_s: float = field(default=10.0, validator=check.not_negative)
    noise_sigma: float = field(default=0.0, validator=check.not_negative)
    node_mtbf_s: float | None = field(default=None, validator=optional(check.positive))
    gpu_mtbf_s: float | None = field(default=None, validator=optional(check.positive))
    repair_s: float = field(default=3600.0, validator=check.positive)
    policy: str = ""
    in_sample: bool = False
