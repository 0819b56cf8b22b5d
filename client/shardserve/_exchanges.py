"""One request and its answer, apart from any I/O: both shells drive the same object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from shardserve_proto.errors import BadReply, ShardserveError
from shardserve_proto.frames import MEDIA_TYPE, Buffer
from shardserve_proto.handles import EPOCH, EPOCH_FIELD
from shardserve_proto.messages import Report

from ._arrays import handles_of
from ._config import HTTPX_PIECE_BYTES, SMALL_BODY_BYTES
from ._progress import Meter, ProgressCallback
from ._replies import FrameReader, check_json_size, read_error
from ._requests import Outgoing

R = TypeVar("R")
NOWHERE = memoryview(bytearray())


class Exchange(Generic[R]):
    """A request that can be sent several times; the answer of the last try counts.

    Attributes:
        method, path: of the request.
        buffers: of its body, to be sent one after another.
        timeout_s: seconds for all tries together.
        progress: is told how far large bodies are.
        good: the statuses of an answer that is none of an error.
        epochs: those of the arrays in the request.
        epoch: that of the server which answered; empty where it told none.
    """

    method = "GET"
    path = "/"
    timeout_s: float | None = None
    progress: ProgressCallback | None = None
    good = range(200, 201)
    epochs: frozenset[str] = frozenset()
    epoch = ""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._status = 0
        self._retry_after: str | None = None
        self._text = bytearray()
        self._sending: Meter | None = None
        self._receiving: Meter | None = None

    @property
    def body_bytes(self) -> int:
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def headers(self) -> dict[str, str]:
        """The fields of the request's head, but for those of the address."""
        return {EPOCH_FIELD: ", ".join(sorted(self.epochs))} if self.epochs else {}

    def begin_sending(self) -> None:
        """The body is about to be sent, perhaps again."""
        self._sending = Meter.of(self.progress, "sent", self.body_bytes)

    def sent(self, nbytes: int) -> None:
        """So many more bytes of the body are on their way."""
        if self._sending is not None:
            self._sending.moved(nbytes)

    def failed(self) -> None:
        """This try ended without an answer; no progress bar is left standing."""
        for meter in (self._sending, self._receiving):
            if meter is not None:
                meter.failed()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer is here.

        Raises:
            BadReply: it has an encoding that nobody asked for.
        """
        self._status = status
        self._retry_after = headers.get("retry-after")
        told = headers.get(EPOCH_FIELD, "")
        self.epoch = told if EPOCH.fullmatch(told) else ""  # it goes into later requests
        self._text.clear()
        self._receiving = None
        if headers.get("content-encoding", "identity") != "identity":
            raise BadReply("the server's answer is compressed, which was not asked for")
        if status == 200:
            self._begin(headers)

    def feed(self, piece: bytes | memoryview) -> None:
        """The next bytes of the answer's body."""
        if self._status == 200:
            self._feed(piece)
        else:
            self._collect(piece)
        if self._receiving is not None:
            self._receiving.moved(len(piece))

    def room(self) -> memoryview:
        """Where the next bytes of the body may be put instead of being fed; empty where that is nowhere."""
        return NOWHERE

    def filled(self, nbytes: int) -> None:
        """So many bytes were put there."""

    def finish(self) -> R:
        """The answer, once it is complete.

        Raises:
            ShardserveError: the answer is an error, or not what was asked for.
        """
        try:
            if self._status not in self.good:
                raise read_error(self._status, bytes(self._text), self._retry_after)
            return self._finish()
        except ShardserveError:
            self.failed()
            raise

    def _collect(self, piece: bytes | memoryview) -> None:
        check_json_size(len(self._text) + len(piece))
        self._text += piece

    def _begin(self, headers: Mapping[str, str]) -> None:
        pass

    def _feed(self, piece: bytes | memoryview) -> None:
        self._collect(piece)

    def _finish(self) -> R:
        raise NotImplementedError


class CallExchange(Exchange[tuple[list[Any], Report, int]]):
    """A call: a frame out, a frame in; it gives the values, the report and the bytes received."""

    method = "POST"
    path = "/v1/call"

    def __init__(self, outgoing: Outgoing) -> None:
        super().__init__()
        self.buffers = outgoing.frame()
        self._body_bytes = sum(map(len, self.buffers))  # flat buffers of bytes
        self.timeout_s = outgoing.timeout_s
        self.progress = outgoing.progress
        self._expected = outgoing.expected
        self._targets = outgoing.targets
        self.epochs = frozenset(handle.epoch for handle in handles_of(outgoing.leaves)) - {""}
        self._reader: FrameReader | None = None

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    def headers(self) -> dict[str, str]:
        own = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE, "Content-Length": str(self._body_bytes)}
        return own | super().headers()

    def room(self) -> memoryview:
        return self._reader.room() if self._reader is not None else NOWHERE

    def filled(self, nbytes: int) -> None:
        assert self._reader is not None  # noqa: S101 - it gave the room
        self._reader.filled(nbytes)
        if self._receiving is not None:
            self._receiving.moved(nbytes)

    def _begin(self, headers: Mapping[str, str]) -> None:
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != MEDIA_TYPE:
            raise BadReply(f"the server answered a call with {given[:60] or 'no type'!r}, not with a frame")
        declared = headers.get("content-length", "")
        is_number = declared.isascii() and declared.isdigit() and len(declared) < 20
        self._reader = FrameReader(
            self._expected, declared_bytes=int(declared) if is_number else None, targets=self._targets
        )
        self._receiving = Meter.of(self.progress, "received", int(declared)) if is_number else None

    def _feed(self, piece: bytes | memoryview) -> None:
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
    """Views of at most 1 MiB, for httpx."""
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for start in range(0, len(view), HTTPX_PIECE_BYTES):
            yield view[start : start + HTTPX_PIECE_BYTES]
