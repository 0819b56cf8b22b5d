"""A large reply as the front reads it: window by window through a few leases, never as a whole."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from shardserve_proto.errors import OutOfMemory

from .buffers import Lease

#: Windows that are asked for ahead: one is sent while others are filled.
WINDOWS_AHEAD = 4
#: How long a stream waits for the first buffer to come back, and how often it looks.
ROOM_WAIT_S = 20.0
LOOK_AGAIN_S = 0.05


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
        self._begun: int | None = None
        self._is_open = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each segment."""
        return tuple(map(sum, self._windows))

    async def begin(self) -> None:
        """Ask for the first window, so that a lack of room is told before the reply begins.

        Raises:
            OutOfMemory: there is no buffer for it, and none came back for a while.
        """
        for number, windows in enumerate(self._windows):
            if windows:
                await self._ask_patiently(number, 0, windows[0])
                self._begun = number
                return

    async def segment(self, number: int) -> AsyncIterator[Lease]:
        """The windows of one segment in order; whoever takes one releases it once its bytes are out.

        Several are asked for ahead, or as many as there are buffers for; one is enough to go on.

        Raises:
            EngineLost: the engine died; the rest is gone.
            OutOfMemory: not even one buffer came back for a while.
        """
        windows = deque(enumerate(self._windows[number]))
        if self._begun == number:
            windows.popleft()
        while windows or self._asked:
            while windows and len(self._asked) < WINDOWS_AHEAD and self._ask(number, *windows[0]) is None:
                windows.popleft()
            if not self._asked:
                await self._ask_patiently(number, *windows.popleft())
            yield await self._asked.popleft()

    def _ask(self, number: int, window: int, nbytes: int) -> OutOfMemory | None:
        """Ask for a window; the error if there is no buffer for it now."""
        future = self._connection.ask_window(self._call, number, window, nbytes)
        error = future.exception() if future.done() else None
        if isinstance(error, OutOfMemory):
            return error
        self._asked.append(future)
        return None

    async def _ask_patiently(self, number: int, window: int, nbytes: int) -> None:
        until = time.monotonic() + ROOM_WAIT_S
        while (error := self._ask(number, window, nbytes)) is not None:
            if time.monotonic() > until:
                raise error
            await asyncio.sleep(LOOK_AGAIN_S)

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
