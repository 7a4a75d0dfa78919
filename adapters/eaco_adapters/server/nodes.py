"""The nodes of a server: which GPUs they have, who runs jobs there, and what is read from them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import frozen

from eaco_adapters.node import NodeRunner, RunnerOptions
from eaco_adapters.node.folder import lock_is_free
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.errors import InputError
from eaco_telemetry.readers.auto import choose_readers
from eaco_telemetry.readers.virtual import VirtualGpuReader
from eaco_telemetry.sampler import Sampler
from eaco_telemetry.samples import DeviceState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from eaco_adapters.server.config import NodeConfig
    from eaco_telemetry.readers.base import Reader
    from eaco_telemetry.samples import NodeSample

_GIB: Final = 1 << 30
_WORDS: Final = re.compile(r"[^a-z0-9]+")


@frozen
class LocalNode:
    """One node of this server: what the scheduler knows, who runs jobs, who reads the sensors."""

    spec: NodeSpec
    runner: NodeRunner
    sampler: Sampler | None


def open_node(
    config: NodeConfig, root: Path, *, session_id: str, cpus: Sequence[int], with_sensors: bool
) -> LocalNode:
    """Find out what a node has. Blocks; not for an event loop.

    `cpus`: the CPU cores for virtual GPUs, in turn. Raises InputError where there is no GPU.
    """
    readers: tuple[Reader, ...] = ()
    gpus = config.gpus
    gpu_cpus: dict[str, tuple[int, ...]] = {}
    if config.simulated and gpus is not None:
        gpu_cpus = {gpu.gpu_id: (cpus[n % len(cpus)],) for n, gpu in enumerate(gpus)}
        virtual: Reader = VirtualGpuReader({gpu.gpu_id: gpu.mem_bytes or _GIB for gpu in gpus})
        readers = (virtual,) if with_sensors else ()
    elif with_sensors or gpus is None:
        readers = choose_readers(config.node_id).readers
    sampler = None
    if readers:
        sampler = Sampler(readers, node_id=config.node_id, session_id=session_id)
        sampler.open_blocking()
        if gpus is None:
            gpus = _gpus_in(sampler.sample_blocking().sample)
    if not gpus:
        if sampler is not None:
            sampler.close_blocking()
        raise InputError(
            f"node {config.node_id} has no GPU that can be read; name its GPUs with `gpus`, or try "
            f"eaco without any by `simulated_gpus = 2` in [nodes.{config.node_id}]"
        )
    runner = NodeRunner(
        root / config.node_id,
        node_id=config.node_id,
        gpu_ids=[gpu.gpu_id for gpu in gpus],
        options=RunnerOptions(gpu_cpus=gpu_cpus),
    )
    spec = NodeSpec(config.node_id, gpus, labels=config.labels)
    if sampler is not None and not with_sensors:
        sampler.close_blocking()
        sampler = None
    return LocalNode(spec, runner, sampler)


def check_left_nodes(root: Path, node_ids: Collection[str]) -> None:
    """Refuse to go on without a node on which jobs still run: they would be started again.

    `root`: the folder with one folder for each node; `node_ids`: the nodes that are configured.
    Raises InputError.
    """
    for place in sorted(root.glob("*/attempts/*@*")):
        node_id = place.parent.parent.name
        if node_id not in node_ids and not lock_is_free(place):
            raise InputError(
                f"node {node_id} is not in the configuration any more, and a job still runs there "
                f"({place.name}): put the node back, drain it, and take it out when nothing runs "
                "there"
            )


def _gpus_in(sample: NodeSample) -> tuple[GpuSpec, ...]:
    """Take the GPUs that can be booked: MIG instances, and GPUs that are not split into them."""
    parents = {gpu.parent_id for gpu in sample.gpus}
    return tuple(
        GpuSpec(gpu.gpu_id, _type_of(gpu.name or gpu.vendor), gpu.mem_total_bytes)
        for gpu in sample.gpus
        if gpu.gpu_id not in parents and gpu.state is not DeviceState.LOST
    )


def _type_of(name: str) -> str:
    """Make a short name of a product: "NVIDIA A100-SXM4-80GB" is "a100-sxm4-80gb"."""
    words = _WORDS.sub("-", name.lower()).strip("-")
    return words.removeprefix("nvidia-").removeprefix("amd-") or "gpu"
