"""The agent of a node: what `eaco agent` runs. Publishing needs the extra ``mqtt``.

See docs/agent.md.
"""

from __future__ import annotations

from eaco_telemetry.agent.agent import Agent
from eaco_telemetry.agent.options import RING, AgentOptions, AgentStats, Plug, Sink, Source

__all__ = ["RING", "Agent", "AgentOptions", "AgentStats", "Plug", "Sink", "Source"]
