"""FIFO, the baseline: every job alone on its GPUs, in order (R17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.policies.base import Place, Wait
from eaco_core.policies.ordered import QueuePass
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core.policies.base import Action
    from eaco_core.view import View

NO_IDLE_SET = "no idle set of its size is free"


class Fifo:
    """Strict order: while the first job does not fit, nobody behind it starts."""

    name = "fifo"
    rules = Rules(starvation_s=float("inf"))
    bounded_undo = True

    def decide(self, view: View, /) -> Iterator[Action]:
        """Place the head of the queue as long as it fits."""
        while (job := view.queue.head()) is not None:
            gpus = view.idle_set(job)
            if gpus is None:
                yield Wait(job, NO_IDLE_SET)
                break
            yield Place(job, gpus)
        for cls in view.queue.classes:
            for _, waiting in list(cls.fresh):
                if waiting is not view.queue.head():
                    yield Wait(waiting, "waits behind the first job of the queue")
            cls.fresh.clear()


class FifoSkip:
    """The first job in order that fits; one that does not fit blocks nobody."""

    name = "fifo-skip"
    rules = Rules(starvation_s=float("inf"))
    bounded_undo = True

    def decide(self, view: View, /) -> Iterator[Action]:
        """Place every job that finds an idle set, in order."""
        queue_pass = QueuePass(view, lambda since_seq: view.ledger.free_seq > since_seq)
        for cls, job, _ in queue_pass:
            gpus = view.idle_set(job)
            if gpus is None:
                yield Wait(job, NO_IDLE_SET)
                yield from queue_pass.drop(cls, NO_IDLE_SET)
            else:
                yield Place(job, gpus)
