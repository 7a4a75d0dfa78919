"""One experiment: a configuration in, results out. No command line, no files written.

`prepare` reads and checks every input; `run_experiment` runs the policies one after
another over the same jobs, nodes and truth; `ExperimentResult.to_json` compares them
over one span of time. Sweeps over seeds call the two in a loop.
"""

from eaco_adapters.experiment.config import ExperimentConfig
from eaco_adapters.experiment.prepare import Experiment, prepare
from eaco_adapters.experiment.run import (
    RESULT_SCHEMA,
    ExperimentResult,
    history_header,
    run_experiment,
    run_policy,
)

__all__ = [
    "RESULT_SCHEMA",
    "Experiment",
    "ExperimentConfig",
    "ExperimentResult",
    "history_header",
    "prepare",
    "run_experiment",
    "run_policy",
]
