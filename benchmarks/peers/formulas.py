"""What the peers that host JAX compute: one formula for all, compiled by their JAX for the CPU as one device."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax


@jax.jit
def dot(x: Any, y: Any) -> Any:
    """The dot with a vector; over (3, N) pairs with the terms written out, which XLA runs fastest on CPU."""
    if y.ndim == 1:
        return jax.numpy.dot(x, y)
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]
