r"""Gavel's job traces: one job on each line, fields separated by tabs.

Ten columns (github.com/stanford-futuredata/gavel, `parse_trace`): job_type, command,
working_directory, num_steps_arg, needs_data_dir, total_steps, scale_factor,
priority_weight, SLO, arrival_time (s). The old layout of its `traces/msr` has seven:
job_type, command, num_steps_arg, needs_data_dir, total_steps, arrival_time,
scale_factor.

Solo run time = total_steps / solo iterations per second on the GPU type. SLO is a
multiplier: Gavel's deadline is arrival + SLO x solo run time; -1 = none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from eaco_adapters.traces.trace import Trace, assemble, split_into_epochs
from eaco_adapters.words import counted
from eaco_core.errors import InputError
from eaco_core.jobs import JobSpec
from eaco_predictors.profiles import ProfileTable, gavel_workload
from eaco_predictors.reading import AnyPath, Row, at, text_lines

if TYPE_CHECKING:
    from eaco_core.jobs import SoloProfile

COLUMNS: tuple[str, ...] = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
OLD_COLUMNS: tuple[str, ...] = (
    "job_type",
    "command",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "arrival_time",
    "scale_factor",
)


def read_gavel_trace(path: AnyPath, *, table: ProfileTable) -> Trace:
    """Read a Gavel trace; `table` must know iteration rates (Gavel's throughputs).

    Ids are line numbers. Raises InputError with file and line.
    """
    if not table.iteration_rates_hz:
        raise InputError(
            f"a Gavel trace counts iterations, and the profiles {table.name!r} have no iteration"
            " rates; give Gavel's throughput JSON as profiles",
            where=str(path),
        )
    entries: list[tuple[int, JobSpec]] = []
    columns: tuple[str, ...] | None = None
    no_gpus = weighted = 0
    for line, text in text_lines(path):
        cells = [cell.strip() for cell in text.split("\t")]
        if columns is None:
            columns = OLD_COLUMNS if len(cells) == len(OLD_COLUMNS) else COLUMNS
        if len(cells) != len(columns):
            raise InputError(
                f"a line of a Gavel trace has {len(COLUMNS)} columns separated by tabs"
                f" ({len(OLD_COLUMNS)} in the old layout, alike in the whole file), but here are"
                f" {len(cells)}",
                where=f"{path}, line {line}",
            )
        row = Row(str(path), line, dict(zip(columns, cells, strict=True)))
        if columns is OLD_COLUMNS and row.needed_whole("scale_factor") == 0:
            no_gpus += 1
            continue
        weighted += columns is COLUMNS and row.needed_number("priority_weight") != 1
        with at(row):
            entries.append((line, _job(row, table)))
    notes: list[str] = ["an epoch is 1/90 to 1 of a job, about 1,404 s: the trace has iterations"]
    if no_gpus:
        were = "was" if no_gpus == 1 else "were"
        notes.append(f"{counted(no_gpus, 'job')} without GPUs {were} left out, as Gavel does")
    if weighted:
        notes.append(f"a priority weight that is not 1 is ignored: of {counted(weighted, 'job')}")
    return assemble(str(path), entries, notes=notes, has_deadlines=columns is COLUMNS)


def _job(row: Row, table: ProfileTable) -> JobSpec:
    gpus = row.needed_whole("scale_factor", at_least=1)
    workload = gavel_workload(row.needed_text("job_type"), gpus)
    profile: SoloProfile = table.profile(workload)
    rate_hz = table.iteration_rates_hz.get(workload)
    if rate_hz is None:
        raise row.error(f"the profiles have no iteration rate for workload {workload!r}")
    submit_s = row.needed_number("arrival_time")
    run_s = row.needed_positive("total_steps") / rate_hz
    epochs, epoch_s = split_into_epochs(run_s)
    slo: float | None = None
    if "SLO" in row.values:
        row.need("SLO")
        slo = row.number_or_minus_one("SLO")
    return JobSpec(
        job_id=str(row.line),
        gpus=gpus,
        submit_s=submit_s,
        epochs=epochs,
        workload=workload,
        profiles=(evolve(profile, epoch_s=epoch_s),),
        deadline_s=None if slo is None else submit_s + slo * run_s,
    )
