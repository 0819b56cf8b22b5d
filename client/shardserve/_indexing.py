"""`x[...]` with integers, slices, `...` and None, in the terms of the kernels slice and reshape."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardserve_proto.programs import Param

from ._axes import is_position


class BadIndex(TypeError):
    """An index of a kind that is not supported: arrays, lists, booleans."""


@dataclass(frozen=True)
class Part:
    """A part of an array.

    Attributes:
        starts, stops, steps: of each dimension, as of Python's `range`.
        sizes: what they leave of each dimension.
        shape: of the part, without the dimensions of integers and with those of None.
        sources: for each of its dimensions, the array's own; None for one of None.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    sources: tuple[int | None, ...]

    @property
    def params(self) -> dict[str, Param]:
        """Of the kernel `slice`."""
        return {"starts": self.starts, "stops": self.stops, "steps": self.steps}


def part_of(shape: tuple[int, ...], key: Any) -> Part:
    """The part that an index stands for.

    Raises:
        IndexError: too many indices, or one out of bounds, as in NumPy.
        BadIndex: an index by arrays, lists or booleans.
    """
    ranges: list[range] = []
    kept: list[int] = []
    sources: list[int | None] = []
    for entry in _whole(_entries(key), len(shape)):
        if entry is None:
            kept.append(1)
            sources.append(None)
            continue
        size = shape[len(ranges)]
        if isinstance(entry, slice):
            sources.append(len(ranges))
            ranges.append(range(size)[entry])
            kept.append(len(ranges[-1]))
        else:
            ranges.append(_single(operator.index(entry), size, len(ranges)))
    sizes = tuple(map(len, ranges))
    starts, stops, steps = (tuple(getattr(r, name) for r in ranges) for name in ("start", "stop", "step"))
    return Part(starts, stops, steps, sizes, tuple(kept), tuple(sources))


def _entries(key: Any) -> tuple[Any, ...]:
    entries = key if isinstance(key, tuple) else (key,)
    for entry in entries:
        if isinstance(entry, np.ndarray) or not (
            entry is None or entry is Ellipsis or isinstance(entry, slice) or is_position(entry)
        ):
            raise BadIndex(f"an index is made of integers, slices, ... and None, not of a {type(entry).__name__}")
    return entries


def _whole(entries: tuple[Any, ...], ndim: int) -> list[Any]:
    """One entry for each dimension: `...`, or nothing at the end, stands for the dimensions that are left."""
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    dots = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ...")
    if used > ndim:
        raise IndexError(f"too many indices: the array has {ndim} dimensions, {used} are indexed")
    place = dots[0] if dots else len(entries)
    return [*entries[:place], *[slice(None)] * (ndim - used), *entries[place + 1 :]]


def _single(index: int, size: int, dimension: int) -> range:
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dimension} with size {size}")
    return range(index % size, index % size + 1)
