"""Followers of the scheduler: each gets every step, or is told that it was too slow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eaco_core.history import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eaco_core.history import Step

_STREAM_SIZE: Final = 10_000
_TOO_SLOW: Final = b'{"error":"the reader is too slow, steps were left out; connect again"}\n'


class Streams:
    """Hands each step to everyone who follows. Never waits for any of them."""

    def __init__(self, size: int = _STREAM_SIZE) -> None:
        self._size = size
        self._open: set[_Stream] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def give(self, step: Step) -> None:
        """Hand on one step."""
        if self._open:
            line = encode(step).encode() + b"\n"
            for stream in list(self._open):
                if not stream.put(line):
                    self._open.discard(stream)

    def close(self) -> None:
        """End every stream, and whatever comes later at once."""
        self._closed = True
        for stream in self._open:
            stream.end(b"")
        self._open.clear()

    async def follow(self) -> AsyncIterator[bytes]:
        """Give every step from now on, as lines of history."""
        stream = _Stream(self._size)
        if self._closed:
            return
        self._open.add(stream)
        try:
            while (line := await stream.get()) is not None:
                yield line
            if stream.last_word:
                yield stream.last_word
        finally:
            self._open.discard(stream)


class _Stream:
    """The lines that wait for one follower."""

    def __init__(self, size: int) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(size)
        self.last_word = b""

    def put(self, line: bytes) -> bool:
        """Add a line; False if there is no room, which ends it."""
        if self._queue.full():
            self.end(_TOO_SLOW)
            return False
        self._queue.put_nowait(line)
        return True

    def end(self, last_word: bytes) -> None:
        """End it, without what waits."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self.last_word = last_word
        self._queue.put_nowait(None)

    async def get(self) -> bytes | None:
        """Give the next line, None at the end."""
        return await self._queue.get()
