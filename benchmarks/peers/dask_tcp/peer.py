"""Dask distributed: scatter, submit and gather over tcp, straight between client and worker."""

from __future__ import annotations

from typing import Any

from distributed import Client

from ..base import Array, Plain, ServerProcess
from .tasks import dot


class Contender(Plain):
    """`direct` and `hash=False` are Dask's fast settings for one client and large arrays."""

    def start(self) -> None:
        self._server = ServerProcess("benchmarks.peers.dask_tcp.server")
        self._client = Client(self._server.announced()["address"], direct_to_workers=True, set_as_default=False)

    def stop(self) -> None:
        self._client.close()
        self._server.stop()

    def put(self, array: Array) -> Any:
        return self._client.scatter(array, direct=True, hash=False)

    def get(self, handle: Any, out: Array | None) -> Array:  # Dask makes the memory
        result: Array = self._client.gather(handle, direct=True)
        return result

    def drop(self, handle: Any) -> None:
        handle.release()

    def dot(self, x: Array, y: Array) -> Array:
        both = self._client.scatter([x, y], direct=True, hash=False)
        result: Array = self._client.gather(self._client.submit(dot, *both, pure=False), direct=True)
        return result

    def server_pid(self) -> int | None:
        return self._server.pid
