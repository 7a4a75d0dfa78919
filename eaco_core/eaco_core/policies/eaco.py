"""EaCO: share where every deadline holds by its bound and energy is saved (R1-R18).

For each queued job in order: a shared set first (R4), then an idle one, then a node
that has to wake, then waiting, with the reason on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaco_core.admission import is_undone, predict_jct, refusal
from eaco_core.candidates import Refusals, find_candidates
from eaco_core.decisions import BoundSource, Refusal
from eaco_core.payoff import payoff
from eaco_core.policies.base import Place, Reserve, Wait
from eaco_core.policies.ordered import QueuePass
from eaco_core.policies.reservations import reservation_for
from eaco_core.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaco_core._records import GpuRecord, JobRecord
    from eaco_core.admission import Effect
    from eaco_core.candidates import Candidate
    from eaco_core.policies.base import Action
    from eaco_core.view import Reservation, View


class Eaco:
    """The default policy. All its numbers are in `Rules`."""

    name = "eaco"
    rules = Rules()
    bounded_undo = True

    def decide(self, view: View, /) -> Iterator[Action]:
        """Look at every queued job for which something changed."""
        yield from _reserve(view)
        queue_pass = QueuePass(view, lambda since_seq: view.ledger.changed_seq > since_seq)
        for cls, job, since_seq in queue_pass:
            search = Search(job, view, since_seq, exclusive=cls.exclusive)
            found = search.place()
            if found is not None:
                yield found
                continue
            cls.timely = cls.timely or search.refusals.timely
            yield Wait(job, search.reason(), search.as_records())
            if not search.any_candidate and not _backfill_open(view):
                old_only = since_seq > 0 and not cls.exclusive
                yield from queue_pass.drop(cls, search.reason(), old_only=old_only)


def _reserve(view: View) -> Iterator[Reserve]:
    """Hold GPUs for the first starving job that any set suits (R11)."""
    held = view.reservation
    for job in view.queue.starving(view.now_s):
        if held is not None and held.job is job and _still_right(held, view):
            return
        found = reservation_for(job, view)
        if found is not None:
            yield Reserve(job, *found)
            return
        if held is not None and held.job is job and held.gpus:
            # Nothing suits it any more: what is held would keep others out for nothing.
            yield Reserve(job, (), None)
            held = view.reservation


def _still_right(held: Reservation, view: View) -> bool:
    """Tell whether nothing has changed that R11 would compute the set again for."""
    in_time = held.start_s is None or view.now_s <= held.start_s
    same = held.evidence_version == view.evidence.version
    whole = bool(held.gpus) and all(gpu.residents and gpu.up for gpu in held.gpus)
    return in_time and same and whole


def _backfill_open(view: View) -> bool:
    """Tell whether a short job could use held GPUs: then jobs of a class differ."""
    held = view.reservation
    if held is None or held.start_s is None:
        return False
    return any(not gpu.residents for gpu in held.gpus)


class Search:
    """The search of a place for one job."""

    def __init__(self, job: JobRecord, view: View, since_seq: int, *, exclusive: bool) -> None:
        self._job = job
        self._view = view
        self._since_seq = since_seq
        self._must_be_alone = exclusive
        self.refusals = Refusals()
        self.exclusive: tuple[GpuRecord, ...] | None = None
        self.any_candidate = False

    def place(self) -> Place | None:
        """Give the best placement, None if the job has to wait."""
        job, view = self._job, self._view
        self.exclusive = view.idle_set(job)
        if self._may_share():
            shared = self._best_shared()
            if shared is not None:
                return shared
        if self.exclusive is None:
            return None
        return Place(job, self.exclusive, refusals=self.as_records())

    def _may_share(self) -> bool:
        if self._must_be_alone:
            self.refusals.add("R2", "it must run alone")
            return False
        late = any(self._job.late(self._view.now_s, t) for t in self._view.gpu_types(self._job))
        if late and self._view.rules.late_jobs == "exclusive":
            self.refusals.add("R8", "it is late, and late jobs run alone")
            return False
        return True

    def _best_shared(self) -> Place | None:
        by_objective = self._view.rules.order == "objective"
        best: tuple[float, Place] | None = None
        sets = find_candidates(
            self._job,
            self._view,
            since_seq=self._since_seq,
            refusals=self.refusals,
            part_refusal=self._part_refusal,
        )
        for candidate in sets:
            self.any_candidate = True
            place = self._admit(candidate)
            if place is None:
                continue
            if not by_objective:
                return place
            score = self._score(place)
            if best is None or score < best[0]:
                best = score, place
        return None if best is None else best[1]

    def _admit(self, candidate: Candidate) -> Place | None:
        job, view, gpus = self._job, self._view, candidate.gpus
        effects = predict_jct(job, gpus, view)
        if is_undone(job, effects, view):
            self.refusals.add("R10", "this set was undone before")
            return None
        if any(effect.estimate.source is BoundSource.NONE for effect in effects):
            return self._explore(gpus, effects)
        refused = refusal(effects, view)
        if refused is not None:
            self.refusals.add(refused[0], refused[1], timely=refused[2])
            return None
        if not self._leaves_reservation(gpus, effects):
            self.refusals.add("R11", "its GPUs are held for a job that waited longer")
            return None
        gain = payoff(effects, gpus, self.exclusive, view)
        if not gain.pays:
            self.refusals.add("R7", "sharing would not save energy", timely=True)
            return None
        return Place(job, gpus, tuple(effects), gain, refusals=self.as_records())

    def _part_refusal(self, gpus: tuple[GpuRecord, ...]) -> tuple[str, str, bool] | None:
        """Give why no set with these GPUs can be admitted: a larger set only slows more."""
        effects = predict_jct(self._job, gpus, self._view)
        unknown = any(effect.estimate.source is BoundSource.NONE for effect in effects)
        if unknown and self._view.rules.explore:
            return None
        return refusal(effects, self._view)

    def _explore(self, gpus: tuple[GpuRecord, ...], effects: list[Effect]) -> Place | None:
        view = self._view
        if not view.rules.explore:
            self.refusals.add("R5", "no bound for this set: measure it, or run alone")
        elif view.open_windows:
            self.refusals.add("R5", "another set is being explored", timely=True)
        elif any(effect.job.spec.deadline_s is not None for effect in effects):
            self.refusals.add("R5", "a deadline forbids exploring")
        elif not self._leaves_reservation(gpus, effects):
            self.refusals.add("R11", "its GPUs are held for a job that waited longer")
        else:
            records = self.as_records()
            return Place(self._job, gpus, tuple(effects), explored=True, refusals=records)
        return None

    def _leaves_reservation(self, gpus: tuple[GpuRecord, ...], effects: list[Effect]) -> bool:
        held = self._view.reservation
        if held is None or held.job is self._job:
            return True
        touched = {
            gpu.spec.gpu_id
            for effect in effects
            for gpu in (gpus if effect is effects[0] else effect.job.gpus)
        }
        if not any(gpu.spec.gpu_id in touched for gpu in held.gpus):
            return True
        ends = (e.start_s + e.estimate.upper_ratio * e.remaining_s for e in effects)
        return held.start_s is not None and max(ends) <= held.start_s

    def _score(self, place: Place) -> float:
        """Give the paper's Eq 1 with both terms made comparable (R4)."""
        alpha = self._view.rules.alpha
        ratios = [effect.estimate.upper_ratio for effect in place.effects]
        slowdown = sum(ratios) / len(ratios)
        gain = place.payoff
        if gain is None or gain.extra_j is None or not gain.alternative_j:
            return slowdown
        return alpha * gain.extra_j / gain.alternative_j + (1 - alpha) * slowdown

    def reason(self) -> str:
        """Give why the job waits, in one sentence."""
        shared = "; ".join(sorted({reason for _, reason in self.refusals.counts}))
        alone = "no idle set of its size is free"
        return f"{alone}; sharing: {shared}" if shared else alone

    def as_records(self) -> tuple[Refusal, ...]:
        """Give the refusals as plain data."""
        counts = self.refusals.counts
        return tuple(Refusal(rule, reason, counts[rule, reason]) for rule, reason in sorted(counts))
