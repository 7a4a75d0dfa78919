"""Tools to test a scheduler with: builders, a watched machine, a hostile world, strategies.

Needs the extra `testing` (hypothesis). The rest of the core never imports it.
"""

from __future__ import annotations

from eaco_core.testing.builders import PlainPower, a_job, a_node, a_profile, an_observation
from eaco_core.testing.recorder import InvariantBroken, Recorder, in_words
from eaco_core.testing.script import Script
from eaco_core.testing.world import BENIGN, Attempt, Habits, World

__all__ = [
    "BENIGN",
    "Attempt",
    "Habits",
    "InvariantBroken",
    "PlainPower",
    "Recorder",
    "Script",
    "World",
    "a_job",
    "a_node",
    "a_profile",
    "an_observation",
    "in_words",
]
