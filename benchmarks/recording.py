"""Recording a day of 8 GPUs at 1 Hz: rows per second, size of the file, memory.

Prints: what one sample costs the caller (`take`) and the recording thread, how long the end
takes (all parts are joined), bytes per row, the highest memory of the process, and how fast
the recording is read back as a frame and as samples.
"""

from __future__ import annotations

import argparse
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from eaco_telemetry.readers.base import node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.recording import Recorder, read_frame, read_samples
from eaco_telemetry.samples import HostSample, Moment, NodeSample

if TYPE_CHECKING:
    from collections.abc import Iterator

_S = 10**9


def _samples(count: int, gpus: int) -> Iterator[NodeSample]:
    reader = SimulatedReader("bench", gpus=gpus)
    reader.open()
    for seq in range(count):
        now = Moment(1_700_000_000 * _S + seq * _S, seq * _S)
        readings = {"simulated": reader.read(now)}
        sample = node_sample(readings, node_id="bench", session_id="s", seq=seq, now=now)
        host = HostSample(
            cpu_util_ratio=(seq * 37 % 100) / 100,
            mem_total_bytes=1 << 38,
            mem_available_bytes=(1 << 37) + seq * 4096,
            package_power_w=100.0 + seq * 31 % 50,
            package_energy_j=120.0 * seq,
            capabilities=("cpu_util_ratio", "package_energy_j", "package_power_w"),
        )
        yield evolve(sample, host=host)


def _rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _record(path: Path, count: int, gpus: int) -> int:
    """Record and print what it costs; give the number of rows."""
    before_mb = _rss_mb()
    recorder = Recorder(path)
    take_s = 0.0
    started_cpu_s, started_s = time.process_time(), time.monotonic()
    for number, sample in enumerate(_samples(count, gpus)):
        begin_s = time.perf_counter()
        recorder.take(sample)
        take_s += time.perf_counter() - begin_s
        # An agent flushes each 60 s; here time runs faster, so parts are cut by count.
        if number % 60 == 59:  # noqa: PLR2004 - a minute
            recorder.flush()
    recorder.flush()
    wrote_s, wrote_cpu_s = time.monotonic() - started_s, time.process_time() - started_cpu_s
    before_join_mb = _rss_mb()
    begin_s = time.monotonic()
    recorder.close()
    join_s = time.monotonic() - begin_s
    rows = count * (gpus + 1)
    size = path.stat().st_size
    print(f"{count:,} samples, {rows:,} rows, dropped {recorder.dropped}")
    print(f"take: {take_s / count * 1e6:.1f} us a sample")
    print(f"make and write: {wrote_s:.1f} s ({rows / wrote_s:,.0f} rows/s),", end=" ")
    print(f"{wrote_cpu_s / count * 1e6:.0f} us of processor a sample (with making it)")
    print(f"join at the end: {join_s:.1f} s")
    print(f"file: {size / 1e6:.1f} MB, {size / rows:.1f} bytes a row")
    print(f"memory: {before_mb:.0f} MB before, {before_join_mb:.0f} MB writing,", end=" ")
    print(f"{_rss_mb():.0f} MB at most with the join")
    return rows


def _read(path: Path, rows: int, count: int) -> None:
    begin_s = time.monotonic()
    height = read_frame(path).height
    took_s = time.monotonic() - begin_s
    print(f"read_frame: {took_s:.2f} s, {height:,} rows, {_rss_mb():.0f} MB at most")
    begin_s = time.monotonic()
    got = sum(1 for _ in read_samples(path))
    took_s = time.monotonic() - begin_s
    print(f"read_samples: {took_s:.1f} s ({rows / took_s:,.0f} rows/s), {got == count}")


def main() -> None:
    """Run with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--no-read", action="store_true", help="for the memory of writing alone")
    options = parser.parse_args()
    print(platform.python_version(), platform.machine())
    count = round(options.hours * 3600)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.parquet")
        rows = _record(path, count, options.gpus)
        if not options.no_read:
            _read(path, rows, count)


if __name__ == "__main__":
    main()
