"""Policy fifo in the simulator against a second, much simpler simulation of it.

The oracle below shares no code with the simulator or the machine: no events, no
effects, no index. It walks from one time of interest to the next over plain lists.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest

from eaco_adapters.simulator import GroundTruth, SimResult, SimSettings, simulate
from eaco_adapters.traces import read_trace
from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.jobs import JobSpec, SoloProfile
from eaco_core.machine import SchedulerMachine
from eaco_core.policies.fifo import Fifo
from eaco_predictors.profiles import ProfileTable, read_any_profiles
from eaco_telemetry.power import DefaultNodePower

START_S, WAKE_S, IDLE_S, AWAKE_S = 10.0, 60.0, 300.0, 600.0
STATES = ("awake", "waking", "asleep")


class OracleNode:
    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self.state = "asleep"
        self.woken_at = math.inf
        self.awake_since = 0.0
        self.idle_since = 0.0
        self.work: list[tuple[OracleJob, int]] = []

    def sleeps_at(self) -> float:
        if self.state != "awake" or self.free < self.size:
            return math.inf
        return max(self.idle_since + IDLE_S, self.awake_since + AWAKE_S)

    def power_w(self, now: float) -> float:
        """Power of 8 GPUs and their server; `work` is (job, GPUs held here)."""
        if self.state == "asleep":
            return 15.0
        if self.state == "waking":
            return 180.3 + self.size * 34.8
        running = [(job, gpus) for job, gpus in self.work if job.begun_at < math.inf]
        # Jobs that wait for another node to wake are not here yet.
        load = sum(gpus for _, gpus in running) / self.size
        cpu = 0.066 * load  # one job per GPU at most: the first piece of the curve
        watts = 180.3 + 414.0 * (2 * cpu - math.pow(cpu, 1.4)) + self.size * 34.8
        for job, gpus in running:
            if now >= job.begun_at:
                watts += gpus * 17.13 * math.sqrt(100 * job.util)
        return watts


class OracleJob:
    def __init__(self, spec: JobSpec) -> None:
        profile = spec.profiles[0]
        assert profile.epoch_s is not None
        assert spec.epochs is not None
        self.name, self.gpus, self.arrives = spec.job_id, spec.gpus, spec.submit_s
        self.epochs, self.epoch_s, self.util = spec.epochs, profile.epoch_s, profile.util_ratio or 0
        self.parts: list[tuple[OracleNode, int]] = []
        self.begun_at = math.inf
        self.ends_at = math.inf
        self.ended = False

    def try_to_start(self, now: float) -> None:
        if self.begun_at == math.inf and all(node.state == "awake" for node, _ in self.parts):
            self.begun_at = self.ends_at = now + START_S
            for _ in range(self.epochs):
                self.ends_at += self.epoch_s


def best_fit(nodes: list[OracleNode], gpus: int, not_these: list[OracleNode]) -> OracleNode | None:
    for state in STATES:
        fitting = [n for n in nodes if n.state == state and n.free >= gpus and n not in not_these]
        if fitting:
            return min(fitting, key=lambda n: n.free)  # of equals the first: node order
    return None


def choose(nodes: list[OracleNode], gpus: int) -> list[tuple[OracleNode, int]] | None:
    size = nodes[0].size
    wanted = [size] * (gpus // size) + ([gpus % size] if gpus % size else [])
    chosen: list[tuple[OracleNode, int]] = []
    for part in wanted:
        node = best_fit(nodes, part, [used for used, _ in chosen])
        if node is None:
            return None
        chosen.append((node, part))
    return chosen


def place_heads(queue: list[OracleJob], nodes: list[OracleNode], now: float) -> None:
    while queue:
        parts = choose(nodes, queue[0].gpus)
        if parts is None:
            return
        job = queue.pop(0)
        job.parts = parts
        for node, gpus in parts:
            node.free -= gpus
            node.work.append((job, gpus))
            if node.state == "asleep":
                node.state, node.woken_at = "waking", now + WAKE_S
        job.try_to_start(now)


def end_jobs(jobs: list[OracleJob], now: float) -> None:
    for job in jobs:
        if not job.ended and job.ends_at <= now:
            job.ended = True
            for node, gpus in job.parts:
                node.free += gpus
                node.work.remove((job, gpus))
                node.idle_since = now


def wake_nodes(nodes: list[OracleNode], now: float) -> None:
    for node in nodes:
        if node.woken_at <= now:
            node.state, node.woken_at = "awake", math.inf
            node.awake_since = node.idle_since = now


def oracle(
    specs: list[JobSpec], node_count: int, size: int
) -> tuple[dict[str, tuple[float, float]], float]:
    """Give (start, end) of each job, and the energy until the last end."""
    nodes = [OracleNode(size) for _ in range(node_count)]
    jobs = sorted(map(OracleJob, specs), key=lambda job: (job.arrives, job.name))
    coming, queue = list(jobs), list[OracleJob]()
    now = energy_j = 0.0
    while not all(job.ended for job in jobs):
        soon = [job.ends_at for job in jobs if job.parts and not job.ended]
        soon += [job.begun_at for job in jobs if now < job.begun_at < math.inf]
        soon += [node.woken_at for node in nodes] + [node.sleeps_at() for node in nodes]
        soon += [job.arrives for job in coming[:1]]
        later = min(soon)
        energy_j += (later - now) * sum(node.power_w(now) for node in nodes)
        now = later
        end_jobs(jobs, now)
        wake_nodes(nodes, now)
        for job in jobs:
            if job.parts:
                job.try_to_start(now)
        while coming and coming[0].arrives <= now:
            queue.append(coming.pop(0))
        dozing = [node for node in nodes if node.sleeps_at() <= now]
        for node in dozing:
            node.state = "falling asleep"
        place_heads(queue, nodes, now)
        for node in dozing:
            node.state = "asleep"
        place_heads(queue, nodes, now)
    return {job.name: (job.begun_at, job.ends_at) for job in jobs}, energy_j


# ----------------------------------------------------------------- comparison


def cluster(count: int, size: int) -> list[NodeSpec]:
    return [
        NodeSpec(
            f"n{i:03}", tuple(GpuSpec(f"n{i:03}-{k}", "v100") for k in range(size)), can_sleep=True
        )
        for i in range(count)
    ]


def simulated(specs: list[JobSpec], count: int, size: int, table: ProfileTable) -> SimResult:
    power = DefaultNodePower()
    return simulate(
        jobs=specs,
        nodes=cluster(count, size),
        machine=SchedulerMachine(Fifo(), power=power),
        truth=GroundTruth(table),
        power=power,
        settings=SimSettings(start_s=START_S),
    )


def random_jobs(seed: int, size: int, most: int) -> list[JobSpec]:
    """Times are whole numbers, so that things really happen at the same time."""
    draw = random.Random(seed)
    jobs: list[JobSpec] = []
    now = 0.0
    for number in range(120):
        now += draw.choice([0, 0, 0, 10, 60, 300, 310, 600, 2000])
        gpus = draw.choice([1, 1, 2, size // 2, size, draw.randint(1, most)])
        profile = SoloProfile("v100", draw.choice([30.0, 50.0, 290.0]), draw.choice([0.1, 0.5]))
        jobs.append(
            JobSpec(f"j{number:03}", gpus, now, draw.randint(1, 9), "w", profiles=(profile,))
        )
    return jobs


EMPTY = ProfileTable(name="none", gpu_type="v100", profiles={}, measured={}, notes=())


def compare(result: SimResult, expected: dict[str, tuple[float, float]]) -> None:
    assert len(result.jobs) == len(expected)
    for job in result.jobs:
        assert (job.start_s, job.end_s) == pytest.approx(expected[job.job_id], rel=1e-6), job.job_id


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("count", "size"), [(3, 4), (5, 2), (2, 8), (6, 8)])
def test_fifo_agrees_with_the_oracle(seed: int, count: int, size: int) -> None:
    specs = random_jobs(seed, size, most=count * size)
    result = simulated(specs, count, size, EMPTY)
    expected, energy_j = oracle(specs, count, size)
    compare(result, expected)
    energy = result.energy_until_s(result.end_s)
    assert energy is not None
    assert energy.total_j == pytest.approx(energy_j, rel=1e-9)


def test_oracle_is_not_blind() -> None:
    """Jobs wait, nodes sleep and wake, gangs span nodes: or the comparison shows nothing."""
    specs = random_jobs(0, 4, most=12)
    starts, _ = oracle(specs, 3, 4)
    waits = [starts[spec.job_id][0] - spec.submit_s for spec in specs]
    assert sum(wait > WAKE_S + START_S for wait in waits) > 20
    assert WAKE_S + START_S in waits
    assert START_S in waits
    assert any(spec.gpus > 4 for spec in specs)


@pytest.mark.data
def test_fifo_agrees_with_the_oracle_on_the_gavel_trace() -> None:
    folder = os.environ.get("EACO_DATA_DIR")
    if not folder:
        pytest.skip("EACO_DATA_DIR is not set: the Gavel trace is not there")
    gavel = Path(folder) / "gavel"
    table = read_any_profiles(gavel / "simulation_throughputs.json", "v100")
    trace = read_trace(gavel / "g1000_l60_s0.trace", table=table, gpu_type="v100", seed=0)
    specs = list(trace.jobs)
    result = simulated(specs, 28, 8, table)
    assert result.energy is None
    assert result.placements == len(specs) == 1000
    compare(result, oracle(specs, 28, 8)[0])
