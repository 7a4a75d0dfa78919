"""CUDA_VISIBLE_DEVICES by UUID, by its beginning, by MIG instance, and by number if it must be."""

from __future__ import annotations

import pytest

from eaco_core.errors import InputError
from eaco_telemetry.readers.cuda_visible import cuda_visible_devices, visible_gpu_ids
from eaco_telemetry.samples import GpuSample

# As NVML might list them: neither by UUID nor by address.
GPUS = (
    GpuSample("GPU-bb12", "nvidia", pci_bdf="0000:41:00.0"),
    GpuSample("GPU-aa77", "nvidia", pci_bdf="0000:c1:00.0"),
    GpuSample("GPU-bb34", "nvidia", pci_bdf="0000:01:00.0"),
    GpuSample("MIG-0001", "nvidia", parent_id="GPU-aa77"),
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("GPU-aa77", ("GPU-aa77",)),
        ("GPU-aa", ("GPU-aa77",)),
        ("GPU-bb", ()),
        ("MIG-0001", ("MIG-0001",)),
        ("GPU-bb34, GPU-aa77", ("GPU-bb34", "GPU-aa77")),
        ("GPU-bb34,GPU-zz,GPU-aa77", ("GPU-bb34",)),
        ("GPU-aa77,GPU-aa", ("GPU-aa77",)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_gpus_are_named_by_uuid_as_in_cuda(value: str, expected: tuple[str, ...]) -> None:
    assert visible_gpu_ids(value, GPUS) == expected


def test_numbers_count_by_pci_address_and_only_if_that_is_the_order() -> None:
    assert visible_gpu_ids("0,2", GPUS, pci_order=True) == ("GPU-bb34", "GPU-aa77")
    assert visible_gpu_ids("1,3,0", GPUS, pci_order=True) == ("GPU-bb12",), "ends at the wrong one"
    with pytest.raises(InputError, match="PCI_BUS_ID"):
        visible_gpu_ids("0", GPUS)


def test_a_list_is_written_with_uuids_only() -> None:
    assert cuda_visible_devices(["GPU-aa77", "MIG-0001"]) == "GPU-aa77,MIG-0001"
    assert cuda_visible_devices([]) == ""
    for wrong in ("pci:n1/0000:01:00.0", "0", "GPU-a,GPU-b"):
        with pytest.raises(InputError):
            cuda_visible_devices([wrong])
