"""One connection of a client: it may not hold a place without using it.

A client that connects and says nothing, sends half a request, or does not read its answer is let
go after a while; so a few hundred of them cannot keep everyone else out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio


class Connection(H11Protocol):
    """HTTP/1.1 with limits: so many connections at once, and so long without a move."""

    most: ClassVar[int] = 300
    look_s: ClassVar[float] = 15.0

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - as uvicorn gives them
        super().__init__(*arguments, **named)
        self._look: asyncio.TimerHandle | None = None
        self._waited = 0
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn's own
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
            return
        self._look = self.loop.call_later(self.look_s, self._look_at)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _look_at(self) -> None:
        """Let go of who made no move since the last look but one."""
        unsent_bytes = self.transport.get_write_buffer_size()
        is_stuck = unsent_bytes > 0 and unsent_bytes == self._unsent_bytes
        # None until the first request is whole, whatever uvicorn's annotation says.
        cycle: Any = self.cycle
        is_idle = cycle is None or cycle.response_complete
        self._unsent_bytes = unsent_bytes
        self._waited = self._waited + 1 if is_stuck or is_idle else 0
        if self._waited > 1:
            self.transport.abort()
            return
        self._look = self.loop.call_later(self.look_s, self._look_at)
