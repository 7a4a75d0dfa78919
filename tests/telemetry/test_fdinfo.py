"""DRM usage statistics: who uses which GPU, counted once, and what a part of it is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaco_telemetry.readers.fdinfo import (
    Client,
    ClientScan,
    ClientUse,
    UseMeter,
    parse_fdinfo,
)
from eaco_telemetry.samples import ProcessSample
from eaco_telemetry.testing.trees import Tree, amd_fdinfo, failing, i915_fdinfo, xe_fdinfo

if TYPE_CHECKING:
    from pathlib import Path

BDF = "0000:03:00.0"
S = 10**9


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.kernel_threads()
    return tree


# ---------------------------------------------------------------------------- parsing


def test_a_file_of_amdgpu() -> None:
    use = parse_fdinfo(amd_fdinfo(BDF, 42, gfx_ns=5 * S, compute_ns=7, vram_kib=2048))
    assert use is not None
    assert (use.driver, use.pci_bdf, use.client_id, use.device) == ("amdgpu", BDF, 42, BDF)
    assert use.busy_ns == {"gfx": 5 * S, "compute": 7, "dma": 5_000_000}
    assert use.memory_bytes(system=False) == 2 << 20
    assert use.memory_bytes(system=True) == 2 << 20


def test_a_file_of_i915_with_several_engines_of_one_kind() -> None:
    use = parse_fdinfo(i915_fdinfo(BDF, 7, render_ns=S, compute_ns=4 * S))
    assert use is not None
    assert use.busy_ns == {"render": S, "copy": 900 * S, "video": 0, "compute": 4 * S}
    assert use.capacity == {"video": 2, "compute": 4}
    assert use.memory_bytes(system=False) == 512 << 20


def test_a_file_of_xe_counts_cycles() -> None:
    use = parse_fdinfo(xe_fdinfo(BDF, 3, rcs=28257900, ccs=0, total=7655183225))
    assert use is not None
    assert use.busy_ns == {}
    assert use.cycles["rcs"] == (28257900, 7655183225)
    assert use.capacity == {"ccs": 4}
    assert use.memory_bytes(system=False) == 23992 << 10


def test_an_older_word_for_memory_does_as_well() -> None:
    use = parse_fdinfo("drm-driver: panfrost\ndrm-memory-memory: 3 MiB\ndrm-cycles-fragment: 9\n")
    assert use is not None
    assert (use.device, use.client_id) == ("panfrost", None)
    assert use.memory_bytes(system=True) == 3 << 20
    assert use.cycles == {}, "cycles without what passed say nothing"


@pytest.mark.parametrize("text", ["", "pos: 0\nflags: 02\n", "drm-driver:\n", "drm-driver amdgpu"])
def test_a_file_of_something_else_is_no_client(text: str) -> None:
    assert parse_fdinfo(text) is None


@pytest.mark.parametrize(
    "line",
    [
        "drm-engine-gfx: -5 ns",
        "drm-engine-gfx: 5 parsecs",
        "drm-engine-gfx: many",
        "drm-engine-gfx:",
        "drm-engine-: 5 ns",
        "drm-engine-gfx: 1.5 ns",
        "drm-engine-gfx: " + "9" * 400,
        "drm-engine-capacity-gfx: 0",
        "drm-pdev: ../../etc/passwd",
        "drm-client-id: x",
        "drm-resident-vram: 4 TiB?",
    ],
)
def test_an_odd_line_is_left_out(line: str) -> None:
    use = parse_fdinfo(f"drm-driver: amdgpu\n{line}\n")
    assert use == ClientUse("amdgpu")


@given(st.text() | st.lists(st.from_regex(r"drm-[a-z-]{0,20}: ?[0-9a-z ]{0,12}")).map("\n".join))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    use = parse_fdinfo("drm-driver: x\n" + text)
    assert use is not None
    assert all(ns >= 0 for ns in use.busy_ns.values())
    assert use.memory_bytes(system=False) >= 0


# --------------------------------------------------------------------------- scanning


def test_only_open_gpus_are_read_and_the_rest_is_left_alone(tree: Tree) -> None:
    tree.process(100, "python")
    tree.open_gpu(100, 7, amd_fdinfo(BDF, 1))
    tree.link("/proc/100/fd/8", "/var/secret")
    tree.write("/proc/100/fdinfo/8", amd_fdinfo(BDF, 2))
    with failing(tree.root / "proc/100/fdinfo/8") as tried:
        seen = ClientScan(tree.root).scan(0.0)
    assert tried == []
    assert [(client.pid, client.process_name) for client in seen.clients] == [(100, "python")]
    assert seen.hidden is None
    assert seen.on("0000:99:00.0") == ()


def test_one_client_that_two_processes_hold_is_counted_once(tree: Tree) -> None:
    """After a fork both processes show the same client."""
    for pid in (100, 101):
        tree.process(pid, "python")
        tree.open_gpu(pid, 7, amd_fdinfo(BDF, 1))
        tree.open_gpu(pid, 9, amd_fdinfo(BDF, 1))
    tree.open_gpu(101, 10, amd_fdinfo("0000:83:00.0", 1))
    seen = ClientScan(tree.root).scan(0.0)
    assert [(client.pid, client.use.device) for client in seen.clients] == [
        (100, BDF),
        (101, "0000:83:00.0"),
    ]


def test_without_root_what_is_seen_is_marked_as_a_part(tree: Tree) -> None:
    tree.process(100, "python")
    tree.open_gpu(100, 7, amd_fdinfo(BDF, 1))
    tree.process(200, "other")
    scan = ClientScan(tree.root)
    with failing(tree.root / "proc/200/fd"):
        seen = scan.scan(0.0)
        assert seen.hidden == "only own processes can be seen; root rights would add the others"
        assert len(seen.clients) == 1
        assert scan.scan(1.0).hidden is not None, "it stays so between two full scans"
    assert scan.scan(11.0).hidden is None


def test_a_readable_folder_with_a_forbidden_fdinfo_is_a_part_too(tree: Tree) -> None:
    tree.process(200, "other")
    tree.open_gpu(200, 7, amd_fdinfo(BDF, 1))
    with failing(tree.root / "proc/200/fdinfo/7"):
        assert ClientScan(tree.root).scan(0.0).hidden is not None


def test_in_a_container_what_is_seen_is_a_part(tmp_path: Path) -> None:
    """nvidia-docker#1483: a /proc of its own does not show the processes of the host."""
    tree = Tree(tmp_path)
    tree.process(1, "python")
    tree.process(2, "worker")
    hidden = ClientScan(tree.root).scan(0.0).hidden
    assert hidden == "only a part of the processes can be seen (a container, or hidepid)"


def test_a_process_that_ends_during_the_scan_is_no_error(tree: Tree) -> None:
    tree.process(100, "python")
    tree.open_gpu(100, 7, amd_fdinfo(BDF, 1))
    tree.remove("/proc/100/fdinfo/7")
    tree.process(101, "python")
    tree.remove("/proc/101/fd")
    seen = ClientScan(tree.root).scan(0.0)
    assert (seen.clients, seen.hidden) == ((), None)


def test_new_processes_are_seen_at_once_and_late_openers_within_ten_seconds(tree: Tree) -> None:
    tree.process(100, "late")
    scan = ClientScan(tree.root)
    assert scan.scan(0.0).clients == ()
    tree.open_gpu(100, 7, amd_fdinfo(BDF, 1))
    tree.process(101, "new")
    tree.open_gpu(101, 7, amd_fdinfo(BDF, 2))
    assert [client.pid for client in scan.scan(1.0).clients] == [101]
    assert [client.pid for client in scan.scan(10.0).clients] == [100, 101]


def test_a_clock_that_goes_back_does_not_stop_the_full_scans(tree: Tree) -> None:
    tree.process(100, "late")
    scan = ClientScan(tree.root)
    scan.scan(1000.0)
    tree.open_gpu(100, 7, amd_fdinfo(BDF, 1))
    assert [client.pid for client in scan.scan(5.0).clients] == [100]


def test_without_a_proc_nothing_is_seen_and_it_says_so(tmp_path: Path) -> None:
    seen = ClientScan(tmp_path).scan(0.0)
    assert (seen.clients, seen.hidden) == ((), "no list of processes: no proc")


# ---------------------------------------------------------------------------- meters


def client(pid: int, client_id: int, text: str) -> Client:
    use = parse_fdinfo(text)
    assert use is not None
    assert use.client_id == client_id
    return Client(pid, f"p{pid}", use)


def gfx(pid: int, client_id: int, gfx_ns: int, vram_kib: int = 0) -> Client:
    return client(pid, client_id, amd_fdinfo(BDF, client_id, gfx_ns=gfx_ns, vram_kib=vram_kib))


def test_clients_of_one_process_and_of_the_device_add_up() -> None:
    meter = UseMeter()
    first = [gfx(1, 1, 0, 10), gfx(1, 2, 0, 20), gfx(2, 3, 0)]
    assert meter.feed(first, 0).util_ratio is None
    second = [gfx(1, 1, S // 10, 10), gfx(1, 2, S // 5, 20), gfx(2, 3, S // 2)]
    use = meter.feed(second, S)
    assert use.util_ratio == pytest.approx(0.8)
    ratios = {process.pid: process.sm_ratio for process in use.processes}
    assert ratios == {1: pytest.approx(0.3), 2: pytest.approx(0.5)}
    assert [process.mem_used_bytes for process in use.processes] == [30 << 10, 0]


def test_an_engine_that_copies_is_no_computing() -> None:
    meter = UseMeter()
    meter.feed([client(1, 7, i915_fdinfo(BDF, 7, render_ns=0))], 0)
    text = i915_fdinfo(BDF, 7, render_ns=S // 4).replace("900000000000 ns", "900500000000 ns")
    assert meter.feed([client(1, 7, text)], S).util_ratio == pytest.approx(0.25)


def test_a_kind_with_four_engines_is_full_when_all_four_work() -> None:
    meter = UseMeter()
    meter.feed([client(1, 7, i915_fdinfo(BDF, 7, render_ns=0, compute_ns=0))], 0)
    use = meter.feed([client(1, 7, i915_fdinfo(BDF, 7, render_ns=0, compute_ns=2 * S))], S)
    assert use.util_ratio == pytest.approx(0.5)


def test_cycles_are_measured_against_the_cycles_that_passed() -> None:
    meter = UseMeter()
    meter.feed([client(1, 3, xe_fdinfo(BDF, 3, rcs=100, ccs=0, total=1000))], 0)
    text = xe_fdinfo(BDF, 3, rcs=100 + 190_000, ccs=0, total=1000 + 19_000_000)
    assert meter.feed([client(1, 3, text)], 17 * S).util_ratio == pytest.approx(0.01)


def test_cycles_of_four_engines_are_measured_against_those_of_all_four() -> None:
    meter = UseMeter()
    meter.feed([client(1, 3, xe_fdinfo(BDF, 3, rcs=0, ccs=0, total=0))], 0)
    text = xe_fdinfo(BDF, 3, rcs=0, ccs=1_000_000, total=1_000_000)
    assert meter.feed([client(1, 3, text)], S).util_ratio == pytest.approx(0.25)


def test_a_client_that_ended_takes_nothing_with_it() -> None:
    meter = UseMeter()
    meter.feed([gfx(1, 1, 0), gfx(2, 2, 50 * S)], 0)
    use = meter.feed([gfx(1, 1, S // 4)], S)
    assert use.util_ratio == pytest.approx(0.25)
    assert use.processes == (ProcessSample(1, "p1", 0.25, 0),)
    assert meter.feed([], 2 * S).util_ratio == 0.0


def test_a_client_that_comes_with_a_past_is_no_spike() -> None:
    meter = UseMeter()
    meter.feed([gfx(1, 1, 0)], 0)
    assert meter.feed([gfx(1, 1, 0), gfx(2, 2, 500 * S)], S).util_ratio == 0.0


def test_no_clients_mean_idle_only_where_the_driver_tells() -> None:
    silent, telling = UseMeter(), UseMeter(tells=True)
    assert [meter.feed([], 0).util_ratio for meter in (silent, telling)] == [None, None]
    assert [meter.feed([], S).util_ratio for meter in (silent, telling)] == [None, 0.0]


def test_clients_that_tell_no_busy_time_are_not_idle() -> None:
    meter = UseMeter(tells=True)
    mute = Client(1, "p1", ClientUse("nouveau", BDF, 1))
    meter.feed([mute], 0)
    use = meter.feed([mute], S)
    assert use.util_ratio is None
    assert use.processes == (ProcessSample(1, "p1", None, None),)


def test_processes_together_never_make_a_device_more_than_full() -> None:
    meter = UseMeter()
    meter.feed([gfx(pid, pid, 0) for pid in (1, 2)], 0)
    assert meter.feed([gfx(pid, pid, S) for pid in (1, 2)], S).util_ratio == 1.0


def test_clients_without_an_id_are_kept_apart() -> None:
    def nameless(ns: int) -> Client:
        return Client(5, None, ClientUse("v3d", busy_ns={"render": ns}))

    meter = UseMeter()
    meter.feed([nameless(0), nameless(10 * S)], 0)
    use = meter.feed([nameless(S // 4), nameless(10 * S + S // 4)], S)
    assert use.util_ratio == pytest.approx(0.5)
