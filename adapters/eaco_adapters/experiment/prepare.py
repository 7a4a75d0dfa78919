"""From a configuration to everything that the runs need, read and checked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from attrs import field, frozen

from eaco_adapters.experiment.config import MOST_EPOCHS
from eaco_adapters.experiment.evidence import read_evidence
from eaco_adapters.experiment.notes import cluster_notes, power_notes, unknown_util, world_notes
from eaco_adapters.simulator import GroundTruth, SimSettings
from eaco_adapters.traces import (
    DeadlineRule,
    Trace,
    apply_deadlines,
    generate_trace,
    parse_deadlines,
    read_trace,
    require_gpus,
)
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.errors import InputError
from eaco_predictors.profiles import read_any_profiles
from eaco_telemetry.power import DefaultNodePower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eaco_adapters.experiment.config import ExperimentConfig
    from eaco_adapters.experiment.evidence import KnownBefore
    from eaco_core.jobs import JobSpec, SoloProfile
    from eaco_predictors.profile_table import SharedKey
    from eaco_predictors.profiles import ProfileTable


@frozen(hash=False)
class TruthTable:
    """What the truth is made of: the profiles, with workloads that only the trace describes."""

    profiles: Mapping[str, SoloProfile]
    measured: Mapping[SharedKey, float]


@frozen(hash=False)
class Experiment:
    """All inputs of an experiment. `power` None = the energy is not known.

    `notes` are the assumptions, one sentence each. `inputs` holds the SHA-256 of every
    file that was read, by option.
    """

    config: ExperimentConfig
    trace: Trace = field(repr=False)
    truth: GroundTruth = field(repr=False)
    truth_id: Mapping[str, object]
    known_before: KnownBefore = field(repr=False)
    power: DefaultNodePower | None
    notes: tuple[str, ...]
    inputs: Mapping[str, str]

    @property
    def in_sample(self) -> bool:
        """Whether what the policies know before the start comes from the truth itself."""
        return self.known_before.in_sample

    def nodes(self, policy: str) -> tuple[NodeSpec, ...]:
        """Give the cluster as `policy` finds it; nodes that can sleep start asleep."""
        return cluster(self.config, can_sleep=policy not in self.config.no_sleep)

    def settings(self, policy: str) -> SimSettings:
        """Give the settings of the simulated world."""
        config = self.config
        return SimSettings(
            seed=config.seed,
            start_s=config.start_s,
            restart_s=config.restart_s,
            checkpoint_s=config.checkpoint_s,
            noise_sigma=config.noise_sigma,
            node_mtbf_s=config.node_mtbf_s,
            gpu_mtbf_s=config.gpu_mtbf_s,
            repair_s=config.repair_s,
            policy=policy,
            in_sample=self.in_sample,
        )


def cluster(config: ExperimentConfig, *, can_sleep: bool = True) -> tuple[NodeSpec, ...]:
    """Give the nodes, alike and numbered from 1, with zeros so that names sort as numbers do."""
    node_width = max(3, len(str(config.nodes)))
    gpu_width = len(str(config.gpus_per_node - 1))
    mem_bytes = config.mem_bytes()
    nodes: list[NodeSpec] = []
    for number in range(1, config.nodes + 1):
        node_id = f"node-{number:0{node_width}d}"
        gpus = tuple(
            GpuSpec(f"{node_id}/gpu-{index:0{gpu_width}d}", config.gpu_type, mem_bytes)
            for index in range(config.gpus_per_node)
        )
        nodes.append(NodeSpec(node_id, gpus, can_sleep=can_sleep, wake_s=config.wake_s))
    return tuple(nodes)


def prepare(config: ExperimentConfig) -> Experiment:
    """Read and check all that the configuration names. Raises InputError for the first mistake."""
    inputs = {name: _sha256(path) for name, path in config.input_files().items()}
    table = _profiles(config)
    trace = _jobs(config, table)
    truth = GroundTruth(
        _truth_table(table, trace, config.gpu_type),
        config.interference_ratio,
        mem_bytes=config.mem_bytes(),
    )
    truth_id: dict[str, object] = {
        "profiles": inputs.get("profiles", config.profiles),
        "gpu_type": config.gpu_type,
        "interference_ratio": config.interference_ratio,
        "assume_gpu_util_ratio": config.assume_gpu_util_ratio,
    }
    known_before = read_evidence(config.history, table=table, truth=truth, truth_id=truth_id)
    power = _power(config, trace)
    notes = (
        *table.notes,
        *trace.notes,
        *cluster_notes(config),
        *world_notes(config),
        *power_notes(config, trace, power),
        known_before.note,
    )
    return Experiment(
        config=config,
        trace=trace,
        truth=truth,
        truth_id=truth_id,
        known_before=known_before,
        power=power,
        notes=tuple(dict.fromkeys(notes)),
        inputs=inputs,
    )


# ------------------------------------------------------------------ the inputs


def _profiles(config: ExperimentConfig) -> ProfileTable:
    table = read_any_profiles(config.profiles, config.gpu_type)
    util_ratio = config.assume_gpu_util_ratio
    if util_ratio is None:
        return table
    filled = {name: _assumed(one, util_ratio) for name, one in table.profiles.items()}
    return attrs.evolve(table, profiles=filled)


def _assumed(profile: SoloProfile, util_ratio: float) -> SoloProfile:
    return attrs.evolve(profile, util_ratio=util_ratio) if profile.util_ratio is None else profile


def _jobs(config: ExperimentConfig, table: ProfileTable) -> Trace:
    if config.trace is None:
        trace = generate_trace(table, config.workload, seed=config.seed)
    else:
        trace = read_trace(config.trace, table=table, gpu_type=config.gpu_type, seed=config.seed)
    if config.assume_gpu_util_ratio is not None:
        trace = _with_assumed_util(trace, config.gpu_type, config.assume_gpu_util_ratio)
    require_gpus(trace, nodes=config.nodes, gpus_per_node=config.gpus_per_node)
    for index, job in enumerate(trace.jobs):
        _check_job(job, config, trace.where(index))
    _check_epochs(trace)
    given = config.deadlines is not None
    rule = DeadlineRule() if config.deadlines is None else parse_deadlines(config.deadlines)
    return apply_deadlines(trace, rule, seed=config.seed, gpu_type=config.gpu_type, override=given)


def _with_assumed_util(trace: Trace, gpu_type: str, util_ratio: float) -> Trace:
    jobs: list[JobSpec] = []
    assumed = 0
    for job in trace.jobs:
        profile = job.profile_on(gpu_type)
        if profile is None or profile.util_ratio is not None:
            jobs.append(job)
            continue
        assumed += 1
        profiles = tuple(
            _assumed(one, util_ratio) if one.gpu_type == gpu_type else one for one in job.profiles
        )
        jobs.append(attrs.evolve(job, profiles=profiles))
    if not assumed:
        return trace
    return attrs.evolve(trace, jobs=tuple(jobs))


def _check_job(job: JobSpec, config: ExperimentConfig, where: str) -> None:
    """Refuse what could never run on this cluster, with its place in the file."""
    gpu_type, mem_bytes = config.gpu_type, config.mem_bytes()
    if job.gpu_types is not None and gpu_type not in job.gpu_types:
        raise InputError(
            f"job {job.job_id!r} needs GPUs of {' or '.join(job.gpu_types)}, but the cluster has"
            f" {gpu_type}",
            where=where,
        )
    if job.node_selector:
        label, value = job.node_selector[0]
        raise InputError(
            f"job {job.job_id!r} needs nodes with the label {label}={value}, but the nodes of a"
            " simulation have no labels",
            where=where,
        )
    profile = job.profile_on(gpu_type)
    if profile is None or profile.epoch_s is None:
        raise InputError(
            f"job {job.job_id!r} cannot be simulated: its epoch time on {gpu_type} is not known",
            where=where,
        )
    if mem_bytes is not None and (profile.peak_mem_bytes or 0) > mem_bytes:
        raise InputError(
            f"job {job.job_id!r} needs {profile.peak_mem_bytes} bytes on each GPU, but a"
            f" {gpu_type} here has {mem_bytes}; --gpu-mem-gib sets that",
            where=where,
        )


def _check_epochs(trace: Trace) -> None:
    """Refuse what would be simulated for hours without a word; the longest job is named."""
    epochs = [job.epochs or 0 for job in trace.jobs]
    if sum(epochs) > MOST_EPOCHS:
        longest = max(range(len(epochs)), key=epochs.__getitem__)
        raise InputError(
            f"the jobs have {sum(epochs):,} epochs together (here {epochs[longest]:,}), but at"
            f" most {MOST_EPOCHS:,} can be simulated; write long jobs as fewer, longer epochs,"
            " or give fewer jobs",
            where=trace.where(longest),
        )


def _truth_table(table: ProfileTable, trace: Trace, gpu_type: str) -> TruthTable:
    """Add the workloads that only the trace describes; of unlike rows the busiest counts."""
    found = dict(table.profiles)
    for job in trace.jobs:
        profile = job.profile_on(gpu_type)
        if job.workload is None or job.workload in table.profiles or profile is None:
            continue
        known = found.get(job.workload)
        if known is None or (known.util_ratio or 0.0) < (profile.util_ratio or 0.0):
            found[job.workload] = profile
    return TruthTable(found, table.measured)


def _power(config: ExperimentConfig, trace: Trace) -> DefaultNodePower | None:
    if config.power_model == "none" or unknown_util(trace, config.gpu_type):
        return None
    power = DefaultNodePower(idle_w=config.idle_w, asleep_w=config.sleep_w)
    power.node_idle_w(cluster(config)[0])  # refuses an idle power below that of the GPUs
    return power


def _sha256(path: str) -> str:
    """Give the fingerprint of an input file; what cannot be read is reported by its reader."""
    digest = hashlib.sha256()
    try:
        if not Path(path).is_file():  # to open a pipe would wait for its writer
            return ""
        with Path(path).open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()
