"""Replay: a history folded into a machine gives the state of the scheduler that wrote it (I21)."""

from __future__ import annotations

import json

import pytest

from eaco_core.cluster import NodeState
from eaco_core.errors import InputError
from eaco_core.history import EnergyLine, Header, Line, Step, decode_line, encode
from eaco_core.jobs import FailureReason
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.replay import Diverged, Replayed, replay
from eaco_core.rules import Rules
from eaco_core.testing import Habits, PlainPower, Recorder, World, a_job, a_node

HABITS = Habits(
    factors=(1.0, 1.3, 1.7, 1.1), late_s=(0.0, 2.0), twice=(False, True), start_s=(1.0, None)
)


def a_machine(policy: str = "eaco", term: int = 1) -> SchedulerMachine:
    return SchedulerMachine(policy_named(policy), power=PlainPower(), term=term)


def a_run(policy: str = "eaco") -> Recorder:
    """Run two dozen jobs in a rough world; after a while a second scheduler takes over."""
    world = World(Recorder(a_machine(policy), watch=False), HABITS)
    world.telemetry = True
    world.join(a_node("n1", 3))
    world.join(a_node("n2", 4, can_sleep=True), NodeState.ASLEEP)
    for batch in range(3):
        jobs = [
            a_job(
                f'j{batch}{i}","effects":[' if i == 3 else f"j{batch}{i}",
                1 + i % 3,
                submit_s=world.now_s,
                epochs=3 + i % 5,
                util=0.1 + 0.05 * (i % 6),
                workload=f"w{i % 5}",
                deadline_s=None if i % 3 else world.now_s + 9000.0,
            )
            for i in range(8)
        ]
        world.submit(*jobs)
        world.sample("n1", 0.4, foreign=False)
        for _ in range(40):
            world.advance()
        running = world.running()
        if running:
            world.fail(running[0], FailureReason.CO_TENANT)
        if batch == 1:
            world.machine.begin_term(4)
    world.run_to_end(600)
    return world.recorder


@pytest.mark.parametrize("policy", ["eaco", "eaco-paper", "fifo", "fifo-skip"])
@pytest.mark.parametrize("form", ["text", "line end", "spaced text", "lines"])
def test_a_replayed_history_gives_the_same_state(policy: str, form: str) -> None:
    run = a_run(policy)
    lines: list[str | Line] = []
    for line in run.lines:
        text = encode(line)
        if form == "spaced text":
            text = json.dumps(json.loads(text), sort_keys=True)
        lines.append(line if form == "lines" else text + ("\n" if form == "line end" else ""))
    machine = a_machine(policy)
    done = replay(lines, machine)
    assert machine.dump() == run.machine.dump()
    assert done == Replayed(len(lines) - 1, run.machine.seq, run.machine.now_s, 4)


def test_a_restored_state_and_the_rest_give_the_same_state_at_every_step() -> None:
    run = a_run()
    texts = [encode(line) for line in run.lines]
    machine = a_machine()
    for k, text in enumerate(texts):
        replay([text], machine)
        if k % 29 == 1:
            again = SchedulerMachine.restore(machine.dump(), power=PlainPower())
            assert replay(texts[k + 1 :], again).steps == len(texts) - k - 1
            assert again.dump() == run.machine.dump()


def with_effects(lines: list[Line]) -> list[int]:
    return [k for k, line in enumerate(lines) if isinstance(line, Step) and line.effects]


def test_another_effect_on_record_is_named_with_what_to_do() -> None:
    texts = [encode(line) for line in a_run().lines]
    k = with_effects([decode_line(text) for text in texts])[0]
    data = json.loads(texts[k])
    data["effects"][0]["type"] = "KillJob"
    data["effects"][0] = {
        "type": "KillJob",
        "job_id": "j00",
        "attempt": 1,
        "term": 1,
        "reason": "never",
    }
    texts[k] = json.dumps(data, separators=(",", ":"))
    with pytest.raises(Diverged, match=r"step \d+ .*cannot be repeated.*another version") as found:
        replay(texts, a_machine())
    assert found.value.seq == k
    assert "never" in found.value.recorded
    assert "Job" in found.value.computed or "Node" in found.value.computed


@pytest.mark.parametrize("change", ["left out", "added"])
def test_an_effect_too_few_or_too_many_is_found(change: str) -> None:
    lines = a_run().lines
    texts = [encode(line) for line in lines]
    k = with_effects(lines)[0]
    data = json.loads(texts[k])
    if change == "left out":
        del data["effects"]
    else:
        data["effects"] *= 2
    texts[k] = json.dumps(data, separators=(",", ":"))
    with pytest.raises(Diverged):
        replay(texts, a_machine())


def test_an_event_that_cannot_be_is_named() -> None:
    texts = [encode(line) for line in a_run().lines]
    spoiled = texts[:3]
    assert '"JobSubmitted"' in texts[3]
    spoiled.append(
        '{"kind":"step","seq":3,"t_s":0.0,"term":1,"event":'
        '{"type":"JobFinished","t_s":0.0,"job_id":"who","attempt":1}}'
    )
    with pytest.raises(Diverged, match=r"step 3 .*never submitted"):
        replay(spoiled, a_machine())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("a line left out", "does not follow step"),
        ("a line twice", "does not follow step"),
        ("an older term", "does not come after term"),
        ("another time", "its event at"),
        ("not JSON", "is not JSON"),
        ("an unknown event", "unknown type of event"),
        ("a second header", "one history has one header"),
        ("another policy", "one of policy fifo"),
        ("another origin", "written by 'slurm'"),
        ("other rules", "other rules"),
    ],
)
def test_a_history_that_is_not_one_is_refused(change: str, sentence: str) -> None:
    texts = [encode(line) for line in a_run().lines]
    k = len(texts) // 2
    if change == "a line left out":
        del texts[k]
    elif change == "a line twice":
        texts.insert(k, texts[k])
    elif change == "an older term":
        texts[k] = texts[k].replace('"term":1', '"term":0').replace('"term":4', '"term":3')
    elif change == "another time":
        texts[k] = json.dumps({**json.loads(texts[k]), "t_s": 1.25})
    elif change == "not JSON":
        texts[k] = texts[k][:-5]
    elif change == "an unknown event":
        texts[k] = texts[k].replace('"event":{"type":"', '"event":{"type":"X')
    elif change == "a second header":
        texts.insert(k, texts[0])
    elif change == "another policy":
        texts[0] = encode(Header(policy="fifo"))
    elif change == "another origin":
        texts[0] = encode(Header(policy="eaco", origin="slurm"))
    else:
        texts[0] = encode(Header(policy="eaco", rules=Rules(max_undos=7)))
    with pytest.raises(InputError, match=sentence):
        replay(texts, a_machine())


def test_energy_lines_are_counted_and_change_nothing() -> None:
    run = a_run()
    texts = [encode(line) for line in run.lines]
    texts.insert(9, encode(EnergyLine(0.0, 1.0, "n1", 100.0, idle_j=100.0)))
    machine = a_machine()
    assert replay(texts, machine).energy_lines == 1
    assert machine.dump() == run.machine.dump()
