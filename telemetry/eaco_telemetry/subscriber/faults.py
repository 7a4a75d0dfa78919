"""One log line for each kind of fault, however often it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    import logging


@define
class _Told:
    last_s: float
    suppressed: int = 0


@define
class FaultLog:
    """Writes at most one line per kind in `every_s` seconds, with the number left out."""

    log: logging.Logger
    every_s: float
    _told: dict[str, _Told] = field(factory=dict[str, _Told], init=False)

    def tell(self, kind: str, message: str, now_s: float) -> None:
        """Write the line, or count it. `kind` is one of a few words: never from a message."""
        told = self._told.get(kind)
        if told is None:
            self._told[kind] = _Told(now_s)
            self.log.warning("%s", message)
        elif now_s - told.last_s < self.every_s:
            told.suppressed += 1
        else:
            self._write(told, message, now_s)

    def flush(self, now_s: float) -> None:
        """Say how many were left out, for kinds whose time is over."""
        for kind, told in self._told.items():
            if told.suppressed and now_s - told.last_s >= self.every_s:
                self._write(told, f"messages with the fault '{kind}'", now_s)

    def _write(self, told: _Told, message: str, now_s: float) -> None:
        since_s = now_s - told.last_s
        more = told.suppressed
        told.last_s, told.suppressed = now_s, 0
        if more:
            self.log.warning("%s (and %d more like it in %.0f s)", message, more, since_s)
        else:
            self.log.warning("%s", message)
