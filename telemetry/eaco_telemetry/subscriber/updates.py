"""What a subscriber tells: one class for each thing that can happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from eaco_telemetry.meta import NodeCondition, NodeEvent, NodeMeta
    from eaco_telemetry.samples import NodeSample, ProcessSample


@frozen
class NodeView:
    """What is known of one node at one time. Times are seconds of the receiver's clock.

    - `condition`: what the node (or its last will) said last; READY also if it said nothing
      in this session and samples come; None if nothing at all is known.
    - `stale`: no sample for `stale_after_periods` periods, by the receiver's clock.
    - `received_s`: when the last live sample came; None if none did. `age_s`: seconds since.
    - `rate_hz`: samples per second as received, over the last few.
    - `gaps`: stretches of `seq` that were missing when the next sample came;
      `missing_samples`: samples still missing. Both, and `duplicates`, `reordered` and
      `events`, count over all sessions of the node.
    """

    site: str
    node_id: str
    session_id: str | None = None
    condition: NodeCondition | None = None
    stale: bool = True
    meta: NodeMeta | None = None
    sample: NodeSample | None = None
    received_s: float | None = None
    age_s: float | None = None
    rate_hz: float | None = None
    gaps: int = 0
    missing_samples: int = 0
    duplicates: int = 0
    reordered: int = 0
    events: int = 0

    @property
    def word(self) -> str:
        """One word for a table: a condition, ``stale`` if it should send and does not."""
        if self.condition is None:
            return "unknown"
        if self.stale and self.condition.value in {"ready", "alert"}:
            return "stale"
        return self.condition.value


@frozen
class SampleReceived:
    """A sample came for the first time. `late`: a newer one of the same session was here."""

    site: str
    node_id: str
    sample: NodeSample
    received_s: float
    late: bool = False


@frozen
class NodeChanged:
    """A node is new, has a new session, meta or condition, or went stale or came back."""

    site: str
    node_id: str
    view: NodeView


@frozen
class EventReceived:
    """Something happened on a node. Told once, however often it was sent."""

    site: str
    node_id: str
    event: NodeEvent
    received_s: float


@frozen
class GapSeen:
    """Samples `first_seq` to `last_seq` did not come before the next one did. Told once."""

    site: str
    node_id: str
    session_id: str
    first_seq: int
    last_seq: int


@frozen
class ForeignChanged:
    """Processes that are not ours came to a GPU, or went from it."""

    site: str
    node_id: str
    gpu_id: str
    appeared: tuple[ProcessSample, ...]
    gone: tuple[ProcessSample, ...]


@frozen
class ConnectionChanged:
    """The connection to the broker is there, or is not (then `reason` says why).

    `retry_in_s`: seconds until the next attempt.
    """

    connected: bool
    reason: str = ""
    retry_in_s: float | None = None


Update = SampleReceived | NodeChanged | EventReceived | GapSeen | ForeignChanged | ConnectionChanged
