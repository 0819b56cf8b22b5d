"""One connection of the blocking client: a request goes out, its answer comes in. The socket never blocks by itself."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

from shardserve_proto.errors import BadReply
from shardserve_proto.frames import Buffer

from ._config import (
    EXPECT_BYTES,
    EXPECT_WAIT_S,
    KEEP_ALIVE_S,
    PIECE_BYTES,
    READ_TIMEOUT_S,
    SMALL_BODY_BYTES,
    WRITE_TIMEOUT_S,
)
from ._exchanges import Exchange
from ._heads import Chunks, Head, head_end, parse_head
from ._patience import Patience
from ._sockets import READ, WRITE, wait

_RECEIVE_BYTES = 64 * 1024
#: Answers 1xx before the real one.
_INTERIMS = 16
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """One connection and what was read from it ahead of time.

    Arguments:
        connected: the socket, with TLS or without.
        url: of the server, for messages.
    """

    def __init__(self, connected: socket.socket, url: str) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._url = url
        self._input = bytearray()
        self._is_ended = False
        self._interims = 0
        self._may_send = False
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        """Whether the server has neither closed an idle connection nor said anything on it."""
        is_young = time.monotonic() - self.idle_since < KEEP_ALIVE_S
        return is_young and not wait(self._socket, READ, 0.0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def run(self, head: bytes, exchange: Exchange[Any], patience: Patience) -> bool:
        """Send a request, read its answer, and tell whether the connection can be used again.

        Raises:
            TransportError: there is no whole answer.
        """
        self._interims, self._may_send = 0, False
        is_sent = self._send_request(head, exchange, patience)
        answer = self._read_head(patience)
        exchange.begin(answer.status, answer.fields)
        if answer.is_chunked:
            self._read_chunks(exchange, patience)
        elif answer.body_bytes is None:
            self._read_to_end(exchange, patience)
        else:
            self._read_body(answer.body_bytes, exchange, patience)
        return is_sent and not answer.is_last and not self._has_more()

    # --- the request -------------------------------------------------------------------------------------------------

    def _send_request(self, head: bytes, exchange: Exchange[Any], patience: Patience) -> bool:
        """Whether all of it was sent; if not, there is an answer, or the connection is gone."""
        exchange.begin_sending()
        if exchange.body_bytes <= SMALL_BODY_BYTES:
            return self._send(memoryview(b"".join([head, *exchange.buffers])), patience)
        if exchange.body_bytes > EXPECT_BYTES:
            if not self._send(memoryview(head), patience) or not self._is_wanted(patience):
                return False
            head = b""
        return all(self._send(view, patience, exchange) for view in _gathered(head, exchange.buffers))

    def _send(self, view: memoryview, patience: Patience, exchange: Exchange[Any] | None = None) -> bool:
        position = 0
        while position < len(view):
            try:
                sent = self._socket.send(view[position : position + PIECE_BYTES])
            except _BLOCKED as blocked:
                if self._is_answered(blocked, patience):
                    return False
                continue
            except OSError:
                return False  # what the server said before is read first
            position += sent
            if exchange is not None:
                exchange.sent(sent)
        return True

    def _is_answered(self, blocked: OSError, patience: Patience) -> bool:
        """Wait until more can be sent, or an answer is there already."""
        events = READ if isinstance(blocked, ssl.SSLWantReadError) else READ | WRITE
        if self._wait(events, WRITE_TIMEOUT_S, patience) & READ:
            self._pull()
            return self._has_final()
        return False

    def _is_wanted(self, patience: Patience) -> bool:
        """Whether the server wants the body; one that says nothing for a while is taken to."""
        until = time.monotonic() + EXPECT_WAIT_S
        while not self._has_final():
            remaining, left = patience.remaining_s(), until - time.monotonic()
            if self._may_send or left <= 0:
                return True
            if wait(self._socket, READ, left if remaining is None else min(left, remaining)):
                self._pull()
        return False

    # --- the answer --------------------------------------------------------------------------------------------------

    def _read_head(self, patience: Patience) -> Head:
        if not self._input and not self._is_ended:
            self._wait(READ, READ_TIMEOUT_S, patience)  # the usual case: one wait, one receive
        while True:
            head = self._next_head()
            if head is not None and head.status >= 200:
                return head
            if head is None:
                self._input += self._receive(_RECEIVE_BYTES, patience)

    def _next_head(self) -> Head | None:
        """The next head in what was read, if it is whole; one with 1xx is noted."""
        end = head_end(self._input)
        if end < 0:
            return None
        head = parse_head(bytes(self._input[:end]))
        del self._input[: end + 4]
        if head.status < 200:
            self._interims += 1
            self._may_send |= head.status == 100
            if self._interims > _INTERIMS or head.status == 101:
                raise BadReply(f"the server answers {head.status} and does not come to its answer")
        return head

    def _has_final(self) -> bool:
        """Whether the answer has begun, or the connection has ended. Words before it (1xx) are taken out."""
        while self._input.startswith(b"HTTP/1.1 1") and self._next_head() is not None:
            pass
        begun = bytes(self._input[:10])
        return self._is_ended or not b"HTTP/1.1 1".startswith(begun)

    def _read_body(self, left: int, exchange: Exchange[Any], patience: Patience) -> None:
        if self._input and left:
            early = bytes(self._input[:left])
            del self._input[:left]
            exchange.feed(early)
            left -= len(early)
        while left:
            room = exchange.room()[:left]
            if len(room) > _RECEIVE_BYTES:
                received = self._receive_into(room[:PIECE_BYTES], patience)
                exchange.filled(received)
            else:
                piece = self._receive(min(left, _RECEIVE_BYTES), patience)
                received = len(piece)
                exchange.feed(piece)
            left -= received

    def _read_chunks(self, exchange: Exchange[Any], patience: Patience) -> None:
        chunks = Chunks()
        data = bytes(self._input)
        self._input.clear()
        while True:
            for piece in chunks.feed(data):
                exchange.feed(piece)
            if chunks.is_done:
                return
            data = self._receive(_RECEIVE_BYTES, patience)

    def _read_to_end(self, exchange: Exchange[Any], patience: Patience) -> None:
        data = bytes(self._input)
        self._input.clear()
        while data:
            exchange.feed(data)
            data = self._receive(_RECEIVE_BYTES, patience, or_end=True)

    # --- the socket --------------------------------------------------------------------------------------------------

    def _receive(self, most: int, patience: Patience, *, or_end: bool = False) -> bytes:
        """The next bytes; nothing only at an end that is allowed."""
        patience.remaining_s()
        while True:
            try:
                data = b"" if self._is_ended else self._socket.recv(most)
            except _BLOCKED as blocked:
                self._wait_for(blocked, patience)
            except OSError as error:
                raise self._ended(error) from error
            else:
                if not data and not or_end:
                    raise self._ended()
                return data

    def _receive_into(self, target: memoryview, patience: Patience) -> int:
        """Fill the target, as far as bytes come without a wait; at least one."""
        patience.remaining_s()
        position = 0
        while position < len(target):
            try:
                received = self._socket.recv_into(target[position:])
            except _BLOCKED as blocked:
                if position:
                    break
                self._wait_for(blocked, patience)
                continue
            except OSError as error:
                raise self._ended(error) from error
            if not received:
                raise self._ended()
            position += received
        return position

    def _has_more(self) -> bool:
        """Whether bytes behind the answer were read; those in the kernel are seen by `is_usable`."""
        return bool(self._input) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    def _pull(self) -> None:
        """Take what is there, without a wait."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except _BLOCKED:
            return
        except OSError:
            data = b""
        self._input += data
        self._is_ended |= not data

    def _wait_for(self, blocked: OSError, patience: Patience) -> None:
        self._wait(WRITE if isinstance(blocked, ssl.SSLWantWriteError) else READ, READ_TIMEOUT_S, patience)

    def _wait(self, events: int, silence_s: float, patience: Patience) -> int:
        """Wait for one of the events.

        Raises:
            TimedOut: nothing moved for too long.
        """
        remaining = patience.remaining_s()
        found = wait(self._socket, events, silence_s if remaining is None else remaining)
        if not found:
            raise patience.timed_out(silence_s)
        return found

    def _ended(self, error: OSError | None = None) -> BadReply:
        reason = f" ({error})" if error else ""
        return BadReply(f"the connection to {self._url} ended before the answer was complete{reason}")


def _gathered(head: bytes, buffers: list[Buffer]) -> Iterator[memoryview]:
    """The request as few views: small neighbours are joined, so that none leaves as a packet of its own."""
    small = [head]
    for buffer in buffers:
        if len(buffer) < SMALL_BODY_BYTES:
            small.append(bytes(buffer))
            continue
        yield memoryview(b"".join(small))
        small = []
        yield memoryview(buffer)
    yield memoryview(b"".join(small))
