"""Job traces: read from files, generated from a seed, given deadlines.

`read_trace` recognises the format by content; every way gives a `Trace`, whose
notes say what was assumed. `docs/formats.md` documents our own format.
"""

from __future__ import annotations

from eaco_adapters.traces.deadlines import (
    DeadlineRule,
    apply_deadlines,
    parse_deadlines,
)
from eaco_adapters.traces.generator import WorkloadSettings, generate_trace
from eaco_adapters.traces.own import TRACE_FIELDS, TRACE_SCHEMA, format_trace
from eaco_adapters.traces.recognise import TraceFormat, read_trace, recognise_trace
from eaco_adapters.traces.trace import Trace, require_gpus, solo_run_s, split_into_epochs

__all__ = [
    "TRACE_FIELDS",
    "TRACE_SCHEMA",
    "DeadlineRule",
    "Trace",
    "TraceFormat",
    "WorkloadSettings",
    "apply_deadlines",
    "format_trace",
    "generate_trace",
    "parse_deadlines",
    "read_trace",
    "recognise_trace",
    "require_gpus",
    "solo_run_s",
    "split_into_epochs",
]
