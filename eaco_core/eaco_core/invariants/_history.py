"""A history against all invariants, in one pass."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING

from eaco_core.decisions import Ignored, Placed
from eaco_core.effects import RecordObservation, StartJob
from eaco_core.history import EnergyLine, Header, Step, encode, read_history
from eaco_core.invariants._admission import Admission, Bounded, Closure, StaleRetry
from eaco_core.invariants._checker import Checker
from eaco_core.invariants._energy import Energy
from eaco_core.invariants._fold import (
    apply_effect,
    apply_event,
    apply_record,
    placement_in,
    stale_reason,
)
from eaco_core.invariants._happened import Happened
from eaco_core.invariants._lifecycle import (
    Cancel,
    Conservation,
    Fencing,
    Idempotence,
    NodeFailure,
    Order,
    Progress,
    Terminal,
)
from eaco_core.invariants._placement import Degree, Gang, Gates, Hardware, Memory, OneExperiment
from eaco_core.invariants._replay import World
from eaco_core.invariants._report import TITLES, Report, Violation, binding
from eaco_core.invariants._starts import Starts
from eaco_core.invariants._waiting import Fairness, Fallback
from eaco_core.invariants._windows import KeepEvidence, UndoExact, UndoForced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.history import Line

CHECKERS: tuple[type[Checker], ...] = (
    Memory,
    Gates,
    Gang,
    Starts,
    Hardware,
    OneExperiment,
    Degree,
    Admission,
    Closure,
    KeepEvidence,
    UndoForced,
    UndoExact,
    StaleRetry,
    Bounded,
    Fallback,
    Conservation,
    Terminal,
    Progress,
    Order,
    Fencing,
    Idempotence,
    Fairness,
    NodeFailure,
    Cancel,
    Energy,
)

NOT_IN_ONE_HISTORY = {
    "I23": "it needs a second history of the same input to compare with",
    "I25": "it needs the scheduler itself, asked again with other numbers",
    "I26": "it needs the predictor itself",
}
_KEPT = 20


class HistoryChecker:
    """Takes in a history line by line, then gives the report.

    `bound`: the invariants to check; None = those that bind the policy in the header.
    """

    def __init__(self, header: Header, bound: frozenset[str] | None = None) -> None:
        ours = header.origin == "eaco"
        self.header = header
        self.world = World(header.rules, ours)
        self.bound = binding(header.policy if ours else "") if bound is None else bound
        self._checkers = [
            cls(header, self.world, self._tell) for cls in CHECKERS if cls.invariant in self.bound
        ]
        self._before_event = self._that_override("before_event")
        self._on_placement = self._that_override("on_placement")
        self._after_placement = self._that_override("after_placement")
        self._on_record = self._that_override("on_record")
        self._on_effect = self._that_override("on_effect")
        self._at_end = self._that_override("at_end")
        self._on_energy = self._that_override("on_energy")
        self._seq: int | None = None
        self._failed: list[Violation] = []
        self._counts: dict[str, int] = {}
        self._happened = Happened()
        self._unexplained_starts = 0

    def _that_override(self, name: str) -> list[Callable[..., None]]:
        return [
            getattr(checker, name)
            for checker in self._checkers
            if getattr(type(checker), name) is not getattr(Checker, name)
        ]

    def _tell(self, invariant: str, message: str) -> None:
        count = self._counts[invariant] = self._counts.get(invariant, 0) + 1
        if count <= _KEPT:
            self._failed.append(Violation(invariant, message, self._seq))

    def take(self, line: Line) -> None:
        """Take in one more line. A second header is of no account."""
        if isinstance(line, Step):
            self._seq = line.seq
            self._step(line)
            self._seq = None
        elif isinstance(line, EnergyLine):
            for look in self._on_energy:
                look(line)

    def _step(self, step: Step) -> None:
        world = self.world
        stale = stale_reason(world, step)
        world.now_s = max(world.now_s, step.t_s)
        world.ignored = any(isinstance(record, Ignored) for record in step.records)
        self._happened.note_step(step, world)
        for look in self._before_event:
            look(step, stale)
        if stale is None and not world.ignored:
            apply_event(world, step)
        for effect in step.effects:
            if isinstance(effect, RecordObservation):
                world.seen.add(effect.observation)
        for record in step.records:
            self._record(record)
        for effect in step.effects:
            self._effect(effect)
        for look in self._at_end:
            look(step)
        world.queued_now.clear()
        world.last_seq, world.last_s = step.seq, step.t_s

    def _record(self, record: Record) -> None:
        self._place(record)
        for look in self._on_record:
            look(record)
        apply_record(self.world, record)

    def _effect(self, effect: Effect) -> None:
        for look in self._on_effect:
            look(effect)
        if isinstance(effect, StartJob):
            self._place(effect)
        apply_effect(self.world, effect)

    def _place(self, item: object) -> None:
        placement = placement_in(self.world, item)
        if placement is None:
            return
        if not isinstance(item, Placed):
            self._unexplained_starts += 1
        self._happened.note_placement(placement)
        for look in self._on_placement:
            look(placement)
        self.world.book(placement)
        for look in self._after_placement:
            look(placement)

    def report(self) -> Report:
        """Give what was found."""
        bound = self.bound
        not_checked = {i: why for i, why in NOT_IN_ONE_HISTORY.items() if i in bound}
        for checker in self._checkers:
            why = self._missing(checker)
            if why is not None and checker.invariant not in self._counts:
                not_checked[checker.invariant] = why
        passed = [i for i in TITLES if i in bound and i not in not_checked]
        return Report(
            passed=tuple(i for i in passed if i not in self._counts),
            failed=tuple(self._failed),
            not_checked=dict(sorted(not_checked.items())),
            counts={i: self._counts[i] for i in TITLES if i in self._counts},
            steps=self._happened.steps,
            jobs=self.world.submitted,
            policy=self.header.policy,
            origin=self.header.origin,
            unended=len(self.world.jobs),
            notes=self._happened.notes(self.world),
        )

    def _missing(self, checker: Checker) -> str | None:
        if checker.needs_records and self._unexplained_starts:
            count = self._unexplained_starts
            return f"{count} placements come without a record of the decision"
        return checker.missing() or self._happened.nothing_for(checker.invariant)


def check_history(
    source: str | Path | Iterable[Line], bound: frozenset[str] | None = None
) -> Report:
    """Check a history file, or its lines, against the invariants that bind its policy.

    One pass; memory is bounded by the jobs that are alive. Raises InputError where the
    file is not a history.
    """
    lines = read_history(source) if isinstance(source, (str, os.PathLike)) else source
    checker: HistoryChecker | None = None
    for line in lines:
        if checker is None:
            header = line if isinstance(line, Header) else Header()
            checker = HistoryChecker(header, bound)
        checker.take(line)
    return (checker or HistoryChecker(Header(), bound)).report()


def compare_histories(first: Iterable[Line], second: Iterable[Line]) -> list[Violation]:
    """Give the first difference of two histories of the same input (I23), if there is one.

    The header's `info` may differ: it may name the machine or the day.
    """
    for a, b in zip_longest(first, second):
        if isinstance(a, Header) and isinstance(b, Header):
            same = (a.policy, a.rules, a.seed) == (b.policy, b.rules, b.seed)
        else:
            same = a is not None and b is not None and encode(a) == encode(b)
        if not same:
            seq = a.seq if isinstance(a, Step) else b.seq if isinstance(b, Step) else None
            what = "one ends before the other" if a is None or b is None else "they part here"
            return [Violation("I23", f"two runs of the same input differ: {what}", seq)]
    return []
