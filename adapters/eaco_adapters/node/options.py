"""The limits of a node runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen
from attrs.validators import gt

from eaco_adapters.launch import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@frozen
class RunnerOptions:
    """Limits of a runner.

    - `poll_s`: how often the files of running attempts are looked at.
    - `start_timeout_s`: how long a shim may take until the job runs.
    - `kill_limit_s`: how long after its grace a kill may take before it raises.
    - `gpu_cpus`: CPU cores that stand for a GPU (a virtual GPU): its jobs are pinned to them.
    - `checkpoint_root`: where the checkpoint folders of jobs are; None: under the root of the
      runner. Give a shared folder if jobs may go on at another node.
    - `progress_bytes_max`: a larger progress file is cut once it was read.
    - `ends_leftovers`: whether what a job leaves behind is ended, `kill_grace_s` of its launch
      after its first process; False: its GPUs stay held until it ends by itself.
    - `use_cgroups`: put each attempt into a cgroup of its own where that is possible.
    - `mps_pipe_dir`: folder of the node's CUDA MPS daemon, for jobs that want it.
    """

    poll_s: float = field(default=0.1, validator=gt(0))
    start_timeout_s: float = field(default=20.0, validator=gt(0))
    kill_limit_s: float = field(default=30.0, validator=gt(0))
    gpu_cpus: Mapping[str, tuple[int, ...]] = field(factory=dict[str, tuple[int, ...]])
    checkpoint_root: Path | None = None
    progress_bytes_max: int = field(default=16 * MIB, validator=gt(0))
    ends_leftovers: bool = True
    use_cgroups: bool = True
    mps_pipe_dir: str | None = None
