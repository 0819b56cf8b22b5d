"""A bare socket: receives into fresh or into touched memory, sends from memory; no protocol but ten bytes of order.

An order is a letter and the number of bytes: `P` receives them into fresh memory, `T` into memory that is kept and
touched, `G` sends them back, `D` forgets them.
"""

from __future__ import annotations

import socket
import struct

import numpy as np

from ..base import announce, end_with_parent

ORDER = struct.Struct("<cQ")
BUFFER_BYTES = 4 << 20


def receive(connection: socket.socket, view: memoryview) -> None:
    """Fill `view`."""
    position = 0
    while position < len(view):
        received = connection.recv_into(view[position:], min(len(view) - position, BUFFER_BYTES))
        if not received:
            raise ConnectionError("the other side left")
        position += received


def serve(connection: socket.socket) -> None:
    """Carry out orders until the other side leaves."""
    order, kept, held = bytearray(ORDER.size), np.zeros(0, np.uint8), np.zeros(0, np.uint8)
    while True:
        receive(connection, memoryview(order))
        kind, size = ORDER.unpack(order)
        if kind == b"T" and kept.size != size:
            kept = np.ones(size, np.uint8)
        if kind in b"PT":
            held = kept if kind == b"T" else np.empty(size, np.uint8)
            receive(connection, held.data)
            connection.sendall(b"!")
        elif kind == b"G":
            connection.sendall(held.data)
        elif kind == b"D":
            held = kept
            connection.sendall(b"!")


def main() -> None:
    end_with_parent()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(port=listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                serve(connection)
            except ConnectionError:
                connection.close()


if __name__ == "__main__":
    main()
