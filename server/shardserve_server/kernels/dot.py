"""dot and vecdot: products that contract one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.dtypes import accumulator

from .registry import Context, Operand, Registry, cast

Product = Callable[..., Any]


def contract(context: Context, product: Product, *operands: Operand) -> jax.Array:
    """Run a product of arrays in the promised dtype.

    16-bit floats accumulate, and cross devices, in float32; booleans count in int32 ("any of the products is true").
    """
    dtype = context.dtype
    compute = np.dtype(np.int32) if dtype == np.bool_ else dtype
    arrays = [cast(cast(operand, dtype), compute) for operand in operands]
    total = product(*arrays, precision=context.precision, preferred_element_type=accumulator(compute))
    return cast(total, dtype)


def register(registry: Registry) -> None:
    @registry.builtin("dot")
    def dot(context: Context, x: Operand, y: Operand, *, dtype: str | None) -> jax.Array:  # noqa: ARG001
        """Dot product of two arrays, as numpy.dot.

        Arguments:
            x: `(..., k)`, any computable dtype; a scalar multiplies.
            y: `(k,)` or `(..., k, n)`.
            dtype: of the result; the operands are cast to it first. Default: the common dtype of `x` and `y`.

        Returns: `x.shape[:-1] + y.shape[:-2] + y.shape[-1:]`. Integers wrap, as in NumPy; 16-bit floats accumulate
            in float32.

        Raises:
            ShapeError: the contracted sizes differ.
            DTypeError: the dtypes have no common one.

        Communication: one all-reduce over the mesh axes that split `k`; none otherwise.
        """
        return contract(context, jnp.dot, x, y)

    @registry.builtin("vecdot")
    def vecdot(context: Context, x: Operand, y: Operand, *, dtype: str | None) -> jax.Array:  # noqa: ARG001
        """Vector dot product over the last dimension, as numpy.vecdot (`x` is conjugated).

        Arguments:
            x: `(..., k)`, any computable dtype.
            y: `(..., k)`, broadcast against `x`.
            dtype: of the result; the operands are cast to it first.

        Returns: `(...)`.

        Raises:
            ShapeError: the last sizes differ, or the others do not broadcast.

        Communication: one all-reduce over the mesh axes that split `k`; none otherwise.
        """
        return contract(context, jnp.vecdot, x, y)
