"""MIG instances: parts of a GPU with memory and processes of their own, and little else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from eaco_telemetry.readers._nvml_binding import NvmlFailure
from eaco_telemetry.readers._nvml_draft import Draft
from eaco_telemetry.readers._nvml_memory import read_memory
from eaco_telemetry.readers._nvml_processes import ProcessList
from eaco_telemetry.readers.base import instance_id
from eaco_telemetry.samples import GpuSample, ProcessSample

if TYPE_CHECKING:
    from eaco_telemetry.readers._nvml_asker import Asker
    from eaco_telemetry.readers._nvml_system import LinuxView

_PARENT_ONLY: Final = "NVML does not give it for a MIG instance"


class MigInstance:
    """One instance. Utilisation, power and temperature belong to its GPU, so they are None."""

    def __init__(
        self, asker: Asker, gpu_id: str, parent_id: str, system: LinuxView, number: int | None
    ) -> None:
        self.gpu_id = gpu_id
        self.alias = None if number is None else instance_id(parent_id, number)
        self._asker = asker
        self._parent_id = parent_id
        self._system = system
        self._processes = ProcessList(asker.nvml, system)
        self._held: _Held = _Held(None, "not asked for yet", frozenset())

    def read(self, *, with_processes: bool) -> GpuSample:
        """Give its sample. May raise `DeviceLost`."""
        draft = Draft()
        read_memory(self._asker, draft, self._system, unified=False)
        if with_processes:
            self._ask_processes()
        draft.put("processes", self._held.processes)
        draft.without(self._held.reason, "processes")
        missing = draft.missing()
        known = {*draft.reasons}
        return GpuSample(
            gpu_id=self.gpu_id,
            vendor="nvidia",
            parent_id=self._parent_id,
            missing={
                name: reason if name in known else _PARENT_ONLY for name, reason in missing.items()
            },
            capabilities=tuple(sorted(draft.given())),
            flags=tuple(sorted(draft.flags | self._held.flags)),
            rejected=draft.rejected,
            **draft.values,
        )

    def _ask_processes(self) -> None:
        try:
            processes, flags = self._processes.read(self._asker.handle, shares=False)
        except NvmlFailure as failure:
            self._held = _Held(None, failure.reason, frozenset())
        else:
            self._held = _Held(processes, "", frozenset(flags))


@frozen
class _Held:
    """The processes of the last time they were asked for."""

    processes: tuple[ProcessSample, ...] | None
    reason: str
    flags: frozenset[str]


def _number(asker: Asker, handle: object) -> int | None:
    """Give the number of an instance on its GPU, by which DCGM knows it."""
    try:
        return int(asker.nvml.call("nvmlDeviceGetGpuInstanceId", handle))
    except NvmlFailure:
        return None


def find_instances(asker: Asker, parent_id: str, system: LinuxView) -> tuple[MigInstance, ...]:
    """List the instances of a GPU with MIG on."""
    try:
        most = asker.ask("nvmlDeviceGetMaxMigDeviceCount")
    except NvmlFailure:
        return ()
    found: list[MigInstance] = []
    for index in range(most):
        try:
            # Not through the asker: an index without an instance may have one later.
            handle = asker.nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", asker.handle, index)
            gpu_id = asker.nvml.text("nvmlDeviceGetUUID", handle)
        except NvmlFailure:
            continue
        number = _number(asker, handle)
        found.append(MigInstance(asker.for_part(handle), gpu_id, parent_id, system, number))
    return tuple(found)
