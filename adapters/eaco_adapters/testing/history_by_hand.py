"""The history of another scheduler, written line by line for tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 2**30


class HistoryByHand:
    """Writes lines of `eaco.history/1`. Times in s after `start_s`; GPUs are called n0-g0."""

    def __init__(self, nodes: int = 1, gpus: int = 2, *, start_s: float = 0.0) -> None:
        head = {"schema": "eaco.history/1", "kind": "header", "policy": "backfill"}
        self.lines = [json.dumps({**head, "origin": "in-house 1"})]
        self._start_s = start_s
        for number in range(nodes):
            there = [
                {"gpu_id": f"n{number}-g{gpu}", "gpu_type": "a100", "mem_bytes": 40 * GIB}
                for gpu in range(gpus)
            ]
            self.event(0, "NodeJoined", node={"node_id": f"n{number}", "gpus": there})

    def event(
        self,
        t_s: float,
        kind: str,
        *,
        effects: Iterable[Any] = (),
        **fields: Any,  # noqa: ANN401 - any JSON
    ) -> None:
        """Write one event, with what was commanded because of it."""
        at_s = t_s + self._start_s
        step: dict[str, Any] = {
            "kind": "step",
            "seq": len(self.lines),
            "t_s": at_s,
            "event": {"type": kind, "t_s": at_s, **fields},
            "effects": list(effects),
        }
        self.lines.append(json.dumps(step))

    def submit(self, t_s: float, job_id: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON
        """Hand a job in; of one GPU, if nothing else is said."""
        job = {"job_id": job_id, "gpus": 1, "submit_s": t_s + self._start_s, **fields}
        self.event(t_s, "JobSubmitted", job=job)

    def start(self, t_s: float, job_id: str, gpus: list[str], *, attempt: int = 1) -> None:
        """Let a job start."""
        command: dict[str, Any] = {
            "type": "StartJob",
            "job_id": job_id,
            "attempt": attempt,
            "term": 1,
            "gpus": [[gpu.partition("-")[0], [gpu]] for gpu in gpus],
            "resume_epoch": 0,
        }
        self.event(t_s, "Tick", effects=[command])
        self.event(t_s, "JobStarted", job_id=job_id, attempt=attempt)

    def epoch(self, t_s: float, job_id: str, epoch: int, *, attempt: int = 1) -> None:
        """Let a job report an epoch."""
        self.event(t_s, "EpochCompleted", job_id=job_id, attempt=attempt, epoch=epoch)

    def end(
        self,
        t_s: float,
        job_id: str,
        gpus: list[str],
        *,
        how: str = "JobFinished",
        attempt: int = 1,
    ) -> None:
        """Let a job end and let go of its GPUs."""
        self.event(t_s, how, job_id=job_id, attempt=attempt)
        self.event(t_s, "GpusReleased", job_id=job_id, attempt=attempt, gpus=gpus)

    def run(self, t_s: float, job_id: str, gpus: list[str], epochs_s: list[float]) -> float:
        """Let a job run for these epochs, to its end; give when that is."""
        self.start(t_s, job_id, gpus)
        for number, length_s in enumerate(epochs_s, start=1):
            t_s += length_s
            self.epoch(t_s, job_id, number)
        self.end(t_s, job_id, gpus)
        return t_s

    def sample(self, t_s: float, gpu: str, util_ratio: float, **more: Any) -> None:  # noqa: ANN401 - any JSON
        """Measure one GPU."""
        reading = {"gpu_id": gpu, "received_s": t_s + self._start_s, "util_ratio": util_ratio}
        reading.update(more)
        self.event(t_s, "NodeSampled", node_id=gpu.partition("-")[0], readings=[reading])

    def text(self) -> str:
        """Give the whole file."""
        return "".join(f"{line}\n" for line in self.lines)
