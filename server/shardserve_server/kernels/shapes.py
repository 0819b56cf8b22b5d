"""Kernels that move elements without computing: reshape, transpose, broadcast_to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardserve_proto.rules import transpose_order

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
