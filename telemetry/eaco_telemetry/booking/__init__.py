"""Energy by job from measured samples: every joule of a node once, whoever shares its GPUs.

    from eaco_telemetry.booking import JobHold, account, recordings_of

    holds = [JobHold("train-7", ("GPU-1",), start_ns, end_ns, user="ada")]
    report = account(recordings_of(samples), holds)
    report.jobs[0].amount.energy_j

The rules and what they stand on: docs/energy.md.
"""

from __future__ import annotations

from eaco_telemetry.booking.account import EnergyOptions, account
from eaco_telemetry.booking.document import document
from eaco_telemetry.booking.holds import JobHold
from eaco_telemetry.booking.report import (
    Amount,
    EnergyReport,
    JobEnergy,
    NodeGrounds,
    UserEnergy,
)
from eaco_telemetry.booking.rows import recordings_of
from eaco_telemetry.booking.rules import RULES, Rule
from eaco_telemetry.booking.sentences import sentences
from eaco_telemetry.booking.steps import Steps

__all__ = [
    "RULES",
    "Amount",
    "EnergyOptions",
    "EnergyReport",
    "JobEnergy",
    "JobHold",
    "NodeGrounds",
    "Rule",
    "Steps",
    "UserEnergy",
    "account",
    "document",
    "recordings_of",
    "sentences",
]
