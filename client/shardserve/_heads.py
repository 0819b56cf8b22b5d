"""Answers of HTTP/1.1 as bytes: their heads, strictly and within bounds, and chunked bodies. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from shardserve_proto.errors import BadReply

HEAD_BYTES = 64 * 1024
FIELDS = 100
_LINE_BYTES = 1024
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
#: A status line, then fields; no folded lines, no bare line feeds, no zero bytes.
_HEAD = re.compile(rb"HTTP/1\.[01] [1-5][0-9][0-9](?: [^\r\n\0]*)?(?:\r\n" + _TOKEN + rb":[^\r\n\0]*)*")
_BEGINNING = re.compile(rb"HTTP/1\.[01] [1-5][0-9][0-9][ \r]")
_BEGINNING_BYTES = len("HTTP/1.1 200 ")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?")


class Head(NamedTuple):
    """The head of an answer.

    Attributes:
        fields: by lower-case name; of a repeated one the values are joined by commas.
        body_bytes: of the body; None when it is chunked or ends with the connection.
        is_last: whether the connection ends with this answer.
    """

    status: int
    fields: dict[str, str]
    body_bytes: int | None
    is_chunked: bool
    is_last: bool


def head_end(received: bytes | bytearray) -> int:
    """Where the head ends, without the empty line behind it; -1 while more of it has to come.

    Raises:
        BadReply: this is no head of HTTP/1.1, or a longer one than is read.
    """
    if len(received) >= _BEGINNING_BYTES and not _BEGINNING.match(received):
        raise BadReply("the server's answer is no HTTP/1.1")
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES)
    if end < 0 and len(received) >= HEAD_BYTES:
        raise BadReply(f"the head of the server's answer is longer than {HEAD_BYTES} bytes")
    return end


def parse_head(head: bytes) -> Head:
    """Read a head, without the empty line behind it.

    Raises:
        BadReply: it breaks a rule of HTTP/1.1, has too many fields, or leaves the body's length unclear.
    """
    if not _HEAD.fullmatch(head):
        raise BadReply("the head of the server's answer is no HTTP/1.1")
    lines = head.decode("latin-1").split("\r\n")
    if len(lines) > FIELDS + 1:
        raise BadReply(f"the server's answer has more than {FIELDS} header fields")
    status, fields = int(lines[0][9:12]), _fields(lines)
    body_bytes, is_chunked = _framing(status, fields)
    connection = fields.get("connection", "").lower()
    is_last = lines[0][7] == "0" or "close" in connection or (body_bytes is None and not is_chunked)
    return Head(status, fields, body_bytes, is_chunked, is_last)


def _fields(lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name not in fields:
            fields[name] = value
        elif name != "content-length":
            fields[name] += ", " + value
        elif fields[name] != value:
            raise BadReply("the server's answer has two lengths")
    return fields


def _framing(status: int, fields: dict[str, str]) -> tuple[int | None, bool]:
    """The body's length, and whether it is chunked."""
    declared, coding = fields.get("content-length"), fields.get("transfer-encoding")
    if declared is not None and not (declared.isascii() and declared.isdigit() and len(declared) < 20):
        raise BadReply(f"the length of the server's answer is no number: {declared[:60]!r}")
    if coding is not None and (declared is not None or coding.lower() != "chunked"):
        raise BadReply(f"the server's answer has the transfer encoding {coding[:60]!r}, which is not read here")
    if status < 200 or status in (204, 304):
        return 0, False
    return (None if declared is None else int(declared)), coding is not None


class Chunks:
    """Takes a chunked body as it comes, and gives out what it carries.

    Attributes:
        is_done: whether the last chunk and the trailer are here.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._left = 0  # of the current chunk
        self._line = b""
        self._take_line = self._size
        self._trailers = 0

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The pieces of the body in these bytes.

        Raises:
            BadReply: a bad chunk size, or bytes behind the end.
        """
        view = memoryview(data)
        while view:
            if self.is_done:
                raise BadReply("bytes follow the last chunk of the server's answer")
            if not self._left:
                view = self._feed_line(view)
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            yield piece

    def _feed_line(self, view: memoryview) -> memoryview:
        """Collect a line; what is behind it is left."""
        start = bytes(view[:_LINE_BYTES])
        end = start.find(b"\n") + 1
        self._line += start[:end] if end else start
        if len(self._line) > _LINE_BYTES:
            raise BadReply("a chunk of the server's answer has no size")
        if end:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise BadReply("a line of the server's answer ends without a carriage return")
            self._take_line(line[:-2])
        return view[end or len(start) :]

    def _size(self, line: bytes) -> None:
        found = _CHUNK.fullmatch(line)
        if not found:
            raise BadReply("a chunk of the server's answer has no size")
        self._left = int(found[1], 16)
        self._take_line = self._end if self._left else self._trailer

    def _end(self, line: bytes) -> None:
        if line:
            raise BadReply("a chunk of the server's answer is longer than its size")
        self._take_line = self._size

    def _trailer(self, line: bytes) -> None:
        self._trailers += 1
        if self._trailers > FIELDS:
            raise BadReply("the trailer of the server's answer does not end")
        self.is_done = not line
