"""A small program that really trains: logistic regression on made-up data, on the CPU.

Each epoch takes `--epoch-s` when it is alone, of which `--busy-ratio` is computing and the rest is
waiting for data, as a training that loads its batches does. The work of an epoch is a fixed number
of steps, measured in CPU time at the start, so beside others it takes longer, as on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

from eaco_adapters.progress import Progress

_FEATURES = 12
_ROWS = 200
_BATCHES = 10
_RATE = 0.05


class Model:
    """Logistic regression with plain lists; `step` is one pass of gradient descent over a row."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - made-up data
        truth = [chance.gauss(0, 1) for _ in range(_FEATURES)]
        self.rows: list[tuple[list[float], float]] = []
        for _ in range(_ROWS):
            row = [chance.gauss(0, 1) for _ in range(_FEATURES)]
            score = sum(a * b for a, b in zip(row, truth, strict=True))
            self.rows.append((row, 1.0 if score + chance.gauss(0, 0.5) > 0 else 0.0))
        self.weights = [0.0] * _FEATURES
        self._at = 0

    def step(self) -> None:
        """Learn from one row."""
        row, label = self.rows[self._at]
        self._at = (self._at + 1) % _ROWS
        error = _sigmoid(sum(a * b for a, b in zip(row, self.weights, strict=True))) - label
        self.weights = [w - _RATE * error * x for w, x in zip(self.weights, row, strict=True)]

    def loss(self) -> float:
        """Give the mean log loss over all rows."""
        total = 0.0
        for row, label in self.rows:
            guess = _sigmoid(sum(a * b for a, b in zip(row, self.weights, strict=True)))
            total -= math.log(max(1e-12, guess if label else 1 - guess))
        return total / _ROWS


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))


def _steps_per_cpu_s(model: Model) -> float:
    """Measure how many steps one CPU second makes; CPU time, so that neighbours do not count."""
    began_s, count = time.process_time(), 0
    while time.process_time() - began_s < 0.1:  # noqa: PLR2004 - long enough for a steady figure
        for _ in range(50):
            model.step()
        count += 50
    return count / (time.process_time() - began_s)


def _resume(model: Model, folder: str | None) -> Path | None:
    if folder is None:
        return None
    path = Path(folder) / "weights.json"
    if path.exists():
        model.weights = json.loads(path.read_text())
    return path


def main() -> None:
    """Train, report each epoch, stop when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--epoch-s", type=float, default=1.0)
    parser.add_argument("--busy-ratio", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    progress = Progress.from_env()
    model = Model(options.seed)
    speed = _steps_per_cpu_s(model)
    checkpoint = _resume(model, progress.checkpoint_dir)
    steps = int(speed * options.epoch_s * options.busy_ratio / _BATCHES)
    wait_s = options.epoch_s * (1 - options.busy_ratio) / _BATCHES
    for epoch in range(progress.resume_epoch, options.epochs):
        for _ in range(_BATCHES):
            for _ in range(steps):
                model.step()
            time.sleep(wait_s)
        if checkpoint is not None:
            beside = checkpoint.with_suffix(".new")
            beside.write_text(json.dumps(model.weights))
            beside.replace(checkpoint)
        print(f"epoch {epoch + 1}: loss {model.loss():.4f}", flush=True)  # noqa: T201 - its log
        progress.epoch_done(epoch + 1)
        if progress.should_stop() and epoch + 1 < options.epochs:
            progress.exit_stopped()
    progress.finished()


if __name__ == "__main__":
    main()
