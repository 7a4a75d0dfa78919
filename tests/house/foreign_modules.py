"""Print what `import eaco_core` pulls in from outside the standard library.

Run with the interpreter of the environment to look at; one name per line. What
the interpreter loads anyway (hooks of its own environment) is not counted.
"""

from __future__ import annotations

import subprocess
import sys


def _loaded(statement: str) -> set[str]:
    """Name the top-level modules that Python's own import timer saw and that are there.

    The timer also counts attempts: the standard `copy` looks for a Jython module.
    """
    code = f"{statement}; import sys; print(*sys.modules)"
    command = [sys.executable, "-I", "-X", "importtime", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("import time:")]
    timed = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines[1:]}
    return timed & {name.split(".")[0] for name in ran.stdout.split()}


if __name__ == "__main__":
    foreign = _loaded("import eaco_core") - _loaded("pass") - sys.stdlib_module_names
    print(*sorted(foreign), sep="\n")  # noqa: T201 - a script, and this is its answer
