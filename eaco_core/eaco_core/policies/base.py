"""The policy interface: a read-only view in, actions out.

`Policy.decide` is called once per pass and yields actions one by one. The machine
checks and carries out each action before it asks for the next, so the view always
shows the state after the last one. A policy keeps no state of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core.admission import Effect
    from eaco_core.decisions import Refusal
    from eaco_core.payoff import Payoff
    from eaco_core.rules import Rules
    from eaco_core.view import View


@frozen(eq=False)
class Place:
    """Give the job these GPUs. A shared placement (`effects` not empty) opens a window."""

    job: JobRecord
    gpus: tuple[GpuRecord, ...]
    effects: tuple[Effect, ...] = ()
    payoff: Payoff | None = None
    explored: bool = False
    refusals: tuple[Refusal, ...] = ()


@frozen(eq=False)
class Wait:
    """Leave the job in the queue, for this reason (R18)."""

    job: JobRecord
    reason: str
    refusals: tuple[Refusal, ...] = ()


@frozen(eq=False)
class Reserve:
    """Hold these GPUs for the job, which has waited too long (R11)."""

    job: JobRecord
    gpus: tuple[GpuRecord, ...]
    start_s: float | None


@frozen(eq=False)
class Preempt:
    """Stop a running job at its next epoch boundary and put it back into the queue."""

    job: JobRecord
    reason: str = field(default="preempted by the policy")


Action: TypeAlias = Place | Wait | Reserve | Preempt


class Policy(Protocol):
    """Decides who runs where. `bounded_undo` False = no limits on undos (paper's listing)."""

    @property
    def name(self) -> str:
        """Give the name by which the policy is chosen and recorded."""
        ...

    @property
    def rules(self) -> Rules:
        """Give the parameters that this policy starts from."""
        ...

    @property
    def bounded_undo(self) -> bool:
        """Tell whether R10's limits on repeated undos apply."""
        ...

    def decide(self, view: View, /) -> Iterable[Action]:
        """Give the actions of one pass."""
        ...
