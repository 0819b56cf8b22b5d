"""One stream socket between front and engine: length-prefixed msgpack messages, each with an optional raw payload.

The front's side lives in its event loop (`LoopChannel`), the engine's side in threads (`ThreadChannel`). Descriptors of
shared buffers take a socket of their own (`descriptors.py`), since event-loop transports cannot send them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgpack
import structlog

from shardserve_proto.errors import TooLarge
from shardserve_proto.frames import Buffer

from .messages import Message, from_fields, to_fields

PREFIX = struct.Struct("<II")  # bytes of the message, bytes of the payload
#: Both ends are ours, so these only tell a broken stream from a message.
MESSAGE_LIMIT_BYTES = 16 * 2**20
PAYLOAD_LIMIT_BYTES = 16 * 2**20
BUFFER_BYTES = 64 * 1024


class BrokenLink(ConnectionError):
    """The other end is gone, or the stream holds what no end of ours writes."""


def encode(message: Message, payload: Sequence[Buffer] = ()) -> bytes:
    """A message and its payload as one piece; payloads are small, so that a copy costs less than a second write.

    Raises:
        TooLarge: the other end would take it for a broken stream.
    """
    packed = msgpack.packb(to_fields(message), use_bin_type=True)
    payload_bytes = sum(len(part) for part in payload)
    if len(packed) > MESSAGE_LIMIT_BYTES or payload_bytes > PAYLOAD_LIMIT_BYTES:
        # Refused here, it fails one call; at the other end it would end the link, and the engine with it.
        raise TooLarge(f"a message of {len(packed)} and {payload_bytes} bytes is too large for the engine's link")
    return b"".join((PREFIX.pack(len(packed), payload_bytes), packed, *payload))


def _sizes(prefix: Buffer) -> tuple[int, int]:
    message_bytes, payload_bytes = PREFIX.unpack(prefix)
    if message_bytes > MESSAGE_LIMIT_BYTES or payload_bytes > PAYLOAD_LIMIT_BYTES:
        raise BrokenLink("a message of the link claims an impossible length")
    return message_bytes, payload_bytes


def _decode(packed: Buffer) -> Message:
    try:
        return from_fields(msgpack.unpackb(packed, use_list=False, strict_map_key=False))
    except (ValueError, msgpack.UnpackException) as error:
        raise BrokenLink("a message of the link cannot be read") from error


class StreamDecoder:
    """Cuts a stream into messages, however it was split on its way."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: Buffer) -> Iterator[tuple[Message, memoryview]]:
        """The messages that are complete with `data`, each with its payload."""
        self._pending += data
        while len(self._pending) >= PREFIX.size:
            message_bytes, payload_bytes = _sizes(self._pending[: PREFIX.size])
            payload_at = PREFIX.size + message_bytes
            end = payload_at + payload_bytes
            if len(self._pending) < end:
                return
            message = _decode(self._pending[PREFIX.size : payload_at])
            payload = memoryview(bytes(self._pending[payload_at:end]))
            del self._pending[:end]
            yield message, payload


class LoopChannel(asyncio.Protocol):
    """The front's end.

    Arguments:
        on_message: called for each message, with its payload.
        on_end: called once, when the other end is gone or the stream is broken.
    """

    def __init__(self, *, on_message: Callable[[Message, memoryview], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._decoder = StreamDecoder()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(
        cls,
        end: socket.socket,
        *,
        on_message: Callable[[Message, memoryview], None],
        on_end: Callable[[], None],
    ) -> LoopChannel:
        """Take over one end of a socket pair."""
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        _, channel = await loop.create_unix_connection(lambda: cls(on_message=on_message, on_end=on_end), sock=end)
        return channel

    def send(self, message: Message, payload: Sequence[Buffer] = ()) -> None:
        """Queue a message; one to an end that is gone is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message, payload))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not derive from asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            for message, payload in self._decoder.feed(data):
                self._on_message(message, payload)
        except BrokenLink as error:
            structlog.get_logger("shardserve.link").error("link broken", reason=str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the end is all that matters
        self._on_end()


class ThreadChannel:
    """The engine's end: one thread receives, any thread sends."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._send_lock = threading.Lock()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._arrived = self._buffer[:0]

    def send(self, message: Message, payload: Sequence[Buffer] = ()) -> None:
        """Send a message, whole.

        Must not be called from a finalizer: one may run inside another send of the same thread.

        Raises:
            BrokenLink: the front is gone.
        """
        data = encode(message, payload)
        try:
            with self._send_lock:
                self._socket.sendall(data)
        except OSError as error:
            raise BrokenLink("the front is gone") from error

    def receive(self) -> tuple[Message, memoryview]:
        """Wait for the next message and its payload.

        Raises:
            BrokenLink: the front is gone.
        """
        message_bytes, payload_bytes = _sizes(self._take(PREFIX.size))
        message = _decode(self._take(message_bytes))
        return message, self._take(payload_bytes).toreadonly()

    def _take(self, nbytes: int) -> memoryview:
        """The next bytes, in memory of their own; most messages come with one look at the socket."""
        taken = memoryview(bytearray(nbytes))
        position = 0
        while position < nbytes:
            if not self._arrived:
                if nbytes - position >= len(self._buffer):
                    position += self._receive_into(taken[position:])
                    continue
                self._arrived = self._buffer[: self._receive_into(self._buffer)]
            piece = self._arrived[: nbytes - position]
            taken[position : position + len(piece)] = piece
            position += len(piece)
            self._arrived = self._arrived[len(piece) :]
        return taken

    def _receive_into(self, view: memoryview) -> int:
        try:
            received = self._socket.recv_into(view)
        except OSError as error:
            raise BrokenLink("the front is gone") from error
        if not received:
            raise BrokenLink("the front closed the link")
        return received
