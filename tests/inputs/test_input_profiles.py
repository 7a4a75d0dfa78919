"""Profile tables: the paper's numbers, Gavel's file, our own format."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaco_core.errors import InputError
from eaco_core.jobs import SoloProfile
from eaco_predictors.paper_tables import (
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    published_node_powers_w,
    published_set_ratios,
)
from eaco_predictors.profiles import (
    ProfileTable,
    format_profiles,
    gavel_workload,
    paper_profiles,
    read_any_profiles,
    read_gavel_throughputs,
    read_profiles,
)

if TYPE_CHECKING:
    from pathlib import Path

    from eaco_predictors.profile_table import SharedKey

HEADER = "kind,workload,gpu_type,epoch_s,util_ratio,co_workloads,ratio\n"


def write(folder: Path, text: str, name: str = "profiles.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def gavel_file(folder: Path, table: object) -> Path:
    return write(folder, json.dumps(table, indent=1), "throughputs.json")


# ------------------------------------------------------------------ the paper


def test_paper_solo_energy_is_power_times_time_within_rounding() -> None:
    # Typing errors in the constants would show: the three columns are published apart.
    for row in TABLE_1:
        assert row.avg_power_w * row.jct_h / 1000 == pytest.approx(row.energy_kwh, rel=0.002)
        assert row.jct_h / 90 == pytest.approx(row.epoch_h, abs=0.006)


def test_paper_set_energy_is_power_times_mean_time_but_for_the_four_job_set() -> None:
    for row in TABLE_3[:-1]:
        assert row.avg_power_w * row.avg_jct_h / 1000 == pytest.approx(row.energy_kwh, abs=0.021)
        assert row.avg_epoch_h == pytest.approx(row.avg_jct_h / 90, abs=0.0006)
    four = TABLE_3[-1]
    assert four.avg_power_w * four.avg_jct_h / 1000 == pytest.approx(85.94, abs=0.01)
    assert four.avg_epoch_h is None


def test_paper_utilisation_of_a_set_is_near_the_sum_of_its_members() -> None:
    solo = {row.workloads[0]: row.avg_gpu_percent for row in TABLE_2}
    gaps = [row.avg_gpu_percent - sum(solo[w] for w in row.workloads) for row in TABLE_4]
    assert gaps == pytest.approx([-1.08, 2.43, 1.88, -0.26, 3.09, -3.87], abs=0.005)


def test_paper_profiles_have_epochs_of_table_1_and_memory_of_16_gib() -> None:
    table = paper_profiles()
    assert table.workloads == ("alexnet", "resnet18", "resnet50", "vgg16")
    assert [round(table.profile(w).epoch_s or 0, 1) for w in table.workloads] == [
        1390.4,
        1405.2,
        1440.4,
        1445.2,
    ]
    vgg = table.profile("vgg16")
    assert (vgg.util_ratio, vgg.mem_busy_ratio) == pytest.approx((0.4801, 0.3003))
    assert vgg.peak_mem_bytes == round(0.5129 * 16 * 1024**3)
    assert any("assumption" in note for note in table.notes)


def test_paper_ratios_are_against_solo_time() -> None:
    ratios = [round(ratio, 4) for ratio in published_set_ratios().values()]
    assert ratios == [1.0352, 1.03, 1.0387, 1.0844, 1.0826, 1.2451]
    measured = paper_profiles().measured
    assert len(measured) == 2 + 2 + 2 + 3 + 3 + 4
    assert (
        measured["vgg16", ("alexnet", "resnet18")]
        == published_set_ratios()["alexnet", "resnet18", "vgg16"]
    )
    assert ("alexnet", ("resnet18",)) not in measured  # J1J2 was never published


def test_paper_publishes_ten_node_powers() -> None:
    powers = published_node_powers_w()
    assert len(powers) == 10
    assert powers["resnet50",] == 1330
    assert powers["alexnet", "resnet18", "resnet50", "vgg16"] == 1944
    assert all(tuple(sorted(workloads)) == workloads for workloads in powers)


def test_paper_knows_one_gpu_type() -> None:
    with pytest.raises(InputError, match=r"unknown GPU type 'a100'.*know: v100"):
        paper_profiles("a100")


def test_observations_carry_ratio_and_epoch_times() -> None:
    seen = paper_profiles().observations()
    assert len(seen) == 16
    one = next(o for o in seen if (o.workload, o.co_workloads) == ("alexnet", ("vgg16",)))
    assert one.epoch_s / one.solo_epoch_s == pytest.approx(one.ratio)
    assert one.solo_epoch_s == pytest.approx(1390.4)


def test_unknown_workload_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'vgg'.*known: alexnet, resnet18, resnet50, vgg16"):
        paper_profiles().profile("vgg")


# ---------------------------------------------------------------- Gavel's file


def small_gavel() -> dict[str, object]:
    return {
        "v100": {
            "('A', 1)": {"null": 10.0, "('A', 1)": [4.0, 4.0], "('B', 1)": [8.0, 2.0]},
            "('B', 1)": {"null": 4.0, "('A', 1)": [2.0, 8.0]},
            "('A', 4)": {"null": 30.0, "('B', 4)": [0.0, 0.0]},
            "('B', 4)": {"null": 0.0},
        },
        "k80": {"('A', 1)": {"null": 1.0}},
    }


def test_gavel_ratios_go_both_ways_and_zero_is_absent(tmp_path: Path) -> None:
    table = read_any_profiles(gavel_file(tmp_path, small_gavel()), "v100")
    assert dict(table.measured) == {
        ("A", ("A",)): 2.5,
        ("A", ("B",)): 1.25,
        ("B", ("A",)): 2.0,
    }
    assert dict(table.iteration_rates_hz) == {"A": 10.0, "B": 4.0, "A x4": 30.0}
    assert table.workloads == ("A", "A x4", "B")  # B x4 does not run: its solo rate is 0
    assert table.profile("A") == SoloProfile("v100")
    assert gavel_workload("A", 4) == "A x4"
    assert gavel_workload("A", 1) == "A"


def test_gavel_pair_given_from_one_side_counts_for_both(tmp_path: Path) -> None:
    value = {"t": {"('A', 1)": {"null": 10.0, "('B', 1)": [8.0, 2.0]}, "('B', 1)": {"null": 4.0}}}
    table = read_any_profiles(gavel_file(tmp_path, value), "t")
    assert dict(table.measured) == {("A", ("B",)): 1.25, ("B", ("A",)): 2.0}


def test_gavel_workloads_stand_for_their_number_of_gpus(tmp_path: Path) -> None:
    table = read_gavel_throughputs(gavel_file(tmp_path, small_gavel()), "v100")
    assert table.workloads_for(1) == ("A", "B")
    assert table.workloads_for(4) == ("A x4",)
    assert table.workloads_for(16) == ("A x4",)
    assert paper_profiles().workloads_for(16) == paper_profiles().workloads


def test_gavel_observation_without_epochs_is_nominal(tmp_path: Path) -> None:
    table = read_gavel_throughputs(gavel_file(tmp_path, small_gavel()), "v100")
    assert {o.solo_epoch_s for o in table.observations()} == {1404.0}
    assert sorted(o.ratio for o in table.observations()) == [1.25, 2.0, 2.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v100": {"('A', 1)": {"null": -1}}}, "at least 0, not -1"),
        ({"v100": {"('A', 1)": {"null": True}}}, "at least 0, not True"),
        ({"v100": {"('A', 1)": {}}}, "at least 0, not None"),
        ({"v100": {"A": {"null": 1}}}, "a job type is written"),
        ({"v100": {"('A', 0)": {"null": 1}}}, "a job type is written"),
        ({"v100": {"('A', 1)": {"null": 1, "('A', 1)": [1]}}}, "two rates"),
        ({"v100": {"('A', 1)": {"null": 1e18, "('A', 1)": [5e-324, 1]}}}, "no measurement"),
        ({"v100": []}, "a JSON object was expected"),
        ({"p100": {}}, "unknown GPU type 'v100'; known: p100"),
    ],
)
def test_gavel_file_that_is_wrong(tmp_path: Path, change: object, message: str) -> None:
    path = gavel_file(tmp_path, change)
    with pytest.raises(InputError, match=message) as caught:
        read_any_profiles(path, "v100")
    assert str(path) in str(caught.value)


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{\n "v100": {\n  oops\n}}')
    with pytest.raises(InputError, match=r"profiles\.csv, line 3: this is not valid JSON"):
        read_any_profiles(path)


# ------------------------------------------------------------------ our format


def test_csv_and_its_units(tmp_path: Path) -> None:
    table = read_any_profiles(
        write(
            tmp_path,
            HEADER
            + "solo,a,v100,100,0.5,,\n\nsolo,b,v100,50,,,\n"
            + "shared,a,v100,,,b;a,1.5\nsolo,a,k80,400,,,\n",
        )
    )
    assert table.profile("a") == SoloProfile("v100", epoch_s=100, util_ratio=0.5)
    assert table.profile("b").util_ratio is None
    assert dict(table.measured) == {("a", ("a", "b")): 1.5}
    assert table.gpu_type == "v100"


def test_gpu_type_may_be_left_out_when_there_is_one(tmp_path: Path) -> None:
    one = write(tmp_path, HEADER + "solo,a,k80,100,,,\n", "one.csv")
    two = write(tmp_path, HEADER + "solo,a,k80,1,,,\nsolo,a,v100,1,,,\n", "two.csv")
    assert read_profiles(one).gpu_type == "k80"
    with pytest.raises(InputError, match="choose one of the GPU types k80, v100"):
        read_profiles(two)
    with pytest.raises(InputError, match="unknown GPU type 'a100'; known: k80, v100"):
        read_profiles(two, "a100")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("solo,a,v100,-1,,,", "epoch_s must not be negative, but is '-1'"),
        ("solo,a,v100,0,,,", "epoch_s must be above 0"),
        ("solo,a,v100,nan,,,", "epoch_s must be a finite number"),
        ("solo,a,v100,inf,,,", "epoch_s must be a finite number"),
        ("solo,a,v100,1e30,,,", "epoch_s is too large"),
        ("solo,a,v100,1_0,,,", "epoch_s must be a number"),
        ("solo,a,v100,,1.2,,", "util_ratio must be from 0 to 1"),
        ("solo,a,v100,,,,1.2", "a solo row has no ratio"),
        ("solo,,v100,,,,", "workload is missing"),
        ("solo,w,v100,,,,", "'w' on v100 was given before, on line 2"),
        ("pair,a,v100,,,,", "kind must be solo or shared, not 'pair'"),
        ("shared,w,v100,,,w,", "ratio is missing"),
        ("shared,w,v100,,,w,0", "ratio must be above 0"),
        ("shared,w,v100,,,,1.1", "co_workloads is missing"),
        ("shared,w,v100,,,w;;w,1.1", "list of printable names"),
        ("shared,w,v100,9,,w,1.1", "a shared row has no epoch_s"),
        ("shared,w,v100,,,x,1.1", "workload 'x' has no solo row on v100; known: w"),
        ("solo,a,v100,1", "7 columns were expected as in the header, but here are 4"),
    ],
)
def test_broken_row_names_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path, f"{HEADER}solo,w,v100,9,,,\n\n{row}\n")
    with pytest.raises(InputError, match=message) as caught:
        read_profiles(path)
    assert caught.value.where == f"{path}, line 4"


def test_misspelt_column_is_named_with_the_known(tmp_path: Path) -> None:
    path = write(tmp_path, "kind,workload,gpu_type,util\nsolo,a,v100,0.5\n")
    with pytest.raises(InputError, match="unknown field 'util'; known fields: co_workloads"):
        read_profiles(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": "eaco.history/1"}', "schema must be 'eaco.profiles/1'"),
        ('{"kind": "solo", "kind": "solo"}', "a field stands twice"),
        ('{"kind": "solo", "workload": "a", "gpu_type": "v", "epoch_s": NaN}', "NaN"),
        ('{"kind": "solo", "workload": "\\ud800", "gpu_type": "v"}', "printable text"),
        ('{"kind": ["solo"]}', "printable text"),
        ('{"kind": "solo",', "not valid JSON"),
        ("[1]", "a JSON object was expected"),
    ],
)
def test_broken_json_line(tmp_path: Path, line: str, message: str) -> None:
    first = '{"kind": "solo", "workload": "w", "gpu_type": "v"}'
    path = write(tmp_path, f"{first}\n{line}\n", "p.jsonl")
    with pytest.raises(InputError, match=message) as caught:
        read_any_profiles(path, "v")
    assert caught.value.where == f"{path}, line 2"


@pytest.mark.parametrize("content", [b"", b"  \n\n", b"\xff\xfe\x00", b"hello\n", b"a,b\n1,2\n"])
def test_what_is_no_profile_table(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_any_profiles(path)
    assert caught.value.where == str(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_any_profiles(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a directory"):
        read_any_profiles(tmp_path)


def test_table_refuses_what_contradicts_itself() -> None:
    profile = SoloProfile("v100")
    with pytest.raises(InputError, match="is for 'v100', not 'k80'"):
        ProfileTable("t", "k80", {"a": profile}, {})
    with pytest.raises(InputError, match="must be sorted"):
        ProfileTable("t", "v100", {"a": profile, "b": profile}, {("a", ("b", "a")): 1.0})
    with pytest.raises(InputError, match="unknown workload 'b'"):
        ProfileTable("t", "v100", {"a": profile}, {("a", ("b",)): 1.0})
    with pytest.raises(InputError, match="above 0"):
        ProfileTable("t", "v100", {"a": profile}, {("a", ("a",)): math.nan})


NAMES = st.text(min_size=1, max_size=8).filter(str.isprintable)
MAYBE_RATIO = st.none() | st.floats(0, 1)


@st.composite
def tables(draw: st.DrawFn) -> ProfileTable:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    profiles = {
        name: SoloProfile(
            "v100",
            epoch_s=draw(st.none() | st.floats(1e-3, 1e6)),
            util_ratio=draw(MAYBE_RATIO),
            mem_busy_ratio=draw(MAYBE_RATIO),
            peak_mem_bytes=draw(st.none() | st.integers(0, 2**48)),
        )
        for name in names
    }
    member = st.sampled_from(names)
    measured: dict[SharedKey, float] = {}
    for workload, others in draw(st.lists(st.tuples(member, st.lists(member, min_size=1)))):
        measured[workload, tuple(sorted(others))] = draw(st.floats(0.5, 9))
    rates = draw(st.dictionaries(member, st.floats(1e-3, 1e6)))
    return ProfileTable("t", "v100", profiles, measured, (), iteration_rates_hz=rates)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(table=tables())
def test_own_format_reads_back_what_it_wrote(
    table: ProfileTable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("table") / "t.jsonl"
    path.write_text(format_profiles(table), encoding="utf-8")
    again = read_any_profiles(path, "v100")
    assert again.profiles == table.profiles
    assert again.measured == table.measured
    assert again.iteration_rates_hz == table.iteration_rates_hz


def test_an_empty_document_holds_no_gpu_type(tmp_path: Path) -> None:
    for text in ("{}\n", '{"schema": "eaco.profiles/1"}\n'):
        path = tmp_path / "profiles.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="the file holds no GPU type"):
            read_any_profiles(path)
