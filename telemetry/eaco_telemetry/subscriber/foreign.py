"""Processes on a GPU that are not ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

from eaco_telemetry.samples import PARTIAL_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Collection

    from eaco_telemetry.samples import GpuSample, NodeSample, ProcessSample


@frozen
class ForeignProcesses:
    """The processes of one GPU that are not ours.

    `certain`: there are no others. It is False where the device lists no processes, or may
    list only some; then `reason` says why.
    """

    gpu_id: str
    processes: tuple[ProcessSample, ...] = ()
    certain: bool = True
    reason: str = ""


def foreign_processes(
    sample: NodeSample, own_pids: Collection[int]
) -> tuple[ForeignProcesses, ...]:
    """Give for each GPU of a sample the processes that are not among `own_pids`.

    `own_pids`: numbers of the host, as in `ProcessSample.pid`.
    """
    own = frozenset(own_pids)
    return tuple(_of_gpu(gpu, own) for gpu in sample.gpus)


def _of_gpu(gpu: GpuSample, own: frozenset[int]) -> ForeignProcesses:
    if gpu.processes is None:
        reason = gpu.missing.get("processes", "the device lists no processes")
        return ForeignProcesses(gpu.gpu_id, certain=False, reason=reason)
    found = tuple(one for one in gpu.processes if one.pid not in own)
    if PARTIAL_PROCESSES in gpu.flags:
        reason = gpu.missing.get("processes", "the list of processes may lack some")
        return ForeignProcesses(gpu.gpu_id, found, certain=False, reason=reason)
    return ForeignProcesses(gpu.gpu_id, found)


@define
class ForeignWatch:
    """Tells what changed: which foreign processes came to the GPUs of one node, which went.

    A sample in which a GPU is missing, or does not list its processes, changes nothing.
    """

    _seen: dict[str, dict[int, ProcessSample]] = field(
        factory=dict[str, dict[int, "ProcessSample"]], init=False
    )

    def update(
        self, sample: NodeSample, own_pids: Collection[int]
    ) -> tuple[tuple[str, tuple[ProcessSample, ...], tuple[ProcessSample, ...]], ...]:
        """Take a sample; give (GPU, who appeared, who is gone) where something changed."""
        own = frozenset(own_pids)
        changes: list[tuple[str, tuple[ProcessSample, ...], tuple[ProcessSample, ...]]] = []
        for gpu in sample.gpus:
            if gpu.processes is None:
                continue
            now = {one.pid: one for one in gpu.processes if one.pid not in own}
            before = self._seen.get(gpu.gpu_id, {})
            if now.keys() != before.keys():
                appeared = tuple(one for pid, one in now.items() if pid not in before)
                gone = tuple(one for pid, one in before.items() if pid not in now)
                changes.append((gpu.gpu_id, appeared, gone))
            if now or before:
                self._seen[gpu.gpu_id] = now
        if len(self._seen) > len(sample.gpus):
            here = {gpu.gpu_id for gpu in sample.gpus}
            self._seen = {
                gpu_id: seen for gpu_id, seen in self._seen.items() if gpu_id in here and seen
            }
        return tuple(changes)
