"""Profile tables from wherever they come: the paper, Gavel's file, or our own format.

`read_any_profiles` recognises the format by the content of the file.
"""

from __future__ import annotations

from eaco_core.errors import InputError
from eaco_predictors.gavel_profiles import gavel_table, gavel_workload, read_gavel_throughputs
from eaco_predictors.own_profiles import (
    PROFILES_SCHEMA,
    format_profiles,
    read_profiles,
)
from eaco_predictors.paper_tables import paper_profiles
from eaco_predictors.profile_table import NOMINAL_EPOCH_S, ProfileTable
from eaco_predictors.reading import AnyPath, first_line, header_cells, opened, parse_json

__all__ = [
    "NOMINAL_EPOCH_S",
    "PROFILES_SCHEMA",
    "ProfileTable",
    "format_profiles",
    "gavel_workload",
    "paper_profiles",
    "read_any_profiles",
    "read_gavel_throughputs",
    "read_profiles",
]

_FORMATS = "the word paper, Gavel's throughput JSON, or our own CSV or JSON Lines (docs/formats.md)"


def read_any_profiles(source: AnyPath, gpu_type: str = "v100") -> ProfileTable:
    """Give the table that `source` names: "paper", or a file of any known format.

    A file that is called `paper` is read as `./paper`. Raises InputError for
    everything that is not one of the known formats, and for an unknown GPU type.
    """
    if str(source) == "paper":
        return paper_profiles(gpu_type)
    line = first_line(source).lstrip()
    if line.startswith("{"):
        if _is_own_jsonl(line):
            return read_profiles(source, gpu_type)
        with opened(source) as stream:
            text = stream.read()
        value = parse_json(text, where=str(source))
        return gavel_table(value, name=str(source), gpu_type=gpu_type)
    if {"kind", "workload"} <= set(header_cells(line)):
        return read_profiles(source, gpu_type)
    raise InputError(f"this is no profile table; known formats: {_FORMATS}", where=str(source))


def _is_own_jsonl(line: str) -> bool:
    try:
        value = parse_json(line, where="")
    except InputError:
        return False  # the first line of a JSON document that spans several lines
    return isinstance(value, dict) and ("schema" in value or "kind" in value)
