"""Dump and restore: everything that counts is in the dump, and nothing wrong is taken in.

Each story is told with a new twin after each of its steps. For every field of every form
there is a story in which its loss shows: the state is refused, or a twin does something else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from eaco_core import _forms
from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.decisions import Evicted, Reserved, WindowRestarted
from eaco_core.errors import EacoError, InputError
from eaco_core.jobs import CheckpointScope, FailureReason, JobState
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.rules import GIB, Rules
from eaco_core.testing import PlainPower, Script, a_job, a_node, an_observation
from eaco_core.testing import script as script_module
from eaco_core.testing.twins import TwinnedMachine, TwinsDiffer

if TYPE_CHECKING:
    from collections.abc import Callable

# ---- stories ---------------------------------------------------------------------


def two_share_and_one_waits() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a", epochs=3), a_job("b", epochs=3))
    story.at(40.0).submit(a_job("c", submit_s=40.0, exclusive=True))
    story.at(100.0).epoch("a").at(110.0).epoch("b")
    assert story.state("b") is JobState.SETTLED
    story.at(210.0).epoch("a").epoch("b").at(300.0).finish("a").release("a")
    story.finish("b").release("b").start("c")
    assert story.state("c") is JobState.SETTLED


def skipping_looks_at_news_only() -> None:
    story = Script(a_node("n1", 1), policy=policy_named("fifo-skip")).run(a_job("a"))
    story.submit(a_job("b")).at(50.0).finish("a")
    attempt = ev.GpusReleased(50.0, "a", 1, ("n1-0",))
    story.recorder.feed(attempt)
    story.tick()
    assert story.state("b") is JobState.STARTING


def settled(*, deadline_s: float = 1300.0) -> Script:
    story = Script(a_node("n1", 1)).run(a_job("a", deadline_s=deadline_s), a_job("b"))
    return story.at(100.0).epoch("a").epoch("b")


def a_settled_job_is_evicted() -> None:
    story = settled().at(260.0).epoch("a")
    assert story.told(Evicted).victim_id == "b"
    story.at(300.0).epoch("b").stop("b").release("b").at(400.0).epoch("a")


def an_eviction_is_once_for_each_epoch() -> None:
    story = settled(deadline_s=1400.0).at(200.0).epoch("a").at(390.0).epoch("a")
    story.at(700.0).epoch("a").at(710.0).feed(ev.EpochCompleted(710.0, "a", 1, 4))
    story.at(800.0).stop("b").release("b").tick()


def a_second_attempt_reaches_the_epoch_of_an_eviction() -> None:
    story = settled(deadline_s=1700.0).at(400.0).epoch("a")
    assert story.told(Evicted).victim_id == "b"
    story.cancel("b").release("b").at(410.0).stop("a", 0).release("a").start("a")
    story.run(a_job("c", submit_s=410.0)).at(510.0).epoch("a").epoch("c").at(760.0).epoch("a")
    assert len(story.records(Evicted)) == 1


def nobody_can_help_a_job_at_risk() -> None:
    seen = [an_observation("a", ("b",), 1.5), an_observation("a", ("c",), 1.5)]
    story = Script(a_node("n1", 1), history=seen)
    story.run(a_job("a", deadline_s=1900.0), a_job("b"))
    story.at(100.0).epoch("a").epoch("b").run(a_job("c"))
    story.at(200.0).epoch("a").epoch("b").epoch("c")
    story.at(450.0).epoch("a").at(1000.0).epoch("a").at(1200.0).epoch("a")


def a_newcomer_in_the_middle_of_an_epoch() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).at(50.0).run(a_job("b", submit_s=50.0))
    story.at(100.0).epoch("a").at(150.0).epoch("b").at(200.0).epoch("a")
    assert story.state("b") is JobState.SETTLED


def short_epochs_are_added_up() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b", epoch_s=8.0, epochs=90))
    story.at(100.0).epoch("a")
    for k in range(1, 10):
        story.at(100.0 + 8.0 * k + k % 3).epoch("b")
    story.at(200.0).epoch("a")


def out_of_memory_beside_another() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a", epochs=2), a_job("b"))
    story.at(50.0).fail("b", FailureReason.OUT_OF_MEMORY, 9 * GIB).release("b")
    story.submit(a_job("b2", workload="b", submit_s=50.0, mem_gib=7))
    story.at(100.0).epoch("a").at(200.0).finish("a").release("a")


def a_job_fails_again_and_again() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a", max_restarts=2))
    for t_s in (50.0, 90.0, 120.0):
        story.at(t_s).fail("a").release("a")
        if story.state("a") is JobState.STARTING:
            story.start("a")
    assert story.state("a") is JobState.FAILED


def a_start_fails_again_and_again() -> None:
    story = Script(a_node("n1", 1)).submit(a_job("a"))
    for attempt in (1, 2, 3):
        story.feed(ev.StartFailed(0.0, "a", attempt, "no image"))
    assert story.state("a") is JobState.FAILED


def a_stale_failure_to_start() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).at(5.0).cancel("a")
    story.feed(ev.StartFailed(5.0, "a", 1, "late")).at(9.0).release("a")


def a_job_is_undone(policy: str = "eaco") -> Script:
    rules = Rules(starvation_s=500.0) if policy == "eaco" else None
    story = Script(a_node("n1", 1), policy=policy_named(policy), rules=rules)
    story.run(a_job("a", deadline_s=1350.0), a_job("b"))
    story.at(160.0).epoch("a").at(170.0).epoch("b").at(180.0).stop("b").release("b")
    story.at(250.0).epoch("a").at(260.0).submit(a_job("b2", workload="b", submit_s=260.0))
    return story.at(340.0).epoch("a").at(700.0).tick().at(900.0).finish("a").release("a").tick()


def a_set_is_tried_once_in_the_paper() -> None:
    a_job_is_undone("eaco-paper")


def undone_for_its_own_deadline() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a"), a_job("b", deadline_s=1300.0))
    story.at(100.0).epoch("a").at(150.0).epoch("b").at(160.0).tick()
    if story.state("b") is JobState.STOPPING:
        story.stop("b").release("b")
    story.at(200.0).epoch("a").tick()


def a_stop_that_is_not_obeyed() -> None:
    story = settled().at(260.0).epoch("a")
    story.at(2000.0).tick().release("b")


def a_checkpoint_on_one_node() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a", checkpoint_scope=CheckpointScope.NODE))
    story.at(100.0).epoch("a").feed(ev.NodeDrained(100.0, "n1")).join(a_node("n2", 1))
    story.fail("a", FailureReason.CO_TENANT).release("a")
    story.submit(a_job("b", submit_s=100.0, exclusive=True))
    story.at(200.0).feed(ev.NodeDrained(200.0, "n1", drained=False))
    assert story.gpus("a") == ("n1-0",)


def nobody_knows_whether_it_runs() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).at(10.0)
    story.feed(ev.JobUnknown(10.0, "a", 1)).submit(a_job("b", submit_s=10.0))
    story.feed(ev.JobUnknown(20.0, "a", 1))
    story.now_s = 310.0
    story.tick().release("a")


def memory_becomes_known() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a", mem_gib=None)).submit(a_job("b"))
    story.at(100.0).feed(ev.EpochCompleted(100.0, "a", 1, 2, peak_mem_bytes=3 * GIB))
    story.at(200.0).epoch("a").at(210.0).tick()


def memory_becomes_known_elsewhere() -> None:
    """The index of hosts hears of it only when something happens to the GPU."""
    story = Script(a_node("n1", 1), a_node("n2", 1))
    story.run(a_job("a", mem_gib=None, workload="w"), a_job("x", mem_gib=None, workload="w"))
    story.at(50.0).feed(ev.EpochCompleted(50.0, "a", 1, 1, peak_mem_bytes=GIB))
    story.submit(a_job("b", submit_s=50.0), a_job("c", submit_s=50.0), a_job("d", submit_s=50.0))
    story.at(100.0).epoch("x")


def a_gang_starves() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True))
    story.submit(a_job("gang", 2, exclusive=True, epochs=1))
    story.at(60.0).tick()
    assert story.told(Reserved).job_id == "gang"
    story.at(100.0).epoch("busy").submit(
        a_job("short", submit_s=100.0, exclusive=True, epochs=8, epoch_s=105.0),
        a_job("long", submit_s=100.0, exclusive=True, epochs=9, epoch_s=105.0),
    )
    story.start("short").at(500.0).finish("busy").release("busy")
    story.at(600.0).finish("short").release("short").start("gang")


def a_reservation_is_cancelled() -> None:
    story = Script(a_node("n1", 2), rules=Rules(starvation_s=60.0))
    story.run(a_job("busy", exclusive=True))
    story.submit(a_job("gang", 2, exclusive=True)).at(60.0).tick()
    story.submit(a_job("later", submit_s=60.0, exclusive=True, epochs=90)).cancel("gang")
    assert story.gpus("later") == ("n1-1",)


def evidence_moves_a_reservation() -> None:
    story = Script(a_node("n1", 1), rules=Rules(starvation_s=60.0))
    story.run(a_job("a"), a_job("b")).submit(a_job("alone", exclusive=True))
    story.at(60.0).tick().at(100.0).epoch("a").at(104.0).epoch("b").tick()
    story.submit(a_job("z", submit_s=104.0, exclusive=True)).at(210.0).epoch("a").tick()


def a_reserved_node_is_lost_and_comes_back() -> None:
    story = Script(a_node("n1", 1), a_node("n2", 1), rules=Rules(starvation_s=60.0))
    story.run(a_job("x", exclusive=True), a_job("y", epochs=None))
    story.submit(a_job("gang", 2, exclusive=True)).at(60.0).tick()
    assert story.told(Reserved).start_s is None
    story.recorder.feed(ev.NodeLost(60.0, "n1"))
    story.recorder.feed(ev.NodeJoined(60.0, a_node("n1", 1)))
    story.tick()
    assert len(story.records(Reserved)) > 1


def a_late_epoch_does_not_move_a_reservation() -> None:
    seen = [an_observation("v", ("w",), 1.1)]
    story = Script(a_node("n1", 1), rules=Rules(starvation_s=60.0), history=seen)
    story.run(a_job("busy", exclusive=True)).submit(a_job("next", exclusive=True))
    story.at(60.0).tick().at(120.0).epoch("busy")
    story.submit(a_job("other", submit_s=120.0, exclusive=True, epochs=90))
    assert len(story.records(Reserved)) == 1


def a_bound_falls_below_that_of_an_undone_set() -> None:
    story = Script(a_node("n1", 1))
    story.run(a_job("a1", workload="a", deadline_s=1450.0), a_job("b1", workload="b"))
    story.at(140.0).tick().at(150.0).stop("b1", 0).cancel("b1").release("b1")
    story.feed(ev.NodeDrained(150.0, "n1")).join(a_node("n2", 1))
    story.run(a_job("a2", workload="a", submit_s=150.0), a_job("c", submit_s=150.0))
    story.at(250.0).epoch("a2").epoch("c").run(a_job("b2", workload="b", submit_s=250.0))
    story.at(350.0).epoch("a2").epoch("c").epoch("b2").feed(ev.NodeDrained(350.0, "n2"))
    story.feed(ev.NodeDrained(350.0, "n1", drained=False))
    story.submit(a_job("b3", workload="b", submit_s=350.0))
    assert story.gpus("b3") == ("n1-0",)


def an_idle_node_loses_a_gpu() -> None:
    story = Script(a_node("n1", 2, can_sleep=True)).run(a_job("a"))
    story.at(1000.0).finish("a").release("a").at(1010.0).feed(ev.GpuLost(1010.0, "n1", "n1-1"))
    story.at(1300.0).tick()


def jobs_that_are_particular_wait() -> None:
    label = (("zone", "a"),)
    story = Script(a_node("n1", 1, labels=label)).run(a_job("busy", exclusive=True))
    story.submit(a_job("x", gpu_types=("v100",)), a_job("y", node_selector=label)).at(50.0)
    story.finish("busy").release("busy").start("x")


def earlier_waits_count() -> None:
    story = Script(a_node("n1", 1), rules=Rules(starvation_s=100.0))
    story.run(a_job("x", exclusive=True)).submit(a_job("y", exclusive=True))
    story.at(60.0).finish("x").release("x").start("y")
    story.submit(a_job("vip", submit_s=60.0, priority=100))
    story.at(70.0).fail("y", FailureReason.NODE_LOST).release("y")
    story.start("vip").at(110.0).tick()
    assert story.told(Reserved).job_id == "y"


def a_node_falls_asleep() -> None:
    story = Script(a_node("n1", 1, can_sleep=True)).run(a_job("a"))
    story.at(1000.0).finish("a").release("a").feed(ev.NodeDrained(1000.0, "n1"))
    story.feed(ev.NodeSampled(1010.0, "n1", ())).at(1400.0).tick().feed(ev.NodeAsleep(1400.0, "n1"))


def a_node_that_was_up_for_a_moment() -> None:
    story = Script(a_node("n1", 1, can_sleep=True)).at(10.0).submit(a_job("a", submit_s=10.0))
    story.at(20.0).cancel("a").release("a")
    story.at(2000.0).tick()


def two_jobs_wait_for_a_node_to_wake() -> None:
    story = Script()
    story.join(a_node("n1", 2, can_sleep=True), NodeState.ASLEEP).submit(a_job("a"))
    story.at(20.0).submit(a_job("b", submit_s=20.0, exclusive=True))
    story.at(60.0).feed(ev.NodeAwake(60.0, "n1")).start("a", "b")
    story.at(90.0).cancel("a").release("a").at(91.0).finish("b").release("b").at(2000.0).tick()


def a_node_with_readings() -> None:
    story = Script(a_node("n1", 2)).read(0.5, "n1-0", "n1-1").run(a_job("a"))
    story.at(10.0).read(0.7, "n1-0", "n1-1", foreign=True).submit(a_job("b", submit_s=10.0))
    story.at(70.5).read(0.3, "n1-0", "n1-1", foreign=False).tick()
    story.at(90.0).read(0.9, "n1-0", "n1-1").submit(a_job("c", submit_s=90.0))
    story.at(150.0).submit(a_job("d", submit_s=150.0), a_job("e", submit_s=150.0))


def readings_stop() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).read(0.3, "n1-0")
    story.at(50.0).submit(a_job("b", submit_s=50.0)).at(60.0).read(0.3, "n1-0")


def a_node_that_reports_nothing_of_its_gpus() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a")).feed(ev.NodeSampled(0.0, "n1", ()))
    story.at(50.0).submit(a_job("b", submit_s=50.0))


def gpus_and_nodes_are_lost() -> None:
    story = Script(a_node("n1", 2), a_node("n2", 1)).run(a_job("gang", 2, exclusive=True))
    story.at(10.0).feed(ev.GpuLost(10.0, "n1", "n1-0")).submit(a_job("b", submit_s=10.0))
    story.at(20.0).feed(ev.NodeLost(20.0, "n2")).release("gang").at(30.0).join(a_node("n2", 1))


def a_window_restarts(rules: Rules | None = None) -> None:
    story = Script(a_node("n1", 1), rules=rules).run(a_job("a"), a_job("b"))
    story.at(100.0).epoch("a").epoch("b").run(a_job("c", deadline_s=1390.0))
    story.at(200.0).epoch("c").at(210.0).epoch("a").at(220.0).finish("b").release("b")
    assert rules is not None or story.records(WindowRestarted)
    story.at(310.0).epoch("a").at(320.0).epoch("c").at(430.0).epoch("a").epoch("c")


def the_best_epochs_decide() -> None:
    a_window_restarts(Rules(window_max_restarts=0))


def a_window_restarts_once() -> None:
    a_window_restarts(Rules(window_max_restarts=1))


def a_gang_in_a_window_loses_a_node() -> None:
    story = Script(a_node("n1", 1), a_node("n2", 1)).run(a_job("gang", 2), a_job("b"))
    story.at(10.0).feed(ev.NodeLost(10.0, "n2")).at(20.0).join(a_node("n2", 1))
    story.at(30.0).submit(a_job("c", submit_s=30.0)).release("gang")


def sharing_does_not_pay_yet() -> None:
    story = Script(a_node("n1", 1), power=PlainPower(gpu_busy_w=0.0, busy_w=900.0))
    story.run(a_job("a", util=0.4)).submit(a_job("b", util=0.4, submit_s=0.0))
    story.at(950.0).tick().at(1000.0).submit(a_job("c", submit_s=1000.0)).at(2000.0).tick()


def one_set_is_explored_at_a_time() -> None:
    story = Script(a_node("n1", 1), a_node("n2", 1), rules=Rules(explore=True))
    story.run(a_job("a", util=None, busy=None), a_job("b", util=None, busy=None))
    story.submit(a_job("c", util=None, busy=None)).at(100.0).epoch("a").epoch("b")
    story.at(1000.0).tick()


def the_order_of_classes_shows_in_the_paper() -> None:
    story = Script(a_node("n1", 1), policy=policy_named("eaco-paper"))
    story.run(a_job("a", exclusive=True)).submit(a_job("x", 2, workload="w"), a_job("y"))
    story.at(5.0).submit(a_job("z", submit_s=5.0), a_job("v", 2, submit_s=5.0, workload="w"))
    story.recorder.feed(ev.JobSubmitted(6.0, a_job("u", 2, submit_s=6.0, workload="w")))
    story.at(7.0).tick()


def arrivals_before_the_tick() -> None:
    story = Script(a_node("n1", 1)).run(a_job("a", exclusive=True))
    for name in ("b", "c"):
        story.submit(a_job(name, exclusive=True, workload="w"))
    for name in ("d", "e"):
        job = a_job(name, exclusive=True, workload="w", submit_s=1.0)
        story.recorder.feed(ev.JobSubmitted(1.0, job))
    story.now_s = 1.0
    story.tick().at(50.0).finish("a").release("a")


STORIES: tuple[Callable[[], object], ...] = (
    two_share_and_one_waits,
    a_gang_starves,
    a_settled_job_is_evicted,
    skipping_looks_at_news_only,
    an_eviction_is_once_for_each_epoch,
    a_second_attempt_reaches_the_epoch_of_an_eviction,
    nobody_can_help_a_job_at_risk,
    a_newcomer_in_the_middle_of_an_epoch,
    short_epochs_are_added_up,
    out_of_memory_beside_another,
    a_job_fails_again_and_again,
    a_start_fails_again_and_again,
    a_stale_failure_to_start,
    a_job_is_undone,
    a_set_is_tried_once_in_the_paper,
    undone_for_its_own_deadline,
    a_stop_that_is_not_obeyed,
    a_checkpoint_on_one_node,
    nobody_knows_whether_it_runs,
    memory_becomes_known,
    memory_becomes_known_elsewhere,
    a_reservation_is_cancelled,
    evidence_moves_a_reservation,
    a_reserved_node_is_lost_and_comes_back,
    a_late_epoch_does_not_move_a_reservation,
    a_bound_falls_below_that_of_an_undone_set,
    an_idle_node_loses_a_gpu,
    jobs_that_are_particular_wait,
    earlier_waits_count,
    a_node_falls_asleep,
    a_node_that_was_up_for_a_moment,
    two_jobs_wait_for_a_node_to_wake,
    a_node_with_readings,
    readings_stop,
    a_node_that_reports_nothing_of_its_gpus,
    gpus_and_nodes_are_lost,
    a_window_restarts,
    the_best_epochs_decide,
    a_window_restarts_once,
    a_gang_in_a_window_loses_a_node,
    sharing_does_not_pay_yet,
    one_set_is_explored_at_a_time,
    the_order_of_classes_shows_in_the_paper,
    arrivals_before_the_tick,
)


class _AtEveryStep(TwinnedMachine):
    every_step = True


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_module, "SchedulerMachine", _AtEveryStep)


@pytest.mark.parametrize("story", STORIES)
def test_a_twin_that_was_restored_after_any_step_does_the_same(
    story: Callable[[], object],
) -> None:
    story()


# ---- planted omissions -----------------------------------------------------------

Places = dict[type[Any], "Callable[[dict[str, Any]], list[dict[str, Any]]]"]


def _reservations(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [data["reservation"]] if data["reservation"] else []


PLACES: Places = {
    _forms.StateForm: lambda data: [data],
    _forms.JobForm: lambda data: data["jobs"],
    _forms.NodeForm: lambda data: data["nodes"],
    _forms.GpuForm: lambda data: [gpu for node in data["nodes"] for gpu in node["gpus"]],
    _forms.QueueForm: lambda data: [data["queue"]],
    _forms.ClassForm: lambda data: data["queue"]["classes"],
    _forms.EvidenceForm: lambda data: [data["evidence"]],
    _forms.SeenForm: lambda data: data["evidence"]["seen"],
    _forms.UndoneForm: lambda data: data["evidence"]["undone"],
    _forms.WindowForm: lambda data: data["windows"],
    _forms.ReservationForm: _reservations,
    _forms.GpuRef: lambda data: [
        gpu
        for gpus in (
            *(window["locked"] for window in data["windows"]),
            *(held["gpus"] for held in _reservations(data)),
        )
        for gpu in gpus
    ],
}
FIELDS = [(form, field.name) for form in PLACES for field in attrs.fields(form)]
_NOTHING: dict[object, object] = {bool: False, int: 0, float: 0.0, str: "", list: [], dict: None}


def test_every_form_is_looked_at() -> None:
    forms = {
        form
        for form in vars(_forms).values()
        if isinstance(form, type) and form.__module__ == _forms.__name__
    }
    assert forms == set(PLACES)


def _lost(form: type[Any], name: str) -> Callable[[dict[str, Any]], None]:
    """Lose a field: it is left out if it may be, else it holds nothing."""
    required = attrs.fields_dict(form)[name].default is attrs.NOTHING

    def spoil(data: dict[str, Any]) -> None:
        for place in PLACES[form](data):
            if name not in place:
                continue
            if required:
                value: object = place[name]
                empty = _NOTHING.get(value.__class__)
                place[name] = not value if isinstance(value, bool) else empty
            else:
                del place[name]

    return spoil


# In which story a loss shows first, where it is not the first one of all.
SHOWN_BY: dict[str, Callable[[], object]] = {
    "StateForm.free_seq": skipping_looks_at_news_only,
    "StateForm.timers": a_settled_job_is_evicted,
    "StateForm.reservation": a_gang_starves,
    "JobForm.recent_epochs_s": a_settled_job_is_evicted,
    "JobForm.clean_since_s": a_newcomer_in_the_middle_of_an_epoch,
    "JobForm.acc_s": short_epochs_are_added_up,
    "JobForm.acc_epochs": short_epochs_are_added_up,
    "JobForm.started_s": a_settled_job_is_evicted,
    "JobForm.upper_ratio": a_job_is_undone,
    "JobForm.unknown": nobody_knows_whether_it_runs,
    "JobForm.then_reason": a_settled_job_is_evicted,
    "JobForm.tried": a_set_is_tried_once_in_the_paper,
    "JobForm.queued_since_s": a_gang_starves,
    "JobForm.waited_s": earlier_waits_count,
    "JobForm.undos": a_settled_job_is_evicted,
    "JobForm.failures": a_job_fails_again_and_again,
    "JobForm.start_failures": a_start_fails_again_and_again,
    "JobForm.exclusive_only": undone_for_its_own_deadline,
    "JobForm.exclusive_next": out_of_memory_beside_another,
    "JobForm.reservation_wanted": undone_for_its_own_deadline,
    "JobForm.checkpoint_nodes": a_checkpoint_on_one_node,
    "JobForm.pinned_nodes": a_checkpoint_on_one_node,
    "JobForm.at_risk_told": nobody_can_help_a_job_at_risk,
    "NodeForm.awake_since_s": two_jobs_wait_for_a_node_to_wake,
    "NodeForm.idle_since_s": an_idle_node_loses_a_gpu,
    "NodeForm.wake_due_s": two_jobs_wait_for_a_node_to_wake,
    "NodeForm.drained": a_checkpoint_on_one_node,
    "NodeForm.reports": a_node_with_readings,
    "GpuForm.up": an_idle_node_loses_a_gpu,
    "GpuForm.readings": a_node_with_readings,
    "GpuForm.evicted_epoch": a_second_attempt_reaches_the_epoch_of_an_eviction,
    "QueueForm.starved": a_gang_starves,
    "ClassForm.looked_seq": a_job_is_undone,
    "ClassForm.gpu_types": jobs_that_are_particular_wait,
    "ClassForm.node_selector": jobs_that_are_particular_wait,
    "ClassForm.pinned_nodes": a_checkpoint_on_one_node,
    "ClassForm.fresh": a_job_is_undone,
    "EvidenceForm.version": evidence_moves_a_reservation,
    "EvidenceForm.peak_mem": out_of_memory_beside_another,
    "EvidenceForm.undone": a_job_is_undone,
    "UndoneForm.gpu_type": a_job_is_undone,
    "UndoneForm.workload": a_job_is_undone,
    "UndoneForm.residents": a_job_is_undone,
    "UndoneForm.bound": a_bound_falls_below_that_of_an_undone_set,
    "WindowForm.restarts": a_window_restarts,
    "WindowForm.best_epoch_s": the_best_epochs_decide,
    "ReservationForm.job": a_gang_starves,
    "ReservationForm.gpus": a_gang_starves,
    "ReservationForm.start_s": a_gang_starves,
    "ReservationForm.evidence_version": a_late_epoch_does_not_move_a_reservation,
    "GpuRef.gone": a_reserved_node_is_lost_and_comes_back,
    "GpuRef.node_id": a_reserved_node_is_lost_and_comes_back,
}


@pytest.mark.parametrize(("form", "name"), FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_the_loss_of_a_field_shows(
    form: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = SHOWN_BY.get(f"{form.__name__}.{name}", two_share_and_one_waits)
    monkeypatch.setattr(TwinnedMachine, "change", staticmethod(_lost(form, name)))
    with pytest.raises((TwinsDiffer, EacoError)):
        story()


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (form, field.name)
        for form in PLACES
        for field in attrs.fields(form)
        if field.default is attrs.NOTHING
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_state_without_a_required_field_is_refused(form: type[Any], name: str) -> None:
    data = rich_state()
    places = PLACES[form](data)
    assert places, "the state has none of these"
    for place in places:
        del place[name]
    with pytest.raises(InputError, match=r"lacks the field|must have the schema"):
        SchedulerMachine.restore(data)


def rich_state() -> dict[str, Any]:
    """Give a state that has everything: windows, a reservation, evidence, an undone signature."""
    story = Script(a_node("n1", 1), a_node("n2", 1), rules=Rules(starvation_s=60.0))
    story.run(a_job("a", deadline_s=1350.0), a_job("b"))
    story.submit(a_job("alone", 2, exclusive=True)).at(60.0).tick().at(160.0).epoch("a")
    data: dict[str, Any] = json.loads(json.dumps(story.machine.dump()))
    return data
