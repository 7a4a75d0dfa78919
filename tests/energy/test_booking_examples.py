"""Worked examples with numbers for pencil and paper, one per thread that asked for it.

docs/energy.md shows the arithmetic of each; the numbers here are the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from eaco_core.errors import InputError
from eaco_telemetry.booking import (
    EnergyOptions,
    EnergyReport,
    JobHold,
    Steps,
    account,
    document,
    recordings_of,
    sentences,
)
from eaco_telemetry.samples import GpuSample, HostSample, NodeSample, ProcessSample

S = 10**9
WALL = 1_796_000_000 * S


def at(second: float) -> int:
    return WALL + round(second * S)


def sample(second: int, *gpus: GpuSample, host: HostSample | None = None) -> NodeSample:
    return NodeSample("box", "s", second, at(second), (50 + second) * S, gpus, host)


def gpu(
    gpu_id: str,
    energy_j: float | None = None,
    *processes: ProcessSample,
    power_w: float | None = None,
    util_ratio: float | None = None,
) -> GpuSample:
    return GpuSample(
        gpu_id,
        "nvidia",
        energy_j=energy_j,
        power_w=power_w,
        util_ratio=util_ratio,
        processes=processes or None,
    )


def hold(
    job_id: str, gpu_ids: str, start_s: float, end_s: float | None, *pids: int, workload: str = ""
) -> JobHold:
    return JobHold(
        job_id,
        tuple(gpu_ids.split()),
        at(start_s),
        None if end_s is None else at(end_s),
        user=f"user of {job_id}",
        workload=workload or None,
        pids=frozenset(pids) or None,
    )


def book(samples: list[NodeSample], *holds: JobHold, **options: Any) -> EnergyReport:  # noqa: ANN401 - any option
    return account(recordings_of(samples), holds, EnergyOptions(**options))


def joules(report: EnergyReport) -> dict[str, object]:
    jobs = {job.job_id: job.amount.energy_j for job in report.jobs}
    rest = {"idle": report.idle.energy_j, "unattributed": report.unattributed.energy_j}
    found = {**jobs, **{name: some for name, some in rest.items() if some}}
    assert sum(found.values()) == pytest.approx(report.total.energy_j, rel=1e-12)
    return {name: pytest.approx(some, abs=1e-9) for name, some in found.items()}


# ------------------------------------------------------------------ the threads


def test_dcgm_exporter_582_pods_on_one_gpu_do_not_all_get_its_power() -> None:
    """A T4 sliced into 4: 70 W for 100 s. Four jobs used to be shown 70 W each, 280 W."""
    samples = [sample(0, gpu("T4", 0.0)), sample(100, gpu("T4", 7000.0))]
    holds = [hold(name, "T4", 0, 100) for name in "abcd"]
    report = book(samples, *holds)
    # 7000 J / 4 = 1750 J, which is 17.5 W each and 70 W together.
    assert joules(report) == {"a": 1750.0, "b": 1750.0, "c": 1750.0, "d": 1750.0}
    assert report.jobs[0].mean_w == pytest.approx(17.5)


def test_dcgm_exporter_587_active_power_follows_each_jobs_own_use() -> None:
    """Three pods all showed 0.714; their own shares of the SMs are 0.4, 0.2 and 0.1."""
    busy = (
        ProcessSample(1, sm_ratio=0.4),
        ProcessSample(2, sm_ratio=0.2),
        ProcessSample(3, sm_ratio=0.1),
    )
    samples = [sample(0, gpu("G", 0.0)), sample(100, gpu("G", 10_000.0, *busy))]
    holds = [hold("a", "G", 0, 100, 1), hold("b", "G", 0, 100, 2), hold("c", "G", 0, 100, 3)]
    # 100 W of which 30 W idle: 1000 J each; 7000 J active as 4 : 2 : 1.
    report = book(samples, *holds, gpu_idle_w=30.0)
    assert joules(report) == {"a": 5000.0, "b": 3000.0, "c": 2000.0}
    assert report.active_j == {"sm": pytest.approx(7000.0)}
    # By SM share alone, 10,000 J as 4 : 2 : 1.
    by_sm = book(samples, *holds, rule="sm")
    assert joules(by_sm)["a"] == pytest.approx(10_000 * 4 / 7)


def test_dcgm_exporter_642_processes_of_others_are_nobodys_of_ours() -> None:
    """Process-level attribution: a job at 0.6 and a stranger at 0.2 on one GPU."""
    seen = (ProcessSample(7, sm_ratio=0.6), ProcessSample(99, sm_ratio=0.2))
    samples = [sample(0, gpu("G", 0.0)), sample(100, gpu("G", 11_000.0, *seen))]
    report = book(samples, hold("a", "G", 0, 100, 7), gpu_idle_w=30.0)
    # Idle 3000 J to who holds it; active 8000 J as 6 : 2.
    assert joules(report) == {"a": 9000.0, "unattributed": 2000.0}


def test_codecarbon_936_clients_on_one_gpu_are_not_counted_twice() -> None:
    """Federated learning: client 1 for 100 s, client 2 joins at 50 s; 200 W all the time.

    A tracker per process would say 20,000 J + 10,000 J, and the GPU used 20,000 J.
    """
    samples = [sample(second, gpu("G", 200.0 * second)) for second in range(0, 101, 10)]
    report = book(samples, hold("client-1", "G", 0, 100), hold("client-2", "G", 50, 100))
    assert joules(report) == {"client-1": 15_000.0, "client-2": 5000.0}


def test_batsim_65_a_host_of_217_w_shared_by_three_jobs_for_3520_s() -> None:
    """The thread's own numbers: each of three jobs was said to use 763,840 J, all of the host."""
    samples = [sample(0, gpu("host", 0.0)), sample(3520, gpu("host", 217.0 * 3520))]
    report = book(samples, *[hold(f"job-{n}", "host", 0, 3520) for n in (1, 2, 3)])
    assert report.total.energy_j == pytest.approx(763_840.0)
    assert joules(report) == {f"job-{n}": 763_840 / 3 for n in (1, 2, 3)}


def test_batsim_65_by_execution_time_as_the_thread_proposes() -> None:
    """217 W for 3000 s; job 1 runs 3000 s, job 2 the first 1000 s: 3 : 1 of 651,000 J."""
    samples = [sample(0, gpu("host", 0.0)), sample(3000, gpu("host", 217.0 * 3000))]
    holds = [hold("job-1", "host", 0, 3000), hold("job-2", "host", 0, 1000)]
    by_time = book(samples, *holds, rule="time")
    assert joules(by_time) == {"job-1": 488_250.0, "job-2": 162_750.0}
    # At each time equally: job 2 pays half of the first 1000 s only.
    assert joules(book(samples, *holds, rule="equal")) == {"job-1": 542_500.0, "job-2": 108_500.0}


def test_slurm_job_exporter_63_a_job_is_charged_for_its_own_gpu() -> None:
    """P100 (number 0) and A5000 (number 1): the job on the A5000 was shown the P100."""
    samples = [
        sample(0, gpu("GPU-p100", 0.0), gpu("GPU-a5000", 0.0)),
        sample(60, gpu("GPU-p100", 30.0 * 60), gpu("GPU-a5000", 230.0 * 60)),
    ]
    report = book(samples, hold("train", "GPU-a5000", 0, 60))
    assert joules(report) == {"train": 13_800.0, "idle": 1800.0}
    # A number is not the name of a GPU, whichever it was: refused, and said what to write.
    with pytest.raises(InputError, match="never by a number"):
        book(samples, hold("train", "0", 0, 60))


def test_kepler_2465_idle_power_does_not_vanish_when_the_gpu_is_busy() -> None:
    """Idle 50 W for 100 s, then two jobs at 300 W for 100 s, one at 0.9 and one at 0.1."""
    busy = (ProcessSample(1, sm_ratio=0.9), ProcessSample(2, sm_ratio=0.1))
    samples = [
        sample(0, gpu("G", 0.0)),
        sample(100, gpu("G", 5000.0)),
        sample(200, gpu("G", 35_000.0, *busy)),
    ]
    report = book(samples, hold("a", "G", 100, 200, 1), hold("b", "G", 100, 200, 2))
    # Before: 5000 J idle. After: idle 5000 J as 1 : 1, active 25,000 J as 9 : 1.
    assert report.nodes[0].gpu_idle["G"].watts == 50.0
    assert joules(report) == {"a": 25_000.0, "b": 5000.0, "idle": 5000.0}


# -------------------------------------------------------------------- by hand


def test_a_gpu_of_one_job_is_exactly_its_counter() -> None:
    counter = [0.0, 131.7, 500.25, 501.0, 1733.125]
    samples = [sample(3 * k, gpu("G", energy_j)) for k, energy_j in enumerate(counter)]
    report = book(samples, hold("a", "G", 0, 12), hold("b", "G", 12, None))
    assert report.jobs[0].amount.energy_j == 1733.125
    assert report.jobs[0].covered_ratio == 1.0


def test_a_job_between_two_samples_gets_its_time() -> None:
    samples = [sample(0, gpu("G", 0.0)), sample(10, gpu("G", 1000.0))]
    report = book(samples, hold("short", "G", 2.5, 4), rule="equal", gpu_idle_w=0.0)
    assert joules(report) == {"short": 150.0, "unattributed": 850.0}


def test_utilisation_alone_splits_where_sm_shares_are_not_measured() -> None:
    """`a` alone: utilisation 0.8; a job of the workload of `b` alone: 0.2; then together."""
    samples = [
        sample(0, gpu("G", 0.0)),
        sample(10, gpu("G", 2000.0, util_ratio=0.8)),
        sample(20, gpu("G", 2500.0, util_ratio=0.2)),
        sample(30, gpu("G", 5500.0, util_ratio=1.0)),
    ]
    report = book(
        samples,
        hold("a", "G", 0, 10),
        hold("old-b", "G", 10, 20, workload="bert"),
        hold("a", "G", 20, 30),
        hold("b", "G", 20, 30, workload="bert"),
        gpu_idle_w=50.0,
    )
    # Together: idle 500 J as 1 : 1, active 2500 J as 8 : 2.
    assert joules(report) == {"a": 2000 + 250 + 2000.0, "b": 250 + 500.0, "old-b": 500.0}


def test_a_gap_with_a_counter_is_known_in_total_and_without_one_not_at_all() -> None:
    counted = [sample(s, gpu("G", 100.0 * s)) for s in (0, 10, 110, 120)]
    report = book(counted, hold("a", "G", 0, 60), hold("b", "G", 60, 120))
    assert joules(report) == {"a": 6000.0, "b": 6000.0}
    assert report.nodes[0].bridged_s == 100.0
    powered = [sample(s, gpu("G", power_w=100.0)) for s in (0, 10, 110, 120)]
    powered = [evolve(one, seq=k) for k, one in enumerate(powered)]
    report = book(powered, hold("a", "G", 0, 60), hold("b", "G", 60, 120), max_gap_s=30.0)
    assert joules(report) == {"a": 1000.0, "b": 1000.0}
    ratios = {job.job_id: job.covered_ratio for job in report.jobs}
    assert ratios == {"a": pytest.approx(1 / 6), "b": pytest.approx(1 / 6)}
    # 100 W while it was measured, and nothing is said about the rest.
    assert report.jobs[0].mean_w == pytest.approx(100.0)
    assert "Not all the time of 2 of 2 jobs was measured" in " ".join(sentences(report))


def test_a_new_session_starts_its_counter_at_0() -> None:
    first = [sample(s, gpu("G", 100.0 * s)) for s in (0, 10)]
    second = [evolve(sample(s, gpu("G", 100.0 * (s - 20))), session_id="s2") for s in (20, 30)]
    report = book([*second, *first], hold("a", "G", 0, 30))
    assert joules(report) == {"a": 2000.0}
    assert report.jobs[0].covered_ratio == pytest.approx(2 / 3)


def test_a_counter_that_falls_is_no_negative_energy() -> None:
    samples = [sample(0, gpu("G", 500.0)), sample(10, gpu("G", 900.0)), sample(20, gpu("G", 100.0))]
    samples += [sample(30, gpu("G", 300.0))]
    report = book(samples, hold("a", "G", 0, 30))
    assert joules(report) == {"a": 600.0}
    assert report.nodes[0].rebases == 1


def test_two_senders_at_once_do_not_count_twice() -> None:
    one = [sample(s, gpu("G", 100.0 * s)) for s in range(0, 31, 10)]
    other = [evolve(sample(s, gpu("G", 100.0 * s)), session_id="t") for s in range(5, 46, 10)]
    assert joules(book(one + other, hold("a", "G", 0, 45))) == {"a": 4500.0}


def test_a_gpu_without_a_job_is_idle_up_to_its_idle_power_and_no_ones_above() -> None:
    quiet = [sample(10 * k, gpu("G", 300.0 * k)) for k in range(11)]
    busy = sample(110, gpu("G", 3000.0 + 2000.0))
    assert joules(book([*quiet, busy])) == {"idle": 3300.0, "unattributed": 1700.0}
    # With nobody on it, as its list of processes says, it is all idle.
    alone = evolve(busy, gpus=(evolve(busy.gpus[0], processes=()),))
    assert joules(book([*quiet, alone])) == {"idle": 5000.0}


def test_mig_instances_share_their_gpu_by_memory() -> None:
    def instance(name: str, gib: int) -> GpuSample:
        return GpuSample(name, "nvidia", parent_id="G", mem_total_bytes=gib << 30)

    parts = (instance("MIG-1", 40), instance("MIG-2", 20), instance("MIG-3", 20))
    samples = [sample(0, gpu("G", 0.0), *parts), sample(100, gpu("G", 20_000.0), *parts)]
    holds = (hold("a", "MIG-1", 0, 100), hold("b", "MIG-2", 0, 100))
    report = book(samples, *holds, gpu_idle_w=80.0)
    # Idle 8000 J: 4000, 2000, and 2000 of the instance that nobody holds. Active 12,000 J as 2 : 1.
    assert joules(report) == {"a": 12_000.0, "b": 6000.0, "idle": 2000.0}
    assert report.nodes[0].gpus == 1
    # Who holds the whole GPU holds all instances.
    assert joules(book(samples, hold("a", "G", 0, 100), gpu_idle_w=80.0)) == {"a": 20_000.0}
    by_time = book(samples, hold("a", "MIG-1", 0, 100), hold("b", "MIG-1", 0, 50), rule="time")
    assert joules(by_time)["a"] == pytest.approx(20_000 * 2 / 3)


def test_a_meter_of_the_node_gives_the_server_part() -> None:
    """Meter 500 W; two GPUs of 150 W and 50 W. Server 300 W, of which 200 W are idle."""
    samples = [
        sample(0, gpu("A", 0.0), gpu("B", 0.0), host=HostSample(node_energy_j=0.0)),
        sample(50, gpu("A", 7500.0), gpu("B", 2500.0), host=HostSample(node_energy_j=0.0)),
        sample(100, gpu("A", 15_000.0), gpu("B", 5000.0), host=HostSample(node_energy_j=50_000.0)),
    ]
    report = book(samples, hold("a", "A", 0, 100), gpu_idle_w=50.0, server_idle_w=200.0)
    # Job: 15,000 J of its GPU, half of 20,000 J server idle, all of 10,000 J dynamic.
    # (The meter was updated once in 100 s: it is no 0 W and then 1000 W.)
    assert joules(report) == {"a": 35_000.0, "idle": 15_000.0}
    assert report.nodes[0].server_source == "meter"


def test_a_meter_below_the_gpus_shrinks_all_parts() -> None:
    samples = [
        sample(0, gpu("A", 0.0), gpu("B", 0.0), host=HostSample(node_energy_j=0.0)),
        sample(10, gpu("A", 1500.0), gpu("B", 500.0), host=HostSample(node_energy_j=1000.0)),
    ]
    report = book(samples, hold("a", "A", 0, 10), gpu_idle_w=50.0)
    assert joules(report) == {"a": 750.0, "idle": 250.0}


def test_rapl_is_platform_or_package_and_memory() -> None:
    def host(second: int, platform: float | None) -> HostSample:
        return HostSample(
            package_energy_j=100.0 * second,
            dram_energy_j=10.0 * second,
            platform_energy_j=None if platform is None else platform * second,
        )

    parts = [sample(s, gpu("A", 0.0), host=host(s, None)) for s in (0, 10)]
    assert book(parts, hold("a", "A", 0, 10)).total.energy_j == pytest.approx(1100.0)
    board = [sample(s, gpu("A", 0.0), host=host(s, 150.0)) for s in (0, 10)]
    assert book(board, hold("a", "A", 0, 10)).total.energy_j == pytest.approx(1500.0)


def test_without_a_sensor_the_server_part_is_not_known_and_not_0() -> None:
    samples = [sample(s, gpu("A", 10.0 * s), gpu("B", 10.0 * s)) for s in (0, 10)]
    report = book(samples, hold("a", "A", 0, 10))
    assert report.nodes[0].server_j is None
    assert document(report)["nodes"][0]["server_j"] is None
    assert any("server part was not measured" in one for one in sentences(report))
    given = book(samples, hold("a", "A", 0, 10), server_w=100.0)
    assert joules(given) == {"a": 600.0, "idle": 600.0}


def test_cost_and_co2_follow_prices_over_time() -> None:
    samples = [sample(0, gpu("G", 0.0)), sample(7200, gpu("G", 7.2e6))]
    report = book(
        samples,
        hold("a", "G", 0, 7200),
        tariff=Steps(((at(-10), 0.20), (at(3600), 0.40))),
        intensity=Steps.constant(400.0),
    )
    # 1 kWh at 0.20 and 1 kWh at 0.40; 2 kWh of 400 g.
    assert report.jobs[0].amount.cost == pytest.approx(0.60)
    assert report.total.co2_g == pytest.approx(800.0)
    with pytest.raises(InputError, match="tariff begins after"):
        book(samples, tariff=Steps(((at(10), 0.2),)))


def test_users_are_the_sums_of_their_jobs() -> None:
    samples = [sample(0, gpu("G", 0.0), gpu("H", 0.0)), sample(10, gpu("G", 100.0), gpu("H", 50.0))]
    holds = [
        evolve(hold(name, where, 0, 10), user="ada") for name, where in (("a", "G"), ("b", "H"))
    ]
    (ada,) = book(samples, *holds).users
    assert (ada.user, ada.jobs, ada.gpu_s) == ("ada", 2, 20.0)
    assert ada.amount.energy_j == pytest.approx(150.0)


def test_simulated_samples_say_so() -> None:
    samples = [evolve(sample(s, gpu("G", 1.0 * s)), simulated=True) for s in (0, 10)]
    report = book(samples)
    assert report.simulated
    assert sentences(report)[0].startswith("SIMULATED")


def test_a_gpu_that_was_not_recorded_is_named_and_counts_as_not_covered() -> None:
    samples = [sample(s, gpu("G", 10.0 * s)) for s in (0, 10)]
    report = book(samples, hold("a", "G elsewhere", 0, 10))
    assert report.jobs[0].covered_ratio == 0.5
    assert any("elsewhere" in one for one in sentences(report))


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(InputError, match="no sample"):
        account([], [])
