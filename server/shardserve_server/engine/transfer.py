"""Bytes to devices and back: padding is made shard by shard, and stripped shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from shardserve_proto.dtypes import name_of
from shardserve_proto.frames import align
from shardserve_proto.messages import Segment

from .placement import Placed

Array = np.ndarray[Any, np.dtype[Any]]
Index = tuple[slice, ...]


def view(segment: Array, placed: Placed) -> Array:
    """The array that a segment's bytes hold: a view, whose root keeps the buffer."""
    return segment.view(placed.aval.strong_dtype).reshape(placed.aval.shape)


def upload(array: Array, placed: Placed, sharding: NamedSharding | SingleDeviceSharding) -> jax.Array:
    """Put an array on its devices. On CPU an aligned row split aliases the host's memory, which nobody writes again."""
    if not placed.is_padded:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(
        placed.padded_shape, sharding, lambda index: _padded_block(array, index, placed.padded_shape)
    )


def _padded_block(array: Array, index: Index, padded_shape: Sequence[int]) -> Array:
    """One shard of the padded array, with zeros behind the true data."""
    bounds = [entry.indices(size)[:2] for entry, size in zip(index, padded_shape, strict=True)]
    inside = array[tuple(slice(start, stop) for start, stop in bounds)]
    shape = tuple(stop - start for start, stop in bounds)
    if inside.shape == shape:
        return inside
    block = np.zeros(shape, array.dtype)
    block[tuple(slice(0, size) for size in inside.shape)] = inside
    return block


def describe(outputs: Sequence[Placed]) -> tuple[Segment, ...]:
    """The segments of a reply."""
    return tuple(
        Segment(dtype=name_of(placed.aval.strong_dtype), shape=placed.aval.shape, nbytes=placed.nbytes)
        for placed in outputs
    )


def slots(outputs: Sequence[Placed]) -> tuple[list[slice], int]:
    """Where each output lies in one buffer, on 64-byte boundaries, and the buffer's size."""
    position, found = 0, []
    for placed in outputs:
        start = align(position)
        position = start + placed.nbytes
        found.append(slice(start, position))
    return found, position


def gather(result: jax.Array, placed: Placed, memory: memoryview) -> None:
    """Copy a result's shards into host memory, without padding and without one more copy of the whole.

    `np.asarray(result)` would assemble the array a second time and keep it inside the jax.Array.
    """
    shape = placed.aval.shape
    target = np.frombuffer(memory, np.uint8).view(placed.aval.strong_dtype).reshape(shape)
    for shard in result.addressable_shards:
        if shard.replica_id:
            continue
        bounds = [entry.indices(size)[:2] for entry, size in zip(shard.index, result.shape, strict=True)]
        inside = tuple(slice(start, min(stop, size)) for (start, stop), size in zip(bounds, shape, strict=True))
        if all(entry.start < entry.stop for entry in inside):
            local = tuple(slice(0, entry.stop - entry.start) for entry in inside)
            target[inside] = np.asarray(shard.data)[local]
