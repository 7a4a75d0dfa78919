"""Reading any job trace: the format is recognised by the content of the file."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from eaco_adapters.traces.gavel import read_gavel_trace
from eaco_adapters.traces.own import read_own_trace
from eaco_adapters.traces.philly import PHILLY_COLUMNS, read_philly_trace
from eaco_core.errors import InputError
from eaco_predictors.reading import AnyPath, first_line, header_cells

if TYPE_CHECKING:
    from eaco_adapters.traces.trace import Trace
    from eaco_predictors.profiles import ProfileTable


class TraceFormat(enum.Enum):
    """The formats that `read_trace` knows; the value is what people call them."""

    GAVEL = "Gavel trace (fields separated by tabs)"
    PHILLY = "Philly job list (CSV with timestamp, duration, num_gpus)"
    OWN_CSV = "eaco CSV (submit_s, gpus, epochs, ...; docs/formats.md)"
    OWN_JSONL = "eaco JSON Lines (docs/formats.md)"


def recognise_trace(path: AnyPath) -> TraceFormat:
    """Say which format the file has, by its first line; an unknown one is an InputError."""
    line = first_line(path)
    if line.lstrip().startswith("{") and line.strip() != "{":
        return TraceFormat.OWN_JSONL
    if "\t" in line:
        return TraceFormat.GAVEL
    columns = set(header_cells(line))
    if columns >= PHILLY_COLUMNS:
        return TraceFormat.PHILLY
    if {"submit_s", "gpus"} <= columns:
        return TraceFormat.OWN_CSV
    known = "; ".join(known.value for known in TraceFormat)
    raise InputError(f"this is no known job trace; known formats: {known}", where=str(path))


def read_trace(path: AnyPath, *, table: ProfileTable, gpu_type: str, seed: int = 0) -> Trace:
    """Read a job trace of any known format.

    `table` holds the workloads' profiles on `gpu_type`; `seed` serves formats that
    leave something open (Philly names no models). Raises InputError.
    """
    if gpu_type != table.gpu_type:
        raise InputError(
            f"unknown GPU type {gpu_type!r}; the profiles {table.name!r} know: {table.gpu_type}"
        )
    match recognise_trace(path):
        case TraceFormat.GAVEL:
            return read_gavel_trace(path, table=table)
        case TraceFormat.PHILLY:
            return read_philly_trace(path, table=table, seed=seed)
        case TraceFormat.OWN_CSV | TraceFormat.OWN_JSONL:
            return read_own_trace(path, table=table)
