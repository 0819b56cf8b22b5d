"""Axis specifications as people write them: prefixes of the tree of arguments, ints, dicts, lists; one `Axes` each.

Ints and None mean what they mean to `jax.vmap`: the dimension that an anonymous axis takes, or none.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeGuard

from shardserve_proto.abstract import Aval
from shardserve_proto.errors import AxisError
from shardserve_proto.specs import Axes, check_name, parse_axes

from ._tree import Prefix, Tree


def anonymous_axis(depth: int) -> str:
    """The name of an axis that has none: nobody types it by accident, and equal programs get equal names.

    Arguments:
        depth: names already in sight, which tells nested axes apart.
    """
    return f"<vmap axis {depth}>"


def is_position(value: Any) -> TypeGuard[int]:
    """An int of any kind, NumPy's included, and no bool."""
    return not isinstance(value, bool) and hasattr(value, "__index__") and not hasattr(value, "__len__")


def is_mapped_position(value: Any) -> bool:
    """A leaf of vmap's in_axes and out_axes."""
    return value is None or is_position(value)


def is_axes(value: Any) -> bool:
    """A leaf of xmap's in_axes and out_axes."""
    if is_mapped_position(value) or isinstance(value, Axes | str | EllipsisType):
        return True
    if isinstance(value, dict):
        return all(map(is_position, value)) and not any(isinstance(v, dict | list | tuple) for v in value.values())
    if not isinstance(value, list | tuple) or not value:
        return False
    if all(entry is None for entry in value):
        return isinstance(value, list)  # (None, None) is a tree of two, [None, None] asserts rank 2
    return all(entry is None or isinstance(entry, str | EllipsisType) for entry in value)


def _is_rank_0(value: Any) -> bool:
    """`[]` and `()` assert rank 0 where an array stands; elsewhere they are trees without arrays."""
    return isinstance(value, list | tuple) and not value


_FORMS = {
    "xmap": lambda what: Prefix(what, is_axes, AxisError, _is_rank_0),
    "vmap": lambda what: Prefix(what, is_mapped_position, AxisError),
}


def argument_axes(prefix: Any, tree: Tree, avals: Sequence[Aval], *, style: str, name: str) -> list[Axes]:
    """One `Axes` for each argument.

    Arguments:
        prefix: in_axes as given, a prefix of the tuple of arguments.
        style: "xmap" reads every form, "vmap" ints and None only.
        name: of the anonymous axis that ints place.

    Raises:
        AxisError: no prefix, or a specification that is not well formed.
    """
    entries = _FORMS[style]("in_axes").broadcast(prefix, tree)
    return [
        _axes(entry, rank=aval.ndim, name=name, what=f"in_axes of argument {index}")
        for index, (entry, aval) in enumerate(zip(entries, avals, strict=True))
    ]


def result_axes(prefix: Any, tree: Tree, avals: Sequence[Aval], *, style: str, name: str) -> list[Axes]:
    """One `Axes` for each result; positions are those of the final array."""
    entries = _FORMS[style]("out_axes").broadcast(prefix, tree)
    return [
        _axes(entry, rank=aval.ndim + 1, name=name, what=f"out_axes of result {index}")
        for index, (entry, aval) in enumerate(zip(entries, avals, strict=True))
    ]


def _axes(entry: Any, *, rank: int, name: str, what: str) -> Axes:
    if entry is None:
        return Axes()
    if is_position(entry):
        position = operator.index(entry)
        if not -rank <= position < rank:
            raise AxisError(f"{what}: dimension {position} is out of bounds for an array of rank {rank}")
        return Axes(names=((position % rank, name),))
    if isinstance(entry, str | EllipsisType):
        raise AxisError(f"{what} is a list of names, not the bare {entry!r}; did you mean [{entry!r}, ...]?")
    return parse_axes(entry, what=what)


def names_anything(prefix: Any) -> bool:
    """Whether in_axes hold a name, and not only ints and None; then out_axes have no default."""
    if is_mapped_position(prefix):
        return False
    if is_axes(prefix):
        return bool(prefix)
    children = prefix.values() if isinstance(prefix, dict) else prefix if isinstance(prefix, list | tuple) else ()
    return any(names_anything(child) for child in children)


def has_positions(prefix: Any) -> bool:
    """Whether in_axes hold an int, which calls for an anonymous axis."""
    if is_axes(prefix) or not isinstance(prefix, dict | list | tuple):
        return is_position(prefix)
    return any(has_positions(child) for child in (prefix.values() if isinstance(prefix, dict) else prefix))


def parse_sizes(value: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    """Read axis_sizes: `{"i": 6}`.

    Raises:
        AxisError: something else.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise AxisError(f"axis_sizes is a dict of axis name to size, not {value!r}")
    for name, size in value.items():
        if not isinstance(name, str) or not is_position(size):
            raise AxisError(f"axis_sizes gives an axis (a text) its size (an integer), not {name!r}: {size!r}")
    return tuple((check_name(name), operator.index(size)) for name, size in value.items())
