"""Receiving a large body: the connection's bytes go straight from the kernel into the memory where they are to stay.

The ordinary way copies each byte five times on its way from the socket to the route. A `BulkReceiver` takes the
connection over for as long as a piece of memory is to be filled. It offers the kernel exactly what is left of that
piece, so it can never read past the body, into a request that follows.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

#: From this size on a piece of a body is worth two switches of protocol.
BULK_BYTES = 256 * 1024
#: One read takes no more than this (0.4 ms); then the other connections have their turn.
READ_BYTES = 2**20
#: Waking up for fewer bytes than these, while more are to come, costs a tenth of the speed.
WAKE_BYTES = 512 * 1024


class ClientGone(Exception):
    """The client closed the connection before its request was complete; there is nobody to answer."""


class BulkReceiver(asyncio.BufferedProtocol):
    """Fills a piece of memory from a connection, and says when it is full.

    Arguments:
        home: the protocol that the connection comes from, and that hears everything but the bytes.
        received: called with the number of bytes of each read, and of those that are left.
    """

    def __init__(self, home: asyncio.Protocol, target: memoryview, received: Callable[[int, int], None]) -> None:
        self._left = target
        self._received = received
        self.eof_received = home.eof_received  # type: ignore[method-assign]
        self.connection_lost = home.connection_lost  # type: ignore[method-assign]
        self.pause_writing = home.pause_writing  # type: ignore[method-assign]
        self.resume_writing = home.resume_writing  # type: ignore[method-assign]

    def let_go(self) -> None:
        """The piece is full, or given up: an event loop that remembers this receiver must not keep its memory."""
        self._left = memoryview(bytearray())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - what is left is what is wanted
        return self._left[:READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._left = self._left[nbytes:]
        self._received(nbytes, len(self._left))


def wake_at(transport: asyncio.Transport, nbytes: int) -> None:
    """Have the kernel call a connection readable from so many bytes on; or at its end, or when it can hold no more."""
    stream = transport.get_extra_info("socket")
    if sys.platform == "linux" and stream is not None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


def take(source: bytearray, target: memoryview) -> int:
    """Move the first bytes of what was received already; returns how many."""
    nbytes = min(len(source), len(target))
    target[:nbytes] = source[:nbytes]
    del source[:nbytes]
    return nbytes


def declared_length(headers: Any) -> int:
    """The Content-Length of a request that the parser accepted."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0
