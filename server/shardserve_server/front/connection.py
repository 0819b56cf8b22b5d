"""What the front knows of a connection's sending side: when its bytes are gone, when it is, and when to give it up.

`await send()` returns while bytes still wait in the transport, and they are not copies: a shared buffer that goes back
to the pool then is filled with another call's data, which the first client receives. So a connection tells when its
write buffer is empty, for which the buffer's limits are set to zero while somebody waits for that. A client that stops
reading would keep the buffer for ever, so what it does not take up in time is dropped, with the connection.
"""

from __future__ import annotations

import array
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from .limits import Clock, ConnectionLimits

EXTENSION = "shardserve.connection"
#: Write buffer of a connection: a reader that keeps up never finds it empty, a slow one holds no more than this.
WRITE_BUFFER_BYTES = 4 * 2**20
_SIOCOUTQ = 0x5411


class Connection:
    """What a route may ask of the connection that its request came on.

    Arguments:
        resume_reading: of the connection's flow control, which pauses while a body is not taken up.
        must_close: whether a refusal now would leave a body unread that nobody wants to read.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        resume_reading: Callable[[], None],
        must_close: Callable[[], bool],
    ) -> None:
        self._transport = transport
        self._limits = limits
        self._resume_reading = resume_reading
        self.must_close = must_close
        #: Receives the body that is arriving; see `FrontProtocol.fill`, which replaces this.
        self.fill: Callable[[object, memoryview], Awaitable[int | None]] = _cannot_fill
        self._flush_callbacks: list[Callable[[], None]] = []
        self._lost_callbacks: list[Callable[[], object]] = []
        self._clock = Clock(loop, self._check_progress)
        self._untaken_bytes = 0
        self._is_draining = False
        self.is_lost = False
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    @property
    def pending_bytes(self) -> int:
        """Bytes that were written but not handed to the kernel yet."""
        return 0 if self.is_lost else self._transport.get_write_buffer_size()

    def when_flushed(self, callback: Callable[[], None]) -> None:
        """Call back once every byte written so far is out of this process' memory, or never will be sent."""
        if not self.pending_bytes:
            callback()
            return
        self._flush_callbacks.append(callback)
        self.drain()

    def when_lost(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when the client is gone; the returned function takes the request back."""
        if self.is_lost:
            callback()
            return _nothing
        self._lost_callbacks.append(callback)
        self._resume_reading()  # the end of a connection is something that is read
        return lambda: self._lost_callbacks.remove(callback) if callback in self._lost_callbacks else None

    def drain(self) -> None:
        """Hold the client to the send deadline until the write buffer is empty."""
        if self.pending_bytes and not self._is_draining:
            self._is_draining = True
            self._transport.set_write_buffer_limits(high=0)  # "drained" now means "empty"

    def paused(self) -> None:
        """The protocol's own news: the write buffer is above its limit."""
        self._untaken_bytes = self._untaken()
        self._clock.start(self._limits.send_timeout_s)

    def drained(self) -> None:
        """The protocol's own news: the write buffer is below its limit."""
        self._clock.stop()
        if self._is_draining and not self.pending_bytes:
            self._is_draining = False
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            _run(self._flush_callbacks)

    def lost(self) -> None:
        """The protocol's own news: the connection is gone, and with it what was not sent."""
        self.is_lost = True
        self._clock.stop()
        _run(self._flush_callbacks)
        _run(self._lost_callbacks)

    def _check_progress(self) -> None:
        """The write buffer has been full for a whole send timeout: go on only if the client took enough meanwhile."""
        untaken = self._untaken()
        if self._untaken_bytes - untaken < self._limits.send_min_rate * self._limits.send_timeout_s:
            self._transport.abort()
            return
        self._untaken_bytes = untaken
        self._clock.start(self._limits.send_timeout_s)

    def _untaken(self) -> int:
        """Bytes that the client's host has not acknowledged; the kernel holds some that the transport does not."""
        return self.pending_bytes + kernel_bytes(self._transport.get_extra_info("socket"))


def kernel_bytes(stream: Any) -> int:
    """Bytes in a socket's send queue; 0 where the system does not tell."""
    if sys.platform != "linux" or stream is None:
        return 0
    import fcntl

    counter = array.array("i", [0])
    try:
        fcntl.ioctl(stream.fileno(), _SIOCOUTQ, counter)
    except OSError:
        return 0
    return counter[0]


def connection_of(scope: Any) -> Connection | None:
    """The connection of a request, when it came through `FrontProtocol`."""
    connection = (scope.get("extensions") or {}).get(EXTENSION)
    return connection if isinstance(connection, Connection) else None


def _run(callbacks: list[Callable[[], Any]]) -> None:
    waiting, callbacks[:] = callbacks[:], []
    for callback in waiting:
        callback()


def _nothing() -> None:
    pass


async def _cannot_fill(_: object, __: memoryview) -> None:
    pass
