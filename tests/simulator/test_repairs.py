"""Nodes with broken GPUs are repaired, so that jobs that need all of them end."""

from __future__ import annotations

from eaco_adapters.simulator import GroundTruth, SimSettings, simulate
from eaco_adapters.traces import WorkloadSettings, generate_trace
from eaco_core import GpuSpec, NodeSpec, SchedulerMachine, policy_named
from eaco_predictors.profiles import paper_profiles


def test_broken_gpus_are_replaced_so_that_every_job_ends() -> None:
    table = paper_profiles()
    jobs = generate_trace(table, WorkloadSettings(jobs=6, nodes=1, epochs_max=12)).jobs
    gpus = tuple(GpuSpec(f"gpu-{i}", "v100", 16 * 1024**3) for i in range(8))
    result = simulate(
        jobs=jobs,
        nodes=[NodeSpec("node-1", gpus, can_sleep=True)],
        machine=SchedulerMachine(policy_named("fifo")),
        truth=GroundTruth(table, 1.035),
        power=None,
        settings=SimSettings(gpu_mtbf_s=400_000.0),
    )
    assert all(job.failure is None for job in result.jobs)
    assert max(job.attempts for job in result.jobs) > 1
