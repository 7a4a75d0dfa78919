"""Where the server keeps its state, and its socket, where nothing else is said."""

from __future__ import annotations

import os
from pathlib import Path


def default_state_dir() -> Path:
    """Give the folder for state of this user: XDG_STATE_HOME/eaco, or ~/.local/state/eaco."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "eaco"
