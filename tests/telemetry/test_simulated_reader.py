"""The reader without hardware: seeded, consistent with itself, and honest about it."""

from __future__ import annotations

import random

import pytest

from eaco_core.errors import InputError
from eaco_telemetry.readers.base import Reader, Reading, node_sample
from eaco_telemetry.readers.simulated import SimulatedReader
from eaco_telemetry.samples import GpuSample, HostSample, Moment


def _at(seconds: float) -> Moment:
    return Moment(wall_ns=5, monotonic_ns=1_000 + int(seconds * 1e9))


def _reader(node_id: str = "n1", *, gpus: int = 8, seed: int = 3) -> SimulatedReader:
    reader = SimulatedReader(node_id, gpus=gpus, seed=seed)
    reader.open()
    reader.read(_at(0))
    return reader


def test_a_sample_of_it_says_that_it_is_simulated() -> None:
    reader = _reader()
    assert isinstance(reader, Reader)
    readings = {"simulated": reader.read(_at(1)), "host": Reading(host=HostSample())}
    sample = node_sample(readings, node_id="n1", session_id="s", seq=4, now=_at(1))
    assert sample.simulated
    assert (len(sample.gpus), sample.seq, sample.host) == (8, 4, HostSample())
    assert {gpu.vendor for gpu in sample.gpus} == {"simulated"}
    assert not node_sample({}, node_id="n1", session_id="s", seq=0, now=_at(1)).simulated


def test_every_value_is_there_or_has_a_reason() -> None:
    reader = _reader()
    for gpu in reader.read(_at(500)).gpus:
        assert gpu.unexplained == ()
        given = {name for name in gpu.capabilities if getattr(gpu, name) is not None}
        assert given == set(gpu.capabilities) == set(reader.capabilities[gpu.gpu_id])


def test_the_seed_decides_and_not_how_often_it_is_read() -> None:
    often, once, other = _reader(), _reader(), _reader(seed=4)
    for second in range(1, 2000):
        often.read(_at(second))
    expected = once.read(_at(2000)).gpus
    found = often.read(_at(2000)).gpus
    for left, right in zip(found, expected, strict=True):
        assert left.energy_j == pytest.approx(right.energy_j)
        assert (left.processes, left.power_w) == (right.processes, right.power_w)
    assert other.read(_at(2000)).gpus != expected


def test_energy_is_the_power_over_time_and_never_falls() -> None:
    reader = _reader(gpus=2)
    summed = {gpu.gpu_id: 0.0 for gpu in reader.read(_at(0)).gpus}
    before = {gpu.gpu_id: gpu for gpu in reader.read(_at(0)).gpus}
    for tick in range(1, 4000):
        for gpu in reader.read(_at(tick / 4)).gpus:
            assert gpu.energy_j is not None
            last = before[gpu.gpu_id]
            assert last.power_w is not None
            assert last.energy_j is not None
            assert gpu.energy_j >= last.energy_j
            summed[gpu.gpu_id] += last.power_w / 4
            before[gpu.gpu_id] = gpu
    for gpu_id, total_j in summed.items():
        assert before[gpu_id].energy_j == pytest.approx(total_j, rel=0.01)
    assert reader.read(_at(3)).gpus == tuple(before.values()), "time does not go back"


def test_a_load_has_idle_single_and_shared_gpus_within_the_hardware() -> None:
    reader = _reader(gpus=64)
    samples = [gpu for second in (10, 400, 900) for gpu in reader.read(_at(second)).gpus]
    counts = {len(gpu.processes or ()) for gpu in samples}
    assert counts == {0, 1, 2, 3}
    for gpu in samples:
        assert gpu.mem_used_bytes is not None
        assert gpu.mem_total_bytes is not None
        assert gpu.power_w is not None
        assert gpu.mem_used_bytes < gpu.mem_total_bytes
        assert 34.8 <= gpu.power_w <= 34.8 + 171.3 + 1e-9
    assert len({gpu.gpu_id for gpu in samples}) == 64


@pytest.mark.parametrize("gpus", [0, -1, 1025])
def test_a_wrong_number_of_gpus_is_refused(gpus: int) -> None:
    with pytest.raises(InputError, match="1 to 1024"):
        SimulatedReader("n1", gpus=gpus)


def test_it_leaves_the_chance_of_the_program_alone() -> None:
    random.seed(1)
    expected = random.Random(1).random()
    _reader().read(_at(1000))
    assert random.random() == expected


def test_the_first_reader_wins_a_gpu_and_hosts_complete_each_other() -> None:
    first = HostSample(
        cpu_util_ratio=0.5, missing={"package_power_w": "root", "dram_power_w": "root"}
    )
    second = HostSample(cpu_util_ratio=0.9, package_power_w=70.0)
    readings = {
        "a": Reading(gpus=(GpuSample("g", "nvidia"),), host=first, problem="a is slow"),
        "b": Reading(gpus=(GpuSample("g", "drm"), GpuSample("h", "drm")), host=second),
    }
    sample = node_sample(readings, node_id="n1", session_id="s", seq=0, now=_at(1))
    assert [(gpu.gpu_id, gpu.vendor) for gpu in sample.gpus] == [("g", "nvidia"), ("h", "drm")]
    assert sample.host is not None
    assert (sample.host.cpu_util_ratio, sample.host.package_power_w) == (0.5, 70.0)
    assert sample.host.missing == {"dram_power_w": "root"}
    assert sample.problems == {"a": "a is slow"}
