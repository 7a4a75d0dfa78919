"""A machine with twins that were restored from a dump: all must do the same for ever after.

For the machine itself, and for policies of your own: one that keeps state which is not
in the dump is found here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from eaco_core.errors import EacoError, EventRefused
from eaco_core.machine import SchedulerMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core.effects import Effect
    from eaco_core.events import Event


class TwinsDiffer(AssertionError):
    """A machine that was restored does something else than the one that was dumped."""


class TwinnedMachine(SchedulerMachine):
    """Steps its twins along and compares. `renew` makes a new twin of how it is now.

    `change` may spoil the data on the way, to see that the comparison notices.
    `every_step`: make one more twin after each step, and keep them all.
    """

    change: Callable[[dict[str, Any]], None] | None = None
    every_step = False
    twins: tuple[SchedulerMachine, ...] = ()

    def renew(self, *, keep: bool = False) -> None:
        """Replace the twins (`keep`: add one) by a machine restored from a dump, as JSON text."""
        data = json.loads(json.dumps(self.dump(), allow_nan=False))
        change = type(self).change
        if change is not None:
            change(data)
        twin = SchedulerMachine.restore(
            data, policy=self.policy, predictor=self.given_predictor, power=self.power
        )
        if change is None and twin.dump() != data:
            raise TwinsDiffer("what was restored is not what was dumped")
        self.twins = (*self.twins, twin) if keep else (twin,)
        self._compare(twin, "just restored")

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Step all."""
        try:
            effects = super().step(event)
        except EventRefused:
            for twin in self.twins:
                _must_refuse(twin, event)
            raise
        for twin in self.twins:
            try:
                again = twin.step(event)
            except EacoError as refused:
                raise TwinsDiffer(f"{event!r} is refused: {refused}") from refused
            if again != effects:
                raise TwinsDiffer(f"{event!r}: effects are {again!r}, and should be {effects!r}")
            if twin.records != self.records:
                told = f"{twin.records!r}, and should be {self.records!r}"
                raise TwinsDiffer(f"{event!r}: records are {told}")
            self._compare(twin, repr(event))
        if self.every_step:
            self.renew(keep=True)
        return effects

    def _compare(self, twin: SchedulerMachine, when: str) -> None:
        if twin.next_wakeup_s != self.next_wakeup_s:
            found = f"{twin.next_wakeup_s!r}, and should be {self.next_wakeup_s!r}"
            raise TwinsDiffer(f"{when}: next_wakeup_s is {found}")
        if twin.outstanding() != self.outstanding():
            raise TwinsDiffer(f"{when}: other commands are outstanding")
        if twin.snapshot() != self.snapshot():
            raise TwinsDiffer(f"{when}: the snapshots differ")


def _must_refuse(twin: SchedulerMachine, event: Event) -> None:
    try:
        twin.step(event)
    except EventRefused:
        return
    raise TwinsDiffer(f"{event!r} should be refused, and is not")
