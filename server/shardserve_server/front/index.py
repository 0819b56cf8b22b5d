"""NumPy's basic indexing as text, in the query of a download: `0:10,::2,3`, `...,-1`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardserve_proto.errors import InvalidRequest, ShapeError
from shardserve_proto.limits import LIMITS

_NUMBER = r"[+-]?[0-9]+"
_INT = re.compile(_NUMBER)
_SLICE = re.compile(rf"({_NUMBER})?:({_NUMBER})?(?::({_NUMBER})?)?")
#: A text of this length holds as many entries as an array has dimensions.
MOST_CHARACTERS = LIMITS.rank * 64
Entry = int | slice


@dataclass(frozen=True)
class Slice:
    """A slice of an array of known shape.

    Attributes:
        starts, stops, steps: for each dimension, as `slice.indices` gives them.
        shape: of the result, without the dimensions that a single position was taken of.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]


def parse_index(text: str, shape: Sequence[int]) -> Slice:
    """Read an index and hold it against an array's shape.

    Raises:
        InvalidRequest: the text is no basic index.
        ShapeError: a position or a dimension that the array does not have.
    """
    entries = _fill(_entries(text), shape)
    ranges = [_range(entry, size, d) for d, (entry, size) in enumerate(zip(entries, shape, strict=True))]
    return Slice(
        starts=tuple(bounds[0] for bounds in ranges),
        stops=tuple(bounds[1] for bounds in ranges),
        steps=tuple(bounds[2] for bounds in ranges),
        shape=tuple(
            len(range(*bounds)) for entry, bounds in zip(entries, ranges, strict=True) if isinstance(entry, slice)
        ),
    )


def _entries(text: str) -> list[Entry | None]:
    """The entries in order; None stands for the ellipsis."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(f"slice has {len(text)} characters, at most {MOST_CHARACTERS} are read")
    entries = [_entry(part.strip()) for part in text.strip().removesuffix(",").split(",")]
    if entries.count(None) > 1:
        raise InvalidRequest(f"slice={text[:80]!r} has more than one ellipsis")
    return entries


def _entry(part: str) -> Entry | None:
    if part == "...":
        return None
    if _INT.fullmatch(part):
        return int(part)
    match = _SLICE.fullmatch(part)
    if match is None:
        raise InvalidRequest(
            f"slice: {part[:40]!r} is no position, range or ellipsis; it is NumPy's basic indexing, such as "
            "0:10,::2,3 or ...,-1"
        )
    start, stop, step = (None if number is None else int(number) for number in match.groups())
    if step == 0:
        raise InvalidRequest(f"slice: {part[:40]!r} has a step of 0")
    return slice(start, stop, step)


def _fill(entries: list[Entry | None], shape: Sequence[int]) -> list[Entry]:
    """One entry for each dimension."""
    given = len(entries) - entries.count(None)
    if given > len(shape):
        raise ShapeError(f"slice has {given} entries, but the array has rank {len(shape)}")
    middle = entries.index(None) if None in entries else len(entries)
    rest = [slice(None)] * (len(shape) - given)
    filled = [*entries[:middle], *rest, *entries[middle + 1 :]]
    return [entry for entry in filled if entry is not None]


def _range(entry: Entry, size: int, dimension: int) -> tuple[int, int, int]:
    if isinstance(entry, slice):
        start, stop, step = entry.indices(size)
        most = max(1, size)  # a longer step takes the first position as well, but has no limit
        return start, stop, max(-most, min(step, most))
    if not -size <= entry < size:
        raise ShapeError(
            f"position {str(entry)[:24]} is out of bounds for dimension {dimension}, which has the size {size}"
        )
    return entry % size, entry % size + 1, 1
