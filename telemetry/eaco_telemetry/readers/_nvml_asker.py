"""Asking one device: what it never gives is asked for once only."""

from __future__ import annotations

from typing import Any

from eaco_telemetry.readers._nvml_binding import GONE, NEVER, Code, Nvml, NvmlFailure


class DeviceLost(Exception):
    """The device does not answer any more; its handle must not be used again."""


class Asker:
    """Asks one device. Remembers what it never gives, and how its answers went."""

    def __init__(self, nvml: Nvml, handle: object) -> None:
        self.nvml = nvml
        self.handle = handle
        self.answers = 0
        self.unknown = 0
        self._never: dict[tuple[object, ...], NvmlFailure] = {}

    def ask(self, call: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - what ctypes gives
        """Call with the handle first. Raise `DeviceLost` or `NvmlFailure`."""
        key = (call, *arguments, *named.values())
        if key in self._never:
            raise self._never[key]
        try:
            answer = self.nvml.call(call, self.handle, *arguments, **named)
        except NvmlFailure as failure:
            if failure.code in GONE:
                raise DeviceLost(str(failure)) from failure
            if failure.code in NEVER:
                self._never[key] = failure
            self.unknown += failure.code == Code.UNKNOWN
            raise
        self.answers += 1
        return answer

    def start_counting(self) -> None:
        """Begin a read."""
        self.answers = self.unknown = 0

    def for_part(self, handle: object) -> Asker:
        """Give an asker for a part of this device."""
        return Asker(self.nvml, handle)

    @property
    def silent(self) -> bool:
        """Whether a read got nothing but "unknown error"."""
        return self.answers == 0 and self.unknown > 0
