"""The table and the JSON of `eaco top`: what is shown for any node, in any terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eaco_adapters.cli._top_json import SCHEMA, document
from eaco_adapters.cli._top_pages import Pager, everything, paged
from eaco_adapters.cli._top_snapshot import Snapshot, condition, gpus, is_current
from eaco_adapters.cli._top_table import Detail, Table
from eaco_telemetry.meta import NodeCondition
from eaco_telemetry.samples import (
    DeviceState,
    GpuSample,
    HostSample,
    NodeSample,
    ProcessSample,
)
from eaco_telemetry.subscriber import Subscriber
from eaco_telemetry.subscriber.updates import NodeView
from eaco_telemetry.testing.hostile import HostileSender, simulated_meta, simulated_sample
from eaco_telemetry.testing.memory_broker import MemoryBroker
from eaco_telemetry.testing.messages import node_metas, node_samples, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

WALL_NS = 1_800_000_000_000_000_000

views = st.builds(
    NodeView,
    site=st.sampled_from(["", "lab"]),
    node_id=st.sampled_from(["box-1", "a" * 64]),
    condition=st.none() | st.sampled_from(NodeCondition),
    stale=st.booleans(),
    meta=st.none() | node_metas,
    sample=st.none() | node_samples,
    age_s=st.none() | st.floats(0, 1e9),
    rate_hz=st.none() | st.floats(0, 1e3),
)
snapshots = st.builds(
    Snapshot,
    wall_ns=st.just(WALL_NS),
    source=st.sampled_from(["local", "broker"]),
    nodes=st.lists(views, max_size=3).map(tuple),
    address=st.none() | st.just("mqtt://127.0.0.1:1883"),
    silent=st.dictionaries(st.just(("lab", "box-9")), texts),
    notes=st.lists(texts, max_size=3).map(tuple),
    problem=st.none() | texts,
    jobs=st.none() | st.just({"g0": ("job-1",)}),
)


def view(name: str = "box-1", *gpu_samples: GpuSample) -> NodeView:
    sample = NodeSample(name, "s", 1, WALL_NS, 5, gpus=gpu_samples)
    return NodeView(
        "lab", name, condition=NodeCondition.READY, stale=False, age_s=0.4, sample=sample
    )


def shown(
    *nodes: NodeView,
    width: int = 80,
    silent: dict[tuple[str, str], str] | None = None,
    problem: str | None = None,
    jobs: dict[str, tuple[str, ...]] | None = None,
) -> str:
    snapshot = Snapshot(
        WALL_NS, "broker", nodes=nodes, silent=silent or {}, problem=problem, jobs=jobs
    )
    return "\n".join(line.plain.rstrip() for line in everything(snapshot, width))


def simulated(number: int, gpu_count: int = 8) -> NodeView:
    sample = simulated_sample(f"box-{number:03d}", gpus=gpu_count)
    return NodeView(
        "lab", sample.node_id, condition=NodeCondition.READY, stale=False, age_s=0.1,
        sample=sample, meta=simulated_meta(sample),
    )  # fmt: skip


# -------------------------------------------------------------------------- any node


@given(snapshots, st.integers(1, 160), st.integers(1, 60), st.sampled_from([None, *Detail]))
def test_every_line_fits_the_terminal_and_is_inert(
    snapshot: Snapshot, width: int, height: int, detail: Detail | None
) -> None:
    room = max(20, width)
    lines = everything(snapshot, width)
    page = Pager(detail=detail).screen(snapshot, width, height)
    assert len(page) <= height
    for line in (*lines, *page):
        assert cell_len(line.plain) <= room
        assert all(char.isprintable() for char in line.plain)


def nulls_without_reason(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        for name, part in found.items():
            if part is None and name not in found.get("missing", {}):
                yield name
            yield from nulls_without_reason(part)
    elif isinstance(value, list):
        for part in cast("list[object]", value):
            yield from nulls_without_reason(part)


@given(snapshots)
def test_in_json_every_null_has_a_reason_and_no_value_is_lost(snapshot: Snapshot) -> None:
    found = json.loads(json.dumps(document(snapshot), allow_nan=False))
    assert found["schema"] == SCHEMA
    assert list(nulls_without_reason(found)) == []
    for node, told in zip(snapshot.nodes, found["nodes"], strict=True):
        sample = node.sample
        assert len(told["gpus"]) == (0 if sample is None else len(sample.gpus))
        for gpu, one in zip(gpus(node), told["gpus"], strict=True):
            assert one["gpu_id"] == gpu.gpu_id
            assert one["power_w"] == gpu.power_w
            assert (
                one["missing"].items()
                >= {
                    name: why
                    for name, why in gpu.missing.items()
                    if one.get(name, 0) is None and why
                }.items()
            )


def test_nothing_that_comes_from_a_hostile_network_tears_the_table() -> None:
    subscriber = Subscriber(MemoryBroker().connect)
    for message in HostileSender(nodes=20, seed=7).messages(3000):
        subscriber.handle(message)
    nodes = tuple(subscriber.nodes.values())
    assert len(nodes) > 10
    snapshot = Snapshot(WALL_NS, "broker", nodes=nodes)
    lines = [*everything(snapshot, 80), *Pager().screen(snapshot, 80, 24)]
    for line in lines:
        assert cell_len(line.plain) <= 80
        assert all(char.isprintable() for char in line.plain)
    assert list(nulls_without_reason(json.loads(json.dumps(document(snapshot))))) == []


# ------------------------------------------------------------------------- what it says


def test_what_is_not_measured_is_a_dash_and_never_0() -> None:
    text = shown(view("box-1", GpuSample("GPU-1", "nvidia", processes=())))
    row = next(line for line in text.splitlines() if "GPU-1" in line)
    assert row.split() == ["GPU-1", "-", "-", "-", "-", "-", "-"]
    assert "GPUs -" in text
    assert "0 W" not in text


def test_unusual_names_stay_as_they_are_and_in_their_column() -> None:
    rows = [
        line
        for name in ("plain", "[red]x[/red]", "\x1b[31m", "訓練訓練訓練訓練訓練訓練訓練", "x" * 300)
        for line in shown(
            view("box-1", GpuSample("GPU-1", "nvidia", name=name, util_ratio=0.5))
        ).splitlines()
        if "GPU-1" in line
    ]
    assert len({cell_len(row[: row.index("50%")]) for row in rows}) == 1
    assert "[red]x[/red]" in rows[1]
    assert "\x1b" not in rows[2]


def test_processes_are_listed_below_their_gpu_the_busiest_first() -> None:
    processes = (
        ProcessSample(7, "idle", 0.0, 1 << 30),
        ProcessSample(123456, "[bold]python3", 0.55, 10 << 30),
        ProcessSample(9),
    )
    text = shown(view("box-1", GpuSample("GPU-1", "nvidia", processes=processes)))
    assert (
        "    123456 [bold]python3 SM 55% 10.0GiB · 7 idle SM 0% 1.0GiB · 9 - SM - -\n"
        in f"{text}\n"
    )


def test_more_processes_than_fit_are_counted() -> None:
    processes = tuple(ProcessSample(pid, f"p{pid}", 0.1, 1 << 30) for pid in range(1, 31))
    text = shown(view("box-1", GpuSample("GPU-1", "nvidia", processes=processes)))
    assert " · 27 more" in text


def test_gpus_that_tell_no_processes_say_so_once() -> None:
    gpu = GpuSample("GPU-1", "nvidia", missing={"processes": "vGPU guest"})
    text = shown(view("box-1", gpu, evolve(gpu, gpu_id="GPU-2")))
    assert text.count("processes -  (vGPU guest)") == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "ready, 0.4 s ago"),
        ({"stale": True, "age_s": 34.0}, "STALE, last sample 34 s ago"),
        ({"condition": NodeCondition.LOST, "age_s": 200.0}, "LOST: its connection broke"),
        ({"condition": NodeCondition.DISCONNECTED}, "disconnected: its agent was ended"),
        ({"condition": NodeCondition.SLEEPING}, "asleep, last sample 0.4 s ago"),
        ({"condition": NodeCondition.ALERT}, "ALERT"),
        ({"sample": None, "stale": True, "age_s": None}, "no sample yet"),
        ({"condition": None, "sample": None, "stale": True}, "unknown"),
    ],
)
def test_the_state_of_a_node_is_said_in_words(changes: dict[str, Any], words: str) -> None:
    node = evolve(view("box-1", GpuSample("GPU-1", "nvidia", power_w=100.0)), **changes)
    assert words in condition(node)
    assert words.split(",", maxsplit=1)[0] in shown(node)
    compact = Table(Snapshot(WALL_NS, "broker", nodes=(node,)), 80, Detail.NODES).blocks()
    word = re.split("[:,]", words)[0]
    assert (words if node.sample is None and node.condition else word) in compact[0][0].plain


def test_values_of_a_node_that_is_gone_are_not_shown_as_those_of_now() -> None:
    gpu = GpuSample("GPU-1", "nvidia", power_w=123.0, util_ratio=0.5)
    gone = evolve(view("box-2", gpu), condition=NodeCondition.LOST)
    text = shown(view("box-1", evolve(gpu, power_w=50.0)), gone)
    assert "123" not in text
    assert "2 nodes (1 current)  2 GPUs 50 W" in text
    assert not is_current(gone)
    found: Any = document(Snapshot(WALL_NS, "broker", nodes=(gone,)))
    assert found["nodes"][0]["current"] is False
    assert found["nodes"][0]["gpus"][0]["power_w"] == 123.0
    assert found["gpus_power_w"] is None


def test_gpus_that_sleep_or_are_lost_say_so() -> None:
    text = shown(
        view(
            "box-1",
            GpuSample("GPU-1", "nvidia", name="A", state=DeviceState.ASLEEP),
            GpuSample("GPU-2", "nvidia", name="B", state=DeviceState.LOST),
        )
    )
    assert "asleep: powered down and left alone" in text
    assert "LOST: it no longer answers" in text


def test_parts_of_a_gpu_stand_below_it_and_count_as_one() -> None:
    text = shown(
        view(
            "box-1",
            GpuSample("MIG-b", "nvidia", parent_id="GPU-1"),
            GpuSample("GPU-1", "nvidia", power_w=200.0),
            GpuSample("MIG-a", "nvidia", parent_id="GPU-1"),
        )
    )
    rows = [line.split()[0] for line in text.splitlines()[3:6]]
    assert rows == ["GPU-1", "└MIG-b", "└MIG-a"]
    assert "1 GPU 200 W" in text


def test_a_host_is_told_with_its_watts() -> None:
    host = HostSample(
        cpu_util_ratio=0.12, mem_total_bytes=64 << 30, mem_available_bytes=33 << 30,
        node_power_w=1812.0, package_power_w=95.0,
    )  # fmt: skip
    node = view("box-1", GpuSample("GPU-1", "nvidia", power_w=480.0))
    assert node.sample is not None
    text = shown(evolve(node, sample=evolve(node.sample, host=host)), width=120)
    assert "GPUs 480 W  node 1,812 W  CPU 12%  CPU 95 W  RAM 31.0/64G" in text


def test_problems_of_readers_and_silent_nodes_are_told() -> None:
    node = view("box-1", GpuSample("GPU-1", "nvidia"))
    assert node.sample is not None
    broken = evolve(node, sample=evolve(node.sample, problems={"nvml": "driver mismatch"}))
    text = shown(
        broken, silent={("lab", "box-9"): "no sample within 5 s"}, problem="no connection", width=80
    )
    for words in ("! nvml: driver mismatch", "- lab/box-9: no sample within", "! no connection"):
        assert words in text


def test_simulated_numbers_are_called_so() -> None:
    assert "SIMULATED" in shown(simulated(1)).splitlines()[0]
    assert "simulated" in shown(simulated(1)).splitlines()[2]
    mixed = shown(simulated(1), view("box-2", GpuSample("GPU-1", "nvidia")))
    assert "PARTLY SIMULATED" in mixed.splitlines()[0]
    assert "SIMULATED" not in shown(view("box-2", GpuSample("GPU-1", "nvidia")))


def test_jobs_are_shown_only_when_a_scheduler_was_asked() -> None:
    node = view("box-1", GpuSample("g0", "nvidia"), GpuSample("g1", "nvidia"))
    assert "jobs" not in shown(node, width=160)
    text = shown(node, width=160, jobs={"g0": ("job-1", "job-2")})
    assert "job-1 job-2" in text
    found: Any = document(Snapshot(WALL_NS, "broker", nodes=(node,), jobs={"g0": ("job-1",)}))
    assert [gpu["jobs"] for gpu in found["nodes"][0]["gpus"]] == [["job-1"], []]


# ------------------------------------------------------------------------------ height


def test_a_hundred_nodes_are_one_line_each_in_pages_and_none_is_left_out() -> None:
    snapshot = Snapshot(WALL_NS, "broker", nodes=tuple(simulated(n) for n in range(100)))
    pager = Pager()
    seen: list[str] = []
    while True:
        lines = [line.plain for line in pager.screen(snapshot, 80, 24)]
        assert len(lines) <= 24
        seen += [line.split()[0] for line in lines if line.startswith("lab/")]
        if pager.page + 1 == pager.pages:
            break
        pager.turn(1)
    assert seen == [f"lab/box-{n:03d}" for n in range(100)]
    assert "page 5 of 5" in lines[-1]
    pager.turn(-99)
    assert pager.page == 0


def test_the_most_detailed_form_that_fits_is_shown() -> None:
    def keys(height: int) -> str:
        snapshot = Snapshot(WALL_NS, "broker", nodes=(simulated(1), simulated(2)))
        return Pager().screen(snapshot, 100, height)[-1].plain

    assert keys(60).startswith("processes (what fits)")
    assert keys(24).startswith("GPUs (what fits)")
    assert keys(8).startswith("nodes (what fits)")


def test_the_user_can_choose_the_detail_and_turn_pages() -> None:
    snapshot = Snapshot(WALL_NS, "broker", nodes=tuple(simulated(n) for n in range(5)))
    pager = Pager()
    pager.next_detail()
    lines = [line.plain for line in pager.screen(snapshot, 80, 24)]
    assert "processes · q" in lines[-1]
    assert pager.pages > 1
    pager.turn(1)
    later = [line.plain for line in pager.screen(snapshot, 80, 24)]
    assert later[2] != lines[2]
    for _ in range(3):
        pager.next_detail()
    assert pager.detail is None


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(2, 12))
def test_pages_hold_every_line_once_and_a_block_begins_with_its_head(
    sizes: list[int], height: int
) -> None:
    blocks = [[f"{block}.{line}" for line in range(size)] for block, size in enumerate(sizes)]
    pages = paged(blocks, height)  # type: ignore[arg-type] # any lines
    lines = [str(line) for page in pages for line in page]
    assert [line for place, line in enumerate(lines) if line not in lines[:place]] == [
        line for block in blocks for line in block
    ]
    for page in pages:
        assert 0 < len(page) <= height
        assert str(page[0]).endswith(".0")


def test_the_document_names_every_field_of_the_json() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "top.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    found: Any = document(Snapshot(WALL_NS, "broker", nodes=(simulated(1),)))
    node = found["nodes"][0]
    assert set(found) | set(node) <= named | {"schema"}
    assert f"`{SCHEMA}`" in text
