"""Restore takes in nothing that contradicts itself, is of a later version, or is no state."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from eaco_core import _dump
from eaco_core.errors import InputError
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.rules import Rules
from eaco_core.testing import Script, a_job, a_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from eaco_core._codec import Json


def rich_state() -> dict[str, Any]:
    """Give a state that has everything: windows, a reservation, evidence, an undone signature."""
    story = Script(a_node("n1", 1), a_node("n2", 1), rules=Rules(starvation_s=60.0))
    story.run(a_job("a", deadline_s=1350.0), a_job("b"))
    story.submit(a_job("alone", 2, exclusive=True)).at(60.0).tick().at(160.0).epoch("a")
    data: dict[str, Any] = json.loads(json.dumps(story.machine.dump()))
    return data


def _set(*path: str | int, to: Json) -> Callable[[Json], None]:
    def change(data: Json) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return change


WRONG: dict[str, tuple[Callable[[Json], None], str]] = {
    "no schema": (_set("schema", to=None), "must have the schema"),
    "another schema": (_set("schema", to="eaco.history/1"), "must have the schema"),
    "a later version": (_set("schema", to="eaco.state/2"), "later version"),
    "a version that nobody reads": (_set("schema", to="eaco.state/0"), "no longer reads"),
    "an unknown policy": (_set("policy", to="lifo"), "there is no policy 'lifo'"),
    "a negative time": (_set("now_s", to=-1.0), "now_s"),
    "a text for a number": (_set("seq", to="4"), "seq must be a whole number"),
    "NaN": (_set("now_s", to=math.nan), "now_s"),
    "a wrong rule": (_set("rules", to={"max_degree": 0}), "max_degree"),
    "a job twice": (lambda d: d["jobs"].append(d["jobs"][0]), "is there twice"),
    "a node twice": (lambda d: d["nodes"].append(d["nodes"][0]), "is there twice"),
    "an unknown resident": (_set("nodes", 0, "gpus", 0, "residents", to=["who"]), "'who'"),
    "a GPU with a job that is elsewhere": (
        _set("nodes", 1, "gpus", 0, "residents", to=["a", "b"]),
        "GPU",
    ),
    "a job on an unknown GPU": (_set("jobs", 0, "gpus", to=["g9"]), "'g9'"),
    "a queued job with a GPU": (_set("jobs", 2, "gpus", to=["n1-0"]), "holds 1 GPUs"),
    "a running job without GPU": (_set("jobs", 0, "gpus", to=[]), "holds 0 GPUs"),
    "more epochs than there are": (_set("jobs", 0, "epochs_done", to=99), "more epochs"),
    "a start in the future": (_set("jobs", 0, "started_s", to=1e9), "a time after"),
    "a slowdown below 1": (_set("jobs", 0, "upper_ratio", to=0.5), "at least 1"),
    "a window of nobody": (_set("windows", 0, "newcomer", to="who"), "'who'"),
    "a reservation of nobody": (_set("reservation", "job", to="who"), "'who'"),
    "a reservation of one that runs": (_set("reservation", "job", to="a"), "does not wait"),
    "a timer of nobody": (_set("timers", to=[["kill", "who", 5.0]]), "no timer 'kill'"),
    "an unknown timer": (_set("timers", to=[["nap", "a", 5.0]]), "no timer 'nap'"),
    "a kind that is not there": (_set("queue", "classes", 0, "kind", to=77), "number 77"),
    "a queue without its classes": (_set("queue", "classes", to=[]), "class that is not there"),
    "one that starved and runs": (_set("queue", "starved", to=["a"]), "is not queued"),
    "too many observations": (
        _set("evidence", "seen", 0, "ratios", to=[1.0] * 21),
        "not possible",
    ),
    "a worst ratio never seen": (_set("evidence", "seen", 0, "worst", to=7.0), "worst ratio"),
    "a count of the future": (_set("nodes", 0, "gpus", 0, "changed_seq", to=10**6), "happened"),
    "a dead GPU with jobs": (_set("nodes", 0, "gpus", 0, "up", to=False), "is gone"),
    "a host that is none": (_set("nodes", 1, "gpus", 0, "host", to=True), "nobody can join"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_state_is_refused_as_a_whole(what: str) -> None:
    data = rich_state()
    SchedulerMachine.restore(json.loads(json.dumps(data)))
    change, sentence = WRONG[what]
    change(data)
    with pytest.raises(InputError, match=sentence):
        SchedulerMachine.restore(data)


@pytest.mark.parametrize("data", [None, [], 7, "state", {}, {"schema": 1}])
def test_what_is_no_state_is_refused(data: Json) -> None:
    with pytest.raises(InputError, match="state of a scheduler is wrong"):
        SchedulerMachine.restore(data)


def test_another_policy_is_refused() -> None:
    with pytest.raises(InputError, match="one of policy eaco, not of fifo"):
        SchedulerMachine.restore(rich_state(), policy=policy_named("fifo"))


def test_a_new_scheduler_has_a_term_of_its_own() -> None:
    data = rich_state()
    machine = SchedulerMachine.restore(data, term=5)
    assert machine.term == 5
    assert machine.dump() == {**data, "term": 5}
    machine.begin_term(5)
    for term in (4, True, 5.5):
        with pytest.raises(InputError, match="does not come after term 5"):
            machine.begin_term(term)  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(InputError, match="does not come after"):
        SchedulerMachine.restore(data, term=0)


def test_an_older_version_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rich_state()
    old = {**data, "schema": "eaco.state/0", "clock_s": data["now_s"]}
    del old["now_s"]
    monkeypatch.setitem(_dump.MIGRATIONS, 0, lambda state: {**state, "now_s": state["clock_s"]})
    assert SchedulerMachine.restore(old).dump() == data
