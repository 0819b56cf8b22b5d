"""PyTriton over HTTP: Triton's own server in front of JAX in Python."""

from __future__ import annotations

import sysconfig
from typing import Any

import numpy as np
from pytriton.client import ModelClient

from ..base import Array, Plain, ServerProcess

ORDER = np.zeros(1, np.float32)


class Contender(Plain):
    """One client for each model, as PyTriton has them."""

    def start(self) -> None:
        # Triton's stub is linked to libpython, which an interpreter under a prefix of its own keeps to itself.
        libraries = {"LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR")}
        self._server = ServerProcess("benchmarks.peers.pytriton_http.server", variables=libraries)
        url = f"http://127.0.0.1:{self._server.announced()['port']}"
        names = ("keep", "fetch", "dot", "dots")
        self._models = {name: ModelClient(url, name, lazy_init=False, inference_timeout_s=120) for name in names}

    def stop(self) -> None:
        for model in self._models.values():
            model.close()
        self._server.stop()

    def put(self, array: Array) -> Any:
        return self._models["keep"].infer_sample(array)["bytes"]

    def get(self, handle: Any, out: Array | None) -> Array:
        result: Array = self._models["fetch"].infer_sample(ORDER)["x"]
        return result

    def dot(self, x: Array, y: Array) -> Array:
        result: Array = self._models["dot" if x.ndim == 1 else "dots"].infer_sample(x, y)["dot"]
        return result

    def server_pid(self) -> int | None:
        return self._server.pid
