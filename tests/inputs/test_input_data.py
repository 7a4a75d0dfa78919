"""Facts about the real files, where they are: set EACO_DATA_DIR to their folder."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from eaco_adapters.traces import TraceFormat, read_trace, recognise_trace, solo_run_s
from eaco_core.errors import InputError
from eaco_predictors.profiles import paper_profiles, read_any_profiles

pytestmark = pytest.mark.data


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("EACO_DATA_DIR")
    if not folder:
        pytest.skip("EACO_DATA_DIR is not set, so the real traces were NOT read")
    return Path(folder)


@pytest.mark.parametrize(("gpu_type", "pairs"), [("v100", 636), ("p100", 656), ("k80", 589)])
def test_gavel_throughputs(data: Path, gpu_type: str, pairs: int) -> None:
    table = read_any_profiles(data / "gavel" / "simulation_throughputs.json", gpu_type)
    assert len(table.measured) == pairs
    assert not any(" x" in name for key in table.measured for name in (key[0], *key[1]))
    assert len(table.profiles) == (80 if gpu_type == "k80" else 83)
    if gpu_type == "v100":
        speeds = sorted(1 / ratio for ratio in table.measured.values())
        assert (speeds[317] + speeds[318]) / 2 == pytest.approx(0.679, abs=0.001)
        assert any("25 entries give both of a pair exactly" in note for note in table.notes)


def test_gavel_trace(data: Path) -> None:
    folder = data / "gavel"
    path = folder / "g1000_l60_s0.trace"
    assert recognise_trace(path) is TraceFormat.GAVEL
    table = read_any_profiles(folder / "simulation_throughputs.json", "v100")
    trace = read_trace(path, table=table, gpu_type="v100")
    assert Counter(job.gpus for job in trace.jobs) == {1: 786, 4: 136, 2: 78}
    assert trace.has_deadlines
    assert all(job.deadline_s is None for job in trace.jobs)
    runs_s = [solo_run_s(job, "v100") or 0 for job in trace.jobs]
    assert min(runs_s) == pytest.approx(3599.68, abs=0.01)
    assert max(runs_s) == pytest.approx(14400, abs=0.01)
    first = trace.jobs[0]
    assert runs_s[0] == pytest.approx(19605 / 5.44610521981264)
    assert (first.job_id, first.workload, first.epochs) == ("1", "Transformer (batch size 128)", 3)


def test_philly_job_list(data: Path) -> None:
    path = data / "philly" / "philly_jobs.csv"
    assert recognise_trace(path) is TraceFormat.PHILLY
    before_s = time.process_time()
    trace = read_trace(path, table=paper_profiles(), gpu_type="v100", seed=0)
    assert time.process_time() - before_s < 20
    assert len(trace.jobs) == 82247
    assert trace.jobs[0].submit_s == 0
    sizes = Counter(job.gpus for job in trace.jobs)
    assert (sizes[12], sizes[128], sizes[1]) == (7, 3, 76627)
    times = [job.submit_s for job in trace.jobs]
    assert times == sorted(times)
    shares = Counter(job.workload for job in trace.jobs)
    assert all(count == pytest.approx(82247 / 4, rel=0.03) for count in shares.values())
    assert max(solo_run_s(job, "v100") or 0 for job in trace.jobs) == pytest.approx(4628226)


@pytest.mark.parametrize(
    "name",
    ["chronus/trace_job_Philly_SLO.csv", "lucid/single_data.csv", "acme/server_power.csv"],
)
def test_other_files_are_no_known_trace(data: Path, name: str) -> None:
    with pytest.raises(InputError, match="no known job trace; known formats"):
        recognise_trace(data / name)
