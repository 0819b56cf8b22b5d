"""A server of raw sockets, which answers as a test tells it to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class RawServer:
    """Listens on loopback; each request gets the next answer, the last one for ever.

    Attributes:
        requests: the requests so far, head and body.
        connections: how many were accepted.
    """

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                request = read_request(connection)
                if not request:
                    return
                answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
                self.requests.append(request)
                if answer is None:  # says nothing and hangs up
                    return
                if callable(answer):
                    answer(connection)
                    return
                connection.sendall(answer)
        except OSError:
            return
        finally:
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(10)


def read_request(connection: socket.socket) -> bytes:
    """One request, its body as long as its Content-Length says."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
    length = int(fields.get(b"content-length", b"0"))
    pieces = [body]
    received = len(body)
    while received < length:
        piece = connection.recv(1 << 20)
        if not piece:
            return b""
        pieces.append(piece)
        received += len(piece)
    return head + b"\r\n\r\n" + b"".join(pieces)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """A thread that outlives its test by some seconds fails it."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(5)
    assert not [thread for thread in left if thread.is_alive()]


@pytest.fixture
def raw_server() -> Iterator[Callable[..., RawServer]]:
    """Starts servers that give the answers one after another: bytes, None (hangs up), or a function of the socket."""
    servers: list[RawServer] = []

    def start(*answers: Any) -> RawServer:
        servers.append(RawServer(list(answers)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
