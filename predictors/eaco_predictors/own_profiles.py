"""Our own format for profile tables, CSV or JSON Lines (`eaco.profiles/1`).

Two kinds of rows: `solo` (what a workload does alone) and `shared` (how much slower
it runs beside others). `docs/formats.md` documents the fields, with examples.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from eaco_core.errors import InputError
from eaco_core.jobs import SoloProfile
from eaco_predictors.profile_table import ProfileTable, SharedKey
from eaco_predictors.reading import AnyPath, Row, at, csv_rows, first_line, jsonl_rows, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

PROFILES_SCHEMA = "eaco.profiles/1"

_PLACE = ("kind", "workload", "gpu_type")
_SOLO = ("epoch_s", "util_ratio", "mem_busy_ratio", "peak_mem_bytes", "iterations_hz")
_SHARED = ("co_workloads", "ratio")
PROFILE_FIELDS: tuple[str, ...] = (*_PLACE, *_SOLO, *_SHARED)


def read_profiles(path: AnyPath, gpu_type: str | None = None) -> ProfileTable:
    """Read our own format; `gpu_type` may be left out when the file has only one.

    Raises InputError with file and line for a broken row, a workload or set given
    twice, and a shared row that names a workload without a solo row.
    """
    jsonl = first_line(path).lstrip().startswith("{")
    solo: dict[tuple[str, str], tuple[Row, SoloProfile]] = {}
    rates: dict[tuple[str, str], float] = {}
    shared: dict[tuple[str, SharedKey], tuple[Row, float]] = {}
    for row in _without_schema(jsonl_rows(path) if jsonl else csv_rows(path)):
        row.known_fields_only(PROFILE_FIELDS)
        kind, workload = row.needed_text("kind"), row.needed_text("workload")
        place = row.needed_text("gpu_type")
        if kind == "solo":
            _once(row, solo.get((place, workload)), f"{workload!r} on {place}")
            solo[place, workload] = (row, _solo_profile(row, place))
            rate = row.positive("iterations_hz")
            if rate is not None:
                rates[place, workload] = rate
        elif kind == "shared":
            key, ratio = _shared_ratio(row, workload)
            _once(row, shared.get((place, key)), f"{key!r} on {place}")
            shared[place, key] = (row, ratio)
        else:
            raise row.error(f"kind must be solo or shared, not {kind!r}")
    wanted = _choose_type({place for place, _ in solo}, gpu_type, path)
    profiles = {name: profile for (place, name), (_, profile) in solo.items() if place == wanted}
    measured: dict[SharedKey, float] = {}
    for (place, key), (row, ratio) in shared.items():
        for member in (key[0], *key[1]):
            if (place, member) not in solo:
                known = {name for other, name in solo if other == place}
                raise row.error(
                    f"workload {member!r} has no solo row on {place};"
                    f" known: {listed(known, wanted=member)}"
                )
        if place == wanted:
            measured[key] = ratio
    return ProfileTable(
        str(path),
        wanted,
        profiles,
        measured,
        (f"profiles: {path}, {wanted}",),
        iteration_rates_hz={name: hz for (place, name), hz in rates.items() if place == wanted},
    )


def format_profiles(table: ProfileTable) -> str:
    """Write a table as JSON Lines that `read_profiles` reads back to the same values."""
    lines: list[dict[str, object]] = [{"schema": PROFILES_SCHEMA}]
    for workload, profile in sorted(table.profiles.items()):
        lines.append(
            {
                "kind": "solo",
                "workload": workload,
                "gpu_type": table.gpu_type,
                "epoch_s": profile.epoch_s,
                "util_ratio": profile.util_ratio,
                "mem_busy_ratio": profile.mem_busy_ratio,
                "peak_mem_bytes": profile.peak_mem_bytes,
                "iterations_hz": table.iteration_rates_hz.get(workload),
            }
        )
    for (workload, others), ratio in sorted(table.measured.items()):
        lines.append(
            {
                "kind": "shared",
                "workload": workload,
                "gpu_type": table.gpu_type,
                "co_workloads": list(others),
                "ratio": ratio,
            }
        )
    return "".join(
        json.dumps({name: value for name, value in line.items() if value is not None}) + "\n"
        for line in lines
    )


def _without_schema(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        if "schema" in row.values:
            if row.values["schema"] != PROFILES_SCHEMA:
                raise row.error(
                    f"the schema must be {PROFILES_SCHEMA!r}, not {row.values['schema']!r}"
                )
            continue
        yield row


def _once(row: Row, earlier: tuple[Row, object] | None, what: str) -> None:
    if earlier is not None:
        raise row.error(f"{what} was given before, on line {earlier[0].line}")


def _solo_profile(row: Row, gpu_type: str) -> SoloProfile:
    for name in _SHARED:
        if row.given(name):
            raise row.error(f"a solo row has no {name}")
    with at(row):
        return SoloProfile(
            gpu_type=gpu_type,
            epoch_s=row.positive("epoch_s"),
            util_ratio=row.number("util_ratio"),
            mem_busy_ratio=row.number("mem_busy_ratio"),
            peak_mem_bytes=row.whole("peak_mem_bytes"),
        )


def _shared_ratio(row: Row, workload: str) -> tuple[SharedKey, float]:
    for name in _SOLO:
        if row.given(name):
            raise row.error(f"a shared row has no {name}")
    others = row.texts("co_workloads")
    if not others:
        raise row.error("co_workloads is missing")
    return (workload, tuple(sorted(others))), row.needed_positive("ratio")


def _choose_type(known: set[str], wanted: str | None, path: AnyPath) -> str:
    if not known:
        raise InputError("the file holds no GPU type, for it has no solo row", where=str(path))
    if wanted is None and len(known) == 1:
        return next(iter(known))
    if wanted is None:
        raise InputError(f"choose one of the GPU types {listed(known)}", where=str(path))
    if wanted not in known:
        raise InputError(f"unknown GPU type {wanted!r}; known: {listed(known)}", where=str(path))
    return wanted
