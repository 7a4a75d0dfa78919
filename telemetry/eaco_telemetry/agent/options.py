"""What an agent is told, what it counts, and what it works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, field, frozen

from eaco_core.errors import InputError
from eaco_telemetry import _check
from eaco_telemetry.topics import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from attrs import Attribute

    from eaco_telemetry.meta import NodeEvent, NodeMeta
    from eaco_telemetry.sampler import Sampled
    from eaco_telemetry.samples import Moment, NodeSample

RING: Final = 256
"""How many events an agent keeps to publish them again. A subscriber remembers more numbers."""

_MAX_RING: Final = 256


class Source(Protocol):
    """Where samples come from: a `Sampler`, or a recording that is played.

    `sample` raises `StopAsyncIteration` where there is an end.
    """

    @property
    def readers(self) -> tuple[str, ...]:
        """The names of what is read."""
        ...

    async def open(self) -> None:
        """Make ready."""
        ...

    async def sample(self, now: Moment | None = None) -> Sampled:
        """Take one sample."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Sink(Protocol):
    """Gets every sample beside the broker: a recording, an endpoint for metrics.

    `take` must not wait for anything outside. If it raises, the sink is closed and gets
    nothing more; the agent goes on.
    """

    @property
    def name(self) -> str:
        """A short name for the log."""
        ...

    def take(self, sample: NodeSample, events: Sequence[NodeEvent]) -> None:
        """Take one sample and the events that came with it."""
        ...

    def close(self) -> None:
        """End, with everything in order. May be called twice."""
        ...


class Plug(Protocol):
    """A reader that lives on messages of the broker, as `readers.plug.PlugReader`."""

    @property
    def filters(self) -> tuple[tuple[str, int], ...]:
        """What to subscribe to: (filter, QoS)."""
        ...

    def feed(self, topic: str, payload: bytes, received_s: float, *, retain: bool = False) -> None:
        """Take one message. Never raises."""
        ...


def _seconds(instance: object, attribute: Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise InputError(
            f"{type(instance).__name__}.{attribute.name} must be above 0 seconds, not {value!r}"
        )


def _name(_instance: object, attribute: Attribute[Any], value: str) -> None:
    check_name(value, "the site" if attribute.name == "site" else "the node")


def _nothing(_meta: NodeMeta) -> Iterable[tuple[str, bytes]]:
    return ()


@frozen
class AgentOptions:
    """How an agent works.

    - `site`, `node_id`: where it publishes. `period_s`: seconds between two samples.
      `self_paced`: the source itself says when (a recording that is played).
    - `agent`: program and version, for the meta.
    - `backoff_first_s`, `backoff_cap_s`: pauses between attempts to connect; `slow_retry_s`:
      the pause after a refusal such as a wrong password.
    - `ring`: how many events are kept. `repeat_after_s`: so long after each new connection
      the ring is published once more, for subscribers that came back later than the agent;
      None: twice the cap, and a second.
    - `last_every_s`: one sample in so many seconds is retained by the broker, so that who
      comes late sees numbers at once; None: none is.
    - `exit_when_stuck`: end with an `EnvironmentFault` when only a new process can help a
      reader, for a supervisor to start one.
    - `announce`: further retained messages (topic, payload) that follow from the meta.
    """

    node_id: str = field(validator=_name)
    site: str = field(default="lab", validator=_name)
    period_s: float = field(default=1.0, validator=_check.period)
    self_paced: bool = False
    agent: str = "eaco"
    backoff_first_s: float = field(default=0.5, validator=_seconds)
    backoff_cap_s: float = field(default=30.0, validator=_seconds)
    slow_retry_s: float = field(default=30.0, validator=_seconds)
    ring: int = field(default=RING)
    repeat_after_s: float | None = field(default=None, validator=_seconds)
    last_every_s: float | None = field(default=None, validator=_seconds)
    exit_when_stuck: bool = False
    announce: Callable[[NodeMeta], Iterable[tuple[str, bytes]]] = _nothing

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.ring <= _MAX_RING:
            raise InputError(f"AgentOptions.ring must be from 1 to {_MAX_RING}, not {self.ring}")

    @property
    def repeat_s(self) -> float:
        """Seconds from a new connection to the second publishing of the ring."""
        return 2 * self.backoff_cap_s + 1 if self.repeat_after_s is None else self.repeat_after_s


@define
class AgentStats:
    """What an agent counts. Nothing is dropped without being counted here.

    - `samples`: taken; `samples_published`; `samples_dropped`: a newer one took their place
      before they could be sent. `ticks_missed`: taking a sample took longer than a period.
    - `events`: happened; `events_published`: acknowledged by a broker, again if sent again;
      `events_dropped`: left the ring before they were acknowledged once.
    - `connections`: made; `attempts_failed`; `metas_published`.
    - `sinks_dropped`: names of the sinks that failed.
    """

    samples: int = 0
    samples_published: int = 0
    samples_dropped: int = 0
    ticks_missed: int = 0
    events: int = 0
    events_published: int = 0
    events_dropped: int = 0
    connections: int = 0
    attempts_failed: int = 0
    metas_published: int = 0
    plug_messages: int = 0
    connected: bool = False
    sinks_dropped: list[str] = field(factory=list[str])
