"""A callback for the Trainer of Hugging Face transformers: saves and reports at each epoch.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[transformers_callback()])
    trainer.train(resume_from_checkpoint=has_checkpoint(args.output_dir))

Let `output_dir` be `Progress.from_env().checkpoint_dir`, so that the next attempt finds it.
transformers is imported when `transformers_callback` is called.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from eaco_adapters.progress import Progress


class EpochEnd:
    """What the callback does. An epoch is reported once its checkpoint is written."""

    progress: Progress
    _epoch = 0
    _is_stopping = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ANN401 - the Trainer's own types
        """Ask for a checkpoint, and for the end if eaco wants it."""
        del args
        self._epoch = round(float(state.epoch or 0))
        control.should_save = True
        if self.progress.should_stop():
            self._is_stopping = True
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ANN401 - the Trainer's own types
        """Report the epoch whose checkpoint is written now."""
        del args
        if state.is_world_process_zero and self._epoch:
            self.progress.epoch_done(self._epoch)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ANN401 - the Trainer's own types
        """End the script if it was stopped; say that it is done if not."""
        if self._is_stopping and self._epoch < float(args.num_train_epochs):
            self.progress.exit_stopped()
        if state.is_world_process_zero:
            self.progress.finished()
        return control


def transformers_callback(progress: Progress | None = None) -> Any:  # noqa: ANN401 - a class made here
    """Make the callback. Raises ModuleNotFoundError when transformers is not installed."""
    base: Any = importlib.import_module("transformers").TrainerCallback
    made = type("EacoCallback", (EpochEnd, base), {})()
    made.progress = progress or Progress.from_env()
    return made


def has_checkpoint(output_dir: str) -> bool:
    """Tell whether the Trainer can go on from a checkpoint in this folder."""
    return any(Path(output_dir).glob("checkpoint-*/trainer_state.json"))
