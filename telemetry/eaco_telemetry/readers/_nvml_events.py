"""Xid and memory errors, asked for without waiting.

A waiting call on a lost GPU comes back at once, for ever, and a loop around it takes a
whole core. So there is no loop: each read takes what has gathered, and a failing set is
closed and left alone for a minute.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any, Final

from eaco_telemetry.readers._nvml_binding import Code, Nvml, NvmlFailure
from eaco_telemetry.readers.base import DeviceEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

_XID: Final = 0x8
_DOUBLE_BIT_ECC: Final = 0x2
_WANTED: Final = _XID | _DOUBLE_BIT_ECC
_MOST_PER_READ: Final = 64
BACK_OFF_S: Final = 60.0


def _address(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]  # a pointer of the binding


class EventSet:
    """The events of some devices. All calls are made on the worker's thread."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: object | None = None
        self._ids: dict[int | None, str] = {}
        self._not_before_s = 0.0

    def watch(self, handles: Mapping[str, Any], now_s: float) -> None:
        """Begin to watch these devices (id to handle), unless it failed a short while ago."""
        self.close()
        if now_s < self._not_before_s:
            return
        try:
            self._set = self._nvml.call("nvmlEventSetCreate")
        except NvmlFailure:
            self._not_before_s = now_s + BACK_OFF_S
            return
        self._ids = {_address(handle): gpu_id for gpu_id, handle in handles.items()}
        for handle in handles.values():
            try:
                given = self._nvml.call("nvmlDeviceGetSupportedEventTypes", handle)
                if given & _WANTED:
                    self._nvml.call("nvmlDeviceRegisterEvents", handle, given & _WANTED, self._set)
            except NvmlFailure:
                continue  # this device reports none; the others still do

    def may_watch(self, now_s: float) -> bool:
        """Whether a closed set may be opened again."""
        return self._set is None and now_s >= self._not_before_s

    def take(self, now_s: float) -> tuple[DeviceEvent, ...]:
        """Give what has happened since the last call. Never waits."""
        events: list[DeviceEvent] = []
        while self._set is not None and len(events) < _MOST_PER_READ:
            try:
                data = self._nvml.call("nvmlEventSetWait_v2", self._set, 0)
            except NvmlFailure as failure:
                if failure.code != Code.TIMEOUT:
                    self.close()
                    self._not_before_s = now_s + BACK_OFF_S
                break
            events.append(self._event(data))
        return tuple(events)

    def close(self) -> None:
        """Stop watching."""
        if self._set is not None:
            with contextlib.suppress(NvmlFailure):  # it is given up either way
                self._nvml.call("nvmlEventSetFree", self._set)
            self._set = None

    def _event(self, data: Any) -> DeviceEvent:  # noqa: ANN401 - a struct of the binding
        gpu_id = self._ids.get(_address(data.device))
        if data.eventType == _XID:
            code = int(data.eventData)
            return DeviceEvent("xid", gpu_id, code, f"the driver reports Xid {code}")
        return DeviceEvent("ecc", gpu_id, None, "an uncorrectable memory error")
