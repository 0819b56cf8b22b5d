"""Reading a request's body: its length is known and checked before a byte is read, and it is read only once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope

from shardserve_proto.errors import BadFrame, InvalidRequest, LengthRequired, TooLarge, UnsupportedMediaType

from .connection import connection_of
from .receive import BULK_BYTES, ClientGone

__all__ = ["BodyReader", "ClientGone", "check_media_type", "content_length", "headers_of"]

DIGITS = frozenset(b"0123456789")


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The request's headers; names are lower case, and of a repeated one the last counts."""
    return dict(scope["headers"])


def content_length(headers: Mapping[bytes, bytes], *, limit: int) -> int:
    """The declared length of the body.

    Raises:
        LengthRequired: none is declared (a chunked body).
        TooLarge: over the limit; nothing was read.
    """
    declared = headers.get(b"content-length")
    if declared is None or b"transfer-encoding" in headers:
        raise LengthRequired("a body needs a Content-Length; chunked bodies are not read")
    if not declared or not DIGITS.issuperset(declared) or len(declared) > 20:
        raise InvalidRequest("the Content-Length is not a number")
    length = int(declared)
    if length > limit:
        raise TooLarge(
            f"the body has {length} bytes, at most {limit} are allowed",
            details={"needed_bytes": length, "limit_bytes": limit},
        )
    return length


def check_media_type(headers: Mapping[bytes, bytes], expected: str) -> None:
    """Hold the Content-Type against the one that the route reads.

    Raises:
        UnsupportedMediaType: otherwise, or with a Content-Encoding.
    """
    given = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if given != expected.encode():
        shown = given[:60].decode("latin-1") or "none"
        raise UnsupportedMediaType(f"this route reads Content-Type {expected}, not {shown}")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise UnsupportedMediaType("compressed bodies are not read; send it without a Content-Encoding")


class BodyReader:
    """Hands out a body piece by piece.

    Arguments:
        length: the declared length.
        scope: of the request; with it, large pieces come straight from the connection where that can be.
    """

    def __init__(self, receive: Receive, *, length: int, scope: Scope | None = None) -> None:
        self._receive = receive
        self._extensions = scope.get("extensions") if scope is not None else None
        self._connection = connection_of(scope) if scope is not None else None
        self._chunk = memoryview(b"")
        self._has_more = True
        self.unread_bytes = length

    async def read(self, nbytes: int) -> bytes:
        """The next `nbytes`.

        Raises:
            BadFrame: the body ends before.
            ClientGone: the connection ends before.
        """
        if len(self._chunk) >= nbytes:
            return bytes(self._take(nbytes))
        target = bytearray(nbytes)
        await self.read_into(memoryview(target))
        return bytes(target)

    async def read_into(self, target: memoryview) -> None:
        """Fill the target with the next bytes; raises as `read` does."""
        position = 0
        while position < len(target):
            if not self._chunk and self._has_more and self._is_bulk(len(target) - position):
                position += await self._fill(target[position:])
                continue
            piece = await self._next(len(target) - position)
            target[position : position + len(piece)] = piece
            position += len(piece)

    async def read_all(self) -> bytes:
        """The rest of the body."""
        return await self.read(self.unread_bytes)

    def _is_bulk(self, nbytes: int) -> bool:
        return nbytes >= BULK_BYTES and self._connection is not None

    async def _fill(self, target: memoryview) -> int:
        assert self._connection is not None  # noqa: S101 - see _is_bulk
        nbytes = await self._connection.fill(self._extensions, target)
        if nbytes is None:
            self._connection = None  # from here on the ordinary way
            return 0
        self.unread_bytes -= nbytes
        self._has_more = nbytes == len(target) and self.unread_bytes > 0
        return nbytes

    async def _next(self, most: int) -> memoryview:
        while not self._chunk:
            if not self._has_more:
                raise BadFrame(f"the body is truncated: {self.unread_bytes} bytes of it never came")
            message: Any = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._chunk = memoryview(message.get("body", b""))
            self._has_more = message.get("more_body", False)
        return self._take(most)

    def _take(self, most: int) -> memoryview:
        piece, self._chunk = self._chunk[:most], self._chunk[most:]
        self.unread_bytes -= len(piece)
        return piece
