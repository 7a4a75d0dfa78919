"""A machine with a twin that was restored from a dump: both must do the same for ever after.

For the machine itself, and for policies of your own: one that keeps state which is not
in the dump is found here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from eaco_core.errors import EventRefused
from eaco_core.machine import SchedulerMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.effects import Effect
    from eaco_core.events import Event


class TwinsDiffer(AssertionError):
    """A machine that was restored does something else than the one that was dumped."""


class TwinnedMachine(SchedulerMachine):
    """Steps its twin along and compares. `renew` makes a new twin of how it is now.

    `change` may spoil the data on the way, to see that the comparison notices.
    """

    twin: SchedulerMachine | None = None
    change: Callable[[dict[str, Any]], None] | None = None

    def renew(self) -> None:
        """Replace the twin by a machine that is restored from a dump, by way of JSON text."""
        data = json.loads(json.dumps(self.dump(), allow_nan=False))
        if self.change is not None:
            self.change(data)
        self.twin = SchedulerMachine.restore(
            data, policy=self.policy, predictor=self.given_predictor, power=self.power
        )
        if self.change is None and self.twin.dump() != data:
            raise TwinsDiffer("what was restored is not what was dumped")
        self._compare("just restored")

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Step both."""
        try:
            effects = super().step(event)
        except EventRefused:
            if self.twin is not None:
                self._must_refuse(self.twin, event)
            raise
        if self.twin is not None:
            try:
                again = self.twin.step(event)
            except EventRefused as refused:
                raise TwinsDiffer(f"{event!r} is refused: {refused}") from refused
            if again != effects:
                raise TwinsDiffer(f"{event!r}: effects are {again!r}, and should be {effects!r}")
            if self.twin.records != self.records:
                told = f"{self.twin.records!r}, and should be {self.records!r}"
                raise TwinsDiffer(f"{event!r}: records are {told}")
            self._compare(repr(event))
        return effects

    @staticmethod
    def _must_refuse(twin: SchedulerMachine, event: Event) -> None:
        try:
            twin.step(event)
        except EventRefused:
            return
        raise TwinsDiffer(f"{event!r} should be refused, and is not")

    def _compare(self, when: str) -> None:
        twin = self.twin
        if twin is None:
            return
        if twin.next_wakeup_s != self.next_wakeup_s:
            found = f"{twin.next_wakeup_s!r}, and should be {self.next_wakeup_s!r}"
            raise TwinsDiffer(f"{when}: next_wakeup_s is {found}")
        if twin.outstanding() != self.outstanding():
            raise TwinsDiffer(f"{when}: other commands are outstanding")
        if twin.snapshot() != self.snapshot():
            raise TwinsDiffer(f"{when}: the snapshots differ")
