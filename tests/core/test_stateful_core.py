"""The machine in a hostile world, under each policy: random events, faults and times."""

from __future__ import annotations

from eaco_core.testing.stateful import SchedulerTest


class Eaco(SchedulerTest):
    """R1-R18: every invariant binds."""


class EacoPaper(SchedulerTest):
    """The listing of the paper."""

    policy_name = "eaco-paper"


class Fifo(SchedulerTest):
    """Strict order, exclusive."""

    policy_name = "fifo"


class FifoSkip(SchedulerTest):
    """The first that fits, exclusive."""

    policy_name = "fifo-skip"


TestEaco = Eaco.TestCase
TestEacoPaper = EacoPaper.TestCase
TestFifo = Fifo.TestCase
TestFifoSkip = FifoSkip.TestCase
