"""The job list of Microsoft's Philly clusters, as CSV.

Columns timestamp (YYYY-MM-DD HH:MM:SS), duration (s), num_gpus, gpu_time, cluster
(virtual cluster); rows in any order. The list names no models: each job is assigned
one of the profile table's workloads, all equally likely, by the seed and its line
number, so that the choice does not depend on other rows.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

from attrs import evolve

from eaco_adapters.traces.seeded import pick
from eaco_adapters.traces.trace import Trace, assemble, split_into_epochs
from eaco_core.errors import InputError
from eaco_core.jobs import JobSpec, SoloProfile
from eaco_predictors.reading import AnyPath, Row, at, csv_rows, shown

if TYPE_CHECKING:
    from eaco_predictors.profiles import ProfileTable

PHILLY_COLUMNS = frozenset({"timestamp", "duration", "num_gpus"})


def read_philly_trace(path: AnyPath, *, table: ProfileTable, seed: int) -> Trace:
    """Read the job list; arrivals count from the earliest. Ids are line numbers.

    The virtual cluster becomes the job's group. Raises InputError with file and line.
    """
    if not table.profiles:
        raise InputError(f"the profiles {table.name!r} have no workload to assign")
    rows = [
        (
            row.line,
            _timestamp_s(row),
            row.needed_whole("num_gpus", at_least=1),
            row.needed_positive("duration"),
            sys.intern(row.text("cluster") or ""),
        )
        for row in csv_rows(path)
    ]
    earliest_s = min((timestamp_s for _, timestamp_s, *_ in rows), default=0.0)
    choices = {gpus: table.workloads_for(gpus) for gpus in {gpus for _, _, gpus, *_ in rows}}
    shared: dict[tuple[str, float], tuple[int, tuple[SoloProfile, ...]]] = {}
    entries: list[tuple[int, JobSpec]] = []
    for line, timestamp_s, gpus, duration_s, group in rows:
        workload = pick(choices[gpus], seed, "philly-workload", line)
        # Jobs alike in workload and duration share one profile: memory stays small.
        parts = shared.get((workload, duration_s))
        with at(Row(str(path), line, {})):
            if parts is None:
                epochs, epoch_s = split_into_epochs(duration_s)
                parts = (epochs, (evolve(table.profiles[workload], epoch_s=epoch_s),))
                shared[workload, duration_s] = parts
            job = JobSpec(
                job_id=str(line),
                gpus=gpus,
                submit_s=timestamp_s - earliest_s,
                epochs=parts[0],
                workload=workload,
                profiles=parts[1],
                group=group,
            )
        entries.append((line, job))
    notes = (
        f"no models are named: workloads are assigned by the seed, uniformly from {table.name!r}",
        "the recorded duration is taken as the solo run time, in epochs of about 1,404 s",
    )
    return assemble(str(path), entries, notes=notes, has_deadlines=False)


def _timestamp_s(row: Row) -> float:
    text = row.needed_text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None:
        raise row.error(f"timestamp must be written YYYY-MM-DD HH:MM:SS, not {shown(text)}")
    # The trace has no time zone: counting as if in UTC gives the plain differences.
    return (moment - _EPOCH).total_seconds()


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose, like the trace
