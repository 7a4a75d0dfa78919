"""Seeded chance: right in distribution, and free of order."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from eaco_adapters.simulator import SimSettings, chance
from eaco_adapters.simulator.faults import Faults
from eaco_core.errors import InputError

MANY = range(20_000)


def test_uniform_is_uniform_and_never_0_or_1() -> None:
    drawn = [chance.uniform(7, "x", n) for n in MANY]
    assert fmean(drawn) == pytest.approx(0.5, abs=0.01)
    assert stdev(drawn) == pytest.approx(1 / math.sqrt(12), abs=0.01)
    assert 0 < min(drawn) < 0.001
    assert 0.999 < max(drawn) < 1
    assert len(set(drawn)) == len(drawn)


def test_names_are_kept_apart() -> None:
    assert chance.uniform(1, "a", "b") == chance.uniform(1, "a", "b")
    names: list[tuple[int, tuple[str | int, ...]]] = [
        (1, ("a", "b")),
        (1, ("ab",)),
        (1, ("b", "a")),
        (2, ("a", "b")),
        (1, ("a", "b", 0)),
    ]
    assert len({chance.uniform(seed, *rest) for seed, rest in names}) == len(names)


def test_noise_has_mean_1_and_the_spread_asked_for() -> None:
    drawn = [chance.spread_ratio(0.3, 1, "epoch", n) for n in MANY]
    assert fmean(drawn) == pytest.approx(1.0, abs=0.01)
    assert stdev([math.log(ratio) for ratio in drawn]) == pytest.approx(0.3, abs=0.01)
    assert chance.spread_ratio(0.0, 1, "epoch", 5) == 1.0


def test_lifetimes_are_exponential_and_differ_from_one_to_the_next() -> None:
    faults = Faults(SimSettings(node_mtbf_s=500.0, gpu_mtbf_s=200.0))
    nodes = [faults.node_life_s("n", number) or 0.0 for number in MANY]
    gpus = [faults.gpu_life_s("n", number) or 0.0 for number in MANY]
    assert fmean(nodes) == pytest.approx(500, rel=0.03)
    assert stdev(nodes) == pytest.approx(500, rel=0.03)
    assert fmean(gpus) == pytest.approx(200, rel=0.03)
    assert len(set(nodes)) == len(nodes)


def test_without_a_mean_nothing_fails_and_without_sense_it_is_refused() -> None:
    assert Faults(SimSettings()).node_life_s("n", 0) is None
    assert Faults(SimSettings()).gpu_life_s("g", 0) is None
    with pytest.raises(InputError, match="node_mtbf_s"):
        SimSettings(node_mtbf_s=0.0)
    with pytest.raises(InputError, match="start_s"):
        SimSettings(start_s=-1.0)
