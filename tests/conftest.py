"""Hypothesis profiles: `ci` where CI is set, else `dev`; or `pytest --hypothesis-profile=nightly`.

`dev` is quick and random; `ci` is the same on every run, so that a failure is one of the
change that is tested; `nightly` looks for what nobody has seen yet.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "dev", max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=_SLOW
)
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "nightly",
    max_examples=5000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
