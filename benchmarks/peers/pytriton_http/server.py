"""Triton by PyTriton: models to keep an array and to fetch it, since Triton keeps none itself, and the dots."""

from __future__ import annotations

import socket
import tempfile
import threading

import numpy as np
from pytriton.decorators import sample
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from ..base import Array, announce, end_with_parent
from ..formulas import dot as compute

PLAIN = ModelConfig(batching=False)
kept: list[Array] = []


@sample
def keep(x: Array) -> dict[str, Array]:
    """Keep an array in the place of the one before."""
    kept[:] = [np.array(x)]  # Triton takes its own memory back
    return {"bytes": np.array([x.nbytes], np.int64)}


@sample
def fetch(order: Array) -> dict[str, Array]:
    """The array that is kept."""
    return {"x": kept[0]}


@sample
def dot(x: Array, y: Array) -> dict[str, Array]:
    """The dot, by JAX."""
    return {"dot": np.atleast_1d(np.asarray(compute(x, y)))}


def floats(name: str, rank: int) -> Tensor:
    return Tensor(name=name, dtype=np.float32, shape=(-1,) * rank)


#: name -> function, inputs, outputs. Each model has one rank.
MODELS = {
    "keep": (keep, [floats("x", 2)], [Tensor(name="bytes", dtype=np.int64, shape=(1,))]),
    "fetch": (fetch, [floats("order", 1)], [floats("x", 2)]),
    "dot": (dot, [floats("x", 1), floats("y", 1)], [floats("dot", 1)]),
    "dots": (sample(dot.__wrapped__), [floats("x", 2), floats("y", 2)], [floats("dot", 1)]),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main() -> None:
    http, grpc, metrics = free_port(), free_port(), free_port()
    here = "127.0.0.1"
    config = TritonConfig(
        http_address=here, http_port=http, grpc_address=here, grpc_port=grpc, metrics_address=here, metrics_port=metrics
    )
    with (
        tempfile.TemporaryDirectory(prefix="triton-") as folder,
        Triton(config=config, workspace=f"{folder}/work") as triton,
    ):
        for name, (function, inputs, outputs) in MODELS.items():
            triton.bind(model_name=name, infer_func=function, inputs=inputs, outputs=outputs, config=PLAIN)
        triton.run()

        def leave() -> None:
            triton.stop()
            threading.main_thread().join()  # which puts the folder away

        end_with_parent(leave)
        announce(port=http)
        triton.serve()


if __name__ == "__main__":
    main()
