"""Specs and meshes as people write them, those of jax included, by shape: jax itself is never imported."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardserve_proto.errors import ShardingError
from shardserve_proto.specs import AUTO, Auto, P, Spec, WireMesh, WireSpec, check_name, spec_to_wire

from ._axes import is_position
from ._tree import Prefix, Tree


def _is_partition_spec(value: Any) -> bool:
    """Whether it is jax's: a class called PartitionSpec, or `jax.P`."""
    names = {(cls.__module__.partition(".")[0] == "jax", cls.__name__) for cls in type(value).__mro__}
    return (True, "P") in names or any(name == "PartitionSpec" for _, name in names)


def _is_named_sharding(value: Any) -> bool:
    return hasattr(value, "spec") and hasattr(value, "mesh")


def is_spec(value: Any) -> bool:
    """A leaf of in_shardings and out_shardings."""
    if value is None or isinstance(value, Auto | P) or _is_partition_spec(value) or _is_named_sharding(value):
        return True
    if isinstance(value, dict | list | tuple):
        # A bare ("data", None) is a spec that forgot its P; it is told so below.
        return isinstance(value, tuple) and any(isinstance(entry, str) for entry in value)
    return True


@dataclass(frozen=True)
class Shardings:
    """Specs, one for each array.

    Attributes:
        specs: of the wire; None when the server chooses all.
        mesh: the mesh that a jax NamedSharding brought along.
    """

    specs: tuple[WireSpec, ...] | None = None
    mesh: WireMesh | None = None


def read_shardings(prefix: Any, tree: Tree, what: str) -> Shardings:
    """One spec for each leaf of the tree.

    Arguments:
        prefix: a spec for all, or a tree prefix of specs. AUTO: the server chooses; None: replicated.
        what: the keyword, for messages.

    Raises:
        ShardingError: no prefix, no spec, or two meshes.
    """
    if prefix is AUTO:
        return Shardings()
    entries = Prefix(what, is_spec, ShardingError).broadcast(prefix, tree)
    meshes = [read_mesh(entry.mesh) for entry in entries if _is_named_sharding(entry)]
    for mesh in meshes:
        if mesh != meshes[0]:
            raise ShardingError(f"{what} hold shardings over two meshes, {meshes[0]} and {mesh}; a call has one")
    return Shardings(
        tuple(spec_to_wire(read_spec(entry, what=what)) for entry in entries), meshes[0] if meshes else None
    )


def read_spec(value: Any, *, what: str) -> Spec:
    """One spec: `P`, None, AUTO, or jax's PartitionSpec or NamedSharding.

    Raises:
        ShardingError: something else.
    """
    if value is None:
        return P()
    if isinstance(value, Auto | P):
        return value
    if _is_named_sharding(value):
        return read_spec(value.spec, what=what)
    if _is_partition_spec(value):
        if getattr(value, "unreduced", None):
            raise ShardingError(f"{what}: {value!r} is unreduced; the arrays of a call are whole")
        return P(*(tuple(entry) if isinstance(entry, list | tuple) else entry for entry in value))
    meant = P(*value) if isinstance(value, tuple) and all(e is None or isinstance(e, str) for e in value) else P("x")
    raise ShardingError(f"{what} takes specs such as {meant}, None (replicated) or AUTO, not {value!r}")


def read_mesh(value: Any) -> WireMesh | None:
    """A mesh: its name, `{"x": 4, "y": -1}`, pairs of axis and size, or a jax Mesh.

    Raises:
        ShardingError: something else.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return check_name(value)
    shape = getattr(value, "shape", value)  # a jax Mesh has its axes there
    pairs = list(shape.items()) if isinstance(shape, Mapping) else shape
    if not isinstance(pairs, Sequence) or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise ShardingError(f"a mesh is a name or a dict of axis to size such as {{'x': 4, 'y': -1}}, not {value!r}")
    if not pairs:
        raise ShardingError("a mesh has at least one axis, for example {'devices': -1}")
    return tuple(_mesh_axis(axis, size) for axis, size in pairs)


def _mesh_axis(axis: Any, size: Any) -> tuple[str, int]:
    if not isinstance(axis, str) or not is_position(size):
        raise ShardingError(f"a mesh gives each axis (a text) a size (an integer), not {axis!r}: {size!r}")
    return check_name(axis), operator.index(size)
