"""The booking of joules: conservation, fairness and exactness."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from eaco_core.errors import InputError, InternalError
from eaco_telemetry.accounting import (
    OFF,
    EnergyLedger,
    GpuUse,
    NodeInterval,
    NodeShares,
    NodeUse,
    asleep_shares,
    check_interval,
    check_shares,
    split_node_power,
    waking_shares,
)

watts = st.floats(0, 1e4, allow_nan=False) | st.just(0.0)
ratios = st.none() | st.floats(0, 1)
names = st.sampled_from(["a", "b", "c", "d", "e"])


@st.composite
def gpu_uses(draw: st.DrawFn) -> GpuUse:
    residents = tuple(draw(st.lists(names, max_size=4, unique=True)))
    lists = st.none() | st.tuples(*[ratios] * len(residents))
    return GpuUse(draw(watts), draw(watts), residents, draw(lists), draw(lists))


@st.composite
def node_uses(draw: st.DrawFn) -> NodeUse:
    gpus = tuple(draw(st.lists(gpu_uses(), max_size=8)))
    cpu = st.none() | st.dictionaries(names, st.floats(0, 1e6))
    measured = st.none() | st.floats(0, 2e5)
    return NodeUse(draw(watts), draw(watts), gpus, draw(cpu), draw(measured))


def booked_w(shares: NodeShares) -> float:
    parts = (shares.idle_w, shares.unattributed_w, shares.sleep_w, shares.wake_w)
    return math.fsum((*shares.jobs_w.values(), *parts))


# ------------------------------------------------------------------ the split


@given(node_uses())
def test_every_watt_is_booked_once_and_none_is_negative(use: NodeUse) -> None:
    shares = split_node_power(use)
    parts_w = use.server_idle_w + use.server_dynamic_w
    parts_w += sum(gpu.idle_w + gpu.active_w for gpu in use.gpus)
    node_w = parts_w if use.measured_w is None else use.measured_w
    assert shares.node_w == pytest.approx(node_w, rel=1e-12, abs=1e-12)
    assert booked_w(shares) == pytest.approx(shares.node_w, rel=1e-9, abs=1e-9)
    assert min((0.0, shares.idle_w, shares.unattributed_w, *shares.jobs_w.values())) == 0.0
    assert shares.sleep_w == shares.wake_w == 0.0
    check_shares("n", shares)


@given(node_uses())
def test_only_jobs_of_the_node_are_charged(use: NodeUse) -> None:
    here = {job for gpu in use.gpus for job in gpu.residents} | set(use.cpu_s or ())
    assert set(split_node_power(use).jobs_w) <= here


@given(node_uses(), st.permutations(range(4)))
def test_order_of_gpus_and_residents_does_not_matter(use: NodeUse, ranks: list[int]) -> None:
    def shuffled(gpu: GpuUse) -> GpuUse:
        order = sorted(range(len(gpu.residents)), key=ranks.__getitem__)
        return GpuUse(
            gpu.idle_w,
            gpu.active_w,
            tuple(gpu.residents[i] for i in order),
            gpu.sm_ratio and tuple(gpu.sm_ratio[i] for i in order),
            gpu.util_ratio and tuple(gpu.util_ratio[i] for i in order),
        )

    other = evolve(use, gpus=tuple(shuffled(gpu) for gpu in reversed(use.gpus)))
    one, two = split_node_power(use), split_node_power(other)
    assert one.jobs_w == pytest.approx(two.jobs_w, rel=1e-9, abs=1e-9)
    assert one.idle_w == pytest.approx(two.idle_w, rel=1e-9, abs=1e-9)
    assert one.unattributed_w == pytest.approx(two.unattributed_w, rel=1e-9, abs=1e-9)


@given(node_uses())
def test_alike_jobs_pay_alike(use: NodeUse) -> None:
    """A twin of job `a` on all its GPUs, with the same readings, pays what `a` pays."""
    assume(any("a" in gpu.residents for gpu in use.gpus))

    def with_twin(gpu: GpuUse) -> GpuUse:
        if "a" not in gpu.residents:
            return gpu
        at = gpu.residents.index("a")
        return GpuUse(
            gpu.idle_w,
            gpu.active_w,
            (*gpu.residents, "twin"),
            gpu.sm_ratio and (*gpu.sm_ratio, gpu.sm_ratio[at]),
            gpu.util_ratio and (*gpu.util_ratio, gpu.util_ratio[at]),
        )

    shares = split_node_power(
        evolve(use, gpus=tuple(with_twin(gpu) for gpu in use.gpus), cpu_s=None)
    )
    assert shares.jobs_w["twin"] == pytest.approx(shares.jobs_w["a"], rel=1e-9, abs=1e-9)


def test_one_job_alone_on_all_gpus_pays_for_the_whole_node() -> None:
    use = NodeUse(180.0, 40.0, (GpuUse(35.0, 100.0, ("a",)),) * 8)
    shares = split_node_power(use)
    assert shares.jobs_w == {"a": pytest.approx(180 + 40 + 8 * 135)}
    assert shares.idle_w == 0.0


def test_rule_of_the_split_by_hand() -> None:
    use = NodeUse(
        server_idle_w=160.0,
        server_dynamic_w=30.0,
        gpus=(
            GpuUse(30.0, 90.0, ("a", "b"), util_ratio=(0.2, 0.4)),
            GpuUse(30.0, 60.0, ("a",), util_ratio=(0.2,)),
            GpuUse(30.0, 0.0),
            GpuUse(30.0, 0.0),
        ),
    )
    shares = split_node_power(use)
    # a: half of GPU 0's base of 30 + 40 W, all of GPU 1's, active 30 + 60, dynamic 90/150.
    assert shares.jobs_w["a"] == pytest.approx(35 + 70 + 90 + 30 * 90 / 150)
    assert shares.jobs_w["b"] == pytest.approx(35 + 60 + 30 * 60 / 150)
    assert shares.idle_w == pytest.approx(2 * (30 + 40))
    assert shares.unattributed_w == 0.0


@pytest.mark.parametrize(
    ("sm", "util", "a_w"),
    [
        ((0.75, 0.25), (0.5, 0.5), 60),
        ((0.75, None), (0.1, 0.3), 20),
        (None, (0.1, 0.3), 20),
        (None, (0.1, None), 40),
        ((0.0, 0.0), (0.0, 0.0), 40),
        (None, None, 40),
    ],
)
def test_sources_of_the_active_share_in_order(
    sm: tuple[float | None, ...] | None, util: tuple[float | None, ...] | None, a_w: float
) -> None:
    use = NodeUse(0.0, 0.0, (GpuUse(0.0, 80.0, ("a", "b"), sm, util),))
    assert split_node_power(use).jobs_w["a"] == pytest.approx(a_w)


def test_sources_of_the_server_share_in_order() -> None:
    gpus = (GpuUse(0.0, 30.0, ("a",)), GpuUse(0.0, 10.0, ("b",)))
    by_cpu = split_node_power(NodeUse(0.0, 8.0, gpus, cpu_s={"a": 1.0, "b": 3.0}))
    assert by_cpu.jobs_w == {"a": pytest.approx(32), "b": pytest.approx(16)}
    by_active = split_node_power(NodeUse(0.0, 8.0, gpus, cpu_s={"a": 0.0}))
    assert by_active.jobs_w == {"a": pytest.approx(36), "b": pytest.approx(12)}
    starting = (GpuUse(0.0, 0.0, ("a",)),) * 3 + (GpuUse(0.0, 0.0, ("b",)),)
    by_held = split_node_power(NodeUse(0.0, 8.0, starting))
    assert by_held.jobs_w == {"a": pytest.approx(6), "b": pytest.approx(2)}


def test_work_that_no_job_claims_is_unattributed() -> None:
    shares = split_node_power(NodeUse(100.0, 20.0, (GpuUse(30.0, 50.0), GpuUse(30.0, 0.0))))
    assert shares.unattributed_w == pytest.approx(70)
    assert shares.idle_w == pytest.approx(160)


def test_measured_power_above_the_parts_is_unattributed_and_below_scales_them() -> None:
    gpus = (GpuUse(30.0, 50.0, ("a",)), GpuUse(30.0, 0.0))
    parts = split_node_power(NodeUse(100.0, 20.0, gpus))
    above = split_node_power(NodeUse(100.0, 20.0, gpus, measured_w=300.0))
    assert above.jobs_w == parts.jobs_w
    assert above.unattributed_w == pytest.approx(300 - 230)
    below = split_node_power(NodeUse(100.0, 20.0, gpus, measured_w=115.0))
    assert below.jobs_w["a"] == pytest.approx(parts.jobs_w["a"] / 2)
    assert below.idle_w == pytest.approx(parts.idle_w / 2)
    assert below.node_w == 115.0


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_unreal_watts_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match=r"GpuUse\.active_w"):
        GpuUse(0.0, bad)
    with pytest.raises(InputError, match=r"NodeUse\.measured_w"):
        NodeUse(0.0, 0.0, (), measured_w=bad)


# ----------------------------------------------------------------- the ledger

shares_of_any_kind = st.one_of(
    node_uses().map(split_node_power),
    watts.map(asleep_shares),
    watts.map(waking_shares),
    st.just(OFF),
)
steps = st.lists(
    st.tuples(st.sampled_from(["n0", "n1"]), shares_of_any_kind, st.floats(0, 1e5)), max_size=30
)


@given(steps)
def test_ledger_is_exact_and_keeps_i30_in_every_interval(
    changes: list[tuple[str, NodeShares, float]],
) -> None:
    intervals: list[NodeInterval] = []
    ledger = EnergyLedger(on_interval=intervals.append)
    jobs: dict[str, Fraction] = {}
    node = {"n0": Fraction(0), "n1": Fraction(0)}
    now = {"n0": 0.0, "n1": 0.0}
    for node_id, shares, length_s in changes:
        ledger.set_shares(node_id, shares)
        until_s = now[node_id] + length_s
        ledger.advance(node_id, until_s)
        exact_s = Fraction(until_s) - Fraction(now[node_id])
        now[node_id] = until_s
        node[node_id] += Fraction(shares.node_w) * exact_s
        for job_id, job_w in shares.jobs_w.items():
            jobs[job_id] = jobs.get(job_id, Fraction(0)) + Fraction(job_w) * exact_s
    for interval in intervals:
        check_interval(interval)
    for node_id, exact in node.items():
        assert ledger.node_j(node_id) == pytest.approx(float(exact), rel=1e-9, abs=1e-9)
    for job_id, exact in jobs.items():
        assert ledger.job_j(job_id) == pytest.approx(float(exact), rel=1e-9, abs=1e-9)
    total_j = float(sum(node.values()))
    assert ledger.total_j() == pytest.approx(total_j, rel=1e-9, abs=1e-9)
    assert ledger.parts().total_j == pytest.approx(total_j, rel=1e-9, abs=1e-6)
    by_interval = math.fsum(interval.node_j for interval in intervals)
    assert by_interval == pytest.approx(total_j, rel=1e-9, abs=1e-9)


@given(shares_of_any_kind, st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_cutting_an_interval_changes_nothing(shares: NodeShares, cuts: list[float]) -> None:
    whole, cut = EnergyLedger(), EnergyLedger()
    for ledger in (whole, cut):
        ledger.set_shares("n", shares)
    for t_s in sorted(cuts):
        cut.advance("n", t_s)
    whole.advance("n", max(cuts))
    assert cut.node_j("n") == pytest.approx(whole.node_j("n"), rel=1e-9, abs=1e-9)
    assert cut.parts().jobs_j == pytest.approx(whole.parts().jobs_j, rel=1e-9, abs=1e-9)


def test_small_intervals_after_a_huge_one_are_not_lost() -> None:
    ledger = EnergyLedger()
    ledger.set_shares("n", split_node_power(NodeUse(0.0, 0.0, (GpuUse(1e4, 0.0, ("a",)),))))
    ledger.advance("n", 1e12)
    ledger.set_shares("n", split_node_power(NodeUse(0.0, 0.0, (GpuUse(1.0, 0.0, ("a",)),))))
    # 1e16 + 1 is 1e16 for a plain sum.
    for k in range(1, 1001):
        ledger.advance("n", 1e12 + k)
    assert ledger.job_j("a") == ledger.node_j("n") == 1e16 + 1000


def test_parts_and_power_by_hand() -> None:
    ledger = EnergyLedger(start_s=100.0)
    ledger.set_shares("n", asleep_shares(15.0))
    ledger.advance("n", 110.0)
    ledger.set_shares("n", waking_shares(460.0))
    ledger.advance("n", 170.0)
    ledger.set_shares("n", split_node_power(NodeUse(200.0, 0.0, (GpuUse(30.0, 0.0),))))
    assert ledger.power().idle_w == pytest.approx(230)
    ledger.advance_all(180.0)
    parts = ledger.parts()
    assert (parts.sleep_j, parts.wake_j, parts.idle_j) == (150.0, 27_600.0, 2300.0)
    assert parts.jobs_j == parts.unattributed_j == 0.0
    assert parts.total_j == ledger.total_j() == 30_050.0
    assert ledger.job_j("never seen") == 0.0


@pytest.mark.parametrize(
    "shares",
    [
        NodeShares(100.0, {"a": 60.0}, idle_w=30.0),
        NodeShares(100.0, {"a": 60.0}, idle_w=60.0),
        NodeShares(100.0, {"a": 120.0}, idle_w=-20.0),
        NodeShares(100.0, {"a": 120.0, "b": -20.0}),
        NodeShares(100.0, {"a": float("nan")}),
    ],
    ids=["lost", "twice", "negative part", "negative job", "nan"],
)
def test_shares_that_break_i30_are_refused(shares: NodeShares) -> None:
    with pytest.raises(InternalError, match="I30"):
        EnergyLedger().set_shares("n", shares)


def test_time_of_a_node_never_goes_back() -> None:
    ledger = EnergyLedger()
    ledger.advance("n", 10.0)
    with pytest.raises(InternalError, match="booked until"):
        ledger.advance("n", 9.0)


def test_an_interval_that_loses_energy_is_refused() -> None:
    good = NodeInterval(0.0, 1.0, "n", 10.0, {"a": 4.0}, 6.0, 0.0, 0.0, 0.0)
    check_interval(good)
    with pytest.raises(InternalError, match="I30"):
        check_interval(evolve(good, idle_j=5.0))
    with pytest.raises(InternalError, match="before it begins"):
        check_interval(evolve(good, t1_s=0.0))


def test_measured_joules_are_booked_as_they_are() -> None:
    seen: list[NodeInterval] = []
    ledger = EnergyLedger(on_interval=seen.append)
    first = NodeInterval(1.0, 2.0, "n", 10.0, {"a": 4.0}, 5.0, 1.0, 0.0, 0.0)
    later = NodeInterval(5.0, 6.0, "n", 3.0, {"a": 1.0, "b": 2.0}, 0.0, 0.0, 0.0, 0.0)
    ledger.book(first)
    ledger.book(later)  # nothing is known of the time between them
    assert seen == [first, later]
    assert (ledger.job_j("a"), ledger.job_j("b"), ledger.node_j("n")) == (5.0, 2.0, 13.0)
    parts = ledger.parts()
    assert (parts.idle_j, parts.unattributed_j) == (5.0, 1.0)
    # Afterwards the node draws nothing, until somebody says what it draws.
    ledger.advance("n", 10.0)
    assert ledger.node_j("n") == 13.0


def test_measured_joules_that_break_i30_or_overlap_are_refused() -> None:
    ledger = EnergyLedger()
    good = NodeInterval(0.0, 2.0, "n", 10.0, {"a": 4.0}, 6.0, 0.0, 0.0, 0.0)
    with pytest.raises(InternalError, match="I30"):
        ledger.book(evolve(good, node_j=11.0))
    ledger.book(good)
    with pytest.raises(InternalError, match="cannot be booked again"):
        ledger.book(evolve(good, t0_s=1.0, t1_s=3.0))
    assert ledger.node_j("n") == 10.0
