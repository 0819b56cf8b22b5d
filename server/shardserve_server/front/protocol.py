"""The front's HTTP protocol: uvicorn's, with limits, polite ends, and large bodies that arrive where they stay."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from .closing import BODY, DEAF, IDLE, PAST
from .connection import Connection, connection_of
from .receive import READ_BYTES, WAKE_BYTES, BulkReceiver, ClientGone, declared_length, take, wake_at
from .stages import StagedProtocol

__all__ = ["Connection", "FrontProtocol", "connection_of"]


class FrontProtocol(StagedProtocol):
    """One HTTP connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left_bytes = 0
        self._is_patient = False
        self._fill: asyncio.Future[None] | None = None
        self._receiver: BulkReceiver | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection.fill = self.fill

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_fill(ClientGone())

    async def fill(self, extensions: object, target: memoryview) -> int | None:
        """Receive the next bytes of a body straight into their place.

        Arguments:
            extensions: of the scope of the request that they belong to.

        Returns: the bytes received; fewer than asked for when the body ends before. None when the whole body is here
            already, and the next request behind it: the rest is where uvicorn left it.

        Raises:
            ClientGone: the connection ends before.
        """
        cycle = self.cycle
        if cycle is None or cycle.scope["extensions"] is not extensions:
            return None
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
        if cycle.disconnected:
            raise ClientGone
        return taken + before - self._left_bytes

    async def _fill_past(self, target: memoryview) -> None:
        self._fill = self.loop.create_future()
        # uvloop looks at what kind of protocol a connection has when reading starts.
        self.flow.pause_reading()
        self._receiver = BulkReceiver(cast(asyncio.Protocol, self), target, self._count_fill)
        self.transport.set_protocol(self._receiver)
        self._be_patient(len(target) >= 2 * WAKE_BYTES)
        self.flow.resume_reading()
        if self._timed_stage != PAST:
            self._time_stage()
        try:
            await self._fill
        finally:
            if self._fill is not None:  # given up
                self._end_fill()

    def _count_fill(self, nbytes: int, left: int) -> None:
        if not left:
            self._end_fill()
        elif nbytes == READ_BYTES:
            # There may be more already, and uvloop reads on while there is: the other connections come first.
            self.flow.pause_reading()
            self.loop.call_soon(self._go_on, self._fill)
        if left < 2 * WAKE_BYTES:
            self._be_patient(False)
        self._count_past(nbytes)

    def _go_on(self, fill: object) -> None:
        if self._fill is fill and not self.transport.is_closing():
            self.flow.resume_reading()

    def _be_patient(self, is_patient: bool) -> None:
        """Wake up for many bytes at once only, or for each; under TLS the bytes of the socket are not the body's."""
        if is_patient != self._is_patient and self.scheme == "http":
            self._is_patient = is_patient
            wake_at(self.transport, WAKE_BYTES if is_patient else 1)

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
        if self._receiver is not None:
            self._receiver.let_go()
            self._receiver = None
        if not self.transport.is_closing():
            self._be_patient(False)
            self.flow.pause_reading()  # until the route wants more
            self.transport.set_protocol(self)
        if not fill.done():
            fill.set_result(None) if error is None else fill.set_exception(error)

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

    def _unread_bytes(self) -> int:
        return self._left_bytes if self._stage == PAST else super()._unread_bytes()

    def _end_body(self) -> None:
        super()._end_body()
        self._end_fill()
