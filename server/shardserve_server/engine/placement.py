"""Where the arrays of a call lie: from specs, axis resources and policy to one spec for each argument and output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardserve_proto.abstract import Aval
from shardserve_proto.errors import ShardingError
from shardserve_proto.specs import Auto, Axes, MeshShape, P, Spec, check_spec

#: Below this many bytes of arguments and outputs a call whose placement is open runs on one device: dispatch over
#: eight devices costs some 30 times that over one, and small data does not repay it.
SPREAD_BYTES = 8 * 2**20
#: An open argument below this size is replicated when its call is spread.
REPLICATE_BYTES = 2**20


@dataclass(frozen=True)
class Placed:
    """An array on a mesh.

    Attributes:
        aval: its full shape and dtype.
        spec: how it is split; None for an output whose spec the compiler chooses.
        padded_shape: its shape with every split dimension rounded up to a multiple of its parts.
    """

    aval: Aval
    spec: P | None
    padded_shape: tuple[int, ...]

    @cached_property
    def nbytes(self) -> int:
        return nbytes(self.aval)

    @cached_property
    def is_padded(self) -> bool:
        return self.padded_shape != self.aval.shape


@dataclass(frozen=True)
class Where:
    """Where an array lies: how it is split, and over which mesh.

    Attributes:
        mesh: None when it lies on one device.
    """

    placed: Placed
    mesh: MeshShape | None


def nbytes(aval: Aval) -> int:
    """Bytes of an array, in Python integers."""
    return math.prod(aval.shape) * aval.strong_dtype.itemsize


def parts(spec: P, dimension: int, mesh: MeshShape) -> int:
    """Into how many parts a spec splits one dimension."""
    sizes = dict(mesh)
    return math.prod(sizes[axis] for axis in spec.axes_of(dimension))


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def place(aval: Aval, spec: P, mesh: MeshShape) -> Placed:
    """Pad each split dimension to ceil(n/k)·k; XLA refuses sizes that do not divide the mesh."""
    padded = tuple(round_up(size, parts(spec, d, mesh)) for d, size in enumerate(aval.shape))
    return Placed(aval, spec, padded)


def place_freely(aval: Aval, mesh: MeshShape) -> Placed:
    """An output whose spec the compiler chooses.

    Dimensions are padded to a multiple of the device count: at an uneven size XLA silently replicates the result at the
    boundary of jit (jax#26946), whatever it would have chosen. Short dimensions are left alone where that would cost
    much memory.
    """
    devices = math.prod(size for _, size in mesh)
    every = tuple(round_up(size, devices) if size > 1 else size for size in aval.shape)
    if math.prod(every) * aval.strong_dtype.itemsize <= max(2 * nbytes(aval), REPLICATE_BYTES):
        return Placed(aval, None, every)
    return Placed(aval, None, tuple(round_up(size, devices) if size >= devices else size for size in aval.shape))


def merge(
    spec: Spec, axes: Axes, resources: Mapping[str, tuple[str, ...]], *, ndim: int, mesh: MeshShape, what: str
) -> P | None:
    """One spec from an array's own spec and the resources of its named dimensions; None if neither says anything.

    Raises:
        ShardingError: they disagree about a dimension, a mesh axis would split two, or `check_spec` refuses.
    """
    placed = {position: resources[name] for position, name in axes.names if resources.get(name)}
    if isinstance(spec, Auto):
        if not placed:
            return None
        spec = P()
    check_spec(spec, ndim=ndim, mesh=mesh, what=what)
    entries = [spec.axes_of(dimension) for dimension in range(ndim)]
    for position, wanted in placed.items():
        if entries[position] and entries[position] != wanted:
            raise ShardingError(
                f"{what}: dimension {position} is axis {dict(axes.names)[position]!r}, which axis_resources put on "
                f"{wanted}, but {spec} puts it on {entries[position]}; give it in one of the two places"
            )
        entries[position] = wanted
    merged = P(*(_entry(axes_of) for axes_of in entries))
    check_spec(merged, ndim=ndim, mesh=mesh, what=what)
    return trimmed(merged)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if not axes:
        return None
    return axes[0] if len(axes) == 1 else axes


def trimmed(spec: P) -> P:
    """Without trailing None entries, which say nothing."""
    entries = list(spec)
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def is_worth_spreading(avals: Sequence[Aval], mesh: MeshShape) -> bool:
    """Whether a call whose placement is open runs on the whole mesh: a pure function of shapes, dtypes and mesh."""
    devices = math.prod(size for _, size in mesh)
    return devices > 1 and sum(map(nbytes, avals)) >= SPREAD_BYTES


def open_spec(aval: Aval, axes: Axes, mesh: MeshShape) -> P:
    """Where an open argument of a spread call goes: its longest unnamed dimension is split over the whole mesh."""
    devices = math.prod(size for _, size in mesh)
    named = {position for position, _ in axes.names}
    candidates = [(size, -d) for d, size in enumerate(aval.shape) if d not in named and size >= devices]
    if nbytes(aval) < REPLICATE_BYTES or not candidates:
        return P()
    longest = -max(candidates)[1]
    whole = tuple(axis for axis, _ in mesh)
    return P(*[None] * longest, whole if len(whole) > 1 else whole[0])
