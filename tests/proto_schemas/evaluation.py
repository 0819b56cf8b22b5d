"""Short hands for abstract evaluation: values, programs of one kernel, and calls with human axis specifications."""

from __future__ import annotations

from typing import Any

from shardserve_proto.abstract import Aval, Scope, evaluate_mapped
from shardserve_proto.dtypes import DTYPES
from shardserve_proto.programs import Mapping, Program
from shardserve_proto.signatures import BUILTIN
from shardserve_proto.specs import MeshShape, parse_axes, parse_resources

F32, I64 = DTYPES["float32"], DTYPES["int64"]
GRID: MeshShape = (("x", 4), ("y", 2))


def aval(*shape: int) -> Aval:
    return Aval(shape, F32)


def mapped(
    program: Program,
    *inputs: Aval,
    in_axes: Any,
    out_axes: Any,
    sizes: dict[str, int] | None = None,
    resources: dict[str, Any] | None = None,
    mesh: MeshShape | None = GRID,
) -> list[Aval]:
    """The full results of a program under human axis specifications."""
    mapping = Mapping(
        in_axes=tuple(map(parse_axes, in_axes)),
        out_axes=tuple(map(parse_axes, out_axes)),
        axis_sizes=tuple((sizes or {}).items()),
        axis_resources=parse_resources(resources or {}),
    )
    return evaluate_mapped(program, mapping, inputs, Scope(mesh=mesh), BUILTIN)


def kernel(name: str, operands: int = 1, **params: Any) -> Program:
    return Program.of_kernel(name, operands=operands, params=params)


IDENTITY = kernel("identity")
