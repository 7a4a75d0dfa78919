"""Small files of a runner, read with care; and the places where tests plant a crash."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pathlib import Path

CRASH_VARIABLE = "EACO_TEST_RUNNER_CRASH"


def crash_point(name: str) -> None:
    """End as by SIGKILL if a test asks for it at this step; no test, no effect."""
    if os.environ.get(CRASH_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None when the file is not there or is not one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def read_number(path: Path) -> int | None:
    """Read a file that holds one whole number; None when it is not there or empty."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
