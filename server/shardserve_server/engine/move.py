"""Resident arrays on their way to another spec, another mesh or other padding; never by way of the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import numpy as np

from shardserve_proto.dtypes import DType

from .mesh import Meshes, Sharding
from .placement import Where, parts, round_up
from .transfer import carrier

Move: TypeAlias = Callable[[jax.Array], jax.Array]


def build_move(source: Where, target: Where, meshes: Meshes) -> Move:
    """A function that brings an array from one place to another; compiled here where the padding differs.

    Shards of two layouts can be exchanged only at a shape that both divide. So where the padding differs, the array is
    padded to a common multiple where it lies, moved, and cut to the target's padding there.
    """
    there = meshes.sharding(target)
    if not source.placed.nbytes:  # JAX moves what is empty by way of host values that do not fit it
        nothing = np.zeros(target.placed.padded_shape, carrier(target.placed.aval.strong_dtype))
        return lambda _: jax.device_put(nothing, there)
    if source.placed.padded_shape == target.placed.padded_shape:
        return lambda array: jax.device_put(array, there)
    common = _common_shape(source, target)
    dtype, true = carrier(source.placed.aval.strong_dtype), source.placed.aval.shape
    widen = _fit(source.placed.padded_shape, true, common, dtype, meshes.sharding(source))
    narrow = _fit(common, true, target.placed.padded_shape, dtype, there)
    return lambda array: narrow(jax.device_put(widen(array), there))


def _common_shape(source: Where, target: Where) -> tuple[int, ...]:
    return tuple(
        round_up(size, math.lcm(_parts(source, dimension), _parts(target, dimension)))
        for dimension, size in enumerate(source.placed.aval.shape)
    )


def _parts(where: Where, dimension: int) -> int:
    if where.mesh is None or where.placed.spec is None:
        return 1
    return parts(where.placed.spec, dimension, where.mesh)


def _fit(
    shape: tuple[int, ...], true: tuple[int, ...], wanted: tuple[int, ...], dtype: DType, sharding: Sharding
) -> Move:
    """Cut an array to its true shape and pad it to another one, where it lies."""
    if shape == wanted:
        return lambda array: array

    def fit(array: jax.Array) -> jax.Array:
        cut = jax.lax.slice(array, [0] * array.ndim, true)
        widths = [(0, size - own, 0) for size, own in zip(wanted, true, strict=True)]
        return jax.lax.pad(cut, jax.numpy.zeros((), array.dtype), widths)

    compiled: Move = (
        jax.jit(fit, in_shardings=sharding, out_shardings=sharding).lower(jax.ShapeDtypeStruct(shape, dtype)).compile()
    )
    return compiled
