"""JAX in a process of its own: NumPy in, NumPy out, on one or on eight virtual devices; driven by lines of JSON.

`python -m benchmarks.local_jax` reads {"do": "small" | "einsum" | "written out", "calls": n, "batch": n} and answers
with the seconds of each call and a fingerprint of the result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .inputs import batched_vectors, fingerprint, small_vectors
from .rounds import time_calls

DEVICES = 8


def small_dot() -> Callable[[], Any]:
    """A dot of two 1 KiB vectors on one device."""
    x, y = small_vectors()
    dot = jax.jit(jax.numpy.dot)
    return lambda: np.asarray(dot(x, y))


def by_einsum(x: jax.Array, y: jax.Array) -> jax.Array:
    """What one would write."""
    return jax.numpy.einsum("ki,ki->i", x, y, precision=jax.lax.Precision.HIGHEST)


def written_out(x: jax.Array, y: jax.Array) -> jax.Array:
    """What XLA runs fastest on CPU, and what the server's own kernel does."""
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]


def batched_dot(formula: Callable[[jax.Array, jax.Array], jax.Array], batch: int) -> Callable[[], Any]:
    """Dots with the batch split over eight devices; the way to them and back is part of the call."""
    x, y = batched_vectors(batch)
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec(None, "devices"))
    result = NamedSharding(mesh, PartitionSpec("devices"))
    dots = jax.jit(formula, in_shardings=(split, split), out_shardings=result)
    return lambda: np.asarray(dots(jax.device_put(x, split), jax.device_put(y, split)))


@cache
def call_of(what: str, batch: int) -> Callable[[], Any]:
    """The call of an order, compiled once."""
    if what == "small":
        return small_dot()
    return batched_dot({"einsum": by_einsum, "written out": written_out}[what], batch)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    print(json.dumps({"ready": jax.device_count()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        call = call_of(order["do"], order["batch"])
        seconds = time_calls(call, order["calls"])
        print(json.dumps({"seconds": seconds, "fingerprint": fingerprint(call())}), flush=True)


if __name__ == "__main__":
    main()
