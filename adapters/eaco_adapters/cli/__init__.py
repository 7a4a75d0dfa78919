"""The command line `eaco`.

`main` is what the console script calls. It is importable without the extra
`cli`, so that a plain installation answers with one sentence, not a traceback.
"""

from __future__ import annotations

import importlib
import sys

from eaco_adapters.cli import _process

_NEEDED = ("click", "rich")
_WHAT_TO_INSTALL = "eaco needs its command-line extra: pip install 'eaco[cli]'"


def main() -> None:
    """Run the command line with the arguments of this process and exit with its status.

    Status 0 is success, 1 a failure of something outside, 2 wrong use or wrong
    input, 129, 130 and 143 a stop by SIGHUP, Ctrl-C and SIGTERM, 141 a reader that
    went away.
    """
    _process.exit_at_once_when_stopped()
    _process.open_missing_streams()
    try:
        for name in _NEEDED:
            importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDED:
            raise
        print(_WHAT_TO_INSTALL, file=sys.stderr)  # noqa: T201 - click may be what is missing
        sys.exit(2)

    from eaco_adapters.cli import _app  # noqa: PLC0415 - needs the extra looked for above

    _process.raise_when_stopped()
    try:
        status = _app.run(sys.argv[1:])
    except _process.Stopped as stopped:  # after the command, while its last words were written
        status = stopped.status
    _process.ignore_stops()
    sys.exit(status)
