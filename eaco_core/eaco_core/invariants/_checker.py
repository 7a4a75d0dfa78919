"""What every history checker is: a small class that looks on while a history is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.decisions import Record
    from eaco_core.effects import Effect
    from eaco_core.history import EnergyLine, Header, Step
    from eaco_core.invariants._replay import Placement, World

TIME_SLACK = 1e-6


class Checker:
    """Looks on at the moments it overrides, and tells what breaks its invariant.

    `unanswered` is a sentence once the history turns out to lack what it needs.
    """

    invariant: ClassVar[str]
    """The id of the invariant, I01 to I30."""

    needs_records: ClassVar[bool] = False
    """Whether only recorded decisions can answer it, not commands alone."""

    def __init__(self, header: Header, world: World, tell: Callable[[str, str], None]) -> None:
        self.header = header
        self.rules = header.rules
        self.world = world
        self._tell = tell
        self.unanswered: str | None = None

    def broken(self, message: str) -> None:
        """Tell a violation, in one plain sentence."""
        self._tell(self.invariant, f"{message}, at t={self.world.now_s:g} s")

    def before_event(self, step: Step, stale: str | None) -> None:
        """Look at the world before the event of a step. `stale`: why it changes nothing."""

    def on_placement(self, placement: Placement) -> None:
        """Look at the world before a job is given GPUs."""

    def after_placement(self, placement: Placement) -> None:
        """Look at the world after a job was given GPUs."""

    def on_record(self, record: Record) -> None:
        """Look at the world before a decision is folded in."""

    def on_effect(self, effect: Effect) -> None:
        """Look at the world before a command is folded in."""

    def at_end(self, step: Step) -> None:
        """Look at the world after a step."""

    def on_energy(self, line: EnergyLine) -> None:
        """Look at the energy of one node over one interval."""

    def missing(self) -> str | None:
        """Say what the history lacks so that this cannot be answered; None = nothing."""
        return self.unanswered


def above(value: float, limit: float) -> bool:
    """Tell whether a number is above a limit by more than rounding."""
    return value > limit + TIME_SLACK * max(1.0, abs(limit))


def alike(first: float, second: float) -> bool:
    """Tell whether two numbers are equal but for rounding."""
    return not above(first, second) and not above(second, first)
