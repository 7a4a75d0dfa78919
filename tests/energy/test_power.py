"""The default power model against the published node powers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaco_core.cluster import GpuSpec, NodeSpec
from eaco_core.errors import InputError
from eaco_telemetry.power import DefaultNodePower, FanServer, SqrtGpu, cpu_ratio_of_load

if TYPE_CHECKING:
    from eaco_core.ports import PowerModel

# arXiv 2412.08294, Table 2 (average GPU utilisation) and Tables 1 and 3 (average power).
UTIL = {"J1": 0.0472, "J2": 0.1117, "J3": 0.3661, "J4": 0.4801}
PUBLISHED_W: dict[tuple[str, ...], float] = {
    ("J1",): 712,
    ("J2",): 959,
    ("J3",): 1330,
    ("J4",): 1533,
    ("J1", "J3"): 1390,
    ("J1", "J4"): 1506,
    ("J2", "J4"): 1644,
    ("J1", "J2", "J3"): 1541,
    ("J1", "J2", "J4"): 1713,
    ("J1", "J2", "J3", "J4"): 1944,
}


def node(gpus: int = 8, wake_s: float = 60.0) -> NodeSpec:
    return NodeSpec("n0", tuple(GpuSpec(f"g{i}", "v100") for i in range(gpus)), wake_s=wake_s)


def node_w(model: PowerModel, spec: NodeSpec, jobs: tuple[str, ...]) -> float:
    util = sum(UTIL[job] for job in jobs)
    gpus_w = sum(model.gpu_w(gpu.gpu_type, util) for gpu in spec.gpus)
    return model.server_w(spec, float(len(jobs))) + gpus_w


@pytest.mark.parametrize("jobs", PUBLISHED_W, ids="".join)
def test_published_sets_are_met_within_100_w(jobs: tuple[str, ...]) -> None:
    assert abs(node_w(DefaultNodePower(), node(), jobs) - PUBLISHED_W[jobs]) < 100


def test_fit_is_as_good_as_stated() -> None:
    errors = [node_w(DefaultNodePower(), node(), jobs) - w for jobs, w in PUBLISHED_W.items()]
    assert max(abs(error) for error in errors) == pytest.approx(90, abs=1)
    assert (sum(e * e for e in errors) / len(errors)) ** 0.5 == pytest.approx(47, abs=0.5)


def test_idle_node_draws_459_w() -> None:
    assert node_w(DefaultNodePower(), node(), ()) == pytest.approx(458.7)
    assert DefaultNodePower().node_idle_w(node()) == pytest.approx(458.7)


def test_utilisation_is_capped_at_full() -> None:
    gpu = SqrtGpu()
    assert gpu.power_w(1.0) == pytest.approx(34.8 + 171.3)
    assert gpu.power_w(1.7) == gpu.power_w(1.0)


@pytest.mark.parametrize(
    ("load", "cpu"),
    [
        (0, 0.0),
        (0.5, 0.033),
        (1, 0.066),
        (1.5, 0.095),
        (2, 0.124),
        (3, 0.188),
        (4, 0.245),
        (6, 0.365),
        (40, 1.0),
    ],
)
def test_cpu_utilisation_is_piecewise_linear_in_the_load(load: float, cpu: float) -> None:
    assert cpu_ratio_of_load(load) == pytest.approx(cpu)


def test_fan_curve_meets_its_two_ends() -> None:
    server = FanServer(idle_w=100, busy_w=300)
    assert server.power_w(0) == 100
    assert server.power_w(1) == 300
    assert 200 < server.power_w(0.5) < 300


def test_idle_override_moves_the_idle_power_only() -> None:
    usual, moved = DefaultNodePower(), DefaultNodePower(idle_w=1400)
    assert node_w(moved, node(), ()) == pytest.approx(1400)
    extra_w = node_w(usual, node(), ("J4",)) - node_w(usual, node(), ())
    assert node_w(moved, node(), ("J4",)) - 1400 == pytest.approx(extra_w)


def test_idle_override_below_the_gpus_is_refused() -> None:
    model = DefaultNodePower(idle_w=100)
    with pytest.raises(InputError, match="8 idle GPUs of n0"):
        model.server_w(node(), 0.0)


def test_sleep_and_wake() -> None:
    assert DefaultNodePower().sleep_w(node()) == 15
    assert DefaultNodePower().wake_j(node()) == pytest.approx(458.7 * 60)
    assert DefaultNodePower(idle_w=600).wake_j(node(wake_s=120)) == pytest.approx(72_000)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_negative_and_unreal_watts_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="asleep_w"):
        DefaultNodePower(asleep_w=bad)
    with pytest.raises(InputError, match="load of jobs"):
        cpu_ratio_of_load(bad)
