"""A callback for Keras: reports epochs and stops when asked.

    backup = keras.callbacks.BackupAndRestore(folder, save_freq="epoch", delete_checkpoint=False)
    model.fit(x, y, epochs=50, callbacks=[backup, keras_callback()])

Give it last, so that the checkpoint of an epoch is written before the epoch is reported.
Keras is imported when `keras_callback` is called.
"""

from __future__ import annotations

import importlib
from typing import Any

from eaco_adapters.progress import Progress


class EpochEnd:
    """What the callback does. Keras sets `model` and `params`."""

    progress: Progress
    model: Any
    params: Any
    _epoch = 0
    _is_stopping = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401 - Keras' own types
        """Report the epoch, and hear whether to stop. Keras counts epochs from 0."""
        del logs
        self._epoch = int(epoch) + 1
        self.progress.epoch_done(self._epoch)
        if self.progress.should_stop():
            self._is_stopping = True
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ANN401 - Keras' own types
        """End the script if it was stopped; say that it is done if not."""
        del logs
        if self._is_stopping and self._epoch < int(self.params["epochs"]):
            self.progress.exit_stopped()
        self.progress.finished()


def keras_callback(progress: Progress | None = None) -> Any:  # noqa: ANN401 - a class made here
    """Make the callback. Raises ModuleNotFoundError when Keras is not installed."""
    base: Any = importlib.import_module("keras").callbacks.Callback
    made = type("EacoCallback", (EpochEnd, base), {})()
    made.progress = progress or Progress.from_env()
    return made
