"""Energy by job, held against an oracle and against what must not change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_telemetry.booking import (
    RULES,
    EnergyOptions,
    EnergyReport,
    JobHold,
    account,
    document,
    recordings_of,
)
from eaco_telemetry.booking import frames as frames_module
from eaco_telemetry.booking.frames import open_recordings
from eaco_telemetry.recording.columns import frame_of, sample_rows
from eaco_telemetry.samples import (
    GpuSample,
    HostSample,
    NodeSample,
    ProcessSample,
)
from eaco_telemetry.testing.energy_oracle import true_energy

if TYPE_CHECKING:
    import random
    from pathlib import Path

S = 10**9
WALL = 1_796_000_000 * S
BOOT = 1000 * S
JOBS = ("a", "b", "c")
GPUS = ("GPU-0", "GPU-1")

powers = st.integers(0, 400).map(float)
sm_ratios = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0])
processes = st.none() | st.lists(
    st.builds(ProcessSample, pid=st.integers(1, 4), sm_ratio=sm_ratios),
    max_size=3,
    unique_by=lambda process: process.pid,
).map(tuple)
NO_HOST = HostSample()


@st.composite
def sessions(draw: st.DrawFn, session_id: str, start_s: int) -> list[NodeSample]:
    """Draw one session: steps of 1 to 90 s; each device with a counter or power, at times mute."""
    steps_s = draw(st.lists(st.sampled_from([1, 2, 2, 5, 40, 90]), min_size=1, max_size=6))
    counts = {name: draw(st.booleans()) for name in (*GPUS, "node", "package")}
    hosted = draw(st.sampled_from(["none", "none", "node", "package"]))
    used = dict.fromkeys(counts, 0.0)
    samples: list[NodeSample] = []
    t_s = start_s
    for seq, step_s in enumerate([0, *steps_s]):
        t_s += step_s
        gpus: list[GpuSample] = []
        for gpu_id in GPUS:
            watts = draw(powers)
            used[gpu_id] += watts * step_s
            known = draw(st.sampled_from([True, True, True, False]))
            gpus.append(
                GpuSample(
                    gpu_id,
                    "nvidia",
                    energy_j=used[gpu_id] if counts[gpu_id] and known else None,
                    power_w=watts if known else None,
                    util_ratio=draw(st.none() | st.sampled_from([0.0, 0.5, 1.0])),
                    processes=draw(processes),
                )
            )
        host = NO_HOST
        if hosted != "none":
            watts = draw(st.integers(0, 1200).map(float))
            used[hosted] += watts * step_s
            counted = used[hosted] if counts[hosted] else None
            if hosted == "node":
                host = HostSample(node_power_w=watts, node_energy_j=counted)
            else:
                host = HostSample(package_power_w=watts, package_energy_j=counted)
        moment = t_s * S
        samples.append(
            NodeSample("n", session_id, seq, WALL + moment, BOOT + moment, tuple(gpus), host)
        )
    return samples


@st.composite
def recorded(draw: st.DrawFn) -> list[NodeSample]:
    """Draw a recording of one or two sessions, which may overlap."""
    samples = draw(sessions("s0", 0))
    if draw(st.booleans()):
        samples += draw(sessions("s1", draw(st.integers(0, 200))))
    return samples


@st.composite
def held(draw: st.DrawFn) -> list[JobHold]:
    """Draw holds, at times in the middle of an interval, overlapping, open, or of no time."""
    found: list[JobHold] = []
    for _ in range(draw(st.integers(0, 5))):
        start = WALL + draw(st.integers(-40, 300)) * S // 2
        length = draw(st.none() | st.integers(0, 300))
        found.append(
            JobHold(
                draw(st.sampled_from(JOBS)),
                tuple(draw(st.lists(st.sampled_from(GPUS), min_size=1, max_size=2, unique=True))),
                start,
                None if length is None else start + length * S // 2,
                workload=draw(st.none() | st.just("w")),
                pids=draw(st.none() | st.frozensets(st.integers(1, 3), min_size=1, max_size=2)),
            )
        )
    # A process is of one job only.
    taken: dict[int, str] = {}
    for i, hold in enumerate(found):
        if hold.pids is not None:
            own = frozenset(p for p in hold.pids if taken.setdefault(p, hold.job_id) == hold.job_id)
            found[i] = evolve(hold, pids=own or None)
    return found


options = st.builds(
    EnergyOptions,
    rule=st.sampled_from(RULES),
    gpu_idle_w=st.none() | st.sampled_from([0.0, 30.0]),
    server_w=st.none() | st.just(100.0),
    server_idle_w=st.none() | st.sampled_from([0.0, 150.0]),
)


def booked(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions
) -> EnergyReport | None:
    """Account; None where the holds and the recording have nothing to do with each other."""
    try:
        return account(recordings_of(samples), holds, chosen)
    except InputError:
        return None


def figures(report: EnergyReport | None) -> dict[str, float]:
    """Give every energy of a report by name."""
    if report is None:
        return {}
    jobs = {f"job {job.job_id}": job.amount.energy_j for job in report.jobs}
    parts = {
        "idle": report.idle.energy_j,
        "unattributed": report.unattributed.energy_j,
        "total": report.total.energy_j,
    }
    return {name: joules for name, joules in {**jobs, **parts}.items() if joules > 1e-6}


def alike(one: EnergyReport | None, other: EnergyReport | None) -> None:
    assert figures(one) == pytest.approx(figures(other), rel=1e-9, abs=1e-6)


# ------------------------------------------------------------------- the oracle


@given(recorded(), held(), options)
def test_energy_is_that_of_the_oracle(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions
) -> None:
    report = booked(samples, holds, chosen)
    if report is None:
        return
    truth = true_energy(samples, holds, chosen)
    wanted = {f"job {job_id}": float(joules) for job_id, joules in truth.jobs.items()}
    wanted |= {
        "idle": float(truth.idle),
        "unattributed": float(truth.unattributed),
        "total": float(truth.total),
    }
    wanted = {name: joules for name, joules in wanted.items() if joules > 1e-6}
    assert figures(report) == pytest.approx(wanted, rel=1e-9, abs=1e-6)


@given(recorded(), held(), options)
def test_every_joule_is_booked_once_and_none_is_negative(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions
) -> None:
    report = booked(samples, holds, chosen)
    if report is None:
        return
    assert abs(report.difference_j) <= 1e-9 * max(1.0, report.total.energy_j)
    everything = [report.idle, report.unattributed, *(job.amount for job in report.jobs)]
    assert min(amount.energy_j for amount in everything) >= 0.0
    for job in report.jobs:
        assert job.covered_ratio is None or 0.0 <= job.covered_ratio <= 1.0
    node = report.nodes[0]
    assert node.energy_j == pytest.approx(report.total.energy_j, rel=1e-12)


# ----------------------------------------------------------- what changes nothing


@given(recorded(), held(), options, st.randoms(use_true_random=False))
def test_order_of_samples_and_holds_and_duplicates_change_nothing(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions, chance: random.Random
) -> None:
    mixed = samples + chance.sample(samples, len(samples) // 2)
    chance.shuffle(mixed)
    turned = [
        evolve(h, gpu_ids=tuple(reversed(h.gpu_ids))) for h in chance.sample(holds, len(holds))
    ]
    alike(booked(mixed, turned, chosen), booked(samples, holds, chosen))


@given(recorded(), held(), options, st.integers(-40, 300))
def test_cutting_a_hold_changes_nothing(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions, cut: int
) -> None:
    at = WALL + cut * S // 2
    whole = booked(samples, holds, chosen)
    last = max((node.to_ns for node in whole.nodes), default=0) if whole is not None else 0
    pieces: list[JobHold] = []
    for hold in holds:
        # An open hold counts up to the end of the recording, so it has nothing to cut after.
        if hold.start_ns < at < (last if hold.end_ns is None else hold.end_ns):
            pieces += [evolve(hold, end_ns=at), evolve(hold, start_ns=at)]
        else:
            pieces.append(hold)
    alike(booked(samples, pieces, chosen), whole)


@given(recorded(), held(), options, st.integers(1, 400))
def test_windows_add_up_to_the_whole(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions, cut: int
) -> None:
    at = WALL + cut * S // 2
    whole = booked(samples, holds, chosen)
    first = booked(samples, holds, evolve(chosen, to_ns=at))
    second = booked(samples, holds, evolve(chosen, from_ns=at))
    if whole is None or first is None or second is None:
        return
    together: dict[str, float] = {}
    for part in (first, second):
        for name, joules in figures(part).items():
            together[name] = together.get(name, 0.0) + joules
    assert together == pytest.approx(figures(whole), rel=1e-9, abs=1e-5)


@given(recorded(), held(), options, st.data())
def test_a_sample_in_the_middle_of_an_interval_changes_nothing(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions, data: st.DataObject
) -> None:
    """The energy between two samples is spread evenly, so a sample on that line adds nothing."""
    samples = [one for one in samples if one.session_id == "s0"]
    samples = [evolve(one, seq=2 * one.seq) for one in samples]
    at = data.draw(st.integers(0, len(samples) - 2))
    before, after = samples[at], samples[at + 1]

    def middle(now: float | None, then: float | None) -> float | None:
        return None if now is None or then is None else (now + then) / 2

    gpus = tuple(
        evolve(then, energy_j=middle(now.energy_j, then.energy_j))
        for now, then in zip(before.gpus, after.gpus, strict=True)
    )
    host = after.host
    assert host is not None
    assert before.host is not None
    host = evolve(
        host,
        node_energy_j=middle(before.host.node_energy_j, host.node_energy_j),
        package_energy_j=middle(before.host.package_energy_j, host.package_energy_j),
    )
    between = NodeSample(
        "n",
        "s0",
        before.seq + 1,
        (before.wall_ns + after.wall_ns) // 2,
        (before.monotonic_ns + after.monotonic_ns) // 2,
        gpus,
        host,
    )
    chosen = evolve(chosen, max_gap_s=1000.0)
    # A power is that of the time before its sample: where it was not known at the one
    # before, the interval in front of that belongs to the next.
    alike(booked([*samples, between], holds, chosen), booked(samples, holds, chosen))


@given(recorded(), held(), options, st.integers(-(10**13), 10**13))
def test_a_step_of_the_wall_clock_tears_nothing(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions, step_ns: int
) -> None:
    samples = [one for one in samples if one.session_id == "s0"]
    few = (len(samples) - 1) // 2
    stepped = [
        evolve(one, wall_ns=one.wall_ns + step_ns) if one.seq < few else one for one in samples
    ]
    alike(booked(stepped, holds, chosen), booked(samples, holds, chosen))


@given(recorded(), held(), options, st.permutations(JOBS))
def test_renaming_jobs_renames_results(
    samples: list[NodeSample], holds: list[JobHold], chosen: EnergyOptions, names: list[str]
) -> None:
    renamed: dict[str, str] = dict(zip(JOBS, names, strict=True))
    other = booked(samples, [evolve(h, job_id=renamed[h.job_id]) for h in holds], chosen)
    one = booked(samples, holds, chosen)
    expected = {
        f"job {renamed[name[4:]]}" if name.startswith("job ") else name: joules
        for name, joules in figures(one).items()
    }
    assert figures(other) == pytest.approx(expected, rel=1e-9, abs=1e-6)


# ----------------------------------------------------------------- Parquet files


@settings(max_examples=20)
@given(
    samples=recorded(),
    holds=held(),
    chosen=options,
    rows=st.sampled_from([3, 10, 1000]),
    chance=st.randoms(use_true_random=False),
)
def test_files_read_in_blocks_give_the_same_as_samples(  # noqa: PLR0917 - what Hypothesis draws
    tmp_path_factory: pytest.TempPathFactory,
    samples: list[NodeSample],
    holds: list[JobHold],
    chosen: EnergyOptions,
    rows: int,
    chance: random.Random,
) -> None:
    folder: Path = tmp_path_factory.mktemp("recording")
    mixed = samples + chance.sample(samples, len(samples) // 2)
    chance.shuffle(mixed)
    half = len(mixed) // 2
    paths = [folder / "one.parquet", folder / "two.parquet"]
    for path, part in zip(paths, (mixed[:half], mixed[half:]), strict=True):
        frame_of([row for one in part for row in sample_rows(one)]).write_parquet(path)
    known = {gpu_id for hold in holds if hold.pids for gpu_id in hold.gpu_ids}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "BLOCK_ROWS", rows)
        try:
            other = account(open_recordings(paths, processes_of=known), holds, chosen)
        except InputError:
            assert booked(samples, holds, chosen) is None
            return
    one = booked(samples, holds, chosen)
    assert one is not None
    alike(other, one)
    assert sorted(other.notes) == sorted(one.notes)
    for ours, theirs in zip(document(one)["jobs"], document(other)["jobs"], strict=False):
        assert ours["held_s"] == theirs["held_s"] or ours["job"] != theirs["job"]
