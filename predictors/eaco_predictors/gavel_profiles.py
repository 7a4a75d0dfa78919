"""Gavel's measured throughputs (its `simulation_throughputs.json`) as a profile table.

The file, from github.com/stanford-futuredata/gavel:
`{gpu type: {"('MODEL (batch size B)', SCALE)": {"null": solo it/s,
other key: [it/s of this, it/s of the other]}}}`. `[0, 0]` = does not fit or was not
run. It has no utilisation, memory or power: these are None in the profiles.

Workloads are named after Gavel's job types; from scale 2 on, " xSCALE" is appended
("ResNet-18 (batch size 16)", "ResNet-18 (batch size 16) x4"), because a job over
four GPUs is another workload than the same model on one: its slowdowns differ.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from eaco_core.errors import InputError
from eaco_core.jobs import SoloProfile
from eaco_predictors.profile_table import ProfileTable, SharedKey
from eaco_predictors.reading import (
    LARGEST_NUMBER,
    AnyPath,
    as_list,
    as_object,
    listed,
    opened,
    parse_json,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = re.compile(r"\('([^\n']+)', (\d{1,6})\)")
_SOLO = "null"


def gavel_workload(job_type: str, scale: int) -> str:
    """Name the workload of a Gavel job type over `scale` GPUs."""
    return job_type if scale == 1 else f"{job_type} x{scale}"


def read_gavel_throughputs(path: AnyPath, gpu_type: str) -> ProfileTable:
    """Read the throughputs of one GPU type; its keys (v100, p100, k80, ...) name the types.

    Epoch times are None: an epoch depends on the job. A job type whose solo rate is
    0 does not run there and is left out. Raises InputError.
    """
    with opened(path) as stream:
        text = stream.read()
    return gavel_table(parse_json(text, where=str(path)), name=str(path), gpu_type=gpu_type)


def gavel_table(value: object, *, name: str, gpu_type: str) -> ProfileTable:
    """Build the table from the file's JSON value."""
    types = _object(value, name)
    if not types:
        raise InputError("the file holds no GPU type; give a file with profiles", where=name)
    if gpu_type not in types:
        raise InputError(
            f"unknown GPU type {shown(gpu_type)}; known: {listed(types, wanted=gpu_type)}",
            where=name,
        )
    where = f"{name}, {gpu_type}"
    rows: dict[str, dict[str, object]] = {}
    scales: dict[str, int] = {}
    for key, row in _object(types[gpu_type], where).items():
        workload, scale = _parse_key(key, where)
        rows[workload] = _object(row, f"{where}, {key}")
        scales[workload] = scale
    rates = {
        workload: _rate(row.get(_SOLO), f"{where}, {workload}") for workload, row in rows.items()
    }
    rates = {workload: rate for workload, rate in rates.items() if rate > 0}
    measured, as_fast_as_alone = _measured(rows, rates, where)
    notes = [
        f"profiles: Gavel throughputs, {gpu_type}: no utilisation, memory or power is known",
        "a measured pair counts as evidence that the two fit together",
    ]
    if as_fast_as_alone:
        notes.append(
            f"{as_fast_as_alone} entries give both of a pair exactly their solo rate (suspect)"
        )
    return ProfileTable(
        name,
        gpu_type,
        {workload: SoloProfile(gpu_type) for workload in rates},
        measured,
        tuple(notes),
        iteration_rates_hz=rates,
        measured_gpus={workload: scales[workload] for workload in rates},
    )


def _measured(
    rows: Mapping[str, Mapping[str, object]], rates: Mapping[str, float], where: str
) -> tuple[dict[SharedKey, float], int]:
    measured: dict[SharedKey, float] = {}
    mirrored: dict[SharedKey, float] = {}
    as_fast_as_alone = 0
    for workload, row in rows.items():
        for key, value in row.items():
            if key == _SOLO:
                continue
            other, _ = _parse_key(key, where)
            own, others = _pair(value, f"{where}, {workload} with {other}")
            if not own or not others or workload not in rates or other not in rates:
                continue
            as_fast_as_alone += own == rates[workload] and others == rates[other]
            measured[workload, (other,)] = _ratio(rates[workload], own, where)
            mirrored[other, (workload,)] = _ratio(rates[other], others, where)
    # The file gives most pairs from both sides; each side's own entry wins.
    return mirrored | measured, as_fast_as_alone


def _ratio(solo_hz: float, shared_hz: float, where: str) -> float:
    ratio = solo_hz / shared_hz
    if not 0 < ratio < math.inf:
        raise InputError(f"a rate of {shared_hz!r} it/s is no measurement", where=where)
    return ratio


def _parse_key(key: str, where: str) -> tuple[str, int]:
    found = _KEY.fullmatch(key)
    if found is None or not found[1].isprintable() or int(found[2]) < 1:
        raise InputError(
            f"a job type is written ('MODEL (batch size B)', SCALE), not {shown(key)}", where=where
        )
    scale = int(found[2])
    return gavel_workload(found[1], scale), scale


def _pair(value: object, where: str) -> tuple[float, float]:
    pair = as_list(value) or []
    if len(pair) != len(("this", "other")):
        raise InputError(f"a pair is two rates in it/s, not {shown(value)}", where=where)
    return _rate(pair[0], where), _rate(pair[1], where)


def _rate(value: object, where: str) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= LARGEST_NUMBER
    ):
        raise InputError(
            f"a rate is a number of it/s of at least 0, not {shown(value)}", where=where
        )
    return float(value)


def _object(value: object, where: str) -> dict[str, object]:
    fields = as_object(value)
    if fields is None:
        raise InputError(f"a JSON object was expected, not {shown(value)}", where=where)
    return fields
