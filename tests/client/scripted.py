"""A server of raw sockets that runs a script for each connection, and what such scripts read."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shardserve as ss

from .replies import frame, http

X = np.arange(3.0)
LARGE = np.arange(2**20, dtype=np.float64)  # 8 MiB
GOOD = http(frame(X))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
Script = Callable[[socket.socket], object]


@contextlib.contextmanager
def scripted(*scripts: Script) -> Iterator[tuple[ss.Client, list[Any]]]:
    """A client of a server that runs a script for each of its connections; what the scripts gave is listed."""
    results: list[Any] = []

    def serve(listener: socket.socket) -> None:
        for script in scripts:
            connection, _ = listener.accept()
            with connection:
                results.append(script(connection))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with ss.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=20) as client:
            yield client, results
        thread.join(10)
        assert not thread.is_alive()


def read_head(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1)
    return data


def read_body(connection: socket.socket, head: bytes) -> bytes:
    left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    data = bytearray()
    while len(data) < left:
        data += connection.recv(1 << 20) or pytest.fail("the body ended early")
    return bytes(data)


def is_ended(connection: socket.socket) -> bool:
    """Whether the client hangs up, with what it sent dropped."""
    connection.settimeout(5)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 20):
            pass
    return True


def read_head_or_end(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(1)
        if not piece:
            return b""
        data += piece
    return data
