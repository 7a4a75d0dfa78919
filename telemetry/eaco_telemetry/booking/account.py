"""Energy by job, from measured samples and from who held which GPU when.

    report = account(recordings_of(samples), holds, EnergyOptions(rule="default"))

A recording is read twice: once for idle powers and utilisations, once to book. It is
never held in memory as a whole.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from eaco_core.errors import InputError
from eaco_telemetry.accounting import EnergyLedger
from eaco_telemetry.booking.held import (
    Recorded,
    job_times,
    notes_of_clocks,
    notes_of_gpus,
    notes_of_outside,
)
from eaco_telemetry.booking.node_book import NodeBook, Segment
from eaco_telemetry.booking.node_past import Given, NodePast
from eaco_telemetry.booking.report import (
    J_PER_KWH,
    Amount,
    EnergyReport,
    JobEnergy,
    NodeGrounds,
    total_of,
)
from eaco_telemetry.booking.rows import MOST_W
from eaco_telemetry.booking.rules import RULES, Rule
from eaco_telemetry.booking.times import show_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from attrs import Attribute

    from eaco_telemetry.booking.held import JobTime
    from eaco_telemetry.booking.holds import JobHold, Span
    from eaco_telemetry.booking.rows import NodeRecording
    from eaco_telemetry.booking.steps import Steps

_NS: Final = 1e9
_MOST_PAID: Final = 1e290
"""Far below the largest number, so that sums of what is paid stay numbers."""


def _power(_instance: object, attribute: Attribute[float | None], value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise InputError(f"{attribute.name} must be a number of at least 0, not {value!r}")
    if value is not None and value > MOST_W:
        raise InputError(f"{attribute.name} must be at most {MOST_W:g}, not {value!r}")


def _after(instance: EnergyOptions, _attribute: object, value: int | None) -> None:
    if value is not None and instance.from_ns is not None and value <= instance.from_ns:
        raise InputError(
            f"the window begins at {show_time(instance.from_ns)} and ends at {show_time(value)};"
            " its begin (--from) must be before its end (--to)"
        )


def _known_rule(_instance: object, _attribute: Attribute[Rule], value: Rule) -> None:
    if value not in RULES:
        raise InputError(f"the rule must be one of {', '.join(RULES)}, not {value!r}")


@frozen
class EnergyOptions:
    """How to account.

    `rule`: see `booking.rules`. `gpu_idle_w`, `server_idle_w`: idle power of each GPU and of
    the server part, if it is known better than from the recording. `server_w`: power of the
    server part where no sensor of the host was recorded. `max_gap_s`: how long power is
    believed without a counter (None: 30 s, or 3 periods if that is longer). `from_ns`,
    `to_ns`: the window that is accounted for. `tariff`: price of a kWh. `intensity`: grams
    of CO2 equivalent of a kWh.
    """

    rule: Rule = field(default="default", validator=_known_rule)
    gpu_idle_w: float | None = field(default=None, validator=_power)
    server_w: float | None = field(default=None, validator=_power)
    server_idle_w: float | None = field(default=None, validator=_power)
    max_gap_s: float | None = field(default=None, validator=_power)
    from_ns: int | None = None
    to_ns: int | None = field(default=None, validator=_after)
    tariff: Steps | None = None
    intensity: Steps | None = None


_DEFAULT: Final = EnergyOptions()


def account(
    recordings: Sequence[NodeRecording],
    holds: Iterable[JobHold],
    options: EnergyOptions = _DEFAULT,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> EnergyReport:
    """Book every joule of these nodes. `progress` is told (nodes done, nodes in all).

    Raises InputError when there is nothing recorded, and when no hold is of a recorded GPU.
    """
    return _Accountant(recordings, tuple(holds), options, progress).report()


@define
class _Book:
    """All nodes together: the ledger, and money and carbon beside it."""

    options: EnergyOptions
    ledger: EnergyLedger = field(factory=EnergyLedger)
    cost: dict[str, list[float]] = field(factory=dict[str, list[float]])
    co2_g: dict[str, list[float]] = field(factory=dict[str, list[float]])

    def take(self, segment: Segment) -> None:
        interval = segment.interval
        self.ledger.book(interval)
        amounts = {
            **{f"job {job_id}": joules for job_id, joules in interval.jobs_j.items()},
            "idle": interval.idle_j,
            "unattributed": interval.unattributed_j,
            "total": interval.node_j,
        }
        for steps, books in (
            (self.options.tariff, self.cost),
            (self.options.intensity, self.co2_g),
        ):
            if steps is not None:
                per_j = steps.at(segment.t0_ns) / J_PER_KWH
                for name, joules in amounts.items():
                    books.setdefault(name, []).append(joules * per_j)

    def amount(self, name: str, energy_j: float) -> Amount:
        options = self.options
        return Amount(
            energy_j,
            None if options.tariff is None else _sum(self.cost, name, "cost", "tariff"),
            None if options.intensity is None else _sum(self.co2_g, name, "CO2", "intensity"),
        )


def _sum(books: Mapping[str, list[float]], name: str, what: str, per_kwh: str) -> float:
    """Add up money or carbon, and refuse what no sum with others could be made of."""
    try:
        found = math.fsum(books.get(name, ()))
    except (OverflowError, ValueError):  # larger than any number; infinity less infinity
        found = math.inf
    if not abs(found) <= _MOST_PAID:
        raise InputError(
            f"the {what} ({name}) is above {_MOST_PAID:g}, which is too large to reckon with;"
            f" the {per_kwh} of a kWh must be smaller"
        )
    return found


class _Accountant:
    def __init__(
        self,
        recordings: Sequence[NodeRecording],
        holds: tuple[JobHold, ...],
        options: EnergyOptions,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._recordings = [one for one in recordings if one.sessions]
        if not self._recordings:
            raise InputError(
                "there is no sample in the recording, so there is nothing to account for"
            )
        self._holds = holds
        self._options = options
        self._progress = progress
        self._first_ns = min(s.first_ns for one in self._recordings for s in one.sessions)
        self._last_ns = max(s.last_ns for one in self._recordings for s in one.sessions)
        self._window = self._make_window()
        self._book = _Book(options)
        self._workload_of = _workloads(holds)
        prices = [one.times for one in (options.tariff, options.intensity) if one is not None]
        self._cuts_ns = {*self._window, *(time for times in prices for time in times)}
        self._covered_ns: dict[str, int] = {}
        self._active_j: dict[str, float] = {}
        self._notes: list[str] = []

    def _make_window(self) -> Span:
        options = self._options
        low = self._first_ns if options.from_ns is None else options.from_ns
        high = self._last_ns if options.to_ns is None else options.to_ns
        low, high = max(low, self._first_ns), min(high, self._last_ns)
        if low >= high:
            raise InputError(
                "nothing was recorded in the window of time that is asked for; the recording is"
                f" from {show_time(self._first_ns)} to {show_time(self._last_ns)}"
            )
        for name, steps in (("tariff", options.tariff), ("intensity", options.intensity)):
            if steps is not None and steps.first_ns > low:
                raise InputError(
                    f"the {name} begins after the time that is accounted for; put a line with"
                    " an earlier start before it, or narrow the window"
                )
        return low, high

    def report(self) -> EnergyReport:
        options = self._options
        recorded = Recorded(self._recordings)
        self._notes += notes_of_gpus(self._holds, recorded, self._window)
        asked = (options.from_ns, options.to_ns)
        times = list(job_times(self._holds, recorded, self._window, asked))
        self._notes += notes_of_clocks(self._recordings)
        self._notes += notes_of_outside(times, self._holds, self._window, options.to_ns)
        nodes: list[NodeGrounds] = []
        for number, recording in enumerate(self._recordings):
            nodes.append(self._book_node(recording))
            if self._progress is not None:
                self._progress(number + 1, len(self._recordings))
        parts = self._book.ledger.parts()
        jobs = tuple(sorted(self._jobs(times), key=lambda one: (-one.amount.energy_j, one.job_id)))
        amount = self._book.amount
        of_jobs = [job.amount for job in jobs]
        return EnergyReport(
            rule=options.rule,
            window=self._window,
            jobs=jobs,
            nodes=tuple(nodes),
            of_jobs=total_of(of_jobs) if of_jobs else amount("jobs", 0.0),
            idle=amount("idle", parts.idle_j),
            unattributed=amount("unattributed", parts.unattributed_j),
            total=amount("total", self._book.ledger.total_j()),
            active_j=self._active_j,
            simulated=any(node.simulated for node in nodes),
            notes=tuple(self._notes),
        )

    # ------------------------------------------------------------------ one node

    def _book_node(self, recording: NodeRecording) -> NodeGrounds:
        node = NodePast(
            recording,
            self._holds,
            workload_of=self._workload_of,
            cuts_ns=self._cuts_ns,
            given=Given(
                gpu_idle_w=self._options.gpu_idle_w,
                server_w=self._options.server_w,
                server_idle_w=self._options.server_idle_w,
                max_gap_s=self._options.max_gap_s,
            ),
        )
        book = NodeBook(
            node_id=recording.node_id,
            layout=node.layout,
            planner=node.planner(self._options.rule),
            idle_w={gpu_id: idle.watts for gpu_id, idle in node.gpu_idle.items()},
            server_idle_w=node.server_idle.watts,
            window=self._window,
            origin_ns=self._first_ns,
            cuts_ns=node.cuts_ns,
            book=self._book.take,
        )
        for steps in node.steps():
            book.take(steps)
        grounds = book.grounds
        for job_id, covered_ns in grounds.covered_ns.items():
            self._covered_ns[job_id] = self._covered_ns.get(job_id, 0) + covered_ns
        for source, joules in grounds.active_j.items():
            self._active_j[source] = self._active_j.get(source, 0.0) + joules
        low, high = max(self._window[0], node.first_ns), min(self._window[1], node.last_ns)
        length_ns = max(0, high - low)
        has_server = node.server.source != "none"
        gpus_ns = length_ns * len(node.layout)
        return NodeGrounds(
            node_id=recording.node_id,
            from_ns=low,
            to_ns=max(low, high),
            gpus=len(node.layout),
            energy_j=self._book.ledger.node_j(recording.node_id),
            gpu_j=grounds.gpus_j,
            server_j=grounds.server_j if has_server else None,
            gpu_covered_ratio=sum(grounds.gpu_ns.values()) / gpus_ns if gpus_ns else 0.0,
            server_covered_ratio=(
                grounds.server_ns / length_ns if has_server and length_ns else None
            ),
            server_source=node.server.source,
            gpu_idle=node.gpu_idle,
            server_idle=node.server_idle if has_server else None,
            bridged_s=node.tally.bridged_ns / _NS,
            rebases=node.tally.rebases,
            simulated=any(session.simulated for session in recording.sessions),
        )

    # ---------------------------------------------------------------------- jobs

    def _jobs(self, times: Iterable[JobTime]) -> Iterable[JobEnergy]:
        for job in times:
            energy_j = self._book.ledger.job_j(job.job_id)
            if not job.inside_ns and not energy_j:
                continue
            covered_ns = self._covered_ns.get(job.job_id, 0)
            yield JobEnergy(
                job_id=job.job_id,
                user=job.user,
                amount=self._book.amount(f"job {job.job_id}", energy_j),
                held_s=job.held_ns / _NS,
                gpu_s=job.gpu_ns / _NS,
                covered_ratio=covered_ns / job.gpu_ns if job.gpu_ns else None,
            )


def _workloads(holds: Iterable[JobHold]) -> dict[str, str]:
    """Name the workload of each job; a job that has none is one of its own."""
    found: dict[str, str] = {}
    for hold in holds:
        found[hold.job_id] = max(found.get(hold.job_id, ""), hold.workload or "")
    return {
        job_id: f"workload {name}" if name else f"job {job_id}" for job_id, name in found.items()
    }
