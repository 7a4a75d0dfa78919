"""The state of a scheduler as plain immutable data, for checkers, tests and tools.

`SchedulerMachine.snapshot()` makes one. Any other scheduler can make one too, and
have it checked by `eaco_core.invariants`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_core.cluster import GpuSpec, NodeSpec, NodeState
    from eaco_core.jobs import JobSpec, JobState
    from eaco_core.rules import Rules


@frozen
class JobSnapshot:
    """One job: `gpus` are those it holds, `attempt` counts its placements from 1."""

    job: JobSpec
    state: JobState
    attempt: int
    gpus: tuple[str, ...]
    epochs_done: int
    undos: int
    exclusive: bool


@frozen
class GpuSnapshot:
    """One GPU and the jobs that hold it, in order of placement."""

    gpu: GpuSpec
    node_id: str
    residents: tuple[str, ...]
    up: bool
    drained: bool


@frozen
class WindowSnapshot:
    """An open window (rule R9): the newcomer, whom it affects, which GPUs it locks."""

    newcomer_id: str
    affected: tuple[str, ...]
    locked_gpus: tuple[str, ...]


@frozen
class SchedulerState:
    """Everything that the state predicates need. `seq` counts accepted events from 1."""

    now_s: float
    seq: int
    term: int
    rules: Rules
    submitted: int
    jobs: Mapping[str, JobSnapshot]
    gpus: Mapping[str, GpuSnapshot]
    nodes: Mapping[str, tuple[NodeSpec, NodeState]]
    queue: tuple[str, ...]
    windows: tuple[WindowSnapshot, ...]
