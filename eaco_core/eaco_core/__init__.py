"""The decision core of eaco: pure, synchronous, and free of everything but attrs.

Feed events into a `SchedulerMachine` and carry out the effects that come back; or
call `find_candidates`, `predict_jct` and `verify` from a scheduler of your own.
"""

from __future__ import annotations

from eaco_core._windows import Judgement, verify
from eaco_core.admission import predict_jct, refusal
from eaco_core.board import Board, Running
from eaco_core.candidates import find_candidates
from eaco_core.cluster import GpuSpec, NodeReading, NodeSpec, NodeState
from eaco_core.errors import (
    ActionRefused,
    EacoError,
    EnvironmentFault,
    EventRefused,
    InputError,
    InternalError,
)
from eaco_core.evidence import NoPredictor, OverflowLaw
from eaco_core.jobs import (
    CheckpointScope,
    FailureReason,
    JobSpec,
    JobState,
    ShareWith,
    SoloProfile,
)
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import POLICIES, policy_named
from eaco_core.rules import Rules
from eaco_core.snapshot import SchedulerState

__all__ = [
    "POLICIES",
    "ActionRefused",
    "Board",
    "CheckpointScope",
    "EacoError",
    "EnvironmentFault",
    "EventRefused",
    "FailureReason",
    "GpuSpec",
    "InputError",
    "InternalError",
    "JobSpec",
    "JobState",
    "Judgement",
    "NoPredictor",
    "NodeReading",
    "NodeSpec",
    "NodeState",
    "OverflowLaw",
    "Rules",
    "Running",
    "SchedulerMachine",
    "SchedulerState",
    "ShareWith",
    "SoloProfile",
    "find_candidates",
    "policy_named",
    "predict_jct",
    "refusal",
    "verify",
]
