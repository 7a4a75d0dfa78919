"""A stateful Hypothesis test of the machine in a hostile world.

Subclass `SchedulerTest`, set `policy_name`, and let pytest collect `YourTest.TestCase`.
The state is checked after each step, the history at the end; then the world is healed,
and every job that has a place must end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from eaco_core import events as ev
from eaco_core.cluster import NodeState
from eaco_core.jobs import FailureReason
from eaco_core.machine import SchedulerMachine
from eaco_core.policies import policy_named
from eaco_core.testing import strategies
from eaco_core.testing.builders import PlainPower
from eaco_core.testing.recorder import Recorder
from eaco_core.testing.world import World

if TYPE_CHECKING:
    from eaco_core.cluster import NodeSpec
    from eaco_core.history import Line
    from eaco_core.rules import Rules
    from eaco_core.testing.world import Habits

MOST_JOBS = 16


class SchedulerTest(RuleBasedStateMachine):
    """Drives one machine. `ignore`: invariants that are known to be broken."""

    policy_name: ClassVar[str] = "eaco"
    ignore: ClassVar[frozenset[str]] = frozenset()
    clusters: ClassVar[st.SearchStrategy[tuple[NodeSpec, ...]]] = strategies.clusters()
    habits: ClassVar[st.SearchStrategy[Habits]] = strategies.habits()
    world: World

    def __init__(self) -> None:
        super().__init__()
        self._jobs = 0

    def rule_sets(self, base: Rules) -> st.SearchStrategy[Rules]:
        """Give parameters to draw from, around those of the policy."""
        return strategies.rule_sets(base)

    def make_machine(self, rules: Rules, *, power: bool) -> SchedulerMachine:
        """Make the machine under test."""
        return SchedulerMachine(
            policy_named(self.policy_name), rules=rules, power=PlainPower() if power else None
        )

    @initialize(
        data=st.data(),
        power=st.sampled_from([False, False, True]),
        telemetry=st.sampled_from([False, False, True]),
    )
    def begin(
        self,
        *,
        data: st.DataObject,
        power: bool,
        telemetry: bool,
    ) -> None:
        """Join some nodes, some of them asleep."""
        cluster = data.draw(self.clusters, "cluster")
        habits = data.draw(self.habits, "habits")
        rules = data.draw(self.rule_sets(policy_named(self.policy_name).rules), "rules")
        machine = self.make_machine(rules, power=power)
        self.world = World(Recorder(machine, ignore=self.ignore), habits)
        self.world.telemetry = telemetry
        for node in cluster:
            asleep = node.can_sleep and data.draw(st.booleans(), "asleep")
            self.world.join(node, NodeState.ASLEEP if asleep else NodeState.AWAKE)
        self.submit(data, data.draw(st.integers(2, 6), "jobs"))
        self.go_on(10)

    # ---- what users do -----------------------------------------------------------

    @precondition(lambda self: self._jobs < MOST_JOBS)
    @rule(data=st.data(), count=st.sampled_from([1, 2, 3, 4]))
    def submit(self, data: st.DataObject, count: int) -> None:
        """Submit jobs at the same moment."""
        count = min(count, MOST_JOBS - self._jobs)
        names = [f"j{self._jobs + i}" for i in range(count)]
        self._jobs += count
        drawn = [data.draw(strategies.jobs(name, self.world.now_s), name) for name in names]
        self.world.submit(*drawn)

    @precondition(lambda self: self._jobs > 0)
    @rule(data=st.data(), tick=st.booleans())
    def cancel(self, *, data: st.DataObject, tick: bool) -> None:
        """Take any job back, at any time."""
        job_id = data.draw(st.sampled_from(sorted(self.world.specs)), "job")
        self.world.cancel(job_id)
        if tick:
            self.world.tick_if_due()

    # ---- time --------------------------------------------------------------------

    @rule(moments=st.sampled_from([1, 2, 3, 5, 8]))
    def go_on(self, moments: int) -> None:
        """Let time pass, moment by moment."""
        for _ in range(moments):
            if not self.world.advance():
                break

    @rule(moments=st.sampled_from([10, 15, 25]))
    def go_on_for_longer(self, moments: int) -> None:
        """Let more time pass: windows close, jobs end."""
        self.go_on(moments)

    @rule(seconds=st.sampled_from([3.0, 20.0, 700.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass to a moment at which nothing is due, and tick."""
        self.world.pass_time(seconds)
        self.world.feed(ev.Tick(self.world.now_s))

    # ---- what goes wrong ---------------------------------------------------------

    @rule(data=st.data(), what=st.sampled_from(["node", "node", "gpu", "drain", "open"]))
    def node_trouble(self, data: st.DataObject, what: str) -> None:
        """Lose a node or a GPU, close a node or open it; a node that is lost comes back."""
        world = self.world
        node_id = data.draw(st.sampled_from(sorted(world.nodes)), "node")
        node = world.nodes[node_id]
        state = world.machine.snapshot().nodes[node_id][1]
        if state is NodeState.OUT:
            asleep = node.can_sleep and data.draw(st.booleans(), "asleep")
            world.join(node, NodeState.ASLEEP if asleep else NodeState.AWAKE)
        elif what == "node":
            world.lose_node(node_id)
        elif what == "gpu" and state is NodeState.AWAKE:
            gpu = data.draw(st.sampled_from(node.gpus), "GPU")
            world.lose_gpu(node_id, gpu.gpu_id)
        else:
            world.drain(node_id, drained=what == "drain")
        world.tick_if_due()

    @precondition(lambda self: bool(self.world.running()))
    @rule(
        data=st.data(),
        reason=st.sampled_from([None, *FailureReason]),
        peak_gib=st.sampled_from([None, 5]),
    )
    def job_trouble(
        self, data: st.DataObject, reason: FailureReason | None, peak_gib: int | None
    ) -> None:
        """Let a running job die, or let its executor lose sight of it."""
        attempts = self.world.running()
        attempt = attempts[data.draw(st.sampled_from(range(len(attempts))), "attempt")]
        if reason is None:
            self.world.lose_sight(attempt)
        else:
            peak = None if peak_gib is None else peak_gib * 1024**3
            self.world.fail(attempt, reason, peak)

    @precondition(lambda self: self.world.telemetry)
    @rule(
        data=st.data(),
        util=st.sampled_from([None, 0.0, 0.3, 0.7, 0.9, 1.0]),
        foreign=st.sampled_from([None, False, False, True]),
    )
    def sample(self, *, data: st.DataObject, util: float | None, foreign: bool | None) -> None:
        """Read the GPUs of a node, now and from now on."""
        node_id = data.draw(st.sampled_from(sorted(self.world.nodes)), "node")
        self.world.sample(node_id, util, foreign=foreign)

    @precondition(lambda self: bool(_past(self.world.recorder.lines)))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Bring any message of the past once more."""
        past = _past(self.world.recorder.lines)
        self.world.repeat(past[data.draw(st.integers(0, len(past) - 1), "event")])

    # ---- the end -----------------------------------------------------------------

    def teardown(self) -> None:
        """Heal the world, let every job end, and check the whole history."""
        if not hasattr(self, "world"):
            return
        self.world.recorder.check()
        self.world.recorder.watch = False
        self.world.heal()
        stuck = self.world.run_to_end()
        self.world.recorder.check()
        if stuck:
            jobs = {job_id: self.world.machine.job(job_id) for job_id in stuck}
            raise AssertionError(f"these jobs never end: {jobs}")


_REPEATABLE = (
    ev.JobSubmitted,
    ev.JobStarted,
    ev.StartFailed,
    ev.EpochCompleted,
    ev.JobStopped,
    ev.JobFinished,
    ev.JobFailed,
    ev.GpusReleased,
)


def _past(lines: list[Line]) -> list[ev.Event]:
    events = [getattr(line, "event", None) for line in lines]
    return [event for event in events if isinstance(event, _REPEATABLE)]
