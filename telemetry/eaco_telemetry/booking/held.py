"""What jobs held, beside what was recorded: for how long, where, and what does not fit.

A job is asked for over its whole time (in the window that somebody asks for), not only over
the part of it that was recorded: what is missing must show.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Final

from attrs import Factory, define, frozen

from eaco_core.errors import InputError
from eaco_telemetry.booking.holds import Span, merged_length
from eaco_telemetry.booking.times import show_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eaco_telemetry.booking.holds import JobHold
    from eaco_telemetry.booking.rows import NodeRecording

_NAMED: Final = 3
_NS: Final = 1e9
_S_PER_H: Final = 3600
_STEP_NS: Final = 2_000_000_000
_LEAST_NS: Final = 50_000_000
"""What is less is 0.0 s."""


@frozen
class JobTime:
    """When a job held GPUs, in nanoseconds, within the time that is asked for.

    `held_ns`: any GPU; `gpu_ns`: the sum over its GPUs; `inside_ns`: of `held_ns` what lies in
    the recording.
    """

    job_id: str
    user: str
    held_ns: int
    gpu_ns: int
    inside_ns: int


@define
class _Spans:
    user: str = ""
    by_gpu: dict[tuple[str, str], list[Span]] = Factory(dict[tuple[str, str], list[Span]])


class Recorded:
    """Which node recorded which GPU, and when."""

    def __init__(self, recordings: Sequence[NodeRecording]) -> None:
        self.nodes = sorted(one.node_id for one in recordings)
        self._spans: dict[str, dict[str, list[Span]]] = {}
        for recording in recordings:
            for session in recording.sessions:
                for device, facts in session.devices.items():
                    if device.is_gpu:
                        own = self._spans.setdefault(device.name, {})
                        spans = own.setdefault(recording.node_id, [])
                        # A MIG instance is measured with its GPU, also where it says nothing.
                        if facts.counts or facts.has_power or facts.parent_id is not None:
                            spans.append((session.first_ns, facts.last_ns))

    @property
    def gpu_ids(self) -> set[str]:
        """All GPUs."""
        return set(self._spans)

    def has(self, gpu_id: str, node_id: str) -> bool:
        """Tell whether this node recorded this GPU."""
        return node_id in self._spans.get(gpu_id, {})

    def home(self, hold: JobHold, gpu_id: str) -> str:
        """Name the node of a GPU that is held; empty where it is not known or not one."""
        if hold.node_id is not None:
            return hold.node_id
        found = self._spans.get(gpu_id, {})
        return next(iter(found)) if len(found) == 1 else ""

    def twice(self, window: Span) -> dict[str, list[tuple[str, str, Span]]]:
        """Give the GPUs that two nodes recorded at the same time, with the nodes and the time."""
        found: dict[str, list[tuple[str, str, Span]]] = {}
        for gpu_id, by_node in sorted(self._spans.items()):
            for (one, spans), (other, others) in combinations(sorted(by_node.items()), 2):
                for span in spans:
                    for another in others:
                        low = max(span[0], another[0], window[0])
                        high = min(span[1], another[1], window[1])
                        if low < high:
                            found.setdefault(gpu_id, []).append((one, other, (low, high)))
        return found


def job_times(
    holds: Sequence[JobHold], recorded: Recorded, window: Span, asked: tuple[int | None, int | None]
) -> Iterator[JobTime]:
    """Give the time of each job. `window`: what is recorded of what is `asked` for."""
    jobs: dict[str, _Spans] = {}
    for hold in holds:
        job = jobs.setdefault(hold.job_id, _Spans())
        job.user = max(job.user, hold.user)
        end = max(hold.start_ns, window[1]) if hold.end_ns is None else hold.end_ns
        for gpu_id in hold.gpu_ids:
            key = (recorded.home(hold, gpu_id), gpu_id)
            job.by_gpu.setdefault(key, []).append((hold.start_ns, end))
    for job_id, job in jobs.items():
        together = [span for some in job.by_gpu.values() for span in some]
        low = min(start for start, _ in together) if asked[0] is None else asked[0]
        high = max(end for _, end in together) if asked[1] is None else asked[1]
        yield JobTime(
            job_id,
            job.user,
            held_ns=merged_length(together, (low, high)),
            gpu_ns=sum(merged_length(some, (low, high)) for some in job.by_gpu.values()),
            inside_ns=merged_length(together, window),
        )


def notes_of_outside(
    times: Sequence[JobTime], holds: Sequence[JobHold], window: Span, to_ns: int | None
) -> list[str]:
    """Tell of jobs that held GPUs while nothing was recorded, before `to_ns`."""
    open_after = {
        one.job_id
        for one in holds
        if one.end_ns is None
        and one.start_ns >= window[1]
        and (to_ns is None or one.start_ns < to_ns)
    }
    wholly = [
        one for one in times if not one.inside_ns and (one.held_ns or one.job_id in open_after)
    ]
    partly = [one for one in times if 0 < one.inside_ns < one.held_ns]
    notes: list[str] = []
    if wholly and not any(one.inside_ns for one in times):
        low = min(hold.start_ns for hold in holds)
        ends = [hold.start_ns if hold.end_ns is None else hold.end_ns for hold in holds]
        notes.append(
            f"No job held a GPU during the recording: it is from {show_time(window[0])} to"
            f" {show_time(window[1])}, and the jobs are from {show_time(low)} to"
            f" {show_time(max(ends))}"
        )
    if wholly:
        notes.append(
            f"{_jobs(len(wholly))} held GPUs only outside of the recording:"
            f" {_named(one.job_id for one in wholly)}"
        )
    if partly:
        outside_s = sum(one.held_ns - one.inside_ns for one in partly) / _NS
        notes.append(
            f"{_jobs(len(partly))} held GPUs also outside of the recording, for"
            f" {_duration(outside_s)} of which nothing is known:"
            f" {_named(one.job_id for one in partly)}"
        )
    return notes


def notes_of_gpus(holds: Sequence[JobHold], recorded: Recorded, window: Span) -> list[str]:
    """Tell of GPUs and nodes that jobs name and nobody recorded, or two nodes did.

    Raises InputError where none was recorded, and where one was recorded twice at once and a
    hold does not say on which node it is.
    """
    held = {gpu_id for hold in holds for gpu_id in hold.gpu_ids}
    unknown = sorted(held - recorded.gpu_ids)
    if held and not held & recorded.gpu_ids:
        raise InputError(
            f"no GPU of these jobs is in the recording: it has"
            f" {', '.join(sorted(recorded.gpu_ids)[:_NAMED]) or 'no GPU'}, and not"
            f" {unknown[0]}. GPUs go by their id (`nvidia-smi -L`), never by a number:"
            " numbers differ from job to job"
        )
    notes: list[str] = []
    if unknown:
        notes.append(
            "GPUs that jobs held and that are not in the recording:"
            f" {len(unknown)} ({_named(unknown)}); of their energy nothing is known"
        )
    named = {hold.node_id for hold in holds if hold.node_id is not None}
    nowhere = sorted(named - set(recorded.nodes))
    if nowhere:
        notes.append(
            "Nodes that jobs name and that are not in the recording:"
            f" {len(nowhere)} ({_named(nowhere)}); it has {_named(recorded.nodes)}"
        )
    elsewhere = sorted(
        {
            f"{gpu_id} on {hold.node_id}"
            for hold in holds
            if hold.node_id in recorded.nodes
            for gpu_id in hold.gpu_ids
            if gpu_id in recorded.gpu_ids and not recorded.has(gpu_id, hold.node_id)
        }
    )
    if elsewhere:
        notes.append(
            "GPUs that jobs held on a node that did not record them:"
            f" {len(elsewhere)} ({_named(elsewhere)}); of their energy nothing is known"
        )
    return notes + _notes_of_twice(holds, recorded, window)


def _notes_of_twice(holds: Sequence[JobHold], recorded: Recorded, window: Span) -> list[str]:
    twice = recorded.twice(window)
    for hold in holds:
        end = window[1] if hold.end_ns is None else hold.end_ns
        for gpu_id in hold.gpu_ids if hold.node_id is None else ():
            for one, other, (low, high) in twice.get(gpu_id, ()):
                if hold.start_ns < high and low < end:
                    raise InputError(
                        f"{gpu_id} was recorded on two nodes at the same time ({one} and"
                        f" {other}), so job {hold.job_id} would pay for it twice; say in a"
                        " column `node` of the jobs which it was, or leave out a recording"
                    )
    if not twice:
        return []
    places = [f"{gpu_id} on {found[0][0]} and {found[0][1]}" for gpu_id, found in twice.items()]
    note = (
        "GPUs that were recorded on two nodes at the same time:"
        f" {len(twice)} ({_named(places)}); if they are the same, the total has them twice"
    )
    return [note]


def notes_of_clocks(recordings: Iterable[NodeRecording]) -> list[str]:
    """Tell of wall clocks that were set while a session was recorded.

    Holds are wall times, so an hour of a wrong clock is an hour of a wrong job. A clock that
    drifts slowly is not told: each step is looked at, not their sum.
    """
    notes: list[str] = []
    for recording in recordings:
        for session in recording.sessions:
            clock = session.clock
            if abs(clock.step_ns) > _STEP_NS:
                notes.append(
                    f"{recording.node_id}, session {session.session_id}: its wall clock stepped by"
                    f" {_seconds(clock.step_ns)} s during the recording; all times are by its"
                    " monotonic clock and one offset, the median, which is"
                    f" {_seconds(clock.used_ns - clock.begin_ns)} s from the wall clock at the"
                    f" begin and {_seconds(clock.used_ns - clock.end_ns)} s from that at the end"
                )
    return notes


def _seconds(time_ns: int) -> str:
    return f"{time_ns / _NS:+,.1f}" if abs(time_ns) >= _LEAST_NS else "0"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _named(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:_NAMED]) + (", ..." if found[_NAMED:] else "")


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < _S_PER_H else f"{seconds / _S_PER_H:,.2f} h"
