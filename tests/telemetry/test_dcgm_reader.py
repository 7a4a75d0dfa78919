"""The DCGM exporter's page, served by a real server: units, marks for blank, MIG, odd servers."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.readers import _scrape
from eaco_telemetry.readers._prometheus_text import parse_number, parse_page
from eaco_telemetry.readers.base import Reading, node_sample
from eaco_telemetry.readers.dcgm import DcgmReader
from eaco_telemetry.samples import EnergyKind, GpuSample, MemoryKind, Moment

if TYPE_CHECKING:
    from collections.abc import Iterator

UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
LABELS = (
    f'gpu="0",UUID="{UUID}",pci_bus_id="00000000:0B:00.0",device="nvidia0",'
    'modelName="NVIDIA H100 80GB HBM3",Hostname="node1"'
)
MIG = f'{LABELS},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'


def page(*lines: str, labels: str = LABELS) -> str:
    """Give a page with the values ``NAME number``."""
    rows = ["# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).", "go_goroutines 12"]
    for line in lines:
        name, _, number = line.partition(" ")
        rows.append(f"DCGM_FI_{name}{{{labels}}} {number}")
    return "\n".join(rows) + "\n"


HEALTHY = page(
    "DEV_SM_CLOCK 1980",
    "DEV_MEM_CLOCK 2619",
    "DEV_GPU_TEMP 41",
    "DEV_MEMORY_TEMP 52",
    "DEV_POWER_USAGE 312.5",
    "DEV_TOTAL_ENERGY_CONSUMPTION 1000000",
    "DEV_GPU_UTIL 87",
    "DEV_MEM_COPY_UTIL 31",
    "DEV_FB_USED 1024",
    "DEV_FB_FREE 79872",
    "DEV_FB_RESERVED 512",
    "DEV_XID_ERRORS 0",
    "DEV_CLOCKS_EVENT_REASONS 4",
    "PROF_SM_ACTIVE 0.62",
    "PROF_DRAM_ACTIVE 0.25",
)


@define
class Exporter:
    """A server of one page; `reply` may be a status instead."""

    text: str = HEALTHY
    status: int = 200
    drip_s: float = 0.0
    asked: int = 0
    place: str = field(default="", init=False)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    told = Exporter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked += 1
            self.send_response(told.status)
            if told.status == 302:
                self.send_header("Location", "http://127.0.0.1:1/metrics")
            self.end_headers()
            for line in told.text.splitlines(keepends=True) if told.drip_s else [told.text]:
                try:
                    self.wfile.write(line.encode())
                except OSError:
                    return
                time.sleep(told.drip_s)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.place = f"http://127.0.0.1:{server.server_port}/metrics"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def opened(exporter: Exporter) -> DcgmReader:
    reader = DcgmReader(exporter.place, node_id="n1")
    reader.open()
    return reader


def at(seconds: float) -> Moment:
    return Moment(1, int(seconds * 1e9))


def one(reader: DcgmReader, seconds: float = 1.0) -> GpuSample:
    reading = reader.read(at(seconds))
    assert reading.problem is None
    (gpu,) = reading.gpus
    assert gpu.unexplained == ()
    return gpu


def test_a_healthy_page_gives_si_units(exporter: Exporter) -> None:
    gpu = one(opened(exporter))
    assert (gpu.gpu_id, gpu.vendor, gpu.pci_bdf) == (UUID, "nvidia", "0000:0b:00.0")
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert (gpu.util_ratio, gpu.mem_busy_ratio) == (0.87, 0.31)
    assert (gpu.sm_active_ratio, gpu.dram_active_ratio) == (0.62, 0.25)
    assert (gpu.mem_used_bytes, gpu.mem_reserved_bytes) == (1 << 30, 1 << 29)
    assert (gpu.mem_total_bytes, gpu.mem_kind) == (81408 << 20, MemoryKind.DEDICATED)
    assert (gpu.power_w, gpu.power_kind, gpu.flags) == (312.5, None, ("power_kind_unknown",))
    assert (gpu.clock_sm_hz, gpu.clock_mem_hz) == (1.98e9, 2.619e9)
    assert (gpu.temperature_c, gpu.mem_temperature_c) == (41, 52)
    assert (gpu.energy_j, gpu.energy_kind) == (0, EnergyKind.COUNTER)
    assert gpu.throttle == ("sw_power_cap",)
    assert gpu.missing["ecc_uncorrected"] == "not read by this reader"
    assert set(gpu.capabilities) | set(gpu.missing) >= {"energy_j", "processes"}


def test_joules_count_in_millijoules_from_the_first_read(exporter: Exporter) -> None:
    reader = opened(exporter)
    one(reader)
    exporter.text = page("DEV_TOTAL_ENERGY_CONSUMPTION 22000000")
    # 21 kJ in one step: the exporter looked 30 s ago, we look every second.
    for second in range(2, 31):
        exporter.text = page("DEV_TOTAL_ENERGY_CONSUMPTION 1000000")
        assert one(reader, second).energy_j == 0
    exporter.text = page("DEV_TOTAL_ENERGY_CONSUMPTION 22000000")
    gpu = one(reader, 31)
    assert (gpu.energy_j, gpu.flags) == (21_000, ())
    exporter.text = page("DEV_TOTAL_ENERGY_CONSUMPTION 100000")  # a new driver
    gpu = one(reader, 61)
    assert (gpu.energy_j, gpu.flags) == (21_000, ("energy_rebased",))


@pytest.mark.parametrize(
    "blank",
    ["9223372036854775794", "9223372036854775792", "2147483632", "140737488355328", "NaN", "+Inf"],
)
def test_marks_for_blank_of_dcgm_are_none_with_a_reason(exporter: Exporter, blank: str) -> None:
    exporter.text = page(
        f"DEV_MEMORY_TEMP {blank}", f"DEV_POWER_USAGE {blank}", f"DEV_FB_USED {blank}"
    )
    gpu = one(opened(exporter))
    assert (gpu.mem_temperature_c, gpu.power_w, gpu.mem_used_bytes) == (None, None, None)
    assert gpu.missing["power_w"] == "the exporter says that it is blank"
    assert gpu.rejected == 0


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("DEV_GPU_UTIL 808334905", "util_ratio"),
        ("DEV_GPU_UTIL 4294967295", "util_ratio"),
        ("DEV_POWER_USAGE -5", "power_w"),
        ("DEV_FB_USED 1e30", "mem_used_bytes"),
        ("PROF_SM_ACTIVE 62", "sm_active_ratio"),
    ],
)
def test_values_of_dcgm_that_cannot_be_are_none_and_counted(
    exporter: Exporter, line: str, name: str
) -> None:
    exporter.text = page(line, "DEV_GPU_TEMP 41")
    gpu = one(opened(exporter))
    assert getattr(gpu, name) is None
    assert "impossible" in gpu.missing[name]
    assert gpu.rejected == 1


def test_a_ratio_of_busy_sms_above_1_is_1_and_flagged(exporter: Exporter) -> None:
    """DCGM#152: under MIG."""
    exporter.text = page("PROF_SM_ACTIVE 1.17", "PROF_DRAM_ACTIVE 0.5", labels=MIG)
    whole, part = opened(exporter).read(at(1)).gpus
    assert whole.sm_active_ratio is None
    assert (part.sm_active_ratio, part.dram_active_ratio) == (1.0, 0.5)
    assert part.flags == ("sm_active_above_1",)


def test_mig_rows_give_an_instance_its_own_values_and_the_gpu_the_rest(exporter: Exporter) -> None:
    exporter.text = page(
        "DEV_POWER_USAGE 250", "DEV_GPU_UTIL 0", "DEV_FB_USED 100", "PROF_SM_ACTIVE 0.3", labels=MIG
    ) + page("DEV_POWER_USAGE 250", "PROF_SM_ACTIVE 0.9", labels=MIG.replace('"7"', '"8"'))
    reading = opened(exporter).read(at(1))
    assert [gpu.gpu_id for gpu in reading.gpus] == [UUID, f"{UUID}/gi7", f"{UUID}/gi8"]
    whole, seven, eight = reading.gpus
    assert (whole.power_w, whole.util_ratio, whole.mem_used_bytes) == (250, None, None)
    assert whole.missing["util_ratio"] == "not given while MIG is on"
    assert (seven.parent_id, seven.name) == (UUID, "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert (seven.power_w, seven.sm_active_ratio, seven.mem_used_bytes) == (None, 0.3, 100 << 20)
    assert eight.sm_active_ratio == 0.9
    assert all(gpu.unexplained == () for gpu in reading.gpus)


def test_an_xid_is_told_when_it_changes_and_not_again(exporter: Exporter) -> None:
    reader = opened(exporter)
    kinds: list[int | None] = []
    for second, xid in enumerate([0, 0, 79, 79, 31, 0]):
        exporter.text = page("DEV_GPU_TEMP 40", f"DEV_XID_ERRORS {xid}")
        kinds += [event.code for event in reader.read(at(second)).events]
    assert kinds == [79, 31]


# ------------------------------------------------------------------- beside NVML


def test_dcgm_adds_to_a_gpu_of_nvml_what_nvml_lacks(exporter: Exporter) -> None:
    by_dcgm = opened(exporter).read(at(1))
    by_nvml = Reading(
        gpus=(
            GpuSample(
                UUID,
                "nvidia",
                util_ratio=0.5,
                energy_j=77.0,
                capabilities=("energy_j", "util_ratio"),
                missing={"sm_active_ratio": "NVML does not give it", "power_w": "not supported"},
            ),
            GpuSample("MIG-1", "nvidia", parent_id=UUID),
        ),
        aliases={f"{UUID}/gi7": "MIG-1"},
    )
    sample = node_sample(
        {"nvml": by_nvml, "dcgm": by_dcgm}, node_id="n", session_id="s", seq=0, now=at(1)
    )
    first, _ = sample.gpus
    assert (first.util_ratio, first.energy_j) == (0.5, 77.0)
    assert (first.sm_active_ratio, first.power_w) == (0.62, 312.5)
    assert {"sm_active_ratio", "power_w"} & set(first.missing) == set()
    assert "power_kind_unknown" in first.flags
    assert {"sm_active_ratio", "energy_j"} <= set(first.capabilities)


def test_an_instance_that_dcgm_knows_by_number_is_that_of_nvml(exporter: Exporter) -> None:
    exporter.text = page("PROF_SM_ACTIVE 0.3", labels=MIG)
    by_dcgm = opened(exporter).read(at(1))
    by_nvml = Reading(
        gpus=(GpuSample(UUID, "nvidia"), GpuSample("MIG-1", "nvidia", parent_id=UUID)),
        aliases={f"{UUID}/gi7": "MIG-1"},
    )
    sample = node_sample(
        {"nvml": by_nvml, "dcgm": by_dcgm}, node_id="n", session_id="s", seq=0, now=at(1)
    )
    assert [gpu.gpu_id for gpu in sample.gpus] == [UUID, "MIG-1"]
    assert sample.gpus[1].sm_active_ratio == 0.3


def test_joules_of_dcgm_do_not_fill_a_gap_of_nvml(exporter: Exporter) -> None:
    gap = GpuSample(UUID, "nvidia", capabilities=("energy_j",), missing={"energy_j": "too slow"})
    readings = {"nvml": Reading(gpus=(gap,)), "dcgm": opened(exporter).read(at(1))}
    sample = node_sample(readings, node_id="n", session_id="s", seq=0, now=at(1))
    assert sample.gpus[0].energy_j is None
    assert sample.gpus[0].missing["energy_j"] == "too slow"


# ------------------------------------------------------------------- odd servers


def test_no_exporter_is_a_plain_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EnvironmentFault, match=r"the DCGM exporter at http://.*cannot be reached"):
        DcgmReader(f"http://127.0.0.1:{port}/metrics").open()


def test_a_page_of_another_exporter_is_refused(exporter: Exporter) -> None:
    exporter.text = "node_load1 0.5\n"
    with pytest.raises(EnvironmentFault, match="shows no GPU of DCGM"):
        DcgmReader(exporter.place).open()


def test_an_exporter_that_fails_keeps_its_gpus_with_the_reason(exporter: Exporter) -> None:
    reader = opened(exporter)
    one(reader)
    exporter.status = 500
    reading = reader.read(at(2))
    assert reading.problem is not None
    assert "HTTP status 500" in reading.problem
    (gpu,) = reading.gpus
    assert (gpu.gpu_id, gpu.power_w, gpu.unexplained) == (UUID, None, ())
    exporter.status, exporter.text = 200, "node_load1 0.5\n"
    empty = reader.read(at(3))
    assert "shows no GPU" in (empty.problem or "")
    assert [gpu.gpu_id for gpu in empty.gpus] == [UUID]
    exporter.text = HEALTHY
    assert one(reader, 4).power_w == 312.5


def test_a_redirect_is_not_followed(exporter: Exporter) -> None:
    exporter.status = 302
    with pytest.raises(EnvironmentFault, match="redirect"):
        DcgmReader(exporter.place).open()


def test_a_server_that_drips_is_left_after_the_time_limit(exporter: Exporter) -> None:
    exporter.drip_s = 0.05
    with pytest.raises(EnvironmentFault, match=r"did not answer in 0\.2 s"):
        DcgmReader(exporter.place, timeout_s=0.2).open()


def test_a_page_without_end_is_refused(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scrape, "MAX_BYTES", 1000)
    with pytest.raises(EnvironmentFault, match="larger than"):
        DcgmReader(exporter.place).open()


def test_a_server_that_speaks_no_http_is_a_plain_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EnvironmentFault, match="cannot be read"):
            DcgmReader(f"http://127.0.0.1:{server.getsockname()[1]}/").open()
        thread.join()


def test_a_proxy_of_the_environment_is_not_used(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert one(opened(exporter)).power_w == 312.5


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://h/", "127.0.0.1:9400", "http://", "http://u:p@h/", "http://h:x/"],
)
def test_a_url_that_is_none_of_an_exporter_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        DcgmReader(url)


# ------------------------------------------------------------------- the format


def test_labels_may_hold_quotes_commas_and_braces() -> None:
    text = 'a{x="}1, \\"y\\"",z="\\\\n\\n",} 4 1700000000000'
    (line,) = parse_page(text, "a").lines
    assert line.labels == {"x": '}1, "y"', "z": "\\n\n"}
    assert line.number == "4"


@pytest.mark.parametrize(
    "text",
    [
        'a{x="1" 4',
        "a{x=1} 4",
        'a{x="1",x="2"} 4',
        "a",
        "a{} ",
        'a{x="1"}',
        'a{"x"="1"} 4',
        "a 1 2 3",
    ],
)
def test_a_line_that_is_none_is_counted(text: str) -> None:
    read = parse_page(text, "a")
    assert (read.lines, read.odd) == ((), 1)


@given(st.text(max_size=200))
def test_no_page_makes_the_parser_raise(text: str) -> None:
    for prefix in ("", text[:3]):
        parse_page(text, prefix)
    number = parse_number(text)
    assert number is None or number == number  # noqa: PLR0124 - not NaN
