"""A Ray actor on the same host: arrays go through Ray's shared memory, not through a socket."""

from __future__ import annotations

import os
from typing import Any

from ..base import Array, Plain, ServerProcess
from .node import ADDRESS, environment


class Contender(Plain):
    """`ray.put`, `ray.get` and a method of the actor."""

    def start(self) -> None:
        os.environ.update(environment())
        import ray  # it reads the environment as it is imported

        self._ray = ray
        self._server = ServerProcess("benchmarks.peers.ray_actor.server")
        address = self._server.announced()["address"]
        quiet = {"log_to_driver": False, "logging_level": "error"}
        ray.init(address=address, namespace="benchmarks", _node_ip_address=ADDRESS, **quiet)
        self._actor = ray.get_actor("dots")

    def stop(self) -> None:
        self._ray.shutdown()
        self._server.stop()

    def put(self, array: Array) -> Any:
        return self._ray.put(array)

    def get(self, handle: Any, out: Array | None) -> Array:
        result: Array = self._ray.get(handle)
        return result

    def dot(self, x: Array, y: Array) -> Array:
        result: Array = self._ray.get(self._actor.dot.remote(x, y))
        return result

    def server_pid(self) -> int | None:
        return self._server.pid
