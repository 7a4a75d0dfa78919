"""What a training script has of eaco: alone, under a runner, and through the callbacks."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from eaco_adapters import progress as progress_module
from eaco_adapters.launch import LaunchSpec
from eaco_adapters.progress import EXIT_STOPPED, Progress
from eaco_adapters.progress_keras import keras_callback
from eaco_adapters.progress_lightning import lightning_callback
from eaco_adapters.progress_transformers import has_checkpoint, transformers_callback
from eaco_adapters.testing.node_kit import bench
from eaco_core import events as ev

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_numpy_free.py"


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _epochs(path: Path) -> list[int]:
    return [line["epoch"] for line in _lines(path) if line["ev"] == "epoch"]


def _progress(tmp_path: Path, **env: str) -> Progress:
    base = {
        "EACO_PROGRESS_FILE": str(tmp_path / "progress.jsonl"),
        "EACO_STOP_FILE": str(tmp_path / "stop"),
        "EACO_CHECKPOINT_DIR": str(tmp_path),
        "EACO_RESUME_EPOCH": "2",
        "EACO_GPUS": '["GPU-a"]',
    }
    return Progress.from_env({**base, **env}, stop_signal=None)


def test_without_eaco_it_does_nothing() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    progress = Progress.from_env({})
    progress.epoch_done(1)
    progress.finished()
    assert (progress.is_active, progress.resume_epoch, progress.checkpoint_dir) == (False, 0, None)
    assert not progress.should_stop()
    assert signal.getsignal(signal.SIGUSR2) is before


def test_it_reads_the_environment_and_writes_lines(tmp_path: Path) -> None:
    progress = _progress(tmp_path)
    assert (progress.resume_epoch, progress.gpus) == (2, ("GPU-a",))
    progress.epoch_done(3, clean=False, peak_mem_bytes=7)
    progress.checkpoint_done(3)
    progress.note("x" * 5000)
    progress.finished()
    lines = _lines(tmp_path / "progress.jsonl")
    assert [line["ev"] for line in lines] == ["epoch", "checkpoint", "note", "done"]
    assert lines[0] | {"boot_s": 0} == {
        "ev": "epoch",
        "epoch": 3,
        "clean": False,
        "peak_mem_bytes": 7,
        "boot_s": 0,
    }
    assert len(lines[2]["text"]) == 1000


def test_a_descriptor_that_was_closed_falls_back_to_the_file(tmp_path: Path) -> None:
    _progress(tmp_path, EACO_PROGRESS_FD="987").epoch_done(1)
    assert _epochs(tmp_path / "progress.jsonl") == [1]


def test_only_rank_0_reports_but_all_hear_the_stop(tmp_path: Path) -> None:
    other = _progress(tmp_path, RANK="1")
    other.epoch_done(1)
    (tmp_path / "stop").touch()
    assert other.should_stop()
    assert _epochs(tmp_path / "progress.jsonl") == []


def test_a_disk_that_fails_ends_no_training(tmp_path: Path) -> None:
    _progress(tmp_path, EACO_PROGRESS_FILE=str(tmp_path / "no" / "folder")).epoch_done(1)


def test_the_signal_sets_a_flag_and_calls_who_was_there(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
    try:
        progress = _progress(tmp_path)
        progress.listen("SIGUSR2")
        assert not progress.should_stop()
        signal.raise_signal(signal.SIGUSR2)
        assert progress.should_stop()
        assert heard == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_the_file_works_when_copied_beside_a_script_without_eaco(tmp_path: Path) -> None:
    shutil.copy(str(progress_module.__file__), tmp_path / "progress.py")
    script = "from progress import Progress; p = Progress.from_env(); p.epoch_done(1); "
    script += "p.should_stop() and p.exit_stopped()"
    (tmp_path / "stop").touch()
    env = {
        "EACO_PROGRESS_FILE": str(tmp_path / "lines"),
        "EACO_STOP_FILE": str(tmp_path / "stop"),
        "PYTHONPATH": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-S", "-c", script], env=env, check=False)
    assert done.returncode == EXIT_STOPPED
    assert _epochs(tmp_path / "lines") == [1]


def test_the_example_stops_and_resumes_to_the_same_result(tmp_path: Path) -> None:
    golden = EXAMPLE.with_suffix(".out").read_text()
    launch = LaunchSpec((sys.executable, "-c", _SLOWER, str(EXAMPLE)))

    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.start("moons", launch=launch)
            await one.wait_epoch("moons", 2)
            await one.runner.request_stop("moons", 1, 1)
            await one.wait_over("moons")
            stopped = await one.wait("moons", ev.JobStopped)
            await one.start("moons", 2, launch=launch, resume_epoch=stopped.checkpoint_epoch)
            assert (await one.wait_over("moons", 2))[-2:] == ["JobFinished", "GpusReleased"]
            assert one.output("moons", 1) + one.output("moons", 2) == golden

    asyncio.run(main())


# The example, with a pause at each line that it prints, so that a stop can come in between.
_SLOWER = """
import builtins, runpy, sys, time
real = print
def slower(*words, **more):
    real(*words, **more)
    time.sleep(0.15)
builtins.print = slower
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_the_example_is_importable_without_training() -> None:
    assert "main" in runpy.run_path(str(EXAMPLE))


# ---- callbacks: the shape of each framework, in place of the framework --------------------------


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:  # noqa: ANN401 - a fake module
    module = types.ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


class _Base:
    """The base class of a framework's callbacks."""


class _Lightning:
    """As much of a Lightning trainer as the callback touches, in its order of calls."""

    is_global_zero = True

    def __init__(self, callback: Any, max_epochs: int, done: int = 0) -> None:  # noqa: ANN401 - made at run time
        self.callback, self.max_epochs, self.current_epoch = callback, max_epochs, done
        self.should_stop = False
        self.saved: list[int] = []

    def save_checkpoint(self, path: str) -> None:
        self.saved.append(self.current_epoch)
        Path(path).write_text(str(self.current_epoch + 1))

    def fit(self, stop_at: int, stop_file: Path) -> None:
        while self.current_epoch < self.max_epochs and not self.should_stop:
            if self.current_epoch + 1 == stop_at:
                stop_file.touch()
            self.callback.on_train_epoch_end(self, None)
            self.current_epoch += 1
        self.callback.on_fit_end(self, None)


def test_the_callback_for_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(monkeypatch, "lightning", pytorch=None)
    _module(monkeypatch, "lightning.pytorch", Callback=_Base)
    callback = lightning_callback(_progress(tmp_path))
    assert callback.resume_path is None
    is_theirs: bool = isinstance(callback, _Base)
    assert is_theirs
    with pytest.raises(SystemExit) as end:
        _Lightning(callback, 5).fit(2, tmp_path / "stop")
    assert end.value.code == EXIT_STOPPED
    assert _epochs(tmp_path / "progress.jsonl") == [1, 2]
    (tmp_path / "stop").unlink()
    again = lightning_callback(_progress(tmp_path))
    assert Path(again.resume_path).read_text() == "2"
    _Lightning(again, 5, done=2).fit(0, tmp_path / "stop")
    assert _epochs(tmp_path / "progress.jsonl") == [1, 2, 3, 4, 5]
    assert _lines(tmp_path / "progress.jsonl")[-1]["ev"] == "done"


def test_a_stop_at_the_very_last_epoch_is_a_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _module(monkeypatch, "lightning", pytorch=None)
    _module(monkeypatch, "lightning.pytorch", Callback=_Base)
    callback = lightning_callback(_progress(tmp_path))
    _Lightning(callback, 3).fit(3, tmp_path / "stop")
    assert _lines(tmp_path / "progress.jsonl")[-1]["ev"] == "done"


def _hugging_face(callback: Any, epochs: int, stop_at: int, stop_file: Path) -> None:  # noqa: ANN401 - made at run time
    """Call the callback in the order of transformers' Trainer."""
    args = types.SimpleNamespace(num_train_epochs=float(epochs))
    state = types.SimpleNamespace(epoch=0.0, is_world_process_zero=True)
    control = types.SimpleNamespace(should_save=False, should_training_stop=False)
    for epoch in range(1, epochs + 1):
        state.epoch = epoch - 1e-9
        if epoch == stop_at:
            stop_file.touch()
        control = callback.on_epoch_end(args, state, control, model=None)
        if control.should_save:
            control.should_save = False
            control = callback.on_save(args, state, control, model=None)
        if control.should_training_stop:
            break
    callback.on_train_end(args, state, control, model=None)


def test_the_callback_for_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(monkeypatch, "transformers", TrainerCallback=_Base)
    with pytest.raises(SystemExit) as end:
        _hugging_face(transformers_callback(_progress(tmp_path)), 5, 2, tmp_path / "stop")
    assert end.value.code == EXIT_STOPPED
    assert _epochs(tmp_path / "progress.jsonl") == [1, 2]
    (tmp_path / "stop").unlink()
    _hugging_face(transformers_callback(_progress(tmp_path)), 3, 0, tmp_path / "stop")
    assert _lines(tmp_path / "progress.jsonl")[-1]["ev"] == "done"
    assert not has_checkpoint(str(tmp_path))
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "trainer_state.json").touch()
    assert has_checkpoint(str(tmp_path))


def test_the_callback_for_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(monkeypatch, "keras", callbacks=types.SimpleNamespace(Callback=_Base))

    def fit(first: int, epochs: int, stop_at: int) -> None:
        callback = keras_callback(_progress(tmp_path))
        callback.model = types.SimpleNamespace(stop_training=False)
        callback.params = {"epochs": epochs}
        for epoch in range(first, epochs):
            if epoch + 1 == stop_at:
                (tmp_path / "stop").touch()
            callback.on_epoch_end(epoch, {"loss": 1.0})
            if callback.model.stop_training:
                break
        callback.on_train_end()

    with pytest.raises(SystemExit) as end:
        fit(0, 4, 2)
    assert end.value.code == EXIT_STOPPED
    (tmp_path / "stop").unlink()
    fit(2, 4, 0)
    assert _epochs(tmp_path / "progress.jsonl") == [1, 2, 3, 4]


@pytest.mark.parametrize("make", [lightning_callback, transformers_callback, keras_callback])
def test_a_framework_that_is_not_there_is_named(make: Any, tmp_path: Path) -> None:  # noqa: ANN401 - one of three functions
    with pytest.raises(ModuleNotFoundError):
        make(_progress(tmp_path))


def test_importing_progress_takes_the_standard_library_only() -> None:
    script = "import sys, eaco_adapters.progress; print('attr' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "False\n"
