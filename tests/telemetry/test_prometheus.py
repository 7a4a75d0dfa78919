"""The Prometheus endpoint: names and units, nothing for what is missing, and a clean server."""

from __future__ import annotations

import http.client
import importlib
import shutil
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from eaco_core.errors import EnvironmentFault, InputError
from eaco_telemetry.exporters import _http
from eaco_telemetry.exporters.prometheus import (
    PrometheusExporter,
    SampleCollector,
    parse_listen,
)
from eaco_telemetry.meta import NodeEvent
from eaco_telemetry.samples import (
    DeviceState,
    GpuSample,
    HostSample,
    NodeSample,
    ProcessSample,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GIB = 1 << 30
_OPENMETRICS: Any = importlib.import_module("prometheus_client.openmetrics.parser")  # untyped

_FULL = GpuSample(
    gpu_id="GPU-a",
    vendor="nvidia",
    name="Tesla V100",
    pci_bdf="0000:3b:00.0",
    util_ratio=0.5,
    mem_busy_ratio=0.25,
    mem_used_bytes=4 * _GIB,
    mem_total_bytes=16 * _GIB,
    mem_reserved_bytes=_GIB,
    power_w=200.5,
    module_power_w=300.0,
    energy_j=1234.5,
    temperature_c=60.0,
    mem_temperature_c=70.0,
    clock_sm_hz=1.38e9,
    clock_mem_hz=8.77e8,
    power_limit_w=300.0,
    throttle=("power_cap",),
    ecc_uncorrected=2,
    processes=(ProcessSample(1), ProcessSample(2)),
)
_HOST = HostSample(
    cpu_util_ratio=0.1,
    mem_total_bytes=64 * _GIB,
    mem_available_bytes=32 * _GIB,
    package_power_w=80.0,
    package_energy_j=800.0,
    dram_power_w=8.0,
    platform_power_w=120.0,
    node_power_w=400.0,
    node_energy_j=4000.0,
    temperature_c=50.0,
)


def _sample(*gpus: GpuSample, **values: Any) -> NodeSample:  # noqa: ANN401 - any field
    return NodeSample("box-1", "s1", 7, 1, 2, gpus=gpus, **values)


def _event(kind: str, gpu_id: str | None, code: int | None) -> NodeEvent:
    return NodeEvent("box-1", "s1", 0, 1, 2, kind, gpu_id, code)


@pytest.fixture
def exporter() -> Iterator[PrometheusExporter]:
    made = PrometheusExporter(port=0, period_s=60)
    yield made
    made.close()


def _ask(
    exporter: PrometheusExporter, path: str = "/metrics", method: str = "GET", accept: str = ""
) -> tuple[int, str, str]:
    """Give the status, the content type and the text."""
    connection = http.client.HTTPConnection(*exporter.address, timeout=30)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def _lines(text: str, **wanted: str) -> dict[str, float]:
    """Give name to value of the lines that carry these labels."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if wanted.items() <= sample.labels.items()
    }


def _text(samples: Iterable[NodeSample], names: Iterable[str] = ("hw", "dcgm")) -> str:
    exporter = PrometheusExporter(port=0, period_s=60, names=names)
    try:
        for sample in samples:
            exporter.take(sample)
        return _ask(exporter)[2]
    finally:
        exporter.close()


# ------------------------------------------------------------------------- values


def test_a_gpu_is_given_under_the_names_of_opentelemetry_in_si_units() -> None:
    text = _text([_sample(_FULL)], ["hw"])
    got = _lines(
        text,
        hw_id="GPU-a",
        hw_type="gpu",
        hw_vendor="nvidia",
        hw_name="Tesla V100",
        node="box-1",
        hw_parent="",
    )
    assert got.pop("hw_temperature_celsius") == 70.0
    assert got.pop("eaco_gpu_clock_hertz") == 8.77e8
    assert got.pop("hw_status") == 0.0
    assert got == {
        "hw_gpu_utilization_ratio": 0.5,
        "hw_gpu_memory_usage_bytes": 4 * _GIB,
        "hw_gpu_memory_limit_bytes": 16 * _GIB,
        "hw_gpu_memory_utilization_ratio": 0.25,
        "hw_power_watts": 200.5,
        "hw_energy_joules_total": 1234.5,
        "hw_errors_total": 2.0,
        "eaco_gpu_memory_busy_ratio": 0.25,
        "eaco_gpu_memory_reserved_bytes": _GIB,
        "eaco_gpu_module_power_watts": 300.0,
        "eaco_gpu_power_limit_watts": 300.0,
        "eaco_gpu_processes": 2.0,
        "eaco_gpu_throttle": 1.0,
    }
    assert _lines(text, hw_sensor_location="gpu") == {"hw_temperature_celsius": 60.0}
    assert _lines(text, clock="sm") == {"eaco_gpu_clock_hertz": 1.38e9}
    assert _lines(text, hw_state="ok") == {"hw_status": 1.0}
    assert "DCGM" not in text


def test_a_gpu_is_given_under_the_names_and_units_of_dcgm() -> None:
    text = _text([_sample(_FULL)], ["dcgm"])
    got = _lines(
        text,
        gpu="0",
        UUID="GPU-a",
        device="nvidia0",
        modelName="Tesla V100",
        Hostname="box-1",
        pci_bus_id="0000:3b:00.0",
    )
    assert got == {
        "DCGM_FI_DEV_POWER_USAGE": 200.5,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1_234_500.0,
        "DCGM_FI_DEV_GPU_UTIL": 50.0,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 25.0,
        "DCGM_FI_DEV_FB_USED": 4096.0,
        "DCGM_FI_DEV_FB_FREE": 11 * 1024.0,
        "DCGM_FI_DEV_FB_RESERVED": 1024.0,
        "DCGM_FI_DEV_SM_CLOCK": 1380.0,
        "DCGM_FI_DEV_MEM_CLOCK": 877.0,
        "DCGM_FI_DEV_GPU_TEMP": 60.0,
        "DCGM_FI_DEV_MEMORY_TEMP": 70.0,
    }
    assert "hw_" not in text


def test_the_host_is_given_without_counting_a_watt_twice() -> None:
    text = _text([_sample(host=_HOST)])
    assert _lines(text, hw_type="cpu") == {"hw_power_watts": 80.0, "hw_energy_joules_total": 800.0}
    assert _lines(text, hw_type="memory") == {"hw_power_watts": 8.0}
    assert _lines(text, hw_type="temperature") == {"hw_temperature_celsius": 50.0}
    assert _lines(text, hw_id="box-1") == {
        "eaco_host_cpu_utilization_ratio": 0.1,
        "eaco_host_memory_limit_bytes": 64 * _GIB,
        "eaco_host_memory_available_bytes": 32 * _GIB,
        "eaco_platform_power_watts": 120.0,
        "hw_host_power_watts": 400.0,
        "hw_host_energy_joules_total": 4000.0,
    }


def test_what_is_missing_is_no_line() -> None:
    bare = GpuSample("GPU-b", "amd", state=DeviceState.LOST, missing={"power_w": "lost"})
    text = _text([_sample(bare, host=HostSample())])
    assert _lines(text, hw_id="GPU-b") == {"hw_status": 1.0}
    assert _lines(text, hw_state="failed") == {"hw_status": 1.0}
    assert _lines(text, UUID="GPU-b") == {}
    assert _lines(text, hw_id="box-1") == {}


def test_free_memory_does_not_count_what_is_reserved_twice() -> None:
    flagged = GpuSample(
        "GPU-b",
        "nvidia",
        mem_used_bytes=4 * _GIB,
        mem_total_bytes=16 * _GIB,
        mem_reserved_bytes=_GIB,
        flags=("mem_used_includes_reserved",),
    )
    assert _lines(_text([_sample(flagged)]), UUID="GPU-b")["DCGM_FI_DEV_FB_FREE"] == 12 * 1024


def test_made_up_numbers_carry_a_label() -> None:
    text = _text([_sample(_FULL, simulated=True, host=_HOST)])
    assert _lines(text)["eaco_simulated"] == 1.0
    marked = _lines(text, simulated="true")
    unmarked = set(_lines(text)) - set(marked)
    assert {"hw_power_watts", "DCGM_FI_DEV_POWER_USAGE", "hw_host_power_watts"} <= set(marked)
    assert unmarked == {
        "eaco_up",
        "eaco_sample_age_seconds",
        "eaco_samples_total",
        "eaco_simulated",
    }
    assert _lines(_text([_sample(_FULL)]), simulated="true") == {}


def test_a_reader_with_a_problem_is_named() -> None:
    text = _text([_sample(problems={"nvml": "driver and library differ; reboot"})])
    assert _lines(text, reader="nvml") == {"eaco_reader_problem": 1.0}
    assert "reboot" not in text


def test_parts_of_a_gpu_name_it_and_are_not_among_the_numbers_of_dcgm() -> None:
    part = GpuSample("MIG-1", "nvidia", parent_id="GPU-a", mem_used_bytes=5)
    text = _text([_sample(part, _FULL)])
    assert _lines(text, hw_id="MIG-1", hw_parent="GPU-a")["hw_gpu_memory_usage_bytes"] == 5
    assert _lines(text, UUID="MIG-1") == {}
    assert "DCGM_FI_DEV_FB_USED" in _lines(text, UUID="GPU-a", gpu="0")


def test_gpus_are_numbered_by_pci_address_and_keep_their_number(
    exporter: PrometheusExporter,
) -> None:
    gpus = [
        GpuSample("GPU-no-address", "apple", power_w=1.0),
        GpuSample("GPU-late", "nvidia", pci_bdf="0000:AF:00.0", power_w=1.0),
        GpuSample("GPU-early", "nvidia", pci_bdf="0000:3b:00.0", power_w=1.0),
    ]

    def numbers() -> dict[str, str]:
        return {
            sample.labels["UUID"]: sample.labels["gpu"]
            for family in text_string_to_metric_families(_ask(exporter)[2])
            for sample in family.samples
            if "UUID" in sample.labels
        }

    exporter.take(_sample(*gpus))
    assert numbers() == {"GPU-early": "0", "GPU-late": "1", "GPU-no-address": "2"}
    exporter.take(_sample(*gpus[:2]))
    assert numbers() == {"GPU-late": "1", "GPU-no-address": "2"}


def test_xids_are_counted_and_the_last_one_is_given(exporter: PrometheusExporter) -> None:
    exporter.take(_sample(_FULL))
    assert "DCGM_FI_DEV_XID_ERRORS" not in _lines(_ask(exporter)[2])
    exporter.take(_sample(_FULL), [_event("xid", "GPU-a", 43), _event("ecc", "GPU-a", 1)])
    exporter.take(_sample(_FULL), [_event("xid", "GPU-a", 79), _event("xid", None, 5)])
    exporter.take(_sample(_FULL))
    text = _ask(exporter)[2]
    assert _lines(text, UUID="GPU-a")["DCGM_FI_DEV_XID_ERRORS"] == 79.0
    assert _lines(text, error_type="xid") == {"hw_errors_total": 2.0}


# ------------------------------------------------------------------------- age


def test_values_vanish_after_three_periods_and_come_back() -> None:
    now_s = [100.0]
    collector = SampleCollector(2.0, clock=lambda: now_s[0])

    def names() -> dict[str, float]:
        return {one.name: one.value for family in collector.collect() for one in family.samples}

    assert names() == {"eaco_up": 0.0}
    collector.take(_sample(_FULL))
    now_s[0] += 6.0
    assert names()["hw_power_watts"] == 200.5
    now_s[0] += 0.1
    assert names() == {
        "eaco_up": 0.0,
        "eaco_sample_age_seconds": pytest.approx(6.1),
        "eaco_samples_total": 1.0,
    }
    collector.take(_sample(_FULL))
    assert names()["eaco_up"] == 1.0


def test_nothing_is_added_to_the_registry_of_the_program() -> None:
    def names() -> set[str]:
        return {family.name for family in REGISTRY.collect()}

    before = names()
    assert "hw_power_watts" in _text([_sample(_FULL)])
    assert names() == before
    own = CollectorRegistry()
    own.register(SampleCollector())
    assert [family.name for family in own.collect()] == ["eaco_up"]


# ------------------------------------------------------------------------- format


def test_hostile_names_are_escaped() -> None:
    nasty = 'a"b\\c\nd\udcff{}é'
    text = _text([_sample(GpuSample(nasty, nasty, name=nasty, power_w=1.0, throttle=(nasty,)))])
    shown = nasty.replace("\udcff", "?")
    assert _lines(text, UUID=shown, modelName=shown) == {"DCGM_FI_DEV_POWER_USAGE": 1.0}
    assert _lines(text, hw_id=shown, reason=shown) == {"eaco_gpu_throttle": 1.0}


def test_openmetrics_is_given_to_who_asks_for_it(exporter: PrometheusExporter) -> None:
    exporter.take(_sample(_FULL, host=_HOST), [_event("xid", "GPU-a", 43)])
    _, kind, text = _ask(exporter, accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    names = {
        one.name
        for family in _OPENMETRICS.text_string_to_metric_families(text)
        for one in family.samples
    }
    assert {"hw_energy_joules_total", "DCGM_FI_DEV_POWER_USAGE"} <= names
    status, kind, _ = _ask(exporter)
    assert (status, kind.partition(";")[0]) == (200, "text/plain")


@pytest.mark.parametrize("names", [("hw",), ("hw", "dcgm")])
def test_promtool_has_no_complaint_but_about_the_labels_of_dcgm(names: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with the Debian package prometheus")
    gpus = (_FULL, GpuSample("MIG-1", "nvidia", parent_id="GPU-a", mem_used_bytes=5))
    text = _text([_sample(*gpus, host=_HOST, simulated=True, problems={"a": "b"})], names)
    ran = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    complaints = [
        line
        for line in ran.stderr.splitlines()
        if not (line.startswith("DCGM_FI_") and "label names" in line)
    ]
    assert complaints == []
    assert ran.returncode == (0 if names == ("hw",) else 3)


# ------------------------------------------------------------------------- server


def test_only_this_machine_is_listened_to_unless_told(exporter: PrometheusExporter) -> None:
    assert exporter.address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", 200),
        ("/metrics?a=b", "GET", 200),
        ("/metrics", "HEAD", 200),
        ("/etc/passwd", "GET", 404),
        ("/metrics", "POST", 501),
    ],
)
def test_only_the_metrics_can_be_had(
    exporter: PrometheusExporter, path: str, method: str, status: int
) -> None:
    got, _, text = _ask(exporter, path, method)
    assert got == status
    assert ("eaco_up 0.0" in text) == (status == 200 and method == "GET")


def test_a_port_that_is_taken_is_said_plainly(exporter: PrometheusExporter) -> None:
    port = exporter.address[1]
    with pytest.raises(EnvironmentFault, match=rf"cannot serve metrics on 127.0.0.1, port {port}"):
        PrometheusExporter(port=port)


def test_a_host_that_does_not_exist_is_said_plainly() -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot serve metrics on no-such.invalid"):
        PrometheusExporter(host="no-such.invalid", port=0)


def test_silent_clients_do_not_hold_others_up_or_the_end(
    exporter: PrometheusExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_http._Handler, "timeout", 600.0)
    silent = [socket.create_connection(exporter.address, 30) for _ in range(5)]
    try:
        assert _ask(exporter)[0] == 200
        exporter.close()
        exporter.close()
        assert not [one for one in threading.enumerate() if one.name == "eaco-metrics"]
    finally:
        for one in silent:
            one.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(exporter.address, 30)


def test_there_is_a_limit_of_requests_at_a_time(exporter: PrometheusExporter) -> None:
    silent = [socket.create_connection(exporter.address, 30) for _ in range(_http.MAX_REQUESTS)]
    try:
        with socket.create_connection(exporter.address, 30) as one_more:
            one_more.settimeout(30)
            assert one_more.recv(1) == b""
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("9426", ("127.0.0.1", 9426)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),  # noqa: S104 - what a user may ask for
        ("[::1]:80", ("::1", 80)),
        (":80", ("127.0.0.1", 80)),
    ],
)
def test_where_to_listen_is_read(text: str, where: tuple[str, int]) -> None:
    assert parse_listen(text) == where


@pytest.mark.parametrize(
    "text", ["", "box", "box:", "1:65536", "1:-1", "1:²", "1:99999999999", "000006553599"]
)
def test_where_to_listen_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match=r"write PORT or HOST:PORT"):
        parse_listen(text)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="sets of names"):
        SampleCollector(names=["otel"])
    with pytest.raises(InputError, match="period_s"):
        SampleCollector(0.0)
