"""Calls on arrays that stay on the devices, by JAX in process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import numpy as np

from ... import inputs
from ...operations import Timed, time_checked
from .mesh import split

small_dot = jax.jit(jax.numpy.dot)
matrix_product = jax.jit(jax.numpy.matmul)


@cache
def product(subscripts: str) -> Callable[..., jax.Array]:
    """An einsum, compiled once."""
    return jax.jit(lambda *given: jax.numpy.einsum(subscripts, *given, precision=jax.lax.Precision.HIGHEST))


def resident_dot(peer: Any, pids: list[int], *, calls: int, limit_s: float) -> Timed:
    """A dot of two small arrays on a device; its result comes back."""
    x, y = inputs.small_vectors()
    held = jax.device_put(x), jax.device_put(y)
    return time_checked(lambda: np.asarray(small_dot(*held)), np.dot(x, y), calls, limit_s)


def matvec(peer: Any, pids: list[int], *, nbytes: int, calls: int, resident: bool) -> Timed:
    """A matrix that stays times a vector that comes."""
    matrix, vector = inputs.square(nbytes)
    held, everywhere = jax.device_put(matrix, split("devices", None)), split()
    return time_checked(
        lambda: np.asarray(matrix_product(held, jax.device_put(vector, everywhere))), matrix @ vector, calls
    )


def kept_product(peer: Any, pids: list[int], *, subscripts: str, calls: int) -> Timed:
    """An einsum of arrays that stay, whose result stays."""
    operands = inputs.product_operands(subscripts)
    held = [jax.device_put(operand, split("devices")) for operand in operands]
    expected = np.einsum(subscripts, *operands, optimize=True)
    return time_checked(lambda: jax.block_until_ready(product(subscripts)(*held)), expected, calls)


EXTRAS: Mapping[str, Callable[..., Timed]] = {
    "resident dot": resident_dot,
    "matvec": matvec,
    "kept product": kept_product,
}
