"""The lines of `eaco top`: a block for each node, as wide as asked for and no wider.

A line is a rich `Text`, which never reads markup: a process called ``[red]`` is shown so.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field, frozen
from rich.text import Text

from eaco_adapters.cli import _top_cells as cells
from eaco_adapters.cli import _top_snapshot as known
from eaco_telemetry.samples import DeviceState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eaco_adapters.cli._top_snapshot import Snapshot
    from eaco_telemetry.samples import GpuSample, HostSample, ProcessSample
    from eaco_telemetry.subscriber.updates import NodeView

GAP: Final = 2
INDENT: Final = 2
LEAST_WIDTH: Final = 20
_HOT_RATIO: Final = 0.9
_BAD_WORDS: Final = frozenset({"lost", "stale", "alert"})


class Detail(enum.Enum):
    """How much is shown, the most first."""

    PROCESSES = "processes"
    GPUS = "GPUs"
    NODES = "nodes"


@frozen
class Column:
    """A column: `least` cells wide or not there, wider up to `most` if there is room.

    `rank`: columns of a high rank go first where there is no room.
    """

    key: str
    title: str
    rank: int
    least: int
    most: int
    right: bool = True


GPU_COLUMNS: Final = (
    Column("id", "GPU", 0, 10, 13, right=False),
    Column("name", "name", 5, 14, 26, right=False),
    Column("util", "util", 1, 4, 4),
    Column("sm", "SM act", 9, 6, 6),
    Column("mem", "mem GiB", 3, 9, 10),
    Column("watts", "W/limit", 2, 8, 9),
    Column("temp", "°C", 4, 4, 4),
    Column("energy", "energy", 6, 8, 9),
    Column("clock", "MHz", 8, 5, 5),
    Column("held", "held back by", 7, 12, 30, right=False),
    Column("jobs", "jobs", 7, 8, 30, right=False),
)
NODE_COLUMNS: Final = (
    Column("node", "node", 0, 10, 32, right=False),
    Column("state", "state", 1, 13, 24, right=False),
    Column("gpus", "GPUs", 4, 4, 5),
    Column("util", "util", 3, 4, 4),
    Column("mem", "mem GiB", 5, 9, 11),
    Column("watts", "GPUs W", 2, 7, 9),
    Column("node_w", "node W", 6, 7, 9),
    Column("energy", "energy", 7, 8, 9),
)
_Cell = tuple[str, str]  # text, style


def placed(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Choose the columns that fit into `width` cells, and share what is left among them."""
    chosen = list(columns)
    while len(chosen) > 1 and sum(c.least for c in chosen) + GAP * (len(chosen) - 1) > width:
        chosen.remove(max(chosen, key=lambda column: column.rank))
    widths = {column.key: column.least for column in chosen}
    left = width - sum(widths.values()) - GAP * (len(chosen) - 1)
    if left < 0:
        widths[chosen[0].key] = max(1, width)
    for column in sorted(chosen, key=lambda column: column.rank):
        more = min(max(0, left), column.most - column.least)
        widths[column.key] += more
        left -= more
    return [(column, widths[column.key]) for column in chosen]


def row(columns: Sequence[tuple[Column, int]], values: Mapping[str, _Cell], indent: int) -> Text:
    """Make one line of cells."""
    line = Text(" " * indent, no_wrap=True)
    for place, (column, width) in enumerate(columns):
        text, style = values.get(column.key, (cells.NOTHING, "dim"))
        line.append(" " * GAP if place else "")
        line.append(cells.fit(text, width, right=column.right), style or None)
    return line


def sentence(parts: Iterable[_Cell], width: int) -> Text:
    """Put parts on one line, the first ones first, as many as fit."""
    line = Text(no_wrap=True)
    for text, style in parts:
        space = "" if not line.plain else "  "
        room = width - line.cell_len - len(space)
        if room < 1 or (line.plain and Text(text).cell_len > room):
            continue
        line.append(space)
        line.append(cells.fit(text, min(room, Text(text).cell_len)), style or None)
    return line


@define
class Table:
    """Makes the lines for one moment and one width."""

    snapshot: Snapshot
    width: int
    detail: Detail
    _chosen: tuple[list[tuple[Column, int]], int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.width = max(self.width, LEAST_WIDTH)
        self._chosen = self._columns()

    def title(self, clock: str) -> Text:
        """Say what is shown: how many, how much, from where, when."""
        shot = self.snapshot
        current = shot.current
        nodes = f"{len(shot.nodes)} node{'' if len(shot.nodes) == 1 else 's'}"
        if len(current) != len(shot.nodes):
            nodes += f" ({len(current)} current)"
        counts = [count for node in shot.nodes if (count := known.gpu_count(node)) is not None]
        watts = cells.total(known.gpus_power_w(node) for node in current)
        number = sum(counts)
        parts: list[_Cell] = [("eaco top", "bold")]
        if shot.simulated:
            whole = self._all_simulated
            parts.append(("SIMULATED" if whole else "PARTLY SIMULATED", "bold magenta"))
        parts += [
            (nodes, ""),
            (f"{number} GPU{'' if number == 1 else 's'} {cells.power(watts)}", "bold"),
            (clock, ""),
            (cells.clean(shot.address or "local sensors"), "dim"),
        ]
        return sentence(parts, self.width)

    @property
    def _all_simulated(self) -> bool:
        return all(known.is_simulated(node) for node in self.snapshot.nodes)

    def heading(self) -> Text:
        """Give the titles of the columns."""
        columns, indent = self._chosen
        values = {column.key: (column.title, "dim") for column, _ in columns}
        return row(columns, values, indent)

    def blocks(self) -> list[list[Text]]:
        """Give the lines of each node, at least one."""
        if self.detail is Detail.NODES:
            return [[self._node_row(node)] for node in self.snapshot.nodes]
        return [self._block(node) for node in self.snapshot.nodes]

    def notes(self, *, whole: bool = False) -> list[Text]:
        """Give what else there is to say, a line each; `whole`: as many as it takes."""
        shot = self.snapshot
        lines: list[_Cell] = []
        if shot.problem is not None:
            lines.append((f"! {cells.clean(shot.problem)}", "bold red"))
        for (site, node_id), why in shot.silent.items():
            name = f"{site}/{node_id}" if site else node_id
            lines.append((f"- {cells.clean(name)}: {cells.clean(why)}", "yellow"))
        lines += [(f"- {cells.clean(text)}", "dim") for text in shot.notes]
        if not whole:
            return [sentence([line], self.width) for line in lines]
        return [
            Text(part, style, no_wrap=True)
            for text, style in lines
            for part in cells.wrapped(text, self.width)
        ]

    # ------------------------------------------------------------------ columns

    def _columns(self) -> tuple[list[tuple[Column, int]], int]:
        if self.detail is Detail.NODES:
            longest = max((len(known.full_name(node)) for node in self.snapshot.nodes), default=0)
            first, *rest = NODE_COLUMNS
            first = evolve(first, most=min(first.most, max(first.least, longest)))
            return placed([first, *rest], self.width), 0
        every = [gpu for node in self.snapshot.nodes for gpu in known.gpus(node)]
        unused: set[str] = set()
        if all(gpu.sm_active_ratio is None for gpu in every):
            unused.add("sm")
        if self.snapshot.jobs is None:
            unused.add("jobs")
        columns = [column for column in GPU_COLUMNS if column.key not in unused]
        return placed(columns, self.width - INDENT), INDENT

    # ------------------------------------------------------- one line for a node

    def _node_row(self, node: NodeView) -> Text:
        columns, indent = self._chosen
        current = known.is_current(node)
        gpus = known.gpus(node) if current else ()
        whole = known.whole_gpus(node) if current else ()
        utils = [gpu.util_ratio for gpu in gpus if gpu.util_ratio is not None]
        host = node.sample.host if current and node.sample is not None else None
        count = known.gpu_count(node)
        used = [gpu.mem_used_bytes for gpu in whole if gpu.mem_used_bytes is not None]
        sizes = [gpu.mem_total_bytes for gpu in whole if gpu.mem_total_bytes is not None]
        state = known.short_condition(node)
        if known.is_simulated(node) and not self._all_simulated:
            state = f"simulated, {state}"
        style = _style_of(node)
        values: dict[str, _Cell] = {
            "node": (cells.clean(known.full_name(node)), "bold" if current else ""),
            "state": (state, style),
            "gpus": (cells.NOTHING if count is None else str(count), ""),
            "util": (cells.percent(sum(utils) / len(utils) if utils else None), ""),
            "mem": (cells.gib(sum(used) if used else None, sum(sizes) if sizes else None), ""),
            "watts": (cells.watts(cells.total(gpu.power_w for gpu in gpus)), ""),
            "node_w": (cells.watts(None if host is None else host.node_power_w), ""),
            "energy": (cells.energy(cells.total(gpu.energy_j for gpu in gpus)), ""),
        }
        return row(columns, values, indent)

    # ----------------------------------------------------------- a block for a node

    def _block(self, node: NodeView) -> list[Text]:
        lines = [self._node_header(node)]
        gpus = known.gpus(node)
        shown = known.is_current(node) or node.word == "stale"
        ids = {gpu.gpu_id for gpu in gpus}
        parts = any(gpu.parent_id in ids for gpu in gpus)
        room = self._chosen[0][0][1] - (1 if parts else 0)
        short = cells.short_ids([gpu.gpu_id for gpu in gpus], room)
        listed = self.detail is Detail.PROCESSES and shown
        reasons = _reasons_for_no_processes(gpus) if listed else None
        for gpu in gpus:
            part = gpu.parent_id is not None and gpu.parent_id in ids
            lines.append(self._gpu_row(gpu, short[gpu.gpu_id], shown=shown, part=part, node=node))
            if listed and gpu.state is DeviceState.ACTIVE and reasons is None:
                lines += self._process_lines(gpu)
        if reasons is not None:
            lines.append(self._indented(f"processes {cells.NOTHING}  ({reasons})"))
        if known.is_current(node) and node.sample is not None:
            for name, problem in node.sample.problems.items():
                lines.append(self._indented(f"! {name}: {problem}", "yellow"))
        return lines

    def _node_header(self, node: NodeView) -> Text:
        parts: list[_Cell] = [
            (cells.clean(known.full_name(node)), "bold"),
            (known.condition(node), _style_of(node)),
        ]
        if known.is_simulated(node):
            parts.append(("simulated", "magenta"))
        if known.is_current(node) and node.sample is not None:
            watts = cells.power(known.gpus_power_w(node))
            parts.append((f"GPUs {watts}", "") if node.sample.gpus else ("no GPUs", "dim"))
            parts += _host_parts(node.sample.host)
        return sentence(parts, self.width)

    def _gpu_row(
        self, gpu: GpuSample, short: str, *, shown: bool, part: bool, node: NodeView
    ) -> Text:
        columns, indent = self._chosen
        name = cells.clean(gpu.name or "") or cells.NOTHING
        values: dict[str, _Cell] = {"id": (f"└{short}" if part else short, "")}
        values["name"] = (name, "")
        words = known.gpu_words(gpu)
        if words and shown:
            style = "bold red" if gpu.state is DeviceState.LOST else "cyan"
            first = [(column, width) for column, width in columns if column.key in {"id", "name"}]
            line = row(first, values, indent)
            room = self.width - line.cell_len - GAP
            if room > 0:
                line.append(" " * GAP)
                line.append(cells.fit(words, min(room, len(words))), style)
            return line
        if shown:
            old = node.word == "stale"
            for key, (text, style) in _values(gpu).items():
                values[key] = (text, "dim" if old else style)
            if self.snapshot.jobs is not None:
                jobs = self.snapshot.jobs.get(gpu.gpu_id, ())
                values["jobs"] = (" ".join(cells.clean(job) for job in jobs), "")
        return row(columns, values, indent)

    def _process_lines(self, gpu: GpuSample) -> list[Text]:
        if gpu.processes is None:
            why = gpu.missing.get("processes", "not told")
            return [self._indented(f"processes {cells.NOTHING}  ({why})")]
        if not gpu.processes:
            return []
        ordered = sorted(gpu.processes, key=_by_share)
        indent, room = INDENT + 2, self.width - INDENT - 2
        texts = [_process(one) for one in ordered]
        line = ""
        for place, text in enumerate(texts):
            left = len(texts) - place - 1
            more = f" · {left} more" if left else ""
            longer = f"{line} · {text}" if line else text
            if line and Text(longer + more).cell_len > room:
                line = f"{line} · {left + 1} more"
                break
            line = longer
        return [Text(" " * indent + cells.fit(line, room).rstrip(), "dim", no_wrap=True)]

    def _indented(self, text: str, style: str = "dim") -> Text:
        room = self.width - INDENT - 2
        shown = cells.fit(cells.clean(text), room).rstrip()
        return Text(" " * (INDENT + 2) + shown, style, no_wrap=True)


def _values(gpu: GpuSample) -> dict[str, _Cell]:
    held = [word for word in gpu.throttle or () if word != "idle"]
    busy = gpu.util_ratio is not None and gpu.util_ratio >= _HOT_RATIO
    near = (
        gpu.power_w is not None
        and bool(gpu.power_limit_w)
        and gpu.power_w >= _HOT_RATIO * (gpu.power_limit_w or 0)
    )
    held_text = cells.NOTHING if gpu.throttle is None else cells.clean(", ".join(held))
    return {
        "util": (cells.percent(gpu.util_ratio), "bold green" if busy else "green"),
        "sm": (cells.percent(gpu.sm_active_ratio), ""),
        "mem": (cells.gib(gpu.mem_used_bytes, gpu.mem_total_bytes), ""),
        "watts": (cells.watts(gpu.power_w, gpu.power_limit_w), "yellow" if near else ""),
        "temp": (cells.degrees(gpu.temperature_c), ""),
        "energy": (cells.energy(gpu.energy_j), ""),
        "clock": (cells.megahertz(gpu.clock_sm_hz), ""),
        "held": (held_text, "yellow"),
    }


def _style_of(node: NodeView) -> str:
    if node.word in _BAD_WORDS:
        return "bold red"
    return "green" if known.is_current(node) else "cyan"


def _host_parts(host: HostSample | None) -> list[_Cell]:
    """Write what is known of the host; the most telling first."""
    if host is None:
        return []
    parts: list[_Cell] = []
    if host.node_power_w is not None:
        parts.append((f"node {cells.power(host.node_power_w)}", "bold"))
    if host.cpu_util_ratio is not None:
        parts.append((f"CPU {cells.percent(host.cpu_util_ratio)}", ""))
    if host.package_power_w is not None:
        parts.append((f"CPU {cells.power(host.package_power_w)}", ""))
    total, free = host.mem_total_bytes, host.mem_available_bytes
    if total is not None and free is not None:
        parts.append((f"RAM {cells.gib(max(0, total - free), total)}G", ""))
    if host.temperature_c is not None:
        parts.append((f"{host.temperature_c:.0f} °C", ""))
    return parts


def _reasons_for_no_processes(gpus: Sequence[GpuSample]) -> str | None:
    """Give the one reason why no GPU here tells its processes; None if some do."""
    active = [gpu for gpu in gpus if gpu.state is DeviceState.ACTIVE]
    if not active or any(gpu.processes is not None for gpu in active):
        return None
    reasons = {gpu.missing.get("processes", "not told") for gpu in active}
    return reasons.pop() if len(reasons) == 1 else None


def _by_share(process: ProcessSample) -> tuple[float, int, int]:
    return (-(process.sm_ratio or 0.0), -(process.mem_used_bytes or 0), process.pid)


def _process(process: ProcessSample) -> str:
    name = cells.clean(process.name or "") or cells.NOTHING
    if len(name) > _PROCESS_NAME:
        name = cells.fit(name, _PROCESS_NAME)
    share = cells.percent(process.sm_ratio)
    return f"{process.pid} {name} SM {share} {cells.memory(process.mem_used_bytes)}"


_PROCESS_NAME: Final = 20
