"""A picture of somebody else's cluster, for schedulers that decide by themselves.

A scheduler with a queue and an executor of its own builds a `Board` from what it
knows, and asks `find_candidates`, `predict_jct` and `refusal` about one job. Nothing
is placed and nothing is remembered: the next question gets a new board.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import field, frozen

from eaco_core import _validate as check
from eaco_core._ledger import Ledger
from eaco_core._power_table import PowerTable
from eaco_core._queue import JobQueue
from eaco_core._records import JobRecord
from eaco_core.cluster import NodeSpec, NodeState
from eaco_core.errors import InputError
from eaco_core.evidence import Evidence, OverflowLaw
from eaco_core.jobs import JobSpec, JobState
from eaco_core.rules import Rules
from eaco_core.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eaco_core.effects import Observation
    from eaco_core.ports import JctPredictor, PowerModel


@frozen
class Running:
    """A job that runs: on which GPUs (by id), and how many epochs it has done."""

    job: JobSpec = field(validator=check.instance_of(JobSpec))
    gpus: tuple[str, ...] = field(validator=check.tuple_of(str))
    epochs_done: int = field(default=0, validator=[check.whole, check.not_negative])
    started_s: float = field(default=0.0, validator=check.finite)


class Board:
    """Who runs where at `now_s`. `view` is what the plain functions take.

    Raises InputError for GPUs that no node has, for a job id or a GPU named twice,
    and for a job with another number of GPUs than it asks for.
    """

    def __init__(
        self,
        *,
        now_s: float,
        nodes: Iterable[NodeSpec],
        running: Sequence[Running] = (),
        rules: Rules | None = None,
        predictor: JctPredictor | None = None,
        power: PowerModel | None = None,
        history: Iterable[Observation] = (),
    ) -> None:
        if not (isinstance(now_s, (int, float)) and 0 <= now_s < math.inf):
            raise InputError(f"now_s must be a finite number of at least 0, not {now_s!r}")
        rules = Rules() if rules is None else rules
        predictor = OverflowLaw(rules.law_margin) if predictor is None else predictor
        evidence = Evidence(rules, predictor, history)
        ledger = Ledger(rules, evidence)
        queue = JobQueue(rules.exclusive_priority, rules.starvation_s)
        table = None if power is None else PowerTable(power, rules)
        self._jobs: dict[str, JobRecord] = {}
        self.view = View(rules, ledger, queue, evidence, table, now_s)
        for node in nodes:
            if not isinstance(node, NodeSpec):
                raise InputError(f"{node!r} is not a NodeSpec")
            if node.node_id in ledger.nodes:
                raise InputError(f"node {node.node_id} is on the board already")
            ledger.add_node(node, NodeState.AWAKE, now_s)
        for job in running:
            self._book(job)

    def newcomer(self, spec: JobSpec, *, epochs_done: int = 0) -> JobRecord:
        """Give a job that is to be placed, for the plain functions."""
        if spec.job_id in self._jobs:
            raise InputError(f"job {spec.job_id} is on the board already")
        if epochs_done < 0 or epochs_done > (spec.epochs or epochs_done):
            raise InputError(
                f"job {spec.job_id} cannot have done {epochs_done} of {spec.epochs} epochs"
            )
        job = JobRecord(spec, self.view.queue.kind_of(spec))
        job.epochs_done = epochs_done
        return job

    def _book(self, running: Running) -> None:
        job = self.newcomer(running.job, epochs_done=running.epochs_done)
        ledger = self.view.ledger
        unknown = [gpu_id for gpu_id in running.gpus if gpu_id not in ledger.gpus]
        if unknown:
            raise InputError(
                f"job {running.job.job_id} runs on GPU {unknown[0]}, which no node has"
            )
        if len(set(running.gpus)) != running.job.gpus or len(running.gpus) != running.job.gpus:
            raise InputError(
                f"job {running.job.job_id} asks for {running.job.gpus} GPUs, "
                f"but runs on {len(running.gpus)}"
            )
        job.state = JobState.SETTLED
        job.computing = True
        job.started_s = running.started_s
        job.epochs_this_attempt = running.epochs_done
        self._jobs[running.job.job_id] = job
        gpus = tuple(ledger.gpus[gpu_id] for gpu_id in running.gpus)
        ledger.book(job, gpus)
        for resident in {r.spec.job_id: r for gpu in gpus for r in gpu.residents}.values():
            resident.upper_ratio = self.view.evidence.bound_now(resident)
