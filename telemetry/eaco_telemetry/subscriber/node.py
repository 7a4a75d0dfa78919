"""One node as a subscriber knows it: its session, and what of each message counts.

A session is one start of the sender. Which one is current is decided by what comes live; what
the broker had retained fills in as long as nothing better is known. A session that was
replaced by a live one is over: what comes of it later is counted and changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from attrs import define, field

from eaco_telemetry.meta import NodeCondition
from eaco_telemetry.subscriber.foreign import ForeignWatch
from eaco_telemetry.subscriber.sequence import EventsSeen, SampleOrder
from eaco_telemetry.subscriber.stats import WindowStats
from eaco_telemetry.subscriber.updates import NodeView
from eaco_telemetry.wire import SampleDecoder

if TYPE_CHECKING:
    from eaco_telemetry.meta import NodeMeta, NodeState
    from eaco_telemetry.samples import NodeSample

_OVER: Final = 16
_EVENT_SESSIONS: Final = 4
_RATE_SAMPLES: Final = 16
_LEAVING: Final = frozenset({NodeCondition.LOST, NodeCondition.DISCONNECTED})


def _times() -> deque[float]:
    return deque(maxlen=_RATE_SAMPLES)


@define(eq=False)
class Session:
    """What is known of one session. `live`: something of it came that was not retained."""

    session_id: str
    live: bool = False
    meta: NodeMeta | None = None
    state: NodeState | None = None
    meta_bytes: int = 0
    order: SampleOrder = field(factory=SampleOrder)

    @property
    def wall_ns(self) -> int:
        """The newest wall time of the sender in what it said of itself; 0 if it said none."""
        meta_ns = 0 if self.meta is None else self.meta.wall_ns
        return max(meta_ns, 0 if self.state is None else self.state.wall_ns or 0)


@define(eq=False)
class Node:
    """The state of one node.

    `known_s`: when its session was first heard of, `touched_s`: when the last message came
    that was fit for it, both by the receiver's clock.
    """

    site: str
    node_id: str
    known_s: float
    current: Session | None = None
    waiting: Session | None = None  # retained, of a session that is not known to be newer
    sample: NodeSample | None = None
    received_s: float | None = None
    touched_s: float = 0.0
    stale: bool = False
    gaps: int = 0
    missing_samples: int = 0
    duplicates: int = 0
    reordered: int = 0
    events: int = 0
    sample_bytes: int = 0
    decoder: SampleDecoder = field(factory=SampleDecoder)
    foreign: ForeignWatch = field(factory=ForeignWatch)
    windows: dict[tuple[str, str], WindowStats] = field(factory=dict[tuple[str, str], WindowStats])
    _over: deque[str] = field(factory=lambda: deque[str](maxlen=_OVER))
    _doubtful: list[str] = field(factory=list[str])
    _seen: dict[str, EventsSeen] = field(factory=dict[str, EventsSeen])
    _times: deque[float] = field(factory=_times)

    # ---------------------------------------------------------------- sessions

    def live_session(self, session_id: str) -> Session | None:
        """Give the session of something live: the current one from now on. None: it is over."""
        current = self.current
        if current is not None and current.session_id == session_id:
            if not current.live:
                self._confirm(current)
            return current
        if session_id in self._over:
            return None
        session = self._begin(session_id)
        self._confirm(session)
        return session

    def _confirm(self, session: Session) -> None:
        """Everything that was current before a live session is over."""
        session.live = True
        self._over.extend(one for one in self._doubtful if one != session.session_id)
        self._doubtful.clear()

    def _begin(self, session_id: str) -> Session:
        current, waiting = self.current, self.waiting
        if current is not None:
            self._doubtful.append(current.session_id)
            del self._doubtful[:-_OVER]
        if waiting is not None and waiting.session_id == session_id:
            self.current, self.waiting = waiting, None
        else:
            self.current = Session(session_id)
        session = self.current
        self.decoder = SampleDecoder(session.meta)
        self.sample, self.received_s, self.sample_bytes = None, None, 0
        self.known_s, self.stale = self.touched_s, False
        self._times.clear()
        self.windows.clear()
        return session

    def _retained_session(self, session_id: str, wall_ns: int | None) -> Session | None:
        """Give the session of something retained; None if it is over.

        It becomes the current one only if that is not known to be newer.
        """
        current = self.current
        if current is not None and current.session_id == session_id:
            return current
        if session_id in self._over:
            return None
        if current is None or (wall_ns or 0) > self._wall_ns(current):
            return self._begin(session_id)
        if self.waiting is None or self.waiting.session_id != session_id:
            self.waiting = Session(session_id)
        return self.waiting

    def _wall_ns(self, session: Session) -> int:
        return max(session.wall_ns, 0 if self.sample is None else self.sample.wall_ns)

    # ---------------------------------------------------------------- messages

    def take_meta(self, meta: NodeMeta, size_bytes: int, *, retained: bool) -> bool:
        """Take a meta of that size on the wire; say whether it counts now."""
        if retained:
            session = self._retained_session(meta.session_id, meta.wall_ns)
            known = None if session is None else session.meta
            if session is None or (known is not None and known.wall_ns >= meta.wall_ns):
                return False
        else:
            session = self.live_session(meta.session_id)
            if session is None:
                return False
        session.meta, session.meta_bytes = meta, size_bytes
        if session is not self.current:
            return False
        self.decoder = SampleDecoder(meta)
        return True

    def take_state(self, state: NodeState, *, retained: bool) -> bool:
        """Take a state; say whether it counts now. Leaving counts only for the current session."""
        current = self.current
        if retained:
            session = self._retained_session(state.session_id, state.wall_ns)
        elif (
            state.condition in _LEAVING
            and current is not None
            and current.session_id != state.session_id
        ):
            session = None
        elif state.condition is NodeCondition.LOST and current is None:
            session = self._begin(state.session_id)
        else:
            session = self.live_session(state.session_id)
        if session is None:
            return False
        session.state = state
        return session is self.current

    def event_is_new(self, session_id: str, event_seq: int) -> bool:
        """Say whether an event was not here before. The last four sessions are remembered."""
        seen = self._seen.get(session_id)
        if seen is None:
            if len(self._seen) >= _EVENT_SESSIONS:
                current = None if self.current is None else self.current.session_id
                del self._seen[next(one for one in self._seen if one != current)]
            seen = self._seen[session_id] = EventsSeen()
        return seen.add(event_seq)

    def take_retained_sample(self, sample: NodeSample, size_bytes: int) -> bool:
        """Take a copy that the broker kept; only if nothing better is known of this session."""
        session = self._retained_session(sample.session_id, sample.wall_ns)
        if session is None or session is not self.current or self.sample is not None:
            return False
        self.sample, self.sample_bytes = sample, size_bytes
        return True

    def note_sample(self, sample: NodeSample, size_bytes: int, received_s: float) -> None:
        """Take a live sample that is newer than all of its session."""
        self.sample, self.sample_bytes = sample, size_bytes
        self.received_s = received_s
        self._times.append(received_s)

    def add_windows(self, names: tuple[str, ...], window_s: float, now_s: float) -> None:
        """Put the values of the newest sample into the windows of its GPUs."""
        sample = self.sample
        if sample is None:
            return
        for gpu in sample.gpus:
            for name in names:
                value: float | None = getattr(gpu, name)
                if value is None:
                    continue
                window = self.windows.get((gpu.gpu_id, name))
                if window is None:
                    window = self.windows[gpu.gpu_id, name] = WindowStats(window_s)
                window.add(now_s, value)
        if len(self.windows) > len(sample.gpus) * len(names):
            here = {gpu.gpu_id for gpu in sample.gpus}
            self.windows = {key: one for key, one in self.windows.items() if key[0] in here}

    @property
    def meta_bytes(self) -> int:
        """The size on the wire of the current meta."""
        return 0 if self.current is None else self.current.meta_bytes

    @property
    def stored_bytes(self) -> int:
        """The size on the wire of all that is kept of this node."""
        current, waiting = self.current, self.waiting
        kept = self.sample_bytes
        if current is not None:
            kept += current.meta_bytes
        if waiting is not None:
            kept += waiting.meta_bytes
        return kept

    # ---------------------------------------------------------------- age

    def period_s(self, default_s: float) -> float:
        """The period that its meta tells, else the default."""
        current = self.current
        return default_s if current is None or current.meta is None else current.meta.period_s

    def is_stale(self, now_s: float, periods: float, default_s: float) -> bool:
        """Say whether no sample came for that many periods."""
        since_s = self.known_s if self.received_s is None else self.received_s
        return now_s - since_s > periods * self.period_s(default_s)

    def view(self, now_s: float, periods: float, default_s: float) -> NodeView:
        """Give what is known, to whoever asks."""
        current = self.current
        received_s = self.received_s
        state = None if current is None else current.state
        condition = None if state is None else state.condition
        if condition is None and received_s is not None:
            condition = NodeCondition.READY
        return NodeView(
            site=self.site,
            node_id=self.node_id,
            session_id=None if current is None else current.session_id,
            condition=condition,
            stale=self.is_stale(now_s, periods, default_s),
            meta=None if current is None else current.meta,
            sample=self.sample,
            received_s=received_s,
            age_s=None if received_s is None else max(0.0, now_s - received_s),
            rate_hz=self._rate_hz(now_s),
            gaps=self.gaps,
            missing_samples=self.missing_samples,
            duplicates=self.duplicates,
            reordered=self.reordered,
            events=self.events,
        )

    def _rate_hz(self, now_s: float) -> float | None:
        """Over the last 16 samples; a silence longer than their distance counts too."""
        times = self._times
        if len(times) < 2:  # noqa: PLR2004 - a distance needs two
            return None
        steps = len(times) - 1
        span_s = times[-1] - times[0]
        silent_s = now_s - times[-1]
        if silent_s > 2 * span_s / steps:
            span_s += silent_s
        return steps / span_s if span_s > 0 else None
