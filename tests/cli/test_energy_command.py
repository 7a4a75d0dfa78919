"""`eaco energy` as a person and as a program meet it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pytest
from attrs import evolve

from eaco_adapters.cli import _app
from eaco_core.effects import StartJob
from eaco_core.events import ClockAnchored, GpusReleased, JobSubmitted
from eaco_core.history import encode_header, encode_step
from eaco_core.jobs import JobSpec
from eaco_telemetry.recording.columns import frame_of, sample_rows
from eaco_telemetry.samples import GpuSample, NodeSample

if TYPE_CHECKING:
    from collections.abc import Sequence

S = 10**9
START = 1_796_112_000  # 2026-12-01T08:00:00Z
DOCS = (Path(__file__).resolve().parents[2] / "docs" / "energy.md").read_text(encoding="utf-8")


def _samples(node_id: str = "box", session_id: str = "s") -> list[NodeSample]:
    """An hour of two GPUs: 400 W and then 300 W, and 100 W."""
    return [
        NodeSample(
            node_id,
            session_id,
            k,
            (START + 10 * k) * S,
            (77 + 10 * k) * S,
            gpus=(
                GpuSample("GPU-a", "nvidia", energy_j=3000.0 * k + 1000.0 * min(k, 180)),
                GpuSample("GPU-b", "nvidia", energy_j=1000.0 * k),
            ),
        )
        for k in range(361)
    ]


def _record(path: Path, samples: Sequence[NodeSample]) -> None:
    frame_of([row for one in samples for row in sample_rows(one)]).write_parquet(path)


def _block(kind: str, after: str) -> str:
    """Give the first code block of a kind behind some words of the docs."""
    found = re.search(rf"^```{kind}\n(.*?)^```", DOCS.partition(after)[2], re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    _record(tmp_path / "rec.parquet", _samples())
    (tmp_path / "jobs.csv").write_text(_block("csv", "Who held which GPU"), encoding="utf-8")
    return tmp_path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = _app.run(["energy", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def _document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, err = _run(capsys, "--telemetry", "rec.parquet", *arguments, "--json")
    assert (status, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def _joules(document: dict[str, Any]) -> dict[str, object]:
    return {job["job"]: pytest.approx(job["energy_j"]) for job in document["jobs"]}


# -------------------------------------------------------------------- the docs


@pytest.mark.usefixtures("here")
def test_the_example_of_the_docs_is_what_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = shlex.split(_block("sh", "# Energy per job"))[1:]
    assert name == "energy"
    status, out, err = _run(capsys, *arguments)
    assert (status, err) == (0, "")
    assert out == _block("text", "# Energy per job")
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.usefixtures("here")
def test_the_json_has_every_field_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(capsys, "--jobs", "jobs.csv", "--gpu-idle-w", "100")
    named = set(re.findall(r"^\| `(\w+)` \|", DOCS.partition("## JSON")[2], re.MULTILINE))
    assert named == set(document)
    assert document["schema"] == "eaco.energy/1"
    assert _joules(document) == {"train-1": 900_000.0, "train-2": 360_000.0}
    assert document["parts"]["idle"]["energy_j"] == pytest.approx(360_000.0)
    assert document["total"]["cost"] is None


def test_every_thread_of_the_docs_has_its_test() -> None:
    tests = (Path(__file__).parents[1] / "energy" / "test_booking_examples.py").read_text("utf-8")
    named = re.findall(r"`(test_\w+)`", DOCS)
    assert len(named) >= 8
    assert [name for name in named if f"def {name}(" not in tests] == []


# --------------------------------------------------------------------- options


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("rule", "train_1"),
    # By time: 3600 s and 1800 s of one stretch; 1,260,000 J as 2 : 1.
    [("default", 900_000.0), ("sm", 900_000.0), ("equal", 900_000.0), ("time", 840_000.0)],
)
def test_the_rule_can_be_chosen(
    capsys: pytest.CaptureFixture[str], rule: str, train_1: float
) -> None:
    document = _document(capsys, "--jobs", "jobs.csv", "--rule", rule)
    assert _joules(document)["train-1"] == train_1


@pytest.mark.usefixtures("here")
def test_a_window_of_time_is_cut_out(capsys: pytest.CaptureFixture[str]) -> None:
    window = ["--from", "2026-12-01T08:20:00Z", "--to", str(START + 2400)]
    document = _document(capsys, "--jobs", "jobs.csv", *window)
    # Half of 600 s at 400 W and 600 s at 300 W; half of 600 s at 400 W.
    assert _joules(document) == {"train-1": 300_000.0, "train-2": 120_000.0}


def test_prices_over_time_come_from_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"start,value\n{START + 1800},0.6\n2026-12-01T00:00:00Z,0.3\n"
    (here / "prices.csv").write_text(text, encoding="utf-8")
    document = _document(capsys, "--jobs", "jobs.csv", "--tariff", "prices.csv")
    costs = {job["job"]: job["cost"] for job in document["jobs"]}
    assert costs == {
        "train-1": pytest.approx(0.1 * 0.3 + 0.15 * 0.6),
        "train-2": pytest.approx(0.03),
    }


def test_several_files_are_several_nodes_or_one_in_pieces(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = _samples()
    _record(here / "first.parquet", samples[200:])
    _record(here / "second.parquet", samples[:201])
    both = ["--telemetry", "first.parquet", "--telemetry", "second.parquet", "--jobs", "jobs.csv"]
    status, out, _ = _run(capsys, *both, "--json")
    assert status == 0
    assert _joules(json.loads(out)) == {"train-1": 900_000.0, "train-2": 360_000.0}
    other = [
        evolve(one, node_id="other", gpus=(evolve(one.gpus[0], gpu_id="GPU-c"),)) for one in samples
    ]
    _record(here / "other.parquet", other)
    status, out, _ = _run(capsys, *both, "--telemetry", "other.parquet", "--json")
    assert status == 0
    assert [node["node_id"] for node in json.loads(out)["nodes"]] == ["box", "other"]


@pytest.mark.usefixtures("here")
def test_users_can_be_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _run(
        capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv", "--by", "user"
    )
    assert status == 0
    assert "ada" in out
    assert "train-1" not in out


def test_the_json_can_go_to_a_file_as_well(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(capsys, "--jobs", "jobs.csv", "--output", "out.json")
    assert json.loads((here / "out.json").read_text(encoding="utf-8")) == document


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("rec.parquet", "--telemetry"),
        ("./sub/../rec.parquet", "--telemetry"),
        ("link.json", "--telemetry"),
        ("hard.json", "--telemetry"),
        ("jobs.csv", "--jobs"),
        ("prices.csv", "price"),
        ("carbon.csv", "price"),
        ("rec.parquet.parts/0000000001-0000000001.parquet", "parts"),
    ],
)
def test_no_input_is_written_over(
    here: Path, capsys: pytest.CaptureFixture[str], output: str, said: str
) -> None:
    (here / "sub").mkdir()
    (here / "rec.parquet.parts").mkdir()
    (here / "link.json").symlink_to("rec.parquet")
    (here / "hard.json").hardlink_to(here / "rec.parquet")
    for name in ("prices.csv", "carbon.csv"):
        (here / name).write_text("start,value\n0,1\n", encoding="utf-8")
    before = {one: one.read_bytes() for one in here.iterdir() if one.is_file()}
    status, out, err = _run(
        capsys,
        *("--telemetry", "rec.parquet", "--jobs", "jobs.csv", "--output", output),
        *("--tariff", "prices.csv", "--intensity", "carbon.csv"),
    )
    assert (status, out) == (2, "")
    assert "--output" in err
    assert said in err
    assert err.count("\n") == 1
    assert {one: one.read_bytes() for one in here.iterdir() if one.is_file()} == before


def test_simulated_recordings_say_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _record(here / "rec.parquet", [evolve(one, simulated=True) for one in _samples()])
    status, out, _ = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv")
    assert status == 0
    assert "SIMULATED" in out


# ------------------------------------------------------------------- histories


def _history(path: Path, *, anchored: bool) -> None:
    events: list[Any] = [ClockAnchored(50.0, START - 50.0)] if anchored else []
    events += [
        JobSubmitted(60.0, JobSpec("j", gpus=1, submit_s=60.0, user="ada")),
        GpusReleased(1900.0, "j", 1, ("GPU-a",)),
    ]
    lines = [encode_header(policy="other", origin="elsewhere")]
    for seq, event in enumerate(events, start=1):
        starts = isinstance(event, JobSubmitted)
        effects = [StartJob("j", 1, 1, (("box", ("GPU-a",)),), 0)] if starts else []
        lines.append(encode_step(seq, event.t_s, 1, event, effects))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_history_says_who_held_what(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _history(here / "run.jsonl", anchored=True)
    # Second 100 is 08:00, so it holds GPU-a until 08:30: 1800 s at 400 W.
    document = _document(capsys, "--jobs", "run.jsonl")
    (job,) = document["jobs"]
    assert (job["job"], job["user"]) == ("j", "ada")
    assert job["energy_j"] == pytest.approx(720_000.0)


def test_a_history_without_a_clock_needs_its_start(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _history(here / "run.jsonl", anchored=False)
    status, _, err = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "run.jsonl")
    assert status == 2
    assert "--history-start" in err
    document = _document(capsys, "--jobs", "run.jsonl", "--history-start", str(START - 100))
    assert document["jobs"][0]["energy_j"] == pytest.approx(720_000.0)


# -------------------------------------------------------------------- bad input

_HEADER = "job,user,gpu_ids,start,end\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("job,start,end\na,1,2\n", "line 1: .*'gpu_ids' is missing"),
        ("job,job,gpu_ids,start,end\n", "line 1: the column 'job' is there twice"),
        (_HEADER + "a,u,GPU-a,1,2\nb,u,GPU-a,1\n", "line 3: it has 4 cells"),
        (_HEADER + ",u,GPU-a,1,2\n", "line 2: the job has no name"),
        (_HEADER + "a,u, ; ,1,2\n", "line 2: job a has no GPU"),
        (_HEADER + "a,u,GPU-a,,2\n", "line 2: job a has no start"),
        (_HEADER + "a,u,GPU-a,2,1\n", "line 2: job a ends before it starts"),
        (_HEADER + "a,u,GPU-a,soon,1\n", "line 2: start: 'soon' is no time"),
        (_HEADER + "a,u,GPU-a,2026-12-01T08:00,\n", "line 2: start: .* has no zone"),
        (_HEADER + "a,u,GPU-a,1,2\na,v,GPU-a,3,4\n", "line 3: job a is of user 'u' in a line"),
        (_HEADER + "a,u,0,1796112000,\n", "never by a number"),
        (_HEADER + 'a,u,"GPU-a,1,2\n\n', "line 2: .*no CSV file: a quotation mark"),
        (_HEADER + 'a,u,"GPU-a" ,1,2\n', "line 2: .*no CSV file"),
        (_HEADER + f"a,u,{'G' * 200_000},1,2\n", "line 2: .*no CSV file: field larger"),
        (_HEADER + "a,u,GPU-a,1796112000000,\n", "line 2: start: .* looks like milliseconds"),
        (_HEADER.replace("\n", ",pids\n") + "a,u,GPU-a,1,2,12x\n", "line 2: '12x' is no process"),
        ("{}\n", "line 1"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_place(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (here / "jobs.csv").write_text(text, encoding="utf-8")
    status, out, err = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv")
    assert (status, out) == (2, "")
    assert re.search(said, err)
    assert err.count("\n") == 1


def test_a_file_of_bytes_is_no_csv(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "jobs.csv").write_bytes(_HEADER.encode() + b"a,u,GPU-a,1,2\njob,\xff\xfe\n")
    status, _, err = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv")
    assert status == 2
    assert "jobs.csv, line 3: " in err
    assert "not UTF-8" in err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs", "none.csv"], "none.csv: there is no such file"),
        (["--jobs", "."], "folder"),
        (["--jobs", "jobs.csv", "--telemetry", "none.parquet"], "there is no such recording"),
        (["--jobs", "jobs.csv", "--telemetry", "jobs.csv"], "no Parquet file"),
        (["--jobs", "jobs.csv", "--tariff", "0,30"], "no number, and as a file: 0,30"),
        (["--jobs", "jobs.csv", "--tariff", "jobs.csv"], "'value' is missing|'start'"),
        (["--jobs", "jobs.csv", "--tariff", "nan"], "no number that a tariff could have"),
        (["--jobs", "jobs.csv", "--gpu-idle-w", "-1"], "'-1' is no number of at least 0"),
        (["--jobs", "jobs.csv", "--from", "2027-01-01T00:00:00Z"], "nothing was recorded"),
        (["--jobs", "jobs.csv", "--rule", "fair"], "'fair' is not one of"),
        (["--jobs", "jobs.csv", "--output", "no/where.json"], "there is no folder"),
        (["--jobs", "jobs.csv", "--server-w", "1e308"], "at least 0 and at most 1e\\+09"),
        (["--jobs", "jobs.csv", "--from", "9", "--to", "8"], r"\(--from\) must be before"),
        (["--jobs", "jobs.csv", "--from", str(START), "--to", str(START)], "must be before"),
        (["--jobs", "jobs.csv", "--from", "1796112000000"], "looks like milliseconds"),
        (["--jobs", "jobs.csv", "--history-start", "9"], "jobs.csv: this is no history"),
        (["--jobs", "jobs.csv", "--tariff", "1.7e308", "--server-w", "5000"], "the cost .*large"),
        (
            ["--jobs", "jobs.csv", "--intensity", "-1.7e308", "--server-w", "5000"],
            "the CO2 .*large",
        ),
    ],
)
def test_wrong_use_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    status, out, err = _run(capsys, "--telemetry", "rec.parquet", *arguments)
    assert (status, out) == (2, "")
    assert re.search(said, err)
    assert err.count("\n") == 1


@pytest.mark.usefixtures("here")
def test_without_polars_one_sentence_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "eaco_telemetry.booking.frames", None)
    status, _, err = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv")
    assert status == 1
    assert "pip install 'eaco[record]'" in err


def _with(frame: pl.DataFrame, columns: Sequence[str], value: object) -> pl.DataFrame:
    """Put a value into columns of one row: GPU-b at sample 100."""
    when: Any = pl.when  # its types name numpy, which a type checker here cannot see
    row = (pl.col("seq") == 100) & (pl.col("gpu_id") == "GPU-b")
    changed = [when(row).then(value).otherwise(pl.col(name)).alias(name) for name in columns]
    put: Any = cast("Any", frame).with_columns
    return cast("pl.DataFrame", put(changed))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 1e308])
def test_values_that_nothing_can_have_measured_are_not_looked_at(
    here: Path, capsys: pytest.CaptureFixture[str], bad: float
) -> None:
    frame = frame_of([row for one in _samples() for row in sample_rows(one)])
    frame = _with(frame, ("energy_j", "power_w", "util_ratio"), bad)
    frame.write_parquet(here / "rec.parquet")
    document = _document(capsys, "--jobs", "jobs.csv")
    assert document["total"]["energy_j"] == pytest.approx(1_620_000.0)


@pytest.mark.parametrize(
    "name", ["gpu_id", "node_id", "session_id", "seq", "wall_ns", "monotonic_ns", "kind"]
)
def test_rows_without_a_name_or_a_time_are_not_looked_at(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    frame = frame_of([row for one in _samples() for row in sample_rows(one)])
    _with(frame, (name,), None).write_parquet(here / "rec.parquet")
    document = _document(capsys, "--jobs", "jobs.csv")
    assert document["total"]["energy_j"] == pytest.approx(1_620_000.0)


def test_a_recording_without_gpus_and_sensors_has_no_energy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record(here / "rec.parquet", [evolve(one, gpus=()) for one in _samples()])
    (here / "jobs.csv").write_text(_HEADER, encoding="utf-8")
    document = _document(capsys, "--jobs", "jobs.csv", "--server-w", "100")
    assert document["total"]["energy_j"] is None
    assert document["difference_j"] is None
    assert {one["energy_j"] for one in document["parts"].values()} == {None}
    assert any("Nothing was measured" in one for one in document["notes"])
    status, out, _ = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv")
    assert status == 0
    assert "No job held a GPU" in out
    assert re.search(r"^total +- +- +-$", out, re.MULTILINE)


_UNMEASURED = {"energy_j": None, "energy_kwh": None, "cost": None, "co2_g": None}


@pytest.mark.parametrize("dark", ["x,eve,GPU-z,{},,", "x,eve,GPU-b,{},,nosuch", "x,eve,GPU-n,{},,"])
def test_what_was_not_measured_is_null_and_never_0(
    here: Path, capsys: pytest.CaptureFixture[str], dark: str
) -> None:
    mute = GpuSample("GPU-n", "nvidia")
    _record(here / "rec.parquet", [evolve(one, gpus=(*one.gpus, mute)) for one in _samples()])
    lines = [f"a,ada,GPU-a,{START},,", f"b,ada,GPU-z,{START},,", dark.format(START)]
    text = _HEADER.replace("\n", ",node\n") + "\n".join(lines) + "\n"
    (here / "jobs.csv").write_text(text, encoding="utf-8")
    prices = ["--jobs", "jobs.csv", "--tariff", "1", "--intensity", "1"]
    document = _document(capsys, *prices)
    jobs = {job["job"]: job for job in document["jobs"]}
    users = {user["user"]: user for user in document["users"]}
    for one in (jobs["b"], jobs["x"], users["eve"]):
        assert {name: one[name] for name in _UNMEASURED} == _UNMEASURED
        assert one["covered_ratio"] == 0.0
    # Ada has one job that was measured and one that was not.
    assert users["ada"]["energy_j"] == jobs["a"]["energy_j"] == pytest.approx(1_260_000.0)
    assert users["ada"]["covered_ratio"] == pytest.approx(0.5)
    assert document["parts"]["jobs"]["energy_j"] == pytest.approx(1_260_000.0)
    status, out, _ = _run(capsys, "--telemetry", "rec.parquet", *prices)
    assert status == 0
    assert re.search(r"^eve +1 +1.00 +0% +- +- +- +-$", out, re.MULTILINE)
    assert "Nothing was measured of 2 of 3 jobs (b, x)" in out


def test_values_that_are_never_there_are_no_energy_of_anybody(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mute = GpuSample("GPU-a", "nvidia")
    _record(here / "rec.parquet", [evolve(one, gpus=(mute,)) for one in _samples()])
    document = _document(capsys, "--jobs", "jobs.csv", "--tariff", "1", "--server-w", "100")
    amounts = [*document["jobs"], *document["users"], *document["parts"].values()]
    for one in [*amounts, document["total"]]:
        assert {name: one[name] for name in _UNMEASURED} == _UNMEASURED
    (node,) = document["nodes"]
    assert (node["energy_j"], node["gpu_j"], node["server_j"]) == (None, None, None)


def test_a_job_that_ran_also_outside_of_the_recording_is_not_covered_there(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"long,u,GPU-a,{START - 3600},{START + 7200}\nlate,u,GPU-b,{START + 7200},\n"
    text += f"early,u,GPU-b,{START - 7200},{START - 3600}\n"
    (here / "jobs.csv").write_text(_HEADER + text, encoding="utf-8")
    document = _document(capsys, "--jobs", "jobs.csv")
    (job,) = document["jobs"]
    assert job["covered_ratio"] == pytest.approx(1 / 3)
    assert job["energy_j"] == pytest.approx(1_260_000.0)
    assert (job["held_s"], job["mean_w"]) == (10_800.0, pytest.approx(350.0))
    notes = " ".join(document["notes"])
    assert "2 jobs held GPUs only outside of the recording: late, early" in notes
    assert "1 job held GPUs also outside of the recording, for 2.00 h" in notes
    # Who asks for a time that was recorded is told of that time only.
    window = ["--from", str(START), "--to", str(START + 1800)]
    asked = _document(capsys, "--jobs", "jobs.csv", *window)
    assert asked["jobs"][0]["covered_ratio"] == 1.0
    assert "outside" not in " ".join(asked["notes"])
    # And of all of it, if a part of that was not recorded.
    window = ["--from", str(START), "--to", str(START + 7200)]
    asked = _document(capsys, "--jobs", "jobs.csv", *window)
    assert asked["jobs"][0]["covered_ratio"] == pytest.approx(0.5)


def test_jobs_that_have_nothing_to_do_with_the_recording_are_told_with_both_times(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(f"{name},u,GPU-a,{START - 7200},{START - 3600}\n" for name in "abc")
    (here / "jobs.csv").write_text(_HEADER + text, encoding="utf-8")
    notes = " ".join(_document(capsys, "--jobs", "jobs.csv")["notes"])
    assert "3 jobs held GPUs only outside of the recording: a, b, c." in notes
    assert "from 2026-12-01 08:00:00 UTC to 2026-12-01 09:00:00 UTC" in notes
    assert "from 2026-12-01 06:00:00 UTC to 2026-12-01 07:00:00 UTC" in notes


def test_a_gpu_on_two_nodes_at_once_is_not_booked_twice_on_a_job(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record(here / "rec.parquet", [*_samples(), *_samples(node_id="box2", session_id="t")])
    status, out, err = _run(capsys, "--telemetry", "rec.parquet", "--jobs", "jobs.csv")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "GPU-a was recorded on two nodes at the same time (box and box2)" in err
    text = f"a,u,GPU-a,{START},,box\nb,u,GPU-b,{START},,box2\nb,u,GPU-b,{START},,box\n"
    (here / "jobs.csv").write_text(_HEADER.replace("\n", ",node\n") + text, encoding="utf-8")
    document = _document(capsys, "--jobs", "jobs.csv")
    assert _joules(document) == {"a": 1_260_000.0, "b": 720_000.0}
    assert [job["covered_ratio"] for job in document["jobs"]] == [1.0, 1.0]
    assert [job["gpu_s"] for job in document["jobs"]] == [3600.0, 7200.0]
    assert any("recorded on two nodes at the same time: 2" in one for one in document["notes"])


@pytest.mark.parametrize("step_s", [3600, -3600, 86_400 * 3650])
def test_a_step_of_the_wall_clock_is_told_with_the_clock_that_counts(
    here: Path, capsys: pytest.CaptureFixture[str], step_s: int
) -> None:
    late = [
        evolve(one, wall_ns=one.wall_ns + (step_s * S if one.seq >= 300 else 0))
        for one in _samples()
    ]
    _record(here / "rec.parquet", late)
    document = _document(capsys, "--jobs", "jobs.csv")
    assert _joules(document) == {"train-1": 900_000.0, "train-2": 360_000.0}
    (note,) = [one for one in document["notes"] if "wall clock" in one]
    assert f"box, session s: its wall clock stepped by {step_s:+,}.0 s" in note
    assert f"0 s from the wall clock at the begin and {-step_s:+,}.0 s from that at the" in note
    # Most samples have the clock of after the step, and so have the times.
    early = [
        evolve(one, wall_ns=one.wall_ns - (step_s * S if one.seq < 100 else 0))
        for one in _samples()
    ]
    _record(here / "rec.parquet", early)
    document = _document(capsys, "--jobs", "jobs.csv")
    assert _joules(document) == {"train-1": 900_000.0, "train-2": 360_000.0}
    (note,) = [one for one in document["notes"] if "wall clock" in one]
    assert f"{step_s:+,}.0 s from the wall clock at the begin and 0 s from that at the" in note


def test_a_wall_clock_that_drifts_is_no_step(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 1 s per sample of 10 s, which no clock does: 360 s in all.
    drifting = [evolve(one, wall_ns=one.wall_ns + one.seq * S) for one in _samples()]
    _record(here / "rec.parquet", drifting)
    notes = _document(capsys, "--jobs", "jobs.csv")["notes"]
    assert not [one for one in notes if "wall clock" in one]


def test_a_node_that_was_renamed_keeps_its_gpus(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = _samples()
    later = [evolve(one, node_id="new", session_id="t") for one in samples[180:]]
    _record(here / "rec.parquet", [*samples[:181], *later])
    document = _document(capsys, "--jobs", "jobs.csv")
    assert _joules(document) == {"train-1": 900_000.0, "train-2": 360_000.0}
    assert [job["covered_ratio"] for job in document["jobs"]] == [1.0, 1.0]
