"""Answers in wire form: a frame read straight into arrays, or JSON. Nothing a server says is trusted. No I/O here.

Every length is checked before room is made for it, and an array is not touched before its bytes are there; so a server
that lies costs no more memory than the bytes it sends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from shardserve_proto.abstract import Aval
from shardserve_proto.errors import BadReply, OutOfMemory, ShardserveError, from_wire
from shardserve_proto.frames import PRELUDE_BYTES, Layout, check_gap, decode_prelude
from shardserve_proto.messages import Report

from ._arrays import Array, bytes_of
from ._config import JSON_REPLY_BYTES
from ._reply_heads import ReplyHead, read_reply_head

T = TypeVar("T")
_MESSAGE_LENGTH = 2000
_NOWHERE = memoryview(bytearray())


class FrameReader:
    """Takes the bytes of a reply as they come.

    Arguments:
        expected: abstract results, where the client knows them.
        declared_bytes: the reply's Content-Length, if it has one.
        targets: for each expected result the caller's own array, which is filled, or None.
    """

    def __init__(
        self,
        expected: Sequence[Aval] | None,
        *,
        declared_bytes: int | None,
        targets: Sequence[Array | None] = (),
    ) -> None:
        self._expected = expected
        self._given = targets
        self._declared_bytes = declared_bytes
        self._head = bytearray()
        self._layout: Layout | None = None
        self._arrays: list[Array] = []
        self._targets: list[memoryview] = []  # of each array
        self._report: Report | None = None
        self._segment = 0
        self.received_bytes = 0

    def room(self) -> memoryview:
        """The rest of the array that the next bytes belong to; empty where they are something else."""
        if self._layout is None or self._segment == len(self._targets):
            return _NOWHERE
        position = self.received_bytes - self._layout.offsets[self._segment]
        return self._targets[self._segment][position:] if position >= 0 else _NOWHERE

    def filled(self, nbytes: int) -> None:
        """So many bytes were put at the start of `room()`."""
        self.received_bytes += nbytes
        self._advance()

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            BadReply: they are not what the protocol promises.
        """
        view = memoryview(piece)
        try:
            if self._layout is None:
                view = self._feed_head(view)
            if view:
                self._feed_segments(view)
        except BadReply:
            raise
        except ShardserveError as error:
            raise BadReply(f"the server's reply is no frame of shardserve: {error.message}") from None

    def finish(self) -> tuple[list[Any], Report]:
        """The results and the report, once the last byte was fed.

        Raises:
            BadReply: the reply ended early.
        """
        if self._layout is None or self._report is None:
            raise BadReply(f"the server's reply ended after {len(self._head)} bytes, within its header")
        if self.received_bytes != self._layout.total:
            raise BadReply(f"the server's reply is truncated: {self.received_bytes} of {self._layout.total} bytes came")
        return [_as_result(array) for array in self._arrays], self._report

    def _feed_head(self, view: memoryview) -> memoryview:
        """Collect prelude and header; what is left belongs to the segments."""
        view = self._collect(view, PRELUDE_BYTES)
        if len(self._head) < PRELUDE_BYTES:
            return view
        prelude = decode_prelude(bytes(self._head[:PRELUDE_BYTES]))
        view = self._collect(view, PRELUDE_BYTES + prelude.header_bytes)
        if len(self._head) == PRELUDE_BYTES + prelude.header_bytes:
            self._begin(bytes(self._head[PRELUDE_BYTES:]), prelude.segments)
        return view

    def _collect(self, view: memoryview, length: int) -> memoryview:
        missing = max(length - len(self._head), 0)
        self._head += view[:missing]
        self.received_bytes = len(self._head)
        return view[missing:]

    def _begin(self, header: bytes, declared: int) -> None:
        head, self._report = read_reply_head(header, declared=declared, expected=self._expected)
        total = head.layout.total
        if self._declared_bytes is not None and self._declared_bytes != total:
            raise BadReply(f"the server's reply has {self._declared_bytes} bytes, its header describes {total}")
        try:
            self._arrays = (
                [np.empty(shape, dtype) for shape, dtype in head.arrays] if not self._given else self._own(head)
            )
        except MemoryError:
            raise OutOfMemory(f"this machine has no room for the results, {total} bytes") from None
        self._targets = [bytes_of(array) for array in self._arrays]
        self._layout = head.layout

    def _own(self, head: ReplyHead) -> list[Array]:
        """The caller's arrays where there are any; their forms are those expected, and so those of the reply."""
        pairs = zip(self._given, head.arrays, strict=True)
        return [np.empty(*form) if target is None else target for target, form in pairs]

    def _feed_segments(self, view: memoryview) -> None:
        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _begin
        while view:
            if self._segment == len(layout.sizes):
                raise BadReply("bytes follow the last segment of the server's reply")
            start = layout.offsets[self._segment]
            taken = self._take_gap(view, start) or self._take_data(view, start)
            view = view[taken:]
            self.received_bytes += taken
            self._advance()

    def _advance(self) -> None:
        """Go to the segment that the next bytes belong to."""
        layout = self._layout
        assert layout is not None  # noqa: S101 - set by _begin
        while self._segment < len(layout.sizes) and self.received_bytes >= self._end(layout):
            self._segment += 1

    def _end(self, layout: Layout) -> int:
        return layout.offsets[self._segment] + layout.sizes[self._segment]

    def _take_gap(self, view: memoryview, start: int) -> int:
        gap = view[: max(start - self.received_bytes, 0)]
        check_gap(gap)
        return len(gap)

    def _take_data(self, view: memoryview, start: int) -> int:
        target = self._targets[self._segment]
        position = self.received_bytes - start
        data = view[: len(target) - position]
        target[position : position + len(data)] = data
        return len(data)


def _as_result(array: Array) -> Any:
    """Rank-0 results are NumPy scalars, as NumPy gives."""
    return array if array.ndim else array[()]


def read_json(answer: type[T], body: bytes) -> T:
    """A JSON answer as what it should be.

    Arguments:
        answer: the type of it, a message or a list of them.

    Raises:
        BadReply: it is something else.
    """
    try:
        return TypeAdapter(answer).validate_json(body)
    except (ValidationError, ValueError) as error:
        raise BadReply(f"the server's answer is not what was asked for: {str(error).splitlines()[0][:200]}") from None


def read_error(status: int, body: bytes, retry_after: str | None) -> ShardserveError:
    """The error of an answer that is none of the 2xx.

    Arguments:
        retry_after: of the header, in seconds; the body's own number goes before it.
    """
    if 300 <= status < 400:
        return BadReply(f"the server answered with the redirect {status}, which is not followed; is the address right?")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    error = from_wire(parsed, status=status)
    error.message = _printable(error.message)
    error.args = (error.message,)
    if error.retry_after_s is None and retry_after is not None and retry_after.isdigit() and len(retry_after) < 9:
        error.retry_after_s = float(retry_after)
    return error


def _printable(message: str) -> str:
    """A server's text, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in message[:_MESSAGE_LENGTH])


def check_json_size(received_bytes: int) -> None:
    """Hold a JSON answer against the limit, while it is read.

    Raises:
        BadReply: it is too long.
    """
    if received_bytes > JSON_REPLY_BYTES:
        raise BadReply(f"the server's answer is longer than {JSON_REPLY_BYTES} bytes of JSON")
