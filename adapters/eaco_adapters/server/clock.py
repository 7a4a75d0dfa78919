"""Scheduler seconds over restarts (rule R16).

Within a run they follow the monotonic clock. At a start they go on from the last step that is on
record, plus the time that the wall clock says has passed since, if it has. Steps of the wall clock
within a run change nothing.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from eaco_adapters.durable import replace_file
from eaco_core.errors import EnvironmentFault, InputError

if TYPE_CHECKING:
    from pathlib import Path


@frozen
class Anchor:
    """Scheduler time `t_s` was `wall_s` on the wall clock (Unix seconds)."""

    t_s: float
    wall_s: float


class SystemClock:
    """The clock of a running server. See `eaco_core.ports.Clock`."""

    def __init__(self, last_t_s: float, anchor: Anchor | None) -> None:
        """Go on from `last_t_s`; `anchor` is from an earlier run, None if there was none."""
        self._began_s = time.monotonic()
        wall_s = time.time()
        gone_s = 0.0
        if anchor is not None:
            gone_s = max(0.0, wall_s - (anchor.wall_s + last_t_s - anchor.t_s))
        self._start_s = last_t_s + gone_s
        self._start_wall_s = wall_s

    def now_s(self) -> float:
        """Give the present time in scheduler seconds."""
        return self._start_s + time.monotonic() - self._began_s

    def wall_s(self) -> float:
        """Give what the wall clock shows now."""
        return time.time()

    def wall_of(self, t_s: float) -> float:
        """Give the wall time of a time in scheduler seconds, by the wall clock at the start."""
        return self._start_wall_s + t_s - self._start_s


def read_anchor(path: Path) -> Anchor | None:
    """Read what `write_anchor` wrote; None if there is nothing. Raises InputError."""
    try:
        data: Any = json.loads(path.read_bytes())
        numbers = cast("dict[str, Any]", data)
        anchor = Anchor(float(numbers["t_s"]), float(numbers["wall_s"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        anchor = None
    if anchor is None or not (math.isfinite(anchor.t_s) and math.isfinite(anchor.wall_s)):
        raise InputError(
            "this file of the scheduler's clock cannot be read; remove it, and the time while the "
            "server was off counts as none",
            where=str(path),
        )
    return anchor


def write_anchor(path: Path, anchor: Anchor) -> None:
    """Keep an anchor for the next start. Raises EnvironmentFault."""
    text = json.dumps({"t_s": anchor.t_s, "wall_s": anchor.wall_s})
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror}") from error
