"""What `eaco top` knows at one moment, wherever it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import Factory, frozen

from eaco_adapters.cli import _top_cells as cells
from eaco_telemetry.samples import DeviceState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eaco_telemetry.samples import GpuSample
    from eaco_telemetry.subscriber.updates import NodeView

NO_SCHEDULER: Final = "no scheduler is asked: jobs are not known here"
_CURRENT: Final = frozenset({"ready", "alert"})


@frozen
class Snapshot:
    """Nodes at one moment.

    - `wall_ns`: by the clock of this machine. `source`: ``local`` or ``broker``; `address`:
      of the broker, without a secret.
    - `silent`: for nodes (site, node) from which a sample was waited for in vain, why.
    - `notes`: sentences for the user: what went wrong, what would add more values.
    - `problem`: why nothing new comes at all; None if all is well.
    - `jobs`: for each GPU id, the ids of its jobs, by a scheduler that was asked. None: none
      was, and nothing is made up.
    """

    wall_ns: int
    source: str
    nodes: tuple[NodeView, ...] = ()
    address: str | None = None
    silent: Mapping[tuple[str, str], str] = Factory(dict[tuple[str, str], str])
    notes: tuple[str, ...] = ()
    problem: str | None = None
    jobs: Mapping[str, Sequence[str]] | None = None

    @property
    def simulated(self) -> bool:
        """Whether a number here is made up."""
        return any(is_simulated(node) for node in self.nodes)

    @property
    def current(self) -> tuple[NodeView, ...]:
        """The nodes whose values are of now."""
        return tuple(node for node in self.nodes if is_current(node))


def is_current(node: NodeView) -> bool:
    """Tell whether the node sends, so that its last values are those of now."""
    return node.sample is not None and node.word in _CURRENT


def is_simulated(node: NodeView) -> bool:
    """Tell whether the numbers of a node are made up."""
    return bool(
        (node.sample is not None and node.sample.simulated)
        or (node.meta is not None and node.meta.simulated)
    )


def full_name(node: NodeView) -> str:
    """Give ``site/node``, or the node alone where there is no site."""
    return f"{node.site}/{node.node_id}" if node.site else node.node_id


def condition(node: NodeView) -> str:
    """Say in words how a node fares."""
    when = "" if node.age_s is None else f", last sample {cells.age(node.age_s)} ago"
    word = node.word
    if word in {"ready", "alert", "stale"} and node.sample is None:
        return "no sample yet"
    if word == "alert":
        return f"ALERT, {cells.age(node.age_s)} ago"
    if word == "ready":
        return f"ready, {cells.age(node.age_s)} ago"
    if word == "lost":
        return f"LOST: its connection broke{when}"
    if word == "disconnected":
        return f"disconnected: its agent was ended{when}"
    if word == "sleeping":
        return f"asleep{when}"
    if word == "stale":
        return f"STALE{when}"
    return f"{word}{when}"


def short_condition(node: NodeView) -> str:
    """Say how a node fares in a word, and how old its last sample is."""
    if node.sample is None and node.word in {"ready", "alert", "stale"}:
        return "no sample yet"
    word = node.word.upper() if node.word in {"lost", "stale", "alert"} else node.word
    word = "asleep" if word == "sleeping" else word
    return word if node.age_s is None else f"{word} {cells.age(node.age_s)}"


def gpus(node: NodeView) -> tuple[GpuSample, ...]:
    """Give the GPUs of the last sample, each MIG instance after the GPU that it is part of."""
    if node.sample is None:
        return ()
    parents = {gpu.gpu_id for gpu in node.sample.gpus}
    parts: dict[str, list[GpuSample]] = {}
    ordered: list[GpuSample] = []
    for gpu in node.sample.gpus:
        if gpu.parent_id is not None and gpu.parent_id in parents and gpu.parent_id != gpu.gpu_id:
            parts.setdefault(gpu.parent_id, []).append(gpu)
    placed = {part.gpu_id for group in parts.values() for part in group}
    for gpu in node.sample.gpus:
        if gpu.gpu_id not in placed:
            ordered += [gpu, *parts.get(gpu.gpu_id, ())]
    if len(ordered) != len(node.sample.gpus):  # parts of parts: no order to be had
        return node.sample.gpus
    return tuple(ordered)


def whole_gpus(node: NodeView) -> tuple[GpuSample, ...]:
    """Give the GPUs that are no part of another one."""
    known = gpus(node)
    ids = {gpu.gpu_id for gpu in known}
    return tuple(gpu for gpu in known if gpu.parent_id is None or gpu.parent_id not in ids)


def gpu_count(node: NodeView) -> int | None:
    """Count the GPUs of a node, by its last sample or else by its meta; None if neither is here."""
    if node.sample is not None:
        return len(whole_gpus(node))
    if node.meta is not None:
        ids = {gpu.gpu_id for gpu in node.meta.gpus}
        return sum(gpu.parent_id is None or gpu.parent_id not in ids for gpu in node.meta.gpus)
    return None


def gpus_power_w(node: NodeView) -> float | None:
    """Give the watts of a node's GPUs, as far as they are measured."""
    return cells.total(gpu.power_w for gpu in gpus(node))


def gpu_words(gpu: GpuSample) -> str:
    """Say what is special about the state of a GPU; empty for one that was read."""
    if gpu.state is DeviceState.ASLEEP:
        return "asleep: powered down and left alone"
    if gpu.state is DeviceState.LOST:
        return "LOST: it no longer answers"
    return ""
