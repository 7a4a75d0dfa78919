"""Train something small and real, in pure Python, in a way that eaco can stop and resume.

A network with one hidden layer learns to tell two interleaved half moons apart. By itself it runs
to its end. Started by eaco it reports each epoch, writes a checkpoint, stops at an epoch end when
it is asked to, and goes on from there at its next attempt:

    eaco submit --gpus 1 --epochs 12 -- python examples/train_numpy_free.py

The lines with `progress` are all that eaco needs of a training script.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from eaco_adapters.progress import Progress

EPOCHS = 12
HIDDEN = 12
RATE = 0.05

Point = tuple[float, float, float]  # x, y, which moon


def half_moons(count: int, rng: random.Random) -> list[Point]:
    """Make points on two interleaved half circles, with some noise."""
    points: list[Point] = []
    for number in range(count):
        angle, moon = rng.uniform(0, math.pi), number % 2
        x, y = math.cos(angle), math.sin(angle)
        if moon:
            x, y = 1 - x, 0.5 - y
        points.append((x + rng.gauss(0, 0.1), y + rng.gauss(0, 0.1), float(moon)))
    return points


class Network:
    """Two inputs, `HIDDEN` units, one output; plain gradient descent, a point at a time."""

    def __init__(self, rng: random.Random) -> None:
        self.inner = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(HIDDEN)]
        self.outer = [rng.gauss(0, 0.3) for _ in range(HIDDEN + 1)]

    def forward(self, x: float, y: float) -> tuple[list[float], float]:
        """Give the hidden values and the probability of the second moon."""
        hidden = [math.tanh(a * x + b * y + c) for a, b, c in self.inner]
        total = self.outer[-1] + sum(w * h for w, h in zip(self.outer, hidden, strict=False))
        return hidden, 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))

    def learn(self, point: Point) -> float:
        """Take one step against the gradient; gives the loss before it."""
        x, y, moon = point
        hidden, guess = self.forward(x, y)
        error = guess - moon
        for number, value in enumerate(hidden):
            slope = error * self.outer[number] * (1 - value * value)
            self.outer[number] -= RATE * error * value
            unit = self.inner[number]
            unit[0] -= RATE * slope * x
            unit[1] -= RATE * slope * y
            unit[2] -= RATE * slope
        self.outer[-1] -= RATE * error
        return -math.log(max(1e-12, guess if moon else 1 - guess))


def load(network: Network, path: Path | None) -> int:
    """Read the checkpoint, if there is one; gives after how many epochs it was written."""
    if path is None or not path.exists():
        return 0
    data = json.loads(path.read_text(encoding="utf-8"))
    network.inner, network.outer = data["inner"], data["outer"]
    return int(data["epoch"])


def save(network: Network, path: Path | None, epoch: int) -> None:
    """Write the checkpoint beside the old one, and only then in its place."""
    if path is None:
        return
    data = {"epoch": epoch, "inner": network.inner, "outer": network.outer}
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(data), encoding="utf-8")
    beside.replace(path)


def main() -> None:
    """Train, from the checkpoint on if there is one."""
    progress = Progress.from_env()
    folder = progress.checkpoint_dir
    path = None if folder is None else Path(folder) / "moons.json"
    data = half_moons(400, random.Random(1))  # noqa: S311 - seeded data, not a secret
    network = Network(random.Random(2))  # noqa: S311 - a seeded start, not a secret
    for epoch in range(load(network, path) + 1, EPOCHS + 1):
        # The order depends on the epoch alone, so that a resumed run equals a whole one.
        order = random.Random(epoch).sample(data, len(data))  # noqa: S311 - a seeded order, not a secret
        loss = sum(network.learn(point) for point in order) / len(data)
        right = sum((network.forward(x, y)[1] > 0.5) == (moon > 0.5) for x, y, moon in data)  # noqa: PLR2004 - even chances
        print(f"epoch {epoch:2d}  loss {loss:.2f}  right {right / len(data):.0%}", flush=True)
        save(network, path, epoch)
        progress.epoch_done(epoch)
        if progress.should_stop() and epoch < EPOCHS:
            progress.exit_stopped()
    progress.finished()


if __name__ == "__main__":
    main()
