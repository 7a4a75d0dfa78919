"""A small world that answers effects with events: late, twice, out of order, or not at all.

It is no simulator of time or energy: epochs take whatever the habits say, so that the
machine meets slowdowns that no law predicts. All choices are in `Habits`, which is
plain data: the same habits and calls give the same run.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

import attrs
from attrs import define, field, frozen

from eaco_core import effects as fx
from eaco_core import events as ev
from eaco_core.cluster import NodeReading, NodeState
from eaco_core.errors import EventRefused
from eaco_core.states import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eaco_core.cluster import NodeSpec
    from eaco_core.events import Event
    from eaco_core.jobs import FailureReason, JobSpec
    from eaco_core.testing.recorder import Recorder


@frozen
class Habits:
    """How the world behaves. Each tuple is gone through in turn, round and round.

    `factors`: shared / solo epoch time beside others. `alone_factors`: the same alone.
    `start_s`: how long a start takes, None = it fails. `wake`: share of the node's
    `wake_s` that waking takes, None = it fails, infinite = nothing ever comes.
    `stop_obeyed`: whether a request to stop is heard. `late_s`: how late messages are.
    `twice`: whether a message comes twice. `backwards`: whether messages that are due
    together come in the opposite order. `split_release`: whether the GPUs of a gang are
    released one by one. `clean`: whether an epoch is comparable.
    """

    factors: tuple[float, ...] = (1.0,)
    alone_factors: tuple[float, ...] = (1.0,)
    start_s: tuple[float | None, ...] = (1.0,)
    wake: tuple[float | None, ...] = (1.0,)
    stop_obeyed: tuple[bool, ...] = (True,)
    late_s: tuple[float, ...] = (0.0,)
    twice: tuple[bool, ...] = (False,)
    backwards: tuple[bool, ...] = (False,)
    split_release: tuple[bool, ...] = (False,)
    clean: tuple[bool, ...] = (True,)
    release_s: tuple[float, ...] = (1.0,)


BENIGN = Habits()
READ_EVERY_S = 20.0


@define(eq=False)
class Attempt:
    """One attempt of a job, as its executor knows it. `state`: starting, running, over."""

    job: JobSpec
    number: int
    gpus: dict[str, tuple[str, ...]]
    epoch: int
    state: str = "starting"
    stop_asked: bool = False
    reported: bool = False

    @property
    def all_gpus(self) -> tuple[str, ...]:
        """Give the ids of all its GPUs."""
        return tuple(gpu_id for gpu_ids in self.gpus.values() for gpu_id in gpu_ids)


@define(eq=False)
class _Habit:
    """Goes through the choices of one habit, round and round."""

    places: dict[str, int] = field(factory=dict[str, int])

    def next(self, habits: Habits, name: str) -> object:
        """Give the next choice of a habit."""
        choices: tuple[object, ...] = getattr(habits, name)
        place = self.places.get(name, 0)
        self.places[name] = place + 1
        return choices[place % len(choices)]


class World:
    """Nodes and processes around one machine."""

    def __init__(self, recorder: Recorder, habits: Habits = BENIGN) -> None:
        self.recorder = recorder
        self.machine = recorder.machine
        self.habits = habits
        self.now_s = 0.0
        self.nodes: dict[str, NodeSpec] = {}
        self.lost_nodes: set[str] = set()
        self.lost_gpus: set[str] = set()
        self.specs: dict[str, JobSpec] = {}
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.telemetry = False
        self._peaks: list[int] = []
        self._readings: dict[str, tuple[float, float | None, bool | None]] = {}
        self._turn = _Habit()
        self._number = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._last_s: dict[str, float] = {}

    # ---- facts from outside ------------------------------------------------------

    def join(self, node: NodeSpec, state: NodeState = NodeState.AWAKE) -> None:
        """Let a node join (again)."""
        self.nodes[node.node_id] = node
        self.lost_nodes.discard(node.node_id)
        self.lost_gpus -= {gpu.gpu_id for gpu in node.gpus}
        self.feed(ev.NodeJoined(self.now_s, node, state))

    def submit(self, *jobs: JobSpec, tick: bool = True) -> None:
        """Submit jobs at the same moment, then let the machine decide."""
        for job in jobs:
            self.specs[job.job_id] = job
            self.feed(ev.JobSubmitted(self.now_s, job))
        if tick:
            self.tick_if_due()

    def cancel(self, job_id: str) -> None:
        """Let the user take a job back."""
        self.feed(ev.JobCancelled(self.now_s, job_id))

    def lose_node(self, node_id: str) -> None:
        """Take a node away with everything that runs on it."""
        if node_id in self.lost_nodes:
            return
        self.lost_nodes.add(node_id)
        for attempt in self._alive():
            if node_id in attempt.gpus:
                attempt.state = "over"
        self.feed(ev.NodeLost(self.now_s, node_id))

    def lose_gpu(self, node_id: str, gpu_id: str) -> None:
        """Take one GPU away; whoever computes on it dies."""
        if node_id in self.lost_nodes:
            return
        self.lost_gpus.add(gpu_id)
        for attempt in self._alive():
            if gpu_id in attempt.all_gpus:
                attempt.state = "over"
        self.feed(ev.GpuLost(self.now_s, node_id, gpu_id))

    def drain(self, node_id: str, *, drained: bool) -> None:
        """Close a node to new jobs, or open it."""
        self.feed(ev.NodeDrained(self.now_s, node_id, drained))

    def sample(self, node_id: str, util: float | None, *, foreign: bool | None = None) -> None:
        """Send one reading of every GPU of a node; with `telemetry`, again and again."""
        if node_id in self.lost_nodes:
            return
        self._readings[node_id] = (self.now_s, util, foreign)
        readings = tuple(
            NodeReading(gpu.gpu_id, self.now_s, util_ratio=util, foreign=foreign)
            for gpu in self.nodes[node_id].gpus
        )
        self.feed(ev.NodeSampled(self.now_s, node_id, readings))

    def fail(self, attempt: Attempt, reason: FailureReason, peak: int | None = None) -> None:
        """Let a running attempt die."""
        attempt.state = "over"
        if peak is not None:
            self._peaks.append(peak)
        failed = ev.JobFailed(0.0, attempt.job.job_id, attempt.number, reason, 1, peak)
        self._send(failed, attempt)
        self._release(attempt)

    def lose_sight(self, attempt: Attempt) -> None:
        """Let the executor say that it does not know whether the attempt runs."""
        self.feed(ev.JobUnknown(self.now_s, attempt.job.job_id, attempt.number))

    def repeat(self, event: Event) -> None:
        """Bring an event of the past once more."""
        self.feed(attrs.evolve(event, t_s=self.now_s))

    def running(self) -> list[Attempt]:
        """Give the attempts that compute."""
        return [a for a in self.attempts.values() if a.state == "running" and a.reported]

    def _alive(self) -> list[Attempt]:
        return [a for a in self.attempts.values() if a.state != "over"]

    # ---- time --------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Give an event to the machine, and take on its effects."""
        self.carry_out(self.recorder.feed(event))

    def tick_if_due(self) -> None:
        """Let the machine decide if it wants to now."""
        wakeup_s = self.machine.next_wakeup_s
        if wakeup_s is not None and wakeup_s <= self.now_s:
            self.feed(ev.Tick(self.now_s))

    def next_s(self) -> float | None:
        """Give when the next thing is due, here or in the machine."""
        due = [self._due[0][0]] if self._due else []
        if self.machine.next_wakeup_s is not None:
            due.append(self.machine.next_wakeup_s)
        return max(self.now_s, min(due)) if due else None

    def advance(self) -> bool:
        """Go to the next moment, bring everything that is due, and tick. False = nothing is due."""
        next_s = self.next_s()
        if next_s is None:
            return False
        self.now_s = next_s
        self._deliver_due()
        for node_id, (read_s, util, foreign) in list(self._readings.items()):
            if self.telemetry and self.now_s - read_s > READ_EVERY_S:
                self.sample(node_id, util, foreign=foreign)
        self.tick_if_due()
        return True

    def pass_time(self, seconds: float) -> None:
        """Go on for so long, moment by moment."""
        end_s = self.now_s + seconds
        while (next_s := self.next_s()) is not None and next_s <= end_s:
            self.advance()
        self.now_s = end_s

    def _deliver_due(self) -> None:
        due: list[Callable[[], None]] = []
        while self._due and self._due[0][0] <= self.now_s:
            due.append(heapq.heappop(self._due)[2])
        if self._choose("backwards"):
            due.reverse()
        for happen in due:
            happen()

    def _later(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._number), happen))

    def _choose(self, name: str) -> object:
        return self._turn.next(self.habits, name)

    def _seconds(self, name: str) -> float:
        seconds = self._choose(name)
        assert isinstance(seconds, (int, float))
        return float(seconds)

    # ---- messages ----------------------------------------------------------------

    def _send(self, event: ev.JobEvent, attempt: Attempt) -> None:
        """Bring a message of an attempt, maybe late, maybe twice.

        Messages of one job keep their order, but for those of epochs.
        """
        job_id = attempt.job.job_id
        at_s = self.now_s + self._seconds("late_s")
        if not isinstance(event, ev.EpochCompleted):
            # Strictly later, so that "backwards" cannot turn them around.
            at_s = max(at_s, self._last_s.get(job_id, -1.0) + 0.001)
            self._last_s[job_id] = at_s
        self._later(at_s, lambda: self._bring(event, attempt))
        if self._choose("twice"):
            self._later(at_s + 0.5, lambda: self._bring(event, attempt))

    def _bring(self, event: ev.JobEvent, attempt: Attempt) -> None:
        if isinstance(event, ev.JobStarted):
            attempt.reported = True
        if isinstance(event, ev.GpusReleased):
            gone = tuple(g for g in event.gpus if g not in self.lost_gpus)
            event = attrs.evolve(event, gpus=gone)
        try:
            self.feed(attrs.evolve(event, t_s=self.now_s))
        except EventRefused:
            if not isinstance(event, ev.GpusReleased):
                raise

    def _release(self, attempt: Attempt) -> None:
        nodes = [n for n in attempt.gpus if n not in self.lost_nodes]
        gpus = tuple(gpu_id for node_id in nodes for gpu_id in attempt.gpus[node_id])
        parts = [(gpu_id,) for gpu_id in gpus] if self._choose("split_release") else [gpus]
        delay_s = self._seconds("release_s")
        job_id, number = attempt.job.job_id, attempt.number

        def send() -> None:
            for part in parts:
                if part:
                    self._send(ev.GpusReleased(0.0, job_id, number, part), attempt)

        # Sent later: whatever the job said before it ended goes first.
        self._later(max(self.now_s, self._last_s.get(job_id, 0.0)) + delay_s, send)

    # ---- effects -----------------------------------------------------------------

    def carry_out(self, effects: Iterable[fx.Effect]) -> None:
        """Take on what the machine asks for."""
        for effect in effects:
            if isinstance(effect, fx.StartJob):
                self._start(effect)
            elif isinstance(effect, fx.StopAtEpochBoundary):
                attempt = self.attempts.get((effect.job_id, effect.attempt))
                if attempt is not None and self._choose("stop_obeyed"):
                    attempt.stop_asked = True
            elif isinstance(effect, fx.KillJob):
                self._kill(effect)
            elif isinstance(effect, fx.WakeNode):
                self._wake(effect.node_id)
            elif isinstance(effect, fx.SleepNode):
                self._sleep(effect.node_id)

    def _start(self, effect: fx.StartJob) -> None:
        job = self.specs[effect.job_id]
        attempt = Attempt(job, effect.attempt, dict(effect.gpus), effect.resume_epoch)
        self.attempts[effect.job_id, effect.attempt] = attempt
        start_s = self._choose("start_s")
        at_s = self.now_s + (start_s if isinstance(start_s, (int, float)) else 1.0)

        def begin() -> None:
            if attempt.state != "starting":
                return
            if start_s is None:
                attempt.state = "over"
                failed = ev.StartFailed(0.0, job.job_id, attempt.number, "no process")
                self._send(failed, attempt)
                return
            attempt.state = "running"
            self._send(ev.JobStarted(0.0, job.job_id, attempt.number), attempt)
            if attempt.epoch >= _epochs(job):
                self._finish(attempt)
            else:
                self._run_epoch(attempt)

        self._later(at_s, begin)

    def _finish(self, attempt: Attempt) -> None:
        attempt.state = "over"
        self._send(ev.JobFinished(0.0, attempt.job.job_id, attempt.number), attempt)
        self._release(attempt)

    def _run_epoch(self, attempt: Attempt) -> None:
        gpus = set(attempt.all_gpus)
        shares = any(gpus & set(o.all_gpus) for o in self._alive() if o is not attempt)
        factor = self._seconds("factors") if shares else self._seconds("alone_factors")
        profiles = attempt.job.profiles
        solo_s = next((p.epoch_s for p in profiles if p.epoch_s is not None), 100.0)
        self._later(self.now_s + factor * solo_s, lambda: self._end_epoch(attempt))

    def _end_epoch(self, attempt: Attempt) -> None:
        if attempt.state != "running":
            return
        job = attempt.job
        attempt.epoch += 1
        clean = bool(self._choose("clean"))
        done = ev.EpochCompleted(0.0, job.job_id, attempt.number, attempt.epoch, clean)
        self._send(done, attempt)
        if attempt.epoch >= _epochs(job):
            self._finish(attempt)
        elif attempt.stop_asked:
            attempt.state = "over"
            stopped = ev.JobStopped(0.0, job.job_id, attempt.number, attempt.epoch)
            self._send(stopped, attempt)
            self._release(attempt)
        else:
            self._run_epoch(attempt)

    def _kill(self, effect: fx.KillJob) -> None:
        attempt = self.attempts.get((effect.job_id, effect.attempt))
        if attempt is not None:
            attempt.state = "over"
            self._release(attempt)

    def _wake(self, node_id: str) -> None:
        share = self._choose("wake")
        wake_s = self.nodes[node_id].wake_s
        if share is None:
            self._later(self.now_s + wake_s, lambda: self._of_node(ev.WakeFailed(0.0, node_id)))
        elif isinstance(share, (int, float)) and share < float("inf"):
            at_s = self.now_s + share * wake_s
            self._later(at_s, lambda: self._of_node(ev.NodeAwake(0.0, node_id)))

    def _sleep(self, node_id: str) -> None:
        self._later(self.now_s + 5.0, lambda: self._of_node(ev.NodeAsleep(0.0, node_id)))

    def _of_node(self, event: ev.NodeAwake | ev.NodeAsleep | ev.WakeFailed) -> None:
        if event.node_id not in self.lost_nodes:
            self.feed(attrs.evolve(event, t_s=self.now_s))

    # ---- the end -----------------------------------------------------------------

    def heal(self) -> None:
        """Let everything be well from now on: nodes are back, and messages come at once."""
        self.habits = attrs.evolve(BENIGN, factors=self.habits.factors)
        state = self.machine.snapshot()
        for node_id, node in sorted(self.nodes.items()):
            hurt = any(gpu.gpu_id in self.lost_gpus for gpu in node.gpus)
            if hurt:
                self.lose_node(node_id)
            if node_id in self.lost_nodes or state.nodes[node_id][1] is NodeState.OUT:
                self.join(node)
            self.drain(node_id, drained=False)
            if node_id in self._readings:
                self.sample(node_id, None, foreign=False)

    def run_to_end(self, most_steps: int = 4000) -> list[str]:
        """Go on until every job has ended; give those that have not.

        Jobs for which the cluster has no place are taken back first.
        """
        for job_id in self.alive_jobs():
            if not self.could_run(self.specs[job_id]):
                self.cancel(job_id)
        alive = self.alive_jobs()
        for step in range(most_steps):
            if step % 10 == 0:
                alive = self.alive_jobs()
                self._rejoin_lost()
            if alive and self.next_s() is None:
                alive = self.alive_jobs()
                self._rejoin_lost()
            if not alive or not self.advance():
                break
        return self.alive_jobs()

    def _rejoin_lost(self) -> None:
        """Bring back nodes that are out because an earlier wake-up failed or was never answered."""
        nodes = self.machine.snapshot().nodes
        for node_id, node in sorted(self.nodes.items()):
            if nodes[node_id][1] is NodeState.OUT:
                self.join(node)

    def alive_jobs(self) -> list[str]:
        """Give the jobs that have not ended."""
        return [i for i in self.specs if self.machine.job(i).state not in TERMINAL]

    def could_run(self, job: JobSpec) -> bool:
        """Tell whether the cluster, all idle and awake, has a place for the job (R3)."""
        sizes: dict[str, list[int]] = {}
        largest: dict[str, int] = {}
        for node in self.nodes.values():
            for gpu_type in {gpu.gpu_type for gpu in node.gpus}:
                size = sum(1 for gpu in node.gpus if gpu.gpu_type == gpu_type)
                largest[gpu_type] = max(size, largest.get(gpu_type, 0))
                if set(job.node_selector) <= set(node.labels):
                    sizes.setdefault(gpu_type, []).append(size)
        for gpu_type, here in sizes.items():
            if job.gpu_types is not None and gpu_type not in job.gpu_types:
                continue
            if not self._fits(job, gpu_type):
                continue
            size = largest[gpu_type]
            whole, rest = (0, job.gpus) if job.gpus <= size else divmod(job.gpus, size)
            full = sorted(here, reverse=True)
            enough = len(full) >= whole and all(s >= size for s in full[:whole])
            left = full[whole:]
            if enough and (not rest or (left and max(left) >= rest)):
                return True
        return False

    def _fits(self, job: JobSpec, gpu_type: str) -> bool:
        """Tell whether the job's memory fits on every GPU of the type: no need for more."""
        profile = job.profile_on(gpu_type)
        peaks = [0 if profile is None else profile.peak_mem_bytes or 0, *self._peaks]
        return all(
            gpu.mem_bytes is None or max(peaks) <= gpu.mem_bytes
            for node in self.nodes.values()
            for gpu in node.gpus
            if gpu.gpu_type == gpu_type
        )


def _epochs(job: JobSpec) -> int:
    """Give how many epochs a job really has; one that does not say has three."""
    return 3 if job.epochs is None else job.epochs
