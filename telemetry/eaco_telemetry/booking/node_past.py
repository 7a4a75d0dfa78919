"""What is known of a node before it is booked: its GPUs, their idle powers, its steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import frozen

from eaco_telemetry.booking.aligned import grids, parts_of
from eaco_telemetry.booking.holds import HoldTable
from eaco_telemetry.booking.idle import IdlePower, MeanUtils, PowerTimes
from eaco_telemetry.booking.rules import GpuLayout, Planner, Rule
from eaco_telemetry.booking.series import SeriesMaker, Tally
from eaco_telemetry.booking.server import NodeSteps, choose_server, node_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from eaco_telemetry.booking.holds import JobHold
    from eaco_telemetry.booking.rows import NodeRecording


@frozen
class Given:
    """What somebody knows better than the recording; None: nobody does."""

    gpu_idle_w: float | None = None
    server_w: float | None = None
    server_idle_w: float | None = None
    max_gap_s: float | None = None


def layout_of(recording: NodeRecording) -> tuple[GpuLayout, ...]:
    """Find the GPUs of a node that are measured, and their MIG instances.

    The part of an instance is its memory among that of all instances of its GPU; where the
    memory of one is not known, all parts are equal. An instance whose GPU was not recorded
    counts as a GPU.
    """
    memory: dict[str, int | None] = {}
    parents: dict[str, str] = {}
    for session in recording.sessions:
        for device, facts in session.devices.items():
            if not device.is_gpu:
                continue
            known = memory.get(device.name)
            here = facts.mem_total_bytes
            memory[device.name] = max(known or 0, here or 0) or None
            if facts.parent_id is not None:
                parents[device.name] = facts.parent_id
    instances: dict[str, list[str]] = {}
    for instance_id, parent_id in sorted(parents.items()):
        if parent_id in memory:
            instances.setdefault(parent_id, []).append(instance_id)
    inside = {one for some in instances.values() for one in some}
    return tuple(
        GpuLayout(gpu_id, _parts(instances.get(gpu_id, ()), memory))
        for gpu_id in sorted(memory)
        if gpu_id not in inside
    )


def _parts(
    instances: Iterable[str], memory: Mapping[str, int | None]
) -> tuple[tuple[str, float], ...]:
    sizes = [(instance_id, memory[instance_id]) for instance_id in instances]
    known = [size for _, size in sizes if size is not None]
    total = sum(known)
    if len(known) < len(sizes) or not total:
        return tuple((instance_id, 1.0 / len(sizes)) for instance_id, _ in sizes)
    return tuple((instance_id, (size or 0) / total) for instance_id, size in sizes)


class NodePast:
    """One node of a recording. Made from a first reading of it; `steps` reads it again.

    `cuts_ns`: times at which its steps must end, besides those of the holds.
    """

    def __init__(
        self,
        recording: NodeRecording,
        holds: tuple[JobHold, ...],
        *,
        workload_of: Mapping[str, str],
        cuts_ns: Iterable[int],
        given: Given,
    ) -> None:
        self._recording = recording
        self._given = given
        self._workload_of = workload_of
        self.first_ns = min(session.first_ns for session in recording.sessions)
        self.last_ns = max(session.last_ns for session in recording.sessions)
        self._holds = HoldTable(recording.node_id, holds, self.last_ns)
        self.layout = layout_of(recording)
        self.server = choose_server(recording.sessions, given.server_w)
        cuts = {*cuts_ns, *self._changes()}
        self.cuts_ns = sorted(time for time in cuts if self.first_ns < time < self.last_ns)
        self._utils = MeanUtils()
        self._gpu_times = {gpu.gpu_id: PowerTimes() for gpu in self.layout}
        self._server_times = PowerTimes()
        self._only: NodeSteps | None = None
        self.tally = Tally()
        """What happened while the intervals were made."""
        self._learn()
        self.gpu_idle = {
            gpu_id: times.idle(given.gpu_idle_w) for gpu_id, times in self._gpu_times.items()
        }
        """Idle power by GPU."""
        self.server_idle = self._idle_of_server()
        """Idle power of the server part."""

    def planner(self, rule: Rule) -> Planner:
        """Make the plans of this node by a rule."""
        return Planner(rule, self._holds, self._workload_of, self._utils.ratios())

    def steps(self) -> Iterator[NodeSteps]:
        """Read the node as steps that follow each other."""
        if self._only is not None:
            yield self._only
            return
        yield from self._read(SeriesMaker(self._recording.sessions, self._given.max_gap_s))

    def _read(self, maker: SeriesMaker) -> Iterator[NodeSteps]:
        gpu_ids = [gpu.gpu_id for gpu in self.layout]
        for grid in grids(self._recording, maker, self.cuts_ns):
            yield node_steps(grid, gpu_ids, self.server)

    def _changes(self) -> Iterator[int]:
        for gpu in self.layout:
            for hold_id in gpu.hold_ids:
                yield from self._holds.of(hold_id).times

    def _learn(self) -> None:
        maker = SeriesMaker(self._recording.sessions, self._given.max_gap_s, self.tally)
        for number, node in enumerate(self._read(maker)):
            self._only = None if number else node  # what fits in one piece is kept
            self._learn_from(node)

    def _learn_from(self, node: NodeSteps) -> None:
        edges = node.edges_ns
        for part in parts_of(edges, self.cuts_ns):
            steps = part.steps
            lengths = [b - a for a, b in pairwise(edges[part.edges])]
            held = False
            for number, gpu in enumerate(self.layout):
                residents = self._holds.of(*gpu.hold_ids).residents(edges[part.start])
                held |= bool(residents)
                if not residents:
                    self._learn_idle(node, number, steps, lengths)
                elif len(residents) == 1 and not gpu.instances:
                    self._utils.add(
                        self._workload_of[residents[0]],
                        node.gpus[number].util_ratio[steps],
                        node.lengths_s[steps],
                    )
            if not held and node.server_j is not None:
                seen = node.server_seen[steps]
                joules = [j for j, one in zip(node.server_j[steps], seen, strict=True) if one]
                long = [length for length, one in zip(lengths, seen, strict=True) if one]
                self._server_times.add(joules, long)

    def _learn_idle(
        self, node: NodeSteps, number: int, steps: slice[int, int, None], lengths: list[int]
    ) -> None:
        column = node.measured[number]
        chosen = [
            (joules, length)
            for joules, one, processes, length in zip(
                column.joules[steps],
                column.seen[steps],
                column.processes[steps],
                lengths,
                strict=True,
            )
            if one and not processes
        ]
        times = self._gpu_times[self.layout[number].gpu_id]
        times.add([joules for joules, _ in chosen], [length for _, length in chosen])

    def _idle_of_server(self) -> IdlePower:
        if self.server.source == "given":
            # A power that somebody says is what the server draws without work.
            return IdlePower(self.server.watts, "given")
        return self._server_times.idle(self._given.server_idle_w)
