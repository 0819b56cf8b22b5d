"""Stock FastAPI, by `requests` with msgpack bodies."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import requests

from ..base import Array, Plain, ServerProcess


class Contender(Plain):
    """What most people would write, on both sides."""

    def start(self) -> None:
        self._server = ServerProcess("benchmarks.peers.fastapi_stock.server")
        self._url = f"http://127.0.0.1:{self._server.announced()['port']}"
        self._session = requests.Session()
        self._session.trust_env = False

    def stop(self) -> None:
        self._session.close()
        self._server.stop()

    def put(self, array: Array) -> Any:
        return self._checked(self._session.post(f"{self._url}/arrays", data=_pack(array))).json()["number"]

    def get(self, handle: Any, out: Array | None) -> Array:
        return _unpack(self._checked(self._session.get(f"{self._url}/arrays/{handle}")).content)

    def drop(self, handle: Any) -> None:
        self._checked(self._session.delete(f"{self._url}/arrays/{handle}"))

    def dot(self, x: Array, y: Array) -> Array:
        return _unpack(self._checked(self._session.post(f"{self._url}/dot", data=_pack(x, y))).content)

    def server_pid(self) -> int | None:
        return self._server.pid

    def _checked(self, response: requests.Response) -> requests.Response:
        response.raise_for_status()
        return response


def _pack(*arrays: Array) -> bytes:
    items = [{"dtype": str(array.dtype), "shape": array.shape, "data": array.tobytes()} for array in arrays]
    packed: bytes = msgpack.packb(items)
    return packed


def _unpack(body: bytes) -> Array:
    (item,) = msgpack.unpackb(body)
    return np.frombuffer(item["data"], item["dtype"]).reshape(item["shape"])
