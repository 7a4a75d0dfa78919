"""The runner of a node: starts jobs, watches them, ends them, and proves their GPUs free.

- `runner`: `NodeRunner`, what a scheduler talks to.
- `attempt`, `endings`: the folder of one attempt, and what its files say happened.
- `shim`: the small process that is the parent of a job's processes and outlives the runner.
- `proc`, `cgroup`, `names`, `durable`: what the kernel and the disk are asked.
"""

from eaco_adapters.node.runner import NodeRunner, RunnerOptions, RunnerReport

__all__ = ["NodeRunner", "RunnerOptions", "RunnerReport"]
