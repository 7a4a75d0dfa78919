"""A callback for PyTorch Lightning: reports epochs, writes a checkpoint at each, stops when asked.

    callback = lightning_callback()
    trainer = Trainer(max_epochs=50, callbacks=[callback])
    trainer.fit(model, data, ckpt_path=callback.resume_path)

Lightning is imported when `lightning_callback` is called, as `lightning` or `pytorch_lightning`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from eaco_adapters.progress import Progress

# Without these names mypy and pyright could not check the file where Lightning is missing.
_MODULES = ("lightning.pytorch", "pytorch_lightning")


class EpochEnd:
    """What the callback does, whichever Lightning calls it."""

    progress: Progress
    _is_stopping = False

    @property
    def resume_path(self) -> str | None:
        """The checkpoint to go on from; None at the first attempt."""
        path = self._path()
        return str(path) if path is not None and path.exists() else None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's own types
        """Write the checkpoint, then report the epoch, then hear whether to stop."""
        del pl_module
        path = self._path()
        if path is not None:
            beside = path.with_suffix(".new")
            trainer.save_checkpoint(str(beside))  # every rank takes part
            if trainer.is_global_zero:
                beside.replace(path)
        if trainer.is_global_zero:
            self.progress.epoch_done(int(trainer.current_epoch) + 1)
        should_stop = self.progress.should_stop()
        decide = getattr(getattr(trainer, "strategy", None), "reduce_boolean_decision", None)
        if decide is not None:
            # All ranks stop at the same epoch, or those that go on would wait for the others.
            should_stop = bool(decide(should_stop, all=False))
        if should_stop:
            self._is_stopping = True
            trainer.should_stop = True

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's own types
        """End the script if it was stopped; say that it is done if not."""
        del pl_module
        if self._is_stopping and int(trainer.current_epoch) < (trainer.max_epochs or 1 << 60):
            self.progress.exit_stopped()
        if trainer.is_global_zero:
            self.progress.finished()

    def _path(self) -> Path | None:
        folder = self.progress.checkpoint_dir
        return None if folder is None else Path(folder) / "eaco.ckpt"


def lightning_callback(progress: Progress | None = None) -> Any:  # noqa: ANN401 - a class made here
    """Make the callback. Raises ModuleNotFoundError when no Lightning is installed."""
    base: Any = None
    for name in _MODULES:
        try:
            base = importlib.import_module(name).Callback
            break
        except ModuleNotFoundError:
            continue
    if base is None:
        raise ModuleNotFoundError("Lightning is not installed: pip install lightning")
    made = type("EacoCallback", (EpochEnd, base), {})()
    made.progress = progress or Progress.from_env()
    return made
