"""Our own trace format, CSV or JSON Lines (`eaco.trace/1`): the fields of a job.

`docs/formats.md` documents the fields, with examples.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, TypeVar, cast

from attrs import asdict

from eaco_adapters.traces.trace import Trace, assemble
from eaco_core.jobs import CheckpointScope, JobSpec, ShareWith, SoloProfile
from eaco_predictors.reading import (
    AnyPath,
    Row,
    as_list,
    as_object,
    at,
    csv_rows,
    first_line,
    jsonl_rows,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_predictors.profiles import ProfileTable

TRACE_SCHEMA = "eaco.trace/1"

_PROFILE_FIELDS = ("epoch_s", "util_ratio", "mem_busy_ratio", "peak_mem_bytes")
TRACE_FIELDS: tuple[str, ...] = (
    "job_id",
    "submit_s",
    "gpus",
    "epochs",
    "workload",
    *_PROFILE_FIELDS,
    "deadline_s",
    "priority",
    "exclusive",
    "user",
    "group",
    "share_with",
    "gpu_types",
    "node_selector",
    "checkpoint_scope",
    "max_slowdown_ratio",
    "max_restarts",
    "profiles",
)

E = TypeVar("E", bound=enum.Enum)


def read_own_trace(path: AnyPath, *, table: ProfileTable) -> Trace:
    """Read our own format; what a row does not say about its workload comes from `table`.

    Raises InputError with file and line.
    """
    jsonl = first_line(path).lstrip().startswith("{")
    entries: list[tuple[int, JobSpec]] = []
    has_deadlines = False
    unlisted: set[str] = set()
    for row in _without_schema(jsonl_rows(path) if jsonl else csv_rows(path)):
        row.known_fields_only(TRACE_FIELDS)
        has_deadlines = has_deadlines or "deadline_s" in row.values
        with at(row):
            job = _job(row, table)
        if job.workload is not None and job.workload not in table.profiles:
            unlisted.add(job.workload)
        entries.append((row.line, job))
    notes: list[str] = []
    if unlisted:
        notes.append(
            f"workloads that the profiles do not have run as their rows say: {listed(unlisted)}"
        )
    return assemble(str(path), entries, notes=notes, has_deadlines=has_deadlines)


def format_trace(trace: Trace) -> str:
    """Write a trace as JSON Lines that `read_trace` reads back to the same jobs."""
    lines = [json.dumps({"schema": TRACE_SCHEMA})]
    for job in trace.jobs:
        fields = {name: _plain(value) for name, value in _fields(job).items()}
        if trace.has_deadlines:
            fields.setdefault("deadline_s", None)
        lines.append(json.dumps(fields))
    return "".join(f"{line}\n" for line in lines)


def _job(row: Row, table: ProfileTable) -> JobSpec:
    row.need("submit_s", "gpus", "epochs")
    types = row.texts("gpu_types")
    if types is not None and table.gpu_type not in types:
        raise row.error(
            f"the job runs on GPU types {listed(types)} only; known here: {table.gpu_type}"
        )
    restarts = row.whole("max_restarts")
    priority = row.values.get("priority")
    return JobSpec(
        job_id=row.text("job_id") or str(row.line),
        submit_s=row.needed_number("submit_s"),
        gpus=row.needed_whole("gpus", at_least=1),
        epochs=row.needed_whole("epochs", at_least=1),
        workload=row.text("workload"),
        profiles=_profiles(row, table),
        deadline_s=row.number_or_minus_one("deadline_s"),
        priority=0 if priority in (None, "") else _signed_whole(row, "priority"),
        exclusive=row.flag("exclusive") or False,
        user=row.text("user") or "",
        group=row.text("group") or "",
        share_with=_choice(row, "share_with", ShareWith.SAME_USER),
        gpu_types=types,
        node_selector=_selector(row),
        checkpoint_scope=_choice(row, "checkpoint_scope", CheckpointScope.SHARED),
        max_slowdown_ratio=row.positive("max_slowdown_ratio"),
        max_restarts=restarts,
    )


def _profiles(row: Row, table: ProfileTable) -> tuple[SoloProfile, ...]:
    if row.given("profiles"):
        return _listed_profiles(row, table.gpu_type)
    workload = row.text("workload")
    base = SoloProfile(table.gpu_type)
    if workload is not None and (workload in table.profiles or not row.given("epoch_s")):
        base = table.profile(workload)
    profile = _filled(base, row)
    if profile.epoch_s is None:
        raise row.error("epoch_s is missing, and the profiles do not give it")
    return (profile,)


def _listed_profiles(row: Row, gpu_type: str) -> tuple[SoloProfile, ...]:
    for name in _PROFILE_FIELDS:
        if row.given(name):
            raise row.error(f"give {name} inside profiles or beside it, not both")
    found: list[SoloProfile] = []
    for part in as_list(row.values["profiles"]) or [None]:
        fields = as_object(part)
        if fields is None:
            raise row.error("profiles must be a list of objects, one for each GPU type")
        inner = Row(row.file, row.line, fields)
        inner.known_fields_only(("gpu_type", *_PROFILE_FIELDS))
        found.append(_filled(SoloProfile(inner.needed_text("gpu_type")), inner))
    types = [profile.gpu_type for profile in found]
    if len(set(types)) != len(types):
        raise row.error("a GPU type stands twice in profiles")
    if not any(p.gpu_type == gpu_type and p.epoch_s is not None for p in found):
        raise row.error(
            f"profiles have no epoch_s for GPU type {gpu_type}; they have: {listed(types)}"
        )
    return tuple(found)


def _filled(base: SoloProfile, row: Row) -> SoloProfile:
    epoch_s, util_ratio = row.positive("epoch_s"), row.number("util_ratio")
    mem_busy_ratio, peak_mem_bytes = row.number("mem_busy_ratio"), row.whole("peak_mem_bytes")
    return SoloProfile(
        gpu_type=base.gpu_type,
        epoch_s=base.epoch_s if epoch_s is None else epoch_s,
        util_ratio=base.util_ratio if util_ratio is None else util_ratio,
        mem_busy_ratio=base.mem_busy_ratio if mem_busy_ratio is None else mem_busy_ratio,
        peak_mem_bytes=base.peak_mem_bytes if peak_mem_bytes is None else peak_mem_bytes,
    )


def _signed_whole(row: Row, name: str) -> int:
    text = str(row.values[name])
    sign = -1 if text.startswith("-") else 1
    # Only a priority may be negative, so the row's getters do not have it.
    size = Row(row.file, row.line, {name: text.removeprefix("-")}).needed_whole(name)
    return sign * size


def _choice(row: Row, name: str, default: E) -> E:
    text = row.text(name)
    if text is None:
        return default
    kinds = type(default)
    try:
        return kinds(text)
    except ValueError:
        known = listed(str(kind.value) for kind in kinds)
        raise row.error(f"{name} must be one of {known}, not {text!r}") from None


def _selector(row: Row) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for part in row.texts("node_selector") or ():
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise row.error(f"node_selector must be label=value, not {part!r}")
        pairs.append((key, value))
    return tuple(pairs)


def _without_schema(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        if "schema" in row.values:
            if row.values["schema"] != TRACE_SCHEMA:
                raise row.error(
                    f"the schema must be {TRACE_SCHEMA!r}, not {row.values['schema']!r}"
                )
            continue
        yield row


def _fields(job: JobSpec) -> dict[str, object]:
    fields: dict[str, object] = {
        "job_id": job.job_id,
        "submit_s": job.submit_s,
        "gpus": job.gpus,
        "epochs": job.epochs,
    }
    plain = JobSpec("-", gpus=1, submit_s=0)
    for name in TRACE_FIELDS:
        if name in fields or name in _PROFILE_FIELDS:
            continue
        value: object = getattr(job, name)
        if value != getattr(plain, name):
            fields[name] = value
    if job.node_selector:
        fields["node_selector"] = tuple(f"{key}={value}" for key, value in job.node_selector)
    return fields


def _plain(value: object) -> object:
    """Write a field as JSON has it."""
    if isinstance(value, enum.Enum):
        return cast("object", value.value)
    if isinstance(value, SoloProfile):
        return {name: part for name, part in asdict(value).items() if part is not None}
    if isinstance(value, tuple):
        return [_plain(part) for part in cast("tuple[object, ...]", value)]
    return value
