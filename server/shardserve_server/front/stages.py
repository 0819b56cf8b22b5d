"""Limits on what arrives: how large a head is, and how long a head and a body may take.

A message arrives in stages: its head, then its body, either through the parser or past it. Each stage that is not over
when the bytes at hand are has a deadline. A small request, which comes whole, starts no clock.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools

from shardserve_proto.errors import HeadTooLarge, InvalidRequest, Overloaded, ShardserveError, TooSlow

from .closing import BODY, DEAF, HEAD, IDLE, PAST, ClosingProtocol, PoliteTransport
from .connection import EXTENSION
from .limits import PIPELINED_REQUESTS
from .receive import declared_length


class StagedProtocol(ClosingProtocol):
    """Refuses what is too large or too slow, and bytes that are no request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timed_stage = IDLE
        self._head_bytes = 0
        self._head_tail = b""
        self._is_behind = False
        self._parsed_bytes = 0
        self._refusal: ShardserveError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._time_stage()
        super().connection_made(transport)

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
        """Bytes that the parser is not to see."""
        self._drop(len(data))

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
        polite = PoliteTransport(self.transport, self._close_politely, has_body=self.scope["method"] != "HEAD")
        self.cycle.transport = cast(asyncio.Transport, polite)
        if b"transfer-encoding" in dict(self.headers):
            # No route reads a chunked body. Neither does the parser: its chunk headers and trailers have no limit.
            self.cycle.keep_alive = False
            self.cycle.more_body = False
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

    def _unread_bytes(self) -> int:
        return declared_length(self.headers) - self._parsed_bytes if self._stage == BODY else 0

    # ---- the end of a body, or of the patience with it

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A body that ends early is told so; any other end of file means that the client is gone."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.disconnected or self._is_lingering:
            return None
        if not cycle.more_body and self._stage != DEAF:
            return None
        self._be_deaf()
        cycle.keep_alive = False
        self._end_body()
        return self.scheme == "http"  # the answer can still be sent; TLS has no half-open connections

    def _end_body(self) -> None:
        """No more of the body will come; the route that reads it learns that."""
        self.cycle.more_body = False
        self.cycle.message_event.set()

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
            super()._too_slow()

    def _head_too_slow(self) -> None:
        if self._is_busy:  # reading may have paused for that
            self._clock.start(self.limits.head_timeout_s)
            return
        error = TooSlow(f"a request's head must be here {self.limits.head_timeout_s:g} s after it began")
        self._refuse(error, may_linger=False)

    def _body_too_slow(self) -> None:
        if self.pipeline or self.flow.read_paused:  # the server is not asking for it
            self._clock.start(self.limits.body_grace_s)
            return
        if self.cycle.response_started:
            self.transport.abort()
            return
        nbytes = declared_length(self.headers)
        allowed = self.limits.body_timeout_s(nbytes)
        self._cut_body(TooSlow(f"a body of {nbytes} bytes must be here after {allowed:g} s"))

    def end_upload(self, error: ShardserveError) -> bool:
        """Answer a request whose body is still arriving, and take no more of it; whether there was one."""
        is_arriving = self._stage in (BODY, PAST) and not self.pipeline and not self.cycle.response_started
        if is_arriving:
            self._cut_body(error)
        return is_arriving

    def _cut_body(self, error: ShardserveError) -> None:
        self._write_error(error)
        self.cycle.disconnected = True
        self._end_body()
        self._close_politely()


class _Refused(Exception):
    """Ends the parser's work on bytes that are not wanted."""
