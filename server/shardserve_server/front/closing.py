"""How a connection ends: with its answers sent, with what was not asked for unread, and never later than it must."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shardserve_proto.errors import Overloaded, ShardserveError

from .connection import Connection
from .limits import LINGER_BYTES, LINGER_S, Clock, ConnectionLimits

IDLE: Final = 0  # between two requests
HEAD: Final = 1  # a head is arriving, or the first one is awaited
BODY: Final = 2  # a body is arriving, through the parser
PAST: Final = 3  # the same, past the parser
DEAF: Final = 4  # whatever still arrives is dropped

#: A body up to this size is copied behind its head: one system call, and one wake-up of the client.
TOGETHER_BYTES = 64 * 1024

_order = itertools.count()


class ClosingProtocol(HttpToolsProtocol):
    """uvicorn's protocol with polite ends, and with a limit to how many connections there are.

    Arguments:
        limits: what a connection may take; the rest is uvicorn's.
    """

    connection: Connection

    def __init__(self, *args: Any, limits: ConnectionLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits or ConnectionLimits()
        self._stage = HEAD
        self._clock = Clock(self.loop, self._too_slow)
        self._dropped_bytes = 0
        self._due_refusal: ShardserveError | None = None
        self._is_lingering = False
        self._served = 0
        self._idle_since = next(_order)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection = Connection(
            transport,
            loop=self.loop,
            limits=self.limits,
            resume_reading=self.flow.resume_reading,
            must_close=self._leaves_body,
        )
        if len(self.connections) > self.limits.connections and not self._make_room():
            error = Overloaded("the server has as many connections as it may; try again", retry_after_s=1.0)
            self._refuse(error, may_linger=False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._be_deaf()
        self.connection.lost()

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest, those first that never asked for anything."""
        others = [peer for peer in self.connections if isinstance(peer, ClosingProtocol) and peer is not self]
        idle = [peer for peer in others if not peer._is_busy]
        if not idle:
            return False
        min(idle, key=lambda peer: (peer._served > 0, peer._idle_since)).transport.abort()
        return True

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being answered; the cycle is that of the last one that came."""
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.connection.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.connection.drained()

    def on_response_complete(self) -> None:
        self._served += 1
        self._idle_since = next(_order)
        if self._stage == DEAF or self.transport.is_closing():
            self._end_deaf()
            return
        super().on_response_complete()
        self.connection.drain()
        if self._stage != IDLE and self.cycle.response_complete and self._unread_bytes() > LINGER_BYTES:
            self._close_politely()

    def _end_deaf(self) -> None:
        """One response less is due on a connection that takes no more requests."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._is_lingering:
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        if self._due_refusal is not None:
            self._write_error(self._due_refusal)
        self._close_politely()

    def _refuse(self, error: ShardserveError, *, may_linger: bool = True) -> None:
        """Answer bytes that are no request, and end the connection; the answers that are due come first."""
        is_busy = self._is_busy
        self._be_deaf()
        if is_busy:
            self._due_refusal = error
            return
        self._write_error(error)
        if may_linger:
            self._close_politely()
        else:
            self._close()

    def _write_error(self, error: ShardserveError) -> None:
        body = json.dumps(error.to_wire()).encode()
        head = [STATUS_LINE[error.status or 400], b"content-type: application/json\r\nconnection: close\r\n"]
        self.transport.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(body), body]))

    def _be_deaf(self) -> None:
        self._stage = DEAF
        self._clock.stop()

    def _drop(self, nbytes: int) -> None:
        self._dropped_bytes += nbytes
        if self._dropped_bytes <= LINGER_BYTES:
            return
        if self._is_lingering:
            self.transport.close()
        else:
            self.flow.pause_reading()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        super().shutdown()
        self.connection.drain()

    def _leaves_body(self) -> bool:
        cycle = self.cycle
        if cycle is None or not cycle.more_body:
            return False
        # A client that waits for 100 Continue may never send the body: what follows could be another request.
        return cycle.waiting_for_100_continue or self._stage == DEAF or self._unread_bytes() > LINGER_BYTES

    def _unread_bytes(self) -> int:
        """Bytes of the body that is arriving that are not here yet."""
        raise NotImplementedError

    def _too_slow(self) -> None:
        """The clock expired; here it is the end of lingering."""
        self._close()

    def _close_politely(self) -> None:
        """Close so that a client that is still sending reads its answer: unread bytes would reset the connection."""
        is_read = self._stage == IDLE
        if is_read or self.transport.is_closing() or not self.transport.can_write_eof():
            self._close()
            return
        self._be_deaf()
        self._is_lingering = True
        self._dropped_bytes = 0
        self.transport.write_eof()
        self.flow.resume_reading()
        self._clock.start(LINGER_S)

    def _close(self) -> None:
        """Close, and hold the client to the send deadline for what is still to be sent."""
        if not self.transport.is_closing():
            self.transport.close()
            self.connection.drain()


class PoliteTransport:
    """The transport of one response: head and a small body leave together, and a client that still sends reads both.

    Arguments:
        close: ends the connection so that the answer is read.
        has_body: whether a body follows the head, as it does but for HEAD.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], *, has_body: bool) -> None:
        self._write = transport.write
        self._close = close
        self._head = b""
        self._may_hold = has_body
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes | memoryview) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= TOGETHER_BYTES:
                self._write(b"".join((head, data)))
                return
            self._write(head)
        elif self._may_hold and not bytes(data[:12]).startswith(b"HTTP/1.1 100"):
            self._may_hold = False
            self._head = bytes(data)
            return
        self._write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._close()
