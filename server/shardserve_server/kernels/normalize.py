"""normalize: divide an array by its total or by its Euclidean norm."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.abstract import Aval, Scope
from shardserve_proto.dtypes import BFLOAT16, DTYPES, DType
from shardserve_proto.rules import split_axes

from .registry import Context, Operand, Registry, cast, exact_divide, settle

Axes = tuple[tuple[int, ...], tuple[str, ...]]


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

        Communication: one all-reduce for each mesh axis that the norm runs over; two for "l2" of float64 and
            complex128, whose squares are kept in range.
        """
        aval = context.operands[0]
        wide = _wide(context.dtype, context.precision)
        wide_x = cast(x, wide)
        axes = _axes(axis, aval, context.scope)
        if norm == "sum":
            return cast(exact_divide(wide_x, _total(wide_x, axes)), context.dtype)
        unit = _scaled_unit if _can_overflow(aval.strong_dtype, wide) else _unit
        return cast(unit(wide_x, axes), context.dtype)


def _axes(axis: Any, x: Aval, scope: Scope) -> Axes:
    if axis is None:
        return tuple(range(x.ndim)), tuple(name for name in scope.sizes if name in x.names)
    return split_axes(axis, x, scope)


def _wide(dtype: DType, precision: jax.lax.Precision) -> DType:
    """float64 or complex128; "default" precision trades them for float32 where the result has no more."""
    is_complex = dtype.kind == "c"
    if precision == jax.lax.Precision.DEFAULT and dtype not in (DTYPES["float64"], DTYPES["complex128"]):
        return DTYPES["complex64" if is_complex else "float32"]
    return DTYPES["complex128" if is_complex else "float64"]


def _total(x: jax.Array, axes: Axes) -> jax.Array:
    dimensions, names = axes
    total = jnp.sum(x, axis=dimensions, keepdims=True)
    return jax.lax.psum(total, names) if names else total


def _unit(x: jax.Array, axes: Axes) -> jax.Array:
    return exact_divide(x, _length(x, axes))


def _scaled_unit(x: jax.Array, axes: Axes) -> jax.Array:
    """The same, for numbers whose squares would overflow, or count as zero."""
    up, down = (cast(scale, x.dtype) for scale in _scales(x, axes))
    scaled = settle(x * up)
    return exact_divide(scaled, _length(settle(scaled * down), axes)) * down


def _length(x: jax.Array, axes: Axes) -> jax.Array:
    return cast(jnp.sqrt(_total(_squared_magnitude(x), axes)), x.dtype)


def _squared_magnitude(x: jax.Array) -> jax.Array:
    return x.real * x.real + x.imag * x.imag if np.issubdtype(x.dtype, np.complexfloating) else x * x


def _can_overflow(dtype: DType, wide: DType) -> bool:
    """Whether squares of the operand may leave the range of the dtype that adds them up."""
    return dtype.kind not in "biu" and (wide.itemsize <= dtype.itemsize or (dtype == BFLOAT16 and wide.itemsize == 4))


def _scales(x: jax.Array, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """Two powers of two, of which one is 1: tiny numbers are multiplied before they are squared, huge ones after."""
    dimensions, names = axes
    parts = (x.real, x.imag) if np.issubdtype(x.dtype, np.complexfloating) else (x,)
    largest = reduce(jnp.maximum, (jnp.max(abs(p), axis=dimensions, keepdims=True, initial=0) for p in parts))
    if names:
        largest = jax.lax.pmax(largest, names)
    limit, scale = (2.0**450, 2.0**600) if largest.dtype == np.float64 else (2.0**50, 2.0**75)
    one, power = (jnp.asarray(value, largest.dtype) for value in (1.0, scale))
    up = jnp.where(largest < jnp.asarray(1 / limit, largest.dtype), power, one)
    return up, jnp.where(largest > jnp.asarray(limit, largest.dtype), one / power, one)
