"""matmul: the matrix product."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .dot import contract
from .registry import Context, Operand, Registry


def register(registry: Registry) -> None:
    @registry.builtin("matmul")
    def matmul(context: Context, x: Operand, y: Operand, *, dtype: str | None) -> jax.Array:  # noqa: ARG001
        """Matrix product, as numpy.matmul.

        Arguments:
            x: `(..., m, k)` or `(k,)`, any computable dtype.
            y: `(..., k, n)` or `(k,)`.
            dtype: of the result; the operands are cast to it first. int8 products stay int8 and wrap, as in NumPy:
                ask for `dtype="int32"` to widen.

        Returns: `(..., m, n)`.

        Raises:
            ShapeError: the inner sizes differ, or an operand is a scalar.

        Communication: one all-reduce (or reduce-scatter, by the result's spec) over the mesh axes that split `k`;
            none when `k` is whole.

        Reference: Shoeybi et al. 2019, section 3, for the column- and row-parallel products.
        """
        return contract(context, jnp.matmul, x, y)
