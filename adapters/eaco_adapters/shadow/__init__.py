"""A shadow of another scheduler: what eaco would have done, saved and risked. It acts on nothing.

`past` folds the other scheduler's history; `known` is what could be known of its jobs at each
time; `work` what both schedules have to do; `as_was` the energy of the schedule as it was;
`would_be` the same jobs under eaco in the simulator; `report` compares the two.
"""

from eaco_adapters.shadow.past import Past
from eaco_adapters.shadow.report import SCHEMA, ShadowOptions, ShadowReport, shadow_report

__all__ = ["SCHEMA", "Past", "ShadowOptions", "ShadowReport", "shadow_report"]
