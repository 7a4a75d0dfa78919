"""The simulated cluster: a virtual clock that drives the scheduler's own machine.

Nothing in the core knows that it is simulated. `world` is what happens on the
nodes, `truth` how much jobs really slow each other down, `meter` what it costs in
joules, `run` the loop between world and machine, `result` what comes out.
"""

from eaco_adapters.simulator.result import JobOutcome, SimResult
from eaco_adapters.simulator.run import Machine, simulate
from eaco_adapters.simulator.settings import SimSettings
from eaco_adapters.simulator.truth import GroundTruth, Truth
from eaco_adapters.simulator.world import World

__all__ = [
    "GroundTruth",
    "JobOutcome",
    "Machine",
    "SimResult",
    "SimSettings",
    "Truth",
    "World",
    "simulate",
]
