"""Reading traces: Gavel, Philly and our own format, and how each is recognised."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaco_adapters.traces import (
    Trace,
    TraceFormat,
    format_trace,
    read_trace,
    recognise_trace,
    require_gpus,
    solo_run_s,
    split_into_epochs,
)
from eaco_core.errors import InputError
from eaco_core.jobs import CheckpointScope, JobSpec, ShareWith, SoloProfile
from eaco_predictors.profiles import ProfileTable, paper_profiles

if TYPE_CHECKING:
    from pathlib import Path

PAPER = paper_profiles()
RATES = ProfileTable(
    "rates",
    "v100",
    {"A": SoloProfile("v100", util_ratio=0.3), "A x4": SoloProfile("v100")},
    {},
    iteration_rates_hz={"A": 10.0, "A x4": 40.0},
)


def read(folder: Path, text: str, table: ProfileTable = PAPER, seed: int = 0) -> Trace:
    path = folder / "t.txt"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, table=table, gpu_type="v100", seed=seed)


def gavel(
    steps: object = 28080,
    *,
    job_type: str = "A",
    scale: object = 1,
    weight: object = 1,
    slo: object = -1.0,
    at: object = 0,
) -> str:
    cells = (job_type, "cmd", "dir", "-n", 1, steps, scale, weight, slo, at)
    return "\t".join(str(cell) for cell in cells) + "\n"


# ---------------------------------------------------------------------- epochs


@pytest.mark.parametrize(
    ("run_s", "epochs"),
    [(1, 1), (2105, 1), (2107, 2), (1404 * 7.49, 7), (1404 * 90, 90), (1404 * 500, 90)],
)
def test_epochs_of_a_run_time(run_s: float, epochs: int) -> None:
    count, epoch_s = split_into_epochs(run_s)
    assert count == epochs
    assert count * epoch_s == pytest.approx(run_s)


@pytest.mark.parametrize("run_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_run_time_that_is_none(run_s: float) -> None:
    with pytest.raises(InputError, match="run time must be above 0"):
        split_into_epochs(run_s)


# ----------------------------------------------------------------------- Gavel


def test_gavel_job(tmp_path: Path) -> None:
    trace = read(tmp_path, gavel(at=5) + "\n" + gavel(scale=4, slo=1.5, at=7), RATES)
    first, second = trace.jobs
    assert (first.job_id, second.job_id) == ("1", "3")  # line numbers; line 2 is blank
    assert first.workload == "A"
    assert first.profiles == (SoloProfile("v100", epoch_s=1404.0, util_ratio=0.3),)
    assert first.epochs == 2
    assert first.deadline_s is None
    assert (second.workload, second.gpus, second.submit_s) == ("A x4", 4, 7.0)
    assert solo_run_s(second, "v100") == 702
    assert second.deadline_s == 7 + 1.5 * 702  # SLO multiplies the solo run time
    assert trace.has_deadlines
    assert trace.lines == (1, 3)


def test_gavel_old_layout(tmp_path: Path) -> None:
    text = "A\tcmd\t-n\t1\t28080\t3.0\t4\nA\tcmd\t-n\t1\t9\t3.5\t0\n"
    trace = read(tmp_path, text, RATES)
    (job,) = trace.jobs
    assert (job.gpus, job.submit_s, job.workload) == (4, 3.0, "A x4")
    assert not trace.has_deadlines
    assert any("1 job without GPUs was left out" in note for note in trace.notes)


def test_gavel_priority_weight_is_ignored_with_a_note(tmp_path: Path) -> None:
    plain, weighted = read(tmp_path, gavel(), RATES), read(tmp_path, gavel(weight=5), RATES)
    assert plain.jobs == weighted.jobs
    assert not any("priority" in note for note in plain.notes)
    assert any("weight that is not 1 is ignored: of 1 job" in note for note in weighted.notes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (gavel(steps=0), "total_steps must be above 0"),
        (gavel(steps="x"), "total_steps must be a number, not 'x'"),
        (gavel(steps="nan"), "total_steps must be a finite number"),
        (gavel(steps=""), "total_steps is missing"),
        (gavel(scale=0), "scale_factor must be at least 1"),
        (gavel(scale=1.5), "scale_factor must be a whole number"),
        (gavel(scale=2), "unknown workload 'A x2' on v100; known: A, A x4"),
        (gavel(job_type="B"), "unknown workload 'B' on v100; known: A, A x4"),
        (gavel(at=-3), "arrival_time must not be negative"),
        (gavel(slo=-2), "SLO must not be negative"),
        (gavel(slo=""), "SLO is missing"),
        ("A\tcmd\n", "10 columns separated by tabs .7 in the old layout.*but here are 2"),
    ],
)
def test_gavel_line_that_is_broken(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, gavel() + line, RATES)
    assert caught.value.where == f"{tmp_path / 't.txt'}, line 2"


def test_gavel_needs_iteration_rates(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no iteration rates; give Gavel's throughput JSON"):
        read(tmp_path, gavel())


# ---------------------------------------------------------------------- Philly

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def test_philly_counts_from_the_earliest_and_sorts(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        PHILLY + "2017-10-09 07:00:05,2808.0,1,1,vc1\n2017-10-09 07:00:00,10.5,8,1,vc2\n\n",
    )
    first, second = trace.jobs
    assert (first.job_id, first.submit_s, first.gpus, first.group) == ("3", 0.0, 8, "vc2")
    assert (second.job_id, second.submit_s, second.epochs) == ("2", 5.0, 2)
    assert solo_run_s(first, "v100") == 10.5
    known = PAPER.profile(first.workload or "")
    assert first.profiles[0].util_ratio == known.util_ratio
    assert first.profiles[0].peak_mem_bytes == known.peak_mem_bytes
    assert not trace.has_deadlines
    assert any("sorted by arrival" in note for note in trace.notes)
    assert any("assigned by the seed" in note for note in trace.notes)


def test_philly_workloads_follow_the_seed_and_the_line_only(tmp_path: Path) -> None:
    rows = [f"2017-10-09 07:00:{second:02d},100,1,1,a\n" for second in range(60)]
    some = read(tmp_path, PHILLY + "".join(rows))
    changed = read(tmp_path, PHILLY + "".join(["2017-11-09 07:00:00,9,1,1,a\n", *rows[1:]]))
    by_id = {job.job_id: job.workload for job in some.jobs}
    assert by_id == {job.job_id: job.workload for job in changed.jobs}
    other = read(tmp_path, PHILLY + "".join(rows), seed=1)
    assert by_id != {job.job_id: job.workload for job in other.jobs}
    assert set(by_id.values()) == set(PAPER.workloads)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2017-13-09 07:00:00,1,1,1,a", "timestamp must be written YYYY-MM-DD HH:MM:SS"),
        ("2017-10-09T07:00:00+02:00,1,1,1,a", "timestamp must be written"),
        ("2017-10-09 07:00:00,0,1,1,a", "duration must be above 0"),
        ("2017-10-09 07:00:00,-5,1,1,a", "duration must not be negative"),
        ("2017-10-09 07:00:00,NaN,1,1,a", "duration must be a finite number"),
        ("2017-10-09 07:00:00,1,0,1,a", "num_gpus must be at least 1"),
        ("2017-10-09 07:00:00,1,,1,a", "num_gpus is missing"),
        ("2017-10-09 07:00:00,1,1", "5 columns were expected"),
    ],
)
def test_philly_row_that_is_broken(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, f"{PHILLY}2017-10-09 07:00:05,2808.0,1,1,vc1\n\n{row}\n")
    assert caught.value.where == f"{tmp_path / 't.txt'}, line 4"


# ------------------------------------------------------------------ our format


def test_own_csv(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "submit_s,gpus,epochs,workload,epoch_s,deadline_s,gpu_types,node_selector,share_with\n"
        "9,8,20,vgg16,,5000,v100;k80,disk=ssd;room=1,any\n"
        "3,1,4,mine,50,-1,,,\n",
    )
    mine, vgg = trace.jobs
    assert (mine.job_id, vgg.job_id) == ("3", "2")
    assert mine.profiles == (SoloProfile("v100", epoch_s=50),)
    assert mine.deadline_s is None
    assert vgg.profiles == (PAPER.profile("vgg16"),)
    assert vgg.deadline_s == 5000
    assert vgg.gpu_types == ("v100", "k80")
    assert vgg.node_selector == (("disk", "ssd"), ("room", "1"))
    assert vgg.share_with is ShareWith.ANY
    assert trace.has_deadlines
    assert any("do not have run as their rows say: mine" in note for note in trace.notes)


def test_own_csv_values_override_the_profile(tmp_path: Path) -> None:
    trace = read(tmp_path, "submit_s,gpus,epochs,workload,util_ratio\n0,1,2,vgg16,0.9\n")
    (profile,) = trace.jobs[0].profiles
    assert profile.util_ratio == 0.9
    assert profile.epoch_s == PAPER.profile("vgg16").epoch_s


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": None}, "gpus is missing"),
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"gpus": True}, "gpus must be a number, not True"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"epochs": 10**400}, "epochs is too large"),
        ({"submit_s": -1}, "submit_s must not be negative"),
        ({"workload": "vgg"}, "unknown workload 'vgg' on v100; known: alexnet"),
        ({"workload": None}, "epoch_s is missing"),
        ({"workload": "x\n"}, "workload must be printable text"),
        ({"util_ratio": 2}, "util_ratio must be from 0 to 1"),
        ({"gpu_types": ["k80"]}, "GPU types k80 only; known here: v100"),
        ({"share_with": "all"}, "share_with must be one of any, none, same_group, same_user"),
        ({"exclusive": "maybe"}, "exclusive must be true or false"),
        ({"priority": "high"}, "priority must be a number"),
        ({"node_selector": ["ssd"]}, "node_selector must be label=value"),
        ({"gpu": 1}, "unknown field 'gpu'; known fields: checkpoint_scope"),
        ({"job_id": "first"}, "job id 'first' was given before, on line 1"),
        ({"profiles": [{"gpu_type": "k80", "epoch_s": 1}]}, "no epoch_s for GPU type v100"),
        ({"profiles": {"v100": 1}}, "profiles must be a list of objects"),
        ({"profiles": [{"gpu_type": "v100", "epoch_s": 1}] * 2}, "stands twice"),
        ({"epoch_s": 1, "profiles": [1]}, "not both"),
    ],
)
def test_own_row_that_is_broken(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    good = {"submit_s": 0, "gpus": 1, "epochs": 1, "workload": "vgg16"}
    text = f"{json.dumps(good | {'job_id': 'first'})}\n\n{json.dumps(good | fields)}\n"
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert caught.value.where == f"{tmp_path / 't.txt'}, line 3"


TEXT = st.text('aZ é日=;,"{', min_size=1, max_size=6).map(str.strip).filter(bool)
LABEL = TEXT.filter(lambda text: "=" not in text)


@st.composite
def jobs(draw: st.DrawFn, job_id: str) -> JobSpec:
    types = draw(st.lists(TEXT.filter(lambda t: t != "v100"), max_size=2, unique=True))
    return JobSpec(
        job_id=job_id,
        gpus=draw(st.integers(1, 64)),
        submit_s=draw(st.floats(0, 1e9)),
        epochs=draw(st.integers(1, 90)),
        workload=draw(st.none() | TEXT),
        profiles=tuple(
            SoloProfile(
                name,
                epoch_s=draw(st.floats(1e-3, 1e6)),
                util_ratio=draw(st.none() | st.floats(0, 1)),
                peak_mem_bytes=draw(st.none() | st.integers(0, 2**40)),
            )
            for name in ("v100", *types)
        ),
        deadline_s=draw(st.none() | st.floats(0, 1e9)),
        priority=draw(st.integers(-200, 200)),
        exclusive=draw(st.booleans()),
        user=draw(st.just("") | TEXT),
        group=draw(st.just("") | TEXT),
        share_with=draw(st.sampled_from(ShareWith)),
        gpu_types=draw(st.none() | st.just(("v100", *types))),
        node_selector=tuple(draw(st.lists(st.tuples(LABEL, st.just("") | TEXT), max_size=2))),
        checkpoint_scope=draw(st.sampled_from(CheckpointScope)),
        max_slowdown_ratio=draw(st.none() | st.floats(1, 9)),
        max_restarts=draw(st.none() | st.integers(0, 9)),
    )


# Drawing whole jobs is slow on a busy machine, which says nothing about the format.
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), ids=st.lists(TEXT, min_size=1, max_size=3, unique=True))
def test_own_format_reads_back_what_it_wrote(
    data: st.DataObject, ids: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = sorted((data.draw(jobs(job_id)) for job_id in ids), key=lambda job: job.submit_s)
    trace = Trace(jobs=tuple(made), has_deadlines=any(j.deadline_s is not None for j in made))
    again = read(tmp_path_factory.mktemp("trace"), format_trace(trace))
    assert again.jobs == trace.jobs
    assert again.has_deadlines == trace.has_deadlines


def test_a_trace_without_any_deadline_stays_one_that_says_so(tmp_path: Path) -> None:
    job = JobSpec("a", gpus=1, submit_s=0, epochs=1, profiles=(SoloProfile("v100", epoch_s=1),))
    says_none = format_trace(Trace((job,), has_deadlines=True))
    says_nothing = format_trace(Trace((job,), has_deadlines=False))
    assert read(tmp_path, says_none).has_deadlines
    assert not read(tmp_path, says_nothing).has_deadlines


# ------------------------------------------------------- recognising, and sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n" + gavel(), TraceFormat.GAVEL),
        (PHILLY, TraceFormat.PHILLY),
        ("\ufeff" + PHILLY, TraceFormat.PHILLY),
        ("epochs, gpus ,submit_s\n", TraceFormat.OWN_CSV),
        ('{"schema": "eaco.trace/1"}\n', TraceFormat.OWN_JSONL),
    ],
)
def test_recognised_by_content(tmp_path: Path, text: str, expected: TraceFormat) -> None:
    path = tmp_path / "name.says.nothing"
    path.write_text(text, encoding="utf-8")
    assert recognise_trace(path) is expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"\x80\x81\x82", "not UTF-8 text"),
        ("a\tb".encode("utf-16"), "not UTF-8 text"),
        (b"\x00\x01\x02", "no known job trace; known formats: Gavel trace.*Philly.*eaco"),
        (b"job,time\n1,2\n", "no known job trace"),
        (b"{\n}\n", "no known job trace"),
        (b'{"schema": "eaco.history/1"}\n', "schema must be 'eaco.trace/1'"),
        (b'{"schema": "eaco.trace/1"}\n', "the file has no jobs"),
        (PHILLY.encode(), "the file has no jobs"),
        (b'submit_s,gpus\n"1,1\n', "not valid CSV"),
        (b"submit_s,gpus,gpus\n1,1,1\n", "a column name stands twice"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path, table=PAPER, gpu_type="v100")
    assert str(path) in (caught.value.where or "")


def test_missing_file_directory_and_gpu_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "none", table=PAPER, gpu_type="v100")
    with pytest.raises(InputError, match="is a directory"):
        read_trace(tmp_path, table=PAPER, gpu_type="v100")
    with pytest.raises(InputError, match=r"unknown GPU type 'k80'.*know: v100"):
        read_trace(tmp_path, table=PAPER, gpu_type="k80")


def test_job_that_asks_for_more_than_exists(tmp_path: Path) -> None:
    trace = read(tmp_path, "submit_s,gpus,epochs,workload\n0,16,1,vgg16\n1,17,1,vgg16\n")
    require_gpus(trace, nodes=3, gpus_per_node=8)
    with pytest.raises(InputError, match=r"job '3' asks for 17 GPUs.*has 16 \(2 nodes of 8\)") as e:
        require_gpus(trace, nodes=2, gpus_per_node=8)
    assert e.value.where == f"{tmp_path / 't.txt'}, line 3"


# ------------------------------------------------------------ any text at all


def outcome(folder: Path, text: str, table: ProfileTable = PAPER) -> Trace | InputError:
    path = folder / "t"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return read_trace(path, table=table, gpu_type="v100")
    except InputError as error:
        return error


CELL = st.sampled_from(
    ["0", "-1", "1", "8", "nan", "1e999", "", "vgg16", "A", "2017-10-09 07:00:00", '"', "\x00"]
) | st.text(max_size=5)
STARTS = st.sampled_from(
    ["", PHILLY, "submit_s,gpus,epochs,workload\n", '{"submit_s": 0, "gpus": 1, ', "{", gavel()]
)
LINES = st.lists(
    st.tuples(st.sampled_from(["\t", ",", " "]), st.lists(CELL, max_size=11)).map(
        lambda parts: parts[0].join(parts[1])
    ),
    max_size=4,
)


@settings(deadline=None)
@given(start=STARTS, lines=LINES, rest=st.text(max_size=30), table=st.sampled_from([PAPER, RATES]))
def test_any_text_is_a_trace_or_an_input_error(
    start: str,
    lines: list[str],
    rest: str,
    table: ProfileTable,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = outcome(tmp_path_factory.mktemp("any"), start + "\n".join(lines) + rest, table)
    if isinstance(found, InputError):
        assert "\n" not in str(found)
    else:
        assert found.jobs
        assert all(solo_run_s(job, "v100") for job in found.jobs)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["gpu_type", "epoch_s"]) | st.text(max_size=3), inner)
    ),
    max_leaves=5,
)


@settings(deadline=None)
@given(
    values=st.dictionaries(
        st.sampled_from(["epochs", "workload", "profiles", "priority", "exclusive", "gpu_types"])
        | st.sampled_from(["job_id", "deadline_s", "node_selector", "max_restarts", "epoch_s"]),
        JSON,
    )
)
def test_any_json_object_is_a_job_or_an_input_error(
    values: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fields = {"submit_s": 0, "gpus": 1, "epochs": 1, "workload": "vgg16"} | values
    found = outcome(tmp_path_factory.mktemp("any"), json.dumps(fields))
    if isinstance(found, InputError):
        assert "line 1" in (found.where or "")
    else:
        assert len(found.jobs) == 1
