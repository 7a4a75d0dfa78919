"""What Linux says about NVIDIA GPUs without asking their driver: sleep, memory, processes.

Asking the driver about a sleeping laptop GPU wakes it up, which costs 5 to 25 W.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from attrs import frozen

_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"
# The open driver, and those that keep a device for a virtual machine.
_OTHER_DRIVERS: Final = frozenset({"nouveau", "vfio-pci", "pci-stub", "xen-pciback"})
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_DEFAULT_PID_MAX: Final = 4_194_304


@frozen
class PciGpu:
    """`asleep`: powered down. `may_sleep`: it goes to sleep by itself once nobody uses it."""

    bdf: str
    asleep: bool
    may_sleep: bool


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return None


def _is_nvidia_gpu(device: Path) -> bool:
    return _text(device / "vendor") == _NVIDIA and (_text(device / "class") or "").startswith(
        _DISPLAY_CLASS
    )


def _driver(device: Path) -> str | None:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return None


@frozen
class LinuxView:
    """What the kernel shows below `root`, which is ``/`` except in tests."""

    root: Path = Path("/")

    def pci_gpus(self) -> tuple[PciGpu, ...]:
        """List the NVIDIA GPUs on the PCI bus, except those that NVIDIA's driver cannot have."""
        try:
            devices = sorted((self.root / "sys/bus/pci/devices").iterdir())
        except OSError:
            return ()
        return tuple(
            PciGpu(
                bdf=device.name,
                # Without power management the kernel says "unsupported": that is awake.
                asleep=_text(device / "power/runtime_status") in {"suspended", "suspending"},
                may_sleep=_text(device / "power/control") == "auto",
            )
            for device in devices
            if _is_nvidia_gpu(device) and _driver(device) not in _OTHER_DRIVERS
        )

    def gpus_of(self, driver: str) -> tuple[str, ...]:
        """List the PCI addresses of NVIDIA GPUs that run on a driver."""
        try:
            devices = sorted((self.root / "sys/bus/pci/devices").iterdir())
        except OSError:
            return ()
        return tuple(
            device.name
            for device in devices
            if _is_nvidia_gpu(device) and _driver(device) == driver
        )

    def is_jetson_without_nvml(self) -> bool:
        """Whether this is a Jetson, except a Thor, whose NVML works in part."""
        model = _text(self.root / "proc/device-tree/model") or ""
        if "Thor" in model:
            return False
        return "Jetson" in model or (self.root / "etc/nv_tegra_release").exists()

    def memory_bytes(self) -> tuple[int, int] | None:
        """Give the total and the available main memory."""
        values: dict[str, int] = {}
        for line in (_text(self.root / "proc/meminfo") or "").splitlines():
            name, _, rest = line.partition(":")
            number = rest.removesuffix("kB").strip()
            if name in {"MemTotal", "MemAvailable"} and number.isdigit():
                values[name] = int(number) * 1024
        if {"MemTotal", "MemAvailable"} - set(values):
            return None
        return values["MemTotal"], min(values["MemAvailable"], values["MemTotal"])

    def sees_all_processes(self) -> bool:
        """Whether process numbers here are those of the host, so not in a container."""
        try:
            return str((self.root / "proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def pid_max(self) -> int:
        """Give the largest process number."""
        text = _text(self.root / "proc/sys/kernel/pid_max") or ""
        return int(text) if text.isdigit() else _DEFAULT_PID_MAX

    def has_process(self, pid: int) -> bool:
        """Whether this process is there.

        Where /proc hides the processes of other users, its folder cannot be seen; then the
        kernel is asked by a signal that is none.
        """
        if (self.root / f"proc/{pid}").is_dir():
            return True
        if self.root != Path("/"):
            return False
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return True

    def process_name(self, pid: int) -> str | None:
        """Give the short name of a process."""
        return _text(self.root / f"proc/{pid}/comm") or None


def bdf_of(text: str) -> str:
    """Give the kernel's form of a PCI address, ``0000:01:00.0``; NVML has 8 digits in front."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest and domain else text.lower()
