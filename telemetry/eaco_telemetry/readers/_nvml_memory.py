"""The memory of one device: its own, or the main memory of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eaco_telemetry.readers._nvml_binding import NEVER, NvmlFailure
from eaco_telemetry.samples import MemoryKind

if TYPE_CHECKING:
    from eaco_telemetry.readers._nvml_asker import Asker
    from eaco_telemetry.readers._nvml_draft import Draft
    from eaco_telemetry.readers._nvml_system import LinuxView

_MEMORY_V2: Final = 0x02000028
_MOST_BYTES: Final = 1 << 46
_NAMES: Final = ("mem_total_bytes", "mem_used_bytes", "mem_reserved_bytes")


def read_memory(asker: Asker, draft: Draft, system: LinuxView, *, unified: bool = True) -> None:
    """Put memory into the draft.

    The first form of the call counts what the driver keeps for itself as used, so the
    second is tried first; it wants its version as the size of the struct. A chip that
    shares the main memory says "not supported", or gives the main memory as its own, or 0:
    then the kernel is asked, whose "available" counts page cache that can be had at once.
    `unified`: whether this device may be such a chip.
    """
    try:
        memory = _ask(asker, draft)
    except NvmlFailure as failure:
        if unified and failure.code in NEVER and _put_unified(draft, system):
            return
        draft.without(failure.reason, *_NAMES)
        return
    host = system.memory_bytes()
    same = host is not None and memory.total == host[0]
    if unified and (memory.total == 0 or same) and _put_unified(draft, system):
        return
    draft.put("mem_kind", MemoryKind.DEDICATED)
    draft.put_if("mem_total_bytes", memory.total, 1, _MOST_BYTES)
    draft.put_if("mem_used_bytes", memory.used, 0, min(memory.total, _MOST_BYTES))
    if hasattr(memory, "reserved"):
        draft.put_if("mem_reserved_bytes", memory.reserved, 0, min(memory.total, _MOST_BYTES))


def _ask(asker: Asker, draft: Draft) -> Any:  # noqa: ANN401 - a struct of the binding
    version = asker.nvml.constant("nvmlMemory_v2", _MEMORY_V2)
    try:
        return asker.ask("nvmlDeviceGetMemoryInfo", version=version)
    except NvmlFailure as failure:
        if failure.code not in NEVER:
            raise
    memory = asker.ask("nvmlDeviceGetMemoryInfo")
    draft.flags.add("mem_used_includes_reserved")
    draft.without("the driver counts it as used", "mem_reserved_bytes")
    return memory


def _put_unified(draft: Draft, system: LinuxView) -> bool:
    host = system.memory_bytes()
    if host is None:
        return False
    total, available = host
    draft.put("mem_kind", MemoryKind.UNIFIED)
    draft.put("mem_total_bytes", total)
    draft.put("mem_used_bytes", total - available)
    draft.flags.discard("mem_used_includes_reserved")
    draft.without("the memory is the main memory of the node", "mem_reserved_bytes")
    return True
