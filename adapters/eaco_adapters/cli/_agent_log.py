"""What `eaco agent` says on stderr: sentences for people, or a line of JSON each."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Generator

LOG_NAME: Final = "eaco.agent"
_ROOTS: Final = ("eaco", "eaco_telemetry")


class _StderrHandler(logging.Handler):
    """Writes to what stderr is at that moment; a stderr that is gone ends nothing."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().splitlines())
        trace = (
            "" if record.exc_info is None else logging.Formatter().formatException(record.exc_info)
        )
        if self._as_json:
            line = {
                "time": datetime.fromtimestamp(record.created, UTC).isoformat(
                    timespec="milliseconds"
                ),
                "level": record.levelname.lower(),
                "message": text,
                **({"trace": trace} if trace else {}),
                **getattr(record, "facts", {}),
            }
            text = json.dumps(line)
        else:
            text = f"eaco agent: {text}" + (f"\n{trace}" if trace else "")
        with suppress(OSError, ValueError):
            click.echo(text, err=True)


@contextmanager
def logging_to_stderr(*, as_json: bool, verbose: bool) -> Generator[logging.Logger, None, None]:
    """Let the loggers of eaco write to stderr as long as the block lasts."""
    handler = _StderrHandler(as_json=as_json)
    before: list[tuple[logging.Logger, int, bool]] = []
    for name in _ROOTS:
        logger = logging.getLogger(name)
        before.append((logger, logger.level, logger.propagate))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbose else logging.INFO)
        logger.propagate = False
    try:
        yield logging.getLogger(LOG_NAME)
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
