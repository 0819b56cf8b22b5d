"""uvicorn's HTTP protocol, with what the front must know of a connection: when its bytes are gone, and when it is.

`await send()` returns while bytes still wait in the transport, and they are not copies: a shared buffer that goes back
to the pool then is filled with another call's data, which the first client receives. So a connection tells when its
write buffer is empty, for which the buffer's limits are set to zero while somebody waits for that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shardserve_proto.errors import InvalidRequest

EXTENSION = "shardserve.connection"
#: So much of a refused body is read and dropped, so that the client comes to read the answer.
LINGER_BYTES = 2**20
LINGER_S = 2.0


class Connection:
    """What a route may ask of the connection that its request came on.

    Arguments:
        resume_reading: of the connection's flow control, which pauses while a body is not taken up.
        must_close: whether a refusal now would leave a body unread that nobody wants to read.
    """

    def __init__(
        self, transport: asyncio.Transport, *, resume_reading: Callable[[], None], must_close: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._resume_reading = resume_reading
        self.must_close = must_close
        self._flush_callbacks: list[Callable[[], None]] = []
        self._lost_callbacks: list[Callable[[], object]] = []
        self.is_lost = False

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
        self._transport.set_write_buffer_limits(high=0)  # "drained" now means "empty"

    def when_lost(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when the client is gone; the returned function takes the request back."""
        if self.is_lost:
            callback()
            return _nothing
        self._lost_callbacks.append(callback)
        self._resume_reading()  # the end of a connection is something that is read
        return lambda: self._lost_callbacks.remove(callback) if callback in self._lost_callbacks else None

    def drained(self) -> None:
        """The protocol's own news: the write buffer is below its limit."""
        if self._flush_callbacks and not self.pending_bytes:
            self._transport.set_write_buffer_limits()
            _run(self._flush_callbacks)

    def lost(self) -> None:
        """The protocol's own news: the connection is gone, and with it what was not sent."""
        self.is_lost = True
        _run(self._flush_callbacks)
        _run(self._lost_callbacks)


def _run(callbacks: list[Callable[[], Any]]) -> None:
    waiting, callbacks[:] = callbacks[:], []
    for callback in waiting:
        callback()


def _nothing() -> None:
    pass


class _PoliteTransport:
    """A transport whose `close` lets a client that is still sending read its answer first.

    Closing a socket with unread bytes resets it, and the reset may overtake the answer.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.close = close


class FrontProtocol(HttpToolsProtocol):
    """One HTTP connection."""

    connection: Connection
    _lingering_bytes: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection = Connection(transport, resume_reading=self.flow.resume_reading, must_close=self._leaves_body)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.connection.lost()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.connection.drained()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: cast(Any, self.connection)}

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = cast(asyncio.Transport, _PoliteTransport(self.transport, self._close_politely))

    def data_received(self, data: bytes) -> None:
        if self._lingering_bytes is None:
            super().data_received(data)
            return
        self._lingering_bytes += len(data)
        if self._lingering_bytes > LINGER_BYTES:
            self.transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A body that ends early is told so; any other end of file means that the client is gone."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.more_body:
            return None
        cycle.more_body = False
        cycle.keep_alive = False
        cycle.message_event.set()
        return True  # the answer can still be sent

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text is not ours
        """Bytes that are no HTTP: the answer has the form of every other error."""
        error = InvalidRequest("the request is not valid HTTP/1.1")
        body = json.dumps(error.to_wire()).encode()
        head = [STATUS_LINE[400], b"content-type: application/json\r\nconnection: close\r\n"]
        self.transport.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(body), body]))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade is not offered; the request is answered as any other."""

    def _leaves_body(self) -> bool:
        cycle = self.cycle
        if cycle is None or not cycle.more_body:
            return False
        length = dict(self.headers).get(b"content-length", b"")
        is_short = length.isdigit() and len(length) < 10 and int(length) <= LINGER_BYTES
        # A client that waits for 100 Continue may never send the body: what follows could be another request.
        return cycle.waiting_for_100_continue or not is_short

    def _close_politely(self) -> None:
        is_read = self.cycle is None or not self.cycle.more_body
        if is_read or self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._lingering_bytes = 0
        self.transport.write_eof()
        self.transport.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)


def connection_of(scope: Any) -> Connection | None:
    """The connection of a request, when it came through `FrontProtocol`."""
    connection = (scope.get("extensions") or {}).get(EXTENSION)
    return connection if isinstance(connection, Connection) else None
