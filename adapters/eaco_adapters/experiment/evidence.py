"""What the policies are told before the start, and whether that gives the truth away."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from attrs import frozen

from eaco_adapters.words import counted
from eaco_core.effects import Observation, RecordObservation
from eaco_core.history import SCHEMA, Header, Step, read_history
from eaco_predictors.profiles import paper_profiles, read_any_profiles
from eaco_predictors.reading import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eaco_adapters.simulator import GroundTruth
    from eaco_predictors.profiles import ProfileTable

_SAME = 1e-6


@frozen
class KnownBefore:
    """Observations from before the start; `in_sample`: some came from the truth itself."""

    observations: tuple[Observation, ...]
    in_sample: bool
    note: str


def read_evidence(
    source: str,
    *,
    table: ProfileTable,
    truth: GroundTruth,
    truth_id: Mapping[str, object],
) -> KnownBefore:
    """Read what `source` names: none, paper, truth, or a file of profiles or history.

    A file that is called like one of the words is read as `./none`. Raises InputError.
    """
    if source == "none":
        return KnownBefore((), in_sample=False, note="the policies start without any observation")
    recorded_in: object = None
    if source == "paper":
        seen = paper_profiles().observations()
    elif source == "truth":
        seen = table.observations()
    elif _is_history(source):
        seen, recorded_in = _observations(source)
    else:
        seen = read_any_profiles(source, table.gpu_type).observations()
    in_sample = (
        source == "truth"
        or recorded_in == dict(truth_id)
        or any(_tells(one, truth, table) for one in seen)
    )
    told = "what they predict from is the truth itself" if in_sample else "none is from the truth"
    return KnownBefore(
        seen,
        in_sample=in_sample,
        note=f"the policies start with {counted(len(seen), 'observation')} ({source}): {told}",
    )


def _tells(seen: Observation, truth: GroundTruth, table: ProfileTable) -> bool:
    """Tell whether this observation is just what the simulation does."""
    if seen.gpu_type != table.gpu_type:
        return False
    ratio = truth.ratio(seen.workload, seen.co_workloads)
    return ratio is not None and math.isclose(ratio, seen.ratio, rel_tol=_SAME)


def _is_history(path: str) -> bool:
    line = first_line(path).lstrip()
    if not line.startswith("{"):
        return False
    try:
        head: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(head, dict) and head.get("schema") == SCHEMA  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - any JSON


def _observations(path: str) -> tuple[tuple[Observation, ...], object]:
    """Give the observations of a history, and the truth of the simulation that made it."""
    seen: list[Observation] = []
    recorded_in: object = None
    for line in read_history(path):
        if isinstance(line, Header):
            recorded_in = line.info.get("truth")
        elif isinstance(line, Step):
            seen.extend(_recorded(line.effects))
    return tuple(seen), recorded_in


def _recorded(effects: Iterable[object]) -> list[Observation]:
    return [effect.observation for effect in effects if isinstance(effect, RecordObservation)]
