"""Bugs planted in the core one by one: the check named beside each must report it.

Every row has a story. The core as it is passes all checks on it; with the bug planted,
`Script.check` (or what the row says) reports the invariant. So the checks can fail, and
a change that brings one of these bugs back does not go unseen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from attrs import frozen

from eaco_core import _actions, _lifecycle, _windows, admission, candidates
from eaco_core import events as ev
from eaco_core.errors import ActionRefused
from eaco_core.evidence import Evidence
from eaco_core.jobs import JobState
from eaco_core.policies import eaco
from eaco_core.policies.base import Wait
from eaco_core.policies.eaco import Eaco
from eaco_core.rules import Rules
from eaco_core.testing import InvariantBroken, Script, a_job, a_node
from eaco_core.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eaco_core import decisions
    from eaco_core._records import GpuRecord, JobKind, JobRecord
    from eaco_core.admission import Effect
    from eaco_core.policies.base import Action, Place
    from eaco_core.ports import Estimate

    Patch = pytest.MonkeyPatch


def _nothing(*_: object) -> None:
    """Complain of nothing."""


def _no(*_: object) -> bool:
    return False


def _none_at_all(_: View) -> Iterator[Action]:
    return iter(())


def _capacity(gpu: GpuRecord, _: Rules) -> int | None:
    return gpu.spec.mem_bytes


# ---- the bugs ------------------------------------------------------------------------


def stale_candidate_list(patch: Patch) -> None:
    """The candidates of a job are found once and gone through again after an undo."""
    find = candidates.find_candidates
    lists: dict[str, list[candidates.Candidate]] = {}

    def find_once(
        job: JobRecord,
        view: View,
        **more: Any,  # noqa: ANN401 - passed on
    ) -> list[candidates.Candidate]:
        known = lists.get(job.spec.job_id)
        if known is None:
            more["since_seq"] = 0
            known = list(find(job, view, **more))
            if known:
                lists[job.spec.job_id] = known
        return [found for found in known if not any(gpu.locks for gpu in found.gpus)]

    patch.setattr(eaco, "find_candidates", find_once)


def no_fallback(patch: Patch) -> None:
    """No exclusive placement when no shared one is admitted."""
    place = eaco.Search.place

    def shared_only(self: eaco.Search) -> Place | None:
        found = place(self)
        host = any(
            gpu.residents
            for node in self._view.ledger.nodes.values()
            for pool in node.pools.values()
            for gpu in pool.gpus
        )
        return found if found is None or found.effects or not host else None

    patch.setattr(eaco.Search, "place", shared_only)


def _affects_only(patch: Patch, keep: Callable[[Effect, tuple[GpuRecord, ...]], bool]) -> None:
    predict = admission.predict_jct

    def too_few(job: JobRecord, gpus: tuple[GpuRecord, ...], view: View) -> list[Effect]:
        effects = predict(job, gpus, view)
        return [effects[0], *(effect for effect in effects[1:] if keep(effect, gpus))]

    patch.setattr(eaco, "predict_jct", too_few)
    patch.setattr(_actions.Actions, "_cannot_place", _nothing)


def affects_the_first_gpu_only(patch: Patch) -> None:
    """Residents of the other GPUs of a gang are forgotten."""
    _affects_only(patch, lambda effect, gpus: effect.job in gpus[0].residents)


def affects_the_newcomer_only(patch: Patch) -> None:
    """Residents are forgotten."""
    _affects_only(patch, lambda _effect, _gpus: False)


def early_keep(patch: Patch) -> None:
    """A newcomer is kept before every affected job gave an epoch."""
    verify = _windows.verify

    def hasty(
        now_s: float, evidence: Sequence[decisions.Evidence], rules: Rules
    ) -> _windows.Judgement:
        found = verify(now_s, evidence, rules)
        return _windows.Judgement(keep=True, reason=found.reason) if found.keep is None else found

    patch.setattr(_windows, "verify", hasty)


def keep_after_a_void_window(patch: Patch) -> None:
    """Evidence from before the residents changed still counts."""
    gone = _windows.Windows.resident_gone

    def keep_evidence(self: _windows.Windows, job: JobRecord, reason: str) -> None:
        window = job.window
        evidence = {} if window is None else dict(window.epoch_s)
        gone(self, job, reason)
        if window is not None:
            window.epoch_s.update(evidence)

    patch.setattr(_windows.Windows, "resident_gone", keep_evidence)


def stale_retry(patch: Patch) -> None:
    """What was undone is tried again."""
    patch.setattr(eaco, "is_undone", _no)


def unbounded_undos(patch: Patch) -> None:
    """No limit on the undos of a job."""
    patch.setattr(Eaco, "bounded_undo", False)


def handed_on_before_release(patch: Patch) -> None:
    """GPUs are free as soon as the job says that it has finished."""
    finished = _lifecycle.Lifecycle.finished

    def free_at_once(
        self: _lifecycle.Lifecycle, job: JobRecord, event: ev.JobFinished
    ) -> str | None:
        ignored = finished(self, job, event)
        if ignored is None:
            self._free(job, list(job.gpus))
        return ignored

    patch.setattr(_lifecycle.Lifecycle, "finished", free_at_once)


def starvation(patch: Patch) -> None:
    """Nobody ever gets a reservation."""
    patch.setattr(eaco, "_reserve", _none_at_all)


def capacity_without_headroom(patch: Patch) -> None:
    """All of a GPU's memory may be used where jobs share."""
    patch.setattr(candidates, "mem_limit_bytes", _capacity)


def degree_off_by_one(patch: Patch) -> None:
    """One job more than allowed on a GPU."""
    patch.setattr(_actions.Actions, "_cannot_use", _nothing)
    refresh = Eaco.decide

    def decide(self: Eaco, view: View, /) -> Iterator[Action]:
        ledger = view.ledger
        ledger._rules = attrs.evolve(view.rules, max_degree=view.rules.max_degree + 1)
        for node in ledger.nodes.values():
            ledger.refresh_node(node)
        yield from refresh(self, view)

    patch.setattr(Eaco, "decide", decide)


def point_instead_of_bound(patch: Patch) -> None:
    """The point estimate is taken for the upper bound."""
    bound = Evidence.bound

    def point(self: Evidence, gpu_type: str, affected: JobKind, co: Sequence[JobKind]) -> Estimate:
        found = bound(self, gpu_type, affected, co)
        return attrs.evolve(found, upper_ratio=found.point_ratio)

    patch.setattr(Evidence, "bound", point)


def partial_gang(patch: Patch) -> None:
    """A gang gets one GPU less than it asks for."""
    idle_set = View.idle_set

    def less(self: View, job: JobRecord) -> tuple[GpuRecord, ...] | None:
        found = idle_set(self, job)
        return found[:-1] if found is not None and len(found) > 1 else found

    patch.setattr(View, "idle_set", less)
    patch.setattr(_actions.Actions, "_cannot_place", _nothing)


def late_job_blocks_the_queue(patch: Patch) -> None:
    """A job that is late and must run alone stops the pass."""
    decide_as_is = Eaco.decide

    def decide(self: Eaco, view: View, /) -> Iterator[Action]:
        for job in view.queue:
            if any(job.late(view.now_s, gpu_type) for gpu_type in view.gpu_types(job)):
                yield Wait(job, "late")
                return
        yield from decide_as_is(self, view)

    patch.setattr(Eaco, "decide", decide)


# ---- the stories ---------------------------------------------------------------------


def undone_then_others_move_in() -> Script:
    """`c` beside `a` is undone for the deadline of `a`; then `b` takes the memory left."""
    story = undone_for_a_deadline(mem_gib=6)
    assert story.gpus("c") == ()
    story.submit(a_job("b", submit_s=150.0, mem_gib=6)).start("b")
    return story.at(250.0).epoch("a").epoch("b").at(350.0).epoch("a").epoch("b").at(360.0).tick()


def undone_for_a_deadline(mem_gib: float = 2) -> Script:
    """`c` beside `a` is undone in mid-epoch, so that no bad epoch was observed."""
    story = Script(a_node("n1", 1))
    story.run(a_job("a", mem_gib=mem_gib, deadline_s=1450.0), a_job("c", mem_gib=mem_gib))
    return story.at(149.0).epoch("a", clean=False).at(150.0).stop("c", 0).release("c")


def no_shared_set_is_admitted() -> Script:
    """`b` may not share with `a`; another GPU is idle."""
    story = Script(a_node("n1", 2)).run(a_job("a", util=0.9)).submit(a_job("b"))
    assert story.state("b") is JobState.STARTING, "an idle GPU is there"
    return story


def gang_over_two_residents() -> Script:
    """A gang joins `x` on one node and `y` on another."""
    story = Script(a_node("n1", 1), rules=Rules(min_throughput_sum=0.0)).run(a_job("x"))
    story.feed(ev.NodeDrained(0.0, "n1")).join(a_node("n2", 1)).run(a_job("y"))
    return story.feed(ev.NodeDrained(0.0, "n1", drained=False)).submit(a_job("gang", 2))


def one_epoch_of_two() -> Script:
    """Only the newcomer has given an epoch."""
    story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b", epoch_s=50.0))
    return story.at(50.0).epoch("b")


def resident_leaves_in_mid_window() -> Script:
    """`c` gave an epoch beside `a` and `b`; then `b` ends, and `a` gives a first one."""
    story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b")).at(100.0).epoch("a").epoch("b")
    story.run(a_job("c", epoch_s=80.0)).at(180.0).epoch("c").finish("b").release("b")
    return story.at(200.0).epoch("a").at(300.0).epoch("a")


def undone_beside_three() -> Script:
    """`c` is slow beside `x`, beside `y`, and beside `z`."""
    story = Script(rules=Rules(max_undos=1))
    for node_id, job_id in (("n1", "x"), ("n2", "y")):
        story.join(a_node(node_id, 1)).run(a_job(job_id)).feed(ev.NodeDrained(0.0, node_id))
    for node_id in ("n1", "n2"):
        story.feed(ev.NodeDrained(0.0, node_id, drained=False))
    story.run(a_job("c", epochs=30)).at(210.0).epoch("x").epoch("c")
    return story.at(420.0).epoch("y").stop("c").release("c")


def finished_and_not_released() -> Script:
    """`b` waits for the GPU of `a`, which has finished a moment ago."""
    story = Script(a_node("n1", 1)).run(a_job("a", exclusive=True)).submit(a_job("b"))
    return story.at(1000.0).finish("a").at(1001.0).tick()


def a_gang_waits_for_two_hours() -> Script:
    """Small jobs take every GPU that comes free."""
    story = Script(a_node("n1", 2)).run(a_job("s0", exclusive=True), a_job("s1", exclusive=True))
    story.submit(a_job("gang", 2, exclusive=True))
    return story.at(3500.0).tick().at(3700.0).tick().at(7200.0).tick()


def two_jobs_of_nearly_half_the_memory() -> Script:
    """Together they leave half a GiB of 16."""
    return Script(a_node("n1", 1)).run(a_job("a", mem_gib=7.75)).submit(a_job("b", mem_gib=7.75))


def three_small_jobs_on_one_gpu() -> Script:
    """K is 2."""
    story = Script(a_node("n1", 1), rules=Rules(max_degree=2)).run(a_job("a"), a_job("b"))
    return story.at(100.0).epoch("a").epoch("b").submit(a_job("c"))


def no_slack_for_the_margin() -> Script:
    """The deadline holds at full speed, and not with a quarter more."""
    return Script(a_node("n1", 1)).run(a_job("a")).submit(a_job("b", deadline_s=1100.0))


def a_gang_of_two() -> Script:
    """Two GPUs are idle."""
    return Script(a_node("n1", 2)).submit(a_job("gang", 2))


def late_and_alone() -> Script:
    """A late job finds no GPU of its type; another job has an idle one."""
    story = Script(a_node("n1", 1))
    return story.submit(a_job("late", 2, deadline_s=10.0), a_job("b"), a_job("c", exclusive=True))


# ---- the table -----------------------------------------------------------------------


@frozen
class Planted:
    """A bug, the story in which it shows, and who reports it."""

    bug: Callable[[pytest.MonkeyPatch], None]
    story: Callable[[], Script]
    invariant: str


TABLE = (
    Planted(stale_candidate_list, undone_then_others_move_in, "I01"),
    Planted(no_fallback, no_shared_set_is_admitted, "the story itself"),
    Planted(affects_the_first_gpu_only, gang_over_two_residents, "I08"),
    Planted(affects_the_newcomer_only, gang_over_two_residents, "I08"),
    Planted(early_keep, one_epoch_of_two, "I09"),
    Planted(keep_after_a_void_window, resident_leaves_in_mid_window, "I09"),
    Planted(stale_retry, undone_for_a_deadline, "I12"),
    Planted(unbounded_undos, undone_beside_three, "I13"),
    Planted(handed_on_before_release, finished_and_not_released, "I06"),
    Planted(starvation, a_gang_waits_for_two_hours, "I24"),
    Planted(capacity_without_headroom, two_jobs_of_nearly_half_the_memory, "I01"),
    Planted(degree_off_by_one, three_small_jobs_on_one_gpu, "I06"),
    Planted(point_instead_of_bound, no_slack_for_the_margin, "I07"),
    Planted(partial_gang, a_gang_of_two, "I03"),
    Planted(late_job_blocks_the_queue, late_and_alone, "I14"),
)


def name_of(planted: Planted) -> str:
    return getattr(planted.bug, "__name__", "")


@pytest.mark.parametrize("planted", TABLE, ids=name_of)
def test_the_core_as_it_is_passes(planted: Planted) -> None:
    planted.story().check()


@pytest.mark.parametrize("planted", TABLE, ids=name_of)
def test_the_planted_bug_is_reported(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.bug(monkeypatch)
    if planted.invariant == "the story itself":
        with pytest.raises(AssertionError):
            planted.story().check()
        return
    with pytest.raises(InvariantBroken) as raised:
        planted.story().check()
    assert planted.invariant in {found.invariant for found in raised.value.violations}


@pytest.mark.parametrize(
    ("bug", "story"),
    [(affects_the_newcomer_only, gang_over_two_residents), (partial_gang, a_gang_of_two)],
)
def test_the_machine_itself_refuses_a_policy_with_such_a_bug(
    bug: Callable[[pytest.MonkeyPatch], None],
    story: Callable[[], Script],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = _actions.Actions._cannot_place
    bug(monkeypatch)
    monkeypatch.setattr(_actions.Actions, "_cannot_place", check)
    with pytest.raises(ActionRefused):
        story()
