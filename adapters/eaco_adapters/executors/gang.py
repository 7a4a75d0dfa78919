"""One job on several nodes: the reports of its parts, told as those of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, evolve, field

from eaco_core import events as ev

if TYPE_CHECKING:
    from eaco_adapters.node import RunnerReport

End = ev.JobFinished | ev.JobStopped | ev.JobFailed


@define(eq=False)
class Gang:
    """The parts of one attempt. The first node's epochs are those of the job.

    JobStarted comes when all parts run; an end when it is clear what it is; GpusReleased when all
    parts are gone. `must_die`: a part failed, so the others have to be killed.
    """

    nodes: tuple[str, ...]
    must_die: bool = False
    _gpus: dict[str, tuple[str, ...]] = field(factory=dict[str, tuple[str, ...]])
    _ends: dict[str, End] = field(factory=dict[str, End])
    _over: set[str] = field(factory=set[str])
    _held: list[ev.JobEvent] = field(factory=list[ev.JobEvent])
    _refusal: ev.StartFailed | None = None
    _is_started: bool = False
    _is_ended: bool = False
    _is_unknown: bool = False
    is_over: bool = False

    def take(self, node_id: str, report: RunnerReport) -> list[ev.JobEvent]:
        """Take the report of one part; gives what it means for the job."""
        event = report.event
        out: list[ev.JobEvent] = []
        if self.is_over:
            return out
        if isinstance(event, ev.JobStarted):
            self._gpus[node_id] = event.gpus
            if len(self._gpus) == len(self.nodes) and not self._is_started:
                self._is_started = True
                out.append(evolve(event, gpus=self._all_gpus()))
                out += self._held
                self._held = []
        elif isinstance(event, ev.StartFailed):
            self._refusal = self._refusal or event
            self.must_die = True
            self._over.add(node_id)
        elif isinstance(event, ev.EpochCompleted):
            if node_id == self.nodes[0]:
                self._say(event, out)
        elif isinstance(event, ev.JobUnknown):
            if not self._is_unknown:
                self._is_unknown = True
                self._say(event, out)
        elif isinstance(event, ev.GpusReleased):
            self._over.add(node_id)
            self._gpus[node_id] = event.gpus
        else:
            self._ends[node_id] = event
        self._end(event, out)
        self._release(event, out)
        return out

    def _say(self, event: ev.JobEvent, out: list[ev.JobEvent]) -> None:
        """Tell it now, or after the JobStarted that is still to come."""
        (out if self._is_started else self._held).append(event)

    def _end(self, event: ev.JobEvent, out: list[ev.JobEvent]) -> None:
        if self._is_ended:
            return
        failed = [end for end in self._ends.values() if isinstance(end, ev.JobFailed)]
        if failed:
            self._is_ended = self.must_die = True
            self._say(failed[0], out)
        elif len(self._ends) == len(self.nodes):
            self._is_ended = True
            stops = [end for end in self._ends.values() if isinstance(end, ev.JobStopped)]
            if stops:
                epoch = min(stop.checkpoint_epoch for stop in stops)
                self._say(ev.JobStopped(0.0, event.job_id, event.attempt, epoch), out)
            else:
                self._say(ev.JobFinished(0.0, event.job_id, event.attempt), out)

    def _release(self, event: ev.JobEvent, out: list[ev.JobEvent]) -> None:
        if len(self._over) < len(self.nodes):
            return
        self.is_over = True
        if self._refusal is not None and not self._is_started:
            out.append(self._refusal)
        else:
            out.append(ev.GpusReleased(0.0, event.job_id, event.attempt, self._all_gpus()))

    def _all_gpus(self) -> tuple[str, ...]:
        return tuple(gpu for node in self.nodes for gpu in self._gpus.get(node, ()))
