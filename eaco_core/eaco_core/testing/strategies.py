"""Hypothesis strategies for clusters, jobs, rules and the habits of a hostile world.

Small numbers on purpose: few workloads and round times, so that jobs meet each other
again, events coincide and counterexamples are short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs
from hypothesis import strategies as st

from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.jobs import CheckpointScope, JobSpec, ShareWith, SoloProfile
from eaco_core.rules import GIB, Rules
from eaco_core.testing.world import Habits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

_T = TypeVar("_T")
_U = TypeVar("_U")
GPU_TYPES = ("a100", "v100")
WORKLOADS = ("bert", "lstm", "resnet", "vgg")
LABELS = (("zone", "a"), ("zone", "b"))


def _seldom(draw: DrawFn) -> bool:
    return draw(st.sampled_from([False] * 9 + [True]))


def _mostly(draw: DrawFn, usual: Sequence[_T], rare: Sequence[_U]) -> _T | _U:
    """Draw one of the usual values, one time in ten a rare one."""
    return draw(st.sampled_from(rare)) if _seldom(draw) else draw(st.sampled_from(usual))


@st.composite
def nodes(draw: DrawFn, node_id: str, gpu_types: tuple[str, ...] = GPU_TYPES) -> NodeSpec:
    """Draw a node of 1-4 GPUs, mostly of one type; memory may be unknown."""
    gpu_type = draw(st.sampled_from(gpu_types))
    mem_gib = _mostly(draw, [16, 32], [None, 8])
    mixed = _seldom(draw)
    gpus: list[GpuSpec] = []
    for i in range(draw(st.integers(1, 4))):
        other = mixed and i > 0
        kind = draw(st.sampled_from(GPU_TYPES)) if other else gpu_type
        gib = draw(st.sampled_from([8, 16])) if other else mem_gib
        gpus.append(GpuSpec(f"{node_id}-{i}", kind, None if gib is None else gib * GIB))
    return NodeSpec(
        node_id,
        tuple(gpus),
        labels=(draw(st.sampled_from(LABELS)),),
        can_sleep=draw(st.booleans()),
        wake_s=draw(st.sampled_from([10.0, 30.0, 60.0])),
    )


@st.composite
def clusters(draw: DrawFn, most_nodes: int = 4) -> tuple[NodeSpec, ...]:
    """Draw a cluster of 1-4 nodes called n0, n1 and so on, of one type or two."""
    count = draw(st.sampled_from([n for n in (1, 2, 2, 3, 4) if n <= most_nodes]))
    types = draw(st.sampled_from([("v100",), ("v100",), GPU_TYPES]))
    return tuple(draw(nodes(f"n{i}", types)) for i in range(count))


@st.composite
def profiles(draw: DrawFn, gpu_type: str, epoch_s: float) -> SoloProfile:
    """Draw what a job does alone; each number may be unknown."""
    mem_gib = _mostly(draw, [1, 2, 4], [None, 6, 12])
    return SoloProfile(
        gpu_type,
        epoch_s=_mostly(draw, [epoch_s], [epoch_s, None]),
        util_ratio=_mostly(draw, [0.1, 0.2, 0.3, 0.4, 0.6], [None, 0.9, 0.0, 1.0]),
        mem_busy_ratio=_mostly(draw, [0.05, 0.1, 0.3], [None, 0.8]),
        peak_mem_bytes=None if mem_gib is None else mem_gib * GIB,
    )


@st.composite
def jobs(draw: DrawFn, job_id: str, now_s: float, most_gpus: int = 6) -> JobSpec:
    """Draw a job that is submitted now; its deadline is tight, lax, or none."""
    epochs = draw(st.sampled_from([20, 12, 8, 4, 2, 1]))
    epoch_s = draw(st.sampled_from([100.0, 100.0, 40.0, 60.0, 12.0, 400.0]))
    types = _mostly(draw, [GPU_TYPES], [("v100",), ("a100",)])
    speed = draw(st.sampled_from([1.0, 2.0]))
    slack = draw(st.sampled_from([None, None, 20.0, 3.0, 2.0, 1.7, 1.5, 1.3, 0.5]))
    sizes = [n for n in (1, 1, 1, 2, 2, 3, 4, 5, 6) if n <= most_gpus]
    return JobSpec(
        job_id=job_id,
        gpus=draw(st.sampled_from(sizes)),
        submit_s=now_s,
        epochs=_mostly(draw, [epochs], [epochs, None]),
        workload=_mostly(draw, WORKLOADS, [None]),
        profiles=tuple(draw(profiles(t, epoch_s / (speed if t == "a100" else 1.0))) for t in types),
        deadline_s=None if slack is None else now_s + slack * epochs * epoch_s,
        priority=_mostly(draw, [0, 0, 5], [100]),
        exclusive=_mostly(draw, [False], [False, True]),
        user=_mostly(draw, [""], ["ann", "bob"]),
        group=_mostly(draw, [""], ["lab"]),
        share_with=_mostly(draw, [ShareWith.ANY, ShareWith.SAME_USER], list(ShareWith)),
        gpu_types=_mostly(draw, [None], [None, types]),
        node_selector=_mostly(draw, [()], [(label,) for label in LABELS]),
        checkpoint_scope=_mostly(draw, [CheckpointScope.SHARED], list(CheckpointScope)),
        max_slowdown_ratio=draw(st.sampled_from([None, None, 1.2, 3.0])),
        max_restarts=draw(st.sampled_from([None, 1])),
    )


@st.composite
def habits(draw: DrawFn) -> Habits:
    """Draw how hostile the world is."""

    def some(choices: Sequence[_T]) -> tuple[_T, ...]:
        return tuple(draw(st.lists(st.sampled_from(choices), min_size=1, max_size=4)))

    return Habits(
        factors=some([1.0, 0.9, 1.05, 1.1, 1.2, 1.37, 1.6, 2.0]),
        alone_factors=some([1.0, 1.0, 0.97, 1.02]),
        start_s=some([1.0, 1.0, 0.0, 7.5, None]),
        wake=some([1.0, 0.5, 1.9, 2.5, None, float("inf")]),
        stop_obeyed=some([True, True, False]),
        late_s=some([0.0, 0.0, 0.0, 0.5, 30.0, 130.0]),
        twice=some([False, False, False, True]),
        backwards=some([False, True]),
        split_release=some([False, True]),
        clean=some([True, True, True, False]),
        release_s=some([1.0, 0.0, 45.0]),
    )


@st.composite
def rule_sets(draw: DrawFn, base: Rules) -> Rules:
    """Draw parameters around those of a policy, with short waits so that they are met."""
    starving = base.starvation_s < float("inf")
    changed = attrs.evolve(
        base,
        starvation_s=draw(st.sampled_from([3600.0, 3600.0, 600.0, 60.0]))
        if starving
        else float("inf"),
        window_max_restarts=draw(st.sampled_from([3, 0, 1])),
        lost_after_s=draw(st.sampled_from([300.0, 60.0])),
        idle_sleep_s=draw(st.sampled_from([300.0, 30.0])),
        min_awake_s=draw(st.sampled_from([600.0, 30.0])),
    )
    if not starving:
        return changed
    return attrs.evolve(
        changed,
        max_degree=draw(st.sampled_from([3, 2, 4])),
        max_undos=draw(st.sampled_from([2, 1])),
        explore=draw(st.sampled_from([False, False, True])),
        order=draw(st.sampled_from(["utilisation", "utilisation", "objective"])),
        late_jobs=draw(st.sampled_from(["share", "share", "exclusive", "refuse"])),
    )
