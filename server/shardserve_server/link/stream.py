"""A large reply as the front reads it: window by window through a few leases, never as a whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from .buffers import Lease

#: Windows that are asked for ahead: one is sent while others are filled.
WINDOWS_AHEAD = 4


class AsksWindows(Protocol):
    """The part of a connection that a stream uses."""

    def ask_window(self, call: int, segment: int, window: int, nbytes: int) -> asyncio.Future[Lease]: ...

    def end_stream(self, call: int) -> None: ...


class ReplyStream:
    """The outputs of one call, which the engine keeps until `close`.

    Arguments:
        windows: for each segment, the bytes of its windows.
    """

    def __init__(self, connection: AsksWindows, call: int, windows: tuple[tuple[int, ...], ...]) -> None:
        self._connection = connection
        self._call = call
        self._windows = windows
        self._asked: deque[asyncio.Future[Lease]] = deque()
        self._is_open = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each segment."""
        return tuple(map(sum, self._windows))

    async def segment(self, number: int) -> AsyncIterator[Lease]:
        """The windows of one segment in order; whoever takes one releases it once its bytes are out.

        Raises:
            EngineLost: the engine died; the rest is gone.
        """
        ahead = iter(enumerate(self._windows[number]))
        for window, nbytes in ahead:
            self._asked.append(self._connection.ask_window(self._call, number, window, nbytes))
            if len(self._asked) == WINDOWS_AHEAD:
                yield await self._next()
        while self._asked:
            yield await self._next()

    async def _next(self) -> Lease:
        return await self._asked.popleft()

    def close(self) -> None:
        """Let the engine drop the outputs; repeating it is harmless."""
        if self._is_open:
            self._is_open = False
            for future in self._asked:
                future.add_done_callback(_release)
            self._asked.clear()
            self._connection.end_stream(self._call)


def _release(future: asyncio.Future[Lease]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()
