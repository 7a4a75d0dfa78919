"""Machines made of files: fake /sys and /proc trees for readers without the hardware.

Names and values are those of real machines. A test builds a tree in a temporary folder,
points a reader at it with `root=`, and changes files between two reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


@contextlib.contextmanager
def failing(*paths: Path, code: int = errno.EACCES) -> Generator[list[Path], None, None]:
    """Let every read of these files, or of what is in these folders, fail with an error.

    Permissions of files would not do: tests often run as root. Gives the list of the paths
    that were tried.
    """
    tried: list[Path] = []
    real = [path.resolve() for path in paths]

    def guard(path: str | Path) -> None:
        place = Path(os.fsdecode(path)).resolve()
        if any(place == one or one in place.parents for one in real):
            tried.append(place)
            raise OSError(code, os.strerror(code), str(place))

    real_open, real_listdir = os.open, os.listdir

    def guarded_open(path: str | Path, *rest: Any, **more: Any) -> int:  # noqa: ANN401 - as os.open
        guard(path)
        return real_open(path, *rest, **more)

    def guarded_listdir(path: str | Path) -> list[str]:
        guard(path)
        return real_listdir(path)

    with mock.patch("os.open", guarded_open), mock.patch("os.listdir", guarded_listdir):
        yield tried


class Tree:
    """A root folder with /sys and /proc in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: str | bytes | int) -> Path:
        """Write a file under the root, with a line end as the kernel does."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else f"{content}\n".encode()
        target.write_bytes(raw)
        return target

    def write_all(self, folder: str, files: Mapping[str, str | bytes | int]) -> None:
        """Write several files into one folder."""
        for name, content in files.items():
            self.write(f"{folder}/{name}", content)

    def link(self, path: str, target: str) -> None:
        """Make a link; an absolute target inside the tree becomes a relative one, as in sysfs."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if target.startswith("/sys/"):
            target = os.path.relpath(self.root / target.lstrip("/"), place.parent)
        place.symlink_to(target)

    def remove(self, path: str) -> None:
        """Remove a file, a link or a folder with all that is in it."""
        target = self.root / path.lstrip("/")
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    # ------------------------------------------------------------------- devices

    def card(
        self, number: int, bdf: str, driver: str, files: Mapping[str, str | bytes | int]
    ) -> str:
        """Add a PCI card as /sys/class/drm/card<number>; give the folder of its device."""
        device = f"/sys/devices/pci0000:00/{bdf}"
        self.write_all(device, {"vendor": "0x0000", **files})
        (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        self.link(f"{device}/driver", f"/sys/bus/pci/drivers/{driver}")
        self._drm(number, device)
        return device

    def platform_card(
        self, number: int, name: str, driver: str, files: Mapping[str, str | bytes | int]
    ) -> str:
        """Add a GPU that is part of a chip (no PCI)."""
        device = f"/sys/devices/platform/{name}"
        self.write_all(device, {"modalias": f"of:N{name}", **files})
        (self.root / f"sys/bus/platform/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        self.link(f"{device}/driver", f"/sys/bus/platform/drivers/{driver}")
        self._drm(number, device)
        return device

    def _drm(self, number: int, device: str) -> None:
        card = f"{device}/drm/card{number}"
        self.write(f"{card}/dev", f"226:{number}")
        self.write(f"{device}/drm/renderD{128 + number}/dev", f"226:{128 + number}")
        self.link(f"{card}/device", device)
        self.link(f"/sys/class/drm/card{number}", card)
        # Connectors stand beside the cards and are none.
        self.write(f"{card}/card{number}-DP-1/status", "disconnected")
        self.link(f"/sys/class/drm/card{number}-DP-1", f"{card}/card{number}-DP-1")

    def hwmon(
        self, device: str, number: int, name: str, files: Mapping[str, str | bytes | int]
    ) -> str:
        """Add sensors to a device; give their folder."""
        folder = f"{device}/hwmon/hwmon{number}"
        self.write_all(folder, {"name": name, **files})
        self.link(f"/sys/class/hwmon/hwmon{number}", folder)
        return folder

    def unplug(self, number: int, device: str) -> None:
        """Take a card away, as after an unbind or an unplug."""
        self.remove(f"/sys/class/drm/card{number}")
        self.remove(device)

    # ----------------------------------------------------------------- processes

    def kernel_threads(self) -> None:
        """Show the kernel's threads: this /proc is of the whole machine."""
        self.process(2, "kthreadd")

    def process(self, pid: int, name: str) -> None:
        """Add a process without open files."""
        self.write(f"/proc/{pid}/comm", name)
        for folder in ("fd", "fdinfo"):
            (self.root / f"proc/{pid}/{folder}").mkdir(parents=True, exist_ok=True)

    def open_gpu(self, pid: int, fd: int, fdinfo: str | bytes, *, node: str = "renderD128") -> None:
        """Give a process an open GPU with the statistics of that file."""
        self.link(f"/proc/{pid}/fd/{fd}", f"/dev/dri/{node}")
        self.write(f"/proc/{pid}/fdinfo/{fd}", fdinfo)

    def meminfo(self, total_kib: int, available_kib: int) -> None:
        """Write /proc/meminfo."""
        self.write(
            "/proc/meminfo",
            f"MemTotal:       {total_kib:8d} kB\nMemFree:          200000 kB\n"
            f"MemAvailable:   {available_kib:8d} kB\nBuffers:           10000 kB\n"
            "HugePages_Total:       0",
        )


AMD_MI210: dict[str, str | bytes | int] = {
    "vendor": "0x1002",
    "device": "0x740f",
    "gpu_busy_percent": 73,
    "mem_busy_percent": 21,
    "mem_info_vram_total": 68702699520,
    "mem_info_vram_used": 11431616512,
    "power/control": "on",
    "power/runtime_status": "active",
}
AMD_MI210_SENSORS: dict[str, str | bytes | int] = {
    "power1_average": 187000000,
    "power1_cap": 300000000,
    "power1_label": "PPT",
    "temp1_input": 48000,
    "temp1_label": "edge",
    "temp2_input": 56000,
    "temp2_label": "junction",
    "temp3_input": 51000,
    "temp3_label": "mem",
    "freq1_input": 1700000000,
    "freq1_label": "sclk",
    "freq2_input": 1600000000,
    "freq2_label": "mclk",
    "in0_input": 793,
    "in0_label": "vddgfx",
}


def amd_fdinfo(
    bdf: str, client_id: int, *, gfx_ns: int = 0, compute_ns: int = 0, vram_kib: int = 0
) -> str:
    """Give an fdinfo file as amdgpu writes it."""
    return (
        f"pos:\t0\nflags:\t02100002\nmnt_id:\t29\nino:\t1180\ndrm-driver:\tamdgpu\n"
        f"drm-client-id:\t{client_id}\ndrm-pdev:\t{bdf}\npasid:\t32771\n"
        f"drm-total-vram:\t{vram_kib} KiB\ndrm-shared-vram:\t0\n"
        f"drm-resident-vram:\t{vram_kib} KiB\n"
        f"drm-memory-vram:\t{vram_kib} KiB\ndrm-memory-gtt:\t2048 KiB\ndrm-memory-cpu:\t0 KiB\n"
        f"amd-requested-vram:\t{vram_kib} KiB\n"
        f"drm-engine-gfx:\t{gfx_ns} ns\ndrm-engine-compute:\t{compute_ns} ns\n"
        "drm-engine-dma:\t5000000 ns\n"
    )


def i915_fdinfo(bdf: str, client_id: int, *, render_ns: int, compute_ns: int = 0) -> str:
    """Give an fdinfo file as i915 writes it, for a card with four compute engines."""
    return (
        f"pos:\t0\nflags:\t02100002\ndrm-driver:\ti915\ndrm-client-id:\t{client_id}\n"
        f"drm-pdev:\t{bdf}\ndrm-total-system0:\t36864 KiB\ndrm-shared-system0:\t0\n"
        "drm-active-system0:\t0\ndrm-resident-system0:\t36864 KiB\n"
        "drm-total-local0:\t524288 KiB\ndrm-resident-local0:\t524288 KiB\n"
        f"drm-engine-render:\t{render_ns} ns\ndrm-engine-copy:\t900000000000 ns\n"
        "drm-engine-video:\t0 ns\ndrm-engine-capacity-video:\t2\n"
        f"drm-engine-compute:\t{compute_ns} ns\ndrm-engine-capacity-compute:\t4\n"
    )


def xe_fdinfo(bdf: str, client_id: int, *, rcs: int, ccs: int, total: int) -> str:
    """Give an fdinfo file as xe writes it: cycles instead of times."""
    return (
        f"pos:\t0\nflags:\t0100002\nmnt_id:\t26\nino:\t685\ndrm-driver:\txe\n"
        f"drm-client-id:\t{client_id}\ndrm-pdev:\t{bdf}\ndrm-total-system:\t0\n"
        "drm-resident-system:\t0\ndrm-total-vram0:\t23992 KiB\ndrm-shared-vram0:\t16 MiB\n"
        "drm-active-vram0:\t0\ndrm-resident-vram0:\t23992 KiB\n"
        f"drm-cycles-rcs:\t{rcs}\ndrm-total-cycles-rcs:\t{total}\n"
        f"drm-cycles-bcs:\t{total}\ndrm-total-cycles-bcs:\t{total}\n"
        f"drm-cycles-ccs:\t{ccs}\ndrm-total-cycles-ccs:\t{total}\ndrm-engine-capacity-ccs:\t4\n"
    )
