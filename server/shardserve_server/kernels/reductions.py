"""Reductions over dimensions and names, and the collectives, which are reductions over names alone."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardserve_proto.dtypes import DTYPES, accumulator, is_float
from shardserve_proto.rules import axis_names, split_axes

from .registry import Context, Operand, Registry, cast, exact_divide

Axes = tuple[tuple[int, ...], tuple[str, ...]]

# JAX leaves its collectives untyped.
_psum: Callable[..., jax.Array] = jax.lax.psum
_pmax: Callable[..., jax.Array] = jax.lax.pmax
_pmin: Callable[..., jax.Array] = jax.lax.pmin


def _sum(context: Context, x: Operand, axes: Axes, *, keepdims: bool) -> jax.Array:
    """The total in the accumulator's dtype: float32 for 16-bit floats, across devices too."""
    dimensions, names = axes
    wide = cast(x, accumulator(context.dtype))
    total = jnp.sum(wide, axis=dimensions, keepdims=keepdims, dtype=wide.dtype) if dimensions else wide
    return _psum(total, names) if names else total


def _mean(context: Context, x: Operand, axes: Axes, *, keepdims: bool) -> jax.Array:
    dimensions, names = axes
    aval = context.operands[0]
    total = _sum(context, x, axes, keepdims=keepdims)
    count = prod(aval.shape[d] for d in dimensions) * prod(context.scope.sizes[name] for name in names)
    return exact_divide(total, cast(float(count), total.dtype))


def _extremum(x: jax.Array, axes: Axes, *, keepdims: bool, is_max: bool) -> jax.Array:
    """The largest or smallest element, or NaN if there is one: XLA's own reductions drop NaN on some paths."""
    dimensions, names = axes
    if x.dtype == np.bool_:
        narrow = _extremum(x.astype(np.int8), axes, keepdims=keepdims, is_max=is_max)
        return cast(narrow, DTYPES["bool"])
    best = (jnp.max if is_max else jnp.min)(x, axis=dimensions, keepdims=keepdims) if dimensions else x
    if names:
        best = (_pmax if is_max else _pmin)(best, names)
    if not is_float(x.dtype):
        return best
    has_nan = jnp.sum(jnp.isnan(x), axis=dimensions, keepdims=keepdims, dtype=np.int64)
    if names:
        has_nan = _psum(has_nan, names)
    return jnp.where(has_nan > np.int64(0), jnp.array(np.nan, x.dtype), best)


def _over_names(context: Context, axis_name: Any) -> Axes:
    return (), axis_names({"axis_name": axis_name}, context.scope)


def _over(context: Context, axis: Any) -> Axes:
    return split_axes(axis, context.operands[0], context.scope)


def _register_sums(registry: Registry, name: str, reduce: Callable[..., jax.Array], dtype_rule: str) -> None:
    @registry.builtin(
        name,
        doc=f"""The {name} over dimensions, names, or a list of both, as numpy.{name}.

        Arguments:
            x: any computable dtype; {dtype_rule}
            axis: None means all dimensions of the positional view (not the named axes).
            dtype: of the result and of the total.
            keepdims: keep reduced dimensions with size 1.

        16-bit floats accumulate in float32. Communication: one all-reduce over the mesh axes that split what is
        reduced.
        """,
    )
    def run(context: Context, x: Operand, *, axis: Any, dtype: str | None, keepdims: bool) -> jax.Array:  # noqa: ARG001
        return cast(reduce(context, x, _over(context, axis), keepdims=keepdims), context.dtype)

    @registry.builtin(
        "p" + name,
        doc=f"""The {name} over named axes: what every position along them holds together.

        Arguments:
            x: any computable dtype; {dtype_rule}
            axis_name: one name, or a list of them. A value that does not carry a name counts once for each position.

        16-bit floats accumulate in float32. Communication: one all-reduce over the mesh axes of the names.
        """,
    )
    def run_collective(context: Context, x: Operand, *, axis_name: Any) -> jax.Array:
        return cast(reduce(context, x, _over_names(context, axis_name), keepdims=False), context.dtype)


def _register_extrema(registry: Registry, name: str, word: str, *, is_max: bool) -> None:
    @registry.builtin(
        name,
        doc=f"""The {word} over dimensions, names, or a list of both, as numpy.{name}; NaN wins.

        The dtype stays; complex numbers have no order. No elements: ShapeError. Communication: two all-reduces for
        floats (one of them looks for NaN), one for other dtypes, over the mesh axes that split what is reduced.
        """,
    )
    def run(context: Context, x: Operand, *, axis: Any, keepdims: bool) -> jax.Array:
        array = cast(x, context.dtype)
        return _extremum(array, _over(context, axis), keepdims=keepdims, is_max=is_max)

    @registry.builtin(
        "p" + name,
        doc=f"""The {word} over named axes; NaN wins.

        The dtype stays. Communication: as {name}, over the mesh axes of the names.
        """,
    )
    def run_collective(context: Context, x: Operand, *, axis_name: Any) -> jax.Array:
        array = cast(x, context.dtype)
        return _extremum(array, _over_names(context, axis_name), keepdims=False, is_max=is_max)


def register(registry: Registry) -> None:
    _register_sums(registry, "sum", _sum, "integers and booleans widen to 64 bits, floats stay.")
    _register_sums(registry, "mean", _mean, "integers and booleans give float64, floats stay.")
    _register_extrema(registry, "max", "maximum", is_max=True)
    _register_extrema(registry, "min", "minimum", is_max=False)

    @registry.builtin("axis_index")
    def axis_index(context: Context, *, axis_name: Any) -> jax.Array:
        """The position along a named axis, int64; over a list of names the first is the most significant.

        Communication: none.
        """
        names = axis_names({"axis_name": axis_name}, context.scope)
        return cast(jax.lax.axis_index(names), context.dtype)

    @registry.builtin("axis_size")
    def axis_size(context: Context, *, axis_name: Any) -> jax.Array:
        """The size of a named axis, or the product of the sizes of a list of them, int64. Communication: none."""
        names = axis_names({"axis_name": axis_name}, context.scope)
        return cast(prod(context.scope.sizes[name] for name in names), context.dtype)
