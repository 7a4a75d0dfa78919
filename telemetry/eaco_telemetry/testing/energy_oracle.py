"""Energy accounting once more, as slowly and plainly as possible, in exact fractions.

Shares no code with `eaco_telemetry.booking`: its results are held against this. One node,
no MIG. Everything is looked at anew between any two times at which anything changes.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attrs import Factory, define

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eaco_telemetry.booking import EnergyOptions, JobHold
    from eaco_telemetry.samples import NodeSample

_NS = 10**9
_QUIET_W = Fraction(1, 10**6)


@define
class Truth:
    """Joules by job, idle, unattributed, and of the node."""

    jobs: dict[str, Fraction] = Factory(dict[str, Fraction])
    idle: Fraction = Fraction(0)
    unattributed: Fraction = Fraction(0)
    total: Fraction = Fraction(0)

    def pay(self, job_id: str, joules: Fraction) -> None:
        """Book on a job."""
        self.jobs[job_id] = self.jobs.get(job_id, Fraction(0)) + joules


@define
class _Piece:
    start: int
    end: int
    watts: Fraction
    util: float | None = None
    processes: tuple[Any, ...] | None = None


def true_energy(
    samples: Iterable[NodeSample], holds: Sequence[JobHold], options: EnergyOptions
) -> Truth:
    """Account for one node. Prices are not looked at."""
    return _Oracle(list(samples), holds, options).run()


class _Oracle:
    def __init__(
        self, samples: list[NodeSample], holds: Sequence[JobHold], options: EnergyOptions
    ) -> None:
        self.options = options
        self.pieces: dict[str, list[_Piece]] = {}
        sessions: dict[str, dict[int, NodeSample]] = {}
        for sample in samples:
            sessions.setdefault(sample.session_id, {})[sample.seq] = sample
        timed = [self._on_wall(list(some.values())) for some in sessions.values()]
        timed.sort(key=lambda one: (one[0][0], one[0][1].session_id))
        self.first = min(one[0][0] for one in timed)
        self.last = max(one[-1][0] for one in timed)
        sure_from = -(10**30)
        for one in timed:
            self._read(one, sure_from)
            sure_from = max(sure_from, one[-1][0])
        self.gpu_ids = sorted({gpu.gpu_id for s in samples for gpu in s.gpus})
        self.holds = [
            (h, h.start_ns, max(h.start_ns, self.last) if h.end_ns is None else h.end_ns)
            for h in holds
        ]
        edges = {self.first, self.last, options.from_ns, options.to_ns}
        edges |= {t for _, start, end in self.holds for t in (start, end)}
        edges |= {t for some in self.pieces.values() for p in some for t in (p.start, p.end)}
        self.edges = sorted(t for t in edges if t is not None and self.first <= t <= self.last)

    @staticmethod
    def _on_wall(samples: list[NodeSample]) -> list[tuple[int, NodeSample]]:
        offsets = sorted(one.wall_ns - one.monotonic_ns for one in samples)
        offset = offsets[(len(offsets) - 1) // 2]
        ordered = sorted(samples, key=lambda one: one.monotonic_ns)
        return [(one.monotonic_ns + offset, one) for one in ordered]

    def _read(self, timed: list[tuple[int, NodeSample]], sure_from: int) -> None:
        first, last = timed[0], timed[-1]
        ticks = max(1, max(s.seq for _, s in timed) - min(s.seq for _, s in timed))
        gap = max(30 * _NS, 3 * ((last[0] - first[0]) // ticks))
        if self.options.max_gap_s is not None:
            gap = round(self.options.max_gap_s * _NS)
        names = {gpu.gpu_id for _, s in timed for gpu in s.gpus}
        for name in names:
            rows = [(t, g) for t, s in timed for g in s.gpus if g.gpu_id == name]
            readings = [(t, g.energy_j, g.power_w, g.util_ratio, g.processes) for t, g in rows]
            self._add(f"gpu {name}", readings, gap, sure_from)
        for name in ("node", "platform", "package", "dram"):
            readings = [
                (
                    t,
                    getattr(s.host, f"{name}_energy_j"),
                    getattr(s.host, f"{name}_power_w"),
                    None,
                    None,
                )
                for t, s in timed
                if s.host is not None
            ]
            energies = [one for one in readings if one[1] is not None]
            if len(energies) > 1 or any(one[2] is not None for one in readings):
                self._add(name, readings, gap, sure_from)

    def _add(self, name: str, readings: list[Any], gap: int, sure_from: int) -> None:
        found = self.pieces.setdefault(name, [])
        counted = [one for one in readings if one[1] is not None]
        if len(counted) >= 2:
            if name == "node":  # a meter that stands still has not been updated
                kept = [counted[0]]
                for one in counted[1:]:
                    if one[1] != kept[-1][1] or one is counted[-1]:
                        kept.append(one)
                counted = kept
            for (t0, e0, *_), (t1, e1, power, util, processes) in pairwise(counted):
                watts = (Fraction(e1) - Fraction(e0)) * _NS / (t1 - t0)
                if watts < 0:
                    if power is None or t1 - t0 > gap:
                        continue
                    watts = Fraction(power)
                found.append(_Piece(max(t0, sure_from), t1, watts, util, processes))
        else:
            for (t0, *_), (t1, _, power, util, processes) in pairwise(readings):
                if power is not None and t1 - t0 <= gap:
                    found.append(_Piece(max(t0, sure_from), t1, Fraction(power), util, processes))
        found[:] = [p for p in found if p.start < p.end]

    # ------------------------------------------------------------------ looking up

    def at(self, name: str, time: int) -> _Piece | None:
        return next((p for p in self.pieces.get(name, []) if p.start <= time < p.end), None)

    def residents(self, gpu_id: str, time: int) -> list[str]:
        return sorted({h.job_id for h, a, b in self.holds if gpu_id in h.gpu_ids and a <= time < b})

    def pids(self, gpu_id: str, job_id: str) -> set[int] | None:
        own = [h for h, a, b in self.holds if h.job_id == job_id and gpu_id in h.gpu_ids and a < b]
        if any(h.pids is None for h in own):
            return None
        return {pid for h in own for pid in (h.pids or ())}

    def spans(self) -> Iterable[tuple[int, int]]:
        return pairwise(self.edges)

    def server(self, time: int) -> tuple[str, Fraction | None]:
        """Where the server part comes from, and its watts (of a meter: the node's)."""
        if "node" in self.pieces:
            piece = self.at("node", time)
            return "meter", None if piece is None else piece.watts
        for name in ("platform", "package"):
            if name in self.pieces:
                piece, dram = self.at(name, time), self.at("dram", time)
                if piece is None:
                    return name, None
                more = dram.watts if name == "package" and dram is not None else Fraction(0)
                return name, piece.watts + more
        if self.options.server_w is None:
            return "none", None
        seen = any(self.at(f"gpu {g}", time) for g in self.gpu_ids)
        return "given", Fraction(self.options.server_w) if seen else None

    # --------------------------------------------------------------------- idle

    @staticmethod
    def lowest_tenth(seen: list[tuple[Fraction, int]]) -> Fraction:
        """The power that is not exceeded in a tenth of the time, in steps of 0.1 W."""
        total, below = sum(length for _, length in seen), 0
        for watts, length in sorted((round(float(w) * 10 + 1e-6), n) for w, n in seen):
            below += length
            if 10 * below >= total:
                return Fraction(watts / 10)
        return Fraction(0)

    def gpu_idle(self, gpu_id: str) -> Fraction:
        if self.options.gpu_idle_w is not None:
            return Fraction(self.options.gpu_idle_w)
        seen: list[tuple[Fraction, int]] = []
        for a, b in self.spans():
            piece = self.at(f"gpu {gpu_id}", a)
            if piece is not None and not piece.processes and not self.residents(gpu_id, a):
                seen.append((piece.watts, b - a))
        return self.lowest_tenth(seen)

    def server_idle(self) -> Fraction:
        if self.server(self.first)[0] == "given":
            return Fraction(self.options.server_w or 0)
        if self.options.server_idle_w is not None:
            return Fraction(self.options.server_idle_w)
        seen: list[tuple[Fraction, int]] = []
        for a, b in self.spans():
            if any(self.residents(g, a) for g in self.gpu_ids):
                continue
            watts = self.server_part(a)[0]
            if watts is not None:
                seen.append((watts, b - a))
        return self.lowest_tenth(seen)

    def server_part(self, time: int) -> tuple[Fraction | None, Fraction, Fraction]:
        """Server part, what is nobody's, and the factor on the GPUs."""
        source, watts = self.server(time)
        if source != "meter":
            return watts, Fraction(0), Fraction(1)
        pieces = [self.at(f"gpu {g}", time) for g in self.gpu_ids]
        gpus = sum((p.watts for p in pieces if p is not None), Fraction(0))
        if watts is None:
            return None, Fraction(0), Fraction(1)
        if watts < gpus:
            return Fraction(0), Fraction(0), watts / gpus
        if None in pieces:
            return Fraction(0), watts - gpus, Fraction(1)
        return watts - gpus, Fraction(0), Fraction(1)

    def solo_util(self, workload: str) -> Fraction | None:
        busy, length = Fraction(0), 0
        for gpu_id in self.gpu_ids:
            for a, b in self.spans():
                here, piece = self.residents(gpu_id, a), self.at(f"gpu {gpu_id}", a)
                if [self.workload(job_id) for job_id in here] != [workload]:
                    continue
                if piece is not None and piece.util is not None:
                    busy += Fraction(piece.util) * (b - a)
                    length += b - a
        return busy / length if length else None

    def workload(self, job_id: str) -> str:
        return max(h.workload or "" for h, _, _ in self.holds if h.job_id == job_id) or job_id

    # -------------------------------------------------------------------- splits

    def by_time(self, gpu_id: str, time: int) -> dict[str, Fraction]:
        low = high = time
        moved = True
        spans = [(h.job_id, a, b) for h, a, b in self.holds if gpu_id in h.gpu_ids and a < b]
        while moved:
            before = low, high
            for _, a, b in spans:
                if a <= high and low <= b:
                    low, high = min(low, a), max(high, b)
            moved = (low, high) != before
        held: dict[str, int] = {}
        for job_id in {one for one, _, _ in spans}:
            marks = sorted({t for one, a, b in spans if one == job_id for t in (a, b)})
            for a, b in pairwise(marks):
                inside = any(one == job_id and s <= a < e for one, s, e in spans)
                if inside and low <= a and b <= high:
                    held[job_id] = held.get(job_id, 0) + b - a
        total = sum(held.values())
        return {job_id: Fraction(own, total) for job_id, own in held.items()}

    def split(
        self, gpu_id: str, time: int, piece: _Piece | None
    ) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        """Parts of base and active by job; what lacks to 1 is left."""
        here = self.residents(gpu_id, time)
        if self.options.rule == "time":
            parts = self.by_time(gpu_id, time)
            return parts, parts
        equal = {job_id: Fraction(1, len(here)) for job_id in here}
        active = equal
        if self.options.rule == "default" and len(here) > 1:
            utils = {job_id: self.solo_util(self.workload(job_id)) for job_id in here}
            known = [util for util in utils.values() if util is not None]
            if len(known) == len(here) and sum(known) > 0:
                active = {j: (u or Fraction(0)) / sum(known) for j, u in utils.items()}
        pids = {job_id: self.pids(gpu_id, job_id) for job_id in here}
        if piece is None or piece.processes is None or None in pids.values():
            return equal, active
        own = dict.fromkeys(here, Fraction(0))
        others = Fraction(0)
        stranger = unknown = False
        for process in piece.processes:
            owner = next((j for j in here if process.pid in (pids[j] or ())), None)
            if process.sm_ratio is None:
                unknown = True
                stranger |= owner is None
            elif owner is None:
                others += Fraction(process.sm_ratio)
                stranger |= process.sm_ratio > 0
            else:
                own[owner] += Fraction(process.sm_ratio)
        total = sum(own.values()) + others
        if self.options.rule != "equal" and not unknown and total > 0:
            active = {job_id: share / total for job_id, share in own.items()}
        elif stranger:
            active = {job_id: Fraction(1, len(here) + 1) for job_id in here}
        else:
            return equal, active
        return (active if self.options.rule == "sm" else equal), active

    # ---------------------------------------------------------------------- run

    def run(self) -> Truth:
        truth = Truth()
        gpu_idle = {gpu_id: self.gpu_idle(gpu_id) for gpu_id in self.gpu_ids}
        server_idle = self.server_idle()
        for a, b in self.spans():
            if self.options.from_ns is not None and a < self.options.from_ns:
                continue
            if self.options.to_ns is not None and b > self.options.to_ns:
                continue
            self._span(truth, a, Fraction(b - a, _NS), gpu_idle, server_idle)
        return truth

    def _span(
        self,
        truth: Truth,
        time: int,
        length: Fraction,
        gpu_idle: dict[str, Fraction],
        server_idle: Fraction,
    ) -> None:
        server, rest, factor = self.server_part(time)
        truth.unattributed += rest * length
        truth.total += rest * length
        actives: dict[str, Fraction] = {}
        held: dict[str, Fraction] = {}
        for gpu_id in self.gpu_ids:
            piece = self.at(f"gpu {gpu_id}", time)
            watts = Fraction(0) if piece is None else piece.watts * factor
            truth.total += watts * length
            base = min(watts, gpu_idle[gpu_id])
            here = self.residents(gpu_id, time)
            part = min(server or Fraction(0), server_idle) / len(self.gpu_ids)
            if not here:
                empty = piece is not None and piece.processes == ()
                truth.idle += (base + part + (watts - base if empty else 0)) * length
                truth.unattributed += Fraction(0) if empty else (watts - base) * length
                continue
            base_parts, active_parts = self.split(gpu_id, time, piece)
            for job_id, share in base_parts.items():
                truth.pay(job_id, (base + part) * share * length)
            truth.unattributed += (base + part) * (1 - sum(base_parts.values())) * length
            for job_id, share in active_parts.items():
                truth.pay(job_id, (watts - base) * share * length)
                actives[job_id] = actives.get(job_id, Fraction(0)) + (watts - base) * share
            truth.unattributed += (watts - base) * (1 - sum(active_parts.values())) * length
            weights = base_parts if self.options.rule == "time" else dict.fromkeys(here, 1)
            for job_id, weight in weights.items():
                held[job_id] = held.get(job_id, Fraction(0)) + weight
        if server is not None:
            self._dynamic(truth, max(Fraction(0), server - server_idle) * length, actives, held)
            truth.total += server * length
            if not self.gpu_ids:
                truth.idle += min(server, server_idle) * length

    @staticmethod
    def _dynamic(
        truth: Truth, joules: Fraction, actives: dict[str, Fraction], held: dict[str, Fraction]
    ) -> None:
        weights = actives if sum(actives.values()) > _QUIET_W else held
        total = sum(weights.values())
        if not total:
            truth.unattributed += joules
            return
        for job_id, weight in weights.items():
            truth.pay(job_id, joules * weight / total)
