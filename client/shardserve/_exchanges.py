"""One request and its answer, apart from any I/O: both shells drive the same object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from shardserve_proto.errors import BadReply
from shardserve_proto.frames import MEDIA_TYPE, Buffer
from shardserve_proto.messages import Report

from ._config import PIECE_BYTES, SMALL_BODY_BYTES
from ._replies import FrameReader, check_json_size, read_error, read_json
from ._requests import Outgoing

R = TypeVar("R")


class Exchange(Generic[R]):
    """A request that can be sent several times; the answer of the last try counts.

    Attributes:
        method, path: of the request.
        buffers: of its body, to be sent one after another.
        timeout_s: seconds for all tries together.
    """

    method = "GET"
    path = "/"
    timeout_s: float | None = None

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._status = 0
        self._retry_after: str | None = None
        self._text = bytearray()

    @property
    def body_bytes(self) -> int:
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def headers(self) -> dict[str, str]:
        return {"Accept": "application/json"}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer is here.

        Raises:
            BadReply: it has an encoding that nobody asked for.
        """
        self._status = status
        self._retry_after = headers.get("retry-after")
        self._text.clear()
        if headers.get("content-encoding", "identity") != "identity":
            raise BadReply("the server's answer is compressed, which was not asked for")
        if status == 200:
            self._begin(headers)

    def feed(self, piece: bytes) -> None:
        """The next bytes of the answer's body."""
        if self._status == 200:
            self._feed(piece)
        else:
            self._collect(piece)

    def finish(self) -> R:
        """The answer, once it is complete.

        Raises:
            ShardserveError: the answer is an error, or not what was asked for.
        """
        if self._status != 200:
            raise read_error(self._status, bytes(self._text), self._retry_after)
        return self._finish()

    def _collect(self, piece: bytes) -> None:
        check_json_size(len(self._text) + len(piece))
        self._text += piece

    def _begin(self, headers: Mapping[str, str]) -> None:
        pass

    def _feed(self, piece: bytes) -> None:
        self._collect(piece)

    def _finish(self) -> R:
        raise NotImplementedError


class Question(Exchange[R]):
    """A GET whose answer is JSON."""

    def __init__(self, path: str, answer: type[R], timeout_s: float | None) -> None:
        super().__init__()
        self.path = path
        self.timeout_s = timeout_s
        self._answer = answer

    def _finish(self) -> R:
        return read_json(self._answer, bytes(self._text))


class CallExchange(Exchange[tuple[list[Any], Report, int]]):
    """A call: a frame out, a frame in; it gives the values, the report and the bytes received."""

    method = "POST"
    path = "/v1/call"

    def __init__(self, outgoing: Outgoing) -> None:
        super().__init__()
        self.buffers = outgoing.frame()
        self.timeout_s = outgoing.timeout_s
        self._expected = outgoing.expected
        self._reader: FrameReader | None = None

    def headers(self) -> dict[str, str]:
        return {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE, "Content-Length": str(self.body_bytes)}

    def _begin(self, headers: Mapping[str, str]) -> None:
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != MEDIA_TYPE:
            raise BadReply(f"the server answered a call with {given[:60] or 'no type'!r}, not with a frame")
        declared = headers.get("content-length", "")
        is_number = declared.isascii() and declared.isdigit() and len(declared) < 20
        self._reader = FrameReader(self._expected, declared_bytes=int(declared) if is_number else None)

    def _feed(self, piece: bytes) -> None:
        assert self._reader is not None  # noqa: S101 - set by _begin
        self._reader.feed(piece)

    def _finish(self) -> tuple[list[Any], Report, int]:
        assert self._reader is not None  # noqa: S101 - set by _begin
        values, report = self._reader.finish()
        return values, report, self._reader.received_bytes


def whole_or_pieces(exchange: Exchange[Any]) -> bytes | list[Buffer]:
    """A small body as one `bytes`, a large one as its buffers (httpx sends a bytearray as nothing)."""
    if exchange.body_bytes <= SMALL_BODY_BYTES:
        return b"".join(bytes(buffer) for buffer in exchange.buffers)
    return exchange.buffers


def pieces(buffers: list[Buffer]) -> Iterator[memoryview]:
    """Views of at most 1 MiB: a larger one is copied again and again on its way into the socket."""
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
