"""The state of a machine as plain JSON data, and a machine as it was from such data.

`eaco.state/1` is `_forms.StateForm`. Reading trusts nothing: what contradicts itself,
or speaks of jobs and GPUs that are not there, is refused as a whole. It cannot find a
number that was changed into another possible one; a file of states needs a checksum.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from eaco_core._codec import Json, Malformed, codec_of, object_in, shown
from eaco_core._forms import (
    STATE_SCHEMA,
    STATE_VERSION,
    GpuForm,
    GpuRef,
    JobForm,
    NodeForm,
    ReservationForm,
    StateForm,
)
from eaco_core._nodes import mean_util
from eaco_core._records import GpuRecord, JobRecord, NodeRecord
from eaco_core.cluster import NodeSpec, NodeState
from eaco_core.errors import EacoError, InputError
from eaco_core.jobs import JobState
from eaco_core.states import HOLDING, MOVES
from eaco_core.view import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eaco_core._context import Context
    from eaco_core._windows import Windows

MIGRATIONS: Final[dict[int, Callable[[dict[str, Json]], dict[str, Json]]]] = {}
"""By version: what makes a state of that version one of the next."""

_TIMERS_OF_JOBS: Final = frozenset({"early", "kill", "lost"})
_TIMERS_OF_NODES: Final = frozenset({"sleep", "wake"})
_AS_THEY_ARE: Final = tuple(
    field.name
    for field in attrs.fields(JobForm)
    if field.name
    not in {"spec", "gpus", "recent_epochs_s", "tried", "checkpoint_nodes", "pinned_nodes"}
)


# ------------------------------------------------------------------- writing


def dump_state(c: Context, windows: Windows, seq: int) -> str:
    """Write the whole state as one line of JSON. The same state gives the same text."""

    def refer(gpu: GpuRecord) -> GpuRef:
        if c.ledger.gpus.get(gpu.spec.gpu_id) is gpu:
            return GpuRef(gpu.spec.gpu_id)
        return GpuRef(gpu.spec.gpu_id, gpu.spec, gpu.node.spec.node_id)

    held = c.view.reservation
    reservation = None
    if held is not None:
        gpus = tuple(map(refer, held.gpus))
        reservation = ReservationForm(
            held.job.spec.job_id, gpus, held.start_s, held.evidence_version
        )
    form = StateForm(
        schema=STATE_SCHEMA,
        policy=c.policy.name,
        rules=c.rules,
        term=c.term,
        seq=seq,
        now_s=c.now_s,
        pass_due=c.pass_due,
        changed_seq=c.ledger.changed_seq,
        free_seq=c.ledger.free_seq,
        jobs=tuple(map(_job_form, c.jobs.values())),
        nodes=tuple(map(_node_form, c.ledger.nodes.values())),
        queue=c.queue.dump(),
        timers=c.timers.dump(),
        windows=windows.dump(refer),
        reservation=reservation,
        evidence=c.evidence.dump(),
    )
    return codec_of(StateForm).encode(form)


def _job_form(job: JobRecord) -> JobForm:
    as_they_are: dict[str, Any] = {name: getattr(job, name) for name in _AS_THEY_ARE}
    return JobForm(
        spec=job.spec,
        gpus=tuple(gpu.spec.gpu_id for gpu in job.gpus),
        recent_epochs_s=tuple(job.recent_epochs_s),
        tried=tuple(sorted(job.tried)),
        checkpoint_nodes=_sorted(job.checkpoint_nodes),
        pinned_nodes=_sorted(job.pinned_nodes),
        **as_they_are,
    )


def _sorted(names: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(names))


def _node_form(node: NodeRecord) -> NodeForm:
    return NodeForm(
        spec=node.spec,
        state=node.state,
        gpus=tuple(_gpu_form(gpu) for pool in node.pools.values() for gpu in pool.gpus),
        awake_since_s=node.awake_since_s,
        idle_since_s=node.idle_since_s,
        wake_due_s=node.wake_due_s,
        drained=node.drained,
        reports=node.reports,
    )


def _gpu_form(gpu: GpuRecord) -> GpuForm:
    return GpuForm(
        gpu_id=gpu.spec.gpu_id,
        residents=tuple(job.spec.job_id for job in gpu.residents),
        up=gpu.up,
        changed_seq=gpu.changed_seq,
        readings=tuple(gpu.readings),
        evicted_epoch=gpu.evicted_epoch,
        host=gpu.host_key is not None,
    )


# ------------------------------------------------------------------- reading


def read_state(data: Json) -> StateForm:
    """Read what `dump_state` wrote, of this version or an older one. Raises InputError."""
    try:
        form: StateForm = codec_of(StateForm).decode(_of_this_version(object_in(data)))
    except Malformed as error:
        raise InputError(f"this state of a scheduler is wrong: {error}") from None
    return form


def _of_this_version(data: dict[str, Json]) -> dict[str, Json]:
    schema = data.get("schema")
    name, _, number = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if name != "eaco.state" or not (number.isascii() and number.isdigit()):
        raise Malformed(f'must have the schema "{STATE_SCHEMA}", not {shown(schema)}')
    version = int(number[:9])
    if version > STATE_VERSION:
        raise Malformed(
            f"is of the later version {shown(schema)}, and this eaco reads up to "
            f"{STATE_SCHEMA}. Use the newer eaco that wrote it"
        )
    while version < STATE_VERSION:
        migrate = MIGRATIONS.get(version)
        if migrate is None:
            raise Malformed(f"is of the version {shown(schema)}, which this eaco no longer reads")
        version += 1
        data = {**migrate(data), "schema": f"eaco.state/{version}"}
    return data


def fill(c: Context, windows: Windows, form: StateForm) -> None:
    """Bring a new machine's parts into this state. Raises InputError; they are then of no use."""
    try:
        _Filling(c, windows, form).run()
    except KeyError as error:
        raise InputError(
            f"this state of a scheduler is wrong: it speaks of {error.args[0]!r}, which it "
            "does not have"
        ) from None
    except InputError as error:
        raise InputError(f"this state of a scheduler is wrong: {error}") from None
    except (EacoError, ValueError) as error:
        raise InputError(f"this state of a scheduler contradicts itself: {error}") from None


class _Filling:
    """Puts one state into the parts of a new machine."""

    def __init__(self, c: Context, windows: Windows, form: StateForm) -> None:
        self._c = c
        self._windows = windows
        self._form = form

    def run(self) -> None:
        c, form = self._c, self._form
        c.now_s = c.view.now_s = form.now_s
        c.pass_due = form.pass_due
        c.evidence.load(form.evidence)
        for stored in form.jobs:
            self._add_job(stored)
        for node in form.nodes:
            self._add_node(node)
        for stored in form.jobs:
            self._book(stored)
        self._windows.load(form.windows, self._find)
        self._reserve()
        for node in form.nodes:
            self._index(node)
        c.ledger.changed_seq, c.ledger.free_seq = form.changed_seq, form.free_seq
        c.queue.load(form.queue, c.jobs)
        self._check_counts()
        self._check_timers()
        c.timers.load(form.timers)

    def _add_job(self, stored: JobForm) -> None:
        c, job_id = self._c, stored.spec.job_id
        if job_id in c.jobs:
            _refuse(f"job {job_id} is there twice")
        job = JobRecord(stored.spec, c.queue.kind_of(stored.spec))
        for name in _AS_THEY_ARE:
            setattr(job, name, getattr(stored, name))
        job.recent_epochs_s.extend(stored.recent_epochs_s)
        job.tried = set(stored.tried)
        job.checkpoint_nodes = _set_of(stored.checkpoint_nodes)
        job.pinned_nodes = _set_of(stored.pinned_nodes)
        self._check_job(job, len(stored.gpus))
        c.jobs[job_id] = job

    def _check_job(self, job: JobRecord, held: int) -> None:
        job_id, state, now_s = job.spec.job_id, job.state, self._form.now_s
        least = 1 if state is JobState.STOPPING else job.spec.gpus
        if not (least <= held <= job.spec.gpus if state in HOLDING else held == 0):
            _refuse(f"job {job_id} is {state.value} and holds {held} GPUs")
        if (state in HOLDING and not job.attempt) or (job.computing and state not in HOLDING):
            _refuse(f"job {job_id} is {state.value}, and was never placed or computes all the same")
        ends = MOVES[JobState.STOPPING]
        if job.then not in ends if state is JobState.STOPPING else job.then is not None:
            _refuse(f"job {job_id} is {state.value}, and where it goes then does not fit")
        if job.epochs_left is not None and job.epochs_left < 0:
            _refuse(f"job {job_id} has done more epochs than it has")
        times = (job.spec.submit_s, job.queued_since_s, job.clean_since_s)
        began = [t for t in (job.started_s, job.epoch_started_s) if t is not None]
        if max(*times, *began) > now_s:
            _refuse(f"job {job_id} knows of a time after {now_s} s, which is now")

    def _add_node(self, stored: NodeForm) -> None:
        c, node_id = self._c, stored.spec.node_id
        if node_id in c.ledger.nodes:
            _refuse(f"node {node_id} is there twice")
        if any(gpu.gpu_id in c.ledger.gpus for gpu in stored.spec.gpus):
            _refuse(f"a GPU of node {node_id} is there twice")
        node = c.ledger.add_node(stored.spec, stored.state, c.now_s)
        node.drained, node.reports = stored.drained, stored.reports
        node.awake_since_s, node.idle_since_s = stored.awake_since_s, stored.idle_since_s
        node.wake_due_s = stored.wake_due_s
        names = [gpu.spec.gpu_id for pool in node.pools.values() for gpu in pool.gpus]
        if names != [gpu.gpu_id for gpu in stored.gpus]:
            _refuse(f"the GPUs of node {node_id} are not those of its description")
        for form in stored.gpus:
            self._set_gpu(c.ledger.gpus[form.gpu_id], form)

    def _set_gpu(self, gpu: GpuRecord, stored: GpuForm) -> None:
        gpu.up = stored.up
        gpu.readings = deque(stored.readings)
        gpu.util_reading = mean_util(gpu.readings)
        gpu.evicted_epoch = stored.evicted_epoch
        gpu.residents = [self._c.jobs[name] for name in stored.residents]
        gpu.node.resident_count += len(gpu.residents)
        if gpu.residents and (not gpu.up or gpu.node.state is NodeState.OUT):
            _refuse(f"GPU {stored.gpu_id} is gone, and jobs are on it all the same")
        if any(reading.gpu_id != stored.gpu_id for reading in stored.readings):
            _refuse(f"GPU {stored.gpu_id} has readings of another one")

    def _book(self, stored: JobForm) -> None:
        job = self._c.jobs[stored.spec.job_id]
        job.gpus = [self._c.ledger.gpus[gpu_id] for gpu_id in stored.gpus]
        if len(set(stored.gpus)) != len(stored.gpus):
            _refuse(f"job {stored.spec.job_id} holds a GPU twice")
        if any(gpu.residents.count(job) != 1 for gpu in job.gpus):
            _refuse(f"job {stored.spec.job_id} holds a GPU that does not know of it")

    def _find(self, ref: GpuRef) -> GpuRecord:
        if ref.gone is None:
            return self._c.ledger.gpus[ref.gpu_id]
        if ref.gone.gpu_id != ref.gpu_id:
            _refuse(f"GPU {ref.gpu_id} is described as another one")
        spec = NodeSpec(ref.node_id, (ref.gone,))
        node = NodeRecord(spec, NodeState.OUT, self._c.now_s)
        return node.pools[ref.gone.gpu_type].gpus[0]

    def _reserve(self) -> None:
        c, stored = self._c, self._form.reservation
        if stored is None:
            return
        job = c.jobs[stored.job]
        if job.state is not JobState.QUEUED:
            _refuse(f"GPUs are held for job {stored.job}, which does not wait")
        gpus = tuple(self._find(ref) for ref in stored.gpus)
        for gpu in gpus:
            gpu.reserved_for = stored.job
        c.view.reservation = Reservation(job, gpus, stored.start_s, stored.evidence_version)

    def _index(self, stored: NodeForm) -> None:
        ledger = self._c.ledger
        ledger.refresh_node(ledger.nodes[stored.spec.node_id])
        for form in stored.gpus:
            gpu = ledger.gpus[form.gpu_id]
            if not form.host:
                ledger.leave_out(gpu)
            elif gpu.host_key is None:
                _refuse(f"nobody can join the jobs on GPU {form.gpu_id}, although it says so")
            gpu.changed_seq = form.changed_seq

    def _check_counts(self) -> None:
        form = self._form
        held = sum(len(job.gpus) for job in form.jobs)
        if held != sum(len(gpu.residents) for node in form.nodes for gpu in node.gpus):
            _refuse("a GPU has a job on it that does not hold it")
        seen = [gpu.changed_seq for node in form.nodes for gpu in node.gpus]
        seen += [cls.looked_seq for cls in form.queue.classes]
        if max([*seen, form.free_seq]) > form.changed_seq:
            _refuse("something was seen of the ledger that has not happened")

    def _check_timers(self) -> None:
        c, seen = self._c, set[tuple[str, str]]()
        for kind, name, _ in self._form.timers:
            known = (
                (kind in _TIMERS_OF_JOBS and name in c.jobs)
                or (kind in _TIMERS_OF_NODES and name in c.ledger.nodes)
                or (kind, name) == ("relook", "")
            )
            if not known or (kind, name) in seen:
                _refuse(f"there is no timer {kind!r} for {name!r}, or there are two")
            seen.add((kind, name))


def _set_of(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _refuse(sentence: str) -> NoReturn:
    raise InputError(sentence)


def as_data(text: str) -> dict[str, Json]:
    """Give what `dump_state` wrote as plain data."""
    data: dict[str, Json] = json.loads(text)
    return data
