"""Hypothesis profiles. Choose one with `pytest --hypothesis-profile=ci`.

`dev` is quick and random; `ci` is the same on every run, so that a failure is one of the
change that is tested; `nightly` looks for what nobody has seen yet.
"""

from __future__ import annotations

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
settings.load_profile("dev")
