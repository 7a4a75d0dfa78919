"""What can be chosen of a subscriber, and what it counts."""

from __future__ import annotations

from typing import Final

from attrs import Factory, define, fields, frozen

from eaco_core.errors import InputError
from eaco_telemetry.samples import GpuSample

_LEAST: Final = {
    "stale_after_periods": 1.0,
    "default_period_s": 0.001,
    "max_nodes": 1,
    "max_gpus": 1,
    "max_payload_bytes": 64,
    "max_stored_bytes": 1024,
    "max_updates": 1,
    "max_waiting_bytes": 1024,
    "forget_after_s": 0.0,
    "log_every_s": 0.0,
    "check_every_s": 0.01,
    "backoff_first_s": 0.001,
    "backoff_cap_s": 0.001,
    "window_s": 0.001,
}


@frozen
class SubscriberOptions:
    """Limits and habits of a subscriber.

    - `site`, `node_id`: whom to listen to; ``+`` is everyone.
    - `stale_after_periods`: periods without a sample after which a node is stale;
      `default_period_s` holds until its meta has told the period.
    - `max_nodes`: more are refused and counted, unless one was silent for `forget_after_s`
      and can be forgotten. `max_gpus`: of one node.
    - `max_payload_bytes`: of one message. `max_stored_bytes`: of the payloads behind all
      that is kept (each node's meta and last sample).
    - `max_updates`, `max_waiting_bytes`: of updates that wait for the reader of the iterator,
      and of the payloads behind them; then the oldest samples go.
    - `log_every_s`: at most one line for each kind of fault in this time.
    - `check_every_s`: how often ages are looked at.
    - `window_s`, `window_values`: the names of the values of a GPU (such as ``power_w``) for
      which windowed statistics are kept, and their length. Each costs about 2 us per GPU.
    """

    site: str = "+"
    node_id: str = "+"
    stale_after_periods: float = 3.0
    default_period_s: float = 1.0
    max_nodes: int = 10_000
    max_gpus: int = 256
    max_payload_bytes: int = 1 << 20
    max_stored_bytes: int = 128 << 20
    max_updates: int = 10_000
    max_waiting_bytes: int = 64 << 20
    forget_after_s: float = 3600.0
    log_every_s: float = 60.0
    check_every_s: float = 0.5
    backoff_first_s: float = 0.5
    backoff_cap_s: float = 30.0
    window_s: float = 60.0
    window_values: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise InputError(
                    f"SubscriberOptions.{name} must be at least {least}, not {getattr(self, name)}"
                )
        for name in self.window_values:
            if name not in NUMBERS:
                raise InputError(
                    f"SubscriberOptions.window_values: a GPU has no number {name!r};"
                    f" choose from {', '.join(NUMBERS)}"
                )


def _numbers() -> tuple[str, ...]:
    return tuple(
        one.name
        for one in fields(GpuSample)
        if one.metadata.get("measured") and one.name not in {"throttle", "processes"}
    )


NUMBERS: Final = _numbers()
"""The values of a GPU that statistics can be made of."""


def _no_counts() -> dict[str, int]:
    return {}


@define
class SubscriberCounters:
    """Counts since the subscriber was made. Nothing is dropped without being counted here.

    - `received`: messages; of these, `samples`, `metas`, `states` and `events` were taken.
    - `bad`: refused, by kind: those of `wire.BadPayload`, ``unknown topic``, ``too many
      GPUs``, ``too many nodes``, ``no room`` (see `max_stored_bytes`) and ``fault of eaco``.
    - `duplicates`, `duplicate_events`: had been here before. `reordered`: late, and taken.
    - `old_session`: of a session that was over; `retained_ignored`: the broker's copy of
      something that is known better. `cleared`: empty messages, which clear what is retained.
    - `gaps`, `missing_samples`: as in `NodeView`, over all nodes.
    - `without_meta`: samples that stood alone because their meta was not here.
    - `transport_discards`: messages that the transport dropped because they were not taken
      in time. `dropped_samples`, `dropped_events`, `dropped_others`: updates that the reader
      of the iterator did not take in time.
    - `connections`: that were made. `nodes_forgotten`: see `forget_after_s`.
    """

    received: int = 0
    samples: int = 0
    metas: int = 0
    states: int = 0
    events: int = 0
    bad: dict[str, int] = Factory(_no_counts)
    duplicates: int = 0
    duplicate_events: int = 0
    reordered: int = 0
    old_session: int = 0
    retained_ignored: int = 0
    cleared: int = 0
    gaps: int = 0
    missing_samples: int = 0
    without_meta: int = 0
    transport_discards: int = 0
    dropped_samples: int = 0
    dropped_events: int = 0
    dropped_others: int = 0
    connections: int = 0
    nodes_forgotten: int = 0

    @property
    def too_many_nodes(self) -> int:
        """Messages of nodes for which there was no place."""
        return self.bad.get("too many nodes", 0)

    def count_bad(self, kind: str) -> None:
        """Count one refused message."""
        self.bad[kind] = self.bad.get(kind, 0) + 1
