"""The part of a node around its GPUs: where its energy comes from, and what it was.

- A meter of the whole node: what it shows above the sum of the GPUs. Where it shows less,
  all parts of the node shrink by the same factor, so that the node is what the meter says.
  Where a GPU was not measured, the difference is no one's: unattributed.
- RAPL: the platform, else the processor packages and their memory. Fans, disks and the
  losses of the power supply are not in it.
- A constant power, if somebody says one and no sensor of the host was recorded.
- Else it is not measured, and only GPUs are accounted for.

One source counts for the whole recording of a node. Nothing is added where it is missing.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from attrs import define, frozen

from eaco_telemetry.booking.aligned import Column
from eaco_telemetry.booking.rows import Device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eaco_telemetry.booking.aligned import Grid
    from eaco_telemetry.booking.rows import SessionFacts

ServerSource: TypeAlias = Literal["meter", "platform", "package", "given", "none"]

_SENSORS: Final[tuple[tuple[ServerSource, str], ...]] = (
    ("meter", "node"),
    ("platform", "platform"),
    ("package", "package"),
)


@frozen
class Server:
    """Where the energy of the server part comes from. `watts`: of the source `given`."""

    source: ServerSource
    watts: float = 0.0


def choose_server(sessions: Iterable[SessionFacts], given_w: float | None) -> Server:
    """Choose the best source that was recorded for a node."""
    recorded = {
        device.name
        for session in sessions
        for device, facts in session.devices.items()
        if not device.is_gpu and (facts.counts or facts.has_power)
    }
    for source, sensor in _SENSORS:
        if sensor in recorded:
            return Server(source)
    return Server("none") if given_w is None else Server("given", given_w)


@define
class NodeSteps:
    """A node on the grid, all of it: joules of each step.

    `gpus`: in the order that was asked for; `measured`: the same before a meter that shows
    less than their sum made them smaller. `server_j` is None where it is not known at
    all. `rest_j`: above the sum of the parts, and of nobody. `node_j`: the whole.
    """

    edges_ns: list[int]
    lengths_s: list[float]
    gpus: list[Column]
    measured: list[Column]
    server_j: list[float] | None
    server_seen: bytearray
    rest_j: list[float] | None
    node_j: list[float]


def node_steps(grid: Grid, gpu_ids: Sequence[str], server: Server) -> NodeSteps:
    """Put GPUs and server of one node together."""
    steps = len(grid.edges_ns) - 1
    lengths_s = grid.lengths_s
    gpus = [_column(grid, Device(is_gpu=True, name=gpu_id), steps) for gpu_id in gpu_ids]
    gpus_j = _sums([gpu.joules for gpu in gpus], steps)
    if server.source == "none":
        return NodeSteps(grid.edges_ns, lengths_s, gpus, gpus, None, bytearray(steps), None, gpus_j)
    if server.source == "meter":
        meter = _column(grid, Device(is_gpu=False, name="node"), steps)
        return _metered(NodeSteps(
            grid.edges_ns, lengths_s, gpus, gpus, [0.0] * steps, meter.seen, [0.0] * steps, gpus_j
        ), meter)  # fmt: skip
    if server.source == "given":
        seen = bytearray(int(any(at)) for at in zip(*[gpu.seen for gpu in gpus], strict=True))
        server_j = [
            server.watts * length_s if here else 0.0
            for here, length_s in zip(seen, lengths_s, strict=True)
        ]
    else:
        measured = _column(grid, Device(is_gpu=False, name=server.source), steps)
        server_j, seen = measured.joules, measured.seen
        if server.source == "package":
            dram = _column(grid, Device(is_gpu=False, name="dram"), steps)
            # Memory alone, without its processor, is no server part.
            parts = zip(server_j, dram.joules, seen, strict=True)
            server_j = [joules + (more if here else 0.0) for joules, more, here in parts]
    node_j = list(map(add, gpus_j, server_j))
    return NodeSteps(grid.edges_ns, lengths_s, gpus, gpus, server_j, seen, None, node_j)


def _metered(node: NodeSteps, meter: Column) -> NodeSteps:
    """Take what a meter of the whole node says for true."""
    server_j, rest_j = node.server_j or [], node.rest_j or []
    gpus_j, node_j = node.node_j, list(node.node_j)
    complete = _all_seen([gpu.seen for gpu in node.gpus], len(node_j))
    scales: list[tuple[int, float]] = []
    for step, (whole_j, here) in enumerate(zip(meter.joules, meter.seen, strict=True)):
        if not here:
            continue
        node_j[step] = whole_j
        more_j = whole_j - gpus_j[step]
        if more_j < 0.0:
            scales.append((step, whole_j / gpus_j[step]))
        elif complete[step]:
            server_j[step] = more_j
        else:
            rest_j[step] = more_j
    gpus = [Column(list(g.joules), g.seen, g.util_ratio, g.processes) for g in node.gpus]
    for step, scale in scales:
        for gpu in gpus:
            gpu.joules[step] *= scale
    node.gpus, node.node_j = gpus, node_j
    return node


def _column(grid: Grid, device: Device, steps: int) -> Column:
    column = grid.columns.get(device)
    if column is None:
        column = Column()
        column.skip(steps)
    return column


def _sums(columns: Sequence[list[float]], steps: int) -> list[float]:
    if not columns:
        return [0.0] * steps
    return [sum(at) for at in zip(*columns, strict=True)]


def _all_seen(columns: Sequence[bytearray], steps: int) -> bytearray:
    if not columns:
        return bytearray(b"\x01" * steps)
    return bytearray(int(all(at)) for at in zip(*columns, strict=True))
