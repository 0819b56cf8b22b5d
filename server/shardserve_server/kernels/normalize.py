"""normalize: divide an array by its total or by its Euclidean norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import DTYPES, DType
from shardserve_proto.rules import split_axes

from .registry import Context, Operand, Registry, cast, exact_divide


def register(registry: Registry) -> None:
    @registry.builtin("normalize")
    def normalize(context: Context, x: Operand, *, norm: str, axis: Any) -> jax.Array:
        """Divide by the total (`norm="sum"`) or by the Euclidean norm (`norm="l2"`).

        Arguments:
            x: any shape; booleans and integers give float64, other dtypes stay.
            norm: "sum" or "l2"; required, since other libraries mean different things by the bare word.
            axis: what the norm runs over: a dimension, an axis name, or a list of both; None = all dimensions of the
                array, named ones included.

        Returns: the shape of `x`. Totals and division run in float64 (complex128) and are rounded once, so float64
            is within 1e-13 of exact arithmetic; `precision="default"` uses float32. A zero, NaN or infinite total
            divides as IEEE 754 says, without a warning.

        Communication: one all-reduce for each mesh axis that the norm runs over.
        """
        aval = context.operands[0]
        wide = _wide(context.dtype, context.precision)
        wide_x = cast(x, wide)
        dimensions, names = _axes(axis, aval, context.scope)
        total = _total(wide_x, norm, dimensions, names)
        return cast(exact_divide(wide_x, cast(total, wide)), context.dtype)


def _axes(axis: Any, x: Aval, scope: Scope) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if axis is None:
        return tuple(range(x.ndim)), tuple(name for name in scope.sizes if name in x.names)
    return split_axes(axis, x, scope)


def _wide(dtype: DType, precision: jax.lax.Precision) -> DType:
    """float64 or complex128; "default" precision trades them for float32 where the result has no more."""
    is_complex = dtype.kind == "c"
    if precision == jax.lax.Precision.DEFAULT and dtype not in (DTYPES["float64"], DTYPES["complex128"]):
        return DTYPES["complex64" if is_complex else "float32"]
    return DTYPES["complex128" if is_complex else "float64"]


def _total(x: jax.Array, norm: str, dimensions: tuple[int, ...], names: tuple[str, ...]) -> jax.Array:
    terms = x if norm == "sum" else _squared_magnitude(x)
    total = jnp.sum(terms, axis=dimensions, keepdims=True)
    if names:
        total = jax.lax.psum(total, names)
    return total if norm == "sum" else jnp.sqrt(total)


def _squared_magnitude(x: jax.Array) -> jax.Array:
    return x.real * x.real + x.imag * x.imag if np.issubdtype(x.dtype, np.complexfloating) else x * x
