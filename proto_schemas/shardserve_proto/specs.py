"""Meshes, specs and axis specifications: plain values, their wire forms, and the rules that need no devices.

A *spec* has one entry for each dimension of the full array: a mesh axis, a tuple of them (major to minor) or None.
`AUTO` leaves the choice to the server; `None` and `P()` replicate.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .errors import AxisError, ShapeError, ShardingError, nearest
from .limits import LIMITS

#: Most axes of a mesh.
MESH_AXES = 8
Entry: TypeAlias = "str | tuple[str, ...] | None"


class Auto(Enum):
    """The type of `AUTO`."""

    AUTO = "auto"

    def __repr__(self) -> str:
        return "AUTO"


#: The server chooses the placement.
AUTO: Final = Auto.AUTO


class P(tuple[Entry, ...]):
    """A spec: how each dimension of an array is split over mesh axes.

    Arguments:
        entries: for each dimension a mesh axis, a tuple of mesh axes (major to minor), or None for a whole dimension.
            Dimensions past the last entry are whole.

    Example:
        >>> P("data", None)
        P('data', None)
    """

    __slots__ = ()

    def __new__(cls, *entries: Entry) -> P:
        given: tuple[Any, ...] = entries
        if len(given) == 1 and isinstance(given[0], Iterator):
            given = tuple(given[0])  # dataclasses.asdict rebuilds each tuple so
        if len(given) > LIMITS.rank:
            raise ShardingError(f"a spec has one entry for each dimension, at most {LIMITS.rank}, not {len(given)}")
        for entry in given:
            _check_entry(entry)
        return super().__new__(cls, given)

    def __getnewargs__(self) -> tuple[Entry, ...]:  # for copy and pickle
        return tuple(self)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"

    def axes_of(self, dimension: int) -> tuple[str, ...]:
        """The mesh axes that split one dimension, major to minor."""
        entry = self[dimension] if dimension < len(self) else None
        if entry is None:
            return ()
        return entry if isinstance(entry, tuple) else (entry,)


def _check_entry(entry: Any) -> None:
    names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    if not all(isinstance(name, str) for name in names):
        raise ShardingError(f"a spec's entry is a mesh axis, a tuple of them, or None, not {entry!r}")
    if len(names) > MESH_AXES:
        raise ShardingError(f"a spec's entry has {len(names)} mesh axes; a mesh has at most {MESH_AXES}")
    try:
        for name in names:
            check_name(name)
    except AxisError as error:
        raise ShardingError(f"a spec's entry is a mesh axis: {error.message}") from None


Spec: TypeAlias = "P | Auto"
#: Bytes stay below 2**63 even for complex128.
MAX_ELEMENTS = 2**59
MeshShape: TypeAlias = tuple[tuple[str, int], ...]


def check_name(name: str) -> str:
    """A name of an axis or mesh: any non-empty text of at most 64 bytes of UTF-8."""
    try:
        is_valid = 0 < len(name.encode()) <= LIMITS.name_bytes
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        is_valid = False
    if not is_valid:
        raise AxisError(f"a name is 1 to {LIMITS.name_bytes} bytes of UTF-8, not {name[:70]!r}")
    return name


Name = Annotated[str, AfterValidator(check_name)]
# Arrays of the wire are decoded as tuples, which makes every message hashable.
WireEntry: TypeAlias = Name | Annotated[tuple[Name, ...], Field(max_length=MESH_AXES, fail_fast=True)] | None
#: On the wire: "auto", null (replicated), or a list with one entry for each dimension.
WireSpec: TypeAlias = (
    Literal["auto"] | Annotated[tuple[WireEntry, ...], Field(max_length=LIMITS.rank, fail_fast=True)] | None
)
WireMeshAxes: TypeAlias = Annotated[
    tuple[tuple[Name, int], ...], Field(min_length=1, max_length=MESH_AXES, fail_fast=True)
]
#: On the wire: a mesh's name, or [[axis, size], ...].
WireMesh: TypeAlias = Name | WireMeshAxes


def spec_from_wire(wire: WireSpec) -> Spec:
    """The spec of its wire form."""
    if wire == "auto":
        return AUTO
    return P(*(wire or ()))


def spec_to_wire(spec: Spec) -> WireSpec:
    """The wire form of a spec; `P()` and null are the same."""
    if isinstance(spec, Auto):
        return "auto"
    return tuple(spec) or None


def describe_mesh(mesh: MeshShape) -> str:
    """`data=4, model=2`."""
    return ", ".join(f"{axis}={size}" for axis, size in mesh)


def check_spec(spec: P, *, ndim: int, mesh: MeshShape | None, what: str) -> None:
    """Hold a spec against an array's rank and a mesh.

    Arguments:
        mesh: None where it is not known yet.
        what: the array in words, for the message ("argument 0", "output 1").

    Raises:
        ShardingError: an axis that the mesh does not have, an axis used twice, or more entries than dimensions.
    """
    sizes = dict(mesh or ())
    seen: set[str] = set()
    for dimension in range(len(spec)):
        for axis in spec.axes_of(dimension):
            if mesh is not None and axis not in sizes:
                raise ShardingError(
                    f"{what}: axis {axis!r} of {spec} is not on the mesh ({describe_mesh(mesh)}){nearest(axis, sizes)}"
                )
            if axis in seen:
                raise ShardingError(
                    f"{what}: mesh axis {axis!r} stands twice in {spec}; it can split one dimension only"
                )
            seen.add(axis)
    if len(spec) > ndim:
        raise ShardingError(_too_long(spec, ndim=ndim, what=what))


def _too_long(spec: P, *, ndim: int, what: str) -> str:
    if ndim == 0:
        return (
            f"{what} has rank 0 (a single number), so {spec} has no dimension to split; use P() or None, or give the "
            "call a batch axis, for example in_axes=({0: 'batch'}, {0: 'batch'}), out_axes=['batch', ...]"
        )
    return f"{what}: {spec} has {len(spec)} entries, but the array has rank {ndim}; one entry for each dimension"


def resolve_mesh(axes: Sequence[tuple[str, int]], *, devices: int) -> MeshShape:
    """The sizes of a mesh's axes, with a -1 filled in.

    Raises:
        ShardingError: an axis given twice, a size below 1, several -1, or more devices than there are.
    """
    asked = describe_mesh(tuple(axes))
    if len({axis for axis, _ in axes}) < len(axes):
        raise ShardingError(f"the mesh ({asked}) names an axis twice")
    if any(size < 1 and size != -1 for _, size in axes):
        raise ShardingError(f"the mesh ({asked}) has a size below 1; one size may be -1 and means the devices left")
    known = math.prod(size for _, size in axes if size != -1)
    if sum(size == -1 for _, size in axes) > 1:
        raise ShardingError(f"the mesh ({asked}) leaves two sizes open; one may be -1")
    if known > devices:
        raise ShardingError(f"the mesh ({asked}) needs {known} devices, but the server has {devices}")
    return tuple((axis, devices // known if size == -1 else size) for axis, size in axes)


class Axes(BaseModel):
    """Which dimensions of one array carry names: an axis specification of `xmap`.

    Attributes:
        names: pairs of position in the full array and name, by position.
        rank: the exact rank, if the specification asserts one.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    names: Annotated[tuple[tuple[int, Name], ...], Field(max_length=LIMITS.rank, fail_fast=True)] = ()
    rank: Annotated[int, Field(ge=0, le=LIMITS.rank)] | None = None

    def positions(self) -> dict[str, int]:
        return {name: position for position, name in self.names}

    def drop_named(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The positional part of a full shape."""
        named = {position for position, _ in self.names}
        return tuple(size for position, size in enumerate(shape) if position not in named)

    def insert_named(self, shape: Sequence[int], sizes: Mapping[str, int], *, what: str) -> tuple[int, ...]:
        """The full shape of an output, from its positional shape.

        Raises:
            AxisError: a position beyond the output's rank, or a rank other than the asserted one.
        """
        rank = len(shape) + len(self.names)
        self.check_rank(rank, what=what)
        named = dict(self.names)
        rest = iter(shape)
        return tuple(sizes[named[position]] if position in named else next(rest) for position in range(rank))

    def check_rank(self, rank: int, *, what: str) -> None:
        if self.rank is not None and rank != self.rank:
            raise AxisError(
                f"{what} has rank {rank}, but its axes {self} assert rank {self.rank}; add ... to allow more dimensions"
            )
        highest = max((position for position, _ in self.names), default=-1)
        if highest >= rank:
            raise AxisError(f"{what} has rank {rank}, but its axes {self} name position {highest}")

    def __str__(self) -> str:
        named = dict(self.names)
        if self.rank is not None:
            return str([named.get(position) for position in range(self.rank)])
        if list(named) == list(range(len(named))):
            return f"[{', '.join([*map(repr, named.values()), '...'])}]"
        return str(named)


def parse_axes(value: Any, *, what: str = "axes") -> Axes:
    """Read one human axis specification: `{1: 'batch'}`, `['a', 'b', ...]`, `['a', None]`, a tuple, an `Axes`.

    The JSON route spells the ellipsis `"..."` and may spell dict keys as texts.

    Raises:
        AxisError: a negative position, a name given twice, an ellipsis that is not last, or something else entirely.
    """
    if isinstance(value, Axes):
        return value
    if isinstance(value, Mapping):
        return make_axes(((_position(key, what), name) for key, name in value.items()), rank=None, what=what)
    if not isinstance(value, list | tuple):
        raise AxisError(f"{what}: an axis specification is a dict or a list, not {value!r}")
    is_open = bool(value) and (value[-1] is ... or value[-1] == "...")
    entries = value[:-1] if is_open else value
    if any(entry is ... or entry == "..." for entry in entries):
        raise AxisError(f"{what}: the ellipsis stands last in an axis specification, not inside {value!r}")
    names = ((position, name) for position, name in enumerate(entries) if name is not None)
    return make_axes(names, rank=None if is_open else len(entries), what=what)


def _position(key: Any, what: str) -> int:
    if isinstance(key, str) and re.fullmatch(r"-?[0-9]{1,9}", key):
        return int(key)
    try:
        position = operator.index(key)  # NumPy's integers too
    except TypeError:
        position = None
    if position is None or isinstance(key, bool):
        raise AxisError(f"{what}: the keys of an axis dict are positions (integers), not {key!r}")
    return position


def make_axes(names: Iterable[tuple[int, Any]], *, rank: int | None, what: str) -> Axes:
    """Axes of pairs of position and name, checked."""
    pairs = sorted(names, key=lambda pair: pair[0])
    for position, name in pairs:
        if not isinstance(name, str):
            raise AxisError(f"{what}: an axis name is a text, not {name!r}")
        check_name(name)
        if position < 0:
            raise AxisError(f"{what}: position {position} of axis {name!r} is negative; count from the front")
    _check_distinct(pairs, what)
    if max(len(pairs), rank or 0) > LIMITS.rank:
        raise AxisError(
            f"{what} describe rank {max(len(pairs), rank or 0)}; an array has at most {LIMITS.rank} dimensions"
        )
    axes = Axes(names=tuple(pairs), rank=rank)
    if rank is not None:
        axes.check_rank(rank, what=what)
    return axes


def _check_distinct(pairs: Sequence[tuple[int, str]], what: str) -> None:
    positions = [position for position, _ in pairs]
    names = [name for _, name in pairs]
    for position in positions:
        if positions.count(position) > 1:
            raise AxisError(f"{what}: position {position} has two names")
    for name in names:
        if names.count(name) > 1:
            raise AxisError(f"{what}: axis {name!r} stands twice in one specification")


def parse_resources(value: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Read `{'rows': 'x', 'cols': ('y', 'z')}` as ordered pairs.

    Raises:
        AxisError: a mesh axis given twice to one name, or something that is no mesh axis.
    """
    if not isinstance(value, Mapping):
        raise AxisError(f"axis_resources is a dict of axis name to mesh axes, not {value!r}")
    pairs = []
    for name, axes in value.items():
        entry = tuple(axes) if isinstance(axes, list | tuple) else (axes,)
        if not isinstance(name, str) or not all(isinstance(axis, str) for axis in entry):
            raise AxisError(f"axis_resources of {name!r} are mesh axes (texts), not {axes!r}")
        if len(set(entry)) < len(entry):
            raise AxisError(f"axis_resources give axis {name!r} the same mesh axis twice: {axes!r}")
        pairs.append((name, entry))
    return tuple(pairs)


def check_shape(shape: Sequence[int], *, what: str) -> None:
    """Rank and sizes in bounds: at most 32 dimensions, none negative, and sizes that 64 bits can count.

    Raises:
        ShapeError: otherwise.
    """
    if len(shape) > LIMITS.rank:
        raise ShapeError(f"{what} has rank {len(shape)}; at most {LIMITS.rank} dimensions are supported")
    if any(size < 0 for size in shape):
        raise ShapeError(f"{what} has the shape {tuple(shape)}; sizes are not negative")
    # An empty dimension does not make its neighbours countable: NumPy refuses (0, 2**63) too.
    if math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ShapeError(f"{what} has the shape {tuple(shape)}, which is more than any array can have")
