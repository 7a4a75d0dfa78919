"""The booking of joules: every joule of a node, exactly once.

Power is taken as constant between two changes. `split_node_power` says who is
charged for the watts of one node at one time; `EnergyLedger` turns these watts into
joules. Simulator, live system and energy reports all use these two.

The rule of the split:
- GPU idle power: equally to the jobs that hold the GPU; without any it is idle.
- GPU active power: by the measured share of the SMs of each process; else by the
  utilisation that each job has alone; else equally; without any job: unattributed.
- Server idle power: an equal part per GPU of the node, which goes where the idle
  power of that GPU goes.
- Server dynamic power: by CPU time where measured, else as the GPU active power of
  the jobs here; if there is none, by GPUs held; without any job: unattributed.
- Asleep or waking: never a job's.

Where node power was measured, what it has above the sum of the parts is
unattributed, and if it is below the sum, all parts shrink by the same factor.

Invariant I30: jobs + idle + unattributed + sleep + wake = node, in every interval,
and none of them is negative.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from attrs import Factory, field, frozen
from attrs.validators import optional

from eaco_core.errors import InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from attrs import Attribute

TOLERANCE: Final = 1e-6
"""How far the sum of the parts may be from the node (I30): W or J, relative above 1."""


def _watts(instance: object, attribute: Attribute[float], value: float) -> None:
    if not 0 <= value < math.inf:
        name = f"{type(instance).__name__}.{attribute.name}"
        raise InputError(f"{name} must be a number of watts of at least 0, not {value!r}")


def _shares_of(gpu: GpuUse) -> tuple[float, ...]:
    return _active_shares(gpu.residents, gpu.sm_ratio, gpu.util_ratio)


@frozen
class GpuUse:
    """One GPU at one time: its power above and up to idle, and the jobs that hold it.

    `sm_ratio` and `util_ratio`, when given, are in the order of `residents`: the share
    of the SMs measured for each process, and the utilisation that each job has alone.
    A list with a None in it counts as not measured. `active_shares` follows from these:
    the part of the active power that each resident is charged for.
    """

    idle_w: float = field(validator=_watts)
    active_w: float = field(validator=_watts)
    residents: tuple[str, ...] = ()
    sm_ratio: tuple[float | None, ...] | None = None
    util_ratio: tuple[float | None, ...] | None = None
    # Made once: the same reading of a GPU is split again whenever its neighbours change.
    active_shares: tuple[float, ...] = field(
        init=False, eq=False, repr=False, default=Factory(_shares_of, takes_self=True)
    )


@frozen
class NodeUse:
    """One node at one time, awake. `cpu_s`: CPU time by job, None = not measured.

    `measured_w`: power of the whole node from a meter; None = the sum of the parts.
    """

    server_idle_w: float = field(validator=_watts)
    server_dynamic_w: float = field(validator=_watts)
    gpus: tuple[GpuUse, ...]
    cpu_s: Mapping[str, float] | None = None
    measured_w: float | None = field(default=None, validator=optional(_watts))


@frozen
class NodeShares:
    """Who is charged for the power of one node at one time, in watts."""

    node_w: float
    jobs_w: Mapping[str, float]
    idle_w: float = 0.0
    unattributed_w: float = 0.0
    sleep_w: float = 0.0
    wake_w: float = 0.0


@frozen
class EnergyParts:
    """Energy of one or many nodes by part, in joules."""

    jobs_j: float
    idle_j: float
    unattributed_j: float
    sleep_j: float
    wake_j: float

    @property
    def total_j(self) -> float:
        """The sum of the parts."""
        parts = (self.jobs_j, self.idle_j, self.unattributed_j, self.sleep_j, self.wake_j)
        return math.fsum(parts)


@frozen
class PowerParts:
    """Power of many nodes at one time by part, in watts."""

    jobs_w: float
    idle_w: float
    unattributed_w: float
    sleep_w: float
    wake_w: float


@frozen
class NodeInterval:
    """What one node used between two times, and who is charged for it."""

    t0_s: float
    t1_s: float
    node_id: str
    node_j: float
    jobs_j: Mapping[str, float]
    idle_j: float
    unattributed_j: float
    sleep_j: float
    wake_j: float


def asleep_shares(power_w: float) -> NodeShares:
    """Give the shares of a node that is asleep."""
    return NodeShares(power_w, {}, sleep_w=power_w)


def waking_shares(power_w: float) -> NodeShares:
    """Give the shares of a node that is waking up."""
    return NodeShares(power_w, {}, wake_w=power_w)


OFF: Final = NodeShares(0.0, {})
"""A node without power."""


def split_node_power(use: NodeUse) -> NodeShares:
    """Say who is charged for the power of a node that is awake (rule: see module)."""
    jobs_w, active_w, held, idle_w, unattributed_w = _split_gpus(use)
    dynamic_w = use.server_dynamic_w
    if dynamic_w > 0.0:
        weights = _positive_weights(use.cpu_s) or _positive_weights(active_w) or held
        total = math.fsum(weights.values())
        if total > 0.0:
            for job_id, weight in weights.items():
                jobs_w[job_id] = jobs_w.get(job_id, 0.0) + dynamic_w * (weight / total)
        else:
            unattributed_w += dynamic_w
    parts_w = math.fsum(
        (use.server_idle_w, dynamic_w, *(gpu.idle_w + gpu.active_w for gpu in use.gpus))
    )
    if use.measured_w is None:
        return NodeShares(parts_w, jobs_w, idle_w, unattributed_w)
    if use.measured_w >= parts_w:
        rest_w = use.measured_w - parts_w
        return NodeShares(use.measured_w, jobs_w, idle_w, unattributed_w + rest_w)
    scale = use.measured_w / parts_w
    scaled_w = {job_id: watts * scale for job_id, watts in jobs_w.items()}
    return NodeShares(use.measured_w, scaled_w, idle_w * scale, unattributed_w * scale)


def _split_gpus(
    use: NodeUse,
) -> tuple[dict[str, float], dict[str, float], dict[str, float], float, float]:
    jobs_w: dict[str, float] = {}
    active_w: dict[str, float] = {}
    held: dict[str, float] = {}
    idle_w = unattributed_w = 0.0
    server_w = use.server_idle_w / len(use.gpus) if use.gpus else 0.0
    if not use.gpus:
        idle_w = use.server_idle_w
    for gpu in use.gpus:
        base_w = gpu.idle_w + server_w
        residents = gpu.residents
        if not residents:
            idle_w += base_w
            unattributed_w += gpu.active_w
            continue
        base_w /= len(residents)
        for job_id, share in zip(residents, gpu.active_shares, strict=True):
            mine_w = gpu.active_w * share
            jobs_w[job_id] = jobs_w.get(job_id, 0.0) + base_w + mine_w
            active_w[job_id] = active_w.get(job_id, 0.0) + mine_w
            held[job_id] = held.get(job_id, 0.0) + 1.0
    return jobs_w, active_w, held, idle_w, unattributed_w


def _active_shares(
    residents: tuple[str, ...], *sources: tuple[float | None, ...] | None
) -> tuple[float, ...]:
    """Split by the first source that is measured for all, and is not all zero."""
    if len(residents) == 1:
        return (1.0,)
    for measured in sources:
        if not measured or len(measured) != len(residents):
            continue
        known = [value for value in measured if value is not None]
        if len(known) < len(measured) or not all(0 <= value < math.inf for value in known):
            continue
        largest = max(known)
        if largest > 0.0:
            # Against the largest first: the sum of subnormal numbers has no precision.
            scaled = [value / largest for value in known]
            total = math.fsum(scaled)
            return tuple([value / total for value in scaled])
    return tuple([1.0 / len(residents) for _ in residents])


def _positive_weights(weights: Mapping[str, float] | None) -> Mapping[str, float] | None:
    if not weights:
        return None
    largest = max(weights.values())
    if not 0.0 < largest < math.inf or min(weights.values()) < 0.0:
        return None
    return {job_id: weight / largest for job_id, weight in weights.items()}


def check_shares(node_id: str, shares: NodeShares) -> None:
    """Raise InternalError if these shares break invariant I30."""
    total_w = (
        sum(shares.jobs_w.values())
        + shares.idle_w
        + shares.unattributed_w
        + shares.sleep_w
        + shares.wake_w
    )
    lowest_w = min(shares.idle_w, shares.unattributed_w, shares.sleep_w, shares.wake_w)
    if shares.jobs_w:
        lowest_w = min(lowest_w, *shares.jobs_w.values())
    # Written so that a NaN fails too.
    if not (abs(total_w - shares.node_w) <= TOLERANCE * max(1.0, shares.node_w) and lowest_w >= 0):
        raise InternalError(
            f"the energy of node {node_id} is not booked exactly once (I30): the parts add up to"
            f" {total_w!r} W of {shares.node_w!r} W, the lowest is {lowest_w!r} W"
        )


def check_interval(interval: NodeInterval) -> None:
    """Raise InternalError if this interval breaks invariant I30."""
    length_s = interval.t1_s - interval.t0_s
    if not length_s > 0:
        raise InternalError(f"an interval of node {interval.node_id} ends before it begins")
    check_shares(
        interval.node_id,
        NodeShares(
            interval.node_j,
            interval.jobs_j,
            interval.idle_j,
            interval.unattributed_j,
            interval.sleep_j,
            interval.wake_j,
        ),
    )


class _Sum:
    """A sum that keeps what rounding loses (Neumaier), good to the last digits."""

    __slots__ = ("_lost", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._lost = 0.0

    def add(self, value: float) -> None:
        total = self._total
        new = total + value
        if abs(total) >= abs(value):
            self._lost += (total - new) + value
        else:
            self._lost += (value - new) + total
        self._total = new

    def value(self) -> float:
        return self._total + self._lost


class _NodeAccount:
    __slots__ = ("idle", "node", "shares", "sleep", "t_s", "to_jobs", "unattributed", "wake")

    def __init__(self, t_s: float) -> None:
        self.t_s = t_s
        self.shares = OFF
        self.to_jobs: list[tuple[_Sum, float]] = []
        self.node, self.idle, self.unattributed = _Sum(), _Sum(), _Sum()
        self.sleep, self.wake = _Sum(), _Sum()


class EnergyLedger:
    """Turns shares of power into joules, per job, per node and per part.

    Each node has its own time, which starts at `start_s` without power. Say what a
    node draws with `set_shares`, and that time has passed with `advance`; these two
    calls are all; `book` is for joules that were measured. `on_interval` gets every
    interval that was booked.
    """

    def __init__(
        self,
        *,
        start_s: float = 0.0,
        on_interval: Callable[[NodeInterval], None] | None = None,
    ) -> None:
        self._start_s = start_s
        self._nodes: dict[str, _NodeAccount] = {}
        self._jobs: dict[str, _Sum] = {}
        self._on_interval = on_interval

    def set_shares(self, node_id: str, shares: NodeShares) -> None:
        """From the present time of the node on it draws `shares`. Checks I30."""
        check_shares(node_id, shares)
        account = self._account(node_id)
        account.shares = shares
        jobs = self._jobs
        account.to_jobs = []
        for job_id, watts in shares.jobs_w.items():
            total = jobs.get(job_id)
            if total is None:
                total = jobs[job_id] = _Sum()
            account.to_jobs.append((total, watts))

    def advance(self, node_id: str, t_s: float) -> None:
        """Book what the node used until `t_s`."""
        account = self._account(node_id)
        length_s = t_s - account.t_s
        if not length_s > 0.0:
            if length_s == 0.0:
                return
            raise InternalError(
                f"the energy of node {node_id} is booked until {account.t_s!r} s already,"
                f" and cannot be booked until {t_s!r} s"
            )
        shares = account.shares
        account.node.add(shares.node_w * length_s)
        for total, watts in account.to_jobs:
            total.add(watts * length_s)
        if shares.idle_w:
            account.idle.add(shares.idle_w * length_s)
        if shares.unattributed_w:
            account.unattributed.add(shares.unattributed_w * length_s)
        if shares.sleep_w:
            account.sleep.add(shares.sleep_w * length_s)
        if shares.wake_w:
            account.wake.add(shares.wake_w * length_s)
        if self._on_interval is not None:
            self._on_interval(_interval(node_id, account.t_s, t_s, shares))
        account.t_s = t_s

    def book(self, interval: NodeInterval) -> None:
        """Book joules that were measured for an interval. Checks I30.

        For whoever knows energies instead of power. The time of the node goes on to the
        end of the interval; nothing is booked for a gap before it.
        """
        check_interval(interval)
        account = self._account(interval.node_id)
        if interval.t0_s < account.t_s:
            raise InternalError(
                f"the energy of node {interval.node_id} is booked until {account.t_s!r} s"
                f" already, and cannot be booked again from {interval.t0_s!r} s"
            )
        account.node.add(interval.node_j)
        for job_id, joules in interval.jobs_j.items():
            total = self._jobs.get(job_id)
            if total is None:
                total = self._jobs[job_id] = _Sum()
            total.add(joules)
        account.idle.add(interval.idle_j)
        account.unattributed.add(interval.unattributed_j)
        account.sleep.add(interval.sleep_j)
        account.wake.add(interval.wake_j)
        account.shares = OFF
        account.to_jobs = []
        account.t_s = interval.t1_s
        if self._on_interval is not None:
            self._on_interval(interval)

    def advance_all(self, t_s: float) -> None:
        """Book what all nodes used until `t_s`."""
        for node_id in self._nodes:
            self.advance(node_id, t_s)

    def job_j(self, job_id: str) -> float:
        """Give the energy booked on a job so far; 0 for one that never held a GPU."""
        total = self._jobs.get(job_id)
        return 0.0 if total is None else total.value()

    def node_j(self, node_id: str) -> float:
        """Give the energy that a node used so far, summed apart from its shares."""
        return self._account(node_id).node.value()

    def total_j(self) -> float:
        """Give the energy that all nodes used so far, summed apart from the shares."""
        return math.fsum(account.node.value() for account in self._nodes.values())

    def parts(self) -> EnergyParts:
        """Give the energy of all nodes so far by part."""
        accounts = self._nodes.values()
        return EnergyParts(
            jobs_j=math.fsum(total.value() for total in self._jobs.values()),
            idle_j=math.fsum(account.idle.value() for account in accounts),
            unattributed_j=math.fsum(account.unattributed.value() for account in accounts),
            sleep_j=math.fsum(account.sleep.value() for account in accounts),
            wake_j=math.fsum(account.wake.value() for account in accounts),
        )

    def power(self) -> PowerParts:
        """Give what all nodes draw now, by part."""
        shares = [account.shares for account in self._nodes.values()]
        return PowerParts(
            jobs_w=math.fsum(watts for one in shares for watts in one.jobs_w.values()),
            idle_w=math.fsum(one.idle_w for one in shares),
            unattributed_w=math.fsum(one.unattributed_w for one in shares),
            sleep_w=math.fsum(one.sleep_w for one in shares),
            wake_w=math.fsum(one.wake_w for one in shares),
        )

    def _account(self, node_id: str) -> _NodeAccount:
        account = self._nodes.get(node_id)
        if account is None:
            account = self._nodes[node_id] = _NodeAccount(self._start_s)
        return account


def _interval(node_id: str, t0_s: float, t1_s: float, shares: NodeShares) -> NodeInterval:
    length_s = t1_s - t0_s
    return NodeInterval(
        t0_s=t0_s,
        t1_s=t1_s,
        node_id=node_id,
        node_j=shares.node_w * length_s,
        jobs_j={job_id: watts * length_s for job_id, watts in shares.jobs_w.items()},
        idle_j=shares.idle_w * length_s,
        unattributed_j=shares.unattributed_w * length_s,
        sleep_j=shares.sleep_w * length_s,
        wake_j=shares.wake_w * length_s,
    )
