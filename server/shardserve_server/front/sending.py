"""A reply's body on its way out, as views of shared memory that are let go once their bytes are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Send

from ..link.buffers import Lease
from .connection import Connection

Piece = bytes | bytearray | memoryview
#: A body up to this size is copied into one piece, which is cheaper than several writes.
SMALL_BODY_BYTES = 128 * 1024
PIECE_BYTES = 2**20


class Sender:
    """Sends one body of known length, piece by piece; a slow reader holds back the next one.

    Arguments:
        connection: knows when bytes are gone; None under another ASGI server, where a view may not outlive its `send`.
        total: bytes of the body.
    """

    def __init__(self, send: Send, connection: Connection | None, *, total: int) -> None:
        self._send = send
        self._connection = connection
        self._left = total

    async def send_all(self, parts: Sequence[Piece]) -> None:
        """The whole body; a small one in one piece."""
        if self._connection is None or self._left <= SMALL_BODY_BYTES:
            await self.send(b"".join(parts))
            return
        for part in parts:
            await self.send(part)

    async def send(self, part: Piece) -> None:
        """The next bytes, as views."""
        view = memoryview(part)
        for start in range(0, max(1, len(view)), PIECE_BYTES):
            if self._connection is not None and self._connection.is_lost:
                return
            piece = view[start : start + PIECE_BYTES]
            self._left -= len(piece)
            body = bytes(piece) if self._connection is None else piece
            await self._send({"type": "http.response.body", "body": body, "more_body": self._left > 0})

    async def send_lease(self, lease: Lease) -> None:
        """The bytes of a lease, which is released once they are gone."""
        try:
            await self.send(lease.view)
        finally:
            self.when_sent(lease.release)

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call back once what was sent so far is out of this process' memory.

        A callback, not an await: a cancelled task must not let go of bytes that are still to be sent.
        """
        if self._connection is None:
            callback()
        else:
            self._connection.when_flushed(callback)
