"""The search of the machine against brute force: does it miss nothing better (R4)?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from hypothesis import event, given, note
from hypothesis import strategies as st

from eaco_core import events as ev
from eaco_core.decisions import Placed, Reserved
from eaco_core.history import Step
from eaco_core.machine import SchedulerMachine
from eaco_core.rules import Rules
from eaco_core.testing import (
    Habits,
    PlainPower,
    Recorder,
    Script,
    World,
    a_job,
    a_node,
    in_words,
    oracle,
    strategies,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eaco_core.cluster import NodeSpec
    from eaco_core.effects import Effect
    from eaco_core.jobs import JobSpec
    from eaco_core.ports import PowerModel
    from eaco_core.testing.oracle import Shape


class Remembering(Recorder):
    """A recorder with the oracle's own books."""

    def __init__(self, machine: SchedulerMachine) -> None:
        super().__init__(machine, watch=False)
        self.memory = oracle.Memory()

    def feed(self, event: ev.Event) -> tuple[Effect, ...]:
        before = self.machine.snapshot()
        effects = super().feed(event)
        self.memory.note(before, self.machine.snapshot(), effects, self.machine.records)
        return effects


class Probe:
    """Submits jobs to a world, one at a time, each with a higher priority than the last."""

    def __init__(
        self, cluster: Iterable[NodeSpec], habits: Habits, power: PowerModel | None
    ) -> None:
        rules = Rules(starvation_s=float("inf"))
        self.power = power
        self.recorder = Remembering(SchedulerMachine(rules=rules, power=power))
        self.world = World(self.recorder, habits)
        for node in cluster:
            self.world.join(node)
        self.count = 0

    def submit(self, job: JobSpec) -> str | None:
        """Submit a job; say how the machine and the oracle differ, None if they agree."""
        world, machine = self.world, self.recorder.machine
        world.tick_if_due()
        world.feed(ev.Tick(world.now_s))
        self.count += 1
        probe = attrs.evolve(job, submit_s=world.now_s, priority=self.count)
        world.specs[probe.job_id] = probe
        world.feed(ev.JobSubmitted(world.now_s, probe))
        before = machine.snapshot()
        reserved = any(isinstance(r, Reserved) for r in self.recorder.records)
        expected = oracle.decide(before, probe.job_id, self.recorder.memory, self.power)
        world.tick_if_due()
        placed = [r for r in machine.records if isinstance(r, Placed) and r.job_id == probe.job_id]
        if reserved:
            return None
        event(f"shared {expected.shared}" if expected.shapes else "waits")
        return _difference(placed, expected, oracle._Cluster(before, self.recorder.memory))


def _difference(
    placed: list[Placed], expected: oracle.Answer, cluster: oracle._Cluster
) -> str | None:
    if not placed:
        return None if not expected.shapes else f"waits, but should go to {expected}"
    shape: Shape = cluster.shape(placed[0].gpus)
    if placed[0].shared == expected.shared and shape in expected.shapes:
        return None
    return f"went to {shape} (shared: {placed[0].shared}), but should go to {expected}"


@st.composite
def habits(draw: st.DrawFn) -> Habits:
    factors = draw(st.lists(st.sampled_from([0.93, 1.0, 1.11, 1.31, 1.7, 2.2]), min_size=1))
    return Habits(factors=tuple(factors))


CLUSTERS = strategies.clusters(3)


@given(st.data(), CLUSTERS, habits(), st.sampled_from([None, PlainPower()]))
def test_the_search_finds_what_brute_force_finds(
    data: st.DataObject, cluster: tuple[NodeSpec, ...], how: Habits, power: PlainPower | None
) -> None:
    probe = Probe(cluster, how, power)
    for number in range(data.draw(st.integers(2, 9), "jobs")):
        job = data.draw(strategies.jobs(f"j{number}", 0.0, 1 if power else 6), "job")
        if job.deadline_s is not None:
            job = attrs.evolve(job, deadline_s=probe.world.now_s + job.deadline_s)
        difference = probe.submit(attrs.evolve(job, gpus=min(job.gpus, 6)))
        if difference is not None:
            steps = [line for line in probe.recorder.lines if isinstance(line, Step)]
            note(in_words(steps))
        assert difference is None, difference
        for _ in range(data.draw(st.sampled_from([0, 1, 4, 12]), "moments")):
            probe.world.advance()


def test_the_oracle_knows_a_shared_set_from_an_idle_one() -> None:
    story = Script(a_node("n1", 1), a_node("n2", 1)).run(a_job("a"))
    story.machine.step(ev.JobSubmitted(0.0, a_job("b")))
    answer = oracle.decide(story.machine.snapshot(), "b", oracle.Memory())
    assert answer == oracle.Answer(shared=True, shapes=frozenset({(("n1", (("a",),)),)}))
    story.machine.step(ev.JobSubmitted(0.0, a_job("c", exclusive=True)))
    answer = oracle.decide(story.machine.snapshot(), "c", oracle.Memory())
    assert answer == oracle.Answer(shared=False, shapes=frozenset({(("n2", ((),)),)}))
