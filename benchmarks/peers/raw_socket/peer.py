"""The ceiling: the array's bytes through one socket of loopback, and nothing else."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from ..base import Array, Plain, ServerProcess
from .server import ORDER, receive


class Contender(Plain):
    """`sendall` and `recv_into`; no dot."""

    #: Whether the server receives into memory that it keeps, or into fresh memory each time.
    keeps_memory = False

    def start(self) -> None:
        self._server = ServerProcess("benchmarks.peers.raw_socket.server")
        self._socket = socket.create_connection(("127.0.0.1", self._server.announced()["port"]))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def stop(self) -> None:
        self._socket.close()
        self._server.stop()

    def put(self, array: Array) -> Any:
        self._socket.sendall(ORDER.pack(b"T" if self.keeps_memory else b"P", array.nbytes))
        self._socket.sendall(_bytes_of(array))
        self._confirmed()
        return array.shape, array.dtype

    def get(self, handle: Any, out: Array | None) -> Array:
        shape, dtype = handle
        result = np.empty(shape, dtype) if out is None else out
        self._socket.sendall(ORDER.pack(b"G", result.nbytes))
        receive(self._socket, _bytes_of(result))
        return result

    def drop(self, handle: Any) -> None:
        self._socket.sendall(ORDER.pack(b"D", 0))
        self._confirmed()

    def server_pid(self) -> int | None:
        return self._server.pid

    def _confirmed(self) -> None:
        if self._socket.recv(1) != b"!":
            raise ConnectionError("the server left")


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
