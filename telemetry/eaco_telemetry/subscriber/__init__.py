"""The receiving side: samples, states and events of all nodes, from one broker.

Nothing that arrives is taken on trust, nothing that is refused goes uncounted, and what one
node sends does not touch another. Building a `Subscriber` needs the extra ``mqtt``; the rest
of this package does not.
"""

from eaco_telemetry.subscriber.client import Subscriber
from eaco_telemetry.subscriber.foreign import ForeignProcesses, ForeignWatch, foreign_processes
from eaco_telemetry.subscriber.options import SubscriberCounters, SubscriberOptions
from eaco_telemetry.subscriber.stats import WindowStats
from eaco_telemetry.subscriber.updates import (
    ConnectionChanged,
    EventReceived,
    ForeignChanged,
    GapSeen,
    NodeChanged,
    NodeView,
    SampleReceived,
    Update,
)

__all__ = [
    "ConnectionChanged",
    "EventReceived",
    "ForeignChanged",
    "ForeignProcesses",
    "ForeignWatch",
    "GapSeen",
    "NodeChanged",
    "NodeView",
    "SampleReceived",
    "Subscriber",
    "SubscriberCounters",
    "SubscriberOptions",
    "Update",
    "WindowStats",
    "foreign_processes",
]
