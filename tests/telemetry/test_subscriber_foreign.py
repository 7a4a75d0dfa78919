"""Processes that are not ours: seen where the device lists them, and told when they change."""

from __future__ import annotations

from eaco_telemetry.samples import PARTIAL_PROCESSES, GpuSample, NodeSample, ProcessSample
from eaco_telemetry.subscriber import ForeignProcesses, ForeignWatch, foreign_processes

OURS, STRANGER = ProcessSample(7, name="python"), ProcessSample(9, name="miner")


def _node(*gpus: GpuSample) -> NodeSample:
    return NodeSample("n1", "s1", seq=0, wall_ns=1, monotonic_ns=2, gpus=gpus)


def test_each_gpu_says_who_is_foreign_and_whether_that_is_all() -> None:
    sample = _node(
        GpuSample("GPU-a", "nvidia", processes=(OURS, STRANGER)),
        GpuSample("GPU-b", "nvidia", processes=(OURS,)),
        GpuSample("GPU-c", "nvidia", missing={"processes": "WSL"}),
        GpuSample(
            "GPU-d",
            "amd",
            processes=(OURS,),
            flags=(PARTIAL_PROCESSES,),
            missing={"processes": "not root"},
        ),
        GpuSample("GPU-e", "amd", processes=(STRANGER,), flags=(PARTIAL_PROCESSES,)),
        GpuSample("GPU-f", "amd"),
    )
    assert foreign_processes(sample, [7]) == (
        ForeignProcesses("GPU-a", (STRANGER,)),
        ForeignProcesses("GPU-b"),
        ForeignProcesses("GPU-c", certain=False, reason="WSL"),
        ForeignProcesses("GPU-d", certain=False, reason="not root"),
        ForeignProcesses(
            "GPU-e", (STRANGER,), certain=False, reason="the list of processes may lack some"
        ),
        ForeignProcesses("GPU-f", certain=False, reason="the device lists no processes"),
    )


def test_a_watch_tells_what_changed_and_forgets_gpus_that_are_gone() -> None:
    watch = ForeignWatch()
    with_stranger = _node(GpuSample("GPU-a", "nvidia", processes=(OURS, STRANGER)))
    assert watch.update(with_stranger, [7]) == (("GPU-a", (STRANGER,), ()),)
    assert watch.update(with_stranger, [7]) == ()
    assert watch.update(with_stranger, [7, 9]) == (("GPU-a", (), (STRANGER,)),), "it is ours now"
    for number in range(100):
        other = _node(GpuSample(f"GPU-{number}", "nvidia", processes=(STRANGER,)))
        assert len(watch.update(other, [])) == 1
    assert len(watch._seen) == 1
