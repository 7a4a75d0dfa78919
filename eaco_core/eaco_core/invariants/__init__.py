"""The invariants I01-I30 as checkers, apart from the scheduler that they check.

`check_state` looks at one state (and at the step that led to it), `check_history`
at a whole recorded run of any scheduler, `compare_histories` at two runs of the
same input; `check_estimates` and `check_monotone` ask a predictor or a scheduler
again. Nothing in here imports the machine, its policies or its admission.
"""

from __future__ import annotations

from eaco_core.invariants._history import HistoryChecker, check_history, compare_histories
from eaco_core.invariants._metamorphic import check_estimates, check_monotone
from eaco_core.invariants._report import TITLES, Report, Violation, binding
from eaco_core.invariants._states import check_state

__all__ = [
    "TITLES",
    "HistoryChecker",
    "Report",
    "Violation",
    "binding",
    "check_estimates",
    "check_history",
    "check_monotone",
    "check_state",
    "compare_histories",
]
