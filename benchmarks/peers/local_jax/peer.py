"""JAX in this process on eight virtual devices: the same mesh, with no way to go."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from ..base import Array, Plain
from .extras import EXTRAS, small_dot
from .mesh import configure, split


class Contender(Plain):
    """NumPy in, NumPy out; the way to the devices and back is part of each call."""

    extras = EXTRAS
    #: Of batched dots.
    formula = "written out"

    def start(self) -> None:
        configure()

    def put(self, array: Array) -> Any:
        return jax.block_until_ready(jax.device_put(array, split("devices", None)))

    def get(self, handle: Any, out: Array | None) -> Array:
        if out is None:
            return np.asarray(handle)
        np.copyto(out, handle)
        return out

    def drop(self, handle: Any) -> None:
        handle.delete()

    def dot(self, x: Array, y: Array) -> Array:
        if y.ndim == 1:
            return np.asarray(small_dot(x, y))
        pairs = split(None, "devices")
        return np.asarray(batched(self.formula)(jax.device_put(x, pairs), jax.device_put(y, pairs)))


def by_einsum(x: jax.Array, y: jax.Array) -> jax.Array:
    """What one would write."""
    return jax.numpy.einsum("ki,ki->i", x, y, precision=jax.lax.Precision.HIGHEST)


def written_out(x: jax.Array, y: jax.Array) -> jax.Array:
    """What XLA runs fastest on CPU, and what the server's own kernel does."""
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]


@cache
def batched(formula: str) -> Any:
    """Dots with the batch split over the devices."""
    function = {"written out": written_out, "einsum": by_einsum}[formula]
    pairs = split(None, "devices")
    return jax.jit(function, in_shardings=(pairs, pairs), out_shardings=split("devices"))
