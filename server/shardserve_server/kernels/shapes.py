"""Kernels that move elements without computing: reshape, transpose, broadcast_to, slice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardserve_proto.rules import slice_ranges, transpose_order

from .registry import Context, Operand, Registry, cast


def register(registry: Registry) -> None:
    @registry.builtin("reshape")
    def reshape(context: Context, x: Operand, *, shape: Any) -> jax.Array:  # noqa: ARG001
        """The same elements in another shape, in C order, as numpy.reshape; one size may be -1.

        Communication: none where the split dimensions stay, else an all-gather or all-to-all.
        """
        return jnp.reshape(cast(x, context.dtype), context.results[0].shape)

    @registry.builtin("transpose")
    def transpose(context: Context, x: Operand, *, axes: Any) -> jax.Array:
        """The dimensions in another order, as numpy.transpose; None reverses them. Communication: none."""
        return jnp.transpose(cast(x, context.dtype), transpose_order(context.operands[0], axes))

    @registry.builtin("broadcast_to")
    def broadcast_to(context: Context, x: Operand, *, shape: Any) -> jax.Array:  # noqa: ARG001
        """The array repeated to a shape, as numpy.broadcast_to. Communication: none."""
        return jnp.broadcast_to(cast(x, context.dtype), context.results[0].shape)

    @registry.builtin("slice")
    def slice_of(context: Context, x: Operand, *, starts: Any, stops: Any, steps: Any) -> jax.Array:
        """The elements range(start, stop, step) of each dimension, as numpy.ndarray.__getitem__; steps may be negative.

        Every position is counted from the front, as Python's slice.indices gives it. Communication: none where whole
        shards are taken, else a collective-permute or all-gather of what is taken.
        """
        ranges = slice_ranges(context.operands[0].shape, {"starts": starts, "stops": stops, "steps": steps})
        forward = [_forward(taken) for taken in ranges]
        array = cast(x, context.dtype)
        bounds = [(taken.start, taken.stop, taken.step) for taken in forward]
        cut = jax.lax.slice(array, *zip(*bounds, strict=True)) if bounds else array
        backward = [dimension for dimension, taken in enumerate(ranges) if taken.step < 0]
        return jax.lax.rev(cut, backward) if backward else cut


def _forward(taken: range) -> range:
    """The same positions in rising order, ending at most one behind the last."""
    if not taken:
        return range(0, 0, 1)
    if len(taken) == 1:  # XLA's partitioner takes another element when one is taken with a step (JAX 0.10 to 0.12)
        return range(taken[0], taken[0] + 1)
    low, high = min(taken[0], taken[-1]), max(taken[0], taken[-1])
    return range(low, high + 1, abs(taken.step))
