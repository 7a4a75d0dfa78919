"""CUDA_VISIBLE_DEVICES, read and written with GPU ids.

NVML's order of devices is not CUDA's, and neither stays the same over a reboot. So a list
for a job is written with UUIDs, and numbers are understood only where their order is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eaco_core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_telemetry.samples import GpuSample

_PREFIXES: Final = ("GPU-", "MIG-")


def visible_gpu_ids(
    value: str, gpus: Iterable[GpuSample], *, pci_order: bool = False
) -> tuple[str, ...]:
    """Give the ids of the GPUs that a process with this CUDA_VISIBLE_DEVICES can use.

    Takes numbers, UUIDs, the beginning of a UUID that fits one GPU only, and MIG instances.
    As in CUDA, the list ends at the first entry that names no GPU. `pci_order`: the process
    has CUDA_DEVICE_ORDER=PCI_BUS_ID. Raises `InputError` for a number without it: CUDA then
    puts the fastest GPU first, which nobody but CUDA knows.
    """
    known = tuple(gpus)
    found: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        gpu_id = _named(entry, known) if entry.startswith(_PREFIXES) else None
        if gpu_id is None and entry.isdigit():
            if not pci_order:
                raise InputError(
                    f"CUDA_VISIBLE_DEVICES={value} names GPUs by number; set"
                    " CUDA_DEVICE_ORDER=PCI_BUS_ID or name them by UUID"
                )
            gpu_id = _numbered(int(entry), known)
        if gpu_id is None or gpu_id in found:
            break
        found.append(gpu_id)
    return tuple(found)


def cuda_visible_devices(gpu_ids: Iterable[str]) -> str:
    """Give the CUDA_VISIBLE_DEVICES for these GPUs. Raise `InputError` for one without a UUID."""
    listed = tuple(gpu_ids)
    for gpu_id in listed:
        if not gpu_id.startswith(_PREFIXES) or "," in gpu_id:
            raise InputError(f"{gpu_id} is no UUID of CUDA, so no process can be bound to it")
    return ",".join(listed)


def _named(entry: str, known: tuple[GpuSample, ...]) -> str | None:
    exact = [gpu.gpu_id for gpu in known if gpu.gpu_id == entry]
    fitting = exact or [gpu.gpu_id for gpu in known if gpu.gpu_id.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def _numbered(number: int, known: tuple[GpuSample, ...]) -> str | None:
    whole = [gpu for gpu in known if gpu.parent_id is None and gpu.pci_bdf is not None]
    ordered = sorted(whole, key=lambda gpu: gpu.pci_bdf or "")
    return ordered[number].gpu_id if number < len(ordered) else None
