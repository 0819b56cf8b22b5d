"""shardserve: its own server with eight virtual devices, by its own client."""

from __future__ import annotations

from typing import Any

import shardserve as ss
from shardserve import P

from ..base import Array
from .extras import EXTRAS

DEVICES = 8
#: One array of the long run, and room for the frame around it.
BODY_BYTES = "5GiB"
NAMED: dict[str, Any] = {
    "in_axes": ({1: "batch"}, {1: "batch"}),
    "out_axes": ["batch", ...],
    "axis_resources": {"batch": "devices"},
}


class Contender:
    """The calls that its users make."""

    extras = EXTRAS

    def start(self) -> None:
        self._local = ss.LocalServer(devices=DEVICES, arguments=("--body-bytes", BODY_BYTES))
        self.client: Any = self._local.start()

    def stop(self) -> None:
        self._local.stop()

    def put(self, array: Array) -> Any:
        return self.client.put(array, P("devices", None))

    def get(self, handle: Any, out: Array | None) -> Array:
        result: Array = self.client.get(handle, out=out)
        return result

    def drop(self, handle: Any) -> None:
        handle.delete()

    def dot(self, x: Array, y: Array) -> Array:
        result: Array = self.client.dot(x, y) if y.ndim == 1 else self.client.dot(x, y, **NAMED)
        return result

    def server_pid(self) -> int | None:
        return self._local.pid
