"""Builds the fake libnvidia-ml into a folder: `build_fake_nvml.py FOLDER [-DOLD_DRIVER]`.

Exit code 3: there is no C compiler here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

NO_COMPILER = 3


def main() -> int:
    folder, defines = Path(sys.argv[1]), sys.argv[2:]
    compiler = shutil.which("cc")
    if compiler is None:
        return NO_COMPILER
    source = Path(__file__).with_name("fake_nvml.c")
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    # The name inside the library is the one that the binding asks for, so a process that
    # has loaded this file gets it when it asks for libnvidia-ml.so.1.
    name = "-Wl,-soname,libnvidia-ml.so.1"
    output = folder / "libnvidia-ml.so.1"
    command = [compiler, *flags, name, *defines, "-o", str(output), str(source), "-lpthread"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
