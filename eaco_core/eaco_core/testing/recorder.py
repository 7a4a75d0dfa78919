"""A machine that is watched: every step is kept, and every state is checked.

Feed events through `Recorder.feed` instead of `SchedulerMachine.step`. A state that
breaks an invariant raises `InvariantBroken` at once; `Recorder.check` runs the whole
history through the checkers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.errors import EventRefused
from eaco_core.history import Header, Step
from eaco_core.invariants import binding, check_history, check_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.events import Event
    from eaco_core.history import Line
    from eaco_core.invariants import Report, Violation
    from eaco_core.machine import SchedulerMachine


class InvariantBroken(AssertionError):
    """A state or a history breaks an invariant; `violations` says which."""

    def __init__(self, violations: Sequence[Violation], lines: Sequence[Line]) -> None:
        told = "\n".join(str(violation) for violation in violations[:10])
        super().__init__(f"{told}\n{in_words(lines)}")
        self.violations = tuple(violations)


def in_words(lines: Iterable[Line]) -> str:
    """Give the steps of a history, one part a line, to read in a failed test."""
    told: list[str] = []
    for line in lines:
        if isinstance(line, Step):
            told.append(f"{line.seq:4} {line.event}")
            told += [f"       ! {effect}" for effect in line.effects]
            told += [f"       . {record}" for record in line.records]
    return "\n".join(told)


class Recorder:
    """Feeds a machine, and keeps what it did.

    `watch`: look at the whole state after each step; may be changed on the way.
    `ignore`: invariants that are known to be broken and are not to be told of.
    """

    def __init__(
        self,
        machine: SchedulerMachine,
        *,
        watch: bool = True,
        ignore: frozenset[str] = frozenset(),
    ) -> None:
        self.machine = machine
        self.policy_name = machine.policy.name
        self.bound = binding(self.policy_name) - ignore
        self.lines: list[Line] = [Header(policy=self.policy_name, rules=machine.rules)]
        self.records: list[Record] = []
        self.refused = 0
        self.watch = watch
        self._state = machine.snapshot()

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Take one step; check the state after it. Raises EventRefused as the machine does."""
        machine = self.machine
        try:
            effects = machine.step(event)
        except EventRefused:
            self.refused += 1
            self._check_untouched(event)
            raise
        step = Step(machine.seq, event.t_s, machine.term, event, effects, machine.records)
        self.lines.append(step)
        self.records.extend(machine.records)
        if self.watch:
            before, self._state = self._state, machine.snapshot()
            found = check_state(self._state, before, policy=self.policy_name)
            found = [violation for violation in found if violation.invariant in self.bound]
            if found:
                raise InvariantBroken(found, self.lines)
        return effects

    def _check_untouched(self, event: Event) -> None:
        if self.watch and self.machine.snapshot() != self._state:
            raise AssertionError(f"{event!r} was refused, and yet it changed the state")

    def report(self) -> Report:
        """Give what the history checkers say of everything so far."""
        return check_history(self.lines, self.bound)

    def check(self) -> None:
        """Raise InvariantBroken if the history breaks an invariant."""
        report = self.report()
        if not report.ok:
            raise InvariantBroken(report.failed, self.lines)
