"""A short campaign of SIGKILLs at chosen points; the benchmark of the same name runs hundreds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "scheduler_killed.py"


@pytest.mark.slow
def test_after_nine_kills_nothing_is_lost_and_nothing_ran_twice() -> None:
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--kills", "9", "--seed", "4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 in all" in done.stdout
    assert re.search(r"jobs accepted [1-9]\d*, on record \d+, lost 0", done.stdout)
    assert "ran twice at once: 0" in done.stdout
