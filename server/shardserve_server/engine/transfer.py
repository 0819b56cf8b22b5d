"""Bytes to devices and back: padding is made shard by shard, and stripped shard by shard."""

from __future__ import annotations

import math
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
        placed.padded_shape, sharding, lambda index: padded_block(array, index or (), placed.padded_shape)
    )


def padded_block(array: Array, index: Index, padded_shape: Sequence[int]) -> Array:
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
    if placed.spec is not None and not placed.is_padded and len(result.sharding.device_set) == 1:
        typed(memory, placed.aval.strong_dtype, shape)[...] = np.asarray(result)
        return
    whole = tuple(slice(0, size) for size in shape)
    copy_block(host_shards(result), whole, typed(memory, placed.aval.strong_dtype, shape))


def typed(memory: memoryview, dtype: DType, shape: Sequence[int]) -> Array:
    """Memory as an array."""
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


#: The bounds of a shard in the padded array, and its bytes on the host (on CPU a view of the device's own memory).
HostShard = tuple[Index, Array]


def host_shards(array: jax.Array) -> list[HostShard]:
    """Each part of an array once, replicas left out."""
    return [
        (tuple(slice(*entry.indices(size)[:2]) for entry, size in zip(shard.index, array.shape, strict=True)),
         np.asarray(shard.data))
        for shard in array.addressable_shards
        if not shard.replica_id
    ]  # fmt: skip


def copy_block(shards: Sequence[HostShard], block: Index, target: Array) -> None:
    """Copy one block of an array, given by its bounds, out of the shards that have a part in it."""
    for bounds, data in shards:
        both = [(max(b.start, s.start), min(b.stop, s.stop)) for b, s in zip(block, bounds, strict=True)]
        if all(start < stop for start, stop in both):
            there = tuple(slice(lo - b.start, hi - b.start) for (lo, hi), b in zip(both, block, strict=True))
            here = tuple(slice(lo - s.start, hi - s.start) for (lo, hi), s in zip(both, bounds, strict=True))
            target[there] = data[here]


def blocks(shape: Sequence[int], *, itemsize: int, most_bytes: int) -> list[Index]:
    """Cut an array into blocks of at most `most_bytes`, each contiguous in C order, that follow each other."""
    if not math.prod(shape):
        return []
    cut = 0
    while cut < len(shape) and math.prod(shape[cut + 1 :]) * itemsize > most_bytes:
        cut += 1
    if cut == len(shape):  # rank 0
        return [()]
    rows = max(1, most_bytes // (math.prod(shape[cut + 1 :]) * itemsize))
    behind = tuple(slice(0, size) for size in shape[cut + 1 :])
    return [
        (*(slice(i, i + 1) for i in outer), slice(start, min(start + rows, shape[cut])), *behind)
        for outer in np.ndindex(*shape[:cut])
        for start in range(0, shape[cut], rows)
    ]


def aliases(array: jax.Array, roots: Sequence[Array]) -> list[bool]:
    """For each shard, whether it lies in the memory of one of these host arrays, which JAX may share on CPU."""
    ranges = [(root.ctypes.data, root.ctypes.data + root.nbytes) for root in roots if root.nbytes]
    if not ranges or jax.default_backend() != "cpu":
        return [False]
    pointers = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
    return [any(start <= pointer < stop for start, stop in ranges) for pointer in pointers]


def own_copy(array: jax.Array) -> jax.Array:
    """The same array in memory that nobody shares, shard by shard."""
    parts = [put_copy(np.asarray(shard.data), shard.device) for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def put_copy(block: Array, device: jax.Device) -> jax.Array:
    """Put host memory on a device that somebody may write to later.

    On CPU the copy is made here: `device_put(..., may_alias=False)` shares aligned host memory all the same (JAX 0.10
    to 0.12). It begins on a 64-byte boundary, so that JAX shares it instead of making another one.
    """
    own = block
    if device.platform == "cpu":
        raw = np.empty(block.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        own = raw[start : start + block.nbytes].view(block.dtype).reshape(block.shape)
        own[...] = block
    there: jax.Array = jax.device_put(own, device)
    return there
