"""The edge to nvidia-ml-py: its import, and its errors turned into one of ours.

The errors of the binding must not travel: they cannot be hashed and comparing them with
anything else raises.
"""

from __future__ import annotations

import enum
import importlib
from typing import TYPE_CHECKING, Any, Final

from eaco_core.errors import EnvironmentFault

if TYPE_CHECKING:
    from types import ModuleType

INSTALL: Final = "install it with: pip install 'eaco[nvidia]'"


class Code(enum.IntEnum):
    """Return codes of NVML that are treated apart, and two of ours below zero."""

    BAD_TEXT = -2
    WRONG_CALL = -1
    SUCCESS = 0
    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


GONE: Final = frozenset({Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND})
"""The device does not answer any more."""

NEVER: Final = frozenset(
    {
        Code.NOT_SUPPORTED,
        Code.NO_PERMISSION,
        Code.FUNCTION_NOT_FOUND,
        Code.ARGUMENT_VERSION_MISMATCH,
        Code.WRONG_CALL,
    }
)
"""Asking again gives the same answer."""

_REASONS: Final[dict[int, str]] = {
    Code.NOT_SUPPORTED: "not supported by this device or driver",
    Code.NO_PERMISSION: "no permission",
    Code.FUNCTION_NOT_FOUND: "the driver is too old for it",
    Code.ARGUMENT_VERSION_MISMATCH: "the driver is too old for it",
    Code.WRONG_CALL: "the installed nvidia-ml-py does not have it",
    Code.BAD_TEXT: "the driver gave text that cannot be read",
    Code.GPU_IS_LOST: "the GPU is lost",
}


class NvmlFailure(EnvironmentFault):
    """One call that did not work. `code` is NVML's number, `reason` goes into `missing`."""

    def __init__(self, call: str, code: int, text: str = "") -> None:
        self.code = code
        other = f"driver error {code}" + (f" ({text})" if text else "")
        self.reason = _REASONS.get(code, other)
        super().__init__(f"{call}: {self.reason}")


class Nvml:
    """Calls into nvidia-ml-py. Every failure is an `NvmlFailure`.

    Holds no state of the driver: whoever calls sees to the thread and to the process.
    """

    def __init__(self, module: ModuleType | None = None) -> None:
        self._module: Any = load_binding() if module is None else module

    def call(self, name: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - what ctypes gives
        """Call a function of the binding by its name."""
        function = getattr(self._module, name, None)
        if function is None:
            raise NvmlFailure(name, Code.WRONG_CALL)
        try:
            return function(*arguments, **named)
        except UnicodeDecodeError:
            raise NvmlFailure(name, Code.BAD_TEXT) from None
        except self._module.NVMLError as error:
            raise NvmlFailure(name, int(error.value), self._text_of(error)) from None

    def text(self, name: str, *arguments: object) -> str:
        """Call a function that gives text. Older bindings give bytes."""
        given = self.call(name, *arguments)
        if isinstance(given, bytes):
            return given.decode(errors="replace")
        return str(given)

    def constant(self, name: str, default: int) -> int:
        """Give a constant of the binding, or the default if it does not know it yet."""
        return int(getattr(self._module, name, default))

    @staticmethod
    def _text_of(error: Exception) -> str:
        # Its text comes from the driver library, which can fail in many ways.
        try:
            return str(error)
        except Exception:  # noqa: BLE001 - a text is not worth an error of its own
            return ""


def load_binding() -> ModuleType:
    """Import nvidia-ml-py. Raise `EnvironmentFault` if it, or the real one, is not there."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        raise EnvironmentFault(f"nvidia-ml-py is not installed; {INSTALL}") from None
    if not hasattr(module, "_nvmlGetFunctionPointer") or not hasattr(module, "nvmlMemory_v2"):
        raise EnvironmentFault(
            "another package hides nvidia-ml-py under the name pynvml, or it is too old;"
            " run: pip uninstall -y pynvml nvidia-ml-py3 && pip install -U --force-reinstall"
            " nvidia-ml-py"
        )
    return module
