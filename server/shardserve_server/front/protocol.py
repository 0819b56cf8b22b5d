"""uvicorn's HTTP protocol with what it lacks: limits on what arrives, and large bodies that arrive where they stay.

A message arrives in stages: its head, then its body, either through the parser or past it. Each stage that is not over
when the bytes at hand are has a deadline. A small request, which comes whole, starts no clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shardserve_proto.errors import HeadTooLarge, InvalidRequest, Overloaded, ShardserveError, TooSlow

from .connection import EXTENSION, Connection, connection_of
from .limits import LINGER_BYTES, LINGER_S, PIPELINED_REQUESTS, Clock, ConnectionLimits
from .receive import BulkReceiver, ClientGone, declared_length, take

__all__ = ["Connection", "FrontProtocol", "connection_of"]

IDLE: Final = 0  # between two requests
HEAD: Final = 1  # a head is arriving, or the first one is awaited
BODY: Final = 2  # a body is arriving, through the parser
PAST: Final = 3  # the same, past the parser
DEAF: Final = 4  # whatever still arrives is dropped


_order = itertools.count()


class FrontProtocol(HttpToolsProtocol):
    """One HTTP connection.

    Arguments:
        limits: what it may take; the rest is uvicorn's.
    """

    connection: Connection

    def __init__(self, *args: Any, limits: ConnectionLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits or ConnectionLimits()
        self._stage = HEAD
        self._timed_stage = IDLE
        self._clock = Clock(self.loop, self._too_slow)
        self._head_bytes = 0
        self._head_tail = b""
        self._is_behind = False
        self._parsed_bytes = 0
        self._left_bytes = 0
        self._dropped_bytes = 0
        self._refusal: ShardserveError | None = None
        self._due_refusal: ShardserveError | None = None
        self._is_lingering = False
        self._fill: asyncio.Future[None] | None = None
        self._served = 0
        self._idle_since = next(_order)

    # ---- the connection comes and goes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection = Connection(
            transport,
            loop=self.loop,
            limits=self.limits,
            resume_reading=self.flow.resume_reading,
            must_close=self._leaves_body,
            fill=self.fill,
        )
        self._time_stage()
        if len(self.connections) > self.limits.connections and not self._make_room():
            error = Overloaded("the server has as many connections as it may; try again", retry_after_s=1.0)
            self._refuse(error, may_linger=False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stage = DEAF
        self._clock.stop()
        self._end_fill(ClientGone())
        self.connection.lost()

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest, those first that never asked for anything."""
        others = [peer for peer in self.connections if isinstance(peer, FrontProtocol) and peer is not self]
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

    # ---- bytes arrive

    def data_received(self, data: bytes) -> None:
        if self._stage >= PAST:
            self._pass_parser(data)
            return
        if self._stage <= HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes and not self._ends_in_time(data):
                self._refuse(HeadTooLarge(f"a request's head has at most {self.limits.head_bytes} bytes"))
                return
        self._parse(data)
        if self._stage != self._timed_stage:
            self._time_stage()
        elif self._stage == IDLE and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # Line ends before a request, or the end of a body that nobody read: idle as after any response.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No upgrade is offered: the request is answered as any other, but what follows it may be no HTTP.
            self.cycle.keep_alive = False
            self._be_deaf()
        except httptools.HttpParserError:
            if self._stage != DEAF:
                self._refuse(self._refusal or InvalidRequest("the request is not valid HTTP/1.1"))
        if self._stage == HEAD:
            self._head_tail = (self._head_tail + data[-3:])[-3:]

    def _ends_in_time(self, data: bytes) -> bool:
        """Whether the head's end is among its first bytes, as many as are allowed."""
        room = self.limits.head_bytes - (self._head_bytes - len(data))
        return b"\r\n\r\n" in self._head_tail + data[:room]

    def _pass_parser(self, data: bytes) -> None:
        if self._stage == DEAF:
            self._drop(len(data))
            return
        body, rest = data[: self._left_bytes], data[self._left_bytes :]
        if not self.cycle.response_complete:
            self.cycle.body += body
            if len(self.cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
        self._count_past(len(body))
        self.cycle.message_event.set()
        if rest:
            self.data_received(rest)

    def _drop(self, nbytes: int) -> None:
        self._dropped_bytes += nbytes
        if self._dropped_bytes <= LINGER_BYTES:
            return
        if self._is_lingering:
            self.transport.close()
        else:
            self.flow.pause_reading()

    # ---- what the parser sees

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: cast(Any, self.connection)}
        self._stage = HEAD
        self._parsed_bytes = 0
        self._is_behind = not self._head_bytes

    def on_headers_complete(self) -> None:
        self._check_head()
        super().on_headers_complete()
        self._stage = BODY
        self._head_bytes = 0
        self._head_tail = b""
        self.cycle.transport = cast(asyncio.Transport, _PoliteTransport(self.transport, self._close_politely))
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            # No route reads a chunked body. Neither does the parser: its chunk headers and trailers have no limit.
            self.cycle.keep_alive = False
            self._be_deaf()
            raise _Refused

    def _check_head(self) -> None:
        if self._is_behind and self._shown_bytes() > self.limits.head_bytes:
            self._refusal = HeadTooLarge(f"a request's head has at most {self.limits.head_bytes} bytes")
        elif len(self.headers) > self.limits.head_fields:
            self._refusal = HeadTooLarge(f"a request has at most {self.limits.head_fields} header fields")
        elif len(self.pipeline) >= PIPELINED_REQUESTS:
            self._refusal = Overloaded("too many requests wait on this connection")
        if self._refusal is not None:
            raise _Refused

    def _shown_bytes(self) -> int:
        """The size of a head as it is usually written: its bytes were not counted, since it began amid others."""
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n\r\n")
        return line + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        self._parsed_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stage = IDLE
        if self._timed_stage != IDLE:
            self._timed_stage = DEAF  # what follows has a time of its own

    # ---- a large body

    async def fill(self, extensions: object, target: memoryview) -> int:
        """Receive the next bytes of a body straight into their place.

        Arguments:
            extensions: of the scope of the request that they belong to.

        Returns: the bytes received; fewer than asked for when the body ends before.

        Raises:
            ClientGone: the connection ends before.
        """
        cycle = self.cycle
        if cycle is None or cycle.scope["extensions"] is not extensions:
            return 0  # another request came meanwhile, so this one's body is complete
        taken = take(cycle.body, target)
        if taken == len(target) or not cycle.more_body:
            return taken
        if cycle.disconnected or self.transport.is_closing() or self._stage not in (BODY, PAST):
            raise ClientGone
        if self._stage == BODY:
            self._stage = PAST
            self._left_bytes = declared_length(self.headers) - self._parsed_bytes
        if cycle.waiting_for_100_continue:
            cycle.waiting_for_100_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        before = self._left_bytes
        await self._fill_past(target[taken : taken + before])
        return taken + before - self._left_bytes

    async def _fill_past(self, target: memoryview) -> None:
        self._fill = self.loop.create_future()
        # uvloop looks at what kind of protocol a connection has when reading starts.
        self.flow.pause_reading()
        self.transport.set_protocol(BulkReceiver(cast(asyncio.Protocol, self), target, self._count_fill))
        self.flow.resume_reading()
        if self._timed_stage != PAST:
            self._time_stage()
        try:
            await self._fill
        finally:
            if self._fill is not None:  # given up
                self._end_fill()

    def _count_fill(self, nbytes: int, is_full: bool) -> None:
        if is_full:
            self._end_fill()
        self._count_past(nbytes)

    def _count_past(self, nbytes: int) -> None:
        """So many more bytes of the body are here; after the last one the parser starts afresh."""
        self._left_bytes -= nbytes
        if self._left_bytes:
            return
        self._stage = IDLE
        self._time_stage()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()
        self.flow.resume_reading()

    def _end_fill(self, error: Exception | None = None) -> None:
        """Read as HTTP again, and wake the route."""
        fill, self._fill = self._fill, None
        if fill is None:
            return
        if not self.transport.is_closing():
            self.flow.pause_reading()  # until the route wants more
            self.transport.set_protocol(self)
        if not fill.done():
            fill.set_result(None) if error is None else fill.set_exception(error)

    # ---- deadlines

    def _time_stage(self) -> None:
        self._timed_stage = self._stage
        if self._stage == HEAD:
            self._clock.start(self.limits.head_timeout_s)
        elif self._stage in (BODY, PAST):
            self._clock.start(self.limits.body_timeout_s(declared_length(self.headers)))
        else:
            self._clock.stop()

    def _too_slow(self) -> None:
        if self._stage == HEAD:
            self._head_too_slow()
        elif self._stage in (BODY, PAST):
            self._body_too_slow()
        else:
            self._close()

    def _head_too_slow(self) -> None:
        if self._is_busy:  # reading may have paused for that
            self._clock.start(self.limits.head_timeout_s)
            return
        error = TooSlow(f"a request's head must be here {self.limits.head_timeout_s:g} s after it began")
        self._refuse(error, may_linger=False)

    def _body_too_slow(self) -> None:
        if self.pipeline or (self._fill is None and self.flow.read_paused):  # the server is not asking for it
            self._clock.start(self.limits.body_grace_s)
            return
        cycle = self.cycle
        if cycle.response_started:
            self.transport.abort()
            return
        nbytes = declared_length(self.headers)
        allowed = self.limits.body_timeout_s(nbytes)
        self._write_error(TooSlow(f"a body of {nbytes} bytes must be here after {allowed:g} s"))
        cycle.disconnected = True
        cycle.message_event.set()
        self._end_fill(ClientGone())
        self._close_politely()

    # ---- endings

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A body that ends early is told so; any other end of file means that the client is gone."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.more_body:
            return None
        self._be_deaf()
        cycle.more_body = False
        cycle.keep_alive = False
        cycle.message_event.set()
        self._end_fill()
        return self.scheme == "http"  # the answer can still be sent; TLS has no half-open connections

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
        self._time_stage()

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
        if self._stage == PAST:
            return self._left_bytes
        return declared_length(self.headers) - self._parsed_bytes if self._stage == BODY else 0

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


class _PoliteTransport:
    """A transport whose `close` lets a client that is still sending read its answer first."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.close = close


class _Refused(Exception):
    """Ends the parser's work on bytes that are not wanted."""
