"""Bytes to devices and back: padding is made shard by shard, and stripped shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shardserve_proto.dtypes import DTYPES, DType
from shardserve_proto.frames import align

from .placement import Placed

Array = np.ndarray[Any, np.dtype[Any]]
Index = tuple[slice, ...]


#: A 4-bit integer takes a byte on the host and half of one on a device; at the boundary of jit XLA wants the packed
#: layout, which arrays put there do not have (JAX 0.10 to 0.12, CPU). So they cross it as bytes.
_CARRIERS = {DTYPES["int4"]: DTYPES["int8"], DTYPES["uint4"]: DTYPES["uint8"]}


def carrier(dtype: DType) -> DType:
    """The dtype in which an array crosses the boundary of jit."""
    return _CARRIERS.get(dtype, dtype)


def view(segment: Array, placed: Placed) -> Array:
    """The array that a segment's bytes hold: a view, whose root keeps the buffer."""
    dtype = placed.aval.strong_dtype
    array = segment.view(dtype).reshape(placed.aval.shape)
    return array if dtype not in _CARRIERS else array.astype(carrier(dtype))


def upload(
    arrays: Sequence[Array], placements: Sequence[Placed], shardings: Sequence[jax.sharding.Sharding]
) -> list[jax.Array]:
    """Put arrays on their devices. On CPU an aligned row split aliases host memory, which nobody writes again."""
    whole = [number for number, placed in enumerate(placements) if not placed.is_padded]
    put = iter(jax.device_put([arrays[n] for n in whole], [shardings[n] for n in whole]))
    return [
        _upload_padded(array, placed, sharding) if placed.is_padded else next(put)
        for array, placed, sharding in zip(arrays, placements, shardings, strict=True)
    ]


def _upload_padded(array: Array, placed: Placed, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(
        placed.padded_shape, sharding, lambda index: _padded_block(array, index or (), placed.padded_shape)
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
