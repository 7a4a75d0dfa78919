"""The assumptions of an experiment, one plain sentence each: they stand under every result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_adapters.words import counted
from eaco_core.rules import GIB

if TYPE_CHECKING:
    from eaco_adapters.experiment.config import ExperimentConfig
    from eaco_adapters.traces import Trace
    from eaco_telemetry.power import DefaultNodePower


def cluster_notes(config: ExperimentConfig) -> tuple[str, ...]:
    """Say what is assumed about the nodes."""
    mem_bytes = config.mem_bytes()
    if mem_bytes is None:
        mem = f"the memory of a {config.gpu_type} is not known here (--gpu-mem-gib sets it)"
    else:
        source = "as given" if config.gpu_mem_bytes is not None else "an assumption"
        mem = f"every {config.gpu_type} has {mem_bytes / GIB:g} GiB of memory: {source}"
    if not config.no_sleep:
        sleep = "all nodes start asleep; unused ones go to sleep alike under every policy"
    else:
        sleep = (
            f"nodes never sleep under {', '.join(config.no_sleep)}; under every other policy they"
            " start asleep, and go to sleep when unused"
        )
    return (mem, sleep, "jobs without a user belong to one user, so they may share GPUs")


def world_notes(config: ExperimentConfig) -> tuple[str, ...]:
    """Say what is assumed about what happens to jobs."""
    slowdown = (
        "the true slowdown of a set that nobody measured is max(1, sum of solo utilisations) x"
        f" {config.interference_ratio:g}: an assumption; without utilisation it cannot run"
    )
    times = (
        f"a job needs {config.start_s:g} s to start, {config.restart_s:g} s to resume and"
        f" {config.checkpoint_s:g} s to stop with a checkpoint: assumptions"
    )
    notes = [slowdown, times]
    if config.noise_sigma:
        notes.append(f"epoch times scatter with sigma {config.noise_sigma:g} (of the logarithm)")
    if config.node_mtbf_s is not None:
        notes.append(
            f"a node that is awake fails every {config.node_mtbf_s:g} s on average, by the seed,"
            f" and is back after {config.repair_s:g} s"
        )
    if config.gpu_mtbf_s is not None:
        notes.append(
            f"a GPU fails every {config.gpu_mtbf_s:g} s on average, by the seed; its node is taken"
            f" out for {config.repair_s:g} s once it is empty, and comes back whole"
        )
    return tuple(notes)


def power_notes(
    config: ExperimentConfig, trace: Trace, power: DefaultNodePower | None
) -> tuple[str, ...]:
    """Say where the joules come from, or why there are none."""
    assumed = (
        f"where no GPU utilisation is known it is assumed to be {config.assume_gpu_util_ratio};"
        " energy, sharing and slowdown follow from that"
    )
    notes = [] if config.assume_gpu_util_ratio is None else [assumed]
    unknown = unknown_util(trace, config.gpu_type)
    if config.power_model == "none":
        notes.append("the energy is not known: no power model was wanted")
    elif unknown:
        notes.append(
            f"the energy is not known: {unknown} of {counted(len(trace.jobs), 'job')} have no GPU"
            " utilisation (--assume-gpu-util assumes one)"
        )
    if power is None:
        return tuple(notes)
    given = "" if config.idle_w is None else "; its idle power as given"
    notes.append(f"node power is a model, fitted to a server with 8 V100 (459 W idle){given}")
    notes.append(
        f"a node asleep draws {config.sleep_w:g} W, and wakes in {config.wake_s:g} s at its idle"
        " power: assumptions"
    )
    return tuple(notes)


def unknown_util(trace: Trace, gpu_type: str) -> int:
    """Count the jobs whose GPU utilisation is not known."""
    profiles = [job.profile_on(gpu_type) for job in trace.jobs]
    return sum(profile is None or profile.util_ratio is None for profile in profiles)
