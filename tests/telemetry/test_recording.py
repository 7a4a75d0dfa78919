"""Recordings: what was recorded is read back, whole or in parts, of this version or another."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from attrs import evolve, fields
from hypothesis import given, settings
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.meta import NodeEvent
from eaco_telemetry.readers.base import node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.recording import (
    COLUMNS,
    RECORDING_SCHEMA,
    Recorder,
    read_frame,
    read_recorded,
    read_samples,
    scan_recording,
)
from eaco_telemetry.recording import recorder as recorder_module
from eaco_telemetry.recording._polars import select
from eaco_telemetry.samples import (
    DeviceState,
    GpuSample,
    HostSample,
    Moment,
    NodeSample,
    ProcessSample,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_BIG = (1 << 63) - 1
_COUNTS = st.integers(0, _BIG)
_TEXTS = st.text(max_size=12)
_NAMES = st.text(min_size=1, max_size=12)


def _strategy(name: str, hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - any annotation
    """Give values of a field, from its annotation and, for numbers, the unit in its name."""
    if typing.get_origin(hint) is types.UnionType:
        (kind,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
        return st.none() | _strategy(name, kind)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: _COUNTS,
        str: _NAMES if name in {"gpu_id", "vendor"} else _TEXTS,
        float: st.floats(0, 1 if name.endswith("_ratio") else 1e18),
        tuple[str, ...]: st.lists(_TEXTS, max_size=3).map(tuple),
        Mapping[str, str]: st.dictionaries(_TEXTS, _TEXTS, max_size=3),
        tuple[ProcessSample, ...]: st.lists(_objects(ProcessSample), max_size=3).map(tuple),
    }
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return plain[hint]


def _objects(of: type[Any]) -> st.SearchStrategy[Any]:
    """Give objects of a class with all of its fields, those that come later too."""
    hints = typing.get_type_hints(of)
    return st.deferred(
        lambda: st.builds(
            of, **{one.name: _strategy(one.name, hints[one.name]) for one in fields(of)}
        )
    )


_SAMPLES = st.builds(
    NodeSample,
    node_id=_NAMES,
    session_id=_NAMES,
    seq=_COUNTS,
    wall_ns=_COUNTS,
    monotonic_ns=_COUNTS,
    gpus=st.lists(_objects(GpuSample), max_size=3, unique_by=lambda gpu: gpu.gpu_id).map(tuple),
    host=st.none() | _objects(HostSample),
    simulated=st.booleans(),
    problems=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
)


def _simulated(count: int, *, node_id: str = "n1", session_id: str = "s1") -> list[NodeSample]:
    reader = SimulatedReader(node_id, gpus=3)
    reader.open()
    samples: list[NodeSample] = []
    for seq in range(count):
        now = Moment(wall_ns=seq * 10**9, monotonic_ns=seq * 10**9)
        readings = {"simulated": reader.read(now)}
        samples.append(
            node_sample(readings, node_id=node_id, session_id=session_id, seq=seq, now=now)
        )
    return samples


def _record(path: Path, samples: Iterable[NodeSample], **options: Any) -> None:  # noqa: ANN401 - of the recorder
    recorder = Recorder(path, **options)
    for sample in samples:
        recorder.take(sample)
    recorder.close()


def _rewrite(path: Path, frame: pl.DataFrame, version: str | None = RECORDING_SCHEMA) -> None:
    frame.write_parquet(path, metadata=None if version is None else {"eaco.schema": version})


def _changed(path: Path, change: pl.Expr) -> pl.DataFrame:
    """Give a recording with a column in place of the one of that name, or added."""
    frame = read_frame(path)
    (column,) = select(frame.lazy(), [change]).collect().get_columns()
    if len(column) != frame.height:  # one value for all rows
        column = column.new_from_index(0, frame.height)
    if column.name in frame.columns:
        return frame.replace_column(frame.get_column_index(column.name), column)
    return frame.hstack([column])


def _samples_of(path: Path) -> list[NodeSample]:
    return list(read_samples(path))


_READ: tuple[Callable[[Path], object], ...] = (read_frame, _samples_of)


def _event(event_seq: int, **values: Any) -> NodeEvent:  # noqa: ANN401 - any field
    return NodeEvent("n1", "s1", event_seq, wall_ns=5, monotonic_ns=6, kind="xid", **values)


# ------------------------------------------------------------------------- round trip


@settings(max_examples=30)
@given(st.lists(_SAMPLES, max_size=3, unique_by=lambda sample: sample.seq))
def test_samples_are_read_back_as_they_were_recorded(samples: list[NodeSample]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.parquet")
        recorder = Recorder(path, flush_rows=5)
        for sample in samples:
            recorder.take(sample)
        assert recorder.flush()
        in_parts = list(read_samples(path)) if samples else []
        recorder.close()
        joined = list(read_samples(path)) if samples else []
    assert in_parts == samples
    assert joined == samples


def test_none_keeps_its_reason_and_an_empty_list_is_not_none(tmp_path: Path) -> None:
    gpu = GpuSample("GPU-a", "nvidia", throttle=(), missing={"power_w": "no sensor"})
    sample = NodeSample("n1", "s1", 0, 1, 2, gpus=(gpu,), host=HostSample(missing={"a": "b"}))
    _record(tmp_path / "run.parquet", [sample])
    (back,) = read_samples(tmp_path / "run.parquet")
    assert back.gpus[0].power_w is None
    assert back.gpus[0].missing == {"power_w": "no sensor"}
    assert (back.gpus[0].throttle, back.gpus[0].processes) == ((), None)
    assert back == sample


def test_events_stand_with_the_sample_that_they_came_with(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    events = [_event(0, gpu_id="GPU-a", code=79, message="fell off"), _event(1)]
    samples = _simulated(3)
    recorder = Recorder(path)
    recorder.take(samples[0])
    recorder.take(samples[1], events)
    recorder.take(samples[2])
    recorder.close()
    recorded = list(read_recorded(path))
    assert [one.sample for one in recorded] == samples
    assert [one.events for one in recorded] == [(), tuple(events), ()]
    rows = read_frame(path, ["event"])
    columns = ["event_seq", "event_kind", "gpu_id", "event_code", "event_message"]
    assert rows[columns].rows() == [
        (0, "xid", "GPU-a", 79, "fell off"),
        (1, "xid", None, None, ""),
    ]


def test_a_sample_that_came_twice_is_read_twice(tmp_path: Path) -> None:
    (sample,) = _simulated(1)
    _record(tmp_path / "run.parquet", [sample, sample])
    assert list(read_samples(tmp_path / "run.parquet")) == [sample, sample]


def test_text_that_is_no_unicode_does_not_stop_a_recording(tmp_path: Path) -> None:
    process = ProcessSample(1, "train\udcff")
    gpu = GpuSample("GPU-a", "nvidia", name="\ud800", processes=(process,))
    _record(tmp_path / "run.parquet", [NodeSample("n1", "s1", 0, 1, 2, gpus=(gpu,))])
    (back,) = read_samples(tmp_path / "run.parquet")
    assert back.gpus[0].processes == (ProcessSample(1, "train?"),)


# ------------------------------------------------------------------------- the frame


def test_every_field_has_a_column_of_its_own_name() -> None:
    gpu = {one.name for one in fields(GpuSample)}
    host = {f"host_{one.name}" for one in fields(HostSample)}
    base = {"kind", "node_id", "session_id", "seq", "wall_ns", "monotonic_ns", "simulated"}
    event = {"event_seq", "event_kind", "event_code", "event_message"}
    assert set(COLUMNS) == gpu | host | base | event | {"problems"}
    assert COLUMNS["state"] == pl.String
    assert COLUMNS["energy_j"] == pl.Float64
    assert COLUMNS["processes"] == pl.List(
        pl.Struct(
            {"pid": pl.Int64, "name": pl.String, "sm_ratio": pl.Float64, "mem_used_bytes": pl.Int64}
        )
    )


def test_the_frame_has_a_row_for_each_device_in_the_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    gpus = (GpuSample("GPU-a", "nvidia", state=DeviceState.LOST), GpuSample("GPU-b", "amd"))
    samples = [
        NodeSample("n1", "s1", 0, 1, 2, gpus=gpus, host=HostSample(cpu_util_ratio=0.5)),
        NodeSample("n1", "s1", 1, 3, 4),
        NodeSample("n1", "s1", 2, 5, 6, gpus=gpus[:1], problems={"nvml": "gone"}),
    ]
    _record(path, samples)
    frame = read_frame(path)
    assert frame.schema == COLUMNS
    assert frame["kind"].to_list() == ["gpu", "gpu", "host", "node", "node", "gpu"]
    assert frame["state"].to_list() == ["lost", "active", None, None, None, "lost"]
    assert frame["host_cpu_util_ratio"].to_list() == [None, None, 0.5, None, None, None]
    assert frame["problems"].to_list()[4] == [{"name": "nvml", "reason": "gone"}]
    assert read_frame(path, ["gpu", "host"])["kind"].to_list() == ["gpu", "gpu", "host", "gpu"]
    assert scan_recording(path).collect().equals(frame)
    assert list(read_samples(path)) == samples


def test_a_kind_of_row_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    _record(tmp_path / "run.parquet", _simulated(1))
    with pytest.raises(InputError, match="the kinds of rows are node, gpu, host, event, not disk"):
        read_frame(tmp_path / "run.parquet", ["disk"])


def test_the_file_says_which_form_it_has(tmp_path: Path) -> None:
    _record(tmp_path / "run.parquet", _simulated(1))
    assert pl.read_parquet_metadata(tmp_path / "run.parquet")["eaco.schema"] == RECORDING_SCHEMA


# ------------------------------------------------------------------------- continuing


def test_a_recording_that_is_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    first, second = _simulated(3), _simulated(2, session_id="s2")
    _record(path, first)
    _record(path, second)
    assert list(read_samples(path)) == first + second
    assert list(tmp_path.iterdir()) == [path]


def test_columns_that_only_a_later_version_knows_stay_when_it_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    samples = _simulated(2)
    _record(path, samples[:1])
    _rewrite(path, _changed(path, pl.lit(0.25).alias("fan_ratio")))
    _record(path, samples[1:])
    assert pl.read_parquet(path)["fan_ratio"].to_list() == [0.25] * 3 + [None] * 3
    assert list(read_samples(path)) == samples


def test_without_a_sample_there_is_no_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.parquet")
    recorder.close()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_many_small_parts_become_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MERGE_EVERY", 4)
    path = tmp_path / "run.parquet"
    samples = _simulated(10)
    recorder = Recorder(path, flush_rows=1)
    for sample in samples:
        recorder.take(sample)
    assert recorder.flush()
    names = sorted(one.name for one in Path(f"{path}.parts").glob("*.parquet"))
    assert [name[8:10] + name[10:21] for name in names] == [
        "01-0000000004",
        "05-0000000008",
        "09-0000000009",
        "10-0000000010",
    ]
    assert list(read_samples(path)) == samples
    recorder.close()
    assert list(read_samples(path)) == samples


def test_it_can_be_read_while_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MERGE_EVERY", 3)
    path = tmp_path / "run.parquet"
    samples = _simulated(30)
    recorder = Recorder(path, flush_rows=1)
    recorder.take(samples[0])
    assert recorder.flush()
    seen = 0
    for sample in samples[1:]:
        recorder.take(sample)
        rows = read_frame(path)["seq"].to_list()
        assert rows == [seq for seq in range(rows[-1] + 1) for _ in range(3)]
        assert rows[-1] >= seen
        seen = rows[-1]
    recorder.close()
    assert list(read_samples(path)) == samples


# ------------------------------------------------------------------------- other versions


def test_an_older_form_with_fewer_columns_is_read_as_null(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    (sample,) = _simulated(1)
    _record(path, [sample])
    gone = ["power_inst_w", "rejected", "flags", "host_missing", "problems", "event_code"]
    _rewrite(path, read_frame(path).drop(gone), version=None)
    frame = read_frame(path)
    assert frame.schema == COLUMNS
    assert frame["power_inst_w"].null_count() == frame.height
    (back,) = read_samples(path)
    assert back == evolve(sample, gpus=tuple(evolve(gpu, power_inst_w=None) for gpu in sample.gpus))


def test_records_with_fewer_or_more_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    process = ProcessSample(7, "train", 0.5, 100)
    gpu = GpuSample("GPU-a", "nvidia", processes=(process,))
    _record(path, [NodeSample("n1", "s1", 0, 1, 2, gpus=(gpu,))])
    other = pl.List(pl.Struct({"pid": pl.Int64, "name": pl.String, "user": pl.String}))
    _rewrite(path, _changed(path, pl.col("processes").cast(other)))
    (back,) = read_samples(path)
    assert back.gpus[0].processes == (ProcessSample(7, "train"),)


def test_a_newer_form_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    _record(path, _simulated(1))
    _rewrite(path, read_frame(path), version="eaco.recording/2")
    for use in (read_frame, Recorder):
        with pytest.raises(InputError, match=r"run.parquet: .*'eaco.recording/2'.* newer"):
            use(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (pl.col("power_w").cast(pl.String), "column 'power_w' holds String, but .* Float64"),
        (pl.col("seq").cast(pl.Float64), "column 'seq' holds Float64, but .* Int64"),
        (pl.col("throttle").list.len(), "column 'throttle' holds UInt32, but .* List"),
    ],
)
def test_a_column_of_another_type_is_named(tmp_path: Path, change: pl.Expr, sentence: str) -> None:
    path = tmp_path / "run.parquet"
    _record(path, _simulated(1))
    _rewrite(path, _changed(path, change))
    with pytest.raises(InputError, match=f"run.parquet: {sentence}"):
        read_frame(path)


@pytest.mark.parametrize("name", ["kind", "seq", "wall_ns", "simulated", "gpu_id"])
def test_a_column_that_every_recording_has_is_missed_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.parquet"
    _record(path, _simulated(1))
    _rewrite(path, read_frame(path).drop(name))
    with pytest.raises(InputError, match=f"run.parquet: has no column '{name}'"):
        read_frame(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (pl.lit(1.5).alias("util_ratio"), "row 1: GpuSample.util_ratio must be from 0 to 1"),
        (pl.lit("odd").alias("state"), "row 1: 'odd' is not a valid DeviceState"),
        (pl.lit(None, pl.String).alias("vendor"), "row 1: .*vendor"),
        (pl.lit(-1, pl.Int64).alias("seq"), "NodeSample.seq must be a whole number"),
        (pl.lit(None, pl.Boolean).alias("simulated"), "'simulated' is empty in 3 rows"),
    ],
)
def test_an_impossible_value_is_named_with_its_row(
    tmp_path: Path, change: pl.Expr, sentence: str
) -> None:
    path = tmp_path / "run.parquet"
    _record(path, _simulated(1))
    _rewrite(path, _changed(path, change))
    with pytest.raises(InputError, match=f"run.parquet.*{sentence}"):
        list(read_samples(path))


def test_rows_of_a_kind_that_is_not_known_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    samples = _simulated(2)
    _record(path, samples)
    frame = read_frame(path)
    _rewrite(path, pl.concat([frame, _changed(path, pl.lit("rack").alias("kind")).head(1)]))
    assert list(read_samples(path)) == samples


# ------------------------------------------------------------------------- no recording


@pytest.mark.parametrize("content", [b"", b"PAR1", b"a,b\n1,2\n", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_file_that_is_no_recording_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "run.parquet"
    path.write_bytes(content)
    for use in (*_READ, scan_recording, Recorder):
        with pytest.raises(InputError, match=r"run.parquet: is no Parquet file") as caught:
            use(path)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_parquet_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    before = path.read_bytes()
    for use in (read_frame, Recorder):
        with pytest.raises(InputError, match="has no column 'kind', so it is no recording"):
            use(path)
    assert path.read_bytes() == before


def test_a_recording_that_is_not_there_is_said_plainly(tmp_path: Path) -> None:
    for use in _READ:
        with pytest.raises(InputError, match=r"none.parquet: there is no such recording"):
            use(tmp_path / "none.parquet")
    with pytest.raises(InputError, match="is not a file"):
        read_frame(tmp_path)


def test_a_single_bit_that_changed_is_noticed(tmp_path: Path) -> None:
    whole = _whole_file()
    path = tmp_path / "run.parquet"
    for place in range(0, len(whole) - 8, len(whole) // 100):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        assert "is damaged" in _refusal(path)


def test_a_recording_that_another_program_wrote_anew_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    samples = _simulated(3)
    _record(path, samples)
    kept = {key: text for key, text in pl.read_parquet_metadata(path).items() if "eaco" in key}
    assert kept["eaco.seal"].startswith("eaco-crc32=")
    read_frame(path).head(6).write_parquet(path, metadata=kept)
    assert list(read_samples(path)) == samples[:2]


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_is_one_sentence_and_never_another_error(data: st.DataObject) -> None:
    damaged = bytearray(_whole_file())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.parquet")
        path.write_bytes(damaged[:cut] if data.draw(st.booleans()) else damaged)
        assert "\n" not in _refusal(path)


def _refusal(path: Path) -> str:
    """Give what is said about a file; nothing if it is taken."""
    said = ""
    for use in _READ:
        try:
            use(path)
        except (InputError, EnvironmentFault) as error:
            said += str(error)
    return said


_WHOLE: list[bytes] = []


def _whole_file() -> bytes:
    if not _WHOLE:
        with TemporaryDirectory() as folder:
            _record(Path(folder, "run.parquet"), _simulated(20))
            _WHOLE.append(Path(folder, "run.parquet").read_bytes())
    return _WHOLE[0]


def test_a_flush_time_or_size_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for options in ({"flush_s": 0.0}, {"flush_s": float("nan")}, {"flush_rows": 0}):
        with pytest.raises(InputError, match="flush_"):
            Recorder(tmp_path / "run.parquet", **typing.cast("Any", options))
