"""A Ray node on loopback with one actor, that computes with JAX."""

from __future__ import annotations

import shutil
import tempfile
import threading
from typing import Any

import numpy as np
import ray

from ..base import Array, announce, end_with_parent
from .node import ADDRESS

STORE_BYTES = 5 << 29


@ray.remote(num_cpus=1)
class Dots:
    """The actor: arrays come to it on the node's shared memory."""

    def dot(self, x: Array, y: Array) -> Array:
        """The dot, by JAX in the actor."""
        from .. import formulas  # in the actor only: the driver needs no JAX

        return np.asarray(formulas.dot(x, y))


def main() -> None:
    folder = tempfile.mkdtemp(prefix="ray-")
    node: Any = ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        _node_ip_address=ADDRESS,
        _temp_dir=folder,
    )
    actor = Dots.options(name="dots", namespace="benchmarks").remote()
    ray.get(actor.dot.remote(np.ones(4, np.float32), np.ones(4, np.float32)))

    def leave() -> None:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    end_with_parent(leave)
    announce(address=node.address_info["gcs_address"])
    threading.Event().wait()


if __name__ == "__main__":
    main()
