"""The legal moves of a job, as a table.

Two rules on what may live here. (1) Every change of a job's state goes through
this table; nothing else knows which moves are legal. (2) This file knows nothing
of GPUs, windows or policies.

A job holds GPUs in `starting`, `observing`, `settled` and `stopping`. It leaves
`stopping` only when every GPU is proven free (GpusReleased), and where it then
goes was decided when it entered: back to the queue, or to one of the three ends.
So a job that finished is `stopping` until its GPUs are released, and counts as
finished from the moment that it said so.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from eaco_core.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

_S = JobState

MOVES: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        _S.QUEUED: frozenset({_S.STARTING, _S.CANCELLED}),
        _S.STARTING: frozenset(
            {_S.OBSERVING, _S.SETTLED, _S.STOPPING, _S.QUEUED, _S.FAILED, _S.CANCELLED}
        ),
        _S.OBSERVING: frozenset({_S.SETTLED, _S.STOPPING, _S.QUEUED}),
        _S.SETTLED: frozenset({_S.STOPPING, _S.QUEUED}),
        _S.STOPPING: frozenset({_S.QUEUED, _S.FINISHED, _S.FAILED, _S.CANCELLED}),
        _S.FINISHED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)

HOLDING = frozenset({_S.STARTING, _S.OBSERVING, _S.SETTLED, _S.STOPPING})
RUNNING = frozenset({_S.OBSERVING, _S.SETTLED})
TERMINAL = frozenset(state for state, moves in MOVES.items() if not moves)


def is_legal(old: JobState, new: JobState) -> bool:
    """Tell whether a job may move from `old` to `new`."""
    return new in MOVES[old]


def mermaid() -> str:
    """Draw the table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> queued"]
    for old, moves in MOVES.items():
        lines += [f"    {old.value} --> {new.value}" for new in JobState if new in moves]
        if not moves:
            lines.append(f"    {old.value} --> [*]")
    return "\n".join(lines) + "\n"
