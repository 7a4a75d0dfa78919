"""Dump and restore in a hostile world: the restored twin does the same for ever after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis.stateful import rule

from eaco_core.policies import policy_named
from eaco_core.testing.builders import PlainPower
from eaco_core.testing.stateful import SchedulerTest
from eaco_core.testing.twins import TwinnedMachine

if TYPE_CHECKING:
    from eaco_core.rules import Rules


class _Restored(SchedulerTest):
    """Whatever happens, at any time the scheduler is dumped, and a restored one steps along."""

    def make_machine(self, rules: Rules, *, power: bool) -> TwinnedMachine:
        machine = TwinnedMachine(
            policy_named(self.policy_name), rules=rules, power=PlainPower() if power else None
        )
        machine.renew()
        return machine

    @rule()
    def dump_and_restore(self) -> None:
        """Go on with a twin of how the machine is now."""
        machine = self.world.machine
        assert isinstance(machine, TwinnedMachine)
        machine.renew()


class Eaco(_Restored):
    """The default policy."""


class EacoPaper(_Restored):
    """The listing of the paper."""

    policy_name = "eaco-paper"


class Fifo(_Restored):
    """Strict order."""

    policy_name = "fifo"


class FifoSkip(_Restored):
    """The first that fits."""

    policy_name = "fifo-skip"


TestEaco = Eaco.TestCase
TestEacoPaper = EacoPaper.TestCase
TestFifo = Fifo.TestCase
TestFifoSkip = FifoSkip.TestCase

# Every step is taken by two machines, and whole states are compared: fewer examples do.
_FEWER = settings(max_examples=max(10, settings().max_examples // 4))
TestEaco.settings = _FEWER
TestEacoPaper.settings = _FEWER
TestFifo.settings = _FEWER
TestFifoSkip.settings = _FEWER
