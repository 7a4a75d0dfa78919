"""What a check says: violations, and for every invariant passed or not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

TITLES: Mapping[str, str] = {
    "I01": "memory: the peaks of all residents fit into every GPU",
    "I02": "utilisation gate: only GPUs below the thresholds are shared",
    "I03": "gang: a job holds exactly the GPUs that it asked for, or none",
    "I04": "hardware: jobs are placed only on GPUs that are up and not drained",
    "I05": "one experiment at a time on the GPUs of every affected job",
    "I06": "degree: at most K jobs on a GPU, and one if it is exclusive",
    "I07": "admission: no placement breaks a deadline by its bounds",
    "I08": "closure: a placement looks at every job that it affects",
    "I09": "a newcomer is kept only on evidence",
    "I10": "undo is forced when the evidence fails",
    "I11": "undo is exact: residents keep their GPUs",
    "I12": "no stale retry of what was undone",
    "I13": "bounded experiments: after B undos only exclusive placements",
    "I14": "fallback: a job that fits an idle set is placed or has a reason to wait",
    "I15": "conservation: every job is in exactly one state",
    "I16": "terminal is final",
    "I17": "progress: every epoch counts once",
    "I18": "time and order: steps are numbered from 1, time never goes back",
    "I19": "fencing: terms never decrease",
    "I20": "idempotence: stale events change nothing",
    "I23": "determinism: the same input gives the same decisions",
    "I24": "queue fairness: the order of the queue and its reservation hold",
    "I25": "monotone admission",
    "I26": "predictor sanity",
    "I28": "node failure: everything on a lost node stops",
    "I29": "cancel: a cancelled job holds no GPU and never starts again",
    "I30": "energy: every joule of a node is booked once",
}

_BASELINE = frozenset({"I03", "I04", "I06", "I15", "I16", "I17", "I18", "I20", "I28", "I29", "I30"})
# What the listing of the paper cannot keep of these; its policy file gives the reasons.
_PAPER_CANNOT: frozenset[str] = frozenset()


def binding(policy_name: str) -> frozenset[str]:
    """Give the invariants that bind a policy: all of them `eaco`, fewer any other.

    Baselines and schedulers that are not eaco promise only what any scheduler must.
    """
    if policy_name == "eaco":
        return frozenset(TITLES)
    return _BASELINE - _PAPER_CANNOT if policy_name == "eaco-paper" else _BASELINE


@frozen
class Violation:
    """One broken invariant: which, what happened, and at which step (None = in no step)."""

    invariant: str
    message: str
    seq: int | None = None

    def __str__(self) -> str:
        place = f" (step {self.seq})" if self.seq is not None else ""
        return f"{self.invariant}{place}: {self.message}"


@frozen
class Report:
    """The result of checking one history.

    `failed` holds the first violations of each invariant, `counts` how many there were
    in all. `not_checked` says for every binding invariant that the history cannot answer
    why it cannot; such an invariant is never among `passed`. `unended`: how many jobs had
    not ended (or still held GPUs) when the history did. `notes` are sentences about what
    breaks no invariant, and whoever reads the report should know.
    """

    passed: tuple[str, ...]
    failed: tuple[Violation, ...]
    not_checked: Mapping[str, str]
    counts: Mapping[str, int] = field(factory=dict[str, int])
    steps: int = 0
    jobs: int = 0
    policy: str = ""
    origin: str = ""
    unended: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether nothing was violated."""
        return not self.failed
